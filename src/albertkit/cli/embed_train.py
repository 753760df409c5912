"""albertkit embed train and distill"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from albertkit.cli.table_columns import TableColumns
from albertkit.embeddings.learning.settings import DistillSettings, EmbedSettings
from albertkit.training.stopping import exit_status


def train(
    kind: str,
    model: str,
    data: Path,
    *,
    out: Path,
    dev: Path | None = None,
    dev_kind: str | None = None,
    silver: Path | None = None,
    resume: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
    config_file: Path | None = None,
    json: bool = False,
    columns: Annotated[
        TableColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = TableColumns(),  # noqa: B008
    settings: Annotated[EmbedSettings, Parameter(name="*", group="Settings", negative_bool="no-")] = EmbedSettings(),  # noqa: B008
) -> int:
    """Train sentence embeddings on scored pairs, inference, pairs or texts.

    Args:
        kind: stsb korsts klue-sts, or scores for a table; mnli klue-nli kornli, or nli for a table; pairs: two texts that mean
            the same (a table, without named columns one of two columns without a header); texts: a text a line (SimCSE).
        model: Checkpoint folder, folder of sentence embeddings, run, or `org/name` of the hub.
        data: Folder in the task's layout, or the training file (CSV, TSV, JSONL, Parquet; gz, xz, zst).
        out: Folder of the run. The model to use comes to stand in OUT/best.
        dev: The dev file, or a folder that has one. Default: that of DATA, else a share of the training examples.
        dev_kind: Kind of the dev file, where it is another than that of the training data.
        silver: Table of further scored pairs, as `albertkit embed augment` writes it.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
        on_error: Rows that cannot be used: stop, or skip and count them.
        config_file: TOML file of settings, for example the run.toml of another run. Flags win over it.
        json: Print the result as one JSON object.
    """
    from albertkit.cli.printing import print_scores
    from albertkit.embeddings.learning.train import train_embeddings

    result = train_embeddings(
        kind, model, data, out, settings, columns=columns, dev=dev, dev_kind=dev_kind, silver=silver, resume=resume,
        on_error=on_error,
    )  # fmt: skip
    print_scores(result, json)
    return 0 if result.model else exit_status()


def distill(
    student: str,
    data: Path,
    *,
    teacher: str,
    out: Path,
    teacher_prompt_name: str | None = None,
    teacher_prompt: str | None = None,
    dev: Path | None = None,
    sts: Path | None = None,
    sts_kind: str = "stsb",
    force: bool = False,
    resume: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
    config_file: Path | None = None,
    json: bool = False,
    columns: Annotated[
        TableColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = TableColumns(),  # noqa: B008
    settings: Annotated[
        DistillSettings, Parameter(name="*", group="Settings", negative_bool="no-")
    ] = DistillSettings(),  # noqa: B008
) -> int:
    """Teach a student the vectors of a teacher, in one language or, from parallel texts, in several.

    Args:
        student: Checkpoint folder, folder of sentence embeddings, run, or `org/name` of the hub.
        data: A text a line; or a table of texts that mean the same, the first of which the teacher reads: all columns of one
            without a header, or those named with --text and --pair.
        teacher: Folder of sentence embeddings, ALBERT checkpoint (mean pooling) or `org/name` of the hub; the name of an
            installed package that carries a model; or a .npy file of vectors, row n for text n.
        out: Folder of the run. The model to use comes to stand in OUT/best.
        teacher_prompt_name: Name of the teacher's prompt that is put before every text it reads, such as query. Default: its
            own default.
        teacher_prompt: The prompt itself, such as 'query: '.
        dev: A file like DATA. Default: a share of DATA.
        sts: Scored pairs, a file or a folder that has a dev file; they then choose the best model.
        sts_kind: stsb, korsts or klue-sts.
        force: Train although much of the texts is unknown to the student's tokenizer.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
        on_error: Rows that cannot be used: stop, or skip and count them.
        config_file: TOML file of settings, for example the run.toml of another run. Flags win over it.
        json: Print the result as one JSON object.
    """
    from albertkit.cli.printing import print_scores
    from albertkit.embeddings.distillation.distill import distill_embeddings

    result = distill_embeddings(
        student, teacher, data, out, settings, columns=columns, teacher_prompt_name=teacher_prompt_name,
        teacher_prompt=teacher_prompt, dev=dev, sts=sts, sts_kind=sts_kind, force=force,
        resume=resume, on_error=on_error,
    )  # fmt: skip
    print_scores(result, json)
    return 0 if result.model else exit_status()
