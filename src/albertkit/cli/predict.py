"""albertkit predict"""

import sys
from pathlib import Path
from typing import Literal


def predict(
    model: Path,
    input: Path,
    *,
    out: Path | None = None,
    split: str = "test",
    on_error: Literal["stop", "skip"] = "stop",
    batch_tokens: int = 8192,
    precision: Literal["fp32", "bf16", "auto"] = "auto",
    device: str = "auto",
    json: bool = False,
) -> None:
    """Predict every example of a file with a fine-tuned model, in the order of the file, however large it is.

    Args:
        model: Folder of a fine-tuned model, or the run it came from.
        input: A file of the task's form, labels not needed; or a folder in the task's layout.
        out: A .jsonl file, or a folder for predictions.jsonl and the task's submission files. Default: standard output.
        split: Which file of a folder.
        on_error: Rows that cannot be used: stop, or skip, count and name them.
        batch_tokens: Most tokens computed at once.
        precision: fp32, bf16, or auto: bf16 where the hardware multiplies it natively.
        device: auto, cpu, cuda or cuda:N.
        json: With --out, print what was written as one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.tasks.predict import predict

    report = predict(
        model, input, out, split=split, on_error=on_error, batch_tokens=batch_tokens, precision=precision, device=device
    )
    for fault in report.left_out:
        print(f"left out: {fault.file}, {fault.where}: {fault.reason}", file=sys.stderr)
    if out is not None:
        shown = report.to_dict()
        print_result(shown if json else shown | {"left_out": len(report.left_out) or None}, json)
