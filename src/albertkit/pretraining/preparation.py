"""Everything that a pretraining does before it writes: opens the data, makes the model, refuses what cannot work.

A dry run does the same, so that nothing fails later which it could have said.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from albertkit.config import AlbertConfig
from albertkit.conversion.classes import read_model_tokenizer
from albertkit.conversion.initial import special_ids
from albertkit.errors import CheckpointError, ConfigError, MachineError
from albertkit.files import read_typed, sha256_bytes, sha256_file
from albertkit.model import AlbertForPreTraining
from albertkit.model.files import NEW_ROWS_FROM, PROVENANCE, read_tensors
from albertkit.model_paths import find_weights, local_folder
from albertkit.pretraining.batches import EpochStream
from albertkit.pretraining.objective import (
    PretrainingObjective,
    Unigram,
    check_start_layers,
    make_trained_module,
)
from albertkit.pretraining.options import PretrainOptions
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import HeldOut, PretrainingData, open_pretraining_data
from albertkit.pretraining.teacher import (
    TaughtStudent,
    TeacherObjective,
    check_student,
    start_from_teacher,
    student_config,
)
from albertkit.pretraining.teacher_encoder import (
    TeacherEncoder,
    describe_teacher,
    open_teacher_encoder,
)
from albertkit.pretraining.text_start import start_from_text, text_start_obstacle, token_dimensions
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.checkpoints import check_model, list_checkpoints
from albertkit.training.loop import LoopSettings
from albertkit.training.processes import World, should_compile
from albertkit.training.run import Run, place_model
from albertkit.weights_file import list_shards

# In the folder of a run that continues a model: that model, with what was added to it
START = "start"

# Of the old rows' standard deviation. transformers' resize leaves new rows 5e-7 apart, so that
# training alone tells them apart.
_NOISE = 0.1
# What a checkpoint may lack: a base encoder has no heads, a masked-LM model no pooler.
_MAY_BE_FRESH = ("predictions", "sop_classifier", "albert.pooler.weight", "albert.pooler.bias")
# What configurations of fine-tuned models say of their task.
_TASK_KEYS = frozenset(
    [
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
    ]
)


@dataclass(frozen=True)
class InitialModel:
    """A model to train.

    Attributes:
        model: On the CPU.
        continued: What `provenance.json` says of the model that is continued; empty for initialised
            weights.
        notes: Lines for the user.
    """

    model: AlbertForPreTraining
    continued: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def initialise_from_seed(
    settings: PretrainSettings,
    vocab_size: int,
    ids: Mapping[str, int] | None = None,
) -> InitialModel:
    """Initialise a model from the seed alone, the same in every process."""
    config = settings.model_config(vocab_size, ids)
    torch.manual_seed(settings.seed)
    return InitialModel(AlbertForPreTraining(config))


def choose_initial_model(
    copy: Path | None,
    tokenizer: AlbertTokenizer,
    settings: PretrainSettings,
    start: str | Path | None,
    teacher: TeacherEncoder | None,
) -> InitialModel:
    """Return the model that a run begins with; the loop puts what is trained of a resumed run back to its checkpoint.

    A resumed run has its own `copy` of the model that it continues, and needs no `start`.
    """
    if copy is not None:
        continued = read_typed(copy / PROVENANCE, dict[str, Any])["continued"]
        return InitialModel(AlbertForPreTraining.from_pretrained(copy, strict=True), continued)
    if start is not None:
        return initialise_from_checkpoint(start, tokenizer, settings)
    if teacher is not None and settings.size is None and settings.config is None:
        torch.manual_seed(settings.seed)
        config = student_config(teacher.config, settings.length).replace(
            vocab_size=tokenizer.vocab_size, **special_ids(tokenizer)
        )
        return InitialModel(AlbertForPreTraining(config))
    return initialise_from_seed(settings, tokenizer.vocab_size, special_ids(tokenizer))


def initialise_from_checkpoint(
    source: str | Path, tokenizer: AlbertTokenizer, settings: PretrainSettings
) -> InitialModel:
    """Return a checkpoint of any class to train further: heads that it lacks are initialised, rows for new tokens are added.

    The tokenizer is that of the data; its first tokens must be those of the model, at the same ids.
    A new row is the mean of the old ones and noise, since equal rows would differ by training only;
    its bias in the prediction is the least of the old ones. `albertkit tokenizer extend --model`
    makes better rows, each of the tokens that the old vocabulary writes it with.
    """
    path = local_folder(source)
    config = AlbertConfig.from_pretrained(path)
    config.check_length(settings.length, f"`{source}`")
    model_tokenizer = read_model_tokenizer(path, config, source)
    notes = _check_vocabulary(source, model_tokenizer, tokenizer)
    foreign = {key: value for key, value in config.foreign.items() if key not in _TASK_KEYS}
    torch.manual_seed(settings.seed)
    model, matched = AlbertForPreTraining.from_tensors(
        config.replace(foreign=foreign), read_tensors(path), _MAY_BE_FRESH, str(path)
    )
    fresh = sorted({_part_of_parameter(name) for name in matched.fresh})
    if fresh:
        notes.append(f"not in `{source}`, initialised: {', '.join(fresh)}")
    if matched.left_out:
        notes.append(
            f"in `{source}`, of no use here: {', '.join(sorted({_part_of_parameter(name) for name in matched.left_out}))}"
        )
    num_rows = model_tokenizer.vocab_size
    if tokenizer.vocab_size > num_rows:
        # Spare ones that the model had are replaced, too
        new_rows = slice(num_rows, tokenizer.vocab_size)
        with torch.no_grad():
            if tokenizer.vocab_size > model.config.vocab_size:
                model.resize_token_embeddings(tokenizer.vocab_size)
            words = model.get_input_embeddings().weight
            old = words[:num_rows]
            words[new_rows] = old.mean(0) + _NOISE * old.std(0) * torch.randn_like(words[new_rows])
            model.predictions.bias[new_rows] = model.predictions.bias[:num_rows].min()
    facts: dict[str, Any] = {}
    if weights := find_weights(path):
        digests = [sha256_file(file) for file in list_shards(weights)]
        facts["weights_sha256"] = (
            digests[0] if len(digests) == 1 else sha256_bytes("".join(digests).encode())
        )
    if (path / PROVENANCE).exists():
        facts["provenance"] = read_typed(path / PROVENANCE, dict[str, Any])
    grown_before = facts.get("provenance", {}).get(NEW_ROWS_FROM, model_tokenizer.vocab_size)
    continued = {
        "model": str(source),
        "class": next(iter(config.foreign.get("architectures") or []), None),
        "tokens": model_tokenizer.vocab_size,
        NEW_ROWS_FROM: model_tokenizer.vocab_size
        if tokenizer.vocab_size > model_tokenizer.vocab_size
        else grown_before,
        "initialised": fresh,
        **facts,
    }
    return InitialModel(model, continued, notes)


def held_out_leakage_notes(
    continued: dict[str, Any], store_fingerprint: str, settings: PretrainSettings
) -> list[str]:
    """Return a note if the continued model was trained on documents that are held out now."""
    before = continued.get("provenance", {})
    same_split = (before.get("held_out"), before.get("seed")) == (settings.held_out, settings.seed)
    if before.get("store") != store_fingerprint or same_split:
        return []
    return [
        f"`{continued['model']}` was trained on documents of this very store that are held out now, so evaluations flatter: "
        f"use --held-out {before['held_out']} --seed {before['seed']}"
    ]


def _check_vocabulary(
    source: str | Path,
    model_tokenizer: AlbertTokenizer,
    data_tokenizer: AlbertTokenizer,
) -> list[str]:
    """Refuse data in which an id of the model means something else; return notes about what else differs."""
    if model_tokenizer.fingerprint == data_tokenizer.fingerprint:
        return []
    remedy = f"build the store with a tokenizer made by `albertkit tokenizer extend {source}`, or with that in `{source}`"
    if data_tokenizer.vocab_size < model_tokenizer.vocab_size:
        raise CheckpointError(
            "wrong-tokenizer",
            f"the data's tokenizer has {data_tokenizer.vocab_size:,} tokens, `{source}` {model_tokenizer.vocab_size:,}",
            remedy,
        )
    for number in range(model_tokenizer.vocab_size):
        if model_tokenizer.id_to_piece(number) != data_tokenizer.id_to_piece(number):
            raise CheckpointError(
                "wrong-tokenizer",
                f"id {number} is `{model_tokenizer.id_to_piece(number)}` in `{source}` and "
                f"`{data_tokenizer.id_to_piece(number)}` in the data's tokenizer",
                remedy,
            )
    notes = []
    if model_tokenizer.text_rules != data_tokenizer.text_rules:
        notes.append(
            f"text rules: {model_tokenizer.text_rules} in `{source}`, {data_tokenizer.text_rules} in the data"
        )
    num_old = model_tokenizer.vocab_size
    if data_tokenizer.vocab_size > num_old:
        notes.append(
            f"new tokens: {data_tokenizer.vocab_size - num_old:,}, each begins as the mean of the {num_old:,} old rows "
            "and noise; `albertkit tokenizer extend --model` makes better ones"
        )
    return notes


def _part_of_parameter(parameter_name: str) -> str:
    """Return the head or part that a parameter belongs to."""
    return parameter_name.removeprefix("albert.").split(".")[0]


# Of fewer predictions the mean loss is uncertain by more than 2.5 / sqrt(1,000) = 0.08 nats.
FEW_PREDICTIONS = 1_000
# AdamW moves each weight by about the rate, whatever the gradient: at 2e-3 the pooler follows the
# noise of 32 pairs. With 0.1 of the rate sentence order is right for 53.4 % of the pairs after 600
# updates, without for 48.7 % after 363.
_PAIR_HEAD = ("albert.pooler", "sop_classifier")  # beginnings of the names of its parameters
# Nats: standard deviation of the loss of one masked token, about, in early and late models
_SPREAD = 2.5


@dataclass
class PreparedRun:
    """A run that could begin.

    Attributes:
        settings: Resolved.
        continued: What `provenance.json` says of the model that it continues; empty if it continues none.
        world: The processes.
        source: The data.
        stream: Training batches.
        held_out: Batches to evaluate on.
        unigram: Token frequencies of the training text.
        model: The model that it begins with, on its device.
        trained: The part of it that is trained, or what it is part of beside a teacher.
        objective: What is learned.
        made_from: Fingerprints of the data and, with a teacher, of its weights.
        notes: Lines for the user: what was derived, and what to know.
        seconds: Time that the start from text took.
    """

    settings: PretrainSettings
    continued: dict[str, Any]
    world: World
    source: PretrainingData
    stream: EpochStream
    held_out: HeldOut
    unigram: Unigram
    model: AlbertForPreTraining
    trained: nn.Module
    objective: PretrainingObjective
    made_from: dict[str, str]
    notes: list[str]
    seconds: float

    @property
    def loop(self) -> LoopSettings:
        """Return the settings of the loop."""
        settings = self.settings
        prefix = "" if settings.teacher is None else "student."
        factors = (
            {}
            if settings.pair_lr_factor == 1
            else {prefix + name: settings.pair_lr_factor for name in _PAIR_HEAD}
        )
        return LoopSettings.of(
            settings,
            warmup_share=settings.warmup_time_share,
            processes=settings.processes,
            lr_factors=factors,
        )

    @property
    def parameters(self) -> int:
        """Number of parameters, heads included."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def training_bytes(self) -> int:
        """Bytes of weights, gradients, the two moments and, if asked for, the moving average."""
        parameters = self.parameters
        if isinstance(self.trained, TaughtStudent):
            parameters += sum(p.numel() for p in self.trained.maps.parameters())
        return 4 * parameters * (5 if self.settings.ema_decay else 4)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the same and of a teacher's weights."""
        teacher_bytes = (
            4 * self.trained.teacher.num_parameters
            if isinstance(self.trained, TaughtStudent)
            else 0
        )
        return self.training_bytes + teacher_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes that the run's checkpoints and models take at most: the old ones go once a new one is written."""
        model = 4 * self.parameters
        checkpoint = self.training_bytes  # the model's file in place of the gradients
        return (self.settings.keep + 1) * checkpoint + (3 + bool(self.continued)) * model


