"""Options of `albertkit export onnx`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ExportOnnxOptions:
    """Write a model for ONNX Runtime: every weight once, any batch and length; compared with the model before it is saved.

    Inputs and outputs have transformers' names.

    Attributes:
        model: Checkpoint folder of any class, folder of a sentence encoder, run, or org/name of the Hugging Face hub.
        target: Folder to make: model.onnx, the configuration, the tokenizer, export.json; task.json if there is one. It appears
            whole or not at all.
        precision: fp32, or int8: about a quarter of the bytes and a third of the time. Every token has its own scale, so a text's
            result does not depend on its company.
        data: Labelled examples of its task, a file or a folder in the task's layout: int8 may lose half a point of the metric.
            Default: a built-in sample of text.
        force: Save an int8 model although its answers differ from the model's.
    """

    model: str | Path
    target: str | Path
    _: KW_ONLY
    precision: Literal["fp32", "int8"] = "fp32"
    data: str | Path | None = None
    force: bool = False
