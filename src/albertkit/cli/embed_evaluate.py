"""albertkit embed evaluate, augment and map"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from albertkit.cli.table_columns import TableColumns


def evaluate(
    *models_and_files: str,
    dimension: tuple[int, ...] = (),
    out: Path | None = None,
    table: Path | None = None,
    precision: Literal["fp32", "bf16", "int8", "auto"] = "fp32",
    prompt_name: str | None = None,
    prompt: str | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    seed: int = 0,
    json: bool = False,
    columns: Annotated[
        TableColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = TableColumns(),  # noqa: B008
) -> None:
    """Measure sentence embeddings: correlation with people's scores, retrieval both ways, beside a bag of pieces.

    Args:
        models_and_files: One or more models: runs of `embed train`, sentence-transformers folders of any model, ALBERT
            checkpoints (mean pooling), or `org/name` of the hub. Then KIND=PATH, one or more. stsb, korsts, klue-sts: official
            files, or their folder; scores: a table of two texts and a score; pairs: a table of two texts that mean the same.
            Several models give a table with models in rows and data sets in columns.
        dimension: Measure again with only the first so many numbers of the vectors, as Matryoshka training allows. May
            be repeated.
        out: Folder for results.json and similarity.csv; of several models a folder for each.
        table: Write the table of models and data sets: FILE.md or FILE.html.
        precision: Of an ALBERT. fp32 gives sentence-transformers' own figures; with the others one sees what speed
            costs.
        prompt_name: Name of the model's prompt that is put before every text, such as query. Default: its own default.
        prompt: The prompt itself, such as 'query: '.
        on_error: Rows that cannot be used: stop, or skip and count them.
        seed: Of the bootstrap intervals.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.embeddings.evaluation.evaluate import evaluate_models
    from albertkit.embeddings.evaluation.files import models_and_files as separate
    from albertkit.embeddings.evaluation.files import named_files
    from albertkit.files import check_new_folder
    from albertkit.report.embedding_results import print_embedding_results, save_all_embedding_results
    from albertkit.report.embedding_table import (
        check_table_file,
        embedding_table,
        print_embedding_table,
        write_embedding_table,
    )

    if table is not None:
        check_table_file(table)
    if out is not None:
        check_new_folder(out)
    models, files = separate(models_and_files)
    reports = [
        report.to_dict()
        for report in evaluate_models(
            models, named_files(files), columns=columns, dimensions=dimension, precision=precision, prompt_name=prompt_name,
            prompt=prompt, on_error=on_error, seed=seed,
        )
    ]  # fmt: skip
    if out is not None:
        save_all_embedding_results(reports, out)
    if table is not None:
        write_embedding_table(embedding_table(reports), table)
    if json:
        print_result(reports[0] if len(reports) == 1 else {"models": reports}, json)
        return
    if len(reports) > 1:
        print_embedding_table(embedding_table(reports, intervals=False))
    for report in reports:
        print_embedding_results(report)


def augment(
    kind: str,
    gold: Path,
    /,
    *,
    out: Path,
    cross_encoder: str | None = None,
    bi_encoder: str | None = None,
    dev: Path | None = None,
    texts: Path | None = None,
    sampler: Literal["bm25", "semantic", "random", "mixed"] = "bm25",
    encoder: str | None = None,
    top_k: int = 3,
    balance: float = 2.0,
    force: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
    seed: int = 0,
    batch_tokens: int = 8192,
    precision: Literal["fp32", "bf16", "auto"] = "auto",
    device: str = "auto",
    overwrite: bool = False,
    json: bool = False,
    columns: Annotated[
        TableColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = TableColumns(),  # noqa: B008
) -> None:
    """Make silver pairs: find texts that may be alike, let a cross-encoder score them, balance the scores.

    Args:
        kind: Of the gold pairs: stsb, korsts, klue-sts; or scores for a table of two texts and a score.
        gold: Folder in that layout, or the training file.
        cross_encoder: Run of `albertkit finetune` on such pairs. It must agree with the gold dev pairs (Spearman 0.5).
        out: Table to write (.tsv): score, text, pair, sampler, rank. Its report comes beside it, as .json.
        bi_encoder: In place of a cross-encoder any model that makes vectors, as for `embed evaluate`: the score is their cosine,
            on a line fitted to the gold training pairs.
        dev: Gold dev file. Default: that of the folder, else a tenth of the training pairs.
        texts: Texts to pair, one a line. Default: those of the gold training pairs.
        sampler: bm25: common pieces, best with few gold pairs; semantic: near vectors; random; mixed: all three.
        encoder: Model whose vectors say what is near: as for `embed evaluate`.
        top_k: Neighbours of each text, of each sampler.
        balance: Most pairs of a fifth of the scale, as a multiple of the median fifth. 0: no limit.
        force: Use a cross-encoder that agrees with gold too little.
        on_error: Gold rows that cannot be used: stop, or skip and count them.
        seed: Of what is drawn.
        batch_tokens: Most tokens computed at once.
        precision: Of the cross-encoder. auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        overwrite: Replace a table that exists.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.embeddings.silver.augment import augment
    from albertkit.report.embedding_results import print_augmentation

    report = augment(
        kind, gold, cross_encoder, out, bi_encoder=bi_encoder, columns=columns, dev=dev, texts=texts, sampler=sampler,
        encoder=encoder, top_k=top_k, balance=balance, force=force, on_error=on_error, seed=seed, batch_tokens=batch_tokens,
        precision=precision, device=device, overwrite=overwrite, progress=not json,
    ).to_dict()  # fmt: skip
    if json:
        print_result(report, json)
    else:
        print_augmentation(report)


def map(
    model: str,
    input: Path,
    /,
    *,
    out: Path,
    prompt_name: str | None = None,
    prompt: str | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    json: bool = False,
    columns: Annotated[
        TableColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = TableColumns(),  # noqa: B008
) -> None:
    """Draw a map of texts: one HTML page to explore, with each text's nearest neighbours.

    Args:
        model: As for `embed evaluate`.
        input: A text a line; or a table: --text names the column, --pair a second one, --label the names that colour
            the points. Of more than 5,000 different texts a sample is drawn.
        out: HTML file; it needs no server and no network.
        prompt_name: Name of the model's prompt that is put before every text. Default: its own default.
        prompt: The prompt itself, such as 'query: '.
        on_error: Rows that cannot be used: stop, or skip and count them.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.embeddings.map import embedding_map

    report = embedding_map(
        model, input, out, columns=columns, prompt_name=prompt_name, prompt=prompt, on_error=on_error
    )
    print_result(report.to_dict(), json)
