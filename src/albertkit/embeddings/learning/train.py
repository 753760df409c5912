"""`train_embeddings`: from any ALBERT to vectors of texts that can be compared."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from albertkit.embeddings.distillation.student import known_words
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.learning.data import EmbeddingData, kind_of, read_embedding_data
from albertkit.embeddings.learning.dev import Judge, PairDev, ScoredDev
from albertkit.embeddings.learning.examples import Examples
from albertkit.embeddings.learning.losses import make_loss
from albertkit.embeddings.learning.results import EmbeddingResult, with_seeds
from albertkit.embeddings.learning.run import DEV_TOKENS, Training, train_encoder
from albertkit.embeddings.learning.settings import EmbedSettings, EncoderSettings
from albertkit.embeddings.models import prompt_notes
from albertkit.embeddings.pooling import Projection
from albertkit.model import AlbertModel
from albertkit.model_folder import local_folder
from albertkit.tasks.columns import Columns
from albertkit.tasks.faults import Faults, counted
from albertkit.tasks.features import Features
from albertkit.training.distributed import World, join_world
from albertkit.training.launch import resumes
from albertkit.training.run_folder import alone_in_run


@alone_in_run
def train_embeddings(
    kind: str,
    model: str | Path,
    data: str | Path,
    out: str | Path,
    settings: EmbedSettings | None = None,
    *,
    columns: Columns | None = None,
    dev: str | Path | None = None,
    dev_kind: str | None = None,
    silver: str | Path | None = None,
    resume: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
) -> EmbeddingResult:
    """Train sentence embeddings and score them on dev examples.

    Under `torchrun` every process takes its share of each update and gradients are summed.

    Args:
        kind: Of the data: stsb korsts klue-sts or scores (a table): pairs with a number; mnli klue-nli kornli or nli (a
            table): pairs that are entailment, neutral or contradiction; pairs: two texts that mean the same; texts: a text a
            line, which is told from all others by dropout alone (SimCSE).
        model: Any checkpoint folder, a folder of sentence embeddings, or `org/name` of the hub.
        data: Folder in the task's layout, or the training file.
        out: Folder of the run: `run.toml`, `metrics.jsonl`, `checkpoints/`, `best/` (the model to use), `results.json`; with
            several seeds a folder for each and the best of them in `best/`.
        settings: See `EmbedSettings`.
        columns: Names of the columns of a table.
        dev: The dev file, or a folder that has one. Default: that of DATA, else a share of the training examples.
        dev_kind: Kind of the dev file, where it is another. Pairs with scores choose by Spearman's correlation, all others by
            how often a text finds its own among those of all dev examples.
        silver: Table of further scored pairs with columns `text`, `pair`, `score`, as `embed augment` writes it.
        resume: Continue from the newest checkpoint, to the same bits.
        on_error: What to do about rows that cannot be used: stop, or skip and count them.

    Raises:
        CheckpointError: run-exists, no-run, other-settings, resume-mismatch and what loading raises.
        ConfigError: unknown-kind, bad-settings, conflicting-options, bad-device. DataError: what reading raises.
        MachineError: loss-not-finite. MissingExtraError: missing-extra.
    """
    settings, run = settings or EmbedSettings(), Path(out)
    settings.check()
    loss = settings.loss_for(kind_of(kind))
    world = join_world(settings.device)
    resume = check_folder(settings, run, resume)
    examples = read_embedding_data(
        kind, Path(data), columns=columns, dev=None if dev is None else Path(dev), dev_kind=dev_kind,
        silver=None if silver is None else Path(silver), triplets=loss == "mnrl", held_out=settings.held_out,
        faults=Faults(on_error),
    )  # fmt: skip

    def once(one: EmbedSettings, folder: Path) -> EmbeddingResult:
        training, resolved = _prepared(kind, examples, model, one, world)
        return train_encoder(training, folder, resolved, loss, world, resume=resume)

    return with_seeds(settings, run, world, once)


def _prepared(
    kind: str, data: EmbeddingData, model: str | Path, settings: EmbedSettings, world: World
) -> tuple[Training, EmbedSettings]:
    """The training of one seed."""
    torch.manual_seed(settings.seed)  # of fresh layers
    encoder, notes = start_encoder(model, settings)
    resolved, reasons = settings.resolve(data.kind, encoder.config, encoder.max_length, len(data.train))
    set_up(encoder, resolved)
    notes.append(known_words(data.train.texts, encoder.tokenizer, model, force=True))
    if resolved.projection:
        notes.append(f"projection: fresh, {encoder.dimension} to {resolved.projection}, tanh")
        encoder.projection = Projection(encoder.dimension, resolved.projection)
    negatives = resolved.loss == "mnrl"
    if negatives:
        notes.append("in-batch negatives: an example that shares a text with another of its update is left out of it")
    dev = ScoredDev(data.dev) if data.dev.targets is not None else PairDev(data.dev.texts)
    training = Training(
        kind=kind, encoder=encoder, loss=make_loss(resolved.loss or "cosent", encoder.dimension, resolved.dims, resolved.scale),
        features=example_features(encoder, data.train.texts), columns=data.train.columns,
        targets=data.train.targets, texts=text_numbers(data.train) if negatives else None,
        judge=Judge([dev], encoder, DEV_TOKENS, world), metric=dev.metric,
        data=f"{counted(len(data.train), 'example')} of the kind `{kind}`",
        dev=counted(len(data.dev), "dev example"),
        provenance={"model": str(model), "kind": kind}, notes=[*data.notes, *notes, *reasons],
    )  # fmt: skip
    return training, resolved


def start_encoder(model: str | Path, settings: EncoderSettings) -> tuple[SentenceEncoder, list[str]]:
    """The encoder to train, and how its vectors are made, in words."""
    encoder = SentenceEncoder.from_pretrained(local_folder(model), settings.pooling)
    if settings.prompt_name is not None:
        encoder.settings["default_prompt_name"] = settings.prompt_name
    known = "" if settings.pooling else " (that of the model, or mean where it has none)"
    parts = [f"pooling: {encoder.pooling}{known}"]
    if encoder.projection is not None:
        parts.append(f"projection: that of `{model}`, to {encoder.dimension} numbers")
    parts += prompt_notes(str(model), encoder.settings.get("prompts") or {}, encoder.prompt)
    if encoder.normalize:
        parts.append(f"vectors: of length 1, as those of `{model}`")
    return encoder, parts


def set_up(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Give an encoder the length and the dropout of resolved settings."""
    encoder.max_length = settings.length or encoder.max_length
    before = encoder.config
    probability = settings.dropout or 0.0
    if (before.hidden_dropout_prob, before.attention_probs_dropout_prob) != (probability, probability):
        config = before.with_changes(hidden_dropout_prob=probability, attention_probs_dropout_prob=probability)
        albert = AlbertModel(config, add_pooling_layer=encoder.albert.pooler is not None)
        albert.load_state_dict(encoder.albert.state_dict())
        encoder.albert = albert.train(encoder.albert.training)


def example_features(encoder: SentenceEncoder, examples: Sequence[tuple[str, ...]]) -> Features:
    """What the model sees of E examples of K texts: K sequences of each, which stay together."""
    features = encoder.features(list(itertools.chain.from_iterable(examples)))
    return replace(features, examples=features.examples // len(examples[0]))


def text_numbers(examples: Examples) -> np.ndarray:
    """int64 [E, K]: equal texts have equal numbers."""
    numbers: dict[str, int] = {}
    return np.array([[numbers.setdefault(text, len(numbers)) for text in row] for row in examples.texts], np.int64)


def check_folder(settings: EncoderSettings, run: Path, resume: bool) -> bool:
    """Refuse to resume what is not there, and to begin where something is.

    Returns:
        Whether the run is continued, as `training.launch.resumes`.

    Raises:
        CheckpointError: no-run, run-exists.
    """
    resume = resumes(run, resume)
    if not resume:
        settings.continues(run, resume)
    return resume
