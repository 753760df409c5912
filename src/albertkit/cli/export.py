"""albertkit export"""

from pathlib import Path
from typing import Literal


def onnx(
    model: str,
    out: Path,
    /,
    *,
    precision: Literal["fp32", "int8"] = "fp32",
    data: Path | None = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Write a model for ONNX Runtime: every weight once, any batch and length; compared with the model before it is saved.

    Args:
        model: Checkpoint folder of any class, folder of a sentence encoder, run, or org/name of the Hugging Face hub.
        out: Folder to make: model.onnx, the configuration, the tokenizer, export.json; task.json if there is one.
        precision: fp32, or int8: about a quarter of the bytes and a third of the time. Every token has its own scale, so a text's
            result does not depend on its company.
        data: Labelled examples of its task, a file or a folder in the task's layout: int8 may lose half a point of the metric.
            Default: a built-in sample of text.
        force: Save an int8 model although it does not say what the model says.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.export import export_onnx

    report = export_onnx(model, out, precision=precision, data=data, force=force)
    print_result(report.to_dict() if json else report.lines(), json)
