"""Examples to train sentence embeddings on: E examples of K texts each, with scores, classes or nothing.

A kind of data is one of four, or a task that is one: see `KINDS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from albertkit.data.bad_rows import BadRows, counted
from albertkit.data.columns import Columns
from albertkit.data.given import DataFile, DataFiles, Records, SplitRecords, as_source, file_name, quoted_name
from albertkit.embeddings.data import (
    CLASSES,
    TABLES,
    Examples,
    entailed,
    hold_out,
    pair_task,
    read_texts,
    score_range,
    triplets_of,
)
from albertkit.embeddings.options import EmbedTrainOptions
from albertkit.errors import ConfigError, DataError, near_miss
from albertkit.tasks.data import left_out_line, read_split
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextExample, TextTask

Kind = Literal["scores", "nli", "pairs", "texts"]
KINDS: dict[str, Kind] = {
    "stsb": "scores", "korsts": "scores", "klue-sts": "scores", "scores": "scores",
    "mnli": "nli", "klue-nli": "nli", "kornli": "nli", "nli": "nli", "pairs": "pairs", "texts": "texts",
}  # fmt: skip

_NO_GOLD = "-"
_SILVER = Columns(text="text", pair="pair", label="score")  # what `embed augment` writes


@dataclass(frozen=True)
class EmbeddingData:
    """Holds what a training reads."""

    kind: Kind
    train: Examples  # texts and targets as the loss wants them
    dev: Examples  # choose the best model: with scores, or pairs without
    notes: list[str]


def kind_of(name: str) -> Kind:
    """Return the kind that a name stands for."""
    if name not in KINDS:
        raise ConfigError("unknown-name", f"there is no kind of data `{name}`", near_miss(name, KINDS))
    return KINDS[name]


def read_scored(name: str, path: Path, bad_rows: BadRows) -> Examples:
    """Read scored pairs of an official task, with scores as they stand there: a file, or the dev file of a folder."""
    scored = [known for known, kind in KINDS.items() if kind == "scores" and known not in TABLES]
    if name not in scored:
        raise ConfigError("unknown-name", f"`{name}` is not a format with scores", f"use {', '.join(scored)}")
    source = _Source(name, "scores", Columns(), bad_rows)
    return source.read(source.dev_file(path), "dev")


def read_embedding_data(options: EmbedTrainOptions, triplets: bool, bad_rows: BadRows) -> EmbeddingData:
    """Read the examples of a training; `triplets`: inference pairs become triplets, else they are pairs with classes."""
    kind, data = kind_of(options.kind), as_source(options.data)
    if options.silver is not None and kind != "scores":
        fact = f"silver pairs have scores, `{options.kind}` has none"
        raise ConfigError("conflicting-options", fact, "leave --silver out")
    if options.dev_kind is not None and options.dev is None:
        raise ConfigError("conflicting-options", "--dev-kind is given, but no --dev", "name the dev file with --dev")
    source = _Source(options.kind, kind, options.columns, bad_rows)
    dev_source = source  # columns are those of DATA: a dev file of another kind has the form that its task has
    if options.dev_kind not in (None, options.kind):
        dev_source = _Source(options.dev_kind, kind_of(options.dev_kind), Columns(), bad_rows)
    files = source.files(data)
    train = source.read(files["train"], "train")
    if options.dev is None:
        own = next((file for split, file in files.items() if split.startswith("dev")), None)
    else:
        own = dev_source.dev_file(as_source(options.dev))
    if own is not None:
        dev, where = dev_source.read(own, "dev"), f"`{file_name(own)}`"
    elif kind == "texts":
        raise DataError(
            "too-little-data",
            "single texts do not say which model is better",
            "name pairs that do: --dev FILE --dev-kind korsts (or stsb, klue-sts, scores, pairs)",
        )
    else:
        train, dev = hold_out(train, options.settings.held_out, data)
        where = f"{options.settings.held_out:.0%} of the training examples, held out: there is no dev file"
    if dev_source.kind == "texts":
        raise ConfigError("conflicting-options", "single texts cannot be a dev set", "use scores, nli or pairs")
    notes: list[str] = []
    if kind == "scores":
        silver = None
        if options.silver is not None:
            silver_source = _Source("scores", "scores", _SILVER, bad_rows)
            silver = silver_source.read(silver_source.files(as_source(options.silver))["train"], "train")
        train, notes = _scaled(train, silver, options.kind not in TABLES)
    if dev_source.kind == "nli":
        dev = entailed(dev)
    elif dev_source.kind == "pairs" and len(dev.texts[0]) > 2:
        dev = Examples(list(dict.fromkeys((first, second) for first, second, *_ in dev.texts)))
    learned, said = _learned(kind, train, triplets, data)
    pair = "pair" if len(learned.texts[0]) == 2 else "triplet"
    if len(learned.texts[0]) > 3:
        said += f" and {len(learned.texts[0]) - 2} negatives each"
        pair = "pair"
    what = {"scores": "scored pair", "texts": "text"}.get(kind, pair)
    notes.insert(0, f"data: {counted(len(learned), what)}{said}; dev: {len(dev):,}, {where}")
    trained = {frozenset(row[:2]) for row in train.texts}
    if repeated := sum(frozenset(row[:2]) in trained for row in dev.texts):
        fact = f"{repeated:,} of {len(dev):,} dev pairs stand in the training examples, too: their scores are too good"
        notes.append(f"dev: {fact}")
    if bad_rows.found:
        notes.append(left_out_line(bad_rows.found))
    return EmbeddingData(kind, learned, dev, [*notes, *bad_rows.notes])


@dataclass(frozen=True)
class _Source:
    """Reads files of a kind."""

    name: str
    kind: Kind
    columns: Columns
    bad_rows: BadRows

    @property
    def task(self) -> Task:
        return pair_task(self.name, self.columns)

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        if self.kind not in ("scores", "nli") and not isinstance(data, SplitRecords):
            return {"train": data}
        found = data if isinstance(data, SplitRecords) else self.task.files(data)
        if "train" not in found:
            raise DataError(
                "missing-file",
                f"there is no training file in {quoted_name(data)} (found: {', '.join(sorted(found))})",
                "name the training file itself as DATA, and another with --dev",
            )
        return found

    def dev_file(self, data: DataFiles) -> DataFile:
        """Return a dev file, or that of a folder or of rows by split."""
        if isinstance(data, Path) and (not data.is_dir() or self.kind not in ("scores", "nli")):
            return data
        if isinstance(data, Records):
            return data
        found = data if isinstance(data, SplitRecords) else self.task.files(data)
        split = next((split for split in found if split.startswith("dev")), None)
        if split is None:
            raise DataError(
                "too-little-data",
                f"{quoted_name(data)} has no dev file (found: {', '.join(sorted(found))})",
                "name the file itself",
            )
        return found[split]

    def read(self, file: DataFile, split: str) -> Examples:
        """Read the rows of a file: pairs with scores as they stand there, pairs with classes, pairs, or texts."""
        if self.kind in ("pairs", "texts"):
            count = 2 if self.kind == "pairs" else 1
            return Examples(read_texts(file, self.columns, count, self.bad_rows, negatives=True))
        rows: list[TextExample] = read_split(self.task, file, split, self.bad_rows)
        if self.kind == "nli":
            rows = self._with_gold_labels(file, split, rows)
        texts = [(row.text, row.pair or "") for row in rows]
        labels: list[Any] = [row.label for row in rows]
        if self.kind == "scores":
            return Examples(texts, np.array(labels, np.float32))
        if unknown := set(labels) - set(CLASSES):
            raise DataError(
                "bad-label",
                f"{quoted_name(file)} has the class `{min(unknown)}`; pairs are {', '.join(CLASSES)}",
                "rename the classes, or name another column with --label",
            )
        return Examples(texts, np.array([CLASSES.index(label) for label in labels], np.int64))

    def _with_gold_labels(self, file: DataFile, split: str, rows: list[TextExample]) -> list[TextExample]:
        """Return the rows without those whose annotators did not agree, which SNLI labels `-`; they are bad rows."""
        if all(row.label != _NO_GOLD for row in rows):
            return rows
        numbered = cast(TextTask, self.task).rows(file, split=split, labelled=True, bad_rows=BadRows("skip"))
        for example, row in numbered:
            if example.label == _NO_GOLD:
                self.bad_rows.add(file, row.line, f"label `{_NO_GOLD}`: there is no gold label")
        return [row for row in rows if row.label != _NO_GOLD]


def _learned(kind: Kind, train: Examples, triplets: bool, data: DataFiles) -> tuple[Examples, str]:
    """Return the examples as losses want them, and say how they were made."""
    if kind == "texts":
        return Examples([(text, text) for (text,) in train.texts]), ", each with itself"
    if kind != "nli" or not triplets:
        return train, ""
    made, alone = triplets_of(train)
    if not made.texts:
        raise DataError(
            "too-little-data",
            f"{quoted_name(data)} has no text with both an entailed and a contradicting one",
            "use --loss softmax, which learns the classes of pairs",
        )
    return made, f" of {len(train):,} pairs ({alone:,} first texts have no entailed or no contradicting text)"


def _scaled(train: Examples, silver: Examples | None, official: bool) -> tuple[Examples, list[str]]:
    """Scale scores to 0 to 1, those of silver pairs after the others and by the same rule, and say how."""
    assert train.targets is not None
    low, high = score_range(train.targets, official)
    if low == high:
        raise DataError(
            "too-little-data", f"all {len(train):,} training pairs have the score {low:g}", "name the right --label"
        )
    notes = [f"scores: {low:g} to {high:g} in training, made 0 to 1"]
    if official:
        notes = [
            "scores: 0 to 5, divided by 5" if high > 1 else "scores: 0 to 1, where the published files have 0 to 5"
        ]
    texts, scores = train.texts, train.targets
    if silver is not None:
        assert silver.targets is not None
        texts, scores = [*texts, *silver.texts], np.concatenate([scores, silver.targets])
        found = f"{silver.targets.min():.2f} to {silver.targets.max():.2f}"
        notes.append(
            f"silver: {counted(len(silver), 'pair')} beside {len(train):,}, with scores of {found} on their scale"
        )
    return Examples(texts, np.clip((scores - low) / (high - low), 0, 1).astype(np.float32)), notes
