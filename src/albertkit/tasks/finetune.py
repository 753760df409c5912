"""`finetune`: a task's examples and any ALBERT to the best model on dev, with its predictions, results and card."""

import copy
import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from albertkit.batches.features import ExampleStream, Features, LabelledBatch
from albertkit.command import takes
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertKitError, ConfigError, requires_package
from albertkit.files import read_typed, write_lines
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.model_paths import local_folder
from albertkit.output.render import (
    Card,
    code_block,
    escape_markdown,
    hub_metadata,
    package_versions,
    settings_sections,
)
from albertkit.output.sections import Paragraph, to_json_value
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.records import DataFile, quoted_name
from albertkit.tasks.check import DataCheckReport, check_task
from albertkit.tasks.data import (
    TaskData,
    apply_task_settings,
    fingerprint,
    held_out_display_name,
    read_data_from_anywhere,
    unknown_token_lines,
    unknown_token_share,
)
from albertkit.tasks.distillation import DistillationLosses
from albertkit.tasks.early_exit import ExitLosses
from albertkit.tasks.models import (
    TaskModel,
    check_order,
    load_encoder,
    load_task_model,
    run_model,
    save_task_model,
)
from albertkit.tasks.options import FinetuneCommandOptions, FinetuneOptions
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.task import Prediction, PredictionRecords, Task
from albertkit.tasks.teacher import (
    TaskTeacher,
    open_teacher,
    with_teacher_logits,
    with_unlabelled,
)
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.checkpoints import TrainingState
from albertkit.training.loop import LoopSettings, LossPart, TrainingRecipe, zero_losses
from albertkit.training.processes import World, describe_precision
from albertkit.training.results import not_better_than_largest_class_note, score_table
from albertkit.training.run import Best, Run, RunResult, open_run

# The linear layers of the shared block, all of them: query and value alone did not reach full
# fine-tuning's quality at any rank (Dettmers et al. 2023, QLoRA, section 4). Heads have layers
# named `dense` too, so the path is given.
_ADAPTED = r".*\.albert_layer_groups\..*\.(query|key|value|dense|ffn|ffn_output)"


def freeze_encoder(model: PretrainedAlbert) -> None:
    """Let only the head be trained, with the pooler under it where there is one.

    Nothing below needs a gradient any more, so torch records nothing there and keeps no
    activations: of a training step with base only the forward pass remains. The pooler stays free
    because pretraining fits it to sentence order alone; of base's 11,685,122 parameters 592,130 are
    then trained for two classes, without a pooler 1,538.
    """
    model.encoder_model.embeddings.requires_grad_(False)
    model.encoder_model.encoder.requires_grad_(False)


def merge_lora(model: PretrainedAlbert) -> PretrainedAlbert:
    """Return a plain copy in evaluation mode, the adapters added to the weights: to be saved, and faster to predict with."""
    from peft.tuners.lora import LoraLayer

    merged = copy.deepcopy(model)
    for parent in list(merged.modules()):
        for name, layer in parent._modules.items():
            if isinstance(layer, LoraLayer):
                if not layer.merged:  # one that groups share is met in each
                    layer.merge()
                setattr(parent, name, layer.get_base_layer())
    vars(merged).pop("peft_config", None)
    return merged.requires_grad_(True).eval()


def add_lora(model: PretrainedAlbert, rank: int = 8) -> PretrainedAlbert:
    """Put adapters into every linear layer of the encoder's block and freeze all else but the head and the pooler.

    The model is changed and returned. The training loop trains and saves only what requires a
    gradient: to resume, load the original weights and add adapters of the same rank first.

    A layer W becomes W + BA with A [r, in] and B [out, r]; B starts at 0, so the model starts as it
    was. ALBERT's layers are one, applied 12 times, and so are its adapters: one set of r·(8H + 2(H
    + I)) parameters, for base 110,592 at rank 8, where BERT-base would have 12 sets, 1,327,104. A
    correction of one layer alone cannot be learned. As in the paper's experiments on GLUE the
    update is not scaled (alpha = rank); its learning rates are about ten times as large as those of
    full fine-tuning.

    Source: Hu et al. 2021, LoRA, section 4.1 and table 9; the library peft.
    """
    if not 1 <= rank <= model.config.hidden_size:
        raise ConfigError(
            "bad-value",
            f"LoRA's rank is {rank}, the model's hidden size {model.config.hidden_size}",
            "choose 1 up to the hidden size, usually 4 to 64",
        )
    with requires_package("peft", "lora", "LoRA"):
        from peft import LoraConfig, inject_adapter_in_model
    # peft exchanges a module in one place: those that stand in several (`parameter_sharing` ffn)
    # are put into the others, too.
    slots: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                slots.setdefault(child, []).append((parent, name))
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=_ADAPTED), model)
    for (parent, name), *other_slots in slots.values():
        for other_parent, other_name in other_slots:
            setattr(other_parent, other_name, getattr(parent, name))
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    model.requires_grad_(True)
    freeze_encoder(model)
    for parameter in trained:
        parameter.requires_grad_(True)
    return model


