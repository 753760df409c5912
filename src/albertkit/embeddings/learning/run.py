"""One training of an encoder, from features to the best model and its results: puts model, objective and loop together."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from albertkit.checkpoints.folder import PROVENANCE
from albertkit.embeddings.distillation.teacher_vectors import TeacherRows
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.learning.card import write_embedding_card
from albertkit.embeddings.learning.dev import Judge
from albertkit.embeddings.learning.objective import EmbeddingObjective
from albertkit.embeddings.learning.results import REMEDY, EmbeddingResult
from albertkit.embeddings.learning.settings import EncoderSettings
from albertkit.embeddings.map import MOST_POINTS, draw_map
from albertkit.errors import CheckpointError
from albertkit.files import sha256_bytes, write_json
from albertkit.report.task_results import save_results
from albertkit.tasks.data import fingerprint
from albertkit.tasks.features import Features
from albertkit.tasks.stream import ExampleStream
from albertkit.training.display import Display
from albertkit.training.distributed import World
from albertkit.training.hardware import choose_precision
from albertkit.training.loop import LoopSettings, train
from albertkit.training.resuming import begin_folder, check_made_from
from albertkit.training.state import TrainingState, check_model

MAP = "map.html"
_NO_BOUND = 1 << 62  # tokens computed at once: in-batch losses need the examples of an update together
DEV_TOKENS = 8192  # of dev texts, computed at once


@dataclass(frozen=True)
class Training:
    """What is trained, and on what.

    Attributes:
        kind: As `EmbeddingResult.kind`.
        encoder: To be trained; it is moved to the process's device.
        loss: On vectors.
        features: E examples of K sequences.
        columns: K.
        targets: As `EmbeddingObjective`.
        texts: As `EmbeddingObjective`.
        judge: Of dev examples.
        metric: The score that chooses the best model.
        data: What it is trained on, in words.
        dev: What it is scored on, in words.
        provenance: What the weights were made from, beside the fingerprints of the examples.
        notes: Lines for a person.
    """

    kind: str
    encoder: SentenceEncoder
    loss: nn.Module
    features: Features
    columns: int
    targets: np.ndarray | TeacherRows | None
    texts: np.ndarray | None
    judge: Judge
    metric: str
    data: str
    dev: str
    provenance: dict[str, Any]
    notes: Sequence[str]


def train_encoder(
    training: Training, run: Path, settings: EncoderSettings, loss_name: str, world: World, *, resume: bool
) -> EmbeddingResult:
    """Train once.

    Args:
        training: What to do.
        run: Folder of the run.
        settings: Resolved; `seeds` is not looked at.
        loss_name: In metrics.
        world: The processes.
        resume: Continue the run from its newest checkpoint, to the same bits.

    Raises:
        CheckpointError: run-exists, other-settings, resume-mismatch. MachineError: loss-not-finite.
    """
    encoder, judge = training.encoder, training.judge
    provenance = training.provenance | {"data": _fingerprint(training), "dev": judge.fingerprint()}
    if settings.continues(run, resume):
        check_made_from(run, provenance)
    objective = EmbeddingObjective(
        encoder, loss_name, training.loss, training.columns, training.targets, training.texts, world
    ).to(world.device)
    encoder.albert.compute_dtype = choose_precision(settings.precision, world.device)
    encoder.albert.gradient_checkpointing = settings.gradient_checkpointing
    if encoder.albert.pooler is not None:  # no vector goes through it
        encoder.albert.pooler.requires_grad_(False)
    stream = ExampleStream(
        training.features, grouped=True, batch_size=settings.batch_size or 1, batch_tokens=_NO_BOUND,
        seed=settings.seed, rank=world.rank, world_size=world.size,
    )  # fmt: skip

    def save_model(folder: Path) -> None:
        encoder.save_pretrained(folder)
        write_json(folder / PROVENANCE, provenance)

    begin_folder(run, settings, world)
    display = Display(run if world.is_main else None, f"sentence embeddings: {training.kind}", silent=not world.is_main)
    precision = f"precision: {str(encoder.albert.compute_dtype).removeprefix('torch.')} on {world.device}"
    truncated = {"train": training.features.num_truncated, "dev": judge.num_truncated}
    cut = (
        f"texts longer than {encoder.max_length} tokens, cut: {truncated['train']:,} of "
        f"{training.features.num_sequences:,} in training, {truncated['dev']:,} of {judge.num_texts:,} on dev"
    )
    for line in (*training.notes, *([cut] if any(truncated.values()) else ()), precision):
        display.note(line)

    def evaluate() -> dict[str, float]:
        scores = judge.scores(encoder)
        for line in judge.constant:
            display.note(f"{line}; {REMEDY}")
        return {training.metric: scores[training.metric], **scores}  # the one that counts is shown first

    result = train(
        objective, objective, stream, LoopSettings.over_epochs(settings), run=run, world=world, display=display,
        save_model=save_model, evaluate=evaluate, select=training.metric, resume=resume,
    )  # fmt: skip
    state = result.state
    if not result.finished:
        return EmbeddingResult(
            None, training.kind, training.metric, math.nan, {}, steps=state.step, seconds=state.seconds
        )
    with _said_if_stopped(display, run):
        return _finished(training, run, settings, loss_name, world, state, truncated)


@contextmanager
def _said_if_stopped(display: Display, run: Path) -> Iterator[None]:
    """Say what is whole and what is lacking when a signal comes after the last update."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        display.note(
            f"stopped by a signal after the last update: `{run / 'best'}` is whole; --resume measures it and draws the map"
        )
        raise


