"""Everything that a pretraining does before it writes: opens the data, makes the model, refuses what cannot work.

A dry run does the same, so that nothing fails later which it could have said.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from albertkit.errors import CheckpointError, ConfigError, MachineError
from albertkit.files import load
from albertkit.model import AlbertForPreTraining
from albertkit.model.folder import NEW_ROWS_FROM, PROVENANCE
from albertkit.pretraining.evaluation import Unigram
from albertkit.pretraining.objective import check_start_layers, trained_part
from albertkit.pretraining.options import PretrainOptions
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import HeldOut, Source, open_source
from albertkit.pretraining.start import START, Start, begin_run, seen_before
from albertkit.pretraining.stream import EpochStream
from albertkit.pretraining.text_start import fits, start_from_text, token_dimensions
from albertkit.training.distributed import World
from albertkit.training.hardware import choose_compiled
from albertkit.training.loop import LoopSettings
from albertkit.training.run import Run, place
from albertkit.training.state import check_model, list_checkpoints

FEW_PREDICTIONS = 1_000
_PAIR_HEAD = ("albert.pooler", "sop_classifier")  # beginnings of the names of its parameters
_SPREAD = 2.5  # nats: standard deviation of the loss of one masked token, about, in early and late models


@dataclass
class Prepared:
    """A run that could begin.

    Attributes:
        settings: Resolved.
        continued: Whether it continues another model.
        world: The processes.
        source: The data.
        stream: Training batches.
        held_out: Batches to evaluate on.
        unigram: Token frequencies of the training text.
        began: The model that it begins with, and where that comes from.
        model: The same model on its device.
        trained: The part of it that is trained.
        notes: Lines for the user: what was derived, and what to know.
        seconds: Time that the start from text took.
    """

    settings: PretrainSettings
    continued: bool
    world: World
    source: Source
    stream: EpochStream
    held_out: HeldOut
    unigram: Unigram
    began: Start
    model: AlbertForPreTraining
    trained: nn.Module
    notes: list[str]
    seconds: float

    @property
    def loop(self) -> LoopSettings:
        """Return the settings of the loop."""
        settings = self.settings
        factors = {} if settings.pair_lr_factor == 1 else dict.fromkeys(_PAIR_HEAD, settings.pair_lr_factor)
        return LoopSettings.of(
            settings, warmup_share=settings.warmup_share, processes=settings.processes, lr_factors=factors
        )

    @property
    def parameters(self) -> int:
        """Number of parameters, heads included."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def training_bytes(self) -> int:
        """Bytes of weights, gradients, the two moments and, if asked for, the moving average."""
        return 4 * self.parameters * (5 if self.settings.ema_decay else 4)

    @property
    def disk_bytes(self) -> int:
        """Bytes that the run's checkpoints and models take at most: the old ones go once a new one is written."""
        model = 4 * self.parameters
        checkpoint = self.training_bytes  # the model's file in place of the gradients
        return (self.settings.keep + 1) * checkpoint + (3 + self.continued) * model


def prepare_run(options: PretrainOptions, world: World, run: Run[PretrainSettings] | None) -> Prepared:
    """Do all that comes before a run writes its first file; `run` is None where there will be none, as in an estimate."""
    settings, start = options.settings, options.start
    folder = None if run is None else run.folder
    resume = run is not None and run.resume
    source = open_source(
        options.store, settings.as_started(folder) if folder and resume else settings, options.tokenizer
    )
    continued = start is not None or (resume and folder is not None and (folder / START).exists())
    settings, notes = source.settings.resolve(world.size, continued)
    if run is not None:
        _check_run(run.resolved(settings), source, start)

    stream = source.training(world)
    notes.append(source.describe(stream))  # raises at once if no example can be made
    began = begin_run(folder, source.tokenizer, settings, start, resume)
    model = prepare(began.model, settings, world)
    check_start_layers(settings, model.config)
    trained = trained_part(model, settings, began.continued.get(NEW_ROWS_FROM, 0))
    if continued:
        notes.append(f"continues `{began.continued['model']}`, which has {began.continued['tokens']:,} tokens")
    notes += [*began.notes, *seen_before(began.continued, source.fingerprint, settings)]
    unigram = source.unigram(world)
    seconds = 0.0
    if settings.initial_weights == "text" and not (resume and folder and list_checkpoints(folder)):
        started = time.perf_counter()
        notes.append(_start_from_text(model, source, unigram, world))
        seconds = time.perf_counter() - started
    unknown = unigram.counts[source.tokenizer.unk_id] / max(unigram.counts.sum(), 1)
    notes.append(f"unknown tokens: {unknown:.2%} of the training text")
    held_out = source.evaluation(world)
    notes.append(describe_held_out(held_out, settings.held_out))
    made = Prepared(
        settings, continued, world, source, stream, held_out, unigram, began, model, trained, notes, seconds
    )
    if folder is not None and not resume:
        _check_space(folder, made)
    return made


def _start_from_text(model: AlbertForPreTraining, source: Source, unigram: Unigram, world: World) -> str:
    """Let a new model start from its text, counted once in a launch; return a line about it."""
    if reason := fits(model.config):
        raise ConfigError("bad-value", f"initial_weights text: {reason}", "leave --initial-weights out")
    size = token_dimensions(model.config)
    vectors = world.first(source.cooccurrence(size) if world.is_main else None)
    assert vectors is not None
    known = int(vectors.any(1).sum())
    if not known:
        return "initial weights: random, no two tokens of the text co-occur more often than by chance"
    start_from_text(model, vectors, unigram.log_probabilities, source.tokenizer.cls_id)
    return f"initial weights: from text, in which {known:,} of {len(vectors):,} tokens co-occur with others"


def prepare(model: AlbertForPreTraining, settings: PretrainSettings, world: World) -> AlbertForPreTraining:
    """Put a model where it is trained, and decide how it computes."""
    place(model, settings, world)
    model.compiled = choose_compiled(settings.compile, world.device)
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


def _check_run(run: Run[PretrainSettings], source: Source, start: str | Path | None) -> None:
    """Make sure that the folder is either new or the run to resume, which was made from this data and this model."""
    if not run.check_made_from({"store": source.fingerprint}):
        return
    copy = run.folder / START
    check_model(copy)
    before = load(copy / PROVENANCE, dict[str, Any])["continued"]["model"] if copy.exists() else None
    if start is not None and str(start) != before:
        begun = f"`{before}`" if before else "initialised weights"
        fact = f"`{run.folder}` was started with {begun}, now `{start}`"
        hint = "leave --continue out to resume it, or start a new run with another --out"
        raise CheckpointError("changed", fact, hint)


def _check_space(run: Path, made: Prepared) -> None:
    """Make sure that the checkpoints of a new run fit on its disk."""
    there = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if made.world.is_main and free < made.disk_bytes:
        raise MachineError(
            "disk-full",
            f"the run's checkpoints need {made.disk_bytes / 1e6:,.0f} MB, `{there}` has {free / 1e6:,.0f} MB left",
            "free some space, choose another --out, or keep fewer checkpoints with --keep 1",
        )
