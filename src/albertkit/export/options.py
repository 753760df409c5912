"""Options of `albertkit export`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ExportOnnxOptions:
    """Export a model to ONNX Runtime, for any batch size and length, and compare it with the original.

    Each weight is stored once. Inputs and outputs have transformers' names.

    Attributes:
        model: Checkpoint folder of any class, sentence encoder folder, run, or org/name of the
            Hugging Face hub.
        out: Folder to create: model.onnx, configuration, tokenizer, export.json; task.json if there
            is one. It appears only when complete.
        precision: fp32, or int8: about a quarter of the size and a third of the time. Each token
            has its own scale, so a result does not depend on the other texts of a batch.
        data: Labelled examples of the model's task (file, or folder in the task's layout) to check
            int8, which may lose half a point of the metric. Default: a built-in text sample.
        masked_lm: Export the masked-LM head of a pretrained model alone, with the output `logits`,
            which the masked-LM classes of optimum and transformers.js read. Default: both heads,
            `prediction_logits` and `sop_logits`.
        force: Save an int8 model even if its outputs differ from the original's.
    """

    model: str | Path
    out: str | Path
    _: KW_ONLY
    precision: Literal["fp32", "int8"] = "fp32"
    data: str | Path | None = None
    masked_lm: bool = False
    force: bool = False


@dataclass(frozen=True)
class ExportWebOptions:
    """Export a model as a web site: static files, run by the visitor's browser, offline after the first visit.

    The page fills in masks, classifies, scores, tags, answers questions or searches texts, whatever
    the model was trained for.

    Attributes:
        model: Checkpoint folder of any class, sentence encoder folder, run, or org/name of the
            Hugging Face hub.
        out: Folder to create, for any file server: page, model, runtime. It appears only when
            complete.
        precision: int8, or fp32: four times the size.
        data: Labelled examples of the model's task (file, or folder in the task's layout) to check
            int8, which may lose half a point of the metric. Default: a built-in text sample.
        texts: Texts that a sentence encoder's page searches: one a line, or a table with a column
            `text`. They are sent to each visitor, with their vectors in int8. Default: those that a
            visitor pastes.
        packages: A folder `node_modules` with the runtime's two packages. Default: fetched by npm.
        force: Save an int8 model even if its outputs differ from the original's.
    """

    model: str | Path
    out: str | Path
    _: KW_ONLY
    precision: Literal["int8", "fp32"] = "int8"
    data: str | Path | None = None
    texts: str | Path | None = None
    packages: Path | None = None
    force: bool = False
