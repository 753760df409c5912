"""`predict` and `evaluate_task`: a fine-tuned folder on new examples, streamed, in their order."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from albertkit.engines import load_engine, on_engine
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError
from albertkit.files import atomic_file, check_new_file, check_new_folder
from albertkit.report.task_results import save_results
from albertkit.tasks.data import file_of, read_split
from albertkit.tasks.faults import Fault, Faults
from albertkit.tasks.finetune import FinetuneResult
from albertkit.tasks.loading import TaskModel, load_task_model
from albertkit.tasks.prediction import run_model
from albertkit.tasks.task import Prediction
from albertkit.training.distributed import join_world

_FILES = {".csv", ".tsv", ".json", ".txt", ".parquet"}  # names that nobody gives to a folder
CHUNK = 4096  # examples read, computed and written at a time: enough to sort by length, little enough to hold


@dataclass(frozen=True)
class PredictReport:
    """What `predict` did.

    Attributes:
        written: Where the predictions are; empty for standard output.
        examples: Examples predicted.
        left_out: Rows that could not be used.
        notes: How the file was read, where that was not plain; what the engine fell back from.
    """

    written: tuple[Path, ...]
    examples: int
    left_out: tuple[Fault, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        faults = [f"{fault.file}, {fault.where}: {fault.reason}" for fault in self.left_out]
        return {
            "written": [str(path) for path in self.written],
            "examples": self.examples,
            "left_out": faults,
            "notes": self.notes,
        }


def predict(
    model: str | Path,
    input: str | Path,
    out: str | Path | None = None,
    *,
    split: str = "test",
    on_error: Literal["stop", "skip"] = "stop",
    batch_tokens: int = 8192,
    precision: Precision = "auto",
    device: str = "auto",
) -> PredictReport:
    """Predict every example of a file, in its order, however large it is.

    Args:
        model: Folder of a fine-tuned model, or the run it came from.
        input: A file of the task's form (labels are not needed), or a folder in the task's layout.
        out: A `.jsonl` file; or a folder, for `predictions.jsonl` and the task's own files (GLUE's .tsv, SQuAD's
            predictions.json, nbest_predictions.json, null_odds.json). Default: standard output, a JSON object a line.
        split: Which file of a folder.
        on_error: What to do about rows that cannot be used: stop, or skip, count and name them.
        batch_tokens: Most tokens computed at once.
        precision: As `load_engine`: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        CheckpointError: no-task, and what loading raises. DataError: unknown-split, bad-row, and what reading raises.
        ConfigError: bad-argument, bad-device, bad-precision; bad-settings under torchrun.
    """
    if out is not None and Path(out).suffix in _FILES:
        raise ConfigError(
            "bad-argument",
            f"`{out}` would be a folder",
            "predictions go into a .jsonl file, or into a folder with the task's own",
        )
    target = None if out is None else Path(out)
    is_folder = target is not None and target.suffix != ".jsonl"
    if target is not None:
        check_new_folder(target) if is_folder else check_new_file(target)
    faults = Faults(on_error)
    loaded = _ready(model, precision, device, faults)
    file, split = file_of(loaded.task, Path(input), split)
    lines = target / "predictions.jsonl" if target is not None and is_folder else target
    kept: list[Prediction] = []  # the task's own files are written as a whole
    count = 0
    with writer(lines) as stream:
        for prediction in _predictions(loaded, file, split, batch_tokens, faults):
            stream.write(json.dumps(prediction, ensure_ascii=False) + "\n")
            count += 1
            if is_folder:
                kept.append(prediction)
    written = [] if lines is None else [lines]
    if target is not None and is_folder:
        written += [path for path in loaded.task.write(target, kept, split=split) if path != lines]
    return PredictReport(tuple(written), count, tuple(faults.found), tuple(faults.notes))


def evaluate_task(
    model: str | Path,
    data: str | Path,
    out: str | Path | None = None,
    *,
    split: str = "dev",
    threshold_from: Literal["train", "dev"] = "train",
    batch_tokens: int = 8192,
    precision: Precision = "auto",
    device: str = "auto",
) -> FinetuneResult:
    """Score a fine-tuned model on labelled examples.

    Args:
        model: Folder of a fine-tuned model, or the run it came from.
        data: A file of the task's form, or a folder in the task's layout.
        out: Folder for the predictions in the task's own files and `results.json`.
        split: Which file of a folder.
        threshold_from: train: the threshold for "no answer" as it was chosen in training; dev: chosen anew on these very
            examples, as Google does; the result says so.
        batch_tokens, precision, device: As for `predict`.

    Raises:
        As `predict`.
    """
    if out is not None:
        check_new_folder(out)
    faults = Faults()
    loaded = _ready(model, precision, device, faults)
    task = loaded.task
    file, split = file_of(task, Path(data), split)
    examples = read_split(task, file, split, faults)
    features = task.features(examples, loaded.tokenizer, labelled=False)
    outputs = run_model(loaded.model, task, features, batch_tokens)
    predictions = task.predictions(examples, features, outputs)
    if threshold_from == "dev":
        task = task.calibrated(examples, predictions, "dev")
        predictions = task.predictions(examples, features, outputs)
    scores, details = task.score(examples, predictions), task.details(examples, predictions)
    if faults.notes:
        details = {**details, "notes": [*details.get("notes", ()), *faults.notes]}
    collapsed = task.collapsed(examples, predictions)
    result = FinetuneResult(Path(model), task.name, task.metric, scores[task.metric], scores, details, collapsed)
    if out is not None:
        task.write(Path(out), predictions, split=split)
        save_results(result.to_dict(), out)
    return result


def _ready(model: str | Path, precision: Precision, device: str, faults: Faults) -> TaskModel:
    """The folder's model on an engine; what the engine fell back from is noted."""
    loaded = load_task_model(model)
    world = join_world(device)
    if world.size > 1:
        raise ConfigError("bad-settings", f"{world.size} processes", "predict and evaluate run in one process")
    loaded.model.to(world.device)
    engine = load_engine(loaded.model, precision)
    for note in engine.notes:
        faults.note(note)
    return loaded._replace(model=on_engine(loaded.model, engine))


def _predictions(loaded: TaskModel, file: Path, split: str, batch_tokens: int, faults: Faults) -> Iterator[Prediction]:
    examples = loaded.task.examples(file, split=split, labelled=False, faults=faults)
    for chunk in chunks(examples):
        features = loaded.task.features(chunk, loaded.tokenizer, labelled=False)
        outputs = run_model(loaded.model, loaded.task, features, batch_tokens)
        yield from loaded.task.predictions(chunk, features, outputs)


def chunks(examples: Iterator[Any]) -> Iterator[list[Any]]:
    """`CHUNK` of them at a time, in their order."""
    while chunk := list(islice(examples, CHUNK)):
        yield chunk


@contextmanager
def writer(path: Path | None) -> Iterator[IO[str]]:
    """A file that appears whole at the end, or standard output."""
    if path is None:
        yield sys.stdout
    else:
        with atomic_file(path, "w") as stream:
            yield stream
