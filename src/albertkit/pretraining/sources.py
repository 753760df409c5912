"""The data of a pretraining run: a token store, or records that were masked before. One interface for both."""

import dataclasses
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from albertkit.batches.packed import PackedBatch
from albertkit.conversion.tensorflow.records import may_hold_records
from albertkit.corpus import TokenStore
from albertkit.corpus.cooccurrence import cooccurrence_vectors, documents_without
from albertkit.corpus.store import MANIFEST
from albertkit.errors import ConfigError, DataError
from albertkit.model_paths import is_remote
from albertkit.pretraining.batches import Batching, BatchStream, EpochStream, EvaluationStream
from albertkit.pretraining.examples import (
    ExampleSettings,
    format_used_share,
    shards_of_blocks,
    tokens_used,
)
from albertkit.pretraining.masking import MaskSettings
from albertkit.pretraining.objective import Unigram
from albertkit.pretraining.records import (
    RecordEvaluation,
    RecordStream,
    TrainingRecords,
    is_records_file_or_folder,
)
from albertkit.pretraining.settings import MaskingOptions, PretrainSettings
from albertkit.tables.files import is_record_name
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.processes import World

# Bytes of a store that are read and compared with its checksums before a run: 4 s. A larger store
# would keep every run waiting; `albertkit doctor STORE` reads all of it.
_VERIFIED = 4 << 30

# These masking options were decided when the records were written
_FIXED_IN_RECORDS = [
    field
    for field in dataclasses.fields(MaskingOptions)
    if field.name not in ("length", "pair_task", "held_out")
]


class HeldOut(Protocol):
    """Batches to evaluate on.

    Attributes:
        size: Examples and, 0 if that is not known, masked tokens of all processes.
    """

    @property
    def size(self) -> tuple[int, int]: ...

    def __iter__(self) -> Iterator[PackedBatch]: ...


class PretrainingData(ABC):
    """The data of a run.

    Attributes:
        path: Where they lie.
        fingerprint: Another one is other data.
        tokenizer: To be saved with the model.
        settings: Those of the run, with what the data decides.
        unknown: Names of settings that were decided when the data were made, which do not say how.
    """

    path: Path
    fingerprint: str
    tokenizer: Any
    settings: PretrainSettings
    unknown: Sequence[str] = ()

    @abstractmethod
    def training(self, world: World) -> EpochStream:
        """Return the batches to train on."""

    @abstractmethod
    def evaluation(self, world: World) -> HeldOut:
        """Return the held-out batches, the same at every iteration."""

    @abstractmethod
    def unigram(self, world: World) -> Unigram:
        """Count the tokens of what is trained on; called in all processes."""

    @abstractmethod
    def cooccurrence(self, size: int) -> Tensor:
        """Return vectors of all tokens, [V, size], from co-occurrences in what is trained on; 0 for those that have none."""

    @abstractmethod
    def describe(self, stream: EpochStream) -> str:
        """Return a line about the first epoch of the stream."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what the model card says of the data."""

    def tokens_used(self, stream: EpochStream) -> float:
        """Return the share of the training text that is in an example of the first epoch; records are whole examples."""
        return 1.0

    def batching(self, world: World) -> Batching:
        """Return how this process takes its share of the examples."""
        return Batching(
            batch_tokens=self.settings.max_micro_batch_tokens,
            accumulation=self.settings.accumulation,
            rank=world.rank,
            world_size=world.size,
            processes=self.settings.processes,
            batch_size=self.settings.batch_size,
        )


def open_pretraining_data(
    data: str | Path | TokenStore, settings: PretrainSettings, tokenizer: str | Path | None = None
) -> PretrainingData:
    """Open what a run is to train on: a token store, its folder or address (`s3://…`); or TFRecords.

    A store has its own tokenizer, and another one is refused; that of records lies beside them
    unless it is named.
    """
    if not isinstance(data, TokenStore) and is_records(data):
        return _RecordSource(Path(data), settings, tokenizer)
    store = data if isinstance(data, TokenStore) else TokenStore.open(data)
    if tokenizer is not None:
        store.check_tokenizer(AlbertTokenizer.from_pretrained(tokenizer))
    return _StoreSource(store, settings)


