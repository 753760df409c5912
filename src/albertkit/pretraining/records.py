"""Existing records: masked examples that google-research's or the Model Garden's script wrote, or our export.

What is masked, and how the text was cut, is fixed in them. Padding and predictions of weight 0 are dropped. Files are not
loaded: a scan finds where the records lie, and each is read, and checked, when its turn comes.
"""

import hashlib
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from albertkit.corpus.store import document_hash
from albertkit.errors import DataError
from albertkit.model.packing import PackedBatch
from albertkit.tensorflow_files.records import RecordFile, read_example

UNFINISHED = ".export"  # stands in the folder of an export from its first moment to its last

FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
ORDER_LABEL = "next_sentence_labels"
_V2_NAMES = {"input_word_ids": "input_ids", "input_type_ids": "segment_ids"}  # the Model Garden's use_v2_feature_names
_SAMPLE = 20_000  # records that frequencies are counted over: 10 million tokens, a second
_WRITTEN_BY = "records need the features of create_pretraining_data.py; `albertkit corpus export` writes them"


class Record(NamedTuple):
    """One example without its padding, int64."""

    input_ids: NDArray[Any]  # [tokens]
    segment_ids: NDArray[Any]  # [tokens]
    positions: NDArray[Any]  # [predictions]
    labels: NDArray[Any]  # [predictions]
    order: int  # sentence-order label: 1 swapped (or another document's text), 0 in order, -100 not asked for


