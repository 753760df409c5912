"""`albertkit embed`: evaluate."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from albertkit.tasks.columns import Columns


def evaluate(
    model: str,
    files: Annotated[list[str], Parameter(consume_multiple=True)],
    /,
    *,
    dimension: tuple[int, ...] = (),
    out: Path | None = None,
    precision: Literal["fp32", "bf16", "int8", "auto"] = "fp32",
    on_error: Literal["stop", "skip"] = "stop",
    seed: int = 0,
    json: bool = False,
    columns: Annotated[Columns, Parameter(name="*", group="Columns of a table")] = Columns(),  # noqa: B008
) -> None:
    """Measure sentence embeddings: correlation with people's scores, retrieval both ways, beside a bag of pieces.

    Parameters
    ----------
    model
        Run of `embed train`, sentence-transformers folder of any model, ALBERT checkpoint (mean pooling), or `org/name` of the
        hub.
    files
        KIND=PATH, one or more. stsb, korsts, klue-sts: official files; scores: a table of two texts and a score; pairs: a table
        of two texts that mean the same.
    dimension
        Measure again with only the first so many numbers of the vectors, as Matryoshka training allows. May be repeated.
    out
        Folder for results.json and similarity.csv.
    precision
        Of an ALBERT. fp32 gives sentence-transformers' own figures; with the others one sees what speed costs.
    on_error
        Rows that cannot be used: stop, or skip and count them.
    seed
        Of the bootstrap intervals.
    json
        Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.embeddings.evaluation import evaluate_embeddings
    from albertkit.embeddings.evaluation_data import named_files
    from albertkit.report.embedding_results import print_embedding_results, save_embedding_results

    report = evaluate_embeddings(
        model,
        named_files(files),
        columns=columns,
        dimensions=dimension,
        precision=precision,
        on_error=on_error,
        seed=seed,
    ).to_dict()
    if out is not None:
        save_embedding_results(report, out)
    if json:
        print_result(report, json)
    else:
        print_embedding_results(report)
