"""What a pretraining run trains on: a token store, or records that were masked before. One interface for both."""

import dataclasses
import shlex
from collections.abc import Iterator
from glob import has_magic
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from albertkit.addresses import is_remote
from albertkit.corpus import TokenStore
from albertkit.corpus.store import MANIFEST
from albertkit.errors import ConfigError, DataError
from albertkit.model.packing import PackedBatch
from albertkit.pretraining.epoch_stream import EpochStream
from albertkit.pretraining.evaluation import Unigram
from albertkit.pretraining.examples import ExampleSettings, blocks_of
from albertkit.pretraining.export_settings import ExportSettings
from albertkit.pretraining.masking import MaskSettings
from albertkit.pretraining.record_stream import RecordEvaluation, RecordStream
from albertkit.pretraining.records import TrainingRecords, holds_records, is_record_name
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.stream import BatchStream, EvaluationStream
from albertkit.pretraining.usage import tokens_used, used_text
from albertkit.tensorflow_files.records import begins_with_record
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.distributed import World

# Bytes of a store that are read and compared with its checksums before a run: 4 s. A larger store would keep every run
# waiting; `albertkit doctor STORE` reads all of it.
_VERIFIED = 4 << 30

# What was decided when the records were written.
_FIXED = (
    "sop_pairs", "masked_lm_prob", "max_predictions", "max_ngram", "favor_shorter_ngram", "mask_units", "short_seq_prob",
)  # fmt: skip


class HeldOut(Protocol):
    """Batches to evaluate on.

    Attributes:
        size: Examples and, 0 if that is not known, masked pieces of all processes.
    """

    @property
    def size(self) -> tuple[int, int]: ...

    def __iter__(self) -> Iterator[PackedBatch]: ...


class Source(Protocol):
    """What a run needs to know of its data.

    Attributes:
        path: Where it lies.
        fingerprint: Another one is other data.
        tokenizer: To be saved with the model.
        settings: Those of the run, with what the data decides.
    """

    path: Path
    fingerprint: str
    tokenizer: Any
    settings: PretrainSettings

    def training(self, world: World) -> EpochStream:
        """The batches to train on."""

    def evaluation(self, world: World) -> HeldOut:
        """The held-out batches, the same at every iteration."""

    def unigram(self, world: World) -> Unigram:
        """Piece frequencies of what is trained on; called in all processes."""

    def describe(self, stream: EpochStream) -> str:
        """A line about the first epoch of the stream."""

    def tokens_used(self, stream: EpochStream) -> float:
        """Share of the training text that is in an example of the first epoch."""

    def facts(self) -> dict[str, Any]:
        """What the model card says of the data."""


def open_source(
    data: str | Path | TokenStore, settings: PretrainSettings, tokenizer: str | Path | None = None
) -> Source:
    """Open what a run is to train on.

    Args:
        data: A token store, its folder or its address (`s3://…`); or TFRecords: a file, a folder of them, or a glob.
        settings: Of the run.
        tokenizer: Folder of the tokenizer that records were made with. Default: `tokenizer/` beside them, as
            `albertkit corpus export` leaves it. A store has its own, and another one is refused.

    Raises:
        DataError: wrong-tokenizer, not-a-store, broken-store, and what `TokenStore.open` and `TrainingRecords` raise.
        ConfigError: no-tokenizer; bad-settings if the settings ask for other masks than the records have.
    """
    if not isinstance(data, TokenStore) and is_records(data):
        return RecordSource(Path(data), settings, tokenizer)
    store = data if isinstance(data, TokenStore) else TokenStore.open(data)
    if tokenizer is not None:
        store.check_tokenizer(AlbertTokenizer.from_pretrained(tokenizer))
    return StoreSource(store, settings)


def is_records(data: str | Path) -> bool:
    """Whether data are TFRecords: a file, a folder of them, or a glob."""
    return not is_remote(data) and (has_magic(str(data)) or holds_records(Path(data)))


def is_pretraining_data(data: str) -> bool:
    """Whether data look like a token store or like records, and not like the labelled examples of a task."""
    path = Path(data)
    if is_remote(data) or (path / MANIFEST).exists() or has_magic(data):
        return True
    return holds_records(path) and (path.is_dir() or is_record_name(path.name))


class StoreSource:
    """A token store: segments and masks are drawn anew in every epoch."""

    def __init__(self, store: TokenStore, settings: PretrainSettings) -> None:
        self.path, self.fingerprint, self.tokenizer = store.folder, store.fingerprint, store.tokenizer()
        self.settings = settings
        store.verify(_VERIFIED)
        self._store = store
        self._held_out = store.held_out(settings.held_out, settings.seed)

    def training(self, world: World) -> BatchStream:
        """The batches to train on."""
        return BatchStream(
            self._store, [~documents for documents in self._held_out], example_settings(self.settings),
            mask_settings(self.settings),
            seed=self.settings.seed, batch_tokens=self.settings.most_tokens, accumulation=self.settings.accumulation,
            rank=world.rank, world_size=world.size, processes=self.settings.processes, batch_size=self.settings.batch_size,
        )  # fmt: skip

    def evaluation(self, world: World) -> EvaluationStream:
        """The held-out batches."""
        return held_out_stream(self._store, self.settings, self._held_out, world)

    def unigram(self, world: World) -> Unigram:
        """Piece frequencies of the documents that are not held out."""
        return Unigram(self._store, self._held_out, world)

    def describe(self, stream: EpochStream) -> str:
        """Examples in the first epoch, and documents that gave none."""
        plan = stream.plan(0)
        skipped = plan.skipped_documents
        aside = f", {skipped:,} documents of one sentence skipped" if skipped else ""
        blocks = stream.num_blocks()
        of = "an epoch" if blocks == 1 else f"in the first of {blocks} blocks of an epoch"
        return (
            f"examples: {len(plan.examples):,} {of}{aside}; tokens used an epoch: {used_text(self.tokens_used(stream))}"
        )

    def tokens_used(self, stream: EpochStream) -> float:
        """Share of the training text that is in an example of the first epoch."""
        shards = blocks_of(self._store, example_settings(self.settings), self.settings.seed, 0)[0]
        return tokens_used(self._store, stream.plan(0), [~documents for documents in self._held_out], shards)

    def facts(self) -> dict[str, Any]:
        """Counts of the store."""
        return {
            "documents": self._store.num_documents,
            "sentences": self._store.num_sentences,
            "tokens": self._store.num_tokens,
            "tokenizer fingerprint": self._store.tokenizer_fingerprint,
        }


