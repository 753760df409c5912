"""albertkit exits"""

from pathlib import Path
from typing import Literal


def exits(
    model: Path,
    data: str,
    *,
    split: str = "dev",
    rule: list[str] | None = None,
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    rounds: int = 3,
    json: bool = False,
) -> None:
    """What early exit costs and what it saves: accuracy, passes and speed of every rule, beside all passes.

    Args:
        model: Folder of a model fine-tuned with --exits, or the run it came from.
        data: Labelled examples: a file, or a folder in the task's layout.
        split: Which file of a folder.
        rule: patience:N (N passes in a row said the same) or entropy:SHARE (surer than that); may be repeated. Default: a range.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        rounds: Timed rounds; each runs everybody once.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.report.exits_text import print_exits
    from albertkit.tasks.exit_curve import exit_curve
    from albertkit.tasks.exits import ExitRule

    rules = [ExitRule.parse(text) for text in rule] if rule else None
    curve = exit_curve(model, data, split=split, rules=rules, precision=precision, rounds=rounds)
    if json:
        print_result(curve.to_dict(), json)
    else:
        print_exits(curve.to_dict())
