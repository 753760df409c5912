"""Examples to train sentence embeddings on: E examples of K texts each, with scores, classes or nothing.

A kind of data is one of four, or a task that is one: see `KINDS`.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from albertkit.embeddings.options import EmbedTrainOptions
from albertkit.errors import ConfigError, DataError, format_list, suggest_name
from albertkit.printable import Notes
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.columns import Columns
from albertkit.tables.files import InputFile, find_input_file
from albertkit.tables.layouts import IDS
from albertkit.tables.records import (
    DataFile,
    DataFiles,
    SplitRecords,
    as_source,
    file_name,
    quoted_name,
)
from albertkit.tables.table import EXTENSIONS, Table, numbered_text_lines
from albertkit.tasks.data import (
    dev_split,
    draw_held_out,
    measure_overlap,
    read_split,
    training_file,
)
from albertkit.tasks.registry import find_task
from albertkit.tasks.task import Task
from albertkit.tasks.texts import TextExample, TextTask, table_task
from albertkit.tokenizer.texts import check_is_running_text, read_lines

TABLES = {"scores": "regression", "nli": "classification"}  # kinds that are tables
# Official layouts of scored pairs, and the column that says where a pair is from.
LAYOUTS = {"stsb": "genre", "korsts": "genre", "klue-sts": "source"}
MAX_OFFICIAL_SCORE = 5.0  # score of the official tasks, whose lowest is 0
_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson|json|parquet|pq)(\.(gz|xz|zst))?$", re.IGNORECASE)
_NAME_COLUMN_HINT = (
    "name the column of the texts: --text {column}; "
    "if the first line is no header, all columns: --columns c1,c2 --text c2"
)
LINE_HINTS = {  # for a file that is no text a line
    "csv": _NAME_COLUMN_HINT,
    "tsv": _NAME_COLUMN_HINT,
    "jsonl": "name the field of the texts: --text text, and call the file .jsonl",
    "other": "take the texts out of it, one a line, and name that file",
}


def read_texts(
    file: DataFile, columns: Columns, count: int | None, bad_rows: BadRows, negatives: bool = False
) -> list[tuple[str, ...]]:
    """Read rows of `count` texts, or as many as are named or stand in the first line, from lines or a table.

    A table whose columns are not named has no header unless its first line has two names of
    `_PAIR_NAMES`, and all its fields are texts. A file of one text a row is no table, but lines,
    and refused if they are structured (`check_running_text`); empty ones are passed over.
    `bad_rows` collects rows with another number of fields, or an empty text.

    Args:
        negatives: Read the texts of columns called `negative`, `neg`, `negative_1` … after those of
            each pair.
    """
    if columns.label is not None or columns.id is not None:
        raise ConfigError(
            "conflicting-options",
            "texts have no label and no id",
            "leave out --label and --id",
        )
    rows: list[tuple[str, ...]] = []
    is_table = True
    if isinstance(file, Path) and columns.text is None and columns.columns is None:
        is_table = count not in (None, 1)
        if count is None:  # known by its name, or by a tab in its first line
            is_table = bool(_TABLE.search(file.name)) or "\t" in next(iter(read_lines(file)), "")
        if not is_table:
            check_is_running_text(file, LINE_HINTS)
            rows = [(line,) for line in read_lines(file) if line.strip()]
    if is_table:
        rows = _read_table(file, columns, count, bad_rows, negatives)
    if not rows:
        raise DataError(
            "too-little-data",
            f"{quoted_name(file)} holds no text",
            "name a file with texts",
        )
    return rows


# Columns of pairs as published sets call them. A first line with both names is a header.
_PAIR_NAMES = (
    ("anchor", "positive"), ("query", "positive"), ("query", "pos"), ("query", "answer"), ("query", "passage"),
    ("question", "answer"), ("question", "context"), ("sentence1", "sentence2"), ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"), ("text1", "text2"), ("text_1", "text_2"), ("text_a", "text_b"), ("question1", "question2"),
    ("caption1", "caption2"), ("title1", "title2"), ("title", "body"), ("title", "abstract"), ("text", "simplified"),
    ("premise", "entailment"), ("english", "non_english"), ("english", "korean"), ("en", "ko"),
    ("ko", "en"), ("source", "target"), ("src", "tgt"), ("text", "pair"), ("sentence", "paraphrase"),
)  # fmt: skip
_NEGATIVE = re.compile(r"(hard_?)?neg(ative)?s?(_?\d+)?|contradiction", re.IGNORECASE)
# BGE has most of them
_OTHER_COLUMNS = {*IDS, *"pos_id neg_id pos_ids neg_ids pos_scores neg_scores prompt type".split()}
_MAX_WORD_LINES = 0.1  # of the lines of a table; in a dictionary all are words


def _read_table(
    file: DataFile, columns: Columns, count: int | None, bad_rows: BadRows, negatives: bool
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    first_line: tuple[str, ...] = ()  # of a table without a header
    with Table(file, quoted=columns.quoted, bad_rows=bad_rows) as table:
        if columns.columns is not None:
            table.without_header([name.strip() for name in columns.columns.split(",")])
        text_columns = [name for name in (columns.text, columns.pair) if name is not None]
        # Reversed: of two names that differ in case alone the first counts.
        by_name = {re.sub("[ -]", "_", name.lower()): name for name in reversed(table.columns)}
        known_pairs = [pair for pair in _PAIR_NAMES if by_name.keys() >= set(pair)]
        pairs = [[by_name[first], by_name[second]] for first, second in known_pairs]
        # Of several such pairs the one that begins furthest left.
        pair = min(pairs, key=lambda pair: table.columns.index(pair[0]), default=[])
        hard = [name for name in table.columns if _NEGATIVE.fullmatch(name)]
        if not text_columns and pair:
            skipped = set(pair) if negatives else {*pair, *hard}
            further = [
                name
                for name in table.columns
                if name not in skipped and name.lower() not in _OTHER_COLUMNS
            ]
            text_columns = [*pair, *further]
        elif not text_columns:
            if columns.columns is None and not table.has_own_names:
                first_line = table.columns
                table.without_header([f"column {n}" for n in range(1, len(table.columns) + 1)])
            text_columns = list(table.columns)
        unread = [
            name
            for name in table.columns
            if name not in text_columns and (name in hard or not columns.text)
        ]
        if unread:
            bad_rows.note(
                f"{quoted_name(file)}: read: {format_list(_quote_names(text_columns))}; "
                f"not read: {format_list(_quote_names(unread))}"
            )
        if (
            count is not None
            and len(text_columns) != count
            and (not pair or text_columns != [*pair, *hard])
        ):
            hint = "name those to read: --text FIRST --pair SECOND, and --columns for all of a file without a header"
            if negatives and len(text_columns) == count + 1:
                hint += "; of triplets all: --columns anchor,positive,negative"
            names = ", ".join(_quote_names(text_columns))
            raise DataError(
                "bad-row",
                f"{table.name}, {table.row_name(1)}: {len(text_columns)} columns ({names}), but an example has {count} texts",
                hint,
            )
        for row in table.rows(text_columns, lists=text_columns):
            fields = [row.values[name] for name in text_columns]
            lists = [_texts_of_field(field) if table.has_own_names else [field] for field in fields]
            is_usable = [bool(texts) and all(text.strip() for text in texts) for texts in lists]
            if all(is_usable):
                # A list of texts meets each of the other texts of its row in turn. Rows of as many
                # negatives as the shortest list has would drop the others, or repeat some and weigh
                # them more.
                rows += [
                    tuple(texts[n % len(texts)] for texts in lists)
                    for n in range(max(map(len, lists)))
                ]
            else:
                index = is_usable.index(False)
                reason = "is empty" if len(lists[index]) == 1 else "is empty, or no list of texts"
                table.add_bad_row(row.line, f"`{text_columns[index]}` {reason}")
    # A line may name columns if it has single words without a sign, as few of the other rows have.
    if (
        first_line
        and all(map(str.isidentifier, first_line))
        and sum(all(map(str.isidentifier, row)) for row in rows[1:])
        <= _MAX_WORD_LINES * (len(rows) - 1)
    ):
        hint = f"if it names columns: {' '.join(_column_options(first_line))}"
        bad_rows.note(
            f"{quoted_name(file)}: the first line ({format_list(_quote_names(first_line))}) is read as a row of texts; {hint}"
        )
    if columns.text is None and rows and (count is None or not pair):
        check_columns_are_sentences(file, text_columns, rows)
    return rows


def _texts_of_field(value: str) -> list[str]:
    """Return the texts of a field: those of a list, as BGE's files have them, else the field."""
    if value.startswith("[") and value.endswith("]"):
        try:
            texts = json.loads(value)
        except ValueError:
            return [value]
        # Without a text the row is reported as a bad one.
        return list(texts) if all(isinstance(text, str) for text in texts) else []
    return [value]


