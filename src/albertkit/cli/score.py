"""albertkit score"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def score(
    task: str,
    predictions: Path,
    gold: Path | None = None,
    /,
    *,
    label: Annotated[str | None, Parameter(name=("--label-column", "--label"))] = None,
    id: Annotated[str | None, Parameter(name=("--id-column", "--id"))] = None,
    null_odds: Path | None = None,
    null_threshold: float = 1.0,
    f1_of: Literal["words"] | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Score a file of predictions, wherever it is from, as the task's official script does; with 95 % intervals.

    Parameters
    ----------
    task
        `squad` (1.1 or 2.0, as the gold file says), `mrpc`, `ner`, … as for `finetune`; `classify`, `regress`, `multilabel`
        for a table of your own.
    predictions
        SQuAD's `predictions.json`, a submission table (`index`, `prediction`), what `albertkit predict` wrote, or CoNLL
        columns, the last of which is the prediction. May be compressed.
    gold
        The labelled file. Of CoNLL columns it may be left out: then the last but one is the gold tag.
    label
        Of a table: column of the labels.
    id
        Of a table: column of the ids. Default: `id`, `index`, `idx` or `guid`, if it is there.
    null_odds
        SQuAD 2.0: `null_odds.json`, for the best thresholds and the average precisions.
    null_threshold
        Questions with larger null odds count as unanswered; the official script's default.
    f1_of
        `words`: score Korean answers by words, as SQuAD's script does. Default: they are refused, as KorQuAD counts
        characters.
    on_error
        Rows of the gold file that cannot be used: stop, or skip and count them.
    out
        Folder for `results.json` and, with the extra `report`, a picture.
    json
        Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.report.task_results import print_results
    from albertkit.tasks.scoring import score_file

    results = score_file(
        task,
        predictions,
        gold,
        label=label,
        id=id,
        null_odds=null_odds,
        null_threshold=null_threshold,
        f1_of=f1_of,
        on_error=on_error,
        out=out,
    )
    if json:
        print_result(results, json)
    else:
        print_results(results, results["metric"])
