"""One fine-tuning, from examples to the best model and its results: puts data, features, model, objective and loop together."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.checkpoints.folder import PROVENANCE
from albertkit.errors import ConfigError
from albertkit.files import write_json
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.report.task_card import write_task_card
from albertkit.report.task_results import for_json, save_results
from albertkit.report.versions import versions
from albertkit.tasks.adapters import add_lora, freeze_encoder
from albertkit.tasks.data import TaskData, fingerprint
from albertkit.tasks.distillation import DistillationLosses, load_teacher
from albertkit.tasks.exits import ExitLosses
from albertkit.tasks.faults import counted
from albertkit.tasks.features import Features
from albertkit.tasks.loading import load_encoder, load_task_model, save_task_model
from albertkit.tasks.objective import FinetuningObjective
from albertkit.tasks.prediction import run_model
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.shown_examples import save_examples
from albertkit.tasks.stream import ExampleStream
from albertkit.tasks.task import Prediction, Task
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.display import Display
from albertkit.training.distributed import World
from albertkit.training.hardware import choose_precision, describe, repeatable
from albertkit.training.loop import LoopSettings, train
from albertkit.training.resuming import begin_folder, check_made_from
from albertkit.training.state import check_model


@dataclass(frozen=True)
class EvaluatedData:
    """What a model was scored on.

    Attributes:
        file: Name of the file, or what the examples are a part of.
        examples: How many.
        step: Of the training, the update after which the model was saved; None outside of one.
    """

    file: str
    examples: int
    step: int | None = None


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tuning left.

    Attributes:
        model: Folder of the best model; None if a signal stopped the run before its end.
        task: Name of the task.
        metric: The score that chose the model.
        value: Its value on dev.
        scores: All scores on dev.
        details: Per-class table, confusion matrix, intervals.
        collapsed: How one sees that nothing was learned, for example that one class is all that is predicted.
        steps: Updates made or skipped.
        seconds: Time spent in updates.
        retries: Why the run was begun again with a lower rate, each time.
        seeds: With several seeds, the value of each; `value` is then their median, all else is of the best.
        data: What the scores are of.
    """

    model: Path | None
    task: str
    metric: str
    value: float
    scores: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    collapsed: str | None = None
    steps: int = 0
    seconds: float = 0.0
    retries: tuple[str, ...] = ()
    seeds: dict[int, float] = field(default_factory=dict)
    data: EvaluatedData | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: scores and details by their names; a score that is not defined is None."""
        own = {"model": self.model and str(self.model), "task": self.task, "metric": self.metric, "value": self.value}
        rest: dict[str, Any] = {"collapsed": self.collapsed}
        if self.data:
            rest |= {"data": self.data.file, "examples": self.data.examples}
            rest |= {} if self.data.step is None else {"best_step": self.data.step}
        if self.steps:
            rest |= {"steps": self.steps, "seconds_of_updates": round(self.seconds, 1)}
        if self.retries:
            rest["retries"] = list(self.retries)
        if self.seeds:
            rest["seeds"] = {str(seed): value for seed, value in self.seeds.items()}
        return for_json({**own, **self.scores, **self.details, **rest})

    def results(self) -> dict[str, Any]:
        """What `report.task_results` shows: scores, intervals, classes, notes."""
        notes = [*self.details.get("notes", ())]
        if self.collapsed and self.data and self.data.step is None:  # an evaluation
            notes.append(f"{self.collapsed}: the model does not distinguish these examples")
        elif self.collapsed:
            notes.append(
                f"nothing learned: {self.collapsed}; try --retries 2, a lower --lr, a longer --warmup or another --seed"
            )
        notes += [f"begun again: {why}" for why in self.retries]
        if self.seeds:
            values = sorted(self.seeds.values())
            notes.append(
                f"{self.metric} of {len(values)} seeds: median {self.value:.4f}, {values[0]:.4f} to {values[-1]:.4f}"
            )
        return {**self.scores, **self.details, "notes": notes, "heading": self._heading()}

    def _heading(self) -> str:
        """What the scores are of, for people."""
        if self.data is None:
            return ""
        step = "" if self.data.step is None else f", the model of step {self.data.step:,}"
        return f"{self.task}, {counted(self.data.examples, 'example')} of {self.data.file}{step}"


class Judge:
    """Predicts and scores examples with a model under training.

    Args:
        task: With what was calibrated so far.
        examples: Dev.
        calibration: Examples that a decision is calibrated on, may be none.
        tokenizer: The model's.
        batch_tokens: Computed at once.
        world: The processes.
    """

    def __init__(
        self,
        task: Task,
        examples: Sequence[Any],
        calibration: Sequence[Any],
        tokenizer: AlbertTokenizer,
        batch_tokens: int,
        world: World,
    ) -> None:
        self.task, self.examples, self.calibration = task, examples, calibration
        self.features = task.features(examples, tokenizer, labelled=True)  # a label that train lacks is said at once
        self._calibration_features = task.features(calibration, tokenizer, labelled=False) if calibration else None
        self._batch_tokens, self._world = batch_tokens, world

    def calibrate(self, model: PretrainedAlbert) -> None:
        """Decide anew what is decided by looking at predictions of examples kept from training."""
        if self._calibration_features is not None:
            predictions = self._predict(model, self.calibration, self._calibration_features)
            self.task = self.task.calibrated(self.calibration, predictions, "train")

    def predictions(self, model: PretrainedAlbert) -> list[Prediction]:
        """Of the dev examples."""
        return self._predict(model, self.examples, self.features)

    def scores(self, model: PretrainedAlbert) -> dict[str, float]:
        """Calibrate, predict, score."""
        self.calibrate(model)
        scores = self.task.score(self.examples, self.predictions(model))
        return {self.task.metric: scores[self.task.metric], **scores}  # the one that counts is shown first

    def _predict(self, model: PretrainedAlbert, examples: Sequence[Any], features: Features) -> list[Prediction]:
        outputs = run_model(model, self.task, features, self._batch_tokens, self._world)
        return self.task.predictions(examples, features, outputs)


def finetune_once(
    data: TaskData,
    model_folder: str | Path,
    run: Path,
    settings: FinetuneSettings,
    world: World,
    *,
    resume: bool,
    reasons: Sequence[str] = (),
) -> FinetuneResult:
    """Fine-tune once.

    Args:
        data: What to learn.
        model_folder: Checkpoint to start from.
        run: Folder of the run.
        settings: Resolved; `seeds` and `retries` are not looked at.
        world: The processes.
        resume: Continue the run from its newest checkpoint, to the same bits.
        reasons: Lines to show: where settings are from, why it is begun again.

    Raises:
        CheckpointError: run-exists, other-settings, resume-mismatch, and what loading raises.
        ConfigError: bad-settings, bad-device. MachineError: loss-not-finite.
    """
    task = configured(data.task, settings)
    torch.manual_seed(settings.seed)  # of a fresh head
    dropout = {"hidden_dropout_prob": settings.dropout, "attention_probs_dropout_prob": settings.dropout}
    model, tokenizer, notes = load_encoder(model_folder, task, **dropout)
    features = task.features(data.train, tokenizer, labelled=True)
    data_fingerprint = fingerprint(features)
    if settings.continues(run, resume):
        check_made_from(run, {"task": task.name, "data": data_fingerprint})
    model.to(world.device)
    model.compute_dtype = choose_precision(settings.precision, world.device)
    model.gradient_checkpointing = settings.gradient_checkpointing
    stream = ExampleStream(
        features, task.grouped, batch_size=settings.batch_size or 1, batch_tokens=settings.batch_tokens,
        seed=settings.seed, rank=world.rank, world_size=world.size,
    )  # fmt: skip
    judge = Judge(task, data.dev, data.calibration, tokenizer, settings.batch_tokens, world)
    class_weights = _class_weights(task, data.train, settings, world)
    lora = add_lora(model, settings.lora) if settings.lora else None
    if settings.freeze:
        freeze_encoder(model)
    teaching: DistillationLosses | ExitLosses | None = None
    if settings.exits:
        teaching = ExitLosses(model, task, class_weights)
    if settings.teacher is not None:
        teacher = load_teacher(settings.teacher, model, tokenizer, task.length)
        teaching = DistillationLosses(
            model, teacher, task, weight=settings.teacher_weight, hidden_weight=settings.teacher_hidden,
            class_weights=class_weights,
        )  # fmt: skip
    objective = FinetuningObjective(model, task, class_weights, teaching)

    def save_model(folder: Path) -> None:
        save_task_model(folder, lora.merged() if lora else model, tokenizer, judge.task)
        if isinstance(teaching, ExitLosses):
            teaching.exits.save(folder)
        write_json(folder / PROVENANCE, {"model": str(model_folder), "data": data_fingerprint, "task": task.name})

    begin_folder(run, settings, world)
    display = Display(run if world.is_main else None, f"fine-tuning {task.name}", silent=not world.is_main)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    trained = f"parameters: {model.num_parameters():,}"
    if settings.lora or settings.freeze:
        trained = f"parameters: {trainable:,} are trained, of {sum(p.numel() for p in model.parameters()):,}"
    for line in (*data.notes, *notes, *reasons, trained, describe(model, world.device)):
        display.note(line)
    with repeatable(world.device):
        result = train(
            teaching or model, objective, stream, LoopSettings.over_epochs(settings), run=run, world=world, display=display,
            save_model=save_model, evaluate=lambda: judge.scores(model), select=task.metric, resume=resume,
        )  # fmt: skip
    if not result.finished:
        return FinetuneResult(
            None, task.name, task.metric, math.nan, {}, steps=result.state.step, seconds=result.state.seconds
        )
    world.barrier()
    check_model(run / "best")
    best = load_task_model(run / "best")
    best.model.to(world.device)
    best.model.compute_dtype = model.compute_dtype
    judge.task = best.task
    predictions = judge.predictions(best.model)
    scores = best.task.score(data.dev, predictions)
    finished = FinetuneResult(
        run / "best", task.name, task.metric, scores[task.metric], scores, best.task.details(data.dev, predictions),
        best.task.collapsed(data.dev, predictions), result.state.step, result.state.seconds,
        data=EvaluatedData(data.dev_file, len(data.dev), result.state.best_step),
    )  # fmt: skip
    if world.is_main:
        best.task.write(run / "dev", predictions, split="dev")
        save_examples(run / "dev", best.task, data.dev, predictions)
        save_results(finished.to_dict(), run, title=f"{task.name}, dev")
        write_task_card(
            run / "best", run.resolve().name, kind=task.kind, task=task.name, model_class=task.model_class.__name__,
            parameters=best.model.num_parameters(), start=str(model_folder),
            examples={"train": len(data.train), "dev": len(data.dev)}, scores=scores,
            intervals=finished.details.get("intervals", {}), settings=settings.told(), versions=versions(),
        )  # fmt: skip
    world.barrier()
    return finished


def configured(task: Task, settings: FinetuneSettings) -> Task:
    """The task with what the settings say about its sequences; what they leave open stays as it is."""
    said = {
        "length": settings.length, "long_texts": settings.long_texts, "stride": settings.stride,
        "head_kind": settings.qa_head, "threshold_from": settings.threshold_from,
    }  # fmt: skip
    own = {f.name for f in dataclasses.fields(task)}
    return task.with_changes(**{name: value for name, value in said.items() if name in own and value is not None})


def _class_weights(task: Task, train: Sequence[Any], settings: FinetuneSettings, world: World) -> torch.Tensor | None:
    """Weights in inverse proportion to the frequency of a class, with mean 1 over the training targets."""
    if settings.class_weights == "none":
        return None
    counts = task.label_counts(train)
    if counts is None:
        raise ConfigError("bad-settings", f"`{task.name}` has no classes to weigh", "leave --class-weights out")
    there = np.array(counts, np.float64)
    weights = there.sum() / (np.count_nonzero(there) * np.maximum(there, 1))  # a class without targets weighs nothing
    return torch.tensor(weights, dtype=torch.float32, device=world.device)
