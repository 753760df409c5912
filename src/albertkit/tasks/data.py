"""The examples of a fine-tuning: training, dev, and those that a decision is calibrated on."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.bad_rows import BadRow, BadRows, counted
from albertkit.data.features import Features
from albertkit.data.given import Data, DataFile, DataFiles, Records, as_files, file_name, quoted_name
from albertkit.errors import ConfigError, DataError, listed
from albertkit.tasks.overlap import draw_held_out, measure_overlap
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.task import Task

_MAX_REASONS = 3
_FEW = 10  # examples, each of which may well have a label of its own


@dataclass(frozen=True)
class TaskData:
    """Examples of a fine-tuning: train, dev and calibration."""

    task: Task  # fitted to the training examples
    train: list[Any]  # examples to train on
    dev: list[Any]  # examples that choose the best model
    # examples kept from training for a decision such as the threshold for "no answer"; mostly none
    calibration: list[Any]
    notes: list[str]  # a line for each thing that the user should know
    dev_file: str = "dev"  # name of the dev file, or what the dev examples are a share of


def file_of(task: Task, data: DataFiles, split: str) -> tuple[DataFile, str]:
    """Return the file to read, and which split it is."""
    if isinstance(data, Records) or (isinstance(data, Path) and not data.is_dir()):
        return data, split
    files = task.files(data)
    for name in (split, *(name for name in files if name.startswith(split))):
        if name in files:
            return files[name], name
    raise DataError(
        "missing-file",
        f"{quoted_name(data)} has no `{split}` of {task.name} (there: {', '.join(files)})",
        "name one of them with --split, or the file itself",
    )


def read_split(task: Task, file: DataFile, split: str, bad_rows: BadRows, labelled: bool = True) -> list[Any]:
    """Read all examples of a file."""
    before = len(bad_rows.found)
    examples = list(task.examples(file, split=split, labelled=labelled, bad_rows=bad_rows))
    if examples:
        return examples
    if found := bad_rows.found[before:]:
        raise DataError(
            "too-little-data",
            f"{quoted_name(file)} holds no example that can be used; {found[0].where}: {found[0].reason}",
            found[0].hint or f"correct the file; is it one of `{task.name}`?",
        )
    raise DataError(
        "too-little-data",
        f"{quoted_name(file)} has nothing to read but, perhaps, a header",
        "name a file with examples",
    )


def read_data(
    task: Task, data: DataFiles, dev: DataFiles | None, held_out: float, calibrate: bool, bad_rows: BadRows
) -> TaskData:
    """Read the examples of a training."""
    files = task.files(data)
    if "train" not in files:
        raise DataError(
            "missing-file",
            f"there is no training file in {quoted_name(data)} (found: {', '.join(sorted(files)) or 'nothing'})",
            "name the training file itself as DATA, and another with --dev",
        )
    train = read_split(task, files["train"], "train", bad_rows)
    notes = []
    split = next((name for name in files if name.startswith("dev")), None)
    if dev is not None:
        dev_file, _ = file_of(task, dev, "dev")
        dev_examples, dev_name = read_split(task, dev_file, "dev", bad_rows), file_name(dev_file)
        where = f"`{dev_name if isinstance(dev_file, Records) else dev_file}`"
    elif split:
        dev_examples, dev_name = read_split(task, files[split], split, bad_rows), file_name(files[split])
        where = f"`{dev_name}`"
    else:
        with _naming_left_out_rows(bad_rows):
            train, dev_examples = _hold_out(task.kind, train, held_out, data)
        where = f"{held_out:.0%} of the training examples, held out: there is no dev file"
        dev_name = f"{file_name(files['train'])}, held out"
    notes.append(f"data: {counted(len(train), 'training example')}; dev: {len(dev_examples):,}, {where}")
    notes += measure_overlap(task.kind, train, dev_examples).lines("dev", len(dev_examples))
    if bad_rows.found:
        notes.append(left_out_line(bad_rows.found))
    notes += bad_rows.notes
    with _naming_left_out_rows(bad_rows):
        task = task.fitted(train)
    calibration: list[Any] = []
    if calibrate:
        train, calibration = task.calibration_split(train)
        if calibration:
            notes.append(f"kept from training to calibrate on: {len(calibration):,} examples")
    return TaskData(task, train, dev_examples, calibration, notes, dev_name)


@contextmanager
def _naming_left_out_rows(bad_rows: BadRows) -> Iterator[None]:
    """Let an error about what is left of the examples say which rows were left out."""
    try:
        yield
    except DataError as error:
        if not bad_rows.found:
            raise
        hint = bad_rows.found[0].hint or "correct these rows first"
        raise DataError(error.slug, f"{error.message}; {left_out_line(bad_rows.found)}", hint) from None


def read_given(task: Task, data: Data, dev: Data, held_out: float, calibrate: bool, bad_rows: BadRows) -> TaskData:
    """Read data that may be at an address or in memory, see `as_files`, as `read_data` does."""
    with as_files(data) as given, nullcontext() if dev is None else as_files(dev) as dev_file:
        return read_data(task, given, dev_file, held_out, calibrate, bad_rows)


def configured(task: Task, settings: FinetuneSettings) -> Task:
    """Return the task with what the settings name about its sequences; what they leave open stays as it is."""
    named = {
        "length": settings.length,
        "long_texts": settings.long_texts,
        "stride": settings.stride,
        "head_kind": settings.qa_head,
        "threshold_from": settings.threshold_from,
        "positive_class": settings.positive_class,
    }
    own = {f.name for f in fields(task)}
    if settings.positive_class is not None and "positive_class" not in own:
        raise ConfigError("bad-value", f"`{task.name}` has no two classes", "leave --positive-class out")
    return task.with_changes(**{name: value for name, value in named.items() if name in own and value is not None})


def left_out_line(found: Sequence[BadRow]) -> str:
    """Return the line about rows that cannot be used: how many, the first, and the most frequent reasons if there are several."""
    counts = Counter(row.reason for row in found).most_common(_MAX_REASONS)
    reasons = (
        "" if len(counts) < 2 else f"; {listed([f'{count:,} x {reason}' for reason, count in counts], _MAX_REASONS)}"
    )
    return f"rows left out: {len(found):,} (the first: {found[0].where}, {found[0].reason}{reasons})"


def fingerprint(features: Features) -> str:
    """Return the SHA-256 of what the model is trained on: a run is only resumed on the same."""
    digest = hashlib.sha256()
    arrays = (features.input_ids, features.offsets, *features.per_sequence.values(), *features.per_token.values())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _hold_out(kind: str, train: Sequence[Any], share: float, data: DataFiles) -> tuple[list[Any], list[Any]]:
    """Keep a share as dev, see `draw_held_out`."""
    count = round(share * len(train))
    labels = [_labels(example) for example in train]
    held = draw_held_out(kind, train, labels, count)
    if not 0 < count < len(train) or not held:
        each = "; every label, or every question's text, would be missing from training" * (0 < count < len(train))
        if len(set(labels)) == len(train) > _FEW and all(len(own) == 1 for own in labels):
            raise DataError(
                "too-little-data",
                f"every one of the {len(train):,} training examples in {quoted_name(data)} has a label of its own",
                "is it the right column? Name that of the label with --label-column",
            )
        raise DataError(
            "too-little-data",
            f"{quoted_name(data)} has no dev file, and {share:.0%} of {len(train):,} training examples are {count}{each}",
            "name a dev file with --dev, or " + ("a larger share with --held-out" if not count else "add examples"),
        )
    kept = [example for number, example in enumerate(train) if number not in held]
    return kept, [example for number, example in enumerate(train) if number in held]


def _labels(example: Any) -> tuple[str, ...]:
    """Return the labels that must stay in training; of tagged sentences types, of numbers and choices none."""
    if tags := getattr(example, "tags", ()):
        return tuple({tag[2:] for tag in tags} - {""})
    label = getattr(example, "label", None)
    return (label,) if isinstance(label, str) else label if isinstance(label, tuple) else ()