def _quote_names(names: Sequence[str]) -> list[str]:
    return [f"`{name[:40]}`" for name in names]


def _column_options(names: Sequence[str]) -> list[str]:
    """Return the options that name the first two columns."""
    return [f"--{option} {name}" for option, name in zip(("text", "pair"), names, strict=False)]


def score_scale(scores: Sequence[float] | np.ndarray, is_official: bool) -> tuple[float, float]:
    """Return the lowest and the highest score: of a table those that occur, of official pairs 0 and 5.

    Some editions of official pairs, such as `sentence-transformers/stsb`, have scores of 0 to 1.
    """
    low = float(min(scores))
    high = float(max(scores))
    if not is_official:
        return low, high
    if low < 0 or high > MAX_OFFICIAL_SCORE:
        raise DataError(
            "bad-label",
            f"the scores are {low:g} to {high:g}, those of the official pairs 0 to {MAX_OFFICIAL_SCORE:g}, or 0 to 1",
            "read them as `scores`, a table with a scale of its own",
        )
    return 0.0, 1.0 if high <= 1 else MAX_OFFICIAL_SCORE


def find_pair_task(kind: str, columns: Columns) -> Task:
    """Return the task that reads pairs of a kind: an official layout, or a table whose columns are named."""
    if kind not in TABLES:
        return find_task(kind, columns)
    missing = [name for name in ("text", "pair", "label") if getattr(columns, name) is None]
    if missing:
        raise ConfigError(
            "missing-column",
            f"`{kind}` is a table, and its column of the {missing[0]} is not named",
            "name them all, for example --text sentence1 --pair sentence2 --label score; of a file without a header also all "
            "its columns: --columns a,b,c",
        )
    return table_task(TABLES[kind], kind, columns)


