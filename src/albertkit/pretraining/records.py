"""Existing records: masked examples that google-research's or the Model Garden's script wrote, or our export.

What is masked, and how the text was cut, is fixed in them; their order is another in every epoch.
Padding and predictions of weight 0 are dropped. Files are not loaded: a scan finds where the
records lie, and each is read, and checked, when its turn comes. How long a record is without its
padding is known only then, so batches are counted in padded tokens: each takes `batch_tokens // S`
records of S padded tokens.
"""

from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from albertkit.batches.packed import PackedBatch
from albertkit.conversion.tensorflow.records import RecordFile, read_example
from albertkit.corpus.store import is_held_out
from albertkit.errors import DataError
from albertkit.files import sha256_bytes
from albertkit.pretraining.batches import Batching, EpochStream
from albertkit.pretraining.randomness import ORDER, make_key, shuffle_rows
from albertkit.tables.files import is_record_name
from albertkit.training.processes import World

UNFINISHED = ".export"  # stands in the folder of an export from its first moment to its last

FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_weights",
)
ORDER_LABEL = "next_sentence_labels"
# The Model Garden's use_v2_feature_names
_V2_NAMES = {"input_word_ids": "input_ids", "input_type_ids": "segment_ids"}
_SAMPLE = 20_000  # records that frequencies are counted over: 10 million tokens, a second
_LOOKED_AT = 100  # records at a time, where not a batch's number is asked for
_WRITTEN_BY = (
    "records need the features of create_pretraining_data.py; `albertkit corpus export` writes them"
)


