"""albertkit agreement"""

from pathlib import Path
from typing import Literal


def agreement(
    model: Path,
    data: Path | None = None,
    *,
    precision: Literal["int8", "bf16"] = "int8",
    split: str = "dev",
    json: bool = False,
) -> int:
    """Does a model still say the same in int8? Exit status 1 if not.

    Args:
        model: A checkpoint folder or a run.
        data: Labelled examples of its task: a file, or a folder in the task's layout; then the task's metric decides, which
            may fall by half a point. Default: a built-in sample of text; then states and first choices decide.
        precision: int8 or bf16.
        split: Which file of a folder.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.inference.agreement import check_agreement

    found = check_agreement(model, data, precision=precision, split=split)
    verdict = {"agrees": not found.problems, "because": found.problems, "notes": list(found.notes)}
    print_result(found.to_dict() if json else {"precision": found.precision, **found.lines(), **verdict}, json)
    return 1 if found.problems else 0