def prepare_run(
    options: PretrainOptions,
    world: World,
    run: Run[PretrainSettings] | None,
) -> PreparedRun:
    """Do all that comes before a run writes its first file; `run` is None where there will be none, as in an estimate."""
    settings = options.settings
    start = options.start
    resumed = run.folder if run and run.resume else None
    source = open_pretraining_data(
        options.store,
        settings.resolve_from_run(resumed) if resumed else settings,
        options.tokenizer,
    )
    copy = resumed / START if resumed and (resumed / START).exists() else None
    settings, notes = source.settings.resolve(world.size, start is not None or copy is not None)
    teacher = None
    if settings.teacher is not None:
        teacher = open_teacher_encoder(settings.teacher, source.tokenizer, settings, world.device)
    made_from = {"store": source.fingerprint} | (
        {} if teacher is None else {"teacher": teacher.digest}
    )
    if run is not None:
        _check_new_or_same_run(run.resolved(settings), made_from, start)

    stream = source.training(world)
    notes.append(source.describe(stream))  # raises at once if no example can be made
    began = choose_initial_model(copy, source.tokenizer, settings, start, teacher)
    model = prepare_model(began.model, settings, world)
    check_start_layers(settings, model.config)
    if teacher is not None:
        check_student(model.config, teacher, settings.length)
    trained = make_trained_module(model, settings, began.continued.get(NEW_ROWS_FROM, 0))
    if began.continued:
        notes.append(
            f"continues `{began.continued['model']}`, which has {began.continued['tokens']:,} tokens"
        )
    notes += [*began.notes, *held_out_leakage_notes(began.continued, source.fingerprint, settings)]
    unigram = source.unigram(world)
    starts = not (resumed and list_checkpoints(resumed))
    seconds = 0.0
    if starts and settings.initial_weights == "text":
        started = time.perf_counter()
        notes.append(_start_from_text_and_describe(model, source, unigram, world))
        seconds = time.perf_counter() - started
    unknown = unigram.counts[source.tokenizer.unk_id] / max(unigram.counts.sum(), 1)
    notes.append(f"unknown tokens: {unknown:.2%} of the training text")
    held_out = source.evaluation(world)
    notes.append(describe_held_out(held_out, settings.held_out))
    objective = PretrainingObjective(model)
    if teacher is not None:
        teacher.refuse_unreadable_tokens(unigram.counts)
        notes += describe_teacher(teacher)
        sample = source.evaluation(World(0, 1, world.device))  # whatever the number of processes
        if starts and settings.initial_weights == "teacher":
            first_batch = next(iter(sample)).to(world.device)
            notes += start_from_teacher(
                model,
                teacher,
                torch.from_numpy(unigram.counts),
                first_batch,
            )
        trained = taught = TaughtStudent(model, teacher, sample, settings.teacher_relations)
        if starts:
            notes.append(
                f"maps onto the teacher's states, fitted: they explain {taught.explained[0]:.1%} of the first states, "
                f"{taught.explained[-1]:.1%} of the last"
            )
        objective = TeacherObjective(taught)
    prepared = PreparedRun(
        settings,
        began.continued,
        world,
        source,
        stream,
        held_out,
        unigram,
        model,
        trained,
        objective,
        made_from,
        notes,
        seconds,
    )
    if run and not run.resume:
        _check_disk_space(run.folder, prepared)
    return prepared