class RecordSource:
    """Records: segments and masks are as they were written, the length too; the order is drawn anew in every epoch."""

    def __init__(self, path: Path, settings: PretrainSettings, tokenizer: str | Path | None) -> None:
        defaults = PretrainSettings()
        if changed := [name for name in _FIXED if getattr(settings, name) != getattr(defaults, name)]:
            raise ConfigError(
                "bad-settings", f"{', '.join(changed)} cannot be set: what is masked is fixed in the records `{path}`",
                "leave these settings out, or train on a token store",
            )  # fmt: skip
        self.path = path
        if path.is_file() and not is_record_name(path.name) and not begins_with_record(path):
            raise DataError(
                "not-a-store", f"`{path}` is a file that is neither a token store nor TFRecords",
                f"make a store of text with `albertkit corpus build {shlex.quote(str(path))} --tokenizer DIR --out STORE`, "
                "and train on that",
            )  # fmt: skip
        self.tokenizer = AlbertTokenizer.from_pretrained(tokenizer or _tokenizer_beside(path))
        self._records = TrainingRecords(path, self.tokenizer, pairs=settings.pair_task != "none")
        self.fingerprint = self._records.fingerprint
        if settings.length not in (defaults.length, self._records.length):
            raise ConfigError(
                "bad-settings", f"length is {settings.length}, the records `{path}` have {self._records.length}",
                "leave it out, or train on a token store",
            )  # fmt: skip
        self.settings = dataclasses.replace(settings, length=self._records.length)
        self._held_out = self._records.held_out(settings.held_out, settings.seed)

    def training(self, world: World) -> RecordStream:
        """The batches to train on."""
        return RecordStream(
            self._records, ~self._held_out,
            seed=self.settings.seed, batch_tokens=self.settings.most_tokens, accumulation=self.settings.accumulation,
            rank=world.rank, world_size=world.size, processes=self.settings.processes, batch_size=self.settings.batch_size,
        )  # fmt: skip

    def evaluation(self, world: World) -> RecordEvaluation:
        """The held-out batches, masked as they were written."""
        return RecordEvaluation(
            self._records, self._held_out,
            batch_tokens=self.settings.most_tokens, rank=world.rank, world_size=world.size,
        )  # fmt: skip

    def unigram(self, world: World) -> Unigram:
        """Piece frequencies of records that are not held out."""
        return Unigram.of_counts(self._records.count_pieces(~self._held_out))

    def describe(self, stream: EpochStream) -> str:
        """Records of each kind, and what their duplicates mean for the evaluation."""
        held_out = int(self._held_out.sum())
        return (
            f"records: {len(stream.plan(0)):,} of {self._records.length} padded tokens, {held_out:,} held out (if "
            "they were written with a dupe_factor above 1, the text of a held-out record is also in others)"
        )

    def tokens_used(self, stream: EpochStream) -> float:
        """All of what the records hold."""
        return 1.0

    def facts(self) -> dict[str, Any]:
        """Number and size of the records."""
        return {
            "records": len(self._records),
            "padded length": self._records.length,
            "tokenizer fingerprint": self.tokenizer.fingerprint,
        }


def _tokenizer_beside(path: Path) -> Path:
    folder = (path if path.is_dir() else path.parent) / "tokenizer"
    if not folder.is_dir():
        raise ConfigError(
            "no-tokenizer", f"the records `{path}` do not say what their ids mean: there is no `{folder}`",
            "name the tokenizer that they were made with: --tokenizer DIR",
        )  # fmt: skip
    return folder


def example_settings(settings: PretrainSettings | ExportSettings) -> ExampleSettings:
    """How documents become examples."""
    return ExampleSettings(
        max_length=settings.length, short_seq_prob=settings.short_seq_prob,
        pair_task=settings.pair_task, sop_pairs=settings.sop_pairs,
    )  # fmt: skip


def mask_settings(settings: PretrainSettings | ExportSettings) -> MaskSettings:
    """What is masked."""
    return MaskSettings(
        masked_lm_prob=settings.masked_lm_prob, max_predictions=settings.max_predictions or None,
        max_ngram=settings.max_ngram, favor_shorter_ngram=settings.favor_shorter_ngram,
        whole_word=settings.mask_units == "words",
    )  # fmt: skip


def held_out_stream(
    store: TokenStore, settings: PretrainSettings, held_out: list[np.ndarray], world: World
) -> EvaluationStream:
    """The examples to evaluate on: the same at every evaluation, masked as the paper does (15 %) whatever the training masks,
    so that numbers of different runs compare; a run that masks nothing is evaluated on whole text."""
    masks = MaskSettings() if settings.masked_lm_prob else MaskSettings(masked_lm_prob=0.0)
    return EvaluationStream(
        store, held_out, example_settings(settings), masks,
        seed=settings.seed, batch_tokens=settings.most_tokens, rank=world.rank, world_size=world.size,
    )  # fmt: skip
