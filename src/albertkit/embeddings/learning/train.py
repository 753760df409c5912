"""`train_embeddings`: from any ALBERT to vectors of texts that can be compared."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.data.bad_rows import BadRows, counted
from albertkit.data.given import as_files
from albertkit.embeddings.data import Examples
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.learning.data import EmbeddingData, kind_of, read_embedding_data
from albertkit.embeddings.learning.dev import PairDev, ScoredDev
from albertkit.embeddings.learning.objective import make_loss
from albertkit.embeddings.learning.run import EmbeddingResult, Training, train_encoder
from albertkit.embeddings.models import prompt_notes
from albertkit.embeddings.options import EmbedTrainOptions
from albertkit.embeddings.pooling import Projection
from albertkit.embeddings.settings import EmbedSettings, EncoderSettings
from albertkit.embeddings.unknown_words import known_words
from albertkit.frame.command import takes
from albertkit.model import AlbertModel
from albertkit.model_folder import local_folder
from albertkit.tasks.loading import check_order
from albertkit.training.run import Run, open_run


@takes(EmbedTrainOptions)
def train_embeddings(options: EmbedTrainOptions) -> EmbeddingResult:
    """Train sentence embeddings and score them on dev examples; see `EmbedTrainOptions` and `EmbedSettings`.

    The folder of the run gets `run.toml`, `metrics.jsonl`, `checkpoints/`, `best/` (the model to use) and `results.json`; with
    several seeds a folder for each. Under `torchrun` every process takes its share of each update and gradients are summed.

    Raises:
        CheckpointError: exists, missing-file, changed and what loading raises.
        ConfigError: unknown-name, bad-value, conflicting-options, no-device. DataError: what reading raises.
        MachineError: not-finite. MissingExtraError: not-installed.
    """
    kind, settings = options.kind, options.settings
    check_order(kind, options.model, options.data)
    with open_run(options.out, settings, f"sentence embeddings: {kind}", options.resume) as run, ExitStack() as stack:
        given = {name: getattr(options, name) for name in ("data", "dev", "silver")}
        files: dict[str, Any] = {
            n: stack.enter_context(as_files(data)) for n, data in given.items() if data is not None
        }
        triplets = settings.loss_for(kind_of(kind)) == "mnrl"
        examples = read_embedding_data(replace(options, **files), triplets, BadRows(options.on_error))
        return run.of_seeds(lambda one: _train_once(one, kind, examples, options.model))


def _train_once(run: Run[EmbedSettings], kind: str, data: EmbeddingData, model: str | Path) -> EmbeddingResult:
    """Train with one seed."""
    torch.manual_seed(run.settings.seed)  # of fresh layers
    encoder, notes = start_encoder(model, run.settings)
    resolved, reasons = run.settings.resolve(data.kind, encoder.config, encoder.max_length, len(data.train))
    set_up(encoder, resolved)
    notes.append(known_words(data.train.texts, encoder.tokenizer, model, force=True))
    if resolved.projection:
        notes.append(f"projection: fresh, {encoder.dimension} to {resolved.projection}, tanh")
        encoder.projection = Projection(encoder.dimension, resolved.projection)
    loss = resolved.loss or "cosent"
    negatives = loss == "mnrl"
    if negatives:
        notes.append("in-batch negatives: an example that shares a text with another of its update is left out of it")
    dev = ScoredDev(data.dev) if data.dev.targets is not None else PairDev(data.dev.texts)
    training = Training(
        kind=kind,
        encoder=encoder,
        loss=make_loss(loss, encoder.dimension, resolved.dims, resolved.scale),
        loss_name=loss,
        examples=data.train.texts,
        targets=data.train.targets,
        texts=text_numbers(data.train) if negatives else None,
        devs=[dev],
        metric=dev.metric,
        data=f"{counted(len(data.train), 'example')} of the kind `{kind}`",
        dev=counted(len(data.dev), "dev example"),
        provenance={"model": str(model), "kind": kind},
        notes=[*data.notes, *notes, *reasons],
        start_weights=resolved.start_weights,
    )
    return train_encoder(run.resolved(resolved), training)


def start_encoder(model: str | Path, settings: EncoderSettings) -> tuple[SentenceEncoder, list[str]]:
    """Return the encoder to train, and how its vectors are made, in words."""
    encoder = SentenceEncoder.from_pretrained(local_folder(model), settings.pooling)
    if settings.prompt_name is not None:
        encoder.settings["default_prompt_name"] = settings.prompt_name
    known = "" if settings.pooling else " (that of the model, or mean where it has none)"
    parts = [f"pooling: {encoder.pooling}{known}"]
    if encoder.projection is not None:
        parts.append(f"projection: that of `{model}`, to {encoder.dimension} numbers")
    parts += prompt_notes(str(model), encoder.prompts, encoder.prompt)
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


def text_numbers(examples: Examples) -> np.ndarray:
    """Number texts, int64 [E, K]: equal texts have equal numbers."""
    numbers: dict[str, int] = {}
    return np.array([[numbers.setdefault(text, len(numbers)) for text in row] for row in examples.texts], np.int64)
