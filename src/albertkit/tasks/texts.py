"""Tasks on texts and pairs of texts: one of several classes, a number, or several labels for each."""

import csv
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from albertkit.batches.features import Features, LabelledBatch, tokens_left_for_text
from albertkit.errors import ConfigError, DataError, format_list, suggest_name
from albertkit.files import atomic_file
from albertkit.model import AlbertForSequenceClassification, SummedLoss
from albertkit.model.heads import class_loss
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.columns import Columns
from albertkit.tables.layouts import (
    IDS,
    OFFICIAL,
    TableForm,
    TaskLayout,
    choose_form,
    find_split_files,
    is_number,
)
from albertkit.tables.records import DataFile, DataFiles, file_name
from albertkit.tables.table import Null, Table, TableRow
from albertkit.tables.text_lines import BLANKS
from albertkit.tasks.metrics import (
    EVERY_ROW,
    RowScorer,
    bootstrap_intervals,
    class_scorer,
    class_table,
    confusion,
    label_set_scorer,
    regression_scorer,
    regression_scores,
)
from albertkit.tasks.predictions import (
    File,
    join_predictions,
    parse_labels,
    parse_predicted_labels,
    read_predictions,
    wrong_label_error,
)
from albertkit.tasks.task import (
    NO_NUMBER,
    Prediction,
    PredictionRecords,
    Task,
    columns_as_task_fields,
    head_config_for_labels,
    label_indices,
    rarer_of_two_classes,
    sorted_labels,
    values_of_labelled_examples,
)
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.inputs import NamedSpecials

ROWS_SEEN = 100  # of a file
_OWN_TABLE = TaskLayout(())
# Mean number of words; categories of three words repeat, passages may
_TEXT_WORDS, _LONG_WORDS = 3, 8
_WHOLE_FLOAT = re.compile(r"-?\d+\.0")
_WORD = re.compile(r"\S*[^\W\d_]\S*")
# Japanese and Chinese, about two characters a word
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")


def note_unread_texts(table: Table, read_columns: Iterable[str], bad_rows: BadRows) -> None:
    """Note the columns of a table of training examples that hold texts and are not read.

    Args:
        table: Opened once more, so a pipe is left alone.
        read_columns: Those that are read, or that repeat what is read.
        bad_rows: Takes the note.
    """
    columns = table.columns
    unread = [name for name in columns if name not in read_columns and columns.count(name) == 1]
    if not unread or not (reopened := table.reopen()):
        return
    with reopened:
        rows = [row.values for row in islice(reopened.rows([], unread), ROWS_SEEN)]
    values = {name: [row[name] for row in rows] for name in unread}
    _note_columns_of_texts(
        table.source,
        "column",
        values,
        "name those to read with --text-column and --pair-column",
        bad_rows,
    )


def note_unread_fields(
    file: DataFile, records: Iterable[Any], read_names: Iterable[str], hint: str, bad_rows: BadRows
) -> None:
    """Note the fields of JSON records of training examples that hold texts, or lists of words, and are not read."""
    values: dict[str, list[str]] = {}
    for record in islice(records, ROWS_SEEN):
        for name, value in record.items() if isinstance(record, dict) else ():
            words = value if isinstance(value, list) else [value]
            if name not in read_names and all(isinstance(word, str) for word in words):
                values.setdefault(name, []).append(" ".join(words))
    _note_columns_of_texts(file, "field", values, hint, bad_rows)


def _note_columns_of_texts(
    file: DataFile,
    column_word: str,
    texts_by_column: Mapping[str, Sequence[str]],
    hint: str,
    bad_rows: BadRows,
) -> None:
    texts = []
    for name, column in texts_by_column.items():
        filled = [text for text in column if text.strip()]
        num_words = sum(
            len(_WORD.findall(text)) + len(_UNSPACED.findall(text)) // 2 for text in filled
        )
        mean = num_words / max(len(filled), 1)
        if mean >= _LONG_WORDS or (mean >= _TEXT_WORDS and len(set(filled)) > len(filled) / 2):
            texts.append(f"`{name}`")
    if texts:
        column_word = f"{column_word} holds" if len(texts) == 1 else f"{column_word}s hold"
        bad_rows.note(
            f"`{file_name(file)}`: {len(texts)} {column_word} texts that are not read: {format_list(texts, 5)}; {hint}"
        )


def is_whole_float(label: str) -> bool:
    """Return whether a label looks like a whole number that pandas made a float, as it does where a column lacks values."""
    return _WHOLE_FLOAT.fullmatch(label) is not None


def are_whole_floats(table: Table, column: str) -> bool:
    """Return whether all labels in a column are whole floats; False for a pipe."""
    reopened = table.reopen()
    if reopened is None:
        return False
    with reopened:
        labels = (row.values[column].strip() for row in reopened.rows([], [column]))
        return all(not label or is_whole_float(label) for label in labels)