def _start_from_text_and_describe(
    model: AlbertForPreTraining,
    source: PretrainingData,
    unigram: Unigram,
    world: World,
) -> str:
    """Let a new model start from its text, counted once in a launch; return a line about it."""
    if reason := text_start_obstacle(model.config):
        raise ConfigError(
            "bad-value",
            f"initial_weights text: {reason}",
            "leave --initial-weights out",
        )
    size = token_dimensions(model.config)
    vectors = world.first(source.cooccurrence(size) if world.is_main else None)
    assert vectors is not None
    num_known = int(vectors.any(1).sum())
    if not num_known:
        return (
            "initial weights: random, no two tokens of the text co-occur more often than by chance"
        )
    start_from_text(model, vectors, unigram.log_probabilities, source.tokenizer.cls_id)
    return f"initial weights: from text, in which {num_known:,} of {len(vectors):,} tokens co-occur with others"


def prepare_model(
    model: AlbertForPreTraining,
    settings: PretrainSettings,
    world: World,
) -> AlbertForPreTraining:
    """Place a model on its device and set whether torch.compile fuses its layers."""
    place_model(model, settings, world)
    model.compiled = should_compile(settings.compile, world.device)
    return model


def describe_held_out(batches: HeldOut, share: float) -> str:
    """Return a line about what a run is evaluated on, and a warning if it is little; `share` of the documents is held out."""
    examples, predictions = batches.size
    if not predictions:
        return f"held out: {examples:,} examples"
    line = f"held out: {examples:,} examples, {predictions:,} predictions"
    if predictions >= FEW_PREDICTIONS:
        return line
    enough = share * FEW_PREDICTIONS / predictions
    remedy = f"hold out more with --held-out {enough:.2g}" if enough <= 0.3 else "use more text"
    return f"{line}: few, their mean loss is uncertain by about {_SPREAD / predictions**0.5:.2f} nats; {remedy}"


def _check_new_or_same_run(
    run: Run[PretrainSettings],
    made_from: dict[str, str],
    start: str | Path | None,
) -> None:
    """Make sure that the folder is either new or the run to resume, which was made from this data and this model."""
    if not run.check_made_from(made_from):
        return
    copy = run.folder / START
    check_model(copy)
    before = (
        read_typed(copy / PROVENANCE, dict[str, Any])["continued"]["model"]
        if copy.exists()
        else None
    )
    if start is not None and str(start) != before:
        begun = f"`{before}`" if before else "initialised weights"
        raise CheckpointError(
            "changed",
            f"`{run.folder}` was started with {begun}, now `{start}`",
            "leave --continue out to resume it, or start a new run with another --out",
        )


def _check_disk_space(run: Path, prepared: PreparedRun) -> None:
    """Make sure that the checkpoints of a new run fit on its disk."""
    existing_folder = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing_folder).free
    if prepared.world.is_main and free < prepared.disk_bytes:
        raise MachineError(
            "disk-full",
            f"the run's checkpoints need {prepared.disk_bytes / 1e6:,.0f} MB, `{existing_folder}` has {free / 1e6:,.0f} MB left",
            "free some space, choose another --out, or keep fewer checkpoints with --keep 1",
        )
