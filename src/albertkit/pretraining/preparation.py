"""Everything that a pretraining does before it writes: opens the data, makes the model, refuses what cannot work.

A dry run does the same, so that nothing fails later which it could have said.
"""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from albertkit.checkpoints.folder import NEW_ROWS_FROM, PROVENANCE
from albertkit.corpus import TokenStore
from albertkit.errors import CheckpointError, MachineError
from albertkit.files import read_json
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining.depth import check_depth
from albertkit.pretraining.epoch_stream import EpochStream
from albertkit.pretraining.evaluation import Unigram
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import HeldOut, Source, open_source
from albertkit.pretraining.start import START, Start, begin_run, seen_before
from albertkit.pretraining.trained import trained_part
from albertkit.training.distributed import World, join_world
from albertkit.training.hardware import choose_compiled, choose_precision
from albertkit.training.launch import resumes
from albertkit.training.loop import LoopSettings
from albertkit.training.resuming import check_made_from
from albertkit.training.state import check_model

FEW_PREDICTIONS = 1_000
_SPREAD = 2.5  # nats: standard deviation of the loss of one masked piece, about, in early and late models


@dataclass
class Prepared:
    """A run that could begin.

    Attributes:
        settings: Resolved.
        resume: Whether a run is continued from its checkpoint.
        continued: Whether it continues another model.
        world: The processes.
        source: The data.
        stream: Training batches.
        held_out: Batches to evaluate on.
        unigram: Piece frequencies of the training text.
        began: The model that it begins with, and where that comes from.
        model: The same model on its device.
        trained: The part of it that is trained.
        reasons: Lines for people: what was derived, and what they should know.
    """

    settings: PretrainSettings
    resume: bool
    continued: bool
    world: World
    source: Source
    stream: EpochStream
    held_out: HeldOut
    unigram: Unigram
    began: Start
    model: AlbertForPreTraining
    trained: nn.Module
    reasons: list[str]

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


def prepare_run(
    store: str | Path | TokenStore,
    run: Path | None,
    settings: PretrainSettings,
    *,
    start: str | Path | None = None,
    tokenizer: str | Path | None = None,
    resume: bool = False,
) -> Prepared:
    """Do all that comes before a run writes its first file.

    Args:
        store, settings, start, tokenizer, resume: As for `pretrain`.
        run: Its folder; None where there will be none, as in an estimate.

    Raises:
        AlbertKitError: What `pretrain` raises before it trains.
    """
    world = join_world(settings.device)
    resume = run is not None and resumes(run, resume)
    source = open_source(store, settings.as_started(run) if run is not None and resume else settings, tokenizer)
    continued = start is not None or (resume and run is not None and (run / START).exists())
    settings, reasons = source.settings.resolve(world.size, continued)
    if run is not None:
        _check_run(run, settings, source, start, resume)

    stream = source.training(world)
    reasons.append(source.describe(stream))  # says at once if no example can be made
    began = begin_run(run, source.tokenizer, settings, start, resume)
    model = prepare(began.model, settings, world)
    check_depth(settings, model.config)
    trained = trained_part(model, settings, began.continued.get(NEW_ROWS_FROM, 0))
    if continued:
        reasons.append(f"continues `{began.continued['model']}`, which has {began.continued['pieces']:,} pieces")
    reasons += [*began.notes, *seen_before(began.continued, source.fingerprint, settings)]
    unigram = source.unigram(world)
    if settings.output_bias == "frequencies":
        with torch.no_grad():  # of a run that is resumed the loop restores it
            model.predictions.bias.copy_(unigram.log_probabilities)
    unknown = unigram.counts[source.tokenizer.unk_id] / max(unigram.counts.sum(), 1)
    reasons.append(f"unknown pieces: {unknown:.2%} of the training text")
    held_out = source.evaluation(world)
    reasons.append(describe_held_out(held_out, settings.held_out))
    made = Prepared(
        settings, resume, continued, world, source, stream, held_out, unigram, began, model, trained, reasons
    )
    if run is not None and not resume:
        _check_space(run, made)
    return made


def prepare(model: AlbertForPreTraining, settings: PretrainSettings, world: World) -> AlbertForPreTraining:
    """Put a model where it is trained, and say how it computes."""
    model = model.to(world.device)
    model.compute_dtype = choose_precision(settings.precision, world.device)
    model.compiled = choose_compiled(settings.compile, world.device)
    model.gradient_checkpointing = settings.gradient_checkpointing
    return model


def loop_settings(settings: PretrainSettings) -> LoopSettings:
    """How the loop trains; every field of `LoopSettings` is one of ours."""
    own = {f.name for f in dataclasses.fields(LoopSettings)} & {f.name for f in dataclasses.fields(settings)}
    values = {name: getattr(settings, name) for name in own - {"warmup_share"}}
    return LoopSettings(**values | {"warmup_steps": settings.warmup_steps or 0}, warmup_share=settings.warmup_share)


def describe_held_out(batches: HeldOut, share: float) -> str:
    """A line about what a run is evaluated on, and a warning if it is little.

    Args:
        batches: The held-out batches.
        share: Of the documents that are held out.
    """
    examples, predictions = batches.size
    if not predictions:
        return f"held out: {examples:,} examples"
    line = f"held out: {examples:,} examples, {predictions:,} predictions"
    if predictions >= FEW_PREDICTIONS:
        return line
    enough = share * FEW_PREDICTIONS / predictions
    remedy = f"hold out more with --held-out {enough:.2g}" if enough <= 0.3 else "use more text"
    return f"{line}: few, their mean loss is uncertain by about {_SPREAD / predictions**0.5:.2f} nats; {remedy}"


def _check_run(run: Path, settings: PretrainSettings, source: Source, start: str | Path | None, resume: bool) -> None:
    """Make sure that the folder is either new or the run we are to resume, and that run was made from this data."""
    if settings.continues(run, resume):
        check_model(run / START)
        check_made_from(run, {"store": source.fingerprint})
        before = read_json(run / START / PROVENANCE)["continued"]["model"] if (run / START).exists() else None
        if start is not None and str(start) != before:
            raise CheckpointError(
                "other-settings", f"`{run}` was started with {f'`{before}`' if before else 'drawn weights'}, now `{start}`",
                "leave --continue out to resume it, or start a new run with another --out",
            )  # fmt: skip


def _check_space(run: Path, made: Prepared) -> None:
    """Make sure that the checkpoints of a new run fit on its disk.

    Raises:
        MachineError: disk-full.
    """
    there = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if made.world.is_main and free < made.disk_bytes:
        raise MachineError(
            "disk-full", f"the run's checkpoints need {made.disk_bytes / 1e6:,.0f} MB, `{there}` has {free / 1e6:,.0f} MB left",
            "free some space, choose another --out, or keep fewer checkpoints with --keep 1",
        )  # fmt: skip
