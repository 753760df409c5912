"""Options of `albertkit export onnx`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ExportOnnxOptions:
    """Export a model to ONNX Runtime, for any batch size and length, and compare it with the original.

    Each weight is stored once. Inputs and outputs have transformers' names.

    Attributes:
        model: Checkpoint folder of any class, sentence encoder folder, run, or org/name of the Hugging Face hub.
        out: Folder to create: model.onnx, configuration, tokenizer, export.json; task.json if there is one. It appears only
            when complete.
        precision: fp32, or int8: about a quarter of the size and a third of the time. Each token has its own scale, so a result
            does not depend on the other texts of a batch.
        data: Labelled examples of the model's task (file, or folder in the task's layout) to check int8, which may lose half a
            point of the metric. Default: a built-in text sample.
        masked_lm: Export the masked-LM head of a pretrained model alone, with the output `logits`, which the masked-LM classes of
            optimum and transformers.js read. Default: both heads, `prediction_logits` and `sop_logits`.
        force: Save an int8 model even if its outputs differ from the original's.
    """

    model: str | Path
    out: str | Path
    _: KW_ONLY
    precision: Literal["fp32", "int8"] = "fp32"
    data: str | Path | None = None
    masked_lm: bool = False
    force: bool = False