# Kind of task: what the hub calls it.
PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multilabel": "text-classification",
    "tagging": "token-classification",
    "choice": "multiple-choice",
    "answers": "question-answering",
}


def task_card(
    name: str,
    data: TaskData,
    start: str,
    parameters: int,
    scores: Mapping[str, float],
    details: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Card:
    """Return the card of a model fine-tuned from `start`; `name` is its heading, and the folder in the example."""
    model_class = data.task.model_class.__name__
    transformers = ", and so does the class of that name in transformers"
    if model_class == "AlbertForBeamQuestionAnswering":
        transformers = "; transformers has no class for this head"
    unlabelled = f" and {len(data.unlabelled):,} without labels" if data.unlabelled else ""
    loading = (
        "`task.json` says how inputs are read and what the outputs mean. In Python, albertkit's "
        f"`{model_class}.from_pretrained` loads the model{transformers}."
    )
    sections = [
        Paragraph(
            f"An ALBERT model, fine-tuned with albertkit on the task `{data.task.name}` from `{escape_markdown(start)}`: "
            f"{len(data.train):,} training examples{unlabelled}, {parameters:,} parameters.",
            form="markdown",
        ),
        Paragraph(
            f"On {len(data.dev):,} dev examples, which also chose the best of the run's models. Intervals are 95%, by bootstrap "
            "over the examples.",
            "Results",
        ),
        score_table(
            scores, details.get("intervals", {}), positive_class=details.get("positive_class", "")
        ),
        code_block(
            f"albertkit predict {shlex.quote(name)} INPUT --out PREDICTIONS.jsonl", "", "Using it"
        ),
        Paragraph(loading, form="markdown"),
        *settings_sections(settings, package_versions()),
    ]
    return Card(name, hub_metadata(PIPELINES[data.task.kind]), sections)


EXAMPLES, ERRORS = "examples.jsonl", "errors.jsonl"  # of dev, for readers of a run
_MOST, _MOST_ERRORS = 20, 50


@dataclass(frozen=True)
class EvaluatedData:
    """Examples that a model was scored on."""

    file: str  # name of the file, or what the examples are a part of
    examples: int  # how many
    # Of the training, the update after which the model was saved; None outside of one
    step: int | None = None


_EVERY_EXAMPLE = "pairs"  # of a regression: 40 kB for 1,500 examples, too much for a terminal


@dataclass(frozen=True, kw_only=True)
class FinetuneResult(RunResult):
    """Result of a fine-tuning.

    Attributes:
        task: Name of the task.
        details: Per-class table, confusion matrix, intervals.
        data: What the scores are of.
    """

    task: str
    details: dict[str, Any] = field(default_factory=dict)
    data: EvaluatedData | None = None

    @property
    def title(self) -> str:
        """Title of the pictures of the results."""
        return f"{self.task}, dev"

    def extras(self) -> dict[str, Any]:
        """Return the values that only a fine-tuning has, by name."""
        details = {name: value for name, value in self.details.items() if name != _EVERY_EXAMPLE}
        extras: dict[str, Any] = {"task": self.task, **details, "collapsed": self.collapsed}
        if self.data:
            extras |= {"data": self.data.file, "examples": self.data.examples}
            extras |= {} if self.data.step is None else {"best_step": self.data.step}
        return extras

    def saved(self) -> dict[str, Any]:
        """Return the content of `results.json`: also what there is of every example, for the picture of a regression."""
        pairs = self.details.get(_EVERY_EXAMPLE)
        return self.to_dict() | ({} if pairs is None else {_EVERY_EXAMPLE: to_json_value(pairs)})

    def scores_and_notes(self) -> dict[str, Any]:
        """Return the scores, intervals, classes and notes that `training.results` shows."""
        notes = [*self.details.get("notes", ())]
        if self.collapsed and not self.remedy:  # an evaluation
            notes.append(f"{self.collapsed}: the model does not distinguish these examples")
        elif (
            not self.collapsed
            and self.scores
            and (note := not_better_than_largest_class_note({**self.scores, **self.details}))
        ):
            notes.append(note)
        heading = ""
        if self.data:
            heading = f"{self.task}, {pluralize(self.data.examples, 'example')} of {self.data.file}"
            heading += "" if self.data.step is None else f", the model of step {self.data.step:,}"
        return {**self.scores, **self.details, "notes": [*notes, *self.notes()], "heading": heading}


@takes(FinetuneOptions)
def finetune(options: FinetuneOptions) -> FinetuneResult:
    """Fine-tune a model on a task and score it on the task's dev examples; see `FinetuneOptions` and `FinetuneSettings`.

    Under `torchrun` every process takes its share of each update and gradients are summed.

    Raises:
        CheckpointError: exists, missing-file, changed, weights-mismatch and what else loading
            raises.
        ConfigError: unknown-name, bad-value, no-device. DataError: what reading raises.
        MachineError: not-finite, if no retry is left.
    """
    task = options.task
    settings = options.settings
    bad_rows = BadRows(options.on_error)
    settings.check()
    check_order(task, options.model, options.data)
    name = task if isinstance(task, str) else task.name
    with open_run(options.out, settings, f"fine-tuning {name}", options.resume) as run:
        task_to_read = task if isinstance(task, Task) else find_task(task, options.columns)
        calibrate = settings.threshold_from == "train"
        data = read_data_from_anywhere(
            task_to_read,
            options.data,
            options.dev,
            settings,
            calibrate,
            bad_rows,
            options.unlabelled,
        )
        teacher = None
        if settings.teacher is not None:
            fitted = apply_task_settings(data.task, settings)
            teacher, data = open_teacher(settings, fitted, data, options.model, run.world)
            # Once for all seeds and retries
            teacher = teacher.with_own_logits_of(
                [*data.train, *data.unlabelled], run.folder / "teacher", run.world
            )
        return run.of_seeds(lambda seed_run: _finetune_once(seed_run, data, options.model, teacher))


def run_finetune(options: FinetuneCommandOptions) -> DataCheckReport | FinetuneResult:
    """Run `albertkit finetune`: train, or look at the data."""
    if options.check:
        return check_task(
            options.task,
            options.model,
            options.data,
            options.settings,
            columns=options.columns,
            dev=options.dev,
            unlabelled=options.unlabelled,
        )
    if options.out is None:
        raise ConfigError(
            "bad-value",
            "--out is not given",
            "name the folder of the run: --out RUN",
        )
    return finetune(options)


def _finetune_once(
    run: Run[FinetuneSettings], data: TaskData, start: str | Path, teacher: TaskTeacher | None
) -> FinetuneResult:
    """Fine-tune with one seed."""
    config = AlbertConfig.from_pretrained(local_folder(start))
    settings, reasons = run.settings.resolve(
        data.task.name,
        config,
        len(data.train) + len(data.unlabelled),
        len(data.unlabelled),
    )
    run = run.resolved(settings)
    settings = run.settings
    world = run.world
    task = apply_task_settings(data.task, settings)
    torch.manual_seed(settings.seed)  # of a fresh head
    dropout = {
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
    }
    model, tokenizer, notes = load_encoder(start, task, **dropout)
    features = task.features(data.train, tokenizer, labelled=True)
    if data.unlabelled:
        features = with_unlabelled(
            features,
            task.features(data.unlabelled, tokenizer, labelled=False),
        )
    made_from = {"task": task.name, "data": fingerprint(features)}
    if teacher:
        made_from["teacher"] = teacher.digest
        notes += teacher.notes
        if teacher.logits is not None:
            features = with_teacher_logits(
                features,
                task,
                [*data.train, *data.unlabelled],
                teacher.logits,
            )
    run.check_made_from(made_from)
    run.place_model(model)
    evaluator = TaskEvaluator(task, data, tokenizer, settings.batch_tokens, world)
    for split, split_features in (("train", features), ("dev", evaluator.features)):
        notes += unknown_token_lines(split, unknown_token_share(split_features, tokenizer))
    class_weights = balanced_class_weights(task, data.train, settings, world)
    if settings.lora:
        add_lora(model, settings.lora)
    elif settings.freeze:
        freeze_encoder(model)
    teaching = _make_extra_losses(model, task, settings, class_weights, teacher)

    def save(folder: Path) -> None:
        save_task_model(
            folder,
            merge_lora(model) if settings.lora else model,
            tokenizer,
            evaluator.task,
        )
        if isinstance(teaching, ExitLosses):
            teaching.exits.save(folder)

    def load(folder: Path) -> TaskModel:
        best = load_task_model(folder)
        run.place_model(best.model)
        evaluator.task = best.task
        return best

    def score(best: TaskModel, state: TrainingState) -> FinetuneResult:
        predictions = evaluator.predictions(best.model)
        scores = best.task.score(data.dev, predictions)
        return dataclasses.replace(
            unfinished,
            value=scores[task.metric],
            scores=scores,
            details=best.task.details(data.dev, predictions),
            collapsed=best.task.collapsed(data.dev, predictions),
            data=EvaluatedData(data.dev_file, len(data.dev), state.best_step),
        )

    def write(best: TaskModel, result: FinetuneResult) -> None:
        best.task.write(run.folder / "dev", evaluator.last, split="dev")
        save_examples(run.folder / "dev", best.task, data.dev, evaluator.last)
        size = best.model.num_parameters()
        settings_on_card = settings.settings_for_card()
        card = task_card(
            run.name,
            data,
            str(start),
            size,
            result.scores,
            result.details,
            settings_on_card,
        )
        card.write(run.folder / "best")

    scored_class = getattr(task, "scored_class", "")
    of_class = (
        [f"f1, precision, recall: those of `{scored_class}`, see --positive-class"]
        if scored_class
        else []
    )
    parameters = f"parameters: {model.num_parameters():,}"
    if settings.lora or settings.freeze:
        trained = sum(
            parameter.numel() for parameter in model.parameters() if parameter.requires_grad
        )
        parameters = f"parameters: {trained:,} are trained, of {sum(p.numel() for p in model.parameters()):,}"
    recipe = TrainingRecipe(
        model=teaching or model,
        objective=FinetuningObjective(model, task, class_weights, teaching),
        # An update counts examples with all their windows: where windows were units of their own,
        # two epochs ended after a quarter of one.
        stream=ExampleStream(
            features,
            task.grouped,
            batch_size=settings.batch_size or 1,
            batch_tokens=settings.batch_tokens,
            seed=settings.seed,
            rank=world.rank,
            world_size=world.size,
        ),
        loop=LoopSettings.over_epochs(settings),
        evaluate=lambda: evaluator.calibrate_task_and_score_dev(model),
        select=task.metric,
        save=save,
        provenance={"model": str(start), **made_from},
        notes=[
            *data.notes,
            *notes,
            *reasons,
            *of_class,
            parameters,
            describe_precision(model, world.device),
        ],
    )
    remedy = settings.remedy(model.config.hidden_size)
    unfinished = FinetuneResult(task=task.name, metric=task.metric, remedy=remedy)
    return run.fit(recipe, Best(unfinished, load, score, write))


class TaskEvaluator:
    """Predict and score the dev examples (`features`) with a model under training; `task` has what was calibrated so far."""

    def __init__(
        self,
        task: Task,
        data: TaskData,
        tokenizer: AlbertTokenizer,
        batch_tokens: int,
        world: World,
    ) -> None:
        self.task = task
        self.last: list[Prediction] = []
        self._dev = data.dev
        self._calibration = data.calibration
        # Refuses a label that train lacks, at once
        self.features = task.features(data.dev, tokenizer, labelled=True)
        self._calibration_features = (
            task.features(data.calibration, tokenizer, labelled=False) if data.calibration else None
        )
        self._batch_tokens = batch_tokens
        self._world = world

    def predictions(self, model: PretrainedAlbert) -> list[Prediction]:
        """Return predictions for the dev examples."""
        self.last = self._predict(model, self._dev, self.features)
        return self.last

    def calibrate_task_and_score_dev(self, model: PretrainedAlbert) -> dict[str, float]:
        """Calibrate decisions on examples kept from training, predict dev, score."""
        if self._calibration_features is not None:
            predictions = self._predict(model, self._calibration, self._calibration_features)
            self.task = self.task.calibrated(self._calibration, predictions, "train")
        return self.task.score(self._dev, self.predictions(model))

    def _predict(
        self,
        model: PretrainedAlbert,
        examples: Sequence[Any],
        features: Features,
    ) -> list[Prediction]:
        outputs = run_model(model, self.task, features, self._batch_tokens, self._world)
        return self.task.predictions(examples, features, outputs)


@dataclass(frozen=True, eq=False)
class FinetuningObjective:
    """Compute the losses of a task, or in their place those of a student or of early exits (`teaching`)."""

    model: PretrainedAlbert
    task: Task
    class_weights: torch.Tensor | None = None
    teaching: DistillationLosses | ExitLosses | None = None

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Count the targets of each loss."""
        return (self.teaching or self.task).count_targets(batch)

    def losses(self, batch: LabelledBatch) -> dict[str, LossPart]:
        """Return the losses of a batch as sums."""
        if not batch.num_tokens:
            return zero_losses(self.count_targets(batch), batch.packed.input_ids.device)
        if self.teaching:
            return self.teaching.losses(batch)
        counts = self.task.count_targets(batch)
        losses = self.task.losses(self.model, batch, self.class_weights)
        return {
            name: LossPart(loss.loss_sum, counts[name], loss.correct)
            for name, loss in losses.items()
        }

    def flops(self, batch: LabelledBatch) -> float:
        """Count the floating-point operations of a training step on this batch's real tokens, heads and teacher left out."""
        mean_length = batch.packed.mean_length
        return batch.num_tokens * self.model.config.train_flops_per_token(mean_length, 0.0)


def _make_extra_losses(
    model: PretrainedAlbert,
    task: Task,
    settings: FinetuneSettings,
    class_weights: torch.Tensor | None,
    teacher: TaskTeacher | None,
) -> DistillationLosses | ExitLosses | None:
    """Return the losses of early exits or of a student, if the settings ask for them."""
    if settings.exits:
        return ExitLosses(model, task, class_weights)
    if teacher is None:
        return None
    if teacher.model:
        teacher.model.config.check_length(task.length, f"the teacher `{teacher.source}`")
    assert settings.teacher_weight is not None
    return DistillationLosses(
        model,
        teacher.model,
        task,
        weight=settings.teacher_weight,
        hidden_weight=settings.teacher_hidden,
        class_weights=class_weights,
    )


def balanced_class_weights(
    task: Task,
    train: Sequence[Any],
    settings: FinetuneSettings,
    world: World,
) -> torch.Tensor | None:
    """Return weights in inverse proportion to the frequency of a class, with mean 1 over the training targets."""
    if settings.class_weights == "none":
        return None
    counts = task.label_counts(train)
    if counts is None:
        raise ConfigError(
            "bad-value",
            f"`{task.name}` has no classes to weigh",
            "leave --class-weights out",
        )
    class_counts = np.array(counts, np.float64)
    # A class without targets weighs nothing.
    weights = class_counts.sum() / (np.count_nonzero(class_counts) * np.maximum(class_counts, 1))
    return torch.tensor(weights, dtype=torch.float32, device=world.device)


def warn_of_trained_dev_examples(
    run: Path,
    file: DataFile,
    task: Task,
    examples: Sequence[Any],
) -> Iterator[str]:
    """Yield a line where a run held its dev examples out of these: then it was trained on the others."""
    try:
        results = read_typed(run / "results.json", dict[str, Any])
        # All seeds have the same dev examples.
        paths = [*run.glob(f"dev/{EXAMPLES}"), *run.glob(f"seed-*/dev/{EXAMPLES}")]
        lines = min(paths).read_text(encoding="utf-8").split("\n")
        records = [json.loads(line) for line in lines if line]
    except (AlbertKitError, OSError, ValueError):  # not in a run, or what that left is gone
        return
    # Of that name, and with the run's dev examples in it: hashes of the training examples are of
    # tokens with labels, and would need all texts to be tokenized and held out again.
    if results.get("data") != held_out_display_name(file):
        return
    descriptions = [task.describe_example(example) for example in examples]
    if all(
        {name: record.get(name) for name in ("texts", "gold")} in descriptions for record in records
    ):
        yield (
            f"{quoted_name(file)} is what the model was trained on, but for the examples that were held out: "
            "these scores say nothing about new texts"
        )


def save_examples(
    folder: Path,
    task: Task,
    examples: Sequence[Any],
    predictions: PredictionRecords,
) -> None:
    """Write the first dev examples and the worst predictions, one a line: prediction, `texts`, the label `gold`, and `error`."""
    errors = [
        task.error(example, prediction)
        for example, prediction in zip(examples, predictions, strict=True)
    ]
    worst = sorted((n for n, error in enumerate(errors) if error > 0), key=lambda n: -errors[n])
    for name, numbers in ((EXAMPLES, range(len(examples))[:_MOST]), (ERRORS, worst[:_MOST_ERRORS])):
        records = []
        for n in numbers:
            record = {
                **predictions[n],
                **task.describe_example(examples[n]),
                "error": round(errors[n], 6),
            }
            records.append(to_json_value(record))
        write_lines(folder / name, records)
