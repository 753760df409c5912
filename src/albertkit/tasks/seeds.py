"""Several seeds of one training: the median of what they reached, and the best of their models."""

import dataclasses
import math
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any, TypeVar

from albertkit.files import atomic_folder
from albertkit.report.task_results import save_results
from albertkit.training.distributed import World

Result = TypeVar("Result", bound=Any)  # a dataclass with model, metric, value, seeds, steps, seconds and to_dict()


def median_of_seeds(results: dict[int, Result], run: Path, world: World) -> Result:
    """The result of the best seed with the median as its value; its model is copied to `best/`, the results are saved.

    Args:
        results: By seed, all finished.
        run: Folder of the run.
        world: The processes.
    """
    values = {seed: -math.inf if math.isnan(result.value) else result.value for seed, result in results.items()}
    best = results[max(values, key=lambda seed: values[seed])]
    summary = dataclasses.replace(
        best,
        model=run / "best",
        value=statistics.median(values.values()),
        seeds={seed: result.value for seed, result in results.items()},
        steps=sum(result.steps for result in results.values()),
        seconds=sum(result.seconds for result in results.values()),
    )
    if world.is_main:
        assert best.model is not None
        with atomic_folder(run / "best") as folder:
            shutil.copytree(best.model, folder, dirs_exist_ok=True)
        save_results(summary.to_dict(), run)
        spread = ", ".join(f"{value:.4f}" for value in sorted(values.values()))
        print(f"{best.metric} of {len(values)} seeds: median {summary.value:.4f} ({spread})", file=sys.stderr)
    world.barrier()
    return summary