def is_records(data: str | Path) -> bool:
    """Return whether data are TFRecords: a file, a folder of them, or a glob."""
    return not is_remote(data) and (has_magic(str(data)) or is_records_file_or_folder(Path(data)))


def is_pretraining_data(data: str) -> bool:
    """Return whether data look like a token store or like records, and not like the labelled examples of a task."""
    path = Path(data)
    if is_remote(data) or (path / MANIFEST).exists() or has_magic(data):
        return True
    return is_records_file_or_folder(path) and (path.is_dir() or is_record_name(path.name))


class _StoreSource(PretrainingData):
    """A token store: segments and masks are drawn again in every epoch."""

    def __init__(self, store: TokenStore, settings: PretrainSettings) -> None:
        self.path = store.folder
        self.fingerprint = store.fingerprint
        self.tokenizer = store.tokenizer()
        self.settings = settings
        store.verify(_VERIFIED)
        self._store = store
        self._held_out = store.held_out(settings.held_out, settings.seed)

    def training(self, world: World) -> BatchStream:
        return BatchStream(
            self._store,
            [~documents for documents in self._held_out],
            example_settings(self.settings),
            mask_settings(self.settings),
            seed=self.settings.seed,
            **self.batching(world),
        )

    def evaluation(self, world: World) -> EvaluationStream:
        return held_out_stream(self._store, self.settings, self._held_out, world)

    def unigram(self, world: World) -> Unigram:
        return Unigram.of_store(self._store, self._held_out, world)

    def cooccurrence(self, size: int) -> Tensor:
        # One process counts for all: the vectors are the same in each.
        counts = Unigram.of_store(self._store, self._held_out).counts
        return cooccurrence_vectors(
            documents_without(self._store, self._held_out),
            counts,
            size,
            self.settings.seed,
        )

    def describe(self, stream: EpochStream) -> str:
        plan = stream.plan(0)
        skipped = plan.skipped_documents
        aside = f", {skipped:,} documents of one sentence skipped" if skipped else ""
        blocks = stream.num_blocks()
        of = "an epoch" if blocks == 1 else f"in the first of {blocks} blocks of an epoch"
        used = format_used_share(self.tokens_used(stream))
        return f"examples: {len(plan.examples):,} {of}{aside}; tokens used an epoch: {used}"

    def tokens_used(self, stream: EpochStream) -> float:
        shards = shards_of_blocks(
            self._store, example_settings(self.settings), self.settings.seed, 0
        )[0]
        return tokens_used(
            self._store,
            stream.plan(0),
            [~documents for documents in self._held_out],
            shards,
        )

    def facts(self) -> dict[str, Any]:
        return {
            "documents": self._store.num_documents,
            "sentences": self._store.num_sentences,
            "tokens": self._store.num_tokens,
            "tokenizer fingerprint": self._store.tokenizer_fingerprint,
        }


