"""`finetune`: read the data, fine-tune with one seed or several, begin again where nothing was learned and that is asked for."""

import dataclasses
import shutil
from pathlib import Path
from typing import Literal

from albertkit.config import AlbertConfig
from albertkit.errors import MachineError
from albertkit.files import atomic_folder
from albertkit.model_folder import local_folder
from albertkit.report.task_results import save_results
from albertkit.tasks.data import TaskData, read_given
from albertkit.tasks.faults import Faults
from albertkit.tasks.finetune import FinetuneResult, finetune_once
from albertkit.tasks.given_data import Data
from albertkit.tasks.loading import check_not_swapped
from albertkit.tasks.registry import Columns, find_task
from albertkit.tasks.seeds import median_of_seeds
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.task import Task
from albertkit.training.distributed import World, join_world
from albertkit.training.launch import resumes
from albertkit.training.run_folder import alone_in_run

_LOWER = 1 / 3  # of the learning rate, for a retry


@alone_in_run
def finetune(
    task: str | Task,
    model: str | Path,
    data: Data,
    out: str | Path,
    settings: FinetuneSettings | None = None,
    *,
    columns: Columns | None = None,
    dev: Data = None,
    resume: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
) -> FinetuneResult:
    """Fine-tune a model on a task and score it on the task's dev examples.

    Under `torchrun` every process takes its share of each update and gradients are summed.

    Args:
        task: Name (see `albertkit.tasks.registry.TASKS`), or a task.
        model: Any checkpoint folder, or `org/name` of the hub. One that was fine-tuned on MNLI is where the paper starts
            RTE, MRPC and STS-B.
        data: Folder in the task's layout, or the training file; an address, or rows in memory, see `as_files`.
        out: Folder of the run: `run.toml`, `metrics.jsonl`, `checkpoints/`, `best/` (the model to use), `dev/` (its
            predictions), `results.json`; with several seeds a folder for each and the best of them in `best/`.
        settings: See `FinetuneSettings`.
        columns: Names of the columns of a table.
        dev: The dev file. Default: that of the folder, else a share of the training examples.
        resume: Continue from the newest checkpoint, to the same bits.
        on_error: What to do about rows that cannot be used: stop, or skip and count them.

    Raises:
        CheckpointError: run-exists, no-run, other-settings, resume-mismatch, weights-mismatch and what else loading raises.
        ConfigError: unknown-task, bad-settings, bad-device. DataError: what reading raises.
        MachineError: loss-not-finite, if no retry is left.
    """
    settings, run = settings or FinetuneSettings(), Path(out)
    settings.check()
    check_not_swapped(model, data)
    world = join_world(settings.device)
    resume = resumes(run, resume)
    found = task if isinstance(task, Task) else find_task(task, columns)
    examples = read_given(found, data, dev, settings.held_out, settings.threshold_from == "train", Faults(on_error))
    if settings.seeds == 1:
        return _with_retries(examples, model, run, settings, world, resume)
    results = {}
    for seed in range(settings.seed, settings.seed + settings.seeds):
        one = dataclasses.replace(settings, seed=seed, seeds=1)
        results[seed] = _with_retries(examples, model, run / f"seed-{seed}", one, world, resume)
        if results[seed].model is None:  # a signal
            return results[seed]
    return median_of_seeds(results, run, world)


def _with_retries(
    data: TaskData, model: str | Path, run: Path, settings: FinetuneSettings, world: World, resume: bool
) -> FinetuneResult:
    """One seed, begun again with a lower rate as often as `retries` allows."""
    config = AlbertConfig.from_pretrained(local_folder(model))
    resolved, reasons = settings.resolve(data.task.name, config, len(data.train))
    whys: list[str] = []
    while True:
        folder = run / f"retry-{len(whys)}" if whys else run
        lr = resolved.lr or 0.0
        if whys:
            lr = float(f"{lr * _LOWER ** len(whys):.3g}")
        one = dataclasses.replace(resolved, lr=lr)
        last = len(whys) == settings.retries
        try:
            result = finetune_once(data, model, folder, one, world, resume=resume, reasons=reasons)
            why = result.collapsed
        except MachineError as error:
            if error.slug != "loss-not-finite" or last:
                raise
            why = error.message
        if last or not why:
            return _settled(dataclasses.replace(result, retries=tuple(whys)), run, world)
        whys.append(f"learning rate {lr:g}: {why}")
        reasons = [*reasons, f"begun again with a third of the learning rate; {whys[-1]}"]


def _settled(result: FinetuneResult, run: Path, world: World) -> FinetuneResult:
    """What the last attempt left, where a person looks for it: in the run's own folder."""
    if result.model is None or result.model == run / "best":
        return result
    settled = dataclasses.replace(result, model=run / "best")
    if world.is_main:
        for name in ("best", "dev"):
            with atomic_folder(run / name) as folder:
                shutil.copytree(result.model.parent / name, folder, dirs_exist_ok=True)
        save_results(settled.to_dict(), run)
    world.barrier()
    return settled