_MAX_SAMPLE_VALUES = 10_000  # values of a column, taken from all over it
_MAX_SHARE_OF_KIND = 0.5  # of the values of a column may be of one of these kinds
# Of the values; captions of one picture repeat a text five to ten times, a language code always
_MIN_DISTINCT_SHARE = 0.05
_MIN_ROWS = 5  # one value in fewer rows says nothing
_MIN_COMMON_START = 16  # characters; "query: " and "passage: " are shorter

_LICENCE = re.compile(
    r"\bCC[- ]?(BY|0)\b|creative commons|\battribution\b|\blicen[cs]ed?\b.{0,40}\b(GPL|MIT|Apache|BSD|CC)|©|all rights reserved",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"^\s*(https?://|ftp://|www\.)\S+\s*$|^\S+@\S+\.\w+$", re.IGNORECASE)
_ID = re.compile(r"^(?=\S*\d)[\x21-\x7e]+$", re.ASCII)  # one word of ASCII with a digit in it


def _is_name_or_number(value: str) -> bool:
    if _ID.search(value):
        return True
    letters = sum(map(str.isalpha, value))
    return letters == 0 or sum(map(str.isdigit, value)) >= letters


_NON_SENTENCES: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("licence notes", _LICENCE.search),
    ("addresses", _ADDRESS.search),
    ("ids, numbers or dates", _is_name_or_number),
)


