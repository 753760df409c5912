"""A training from its settings to its results: the steps that every kind of training shares.

    with open_run(out, settings, "fine-tuning", resume) as run:    # the folder's lock, the processes
        return run.of_seeds(once)                                  # one seed or several, retries with a lower rate

    def once(run):
        run = run.resolved(settings)                               # every default a number
        run.check_made_from({"model": …, "data": …})               # a new folder, or this very run
        run.place_model(model)                                        # device, precision, gradient checkpointing
        return run.fit(Recipe(model, objective, …), Best(load, score, write))

Every process of a launch does the same; the first one writes.
"""

import dataclasses
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from albertkit.errors import CheckpointError, MachineError
from albertkit.files import (
    atomic_folder,
    check_folder_name,
    lock_folder,
    read_typed,
    remove_leftovers,
)
from albertkit.model.files import PROVENANCE
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.output.sections import FactList, Result, Section, to_json_value
from albertkit.training.checkpoints import TrainingState, check_model, newest_checkpoint
from albertkit.training.launch import (
    check_whether_to_resume,
    exit_status,
    is_speaking_process,
    raise_stop_signal_again,
)
from albertkit.training.loop import AnyBatch, TrainingRecipe, TrainingResult, train
from albertkit.training.monitor import Display
from albertkit.training.processes import (
    World,
    choose_precision,
    join_world,
    make_results_repeatable,
)
from albertkit.training.results import result_sections, save_results
from albertkit.training.settings import ComputeOptions, EpochSettings

RETRY_FACTOR = 1 / 3  # of the learning rate, for a retry