class TrainingRecords:
    """The records of one or several files, numbered from 0 in the order of the files' names.

    Args:
        path: A TFRecord file, a quoted glob, or a folder of files with `tfrecord` in their names.
        tokenizer: The `AlbertTokenizer` that the ids belong to.
        pairs: Whether sentence-order labels are wanted.

    Attributes:
        length: S, tokens of a padded sequence.
        fingerprint: SHA-256 over the checksums of all records, and the tokenizer.
    """

    def __init__(self, path: str | Path, tokenizer: Any, pairs: bool = True) -> None:
        self.path = Path(path)
        self.tokenizer = tokenizer
        self.pairs = pairs
        self._files = [RecordFile(file) for file in find_record_files(path)]
        self._first = np.cumsum([0, *map(len, self._files)])
        if not len(self):
            raise DataError("too-little-data", f"there is no record in `{path}`", _WRITTEN_BY)
        fingerprints = [tokenizer.fingerprint, *(file.fingerprint for file in self._files)]
        self.fingerprint = sha256_bytes("".join(fingerprints).encode())
        self._names = (*FEATURES, ORDER_LABEL) if pairs else FEATURES
        # Type and size of each, known when the first record has been read
        self._form: list[tuple[str, int]] = []
        self.length = len(self._features_of_record(0)[0])
        # The tokenizer's [CLS], [SEP] and [MASK] must be where the records have them
        cls_id = self.tokenizer.cls_id
        sep_id = self.tokenizer.sep_id
        mask_id = self.tokenizer.mask_id
        batch = self.batch(np.arange(min(len(self), _LOOKED_AT)))
        ends = torch.stack(
            [batch.input_ids[batch.offsets[:-1]], batch.input_ids[batch.offsets[1:] - 1]],
            1,
        )
        wrong = (ends != torch.tensor([cls_id, sep_id])).any(1).nonzero()
        if len(wrong):
            first, last = ends[wrong[0, 0]].tolist()
            fault = f"begins with id {first} and ends with {last}; the tokenizer's [CLS] is {cls_id}, its [SEP] {sep_id}"
            raise self._record_error("wrong-tokenizer", int(wrong[0, 0]), fault)
        # 80 % of the masked tokens are shown as [MASK].
        visible_ids = batch.input_ids[batch.masked_positions]
        if len(visible_ids) >= 20 and not (visible_ids == mask_id).any():  # by chance once in 10^14
            raise self._record_error(
                "wrong-tokenizer",
                0,
                f"and those after it never show id {mask_id}, [MASK] of the tokenizer",
            )

    def __len__(self) -> int:
        return int(self._first[-1])

    def held_out(self, share: float, seed: int) -> NDArray[np.bool_]:
        """Return which records are kept for evaluation, by hash of (seed, number): bool [records]."""
        return is_held_out(share, seed, 0, len(self))

    def batch(self, numbers: NDArray[Any]) -> PackedBatch:
        """Return some records as a packed batch, their padding and their predictions of weight 0 left out."""
        # Checked a batch at a time, which takes 80 µs a record in place of 180.
        rows = [self._features_of_record(number) for number in numbers.tolist()]
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        ids, mask, segments, positions, labels, weights = columns[: len(FEATURES)]
        lengths = mask.sum(1)
        predicted = weights > 0
        real = np.arange(self.length) < lengths[:, None]

        def refuse(slug: str, wrong: NDArray[np.bool_], fault: str) -> None:
            if wrong.any():
                raise self._record_error(slug, int(numbers[wrong.any(1).argmax()]), fault)

        refuse(
            "bad-row",
            (mask != real) | (lengths < 1)[:, None],
            "has an input_mask that is not ones, then zeros",
        )
        outside = (positions < 0) | (positions >= lengths[:, None])
        refuse("bad-row", predicted & outside, "has a masked position outside its tokens")
        refuse(
            "bad-row",
            real & (segments != 0) & (segments != 1),
            "has segment ids other than 0 and 1",
        )
        size = self.tokenizer.vocab_size
        for name, values, used in (("input_ids", ids, real), ("masked_lm_ids", labels, predicted)):
            foreign = used & ((values < 0) | (values >= size))
            refuse(
                "wrong-tokenizer",
                foreign,
                f"has ids in {name} that are not among the tokenizer's {size:,} tokens",
            )
        if self.pairs:
            orders = columns[-1]
            refuse(
                "bad-row",
                (orders != 0) & (orders != 1),
                f"has a number other than 0 and 1 for {ORDER_LABEL}",
            )
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return PackedBatch(
            input_ids=torch.from_numpy(ids[real]),
            token_type_ids=torch.from_numpy(segments[real]),
            position_ids=torch.from_numpy(np.nonzero(real)[1]),
            offsets=torch.from_numpy(offsets),
            lengths=tuple(lengths.tolist()),
            masked_positions=torch.from_numpy((offsets[:-1, None] + positions)[predicted]),
            masked_labels=torch.from_numpy(labels[predicted]),
            sentence_order_labels=torch.from_numpy(columns[-1][:, 0]) if self.pairs else None,
        )

    def count_tokens(self, included: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count the tokens of (at most 20,000 of) some records, masks undone and [CLS], [SEP] left out: [V]."""
        numbers = np.flatnonzero(included)
        numbers = numbers[:: -(-len(numbers) // _SAMPLE)]
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        for first in range(0, len(numbers), _LOOKED_AT):
            batch = self.batch(numbers[first : first + _LOOKED_AT])
            assert batch.masked_positions is not None
            assert batch.masked_labels is not None
            ids = batch.input_ids.index_put((batch.masked_positions,), batch.masked_labels)
            counts += np.bincount(ids, minlength=len(counts))
        counts[[self.tokenizer.cls_id, self.tokenizer.sep_id]] = 0
        return counts

    def _features_of_record(self, number: int) -> list[NDArray[Any]]:
        """Return the features of a record in the order of `self._names`, of the same types and sizes as those of record 0."""
        file = int(np.searchsorted(self._first, number, "right")) - 1
        payload = self._files[file][number - int(self._first[file])]
        try:
            stored = read_example(payload)
        except DataError as error:
            raise self._record_error(
                error.slug,
                number,
                f"cannot be read: {error.message}",
            ) from None
        features = {_V2_NAMES.get(name, name): values for name, values in stored.items()}
        if missing := [name for name in self._names if name not in features]:
            fault = (
                f"has no {', '.join(missing)} (it has {', '.join(sorted(stored)) or 'no feature'})"
            )
            hint = (
                "these records hold no pairs: add --pair-task none"
                if missing == [ORDER_LABEL]
                else _WRITTEN_BY
            )
            raise self._record_error("bad-row", number, fault, hint)
        values = [features[name] for name in self._names]
        form: list[tuple[str, int]] = [(array.dtype.kind, len(array)) for array in values]
        if form == self._form:
            return values
        sizes = [size for _, size in form]
        described = ", ".join(
            f"{size:,} {name}" for name, size in zip(self._names, sizes, strict=True)
        )
        for name, (kind, _) in zip(self._names, form, strict=True):
            if kind != ("f" if name == "masked_lm_weights" else "i"):
                raise self._record_error(
                    "bad-row", number, f"has {name} of another type than create_pretraining_data.py"
                )
        if len(set(sizes[:3])) > 1 or len(set(sizes[3:6])) > 1 or sizes[6:] not in ([], [1]):
            raise self._record_error(
                "bad-row",
                number,
                f"has features whose sizes do not fit together: {described}",
            )
        if self._form:
            fault = f"has {described}; record 0 has {self._form[0][1]:,} and {self._form[3][1]:,}"
            raise self._record_error(
                "bad-row",
                number,
                fault,
                "train on records of one max_seq_length at a time",
            )
        self._form = form
        return values

    def _record_error(self, slug: str, index: int, fault: str, hint: str = "") -> DataError:
        file = int(np.searchsorted(self._first, index, "right")) - 1
        record = f"record {index - int(self._first[file]):,} of `{self._files[file].path}`"
        if slug == "wrong-tokenizer":
            hint = (
                "give the folder of the tokenizer that the records were made with: --tokenizer DIR"
            )
        return DataError(slug, f"{record} {fault}", hint or "make the records again")


def is_records_file_or_folder(path: Path) -> bool:
    """Return whether this is a file, or the folder of an export or of files with `tfrecord` in their names."""
    return path.is_file() or (
        path.is_dir() and ((path / UNFINISHED).exists() or bool(_record_files_in(path)))
    )


def find_record_files(path: str | Path) -> list[Path]:
    """Return the files that a file's name, a glob or a folder stands for, in the order of their names."""
    location = Path(path)
    if (location / UNFINISHED).exists():
        raise DataError(
            "unfinished",
            f"the export of `{location}` has not finished",
            "run the same export again",
        )
    if location.is_dir():
        files = _record_files_in(location)
    elif location.is_file():
        files = [location]
    else:
        files = [Path(name) for name in glob(str(path)) if Path(name).is_file()]
    if not files:
        raise DataError(
            "not-found",
            f"no TFRecord files at `{path}`",
            "give a file, a folder of *.tfrecord, or a quoted glob",
        )
    return sorted(files)


def _record_files_in(folder: Path) -> list[Path]:
    """Return visible files like x.tfrecord, tf_examples.tfrecord-00000-of-00010 and x.tf_record."""
    names = (file for file in folder.iterdir() if not file.name.startswith("."))
    return [file for file in names if is_record_name(file.name) and file.is_file()]


class RecordStream(EpochStream):
    """Training batches of existing records, of those in `included`, bool [records], in another order every epoch."""

    def __init__(
        self,
        records: TrainingRecords,
        included: NDArray[np.bool_],
        *,
        seed: int = 0,
        **how: Unpack[Batching],
    ) -> None:
        self._records = records
        self._numbers = np.flatnonzero(included).astype(np.uint32)
        self._seed = seed
        super().__init__({"seed": seed, "records": len(self._numbers)}, records.length, **how)

    def draw(self, epoch: int, block: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        order = self._numbers[:, None].copy()
        shuffle_rows(order, make_key(self._seed, ORDER, epoch))
        return order[:, 0], np.full(len(order), self._records.length, np.uint32)

    def pack(
        self, record_numbers: NDArray[np.uint32], plan_indices: NDArray[Any], epoch: int
    ) -> PackedBatch:
        return self._records.batch(record_numbers[plan_indices])


class RecordEvaluation:
    """The held-out records, bool [records], in order, the same batches at every iteration; padding counts as tokens.

    A process takes every `world.size`-th record, from number `world.rank` on.
    """

    def __init__(
        self,
        records: TrainingRecords,
        held_out: NDArray[np.bool_],
        batch_tokens: int,
        world: World,
    ) -> None:
        if not held_out.any():
            raise DataError(
                "too-little-data",
                f"none of the {len(records):,} records is held out",
                "hold out a larger share with --held-out, or use more records",
            )
        self._records = records
        # Examples; how many tokens are masked in them is not known
        self.size = int(np.count_nonzero(held_out)), 0
        self._numbers = np.flatnonzero(held_out)[world.rank :: world.size]
        self._rows = batch_tokens // records.length

    def __iter__(self) -> Iterator[PackedBatch]:
        for first in range(0, len(self._numbers), self._rows):
            yield self._records.batch(self._numbers[first : first + self._rows])