class TrainingRecords:
    """The records of one or several files, numbered from 0 in the order of the files' names.

    Args:
        path: A TFRecord file, a quoted glob, or a folder of files with `tfrecord` in their names.
        tokenizer: The `AlbertTokenizer` that the ids belong to.
        pairs: Whether sentence-order labels are wanted.

    Attributes:
        length: S, tokens of a padded sequence.
        fingerprint: SHA-256 over the checksums of all records, and the tokenizer.

    Raises:
        DataError: not-found, unfinished-export, no-examples, wrong-tokenizer; what `RecordFile` and `read` raise.
    """

    def __init__(self, path: str | Path, tokenizer: Any, pairs: bool = True) -> None:
        self.path, self.tokenizer, self.pairs = Path(path), tokenizer, pairs
        self._files = [RecordFile(file) for file in find_records(path)]
        self._first = np.cumsum([0, *map(len, self._files)])
        if not len(self):
            raise DataError("no-examples", f"there is no record in `{path}`", _WRITTEN_BY)
        fingerprints = [tokenizer.fingerprint, *(file.fingerprint for file in self._files)]
        self.fingerprint = hashlib.sha256("".join(fingerprints).encode()).hexdigest()
        self.length = 0  # of any record, until the first one has been read
        self.length = len(self._features(0)["input_ids"])
        self._check_tokenizer()

    def __len__(self) -> int:
        return int(self._first[-1])

    def held_out(self, share: float, seed: int) -> NDArray[np.bool_]:
        """Which records are kept for evaluation, by hash of (seed, number): bool [records]."""
        hashes = document_hash(seed, np.arange(len(self), dtype=np.uint64))
        return (hashes >> np.uint64(11)).astype(np.float64) < share * 2.0**53

    def read(self, number: int) -> Record:
        """A record without its padding.

        Raises:
            DataError: missing-feature, differing-records, broken-record, wrong-tokenizer, each with file and record;
                bad-checksum, broken-tensorflow-file.
        """
        features = self._features(number)
        ids, mask, segments, positions, labels, weights = (features[name] for name in FEATURES)
        tokens, wanted = int(mask.sum()), weights > 0
        record = Record(
            ids[:tokens], segments[:tokens], positions[wanted], labels[wanted],
            int(features[ORDER_LABEL][0]) if self.pairs else -100,
        )  # fmt: skip
        if not mask[:tokens].all() or tokens < 1:
            raise self._fault("broken-record", number, "has an input_mask that is not ones, then zeros")
        if len(record.positions) and not 0 <= record.positions.min() <= record.positions.max() < tokens:
            raise self._fault("broken-record", number, f"has a masked position outside its {tokens:,} tokens")
        if not 0 <= record.segment_ids.min() <= record.segment_ids.max() <= 1:
            raise self._fault("broken-record", number, "has segment ids other than 0 and 1")
        if record.order not in (0, 1, -100):
            raise self._fault("broken-record", number, f"has {record.order} for {ORDER_LABEL}, which is 0 or 1")
        for name, values in (("input_ids", record.input_ids), ("masked_lm_ids", record.labels)):
            outside = values[(values < 0) | (values >= self.tokenizer.vocab_size)]
            if len(outside):
                size = self.tokenizer.vocab_size
                raise self._fault(
                    "wrong-tokenizer", number, f"has {outside[0]:,} in {name}; the tokenizer has {size:,} pieces"
                )
        return record

    def batch(self, numbers: NDArray[Any]) -> PackedBatch:
        """Some records as a packed batch, their padding left out."""
        records = [self.read(number) for number in numbers.tolist()]
        lengths = [len(record.input_ids) for record in records]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = zip(offsets, records, strict=False)
        return PackedBatch(
            input_ids=torch.from_numpy(np.concatenate([record.input_ids for record in records])),
            token_type_ids=torch.from_numpy(np.concatenate([record.segment_ids for record in records])),
            position_ids=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
            offsets=torch.from_numpy(offsets),
            lengths=tuple(lengths),
            masked_positions=torch.from_numpy(np.concatenate([start + record.positions for start, record in places])),
            masked_labels=torch.from_numpy(np.concatenate([record.labels for record in records])),
            sentence_order_labels=torch.tensor([record.order for record in records]) if self.pairs else None,
        )

    def count_pieces(self, included: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How often each piece occurs in (at most 20,000 of) some records, masks undone and [CLS], [SEP] left out: [V]."""
        numbers = np.flatnonzero(included)
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        for number in numbers[:: -(-len(numbers) // _SAMPLE)].tolist():
            record = self.read(number)
            ids = record.input_ids.copy()
            ids[record.positions] = record.labels
            counts += np.bincount(ids, minlength=len(counts))
        counts[[self.tokenizer.cls_id, self.tokenizer.sep_id]] = 0
        return counts

    def _features(self, number: int) -> dict[str, NDArray[Any]]:
        """The features of a record, all there, of the right kinds and of lengths that fit together."""
        file = int(np.searchsorted(self._first, number, "right")) - 1
        payload = self._files[file][number - int(self._first[file])]
        try:
            found = read_example(payload)
        except DataError as error:
            raise self._fault(error.slug, number, f"cannot be read: {error.message}") from None
        features = {_V2_NAMES.get(name, name): values for name, values in found.items()}
        expected = (*FEATURES, ORDER_LABEL) if self.pairs else FEATURES
        if missing := [name for name in expected if name not in features]:
            fault = f"has no {', '.join(missing)} (it has {', '.join(sorted(found)) or 'no feature'})"
            hint = "these records hold no pairs: add --pair-task none" if missing == [ORDER_LABEL] else _WRITTEN_BY
            raise self._fault("missing-feature", number, fault, hint)
        kinds = {name: features[name].dtype.kind for name in expected}
        if wrong := [name for name, kind in kinds.items() if kind != ("f" if name == "masked_lm_weights" else "i")]:
            raise self._fault(
                "broken-record", number, f"has {wrong[0]} of another type than create_pretraining_data.py"
            )
        sizes = {name: len(features[name]) for name in expected}
        if self.length not in (0, sizes["input_ids"]):
            fault = f"has {sizes['input_ids']:,} input_ids, record 0 has {self.length:,}"
            raise self._fault("differing-records", number, fault, "train on files of one max_seq_length at a time")
        groups = (FEATURES[:3], FEATURES[3:])
        if any(len({sizes[name] for name in group}) > 1 for group in groups) or sizes.get(ORDER_LABEL, 1) != 1:
            described = ", ".join(f"{size:,} {name}" for name, size in sizes.items())
            raise self._fault("broken-record", number, f"has features of lengths that do not fit together: {described}")
        return features

    def _check_tokenizer(self) -> None:
        """Are [CLS], [SEP] and [MASK] where the records have them? 80 % of the masked pieces are shown as [MASK]."""
        cls_id, sep_id, mask_id = self.tokenizer.cls_id, self.tokenizer.sep_id, self.tokenizer.mask_id
        shown: list[int] = []
        for number in range(min(len(self), 100)):
            record = self.read(number)
            ends = record.input_ids[[0, -1]].tolist()
            if ends != [cls_id, sep_id]:
                fault = f"begins with id {ends[0]} and ends with {ends[1]}; the tokenizer's [CLS] is {cls_id}, its [SEP] {sep_id}"
                raise self._fault("wrong-tokenizer", number, fault)
            shown += record.input_ids[record.positions].tolist()
        if len(shown) >= 20 and mask_id not in shown:  # by chance once in 10^14
            raise self._fault(
                "wrong-tokenizer", 0, f"and those after it never show id {mask_id}, [MASK] of the tokenizer"
            )

    def _fault(self, slug: str, number: int, fault: str, hint: str = "") -> DataError:
        file = int(np.searchsorted(self._first, number, "right")) - 1
        where = f"record {number - int(self._first[file]):,} of `{self._files[file].path}`"
        if slug == "wrong-tokenizer":
            hint = "give the folder of the tokenizer that the records were made with: --tokenizer DIR"
        return DataError(slug, f"{where} {fault}", hint or "make the records anew")


def holds_records(path: Path) -> bool:
    """Is this a file, or the folder of an export or of files with `tfrecord` in their names?"""
    return path.is_file() or (path.is_dir() and ((path / UNFINISHED).exists() or bool(_records_in(path))))


def find_records(path: str | Path) -> list[Path]:
    """The files that a file's name, a glob or a folder stands for, in the order of their names.

    Raises:
        DataError: not-found, unfinished-export.
    """
    given = Path(path)
    if (given / UNFINISHED).exists():
        raise DataError("unfinished-export", f"the export of `{given}` has not finished", "run the same export again")
    if given.is_dir():
        files = _records_in(given)
    else:
        files = [given] if given.is_file() else [Path(name) for name in glob(str(path)) if Path(name).is_file()]
    if not files:
        raise DataError(
            "not-found", f"no TFRecord files at `{path}`", "give a file, a folder of *.tfrecord, or a quoted glob"
        )
    return sorted(files)


def _records_in(folder: Path) -> list[Path]:
    """Visible files like x.tfrecord, tf_examples.tfrecord-00000-of-00010 and x.tf_record."""
    names = (file for file in folder.iterdir() if not file.name.startswith("."))
    return [file for file in names if "tfrecord" in file.name.replace("_", "").lower() and file.is_file()]
