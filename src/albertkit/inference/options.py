"""Options of `albertkit compare-precision` and `bench`."""

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


@dataclass(frozen=True)
class BenchOptions:
    """Benchmark this machine in about a minute: tokenizing, inference in each precision, training, share of peak FLOP/s.

    Attributes:
        model: Checkpoint to benchmark. Default: base with random weights, and a tokenizer trained on the built-in text.
        device: Device: auto, cpu, cuda or cuda:N.
        threads: Threads for torch and the tokenizer. 0: torch's default.
    """

    model: Path | None = None
    _: KW_ONLY
    device: str = "auto"
    threads: int = 0
