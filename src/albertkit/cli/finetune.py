"""albertkit finetune"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from albertkit.cli.table_columns import TableColumns
from albertkit.tasks.settings import FinetuneSettings
from albertkit.training.stopping import exit_status


def finetune(
    task: str,
    model: str,
    data: str,
    *,
    out: Path | None = None,
    dev: str | None = None,
    check: bool = False,
    resume: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
    config_file: Path | None = None,
    json: bool = False,
    columns: Annotated[
        TableColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = TableColumns(),  # noqa: B008
    settings: Annotated[
        FinetuneSettings, Parameter(name="*", group="Settings", negative_bool="no-")
    ] = FinetuneSettings(),  # noqa: B008
) -> int:
    """Fine-tune a model on a task: GLUE, SQuAD, RACE, named entities, or a table of your own.

    Args:
        task: cola sst2 mrpc stsb qqp mnli qnli rte wnli, squad1 squad2, race siqa arc choice, ner wnut17 klue-ner, nsmc
            klue-nli kornli klue-sts korsts; or classify, regress, multilabel for a table.
        model: Checkpoint folder, run, or `org/name` of the hub. For rte, mrpc and stsb the paper starts from a run on mnli.
        data: Folder in the task's layout, or the training file (CSV, TSV, JSONL, Parquet; gz, xz, zst), also at an address
            (`gs://…`).
        out: Folder of the run. The model to use comes to stand in OUT/best.
        dev: The dev file. Default: that of the folder, else a share of the training examples.
        check: Look at the data and train nothing: labels, lengths, truncation, overlap of train and dev.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
        on_error: Rows that cannot be used: stop, or skip and count them.
        config_file: TOML file of settings, for example the run.toml of another run. Flags win over it.
        json: Print the result as one JSON object.
    """
    from albertkit.cli.printing import print_result, print_scores
    from albertkit.errors import ConfigError
    from albertkit.report.task_check import print_check
    from albertkit.tasks.checking import check_task
    from albertkit.tasks.runs import finetune

    if check:
        report = check_task(task, model, data, settings, columns=columns, dev=dev).to_dict()
        if json:
            print_result(report, json)
        else:
            print_check(report)
        return 0
    if out is None:
        raise ConfigError("bad-argument", "--out is not given", "name the folder of the run: --out RUN")
    result = finetune(task, model, data, out, settings, columns=columns, dev=dev, resume=resume, on_error=on_error)
    print_scores(result, json)
    return 0 if result.model else exit_status()