class _RecordSource(PretrainingData):
    """Records: segments, masks and length are as they were written; the order is drawn again in every epoch."""

    unknown = tuple(field.name for field in _FIXED_IN_RECORDS)

    def __init__(
        self,
        path: Path,
        settings: PretrainSettings,
        tokenizer: str | Path | None,
    ) -> None:
        if changed := [
            field.name
            for field in _FIXED_IN_RECORDS
            if getattr(settings, field.name) != field.default
        ]:
            raise ConfigError(
                "bad-value",
                f"{', '.join(changed)} cannot be set: what is masked is fixed in the records `{path}`",
                "leave these settings out, or train on a token store",
            )
        self.path = path
        if path.is_file() and not is_record_name(path.name) and not may_hold_records(path):
            raise DataError(
                "wrong-kind",
                f"`{path}` is a file that is neither a token store nor TFRecords",
                f"make a store of text with `albertkit corpus build {shlex.quote(str(path))} --tokenizer DIR --out STORE`, "
                "and train on that",
            )
        if not tokenizer:
            tokenizer = (path if path.is_dir() else path.parent) / "tokenizer"
            if not tokenizer.is_dir():
                raise ConfigError(
                    "no-tokenizer",
                    f"the records `{path}` do not say what their ids mean: there is no `{tokenizer}`",
                    "name the tokenizer that they were made with: --tokenizer DIR",
                )
        self.tokenizer = AlbertTokenizer.from_pretrained(tokenizer)
        self._records = TrainingRecords(path, self.tokenizer, pairs=settings.pair_task != "none")
        self.fingerprint = self._records.fingerprint
        if settings.length not in (MaskingOptions.length, self._records.length):
            raise ConfigError(
                "bad-value",
                f"length is {settings.length}, the records `{path}` have {self._records.length}",
                "leave it out, or train on a token store",
            )
        self.settings = dataclasses.replace(settings, length=self._records.length)
        self._held_out = self._records.held_out(settings.held_out, settings.seed)

    def training(self, world: World) -> RecordStream:
        return RecordStream(
            self._records,
            ~self._held_out,
            seed=self.settings.seed,
            **self.batching(world),
        )

    def evaluation(self, world: World) -> RecordEvaluation:
        batch_tokens = self.settings.max_micro_batch_tokens
        return RecordEvaluation(self._records, self._held_out, batch_tokens, world)

    def unigram(self, world: World) -> Unigram:
        return Unigram(self._records.count_tokens(~self._held_out))

    def cooccurrence(self, size: int) -> Tensor:
        raise ConfigError(
            "bad-value",
            f"initial_weights text needs whole text, the records `{self.path}` hold masked sequences",
            "train on a token store, or leave --initial-weights out",
        )

    def describe(self, stream: EpochStream) -> str:
        held_out = int(self._held_out.sum())
        return (
            f"records: {len(stream.plan(0)):,} of {self._records.length} padded tokens, {held_out:,} held out (if "
            "they were written with a dupe_factor above 1, the text of a held-out record is also in others)"
        )

    def facts(self) -> dict[str, Any]:
        return {
            "records": len(self._records),
            "padded length": self._records.length,
            "tokenizer fingerprint": self.tokenizer.fingerprint,
        }


def example_settings(settings: MaskingOptions) -> ExampleSettings:
    """Return how documents become examples."""
    return ExampleSettings(
        max_length=settings.length,
        short_seq_prob=settings.short_seq_prob,
        pair_task=settings.pair_task,
        sop_pairs=settings.sop_pairs,
    )


def mask_settings(settings: MaskingOptions) -> MaskSettings:
    """Return what is masked."""
    return MaskSettings(
        masked_lm_prob=settings.masked_lm_prob,
        max_predictions=settings.max_predictions or None,
        max_ngram=settings.max_ngram,
        favor_shorter_ngram=settings.favor_shorter_ngram,
        whole_word=settings.mask_units == "words",
    )


def held_out_stream(
    store: TokenStore, settings: PretrainSettings, held_out: list[np.ndarray], world: World
) -> EvaluationStream:
    """Return the examples to evaluate on, the same at every evaluation."""
    # They are masked as the paper does (15 %) whatever the training masks, so that numbers of
    # different runs compare; a run that masks nothing is evaluated on whole text.
    masks = MaskSettings() if settings.masked_lm_prob else MaskSettings(masked_lm_prob=0.0)
    return EvaluationStream(
        store,
        held_out,
        example_settings(settings),
        masks,
        seed=settings.seed,
        batch_tokens=settings.max_micro_batch_tokens,
        rank=world.rank,
        world_size=world.size,
    )
