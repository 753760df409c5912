"""Base of all tasks on texts and pairs of texts: rows, features, running the model."""

from __future__ import annotations

import csv
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from albertkit.data.bad_rows import BadRows, counted
from albertkit.data.columns import IDS, Columns
from albertkit.data.features import Features, LabelledBatch
from albertkit.data.given import SPLIT_NAMES, DataFile, DataFiles, file_name
from albertkit.data.layouts import Form, choose_form, find_files
from albertkit.data.tables import Row, Table
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file
from albertkit.tasks.column_values import are_whole_floats, note_unread_texts
from albertkit.tasks.prediction_files import File, join, read_predictions
from albertkit.tasks.task import Prediction, Task, column_fields
from albertkit.tasks.texts.features import text_features
from albertkit.tasks.texts.official import OFFICIAL

if TYPE_CHECKING:
    from torch import Tensor

    from albertkit.model.outputs import SummedLoss
    from albertkit.model.pretrained import PretrainedAlbert
    from albertkit.tokenizer import AlbertTokenizer

Label = str | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair of texts.

    Attributes:
        id: What the data say, else the number of the row, from 0.
        text: The text, or the first one.
        pair: The second text. "" in a layout that allows it: then the first stands alone.
        label: The name of the label, the number of a regression, or the names of several labels; None if not read.
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
        text_column: Column of the text, or of the first of a pair. "": as the layout has it, and all others with it.
        pair_column: Of the second text; "" for none.
        label_column: Of the label.
        id_column: Of the ids; "": as the layout has it, or one of `IDS` if it is there; else the number of the row is the id.
        columns: Names of all columns of a file that has no header.
        quoted: Whether fields may be in quotes. None: with commas they may, with tabs not; see `Table`.
        long_texts: What happens to a text longer than `length`: "truncate", or "windows" that overlap: each is trained with
            the text's label, and in prediction their logits are averaged. Not for pairs.
        stride: Pieces from the start of a window to that of the next; 0: half a window.
    """

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
            raise ConfigError("unknown-name", f"there is no layout `{self.layout}`", f"known: {', '.join(OFFICIAL)}")
        named = [name for name in (self.text_column, self.pair_column, self.label_column, self.id_column) if name]
        if repeated := {name for name in named if named.count(name) > 1}:
            raise ConfigError(
                "bad-value", f"column `{repeated.pop()}` is named for two things", "name a column for each"
            )
        if _seem_swapped(self.text_column, self.pair_column, [(form.text, form.pair) for form in self._official_forms]):
            raise ConfigError(
                "doubtful",
                f"`{self.text_column}` as first and `{self.pair_column}` as second text seem swapped",
                f"say --text-column {self.pair_column} --pair-column {self.text_column}",
            )
        if (
            self.layout
            and self.text_column
            and not self.pair_column
            and all(form.pair for form in self._official_forms)
        ):
            raise ConfigError(
                "bad-value",
                f"`{self.name}` is on pairs of texts, and only the column of the first is named",
                "name that of the second with --pair-column",
            )
        if self.long_texts == "windows" and any(form.pair for form in self._forms):
            raise ConfigError(
                "bad-value", f"`{self.name}` has pairs of texts, and windows are for single ones", "truncate them"
            )

    @property
    def model_class(self) -> type[PretrainedAlbert]:
        from albertkit.tasks import heads

        return heads.AlbertForSequenceClassification

    # --- the data -----------------------------------------------------------------------------------------------------

    def with_columns(self, columns: Columns | None) -> Self:
        """Return a task that reads a table with other columns; labels, length and all else stay."""
        changes = self._changes(columns or Columns())
        if not (self.text_column or "text_column" in changes) and {"pair_column", "label_column"} & set(changes):
            raise ConfigError(
                "bad-value",
                f"columns of `{self.name}` are named, but not that of the text",
                "name them all, --text-column first",
            )
        return self.with_changes(**changes)

    def _changes(self, columns: Columns) -> dict[str, Any]:
        """Return what the columns that are given change in this task."""
        return column_fields(columns)

    @property
    def reads_pairs(self) -> bool | None:
        """Return True where the data have pairs of texts; None where it is unknown (a converted model without `task.json`)."""
        named = bool(self.text_column) and bool(self.label_column or self.pair_column)
        return any(form.pair for form in self._forms) if named or self.layout else None

    @property
    def _official_forms(self) -> tuple[Form, ...]:
        return OFFICIAL[self.layout].forms if self.layout else ()

    @property
    def _forms(self) -> tuple[Form, ...]:
        """The forms that a file may have."""
        if not self.text_column:
            return self._official_forms
        ids = (self.id_column,) if self.id_column else IDS
        return (Form(self.text_column, self.pair_column, self.label_column, ids),)

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        """See `Task.files` and `find_files`."""
        layout = OFFICIAL.get(self.layout)
        return find_files(data, layout.files, layout.folder) if layout else find_files(data, SPLIT_NAMES)

    def examples(self, file: DataFile, *, split: str, labelled: bool, bad_rows: BadRows) -> Iterator[TextExample]:
        """Read a table, one row at a time. A row without text or label, or with the id of another, is a bad row.

        Ids are compared where they matter: not in training data, nor in a table of one's own without labels, which may be
        of any size.
        """
        for example, _ in self.rows(file, split=split, labelled=labelled, bad_rows=bad_rows):
            yield example

    def rows(
        self, file: DataFile, *, split: str, labelled: bool, bad_rows: BadRows, more: Sequence[str] | None = ()
    ) -> Iterator[tuple[TextExample, Row]]:
        """Yield the examples of a file, as `examples` reads them, and their rows.

        The values of a row are of the columns that examples are made of, and of `more` columns (None: all), "" where it lacks
        one. Without labels, and with single texts, a `.txt` file that has no such column is read as a text a line.
        """
        layout = OFFICIAL.get(self.layout)
        if labelled and not self._has_labels:
            raise ConfigError(
                "missing-column", f"no column is named for the label of `{self.name}`", "name it with --label-column"
            )
        quoted = layout.quoted if layout and not self.text_column and self.quoted is None else self.quoted
        single = not labelled and not self.columns and not any(form.pair for form in self._forms)
        needed = [form.wanted(False) for form in self._forms] if single else []
        skip_short = labelled and layout is not None and layout.short_rows and not self.text_column
        with Table(file, quoted=quoted, bad_rows=bad_rows, lines_unless=needed, skip_short=skip_short) as table:
            if self.columns:
                table.without_header(self.columns)
            if table.is_lines:
                bad_rows.note(f"{table.name} has no column `{needed[0][0]}`: every line is read as a text")
            others = {
                name: known.forms for name, known in OFFICIAL.items() if known.kind == self.kind and name != self.layout
            }
            form = choose_form(table, self._forms, self._known_labels(), labelled, self.name, others)
            ids = [name for name in form.ids if name in table.columns and name not in form.wanted(True)]
            id_column = self.id_column or next(iter(ids), "")
            wanted = [*self._wanted(form, labelled), *([self.id_column] if self.id_column else [])]
            has_header = not form.header and not self.columns
            if labelled and split == "train":
                is_official = self.layout and not self.text_column
                parses = [
                    name for name in table.columns if is_official and name.endswith("_parse")
                ]  # MNLI: sentences again
                read = [*wanted, *ids[:1], *parses]
                note_unread_texts(file, table.columns, read, bad_rows, quoted=quoted, header=has_header)
            optional = [*(table.columns if more is None else more), *ids[:1]]
            compared = id_column and split != "train" and (self.id_column or self.layout) and (labelled or self.layout)
            lines: dict[str, int] | None = {} if compared else None
            num_empty = 0
            whole_floats: bool | None = None  # of the labels, which are then read as whole numbers; None: not known yet
            for row in table.rows(wanted, optional, self._list_columns):
                if labelled and whole_floats is None and (label := row.values.get(form.label, "").strip()):
                    whole_floats = self._may_be_whole_float(label) and are_whole_floats(
                        file, table.columns, form.label, quoted=quoted, header=has_header
                    )
                if whole_floats:
                    row.values[form.label] = row.values[form.label].strip().removesuffix(".0")
                name = (id_column and row.values[id_column]) or str(row.number)
                try:
                    if lines is not None and (first := lines.setdefault(name, row.line)) != row.line:
                        raise ValueError(f"id `{name}` again, as in {table.place(first)}")
                    example = self._example(name, row, form, labelled)
                except DataError as error:  # of the whole column, not of this row
                    raise DataError(
                        error.slug, f"{table.name}, {table.place(row.line)}: {error.message}", error.hint
                    ) from None
                except ValueError as error:
                    table.add_bad_row(row.line, *error.args)
                else:
                    num_empty += not example.text.strip() or (example.pair is not None and not example.pair.strip())
                    yield example, row
            if num_empty:
                bad_rows.note(f"`{file_name(file)}`: {counted(num_empty, 'row')} with an empty text, read as published")
            if table.num_short:
                rows = counted(table.num_short, "row")
                bad_rows.note(f"`{file_name(file)}`: {rows} without all fields passed over, as the original does")

    @property
    def _has_labels(self) -> bool:
        """Return True where the column of the labels is known."""
        return any(form.label for form in self._forms)

    @property
    def _list_columns(self) -> tuple[str, ...]:
        """The columns that may hold lists."""
        return ()

    def _wanted(self, form: Form, labelled: bool) -> list[str]:
        return form.wanted(labelled)

    def _example(self, name: str, row: Row, form: Form, labelled: bool) -> TextExample:
        """Return the example of a row."""
        text, pair = row.values[form.text], row.values[form.pair] if form.pair else None
        may_be_empty = self.layout and OFFICIAL[self.layout].empty_texts
        for column, value in ((form.text, text), (form.pair, pair)):
            if value is not None and not value.strip() and not may_be_empty:
                raise ValueError(f"`{column}` is empty")
        return TextExample(name, text, pair, self.read_label(row.values, form) if labelled else None)

    @abstractmethod
    def read_label(self, values: dict[str, str], form: Form) -> Label:
        """Return the label of a row."""

    def _may_be_whole_float(self, label: str) -> bool:
        """Return whether a label may be a whole number that became a float."""
        return False

    def _known_labels(self) -> tuple[str, ...]:
        """Return names that a label may have, where they are fixed."""
        return ()

    @abstractmethod
    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        """Return the labels as the loss wants them, [E, …]."""

    def features(self, examples: Sequence[TextExample], tokenizer: AlbertTokenizer, *, labelled: bool) -> Features:
        """Return a sequence an example; of long texts several, if `long_texts` is "windows". `labels` are per sequence."""
        texts = [example.text for example in examples]
        pairs = [example.pair or "" for example in examples] if any(example.pair for example in examples) else None
        stride = (self.stride or max(1, (self.length - 2) // 2)) if self.long_texts == "windows" else 0
        made = text_features(texts, pairs, tokenizer, self.length, stride)
        labels = {"labels": self._targets(examples)[made.examples]} if labelled else {}
        return replace(made, per_sequence=labels)

    # --- the model on a batch -----------------------------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return the loss of the head, under the name of the task's kind; class weights are for single classes."""
        from albertkit.tasks import heads

        return {self.kind: heads.text_loss(model, batch, class_weights, self.kind)}

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Return labels of the batch."""
        return {self.kind: batch.per_sequence["labels"].numel()}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[np.ndarray]:
        """Return the logits of each sequence, float32 [C]."""
        from albertkit.tasks import heads

        return heads.text_outputs(model, batch)

    # --- the result ---------------------------------------------------------------------------------------------------

    def logits(self, examples: Sequence[TextExample], features: Features, outputs: Sequence[Any]) -> np.ndarray:
        """Return for each example the mean over its windows, float64 [E, C]."""
        if not examples:
            return np.zeros((0, 1))
        bounds = features.sequences_of(len(examples))
        sums = np.add.reduceat(np.array(outputs, np.float64), bounds[:-1])
        return sums / np.diff(bounds)[:, None]

    def shown(self, example: TextExample) -> dict[str, Any]:
        """Return the text or the pair, and its label."""
        label = example.label
        texts = [text for text in (example.text, example.pair) if text]
        return {"texts": texts, "gold": ", ".join(label) if isinstance(label, tuple) else str(label)}

    def write(self, folder: Path, predictions: Sequence[Prediction], *, split: str) -> list[Path]:
        """Write GLUE's submission file, `index<TAB>prediction`; of other tables `predictions.tsv`, `id<TAB>prediction`.

        A name with a tab, a quote or a line end is in quotes.
        """
        names = OFFICIAL[self.layout].submissions if self.layout else {}
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
        given = read_predictions(file, (label, "label", "labels", "value", *self._prediction_columns), ids)
        answers = self._parsed(join(names, given, file), file)
        return [{"id": name, **answer} for name, answer in zip(names, answers, strict=True)]

    @property
    def _prediction_columns(self) -> tuple[str, ...]:
        """Further columns that may hold predictions; of classes they hold their probabilities."""
        return ()

    @abstractmethod
    def _parsed(self, values: Sequence[str], file: File) -> Iterator[dict[str, Any]]:
        """Yield the answers that texts spell, without their ids."""

    @abstractmethod
    def answer_of(self, prediction: Prediction) -> str:
        """Return a prediction as submission files have it."""


def _seem_swapped(text: str, pair: str, known: Sequence[tuple[str, str]]) -> bool:
    """Return whether the names say that the second text is the first: sentence2 and sentence1, hypothesis and premise."""
    numbered = re.fullmatch(r"(.*)2(\D*)", text)
    if numbered and pair == f"{numbered[1]}1{numbered[2]}":
        return True
    return bool(pair) and ((pair, text) in known or (pair.lower(), text.lower()) == ("premise", "hypothesis"))
