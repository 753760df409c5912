"""What a training of sentence embeddings left, of one seed or several."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from albertkit.embeddings.learning.settings import EncoderSettings
from albertkit.report.task_results import for_json
from albertkit.tasks.seeds import median_of_seeds
from albertkit.training.distributed import World

REMEDY = "try a lower --lr, a longer --warmup or another --seed"

AnySettings = TypeVar("AnySettings", bound=EncoderSettings)


@dataclass(frozen=True)
class EmbeddingResult:
    """What a training of sentence embeddings left.

    Attributes:
        model: Folder of the best model; None if a signal stopped the run before its end.
        kind: Of the data, or "distillation".
        metric: The score that chose the model.
        value: Its value on dev.
        scores: All scores on dev.
        intervals: Score to low and high, 95 %.
        constant: What was constant, so that nothing was learned; mostly nothing.
        steps: Updates made or skipped.
        seconds: Time spent in updates.
        truncated: Texts that were longer than the model reads and were cut: `train`, `dev`.
        seeds: With several seeds, the value of each; `value` is then their median, all else is of the best.
    """

    model: Path | None
    kind: str
    metric: str
    value: float
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    truncated: dict[str, int] = field(default_factory=dict)
    seeds: dict[int, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a score that is not defined is None."""
        own = {"model": self.model and str(self.model), "kind": self.kind, "metric": self.metric, "value": self.value}
        rest = {"intervals": self.intervals, "constant": list(self.constant), "steps": self.steps}
        rest["seconds_of_updates"] = round(self.seconds, 1)
        rest["truncated"] = self.truncated
        if self.seeds:
            rest["seeds"] = {str(seed): value for seed, value in self.seeds.items()}
        return for_json({**own, **self.scores, **rest})

    def results(self) -> dict[str, Any]:
        """What `report.task_results` shows: scores, intervals, notes."""
        notes = [f"nothing learned: {line}; {REMEDY}" for line in self.constant]
        if self.seeds:
            low, *_, high = sorted(self.seeds.values())
            notes.append(f"{self.metric} of {len(self.seeds)} seeds: median {self.value:.4f}, {low:.4f} to {high:.4f}")
        return {**self.scores, "intervals": self.intervals, "notes": notes}


def with_seeds(
    settings: AnySettings, run: Path, world: World, once: Callable[[AnySettings, Path], EmbeddingResult]
) -> EmbeddingResult:
    """One run, or one a seed: then the median over the seeds, and the best model in `best/`.

    Args:
        settings: As given.
        run: Folder of the run; of several seeds each has one in it.
        world: The processes.
        once: Trains once.
    """
    if settings.seeds == 1:
        return once(settings, run)
    results = {}
    for seed in range(settings.seed, settings.seed + settings.seeds):
        results[seed] = once(dataclasses.replace(settings, seed=seed, seeds=1), run / f"seed-{seed}")
        if results[seed].model is None:  # a signal
            return results[seed]
    return median_of_seeds(results, run, world)