def check_columns_are_sentences(
    file: DataFile,
    names: Sequence[str],
    rows: Sequence[tuple[str, ...]],
) -> None:
    """Refuse a table of which not all K columns are sentences, unless the columns to read are named."""
    contents = {k: _describe_non_sentences([row[k] for row in rows]) for k in range(len(names))}
    doubts = "; ".join(
        f"`{names[k]}` holds {content}" for k, content in contents.items() if content
    )
    if not doubts:
        return
    sentences = [k for k, content in contents.items() if not content]
    hint = "name a file with a column of sentences"
    if sentences:
        is_unnamed = all(name == f"column {n}" for n, name in enumerate(names, 1))
        short_names = [f"c{n}" for n in range(1, len(names) + 1)] if is_unnamed else list(names)
        options = _column_options([short_names[k] for k in sentences])
        if is_unnamed:
            options.insert(0, f"--columns {','.join(short_names)}")
        hint = f"name the columns to read: {' '.join(options)}"
        if len(sentences) > 2:
            fields = ",".join(str(k + 1) for k in sentences)
            hint += f"; or keep all {len(sentences)} of them: cut -f {fields} {file} > texts.tsv"
    raise DataError(
        "doubtful",
        f"{quoted_name(file)}: {doubts}, and would be trained on as a text",
        hint,
    )