@dataclass(frozen=True, kw_only=True)
class RunResult(Result):
    """Result of a training.

    Attributes:
        model: Folder of the best model; None if a signal stopped the run before its end.
        metric: The score that chose the model.
        value: Its value on the dev examples.
        scores: All scores on the dev examples.
        collapsed: How one sees that nothing was learned, for example that one class is all that is
            predicted.
        steps: Updates made or skipped.
        seconds: Time spent in updates.
        remedy: What to try where nothing was learned; empty outside of a training.
        retries: Why the run was begun again with a lower rate, each time.
        seeds: With several seeds, the value of each; `value` is then their median, all else is of
            the best.
    """

    model: Path | None = None
    metric: str = ""
    value: float = math.nan
    scores: dict[str, float] = field(default_factory=dict)
    collapsed: str | None = None
    remedy: str = ""
    steps: int = 0
    seconds: float = 0.0
    retries: tuple[str, ...] = ()
    seeds: dict[int, float] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """Exit status of the command: that of the signal that stopped the run, else 0."""
        return 0 if self.model else exit_status()

    @property
    def title(self) -> str:
        """Title of the pictures of the results."""
        return ""

    def extras(self) -> dict[str, Any]:
        """Return what only this kind of training has, as plain values by name."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a score that is not defined is None."""
        summary = {
            "model": self.model and str(self.model),
            "metric": self.metric,
            "value": self.value,
        }
        extent: dict[str, Any] = {}
        if self.steps:
            extent |= {"steps": self.steps, "seconds_of_updates": round(self.seconds, 1)}
        if self.retries:
            extent["retries"] = list(self.retries)
        if self.seeds:
            extent["seeds"] = {str(seed): value for seed, value in self.seeds.items()}
        return to_json_value({**summary, **self.scores, **self.extras(), **extent})

    def saved(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        return self.to_dict()

    @property
    def failure(self) -> str:
        """That a training learned nothing, and what to try; empty otherwise."""
        if not (self.collapsed and self.remedy):
            return ""
        return f"nothing learned: {self.collapsed}; {self.remedy}"

    def sections(self) -> list[Section]:
        """Return the scores and where the model is."""
        scores = result_sections(self.scores_and_notes(), self.metric) if self.scores else []
        return [*scores, FactList({"model": self.model})]

    def scores_and_notes(self) -> dict[str, Any]:
        """Return the scores and notes that `training.results` shows."""
        return {**self.scores, "notes": self.notes()}

    def notes(self) -> list[str]:
        """Return lines for the reader: retries and seeds; a failure is said where the training ends."""
        notes = [f"begun again after {why}" for why in self.retries]
        if self.seeds:
            low, *_, high = sorted(self.seeds.values())
            notes.append(
                f"{self.metric} of {len(self.seeds)} seeds: median {self.value:.4f}, {low:.4f} to {high:.4f}"
            )
        return notes


AnySettings = TypeVar("AnySettings", bound=ComputeOptions)
OtherSettings = TypeVar("OtherSettings", bound=ComputeOptions)
AnyResult = TypeVar("AnyResult", bound=RunResult)
Model = TypeVar("Model")


@dataclass(frozen=True)
class Best(Generic[Model, AnyResult]):
    """Measuring of the best model of a run once the training is over.

    Attributes:
        unfinished: The result of a run that a signal stopped: what is known of it without a model.
        load: Reads the model from its folder.
        score: Scores it, in all processes, and returns the result but for what the run knows
            itself.
        write: Writes what a user looks at, such as predictions and the model card; in one process.
    """

    unfinished: AnyResult
    load: Callable[[Path], Model]
    score: Callable[[Model, TrainingState], AnyResult]
    write: Callable[[Model, AnyResult], None]


@dataclass(frozen=True)
class Run(Generic[AnySettings]):
    """A training with a folder; `open_run` makes it.

    Attributes:
        folder: Of the run.
        settings: How to train.
        title: Title of the progress bar.
        world: The processes.
        resume: Whether the run goes on from its newest checkpoint.
        retries: Why it was begun again, each time.
    """

    folder: Path
    settings: AnySettings
    title: str
    world: World
    resume: bool
    retries: tuple[str, ...] = ()

    @cached_property
    def display(self) -> Display:
        """The display of this process."""
        main = self.world.is_main
        return Display(self.folder if main else None, self.title, silent=not main)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    def resolved(self, settings: OtherSettings) -> "Run[OtherSettings]":
        """Return the run with resolved settings; their learning rate is lowered for a retry."""
        if self.retries and isinstance(settings, EpochSettings) and settings.lr:
            # Three figures, so that the rate can be given again as it is shown
            lr = float(f"{settings.lr * RETRY_FACTOR ** len(self.retries):.3g}")
            settings = dataclasses.replace(settings, lr=lr)
        return dataclasses.replace(self, settings=settings)  # type: ignore[return-value, arg-type]

    def place_model(self, model: PretrainedAlbert) -> None:
        """Move a model to its device and set its precision."""
        place_model(model, self.settings, self.world)

    def check_made_from(self, provenance: Mapping[str, Any]) -> bool:
        """Refuse a folder that does not hold this very run, made from the same; return whether it holds it."""
        continues = self.settings.continues(self.folder, self.resume)
        checkpoint = newest_checkpoint(self.folder) if continues else None
        if checkpoint is not None:
            before = read_typed(checkpoint / PROVENANCE, dict[str, Any], "provenance")
            differences = []
            for name, value in provenance.items():
                if before.get(name) == value:
                    continue
                # SHA-256: means nothing to a reader
                if isinstance(value, str) and len(value) == 64:
                    differences.append(f"other {name} than now")
                else:
                    differences.append(f"{before.get(name)}, not on {value}")
            if differences:
                raise CheckpointError(
                    "changed",
                    f"`{self.folder}` was trained on {'; '.join(differences)}",
                    "resume with what the run was started with, or start a new run with another --out",
                )
        return continues

    def train(
        self,
        recipe: TrainingRecipe[AnyBatch],
        write_files_before_run: Callable[[], None] | None = None,
    ) -> TrainingResult:
        """Begin the folder, with those files that must lie in it before there is a run, show the notes and train."""
        # Every process has checked the folder: none may find a run that another has just begun
        self.world.barrier()
        if self.world.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            if write_files_before_run is not None:
                write_files_before_run()
            self.settings.save(self.folder / "run.toml")
        if self.retries and isinstance(self.settings, EpochSettings):
            # The other settings are those of the first attempt, which were shown
            self.display.note(
                f"begun again with learning rate {self.settings.lr:g} after {self.retries[-1]}"
            )
        else:
            for line in recipe.notes:
                self.display.note(line)
        with make_results_repeatable(self.world.device) if recipe.repeatable else nullcontext():
            return train(recipe, self.folder, self.world, self.display, resume=self.resume)

    def fit(self, recipe: TrainingRecipe[AnyBatch], best: Best[Model, AnyResult]) -> AnyResult:
        """Train, then load the best model from its folder, score it, and write its results and card."""
        trained = self.train(recipe)
        extent: dict[str, Any] = {"steps": trained.state.step, "seconds": trained.state.seconds}
        if not trained.finished:
            return dataclasses.replace(best.unfinished, **extent)
        folder = self.folder / "best"
        try:
            self.world.barrier()
            if trained.stopped:
                raise_stop_signal_again()
            check_model(folder)
            model = best.load(folder)
            result = dataclasses.replace(best.score(model, trained.state), model=folder, **extent)
            if self.world.is_main:
                save_results(result.saved(), self.folder, result.title)
                best.write(model, result)
            self.world.barrier()
            return result
        except (SystemExit, KeyboardInterrupt):
            self.display.note(
                f"stopped by a signal after the last update: `{folder}` is complete; --resume measures it"
            )
            raise

    def of_seeds(
        self: "Run[Epochs]", train_once: Callable[["Run[Epochs]"], AnyResult]
    ) -> AnyResult:
        """Train with one seed, or with several: then the value is their median, and the best model is in `best/`.

        `train_once` trains once; the run that it gets has the settings as they were given, but for the
        seed.
        """
        settings = self.settings
        if settings.seeds == 1:
            return self._train_and_retry_at_lower_rates(train_once)
        results = {}
        for seed in range(settings.seed, settings.seed + settings.seeds):
            seed_settings = dataclasses.replace(settings, seed=seed, seeds=1)
            results[seed] = self._run_inside(
                f"seed-{seed}", seed_settings
            )._train_and_retry_at_lower_rates(train_once)
            if results[seed].model is None:  # a signal
                return results[seed]
        values = {
            # A correlation with constant predictions is NaN: worse than any number.
            seed: -math.inf if math.isnan(result.value) else result.value
            for seed, result in results.items()
        }
        best = results[max(values, key=lambda seed: values[seed])]
        summary = dataclasses.replace(
            best,
            value=statistics.median(values.values()),
            seeds={seed: result.value for seed, result in results.items()},
            steps=sum(result.steps for result in results.values()),
            seconds=sum(result.seconds for result in results.values()),
        )
        spread = ", ".join(f"{value:.4f}" for value in sorted(values.values()))
        self.display.note(
            f"{best.metric} of {len(values)} seeds: median {summary.value:.4f} ({spread})"
        )
        return self._copy_result_to_top(summary, ("best",))

    def _train_and_retry_at_lower_rates(
        self: "Run[Epochs]", train_once: Callable[["Run[Epochs]"], AnyResult]
    ) -> AnyResult:
        """Train with one seed, again with a lower rate as often as `retries` allows where nothing is learned."""
        whys: tuple[str, ...] = ()
        while True:
            attempt = self._run_inside(f"retry-{len(whys)}", self.settings, whys) if whys else self
            last = len(whys) == self.settings.retries
            try:
                result = train_once(attempt)
                why = result.collapsed
            except MachineError as error:
                if error.slug != "not-finite" or last:
                    raise
                why = error.message
            if last and result.failure:
                attempt.display.note(result.failure)
            if last or not why:
                result = dataclasses.replace(result, retries=whys)
                return (
                    result if attempt is self else self._copy_result_to_top(result, ("best", "dev"))
                )
            # What the settings were resolved to, which `train_once` alone knows
            rate = read_typed(attempt.folder / "run.toml", dict[str, Any])["lr"]
            whys = (*whys, f"learning rate {rate:g}: {why}")

    def _run_inside(
        self, name: str, settings: AnySettings, retries: tuple[str, ...] = ()
    ) -> "Run[AnySettings]":
        return dataclasses.replace(
            self, folder=self.folder / name, settings=settings, retries=retries
        )

    def _copy_result_to_top(self, result: AnyResult, folder_names: Sequence[str]) -> AnyResult:
        """Copy the model of a run inside this one, and save its results, where a user looks for them."""
        if result.model is None:
            return result
        promoted = dataclasses.replace(result, model=self.folder / "best")
        if self.world.is_main:
            for name in folder_names:
                if (source := result.model.parent / name).exists():
                    with atomic_folder(self.folder / name) as folder:
                        shutil.copytree(source, folder, dirs_exist_ok=True)
            save_results(promoted.saved(), self.folder)
        self.world.barrier()
        return promoted


Epochs = TypeVar("Epochs", bound=EpochSettings)


@contextmanager
def open_run(
    out: str | Path,
    settings: AnySettings,
    title: str,
    resume: bool = False,
    *,
    check_settings_now: bool = True,
) -> Iterator[Run[AnySettings]]:
    """Open the folder of a training, in which no other process writes meanwhile, and join the processes of the launch.

    Args:
        out: Folder of the run, made if missing. It holds this run, or nothing that could be written
            over.
        settings: As they were given.
        title: Title of the progress bar.
        resume: Go on with the run that is there.
        check_settings_now: Check the settings at once; False where the data decide some of them.
    """
    folder = check_folder_name(out)
    # The others of a launch are not kept out
    with lock_folder(folder, enabled=is_speaking_process()):
        if check_settings_now:
            settings.check()
        world = join_world(settings.device)
        resume = check_whether_to_resume(folder, resume)
        if not resume:
            settings.continues(folder, resume=False)  # before anything is read
        yield Run(folder, settings, title, world, resume)


def place_model(model: PretrainedAlbert, settings: ComputeOptions, world: World) -> None:
    """Move a model to its device and set its precision."""
    model.to(world.device)
    model.compute_dtype = choose_precision(settings.precision, world.device)
    model.gradient_checkpointing = settings.gradient_checkpointing
