"""Options of `albertkit compare-precision` and `bench`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ComparePrecisionOptions:
    """Compare a model in int8 or bf16 with the model in fp32. The exit status is 1 if it differs too much.

    Attributes:
        model: Checkpoint folder or run; or an ONNX folder, which is compared with the folder that it was exported from.
        data: Labelled examples of its task: a file, or a folder in the task's layout; then the task's metric decides, which
            may fall by half a point. Default: a built-in sample of text; then states and first choices decide.
        precision: int8 or bf16.
        split: File of a folder.
    """

    model: str | Path
    data: str | Path | None = None
    _: KW_ONLY
    precision: Literal["int8", "bf16"] = "int8"
    split: str = "dev"


@dataclass(frozen=True)
class BenchOptions:
    """Measure albertkit on this machine in about a minute: tokenizing, inference in each precision, training, share of peak.

    Attributes:
        model: Checkpoint to measure. Default: base with random weights, and a tokenizer trained on the built-in text.
        device: auto, cpu, cuda or cuda:N.
        threads: Threads of torch and of the tokenizer. Default: as many as torch uses by itself.
    """

    model: Path | None = None
    _: KW_ONLY
    device: str = "auto"
    threads: int = 0
