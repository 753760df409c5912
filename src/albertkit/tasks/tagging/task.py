"""Tagging: a tag for each word of a sentence, for example named entities in IOB2; or for each character, as in KLUE-NER."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from albertkit.data import IGNORED
from albertkit.data.bad_rows import BadRows
from albertkit.data.columns import Columns, named_options
from albertkit.data.features import Features, LabelledBatch
from albertkit.data.given import DataFile, DataFiles
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, write_lines
from albertkit.tasks.label_names import label_indices, named_outputs
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.tagging import span_scores, span_scores_of, span_table, spans
from albertkit.tasks.tagging.features import gold_tags, spread, tagging_features
from albertkit.tasks.tagging.sentences import (
    FILES,
    Layout,
    TaggedExample,
    entity_tags,
    find_files,
    read_predicted_tags,
    read_tagged,
)
from albertkit.tasks.task import Prediction, Task, column_fields

if TYPE_CHECKING:
    from torch import Tensor

    from albertkit.model.outputs import SummedLoss
    from albertkit.model.pretrained import PretrainedAlbert
    from albertkit.tokenizer import AlbertTokenizer

Outputs = tuple[np.ndarray, np.ndarray]  # label and probability of each word that is tagged in a sequence

TAGGING_TASKS = tuple(FILES)


@dataclass(frozen=True, kw_only=True)
class TaggingTask(Task[TaggedExample]):
    """Tag words.

    Attributes:
        labels: The tags, `O` first; of the training examples.
        layout: Of files: words (a word a line) or characters (a character a line, as KLUE-NER).
        word_column: Column of the word in such a file, from 0; negative: from the end.
        tag_column: Column of the tag, likewise.
        text_column: Field of the words in JSONL; "": `tokens`.
        label_column: Of the tags, likewise; "": `tags` or `ner_tags`.
    """

    kind: ClassVar[str] = "tagging"
    metric: str = "f1"
    labels: tuple[str, ...] = ()
    layout: str = "words"
    word_column: int = 0
    tag_column: int = -1
    text_column: str = ""
    label_column: str = ""

    # --- the model ----------------------------------------------------------------------------------------------------

    @property
    def model_class(self) -> type[PretrainedAlbert]:
        from albertkit.tasks import heads

        return heads.AlbertForTokenClassification

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with an output for each tag."""
        return named_outputs(self.labels, "single_label_classification")

    # --- the data -----------------------------------------------------------------------------------------------------

    def with_columns(self, columns: Columns | None) -> Self:
        """Return a task that reads other fields of JSONL."""
        fields = column_fields(columns or Columns())
        if others := [name.removesuffix("_column") for name in fields if name not in ("text_column", "label_column")]:
            fact = f"`{self.name}` reads words and tags: --text-column and --label-column name them in JSONL"
            raise ConfigError("conflicting-options", fact, f"leave out {named_options(others)}")
        return self.with_changes(**fields)

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        return find_files(data, self.name)

    def examples(self, file: DataFile, *, split: str, labelled: bool, bad_rows: BadRows) -> Iterator[TaggedExample]:
        """See `Task.examples` and `read_tagged`; only what is trained on must be well-formed."""
        is_characters = self.layout == "characters"
        layout = Layout(is_characters, self.word_column, self.tag_column, self.text_column, self.label_column)
        return read_tagged(file, layout, labelled=labelled, bad_rows=bad_rows, strict=split == "train")

    def fitted(self, train: Sequence[TaggedExample]) -> Self:
        """Return this task with its tags: `O`, then `B-` and `I-` of each type in training, though only one may occur."""
        types = sorted({tag[2:] for example in train for tag in example.tags if tag != "O"})
        if not types:
            raise DataError(
                "too-little-data",
                f"the {len(train):,} training sentences have no tag but `O`",
                "name the right column of the tags",
            )
        return self.with_changes(labels=("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI")))

    def label_counts(self, examples: Sequence[TaggedExample]) -> list[int]:
        """Count the words of each tag."""
        counts = Counter(tag for example in examples for tag in example.tags)
        return [counts[label] for label in self.labels]

    def features(self, examples: Sequence[TaggedExample], tokenizer: AlbertTokenizer, *, labelled: bool) -> Features:
        """See `tagging_features`."""
        return tagging_features(examples, tokenizer, self.length, self.labels if labelled else None)

    # --- the model on a batch -----------------------------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return the cross-entropy of the tags of the words that have a token of their own."""
        from albertkit.tasks import heads

        return {"tagging": heads.tag_loss(model, batch, class_weights)}

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Return the number of words with a token of their own."""
        return {"tagging": int((batch.per_token["labels"] != IGNORED).sum())}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[Outputs]:
        """Return the likeliest tags of the words of each sequence, and their probabilities."""
        from albertkit.tasks import heads

        return heads.tag_outputs(model, batch)

    # --- the result ---------------------------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[TaggedExample], features: Features, outputs: Sequence[Outputs]
    ) -> list[Prediction]:
        """Return for each sentence id, words, tags (a tag a word, as predicted), and entities: type, text, start and end in
        characters of the text, score (the mean probability of its tags). An `I-` that continues nothing begins an entity.
        """
        words, bounds = features.per_token["words"], features.sequences_of(len(examples))
        records = []
        for example, start, stop in zip(examples, bounds[:-1], bounds[1:], strict=True):
            tokens = slice(features.offsets[start], features.offsets[stop])
            tagged = words[tokens] >= 0
            labels = np.concatenate([labels for labels, _ in outputs[start:stop]])
            probabilities = np.concatenate([probabilities for _, probabilities in outputs[start:stop]])
            tags, shares = spread(
                len(example.words),
                words[tokens][tagged],
                features.per_token["ends"][tokens][tagged],
                [self.labels[label] for label in labels],
                probabilities,
            )
            entities = list(_entities(example, tags, shares, self.labels))
            records.append({"id": example.id, "words": list(example.words), "tags": tags, "entities": entities})
        return records

    def score(self, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return precision, recall and F1 of entities, accuracy of words; of KLUE-NER also the benchmark's own two."""
        gold, predicted = gold_tags(examples), [record["tags"] for record in predictions]
        if self.labels:
            label_indices([tag for tags in gold for tag in tags], self.labels)
        right = sum(a == b for one, other in zip(gold, predicted, strict=True) for a, b in zip(one, other, strict=True))
        scores = span_scores(gold, predicted) | {"accuracy": right / max(sum(map(len, gold)), 1)}
        return scores | klue_scores(examples, predicted) if self.name == "klue-ner" else scores

    def details(self, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Return the scores of each type, and bootstrap intervals over sentences."""
        gold, predicted = gold_tags(examples), [record["tags"] for record in predictions]
        return {
            "types": span_table(gold, predicted),
            "intervals": bootstrap_intervals(span_scores_of(gold, predicted), len(gold)),
        }

    def collapsed(self, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]) -> str | None:
        """Return a note if no entity is found."""
        if any(record["entities"] for record in predictions):
            return None
        return f"every word of {len(predictions):,} sentences is tagged `O`"

    def read_predictions(self, file: str | os.PathLike[str], examples: Sequence[TaggedExample]) -> list[Prediction]:
        """Read the last column of CoNLL lines, or records with `tags`; ill-formed tags are kept, and read as conlleval does."""
        tags = read_predicted_tags(file, examples)
        return [{"id": e.id, "tags": row, "entities": spans(row)} for e, row in zip(examples, tags, strict=True)]

    def error(self, example: TaggedExample, prediction: Prediction) -> float:
        """Return how many words have another tag than they should."""
        return float(sum(tag != own for tag, own in zip(prediction["tags"], example.tags, strict=False)))

    def shown(self, example: TaggedExample) -> dict[str, Any]:
        """Return the entities that people marked; the words are in the prediction."""
        gap = " " if example.spaces else ""
        marked = [f"{gap.join(example.words[first : last + 1])} ({kind})" for kind, first, last in spans(example.tags)]
        return {"texts": [], "gold": ", ".join(marked) or "no entity"}

    def write(self, folder: Path, predictions: Sequence[Prediction], *, split: str) -> list[Path]:
        """Write `predictions.jsonl`, and `predictions.conll`: word, tab, tag; an empty line after each sentence."""
        records, columns = folder / "predictions.jsonl", folder / "predictions.conll"
        write_lines(records, predictions)
        with atomic_file(columns, "w") as stream:
            for record in predictions:
                stream.writelines(f"{word}\t{tag}\n" for word, tag in zip(record["words"], record["tags"], strict=True))
                stream.write("\n")
        return [records, columns]


def tagging_task(name: str, **settings: Any) -> TaggingTask:
    """Return a task by name."""
    if name == "klue-ner":
        settings = {"layout": "characters", "metric": "entity_macro_f1", **settings}
    return TaggingTask(name=name, **settings)


def _entities(
    example: TaggedExample, tags: Sequence[str], probabilities: Sequence[float], labels: Sequence[str]
) -> Iterator[dict[str, Any]]:
    text = example.text
    starts = np.cumsum([0, *(len(word) + example.spaces for word in example.words)])
    for _, first, last in spans(entity_tags(tags, labels)):
        kind = tags[first].split("-", 1)[-1]  # as transformers calls it, whatever is before the hyphen
        start, end = int(starts[first]), int(starts[last]) + len(example.words[last])
        score = float(np.mean(probabilities[first : last + 1]))
        yield {"type": kind, "text": text[start:end], "start": start, "end": end, "score": round(score, 6)}


TYPES = ("PS", "LC", "OG", "DT", "TI", "QT")
LABELS = ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in "BI"))


def klue_scores(examples: Sequence[TaggedExample], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return entity and character macro F1.

    Spaces are left out first. Entities are read strictly: an `I-` that continues no entity is none. The mean over characters
    is over all 13 tags, `O` included; an unused tag counts 1. The baseline also counts its [CLS] and [SEP] as two
    characters a sentence, which only moves the F1 of `O`.

    Returns:
        entity_macro_f1, NaN if there is no entity, and character_macro_f1.

    Source: Park et al. 2021, "KLUE", section 4.4; KLUE-baseline, `metrics/functional.py`.
    """
    from sklearn.metrics import f1_score

    gold_rows, predicted_rows = [], []
    for example, tags in zip(examples, predicted, strict=True):
        seen = [place for place, character in enumerate(example.words) if character != " "]
        gold_rows.append([example.tags[place] for place in seen])
        predicted_rows.append([tags[place] for place in seen])
    table = span_table([_strict(row) for row in gold_rows], [_strict(row) for row in predicted_rows])
    flat = [[tag for row in rows for tag in row] for rows in (gold_rows, predicted_rows)]
    return {
        "entity_macro_f1": sum(row["f1"] for row in table) / len(table) if table else nan,
        "character_macro_f1": float(f1_score(*flat, labels=LABELS, average="macro", zero_division=1)),
    }


def _strict(tags: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for tag in tags:
        continues = bool(kept) and kept[-1][2:] == tag[2:]
        kept.append("O" if tag[0] == "I" and not continues else tag)
    return kept
