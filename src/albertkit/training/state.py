"""Checkpoints of a run: everything the next step needs, written whole or not at all.

A run folder holds `checkpoints/step-000100/` with the files of a checkpoint folder (so any of them can be used as a model)
plus `training_state.json` and `training_state.safetensors`. Nothing is pickled.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from albertkit.checkpoints import write_tensors
from albertkit.errors import CheckpointError
from albertkit.files import atomic_folder, read_json, remove_leftovers, write_json

_STEP = re.compile(r"step-(\d+)$")
_TENSORS, _NUMBERS = "training_state.safetensors", "training_state.json"


@dataclass
class TrainingState:
    """Where a run stands between two updates.

    Attributes:
        step: Updates made or skipped.
        skipped: Those skipped for a gradient that was not finite; the optimizer has not counted them.
        tokens: Real tokens seen, by all processes.
        seconds: Time spent training, evaluation and saving excluded.
        stream: What the batch stream needs to give the next batch; a few integers.
        best: Best value of the selection metric so far, None before the first evaluation.
        without_better: Evaluations since the best one.
        threads: Threads that computed; results are bit-identical only with the same number.
    """

    step: int = 0
    skipped: int = 0
    tokens: int = 0
    seconds: float = 0.0
    stream: dict[str, Any] = field(default_factory=dict)
    best: float | None = None
    without_better: int = 0
    threads: int = 0


def save_state(
    run: Path, state: TrainingState, tensors: dict[str, Tensor], save_model: Callable[[Path], None], keep: int
) -> Path:
    """Write `checkpoints/step-N` and remove all but the newest `keep`.

    Args:
        run: The run folder.
        state: Numbers to resume from.
        tensors: Parameters as trained, optimizer moments, averages.
        save_model: Writes the model's files into a folder.
        keep: Checkpoints to keep, at least 1.
    """
    folder = run / "checkpoints" / f"step-{state.step:06d}"
    with atomic_folder(folder) as temporary:
        save_model(temporary)
        write_tensors(temporary / _TENSORS, {k: v.detach().cpu().contiguous() for k, v in tensors.items()})
        write_json(temporary / _NUMBERS, asdict(state))
    for old in list_checkpoints(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def save_best(run: Path, save_model: Callable[[Path], None]) -> None:
    """Replace `best/` by the model as it is now."""
    with atomic_folder(run / "best") as temporary:
        save_model(temporary)


def list_checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [p for p in (run / "checkpoints").glob("step-*") if _STEP.search(p.name) and (p / _NUMBERS).exists()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def load_state(run: Path) -> tuple[TrainingState, dict[str, Tensor]] | None:
    """The newest checkpoint's numbers and tensors, or None if the run has none.

    Raises:
        CheckpointError: broken-checkpoint.
    """
    if (run / "checkpoints").exists():
        remove_leftovers(run / "checkpoints")
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return None
    newest = checkpoints[-1]
    try:
        numbers = read_json(newest / _NUMBERS, "training state")
        return TrainingState(**numbers), load_file(newest / _TENSORS)
    except Exception as error:
        raise CheckpointError(
            "broken-checkpoint", f"`{newest}` cannot be read: {error}", f"remove it to resume from the one before: rm -r {newest}"
        ) from error  # fmt: skip


class MovingAverage:
    """Exponential moving average of parameters, for evaluation and export.

    Args:
        parameters: Name to parameter, as the model gives them.
        decay: Share of the old average kept at each update, for example 0.999.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.parameters = parameters
        self.averages = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the parameters."""
        torch._foreach_lerp_(list(self.averages.values()), list(self.parameters.values()), 1 - self.decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange average and parameters; call again to undo."""
        for name, parameter in self.parameters.items():
            held = parameter.detach().clone()
            parameter.copy_(self.averages[name])
            self.averages[name].copy_(held)