def _finished(
    training: Training,
    run: Path,
    settings: EncoderSettings,
    loss_name: str,
    world: World,
    state: TrainingState,
    truncated: dict[str, int],
) -> EmbeddingResult:
    """Measure the best model, and write its results, card and map."""
    judge = training.judge
    world.barrier()
    check_model(run / "best")
    best = SentenceEncoder.from_pretrained(run / "best")
    best.to(world.device)
    best.albert.compute_dtype = training.encoder.albert.compute_dtype
    scores, intervals = judge.details(best)
    finished = EmbeddingResult(
        run / "best", training.kind, training.metric, scores[training.metric], scores, intervals,
        tuple(judge.constant), state.step, state.seconds, truncated=truncated,
    )  # fmt: skip
    if world.is_main:
        save_results(finished.to_dict(), run)
        write_embedding_card(
            run / "best", run.resolve().name, best, start=str(training.provenance["model"]), data=training.data,
            dev=training.dev, loss=loss_name, scores=scores, intervals=intervals, settings=settings.told(),
            dims=settings.dims, kind=training.kind, language=settings.languages, license=settings.license,
        )  # fmt: skip
        _draw_dev_texts(run / MAP, best, judge)
    world.barrier()
    return finished


def _draw_dev_texts(page: Path, encoder: SentenceEncoder, judge: Judge) -> None:
    """A map of the dev texts, to look at what is near what; none of vectors that are all the same."""
    texts = list(dict.fromkeys(text for row in judge.devs[0].texts for text in row if text.strip()))[:MOST_POINTS]
    if len(texts) < 3:
        return
    with suppress(CheckpointError):  # constant-vectors: the run has said so
        vectors = encoder.vectors_of(encoder.features(texts), encoder.engine("auto"))
        draw_map(page, "dev texts", texts, vectors, facts=[f"{encoder.dimension:,} numbers"])


def _fingerprint(training: Training) -> str:
    """SHA-256 of what is learned; a teacher's vectors are known by texts and teacher, whom the provenance names."""
    known = fingerprint(training.features).encode()
    if isinstance(training.targets, np.ndarray):
        known += training.targets.tobytes()
    return sha256_bytes(known)