def text_features(
    texts: Sequence[str],
    pairs: Sequence[str | None] | None,
    tokenizer: AlbertTokenizer | NamedSpecials,
    length: int,
    stride: int = 0,
) -> Features:
    """Return texts, or pairs of texts, as the model reads them.

    An empty second text is none, as in Google's data. `NamedSpecials` reads as the `tokenizers`
    library: `[CLS] A [SEP] [SEP]`, and of two texts cut to halves of an odd room the longer one
    keeps more, or else the second.

    Returns:
        A sequence an example, in their order; with windows one or more. `left_out` counts the
        tokens that were cut.

    Source: `convert_single_example` and `_truncate_seq_pair` of google-research/albert,
    `classifier_utils.py`.
    """
    if (
        pairs is not None
        and not any(pairs)
        and (set(pairs) == {None} or not isinstance(tokenizer, NamedSpecials))
    ):
        # Without a second text the first has the place of one [SEP] more.
        pairs = None
    room = tokens_left_for_text(length, 2 if pairs is None else 3)
    first, first_starts = tokenizer.encode_batch(texts)
    lengths = np.diff(first_starts)
    starts = first_starts[:-1]
    examples = np.arange(len(texts))
    if pairs is None:
        if stride > room:
            raise ConfigError(
                "bad-value",
                f"a stride of {stride} leaves gaps between windows of {room} tokens",
                f"use a stride of at most {room}",
            )
        left_out = np.maximum(lengths - room, 0)
        if stride:
            left_out = np.zeros_like(left_out)
            examples, starts, lengths = _examples_starts_lengths_of_windows(
                starts, lengths, room, stride
            )
        elif tokenizer.truncation_side == "left":
            starts = starts + left_out
        nothing = np.zeros(len(examples), np.int64)
        features = _join_features(
            tokenizer,
            examples,
            first,
            starts,
            np.minimum(lengths, room),
            first,
            nothing,
            nothing,
            nothing,
        )
        return replace(features, left_out=left_out)
    second, second_starts = tokenizer.encode_batch([pair or "" for pair in pairs])
    second_lengths = np.diff(second_starts)
    single = second_lengths == 0
    # Of an odd room the first text gets more: of two that are as long Google's code takes from the
    # second.
    first_half = np.full(len(texts), (room + 1) // 2)
    if isinstance(tokenizer, NamedSpecials):
        single = np.array([pair is None for pair in pairs])
        first_half[lengths <= second_lengths] = room // 2
    # As if tokens were taken one by one from the longer text: it shrinks to what the shorter one
    # leaves; where the shorter one is more than half of the room, both get half.
    fits = lengths + second_lengths <= room
    first_share = np.maximum(room - second_lengths, first_half)
    second_share = np.maximum(room - lengths, room - first_half)
    first_kept = np.where(fits, lengths, np.minimum(lengths, first_share))
    second_kept = np.where(fits, second_lengths, np.minimum(second_lengths, second_share))
    # A text that stands alone among pairs needs one [SEP] less.
    first_kept[single] = np.minimum(lengths[single], room + 1)
    second_from = second_starts[:-1]
    if tokenizer.truncation_side == "left":
        starts = starts + lengths - first_kept
        second_from = second_from + second_lengths - second_kept
    features = _join_features(
        tokenizer,
        examples,
        first,
        starts,
        first_kept,
        second,
        second_from,
        second_kept,
        ~single,
    )
    return replace(features, left_out=lengths - first_kept + second_lengths - second_kept)


def _examples_starts_lengths_of_windows(
    starts: np.ndarray,
    lengths: np.ndarray,
    size: int,
    stride: int,
) -> tuple[np.ndarray, ...]:
    """Return example, start and length of each window; the last one of a text is the first that reaches its end."""
    counts = -(-np.maximum(lengths - size, 0) // stride) + 1
    examples = np.repeat(np.arange(len(lengths)), counts)
    number = _concatenate_ranges(np.zeros_like(counts), counts)
    return examples, starts[examples] + number * stride, lengths[examples] - number * stride


def _join_features(
    tokenizer: AlbertTokenizer | NamedSpecials,
    examples: np.ndarray,
    first: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    second: np.ndarray,
    second_starts: np.ndarray,
    second_lengths: np.ndarray,
    is_pair: np.ndarray,
) -> Features:
    """Assemble sequences from places in the ids of all texts."""
    ends = lengths + 2
    sizes = ends + second_lengths + is_pair
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    begin = offsets[:-1]
    # What is not written below is a [SEP].
    ids = np.full(offsets[-1], tokenizer.sep_id, np.int32)
    types = np.zeros(offsets[-1], np.uint8)
    ids[begin] = tokenizer.cls_id
    ids[_concatenate_ranges(begin + 1, lengths)] = first[_concatenate_ranges(starts, lengths)]
    ids[_concatenate_ranges(begin + ends, second_lengths)] = second[
        _concatenate_ranges(second_starts, second_lengths)
    ]
    types[_concatenate_ranges(begin + ends, sizes - ends)] = 1
    return Features(ids, types, offsets, examples.astype(np.int64))


def _concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return all places of ranges, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


Label = str | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair of texts.

    Attributes:
        id: What the data say, else the number of the row, from 0.
        text: The text, or the first one.
        pair: The second text. "" in a layout that allows it: then the first stands alone.
        label: The name of the label, the number of a regression, or the names of several labels;
            None if not read.
    """

    id: str
    text: str
    pair: str | None = None
    label: Label | None = None


@dataclass(frozen=True, kw_only=True)
class TextTask(Task[TextExample]):
    """A task on texts.

    Attributes:
        layout: Name of the official layout, a key of `OFFICIAL`; "" for a table of one's own.
        text_column: Column of the text, or of the first of a pair. "": as the layout has it, and
            all others with it.
        pair_column: Of the second text; "" for none.
        label_column: Of the label.
        id_column: Of the ids; "": as the layout has it, or one of `IDS` if it is there; else the
            number of the row is the id.
        columns: Names of all columns of a file that has no header.
        quoted: Whether fields may be in quotes. None: with commas they may, with tabs not; see
            `Table`.
        long_texts: What happens to a text longer than `length`: "truncate", or "windows" that
            overlap: each is trained with the text's label, and in prediction their logits are
            averaged. Not for pairs.
        stride: Pieces from the start of a window to that of the next; 0: half a window.
    """

    model_class = AlbertForSequenceClassification
    # further columns that may hold predictions; of classes they hold their probabilities
    prediction_columns: ClassVar[tuple[str, ...]] = ()
    layout: str = ""
    text_column: str = ""
    pair_column: str = ""
    label_column: str = ""
    id_column: str = ""
    columns: tuple[str, ...] = ()
    quoted: bool | None = None
    long_texts: Literal["truncate", "windows"] = "truncate"
    stride: int = 0

    def __post_init__(self) -> None:
        if self.layout and self.layout not in OFFICIAL:
            raise ConfigError(
                "unknown-name",
                f"there is no layout `{self.layout}`",
                f"known: {', '.join(OFFICIAL)}",
            )
        columns = [
            name
            for name in (self.text_column, self.pair_column, self.label_column, self.id_column)
            if name
        ]
        if repeated := {name for name in columns if columns.count(name) > 1}:
            raise ConfigError(
                "bad-value",
                f"column `{repeated.pop()}` is named for two things",
                "name a column for each",
            )
        # sentence2 and sentence1, hypothesis and premise, or an official pair the other way round
        numbered = re.fullmatch(r"(.*)2(\D*)", self.text_column)
        ordered_names = [(form.text, form.pair) for form in self._official_layout.forms]
        ordered_names += [(f"{numbered[1]}1{numbered[2]}", self.text_column)] if numbered else []
        names = (self.pair_column, self.text_column)
        is_inference = tuple(map(str.lower, names)) == ("premise", "hypothesis")
        if self.pair_column and (is_inference or names in ordered_names):
            raise ConfigError(
                "doubtful",
                f"`{self.text_column}` as first and `{self.pair_column}` as second text seem swapped",
                f"say --text-column {self.pair_column} --pair-column {self.text_column}",
            )
        if (
            self.layout
            and self.text_column
            and not self.pair_column
            and all(form.pair for form in self._official_layout.forms)
        ):
            raise ConfigError(
                "bad-value",
                f"`{self.name}` is on pairs of texts, and only the column of the first is named",
                "name that of the second with --pair-column",
            )
        if self.long_texts == "windows" and any(form.pair for form in self._table_forms):
            raise ConfigError(
                "bad-value",
                f"`{self.name}` has pairs of texts, and windows are for single ones",
                "truncate them",
            )

    # --- the data ---------------------------------------------------------------------------------

    def with_columns(self, columns: Columns | None) -> Self:
        """Return a task that reads a table with other columns; labels, length and all else stay."""
        changes = self._column_changes(columns or Columns())
        if not (self.text_column or "text_column" in changes) and {
            "pair_column",
            "label_column",
        } & set(changes):
            raise ConfigError(
                "bad-value",
                f"columns of `{self.name}` are named, but not that of the text",
                "name them all, --text-column first",
            )
        return self.with_changes(**changes)

    def _column_changes(self, columns: Columns) -> dict[str, Any]:
        """Return the fields of this task that the named columns change."""
        return columns_as_task_fields(columns)

    @property
    def reads_pairs(self) -> bool | None:
        """Return True where the data have pairs of texts; None where it is unknown (a converted model without `task.json`)."""
        has_own_columns = bool(self.text_column) and bool(self.label_column or self.pair_column)
        return (
            any(form.pair for form in self._table_forms) if has_own_columns or self.layout else None
        )

    @property
    def _official_layout(self) -> TaskLayout:
        """The official layout; for a table of one's own one without forms."""
        return OFFICIAL.get(self.layout, _OWN_TABLE)

    @property
    def _table_forms(self) -> tuple[TableForm, ...]:
        """The forms that a file may have."""
        if not self.text_column:
            return self._official_layout.forms
        ids = (self.id_column,) if self.id_column else IDS
        return (TableForm(self.text_column, self.pair_column, self.label_column, ids),)

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """See `Task.files` and `find_files`."""
        return find_split_files(data, self._official_layout.files, self._official_layout.folder)

    def examples(
        self,
        file: DataFile,
        *,
        split: str,
        labelled: bool,
        bad_rows: BadRows,
    ) -> Iterator[TextExample]:
        """Read a table, one row at a time. A row without text or label, or with the id of another, is a bad row.

        Ids are compared where they matter: not in training data, nor in a table of one's own
        without labels, which may be of any size.
        """
        for example, _ in self.rows(file, split=split, labelled=labelled, bad_rows=bad_rows):
            yield example

    def rows(
        self,
        file: DataFile,
        *,
        split: str,
        labelled: bool,
        bad_rows: BadRows,
        further_columns: Sequence[str] | None = (),
    ) -> Iterator[tuple[TextExample, TableRow]]:
        """Yield the examples of a file, as `examples` reads them, and their rows.

        The values of a row are of the columns that examples are made of, and of `further_columns`
        (None: all), "" where it lacks one. Without labels, and with single texts, a `.txt` file
        that has no such column is read as a text a line.
        """
        flags = getattr(self, "label_columns", ())  # of a multilabel task, 0 or 1 for each label
        if labelled and not flags and not any(form.label for form in self._table_forms):
            raise ConfigError(
                "missing-column",
                f"no column is named for the label of `{self.name}`",
                "name it with --label-column",
            )
        is_official = bool(self.layout) and not self.text_column
        quoted = (
            self._official_layout.quoted if is_official and self.quoted is None else self.quoted
        )
        single = (
            not labelled and not self.columns and not any(form.pair for form in self._table_forms)
        )
        needed = [form.required_columns(False) for form in self._table_forms] if single else []
        skip_short = labelled and is_official and self._official_layout.short_rows
        with Table(
            file, quoted=quoted, bad_rows=bad_rows, lines_unless=needed, skip_short=skip_short
        ) as table:
            if self.columns:
                table.without_header(self.columns)
            if table.is_lines:
                bad_rows.note(
                    f"{table.name} has no column `{needed[0][0]}`: every line is read as a text"
                )
            other_forms = {
                name: layout.forms
                for name, layout in OFFICIAL.items()
                if layout.kind == self.kind and name != self.layout
            }
            labels = getattr(self, "labels", ())
            fixed_labels = labels if self.layout else ()
            form = choose_form(
                table, self._table_forms, fixed_labels, labelled, self.name, other_forms
            )
            ids = [
                name
                for name in form.ids
                if name in table.columns and name not in form.required_columns(True)
            ]
            id_column = self.id_column or next(iter(ids), "")
            required = [
                *form.required_columns(labelled),
                *(flags if labelled else ()),
                *filter(None, [self.id_column]),
            ]
            if labelled and split == "train":
                parses = [
                    name for name in table.columns if is_official and name.endswith("_parse")
                ]  # MNLI: sentences again
                read_columns = [*required, *ids[:1], *parses]
                note_unread_texts(table, read_columns, bad_rows)
            optional = [*(table.columns if further_columns is None else further_columns), *ids[:1]]
            # Of annotators, in Prodigy
            has_verdicts = labelled and {"answer", "_input_hash"} <= set(table.columns)
            if has_verdicts:
                optional.append("answer")
            compared = (
                id_column
                and split != "train"
                and (self.id_column or self.layout)
                and (labelled or self.layout)
            )
            num_empty = 0
            # Of the labels, which are then read as whole numbers; None: not known yet
            whole_floats: bool | None = None
            has_classes = labelled and self.kind == "classification"
            for row in table.rows(
                required, optional, [form.label] if self.kind == "multilabel" else []
            ):
                # pandas makes `1.0` of `1` in a column with a gap. Half stars (1.0, 1.5) stay.
                if (
                    has_classes
                    and whole_floats is None
                    and (label := row.values[form.label].strip())
                ):
                    is_new_float = is_whole_float(label) and label not in labels
                    whole_floats = is_new_float and are_whole_floats(table, form.label)
                if whole_floats:
                    row.values[form.label] = row.values[form.label].strip().removesuffix(".0")
                name = (id_column and row.values[id_column]) or str(row.number)
                try:
                    if compared:
                        table.check_id(name, row.line)
                    if has_verdicts and row.values["answer"] in ("reject", "ignore"):
                        raise ValueError(
                            f"its `answer` is `{row.values['answer']}`: the annotator did not accept the label"
                        )
                    example = self._make_example(name, row, form, labelled)
                except DataError as error:  # of the whole column, not of this row
                    raise DataError(
                        error.slug,
                        f"{table.name}, {table.row_name(row.line)}: {error.message}",
                        error.hint,
                    ) from None
                except ValueError as error:
                    table.add_bad_row(row.line, *error.args)
                else:
                    num_empty += not example.text.strip() or (
                        example.pair is not None and not example.pair.strip()
                    )
                    yield example, row
            if num_empty:
                bad_rows.note(
                    f"`{file_name(file)}`: {pluralize(num_empty, 'row')} with an empty text, read as published"
                )
            if table.num_short:
                rows = pluralize(table.num_short, "row")
                bad_rows.note(
                    f"`{file_name(file)}`: {rows} without all fields passed over, as the original does"
                )

    def _make_example(
        self, example_id: str, row: TableRow, form: TableForm, labelled: bool
    ) -> TextExample:
        text = row.values[form.text]
        pair = row.values[form.pair] if form.pair else None
        for column, value in ((form.text, text), (form.pair, pair)):
            if value is not None and not value.strip() and not self._official_layout.empty_texts:
                raise ValueError(f"`{column}` is empty")
        return TextExample(
            example_id,
            text,
            pair,
            self.read_label(row.values, form) if labelled else None,
        )

    @abstractmethod
    def read_label(self, values: dict[str, str], form: TableForm) -> Label:
        """Return the label of a row."""

    @abstractmethod
    def _label_targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        """Return the labels as the loss wants them, [E, …]."""

    def features(
        self,
        examples: Sequence[TextExample],
        tokenizer: AlbertTokenizer,
        *,
        labelled: bool,
    ) -> Features:
        """Return a sequence an example; of long texts several, if `long_texts` is "windows". `labels` are per sequence."""
        texts = [example.text for example in examples]
        pairs = [example.pair for example in examples]
        stride = (
            (self.stride or max(1, (self.length - 2) // 2)) if self.long_texts == "windows" else 0
        )
        features = text_features(texts, pairs, tokenizer, self.length, stride)
        labels = {"labels": self._label_targets(examples)[features.examples]} if labelled else {}
        return replace(features, per_sequence=labels)

    # --- the model on a batch ---------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return the loss of the head, under the name of the task's kind; class weights are for single classes."""
        assert isinstance(model, AlbertForSequenceClassification)
        logits = model.packed_logits(batch.packed)
        labels = batch.per_sequence["labels"]
        if class_weights is not None:
            return {self.kind: class_loss(logits, labels, class_weights)}
        return {self.kind: model.task_loss(logits, labels)}

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Return labels of the batch."""
        return {self.kind: batch.per_sequence["labels"].numel()}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[np.ndarray]:
        """Return the logits of each sequence, float32 [C]."""
        assert isinstance(model, AlbertForSequenceClassification)
        return list(model.packed_logits(batch.packed).to(torch.float32).cpu().numpy())

    # --- the result -------------------------------------------------------------------------------

    def logits(
        self,
        examples: Sequence[TextExample],
        features: Features,
        outputs: Sequence[Any],
    ) -> np.ndarray:
        """Return for each example the mean over its windows, float64 [E, C]."""
        if not examples:
            return np.zeros((0, 1))
        bounds = features.sequence_bounds(len(examples))
        sums = np.add.reduceat(np.array(outputs, np.float64), bounds[:-1])
        return sums / np.diff(bounds)[:, None]

    def score(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> dict[str, float]:
        """Return the scores of the task's kind: `class_scorer`, `regression_scorer` or `label_set_scorer`."""
        return self._row_scorer(examples, predictions)(EVERY_ROW)

    def details(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> dict[str, Any]:
        """Return bootstrap intervals."""
        return {
            "intervals": bootstrap_intervals(
                self._row_scorer(examples, predictions), len(predictions)
            )
        }

    @abstractmethod
    def _row_scorer(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> RowScorer: ...

    def describe_example(self, example: TextExample) -> dict[str, Any]:
        """Return the text or the pair, and its label."""
        label = example.label
        texts = [text for text in (example.text, example.pair) if text]
        return {
            "texts": texts,
            "gold": ", ".join(label) if isinstance(label, tuple) else str(label),
        }

    def write(self, folder: Path, predictions: PredictionRecords, *, split: str) -> list[Path]:
        """Write GLUE's submission file, `index<TAB>prediction`; of other tables `predictions.tsv`, `id<TAB>prediction`.

        A name with a tab, a quote or a line end is in quotes.
        """
        names = self._official_layout.submissions
        path = folder / f"{names.get(split, names.get('', 'predictions'))}.tsv"
        with atomic_file(path, "w") as stream:
            writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
            writer.writerow(["index" if names else "id", "prediction"])
            writer.writerows((record["id"], self.answer_of(record)) for record in predictions)
        return [path]

    def read_predictions(
        self,
        file: str | os.PathLike[str],
        examples: Sequence[TextExample],
        *,
        label: str = "label",
        ids: Sequence[str] = IDS,
    ) -> list[Prediction]:
        """Read a table with the column `prediction`, or records of `albertkit predict`."""
        names = [example.id for example in examples]
        predictions = read_predictions(
            file,
            (label, "label", "labels", "value", *self.prediction_columns),
            ids,
        )
        answers = self.parse_answers(join_predictions(names, predictions, file), file)
        return [{"id": name, **answer} for name, answer in zip(names, answers, strict=True)]

    @abstractmethod
    def parse_answers(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        """Yield the answers that texts spell, without their ids."""

    @abstractmethod
    def answer_of(self, prediction: Prediction) -> str:
        """Return a prediction as submission files have it."""


# pandas.get_dummies writes False and True, or floats, numpy `0.`
_NO, _YES = ("0", "0.0", "0.", "false"), ("1", "1.0", "1.", "true")
_FLAG = re.compile(r"[^\s,;|\"'\[\]]+")  # in a list, however it is written
# As JSON, Python and numpy write one; `[18, 24]` may be an interval
_LIST = re.compile(r"\[\s*(['\"].*['\"]|[01]\.?[,\s]+[01]\.?|[-+.\d]+([,\s]+[-+.\d]+){2,})[,\s]*\]")
# Of the labels' standard deviation; a model that has learned anything has 0.3 and more
_CONSTANT = 0.02


USUAL_LABELS = {"multilabel": "labels"}  # columns of tables of one's own; else `label`


@dataclass(frozen=True, kw_only=True)
class TextClassification(TextTask):
    """One of several classes.

    Attributes:
        labels: Their names in the order of their indices; () until `fitted`, official tasks have
            theirs.
        positive_class: Of two classes the one whose f1, precision and recall are scored. "": the
            last of `labels`, as GLUE has it; `fitted` takes the rarer one in training.
    """

    kind: ClassVar[str] = "classification"
    labels: tuple[str, ...] = ()
    positive_class: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.positive_class
            and self.labels
            and (len(self.labels) != 2 or self.positive_class not in self.labels)
        ):
            raise ConfigError(
                "bad-value",
                f"positive_class is `{self.positive_class}`, "
                f"the classes are {format_list([f'`{name}`' for name in self.labels], 5)}",
                suggest_name(self.positive_class, self.labels)
                if len(self.labels) == 2
                else "it is for two classes; leave it out",
            )

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with other settings; other labels take the positive class away, unless it is one of two of them."""
        labels = changes.get("labels", self.labels)
        if labels and (len(labels) != 2 or self.positive_class not in labels):
            changes = {"positive_class": "", **changes}
        return super().with_changes(**changes)

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with an output for each class."""
        return head_config_for_labels(self.labels, "single_label_classification")

    def read_label(self, values: dict[str, str], form: TableForm) -> str:
        label = values[form.label].strip(BLANKS)
        if not label:
            raise ValueError(f"`{form.label}` is empty")
        if _LIST.fullmatch(label):
            raise ValueError(
                f"`{label[:40]}` is a list of labels",
                "write one name; the task of several is `multilabel`",
            )
        if label.startswith('{"choices":'):
            raise ValueError(
                f"`{label[:40]}` is a list of labels, as Label Studio writes several",
                "the task is `multilabel`",
            )
        # Files of the hub alone number their labels, and MNLI's in an order of their own.
        if form.numbered and label.isdecimal() and int(label) < len(form.numbered):
            return form.numbered[int(label)]
        if self.layout and label not in self.labels:
            names = self._official_layout.label_names
            if label in names:
                return self.labels[names.index(label)]
            raise ValueError(f"label `{label}` is none of {', '.join((*self.labels, *names))}")
        return label

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """Return this task with the labels of the training examples, sorted, numbers by size; official tasks keep theirs."""
        labels = Counter(values_of_labelled_examples(train))
        if len(labels) < 2:
            raise DataError(
                "too-little-data",
                f"all {len(train):,} training examples have the label `{next(iter(labels), '')}`",
                "name the right column with --label-column, or add examples of another class",
            )
        if self.layout:
            return self
        # On 90 `ok` and 10 `fraud` the f1 of the last in sort order was 0.95, that of `fraud` 0.40.
        return self.with_changes(
            labels=sorted_labels(labels),
            positive_class=self.positive_class or rarer_of_two_classes(labels),
        )

    def label_counts(self, examples: Sequence[TextExample]) -> list[int]:
        """Count the examples of each class."""
        counts = Counter(example.label for example in examples)
        return [counts[label] for label in self.labels]

    def _label_targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        return label_indices(values_of_labelled_examples(examples), self.labels)

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return for each example id, label, index, and the probability of each label."""
        logits = self.logits(examples, features, outputs)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        records: list[Prediction] = []
        for example, best, row in zip(
            examples, logits.argmax(1).tolist(), shares.tolist(), strict=True
        ):
            probabilities = dict(zip(self.labels, row, strict=True))
            label = self.labels[best]
            records.append(
                {"id": example.id, "label": label, "index": best, "probabilities": probabilities}
            )
        return records

    def _row_scorer(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> RowScorer:
        positive = self.labels.index(self.scored_class) if self.scored_class else 1
        return class_scorer(*self._label_indices(examples, predictions), len(self.labels), positive)

    def details(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> dict[str, Any]:
        """Return the positive one of two classes, the scores of each class, the confusion matrix, bootstrap intervals."""
        gold, predicted = self._label_indices(examples, predictions)
        return {
            **({"positive_class": self.scored_class} if self.scored_class else {}),
            "classes": class_table(gold, predicted, self.labels),
            "confusion": {
                "names": list(self.labels),
                "counts": confusion(gold, predicted, len(self.labels)),
            },
            **super().details(examples, predictions),
        }

    def collapsed(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> str | None:
        """Return a note if all predictions are one class, and the labels are not."""
        predicted = {record["label"] for record in predictions}
        if len(predicted) != 1 or len({example.label for example in examples}) < 2:
            return None
        return f"all {len(predictions):,} predictions are `{predicted.pop()}`"

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """Return the probability of the predicted class, where it is not the label."""
        return (
            0.0
            if prediction["label"] == example.label
            else prediction["probabilities"][prediction["label"]]
        )

    @property
    def scored_class(self) -> str:
        """The class whose f1, precision and recall are scored; "" if there are not two."""
        if len(self.labels) != 2:
            return ""
        return self.positive_class or self.labels[1]

    def _label_indices(
        self,
        examples: Sequence[TextExample],
        predictions: PredictionRecords,
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._label_targets(examples), label_indices(
            [record["label"] for record in predictions], self.labels
        )

    def parse_answers(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        if self.labels and (strange := [value for value in values if value not in self.labels]):
            raise wrong_label_error(file, strange, self.labels)
        return ({"label": value} for value in values)

    def answer_of(self, prediction: Prediction) -> str:
        return prediction["label"]


@dataclass(frozen=True, kw_only=True)
class TextRegression(TextTask):
    """A number.

    Attributes:
        activation: What is done with the model's output: "identity", or "sigmoid" as most
            CrossEncoders do.
    """

    kind: ClassVar[str] = "regression"
    prediction_columns: ClassVar[tuple[str, ...]] = ("score", "scores", "logits", "probability")
    metric: str = "pearson_and_spearman"
    activation: str = "identity"

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with one output."""
        return {"num_labels": 1, "problem_type": "regression"}

    def read_label(self, values: dict[str, str], form: TableForm) -> float:
        if not is_number(values[form.label]):
            raise ValueError(f"`{form.label}` is `{values[form.label]}`, not a number", NO_NUMBER)
        return float(values[form.label])

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """Return this task; labels that are all the same are an error."""
        labels = set(values_of_labelled_examples(train))
        if len(labels) < 2:
            raise DataError(
                "too-little-data",
                f"all {len(train):,} training examples have the number {next(iter(labels), '')}",
                "name the right column with --label-column",
            )
        return self

    def _label_targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        return np.array(values_of_labelled_examples(examples), np.float32)

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return for each example id and value."""
        logits = self.logits(examples, features, outputs)[:, 0]
        values = (1 / (1 + np.exp(-logits)) if self.activation == "sigmoid" else logits).tolist()
        return [
            {"id": example.id, "value": value}
            for example, value in zip(examples, values, strict=True)
        ]

    def score(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> dict[str, float]:
        """Return the scores of `regression_scores`; where the benchmark calls pairs similar, also the f1 of that."""
        scores = super().score(examples, predictions)
        return scores | regression_scores(
            values_of_labelled_examples(examples), [record["value"] for record in predictions]
        )

    def details(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> dict[str, Any]:
        """Return pairs of label and prediction, bootstrap intervals; of pairs that are similar or not what f1 is of."""
        pairs = [
            [label, record["value"]]
            for label, record in zip(
                values_of_labelled_examples(examples), predictions, strict=True
            )
        ]
        bound = self._official_layout.similar_from
        similar = {} if bound is None else {"positive_class": f"{bound:g} and more"}
        return {**similar, "pairs": pairs, **super().details(examples, predictions)}

    def _row_scorer(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> RowScorer:
        labels = np.array(values_of_labelled_examples(examples), np.float64)
        values = np.array([record["value"] for record in predictions], np.float64)
        scores = regression_scorer(labels, values)
        bound = self._official_layout.similar_from
        if bound is None:
            return scores
        similar = class_scorer((labels >= bound).astype(int), (values >= bound).astype(int), 2)
        return lambda rows: {**scores(rows), "f1": similar(rows)["f1"]}

    def collapsed(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> str | None:
        """Return a note if the predictions differ by less than a fiftieth of what the labels differ by."""
        values = np.array([record["value"] for record in predictions])
        labels = np.array([example.label for example in examples], np.float64)
        if labels.std() == 0 or values.std() >= _CONSTANT * labels.std():
            return None
        low = f"{values.min():.3f}"
        high = f"{values.max():.3f}"
        every = f"{low}" if low == high else f"between {low} and {high}"
        return f"all {len(values):,} predictions are {every}"

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """Return the distance from the label."""
        assert isinstance(example.label, float)
        return abs(prediction["value"] - example.label)

    def parse_answers(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        for index, text in enumerate(values):
            if not is_number(text):
                raise DataError(
                    "predictions-mismatch",
                    f"`{file}`: prediction {index + 1:,} is `{text}`, not a finite number",
                    "write numbers",
                )
            yield {"value": float(text)}

    def answer_of(self, prediction: Prediction) -> str:
        return f"{prediction['value']:.6f}"


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(TextTask):
    """Any number of labels for each text.

    The labels are in one column, with commas between them or as a JSON list; or each has a column
    that holds 0 or 1, or false or true.

    Attributes:
        labels: Their names in the order of their indices; () until `fitted`.
        label_columns: Columns of 0 and 1, each called as its label; () for one column,
            `label_column`.
    """

    kind: ClassVar[str] = "multilabel"
    metric: str = "f1_micro"
    labels: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with an output for each label."""
        return head_config_for_labels(self.labels, "multi_label_classification")

    def _column_changes(self, columns: Columns) -> dict[str, Any]:
        changes = super()._column_changes(columns)
        if columns.label is None:
            return changes
        names = tuple(name.strip() for name in columns.label.split(","))
        return changes | (
            {"label_columns": names, "label_column": ""}
            if len(names) > 1
            else {"label_columns": ()}
        )

    def read_label(self, values: dict[str, str], form: TableForm) -> tuple[str, ...]:
        if not self.label_columns:
            if isinstance(values[form.label], Null):
                raise ValueError(f"`{form.label}` is null", "write [] where no label applies")
            # A list that says of each label by its place whether it applies; `[0, 1]` alone may be
            # two numbers of classes.
            flags = [flag.lower() for flag in _FLAG.findall(values[form.label])]
            is_binary = len(flags) > 1 and all(flag in (*_NO, *_YES) for flag in flags)
            if is_binary and (len(set(flags)) < len(flags) or not {"0", "1"}.issuperset(flags)):
                fact = f"`{form.label}` is `{values[form.label][:40]}`, a 0 or 1 for each label, and nothing names the labels"
                hint = 'write the names of those that apply, such as ["toxic", "insult"], or a column of 0 and 1 for each label'
                raise DataError("bad-label", fact, f"{hint}: --label-column toxic,insult")
            return tuple(dict.fromkeys(parse_labels(values[form.label])))
        for name in self.label_columns:
            if values[name].lower() not in (*_NO, *_YES):
                raise ValueError(f"`{name}` is `{values[name]}`, neither 0 nor 1")
        return tuple(name for name in self.label_columns if values[name].lower() in _YES)

    def fitted(self, train: Sequence[TextExample]) -> Self:
        """Return this task with the labels of the training examples, sorted, numbers by size; or those that have a column."""
        sets = {frozenset(labels) for labels in values_of_labelled_examples(train)}
        if len(sets) < 2:
            alike = ", ".join(sorted(next(iter(sets), ()))) or "no label"
            raise DataError(
                "too-little-data",
                f"all {len(train):,} training examples have the same labels: {alike}",
                "name the right column with --label-column",
            )
        return self.with_changes(
            labels=self.label_columns or sorted_labels(frozenset().union(*sets))
        )

    def _label_targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        sets = values_of_labelled_examples(examples)
        return self._label_set_matrix(sets).astype(np.float32)

    def _label_set_matrix(self, sets: Sequence[Sequence[str]]) -> np.ndarray:
        """Return 0 or 1, int64 [E, C]."""
        columns = label_indices([label for labels in sets for label in labels], self.labels)
        matrix = np.zeros((len(sets), len(self.labels)), np.int64)
        matrix[np.repeat(np.arange(len(sets)), [len(labels) for labels in sets]), columns] = 1
        return matrix

    def predictions(
        self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]
    ) -> list[Prediction]:
        """Return for each example id, the labels whose probability is above one half, and the probability of each label."""
        logits = self.logits(examples, features, outputs)
        shares = 1 / (1 + np.exp(-logits))
        records: list[Prediction] = []
        for example, row in zip(examples, shares.tolist(), strict=True):
            probabilities = dict(zip(self.labels, row, strict=True))
            labels = [label for label, share in probabilities.items() if share > 0.5]
            records.append({"id": example.id, "labels": labels, "probabilities": probabilities})
        return records

    def _row_scorer(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> RowScorer:
        return label_set_scorer(
            self._label_set_matrix(values_of_labelled_examples(examples)),
            self._label_set_matrix([r["labels"] for r in predictions]),
        )

    def collapsed(
        self, examples: Sequence[TextExample], predictions: PredictionRecords
    ) -> str | None:
        """Return a note if all predictions are the same labels, and the labels are not."""
        predicted = {frozenset(record["labels"]) for record in predictions}
        if (
            len(predicted) != 1
            or len({frozenset(labels) for labels in values_of_labelled_examples(examples)}) < 2
        ):
            return None
        return f"all {len(predictions):,} predictions are the same labels: {', '.join(sorted(predicted.pop())) or 'none'}"

    def error(self, example: TextExample, prediction: Prediction) -> float:
        """Return how many labels are predicted wrongly, or not predicted."""
        assert isinstance(example.label, tuple)
        return float(len(set(prediction["labels"]) ^ set(example.label)))

    def parse_answers(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        sets = [parse_predicted_labels(value, file) for value in values]
        if self.labels and (
            strange := [label for labels in sets for label in labels if label not in self.labels]
        ):
            raise wrong_label_error(file, strange, self.labels)
        return ({"labels": labels} for labels in sets)

    def answer_of(self, prediction: Prediction) -> str:
        return ",".join(prediction["labels"])


_CLASSES: dict[str, type[TextTask]] = {
    "classification": TextClassification,
    "regression": TextRegression,
    "multilabel": MultiLabelClassification,
}


def official_task(name: str, columns: Columns | None = None, **settings: Any) -> TextTask:
    """Return a task whose files are in the official layout, or have these columns."""
    if name not in OFFICIAL:
        raise ConfigError(
            "unknown-name",
            f"there is no task `{name}`",
            suggest_name(name, OFFICIAL),
        )
    layout = OFFICIAL[name]
    own_labels = {"labels": layout.labels} if layout.labels else {}
    settings = {"name": name, "layout": name, "metric": layout.metric, **own_labels, **settings}
    return _CLASSES[layout.kind](**settings).with_columns(columns)


def table_task(kind: str, name: str, columns: Columns, **settings: Any) -> TextTask:
    """Return a task on a table of one's own."""
    return _CLASSES[kind](name=name, **settings).with_columns(columns)
