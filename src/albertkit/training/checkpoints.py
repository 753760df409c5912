"""Checkpoints of a run: everything the next step needs, written whole or not at all.

A run folder holds `checkpoints/step-000100/` with the files of a checkpoint folder (so any of them
can be used as a model) plus `training_state.json` and `training_state.safetensors`. Nothing is
pickled.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from albertkit.errors import CheckpointError
from albertkit.files import (
    atomic_folder,
    check_regular_file,
    files_not_matching_checksums,
    read_typed,
    remove_folder,
    remove_leftovers,
    write_checksums,
    write_json,
)
from albertkit.model.files import write_tensors
from albertkit.model_paths import numbered_folders, record_selected_model

_TENSORS, _NUMBERS = "training_state.safetensors", "training_state.json"


@dataclass
class TrainingState:
    """State of a run between two updates.

    Attributes:
        step: Updates made or skipped.
        skipped: Those skipped for a gradient that was not finite; the optimizer has not counted
            them.
        tokens: Real tokens seen, by all processes.
        seconds: Time spent training, evaluation and saving excluded.
        stream: What the batch stream needs to give the next batch; a few integers.
        clock: Seconds of the time budget used, by a run that has one; evaluation and saving
            included.
        plans: Plans of such a run, as `training.pace.Plan` names their values.
        best: Best value of the selection metric so far, its negative where smaller is better; None
            before the first evaluation.
        best_step: Update after which it was found.
        without_better: Evaluations since the best one.
        threads: Threads that computed; results are bit-identical only with the same number.
        processes: Processes that computed; the same holds. 0: none yet.
    """

    step: int = 0
    skipped: int = 0
    tokens: int = 0
    seconds: float = 0.0
    stream: dict[str, Any] = field(default_factory=dict)
    clock: float = 0.0
    plans: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    best_step: int = 0
    without_better: int = 0
    threads: int = 0
    processes: int = 0


def save_state(
    run: Path,
    state: TrainingState,
    tensors: dict[str, Tensor],
    save_model: Callable[[Path], None],
    keep: int,
) -> None:
    """Write `checkpoints/step-N` with parameters, moments and averages, and remove all but the newest `keep`."""
    folder = run / "checkpoints" / f"step-{state.step:06d}"
    with atomic_folder(folder) as temporary:
        save_model(temporary)
        write_tensors(
            # safetensors refuses views.
            temporary / _TENSORS,
            {k: v.detach().cpu().contiguous() for k, v in tensors.items()},
        )
        write_json(temporary / _NUMBERS, asdict(state))
        write_checksums(temporary)  # 0.3 s for the 200 MB of a base model
    remove_old_checkpoints(run, keep)


def remove_old_checkpoints(run: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`."""
    for old in list_checkpoints(run)[:-keep]:
        remove_folder(old)


def save_best(
    run: Path, save_model: Callable[[Path], None], step: int, metric: str, value: float
) -> None:
    """Replace `best/` by the model as it is now, and record its step and its value of the metric that selects."""
    with atomic_folder(run / "best") as temporary:
        save_model(temporary)
        record_selected_model(temporary, step, metric, value)
        write_checksums(temporary)


def list_checkpoints(run: Path) -> list[Path]:
    """List the complete checkpoints of a run, oldest first."""
    folders = numbered_folders(run / "checkpoints", "step")
    return [folder for folder in folders if (folder / _NUMBERS).exists()]


def checkpoint_step(checkpoint: Path) -> int:
    """Return the number of updates before a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint to resume from, if there is one."""
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return None
    # The one before is not taken without asking: the updates since then would be lost silently.
    if changed := files_not_matching_checksums(checkpoints[-1]):
        raise CheckpointError(
            "corrupt",
            f"`{checkpoints[-1]}` is corrupted: sha256 mismatch of {', '.join(changed)}",
            _restart_hint(checkpoints),
        )
    return checkpoints[-1]


def load_state(run: Path) -> tuple[TrainingState, dict[str, Tensor]] | None:
    """Return the newest checkpoint's numbers and tensors, or None if the run has none."""
    if (run / "checkpoints").exists():
        remove_leftovers(run / "checkpoints")
    newest = newest_checkpoint(run)
    if newest is None:
        return None
    # A resumed run may end without a better model and never write it again.
    check_model(run / "best")
    try:
        numbers = read_typed(newest / _NUMBERS, TrainingState, "training state")
        return numbers, load_file(check_regular_file(newest / _TENSORS, "training state"))
    except Exception as error:
        raise CheckpointError(
            "corrupt", f"`{newest}` cannot be read: {error}", _restart_hint(list_checkpoints(run))
        ) from error


def check_model(folder: Path) -> None:
    """Verify the checksums of a run's model, if there is one."""
    if changed := files_not_matching_checksums(folder):
        raise CheckpointError(
            "corrupt",
            f"`{folder}` is corrupted: sha256 mismatch of {', '.join(changed)}",
            "put a copy in its place, or start a new run with another --out",
        )


def _restart_hint(checkpoints: list[Path]) -> str:
    before = (
        f"the one before, of step {checkpoint_step(checkpoints[-2])}"
        if len(checkpoints) > 1
        else "the beginning"
    )
    return f"remove it to resume from {before}: rm -r {checkpoints[-1]}"


class ExportedWeights:
    """The weights that are evaluated and exported, where those are not the trained ones.

    Args:
        parameters: The trained weights.
        decay: Share of an exponential moving average that is kept at each update; 0: no average.
        start_weights: Share of the weights as they are now.

    Sources: Polyak and Juditsky 1992; Wortsman et al. 2022, "Robust fine-tuning of zero-shot
    models".
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], decay: float = 0.0, start_weights: float = 0.0
    ) -> None:
        self.parameters = parameters
        self.decay = decay
        self.start_weights = start_weights
        self.averages = self._copy() if decay else {}
        self._start = self._copy() if start_weights else {}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the parameters."""
        if self.averages:
            torch._foreach_lerp_(
                list(self.averages.values()), list(self.parameters.values()), 1 - self.decay
            )

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the trained weights by them."""
        for name, parameter in self.parameters.items():
            if self.averages:
                parameter.copy_(self.averages[name])
            if self._start:
                parameter.lerp_(self._start[name], self.start_weights)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the exported weights in the place of the trained ones within this context."""
        if not (self.averages or self._start):
            yield
            return
        # A copy, since what is added and subtracted again has other bits.
        trained = self._copy()
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(trained[name])

    def _copy(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