def _describe_non_sentences(values: Sequence[str]) -> str:
    """Describe the content of a column that does not hold sentences; "" for sentences."""
    sample = values[:: max(1, len(values) // _MAX_SAMPLE_VALUES)]
    example = f"such as `{_shorten(sample[0])}`"
    for kind, is_of_kind in _NON_SENTENCES:
        if sum(1 for value in sample if is_of_kind(value)) > _MAX_SHARE_OF_KIND * len(sample):
            return f"{kind}, {example}"
    different = len(set(sample))
    if len(sample) >= _MIN_ROWS and different <= max(1, _MIN_DISTINCT_SHARE * len(sample)):
        values_text = "value" if different == 1 else "values"
        return f"{different:,} different {values_text} in {len(sample):,} rows, {example}"
    start = os.path.commonprefix(sample)  # noqa: RUF071 - of texts, not of paths
    if len(sample) >= _MIN_ROWS and len(start) >= _MIN_COMMON_START:
        return f"values that all begin with `{_shorten(start)}`"
    return ""


def _shorten(value: str) -> str:
    return value if len(value) <= 50 else f"{value[:49]}…"


CLASSES = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True)
class TextExamples:
    """E examples of K texts each."""

    texts: Sequence[tuple[str, ...]]
    targets: np.ndarray | None = None  # fp32 [E] scores, int64 [E] indices in `CLASSES`, or None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Sequence[int]) -> "TextExamples":
        """Return the examples of some indices."""
        targets = None if self.targets is None else self.targets[list(indices)]
        return TextExamples([self.texts[index] for index in indices], targets)


def make_triplets_and_count_unpaired(pairs: TextExamples) -> tuple[TextExamples, int]:
    """Return triplets (text, entailed, contradicting), also with the first two exchanged, and the number of first texts without.

    Of each first text every entailed and every contradicting text is used, with the other ones in
    turn.

    Source: the recipe `training_nli_v2.py` of sentence-transformers, which draws one of each at
    random.
    """
    assert pairs.targets is not None
    by_text: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for (text, pair), target in zip(pairs.texts, pairs.targets.tolist(), strict=True):
        if CLASSES[target] != "neutral":
            by_text[text][CLASSES[target] == "contradiction"].append(pair)
    triplets: list[tuple[str, ...]] = []
    num_complete = 0
    for text, (entailed_texts, contradicting_texts) in by_text.items():
        if not entailed_texts or not contradicting_texts:
            continue
        num_complete += 1
        for n in range(max(len(entailed_texts), len(contradicting_texts))):
            positive = entailed_texts[n % len(entailed_texts)]
            negative = contradicting_texts[n % len(contradicting_texts)]
            triplets += [(text, positive, negative), (positive, text, negative)]
    return TextExamples(triplets), len({text for text, _ in pairs.texts}) - num_complete


def select_entailed(pairs: TextExamples) -> TextExamples:
    """Return the entailed pairs, of each first text and of each second one the first: pairs to find again among each other."""
    assert pairs.targets is not None
    firsts: set[str] = set()
    seconds: set[str] = set()
    entailed_pairs = []
    for (text, pair), target in zip(pairs.texts, pairs.targets.tolist(), strict=True):
        # A second text that the same one entails would be a right answer that counts as wrong.
        if CLASSES[target] == "entailment" and text not in firsts and pair not in seconds:
            firsts.add(text)
            seconds.add(pair)
            entailed_pairs.append((text, pair))
    return TextExamples(entailed_pairs)


def split_train_and_dev_rows(
    rows: Sequence[tuple[str, ...]],
    share: float,
    data: DataFiles,
) -> tuple[list[int], list[int]]:
    """Return the indices of rows to train on and of those to keep as dev; see `draw_held_out`."""
    dev_rows = draw_held_out("texts", rows, [()] * len(rows), share, data)
    return [row for row in range(len(rows)) if row not in dev_rows], sorted(dev_rows)


# --- texts of a file of any size ------------------------------------------------------------------


class FileText(NamedTuple):
    """A text of a file."""

    number: int  # position in the file, from 0; texts that cannot be read are counted
    id: str | None  # of the column of ids; None without one
    text: str


@dataclass(frozen=True)
class TextInput:
    """Reads texts. Without any of the names a file is lines, unless it is called a table (.csv, .jsonl, …).

    The fields are those of `EncodeOptions`; `file` may be a URL.
    """

    file: str
    text: str | None = None
    id: str | None = None
    columns: str | None = None
    quoted: bool | None = None

    @property
    def is_table(self) -> bool:
        """Return whether it is read as a table."""
        # The last one that is known decides: `a.csv.gz` is a table, `a.jsonl.txt` is lines.
        extensions = [
            part for part in reversed(Path(self.file).name.lower().split(".")) if part in EXTENSIONS
        ]
        return any((self.text, self.id, self.columns)) or (
            bool(extensions) and extensions[0] != "txt"
        )

    def find_file(self) -> InputFile:
        """Return the file, with size and time of the last change."""
        file = find_input_file(self.file)
        if "://" not in file.path and not os.path.isfile(file.path):
            raise DataError(
                "wrong-kind",
                f"`{self.file}` is not a plain file, and it must be read more than once",
                "put the texts into a file",
            )
        return file

    def texts(self, bad_rows: BadRows) -> Iterator[FileText]:
        """Yield the texts, in order; bad rows are added to `bad_rows`."""
        if self.is_table:
            text = self.text or "text"
            with Table(self.file, quoted=self.quoted, bad_rows=bad_rows) as table:
                if self.columns is not None:
                    table.without_header([name.strip() for name in self.columns.split(",")])
                for row in table.rows([text] if self.id is None else [text, self.id]):
                    yield FileText(
                        row.number,
                        None if self.id is None else row.values[self.id],
                        row.values[text],
                    )
            return
        for number, line in numbered_text_lines(self.find_file(), bad_rows):
            yield FileText(number - 1, None, line)


Kind = Literal["scores", "nli", "pairs", "texts"]
KINDS: dict[str, Kind] = {
    "stsb": "scores", "korsts": "scores", "klue-sts": "scores", "scores": "scores",
    "mnli": "nli", "klue-nli": "nli", "kornli": "nli", "nli": "nli", "pairs": "pairs", "texts": "texts",
}  # fmt: skip

_NO_GOLD = "-"
_SILVER_COLUMNS = Columns(text="text", pair="pair", label="score")  # what `embed augment` writes


@dataclass(frozen=True)
class EmbeddingData:
    """Examples of a training."""

    kind: Kind
    train: TextExamples  # texts and targets as the loss reads them
    dev: TextExamples  # choose the best model: with scores, or pairs without
    notes: list[str]


def find_data_kind(name: str) -> Kind:
    """Return the kind that a name stands for."""
    if name not in KINDS:
        raise ConfigError(
            "unknown-name",
            f"there is no kind of data `{name}`",
            suggest_name(name, KINDS),
        )
    return KINDS[name]


def read_scored_pairs(name: str, path: Path, bad_rows: BadRows) -> TextExamples:
    """Read scored pairs of an official task, with scores as they stand there: a file, or the dev file of a folder."""
    if name not in LAYOUTS:
        raise ConfigError(
            "unknown-name",
            f"`{name}` is not a format with scores",
            f"use {', '.join(LAYOUTS)}",
        )
    reader = _ExampleReader(name, "scores", Columns(), bad_rows)
    return reader.read_examples(reader.dev_file(path), "dev")


def read_embedding_data(
    options: EmbedTrainOptions,
    triplets: bool,
    bad_rows: BadRows,
) -> EmbeddingData:
    """Read the examples of a training; `triplets`: inference pairs become triplets, else they are pairs with classes."""
    kind = find_data_kind(options.kind)
    data = as_source(options.data)
    if options.silver is not None and kind != "scores":
        raise ConfigError(
            "conflicting-options",
            f"silver pairs have scores, `{options.kind}` has none",
            "leave --silver out",
        )
    if options.dev_kind is not None and options.dev is None:
        raise ConfigError(
            "conflicting-options",
            "a kind of dev examples is named, but no dev file",
            "name the dev file with --dev",
        )
    reader = _ExampleReader(options.kind, kind, options.columns, bad_rows)
    # Columns are those of DATA: a dev file of another kind has the form that its task has
    dev_reader = reader
    if options.dev_kind not in (None, options.kind):
        dev_reader = _ExampleReader(
            options.dev_kind,
            find_data_kind(options.dev_kind),
            Columns(),
            bad_rows,
        )
    files = reader.files(data)
    train = reader.read_examples(training_file(files, data), "train")
    dev_file = None
    if options.dev is not None:
        dev_file = dev_reader.dev_file(as_source(options.dev))
    elif split := dev_split(files):
        dev_file = files[split]
    if dev_file is not None:
        dev = dev_reader.read_examples(dev_file, "dev")
        dev_source = f"`{file_name(dev_file)}`"
    elif kind == "texts":
        raise DataError(
            "too-little-data",
            "single texts do not say which model is better",
            "name pairs that do: --dev FILE --dev-kind korsts (or stsb, klue-sts, scores, pairs)",
        )
    else:
        # Negatives may stand in both: mined ones are positives of other rows.
        texts = [row[:2] for row in train.texts]
        rows, dev_rows = split_train_and_dev_rows(texts, options.settings.held_out, data)
        train, dev = train.take(rows), train.take(dev_rows)
        dev_source = f"{options.settings.held_out:.0%} of the training examples, held out: there is no dev file"
    if dev_reader.kind == "texts":
        raise ConfigError(
            "conflicting-options",
            "single texts cannot be a dev set",
            "use scores, nli or pairs",
        )
    notes: list[str] = []
    if kind == "scores":
        silver = None
        if options.silver is not None:
            silver_reader = _ExampleReader("scores", "scores", _SILVER_COLUMNS, bad_rows)
            silver_data = as_source(options.silver)
            silver_file = training_file(silver_reader.files(silver_data), silver_data)
            silver = silver_reader.read_examples(silver_file, "train")
        train, notes = _scale_scores(train, silver, options.kind not in TABLES)
    if dev_reader.kind == "nli":
        dev = select_entailed(dev)
    elif dev_reader.kind == "pairs" and len(dev.texts[0]) > 2:
        # A pair that is listed once for each of its negatives is one pair.
        pairs = dict.fromkeys(row[:2] for row in dev.texts)
        dev = TextExamples(list(pairs))
    examples, origin = _loss_examples_and_origin(kind, train, triplets, data)
    num_columns = len(examples.texts[0])
    if num_columns > 3:
        origin += f" and {num_columns - 2} negatives each"
    group = "triplet" if num_columns == 3 else "pair"
    noun = {"scores": "scored pair", "texts": "text"}.get(kind, group)
    notes.insert(
        0,
        f"data: {pluralize(len(examples), noun)}{origin}; dev: {len(dev):,}, {dev_source}",
    )
    notes += measure_overlap("texts", [texts[:2] for texts in train.texts], dev.texts).lines(
        "dev",
        len(dev),
    )
    return EmbeddingData(kind, examples, dev, [*notes, *bad_rows.report_lines()])


@dataclass(frozen=True)
class _ExampleReader:
    """Reads files of a kind."""

    name: str
    kind: Kind
    columns: Columns
    bad_rows: BadRows

    @property
    def task(self) -> Task:
        return find_pair_task(self.name, self.columns)

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """Return the files of a folder by split, or rows by split; one file is "train"."""
        if isinstance(data, SplitRecords):
            return data
        return self.task.files(data) if self.kind in ("scores", "nli") else {"train": data}

    def dev_file(self, data: DataFiles) -> DataFile:
        """Return a dev file, or that of a folder or of rows by split."""
        is_folder = isinstance(data, Path) and data.is_dir() and self.kind in ("scores", "nli")
        if not is_folder and not isinstance(data, SplitRecords):
            return data
        files = self.files(data)
        split = dev_split(files)
        if split is None:
            raise DataError(
                "too-little-data",
                f"{quoted_name(data)} has no dev file (found: {', '.join(sorted(files))})",
                "name the file itself",
            )
        return files[split]

    def read_examples(self, file: DataFile, split: str) -> TextExamples:
        """Read the rows of a file: pairs with scores as they stand there, pairs with classes, pairs, or texts."""
        if self.kind in ("pairs", "texts"):
            count = 2 if self.kind == "pairs" else 1
            return TextExamples(
                read_texts(file, self.columns, count, self.bad_rows, negatives=True)
            )
        rows: list[TextExample] = read_split(self.task, file, split, self.bad_rows)
        if self.kind == "nli" and any(row.label == _NO_GOLD for row in rows):
            # SNLI labels a pair `-` whose annotators did not agree. It is read again, for its line.
            numbered = cast(TextTask, self.task).rows(
                file,
                split=split,
                labelled=True,
                bad_rows=BadRows("skip"),
            )
            for example, table_row in numbered:
                if example.label == _NO_GOLD:
                    self.bad_rows.add(
                        file,
                        table_row.line,
                        f"label `{_NO_GOLD}`: there is no gold label",
                    )
            rows = [row for row in rows if row.label != _NO_GOLD]
        texts = [(row.text, row.pair or "") for row in rows]
        labels: list[Any] = [row.label for row in rows]
        if self.kind == "scores":
            return TextExamples(texts, np.array(labels, np.float32))
        unknown = set(labels) - set(CLASSES)
        if unknown:
            raise DataError(
                "bad-label",
                f"{quoted_name(file)} has the class `{min(unknown)}`; pairs are {', '.join(CLASSES)}",
                "rename the classes, or name another column with --label",
            )
        return TextExamples(texts, np.array([CLASSES.index(label) for label in labels], np.int64))


def _loss_examples_and_origin(
    kind: Kind,
    train: TextExamples,
    as_triplets: bool,
    data: DataFiles,
) -> tuple[TextExamples, str]:
    """Return the examples as losses read them, and a phrase on their origin."""
    if kind == "texts":
        return TextExamples([(text, text) for (text,) in train.texts]), ", each with itself"
    if kind != "nli" or not as_triplets:
        return train, ""
    triplet_examples, num_unpaired = make_triplets_and_count_unpaired(train)
    if not triplet_examples.texts:
        raise DataError(
            "too-little-data",
            f"{quoted_name(data)} has no text with both an entailed and a contradicting one",
            "use --loss softmax, which learns the classes of pairs",
        )
    return (
        triplet_examples,
        f" of {len(train):,} pairs ({num_unpaired:,} first texts have no entailed or no contradicting text)",
    )


def _scale_scores(
    train: TextExamples,
    silver: TextExamples | None,
    official: bool,
) -> tuple[TextExamples, Notes]:
    """Scale scores to 0 to 1, those of silver pairs by the same rule and after the others; return notes on it."""
    assert train.targets is not None
    low, high = score_scale(train.targets, official)
    if low == high:
        raise DataError(
            "too-little-data",
            f"all {len(train):,} training pairs have the score {low:g}",
            "name the right --label",
        )
    notes = [f"scores: {low:g} to {high:g} in training, made 0 to 1"]
    if official:
        notes = [
            "scores: 0 to 5, divided by 5"
            if high > 1
            else "scores: 0 to 1, where the published files have 0 to 5"
        ]
    texts = train.texts
    scores = train.targets
    if silver is not None:
        assert silver.targets is not None
        texts = [*texts, *silver.texts]
        scores = np.concatenate([scores, silver.targets])
        silver_range = f"{silver.targets.min():.2f} to {silver.targets.max():.2f}"
        notes.append(
            f"silver: {pluralize(len(silver), 'pair')} beside {len(train):,}, with scores of {silver_range} on their scale"
        )
    return TextExamples(
        # Silver scores may lie beyond the gold ones.
        texts,
        np.clip((scores - low) / (high - low), 0, 1).astype(np.float32),
    ), notes
