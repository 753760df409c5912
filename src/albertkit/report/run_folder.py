"""Read what a training leaves in its folder: a run may be unfinished, damaged, or a stranger's."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertKitError, DataError, near_path
from albertkit.model_folder import MODELS, numbered_folders, runs_inside
from albertkit.training.metrics import METRICS_FILE, RunMetrics, number_or_nan, read_metrics

MAX_BYTES = 256_000_000  # of a file that is read
_MAX_STEP = 10**12  # a larger one is no step, and has no place on an axis
# Of what is shown.
_MAX_DEPTH = 6
_MAX_ITEMS = 100_000
_MAX_CHARACTERS = 2_000

# A setting that only this kind of training has.
_KINDS = {
    "pair_task": "pretraining", "video_attention": "captioning", "threshold_from": "fine-tuning",
    "projection": "sentence embeddings",
}  # fmt: skip
_MARKS = {"task.json": "fine-tuning", "captioner.json": "captioning", "modules.json": "sentence embeddings"}


@dataclass
class RunFolder:
    """A run folder, as far as it could be read.

    Attributes:
        folder: The folder.
        attempt: Where the curve and the settings are: the folder itself, its best seed or its last retry.
        kind: pretraining, fine-tuning, sentence embeddings, captioning; or training where nothing says which.
        finished: Whether it came to its end.
        model: The model to use, if there is one.
        settings: Of `run.toml`.
        metrics: Of `metrics.jsonl`.
        results: Of `results.json`.
        state: Of the newest checkpoint: step, tokens, seconds, skipped, threads.
        seeds: With several seeds, the name of each with its value, None while it is unfinished.
        card: The model's README.
        notes: What could not be read, and why.
    """

    folder: Path
    attempt: Path
    kind: str = "training"
    finished: bool = False
    model: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: RunMetrics = field(default_factory=RunMetrics)
    results: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    seeds: dict[str, float | None] = field(default_factory=dict)
    card: str = ""
    notes: list[str] = field(default_factory=list)

    def read(self, path: Path, parse: Callable[[str], Any]) -> Any:
        """Read a file of the run with `parse`; None if it is missing, or cannot be read: then a note says why."""
        if not self.holds(path):
            return None
        name = path.relative_to(self.folder)
        try:
            if not path.is_file():
                raise ValueError("it is a folder, a pipe or a device")
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"larger than {MAX_BYTES / 1e6:.0f} MB")
            return parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            self.notes.append(f"{name} cannot be read: {error}")
            return None

    def holds(self, path: Path) -> bool:
        """Return whether there is such a file or folder; a link that leads out of the run is not followed, and noted."""
        if not path.exists():
            return False
        if path.resolve().is_relative_to(self.folder.resolve()):
            return True
        self.notes.append(f"{path.relative_to(self.folder)} lies outside of the run, and was not read")
        return False

    def table(self, path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
        """Read a file that holds names and values; empty if it does not."""
        value = self.read(path, parse)
        if value is not None and not isinstance(value, dict):
            self.notes.append(f"{path.relative_to(self.folder)} holds no names and values")
        return plain(value) if isinstance(value, dict) else {}


def read_run(folder: str | Path) -> RunFolder:
    """Read a run."""
    path = Path(folder)
    if not path.is_dir():
        raise DataError("not-found", f"no run folder at `{path}`", near_path(path, "name the folder that --out made"))
    seeds = numbered_folders(path, "seed")
    if not seeds and not any((path / name).exists() for name in ("run.toml", METRICS_FILE, "results.json")):
        runs = runs_inside(path)
        hint = f"name a run inside it: {runs[0]}" if runs else "name the folder that --out made"
        raise DataError("missing-file", f"`{path}` is not a run: it has neither run.toml nor {METRICS_FILE}", hint)
    run = RunFolder(path, path)
    run.results = run.table(path / "results.json")
    for seed in seeds:
        value = numbers(run.table(seed / "results.json")).get("value")
        run.seeds[seed.name] = value if value is not None and value == value else None
    run.attempt = _attempt(run, seeds)
    run.settings = run.table(run.attempt / "run.toml", tomllib.loads)
    run.metrics = _metrics(run)
    run.model = next((path / name for name in MODELS if run.holds(path / name / "config.json")), None)
    run.kind = _kind(run)
    run.finished = bool(run.results) or (path / "final" / "config.json").exists()
    checkpoints = numbered_folders(run.attempt / "checkpoints", "step")
    run.state = run.table(checkpoints[-1] / "training_state.json") if checkpoints else {}
    if run.model:
        run.card = run.read(run.model / "README.md", str) or ""
        if run.kind == "pretraining" and not run.card:  # `best/` has none
            run.card = run.read(path / "final" / "README.md", str) or ""
    return run


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value cut to what is readable: not too deep, too many or too long."""
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(key)[:_MAX_CHARACTERS]: plain(part, depth + 1) for key, part in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, list):
        return [plain(part, depth + 1) for part in value[:_MAX_ITEMS]]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:_MAX_CHARACTERS]


def _attempt(run: RunFolder, seeds: list[Path]) -> Path:
    """Return the folder of the attempt that made `best/`: the best of several seeds, the last of its retries."""
    attempt = run.folder
    if seeds:
        finished_seeds = [seed for seed in seeds if run.seeds[seed.name] is not None]
        attempt = max(finished_seeds, key=lambda seed: run.seeds[seed.name] or 0.0) if finished_seeds else seeds[-1]
    retries = [retry for retry in numbered_folders(attempt, "retry") if (retry / METRICS_FILE).exists()]
    return retries[-1] if retries else attempt


def _metrics(run: RunFolder) -> RunMetrics:
    file = run.attempt / METRICS_FILE
    if not run.holds(file):
        return RunMetrics()
    try:
        metrics = read_metrics(file)
    except (AlbertKitError, OSError, RecursionError) as error:
        run.notes.append(f"{METRICS_FILE} cannot be read: {getattr(error, 'message', error)}")
        return RunMetrics()
    for name in ("steps", "evaluations"):
        records = [record for record in getattr(metrics, name) if 0 <= record["step"] <= _MAX_STEP]
        setattr(metrics, name, [{**numbers(record), "step": int(record["step"])} for record in records])
    return metrics


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return the values that are numbers, as floats; NaN where none was recorded."""
    return {
        name: _float(value)
        for name, value in record.items()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    }


def _float(value: Any) -> float:
    try:
        return number_or_nan(value)
    except OverflowError:  # a whole number beyond every float
        return float("nan")


def _kind(run: RunFolder) -> str:
    for name, kind in _KINDS.items():
        if name in run.settings:
            return kind
    marks = [kind for name, kind in _MARKS.items() if run.model and (run.model / name).exists()]
    return marks[0] if marks else "training"
