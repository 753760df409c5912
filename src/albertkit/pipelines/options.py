"""Options of `albertkit compare-precision`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ComparePrecisionOptions:
    """Compare a model in int8 or bf16 with fp32. The exit status is 1 if they differ too much.

    Attributes:
        model: Checkpoint folder or run; or an ONNX folder, compared with the folder that it was exported from.
        data: Labelled examples of the model's task (file, or folder in the task's layout); the task's metric decides and may fall
            by half a point. Default: a built-in text sample; hidden states and top predictions decide.
        precision: Precision to compare with fp32: int8 or bf16.
        split: Split to read if DATA is a folder.
    """

    model: str | Path
    data: str | Path | None = None
    _: KW_ONLY
    precision: Literal["int8", "bf16"] = "int8"
    split: str = "dev"
