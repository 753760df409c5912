"""The examples of a fine-tuning: training, dev, and those that a decision is calibrated on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import DataError
from albertkit.tasks.faults import Faults
from albertkit.tasks.features import Features
from albertkit.tasks.task import Task

_SPLIT_SEED = 0  # which examples are held out does not change with the seed of a run: runs must be compared on the same


@dataclass(frozen=True)
class TaskData:
    """What a fine-tuning reads.

    Attributes:
        task: Fitted to the training examples.
        train: Examples to train on.
        dev: Examples that choose the best model.
        calibration: Examples kept from training for a decision such as the threshold for "no answer"; mostly none.
        notes: A line for each thing that a person should know.
    """

    task: Task
    train: list[Any]
    dev: list[Any]
    calibration: list[Any]
    notes: list[str]


def read_split(task: Task, file: Path, split: str, faults: Faults, labelled: bool = True) -> list[Any]:
    """All examples of a file.

    Raises:
        DataError: no-examples, and what reading raises.
    """
    examples = list(task.examples(file, split=split, labelled=labelled, faults=faults))
    if not examples:
        why = f": {faults.found[0].reason}, in line {faults.found[0].line:,}" if faults.found else ""
        raise DataError("no-examples", f"`{file}` holds no example that can be used{why}", "look at the file")
    return examples


def read_data(task: Task, data: Path, dev: Path | None, held_out: float, calibrate: bool, faults: Faults) -> TaskData:
    """Read the examples of a training.

    Args:
        task: As the registry made it.
        data: Folder in the task's layout, or the training file.
        dev: The dev file. Default: that of the folder, else a share of the training examples.
        held_out: That share.
        calibrate: Whether to keep examples from training for a decision.
        faults: Told of rows that cannot be used.

    Raises:
        DataError: no-examples, no-dev, unknown-layout, and what reading raises.
    """
    files = task.files(data)
    if "train" not in files:
        raise DataError(
            "unknown-layout", f"there is no training file in `{data}` (found: {', '.join(sorted(files)) or 'nothing'})",
            "name the training file itself as DATA, and another with --dev",
        )  # fmt: skip
    train = read_split(task, files["train"], "train", faults)
    notes = []
    split = next((name for name in files if name.startswith("dev")), None)
    if dev is not None:
        dev_examples, where = read_split(task, dev, "dev", faults), f"`{dev}`"
    elif split:
        dev_examples, where = read_split(task, files[split], split, faults), f"`{files[split].name}`"
    else:
        train, dev_examples = _hold_out(train, held_out, data)
        where = f"{held_out:.0%} of the training examples, held out: there is no dev file"
    notes.append(f"data: {len(train):,} training examples; dev: {len(dev_examples):,}, {where}")
    if faults.found:
        notes.append(
            f"rows left out: {len(faults.found):,} (the first: line {faults.found[0].line:,}, {faults.found[0].reason})"
        )
    notes += faults.notes
    task = task.fitted(train)
    calibration: list[Any] = []
    if calibrate:
        train, calibration = task.calibration_split(train)
        if calibration:
            notes.append(f"kept from training to calibrate on: {len(calibration):,} examples")
    return TaskData(task, train, dev_examples, calibration, notes)


def fingerprint(features: Features) -> str:
    """SHA-256 of what the model is trained on: a run is only resumed on the same."""
    digest = hashlib.sha256()
    arrays = (features.input_ids, features.offsets, *features.per_sequence.values(), *features.per_token.values())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _hold_out(train: Sequence[Any], share: float, data: Path) -> tuple[list[Any], list[Any]]:
    count = round(share * len(train))
    if not 0 < count < len(train):
        raise DataError(
            "no-dev", f"`{data}` has no dev file, and {share:.0%} of {len(train):,} training examples are {count}",
            "name a dev file with --dev, or a larger share with --held-out",
        )  # fmt: skip
    chosen = np.zeros(len(train), bool)
    chosen[np.random.default_rng(_SPLIT_SEED).permutation(len(train))[:count]] = True
    kept = [example for example, out in zip(train, chosen, strict=True) if not out]
    return kept, [example for example, out in zip(train, chosen, strict=True) if out]
