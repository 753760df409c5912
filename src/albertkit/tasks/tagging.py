"""Tagging: a tag for each word of a sentence, for example named entities in IOB2; or for each character, as in KLUE-NER."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from albertkit.batches.features import Features, LabelledBatch, tokens_left_for_text
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, write_lines
from albertkit.model import AlbertForTokenClassification, SummedLoss
from albertkit.model.heads import class_loss
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tables import IGNORED
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns, format_column_options
from albertkit.tables.records import DataFile, DataFiles
from albertkit.tasks.metrics import (
    EVERY_ROW,
    bootstrap_intervals,
    entity_scorer,
    entity_scores_by_type,
    entity_spans,
)
from albertkit.tasks.tagging_files import (
    FILES,
    TagFileLayout,
    TaggedExample,
    find_tag_files,
    read_predicted_tags,
    read_tagged,
    tags_to_bioes,
)
from albertkit.tasks.task import (
    Prediction,
    PredictionRecords,
    Task,
    columns_as_task_fields,
    head_config_for_labels,
    label_indices,
    values_of_labelled_examples,
)
from albertkit.tokenizer import AlbertTokenizer


def tagging_features(
    examples: Sequence[TaggedExample],
    tokenizer: AlbertTokenizer,
    length: int,
    labels: Sequence[str] | None,
) -> Features:
    """Return a sequence a sentence, `[CLS] tokens [SEP]`; of a sentence that is too long several windows, as `windows` cuts them.

    Returns:
        Features with, per token, int64: `words`, the word that is tagged there, or -1; `ends`, one
        more than the last word that its tokens reach; `labels`, its tag, or -100. A word is in one
        window at most, in training, too.
    """
    size = tokens_left_for_text(length, 2)
    rows: list[tuple[list[int], int]] = []
    owners: list[int] = []
    tagged = [np.zeros((3, 0), np.int64)]  # token, word, end
    num_tokens = 0
    for number, example in enumerate(examples):
        ids, spans = tokenizer.encode_with_offsets(example.text)
        tokens, words, ends = find_tagged_words(example.words, example.spaces, spans)
        starts, window_of = window_starts_and_window_of_token(len(ids), size)
        for window, start in enumerate(starts.tolist()):
            # All of the first segment
            rows.append(([tokenizer.cls_id, *ids[start : start + size], tokenizer.sep_id], length))
            owners.append(number)
            columns = np.stack([num_tokens + 1 + tokens - start, words, ends])
            tagged.append(columns[:, window_of[tokens] == window])
            num_tokens += len(rows[-1][0])
    tokens, words, ends = np.concatenate(tagged, axis=1)
    per_token = {name: np.full(num_tokens, -1, np.int64) for name in ("words", "ends")}
    per_token["words"][tokens] = words
    per_token["ends"][tokens] = ends
    features = Features.from_sequences(rows, owners, per_token=per_token)
    if labels is None:
        return features
    label_of_word = label_indices([tag for tags in gold_tags(examples) for tag in tags], labels)
    targets = np.full(num_tokens, IGNORED, np.int64)
    targets[tokens] = label_of_word[word_index_of_token(features, examples)[tokens]]
    return replace(features, per_token={**per_token, "labels": targets})


def word_index_of_token(features: Features, examples: Sequence[TaggedExample]) -> np.ndarray:
    """Return the row of the word of each token among the words of all examples, int64 [T]; without meaning where it has none."""
    first_rows = np.cumsum([0, *(len(example.words) for example in examples)])
    return first_rows[np.repeat(features.examples, features.lengths)] + features.per_token["words"]


def gold_tags(examples: Sequence[TaggedExample]) -> list[tuple[str, ...]]:
    """Return the tags of labelled examples."""
    return values_of_labelled_examples(examples, "tags", missing=())


# A word's first token includes the space before it: by overlap alone KLUE's spaces would be tagged,
# and the next word would lose its `B-`.
_INVISIBLE = ("Zs", "Zl", "Zp", "Cc", "Cf")


class TaggedWords(NamedTuple):
    """The words that have a token of their own, ascending."""

    tokens: np.ndarray  # int64, where each of these words is tagged
    words: np.ndarray  # int64, their numbers
    ends: np.ndarray  # int64, one more than the last word that a token of each reaches


def find_tagged_words(
    words: Sequence[str],
    spaces: bool,
    spans: Sequence[tuple[int, int]],
) -> TaggedWords:
    """Return the words that have a token of their own, and the token at which each is tagged."""
    text = (" " if spaces else "").join(words)
    lengths = np.array([len(word) + spaces for word in words], np.int64)
    visible = np.flatnonzero([_is_visible(character) for character in text])
    word_of_visible = np.repeat(np.arange(len(words)), lengths)[visible]
    # Invisible characters own no token: a word's first one includes the space before it, so that by
    # overlap KLUE's spaces would be tagged and the `B-` of the next word lost. 4.7 % of its
    # entities end inside a token of the tests' vocabulary.
    bounds = np.searchsorted(visible, np.array(spans, np.int64).reshape(-1, 2))
    tokens = np.flatnonzero(bounds[:, 1] > bounds[:, 0])
    owners = word_of_visible[bounds[tokens, 0]]
    last = word_of_visible[bounds[tokens, 1] - 1]
    tagged, first = np.unique(owners, return_index=True)
    ends = np.zeros(len(words), np.int64)
    np.maximum.at(ends, owners, last + 1)
    return TaggedWords(tokens[first], tagged, ends[tagged])


def spread_word_tags(
    num_words: int,
    words: np.ndarray,
    ends: np.ndarray,
    tags: Sequence[str],
    probabilities: np.ndarray,
) -> tuple[list[str], list[float]]:
    """Return tag and probability of every word from those of the words that have a token of their own.

    A word that left no token has the probability of the word before it, 1 at the start.
    """
    spread_tags = ["O"] * num_words
    is_known = np.zeros(num_words, bool)
    spread_probabilities = [1.0] * num_words
    for word, end, tag, probability in zip(
        words.tolist(), ends.tolist(), tags, probabilities.tolist(), strict=True
    ):
        spread_tags[word:end] = [tag, *[_inside_tag(tag)] * (end - word - 1)]
        spread_probabilities[word:end] = [probability] * (end - word)
        is_known[word:end] = True
    for word in np.flatnonzero(~is_known).tolist()[::-1]:
        # The next word's, for the moment
        spread_tags[word] = spread_tags[word + 1] if word + 1 < num_words else "O"
    for word in np.flatnonzero(~is_known).tolist():
        before = _inside_tag(spread_tags[word - 1]) if word else "O"
        spread_tags[word] = before if spread_tags[word] == before else "O"
        spread_probabilities[word] = spread_probabilities[word - 1] if word else 1.0
    return spread_tags, spread_probabilities


def window_starts_and_window_of_token(num_pieces: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a sentence that is too long into windows that overlap by half; each token is tagged in one of them.

    Return where each of the K windows starts, int64 [K], and the window of each token, int64 [P]:
    that in which the shorter of its two contexts is longest.
    """
    last = max(num_pieces - size, 0)
    starts = np.append(np.arange(0, last, max(size // 2, 1)), last)
    # Up to here a token is nearer to the centre of one window than to that of the next; twice the
    # place, to stay whole.
    middles = starts[:-1] + starts[1:] + size - 1
    return starts, np.searchsorted(middles, 2 * np.arange(num_pieces))


@lru_cache(100_000)
def _is_visible(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE


def _inside_tag(tag: str) -> str:
    """Return the tag of a word that goes on with what this tag began."""
    return tag if tag == "O" else f"I-{tag[2:]}"


# Label and probability of each word that is tagged in a sequence
Outputs = tuple[np.ndarray, np.ndarray]

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
    model_class = AlbertForTokenClassification
    metric: str = "f1"
    labels: tuple[str, ...] = ()
    layout: str = "words"
    word_column: int = 0
    tag_column: int = -1
    text_column: str = ""
    label_column: str = ""

    # --- the model --------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """Return the configuration of a head with an output for each tag."""
        return head_config_for_labels(self.labels, "single_label_classification")

    # --- the data ---------------------------------------------------------------------------------

    def with_columns(self, columns: Columns | None) -> Self:
        """Return a task that reads other fields of JSONL."""
        fields = columns_as_task_fields(columns or Columns())
        if unknown := [
            name.removesuffix("_column")
            for name in fields
            if name not in ("text_column", "label_column")
        ]:
            raise ConfigError(
                "conflicting-options",
                f"`{self.name}` reads words and tags: of JSONL, the columns of these can be named",
                f"leave out {format_column_options(unknown)}",
            )
        return self.with_changes(**fields)

    def files(self, data: DataFiles) -> Mapping[str, DataFile]:
        return find_tag_files(data, self.name)

    def examples(
        self,
        file: DataFile,
        *,
        split: str,
        labelled: bool,
        bad_rows: BadRows,
    ) -> Iterator[TaggedExample]:
        """See `Task.examples` and `read_tagged`; only what is trained on must be well-formed."""
        is_characters = self.layout == "characters"
        layout = TagFileLayout(
            is_characters,
            self.word_column,
            self.tag_column,
            self.text_column,
            self.label_column,
        )
        return read_tagged(
            file,
            layout,
            labelled=labelled,
            bad_rows=bad_rows,
            strict=split == "train",
        )

    def fitted(self, train: Sequence[TaggedExample]) -> Self:
        """Return this task with its tags: `O`, then `B-` and `I-` of each type in training, though only one may occur."""
        types = sorted({tag[2:] for example in train for tag in example.tags if tag != "O"})
        if not types:
            raise DataError(
                "too-little-data",
                f"the {len(train):,} training sentences have no tag but `O`",
                "name the right column of the tags",
            )
        return self.with_changes(
            labels=("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))
        )

    def label_counts(self, examples: Sequence[TaggedExample]) -> list[int]:
        """Count the words of each tag."""
        counts = Counter(tag for example in examples for tag in example.tags)
        return [counts[label] for label in self.labels]

    def features(
        self,
        examples: Sequence[TaggedExample],
        tokenizer: AlbertTokenizer,
        *,
        labelled: bool,
    ) -> Features:
        """See `tagging_features`."""
        return tagging_features(examples, tokenizer, self.length, self.labels if labelled else None)

    # --- the model on a batch ---------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Return the cross-entropy of the tags of the words that have a token of their own."""
        assert isinstance(model, AlbertForTokenClassification)
        return {
            "tagging": class_loss(
                model.packed_logits(batch.packed), batch.per_token["labels"], class_weights
            )
        }

    def count_targets(self, batch: LabelledBatch) -> dict[str, int]:
        """Return the number of words with a token of their own."""
        return {"tagging": int((batch.per_token["labels"] != IGNORED).sum())}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[Outputs]:
        """Return the likeliest tags of the words of each sequence, and their probabilities."""
        assert isinstance(model, AlbertForTokenClassification)
        tagged = batch.per_token["words"] >= 0
        probabilities, labels = (
            model.packed_logits(batch.packed)[tagged].float().softmax(-1).max(-1)
        )
        before = F.pad(tagged.cumsum(0), (1, 0))[batch.packed.offsets[1:-1]].cpu().numpy()
        columns = (np.split(values.cpu().numpy(), before) for values in (labels, probabilities))
        return list(zip(*columns, strict=True))

    # --- the result -------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[TaggedExample], features: Features, outputs: Sequence[Outputs]
    ) -> list[Prediction]:
        """Return for each sentence id, words, tags (a tag a word, as predicted), and entities: type, text, start and end in
        characters of the text, score (the mean probability of its tags). An `I-` that continues
        nothing begins an entity.
        """
        words = features.per_token["words"]
        bounds = features.sequence_bounds(len(examples))
        records = []
        for example, start, stop in zip(examples, bounds[:-1], bounds[1:], strict=True):
            tokens = slice(features.offsets[start], features.offsets[stop])
            tagged = words[tokens] >= 0
            labels = np.concatenate([labels for labels, _ in outputs[start:stop]])
            probabilities = np.concatenate(
                [probabilities for _, probabilities in outputs[start:stop]]
            )
            tags, shares = spread_word_tags(
                len(example.words),
                words[tokens][tagged],
                features.per_token["ends"][tokens][tagged],
                [self.labels[label] for label in labels],
                probabilities,
            )
            text = example.text
            char_starts = np.cumsum([0, *(len(word) + example.spaces for word in example.words)])
            entities = []
            for _, first, last in entity_spans(tags_to_bioes(tags, self.labels)):
                char_start = int(char_starts[first])
                char_end = int(char_starts[last]) + len(example.words[last])
                score = float(np.mean(shares[first : last + 1]))
                # As transformers calls it, whatever is before the hyphen
                kind = tags[first].split("-", 1)[-1]
                entities.append(
                    {
                        "type": kind,
                        "text": text[char_start:char_end],
                        "start": char_start,
                        "end": char_end,
                        "score": round(score, 6),
                    }
                )
            records.append(
                {"id": example.id, "words": list(example.words), "tags": tags, "entities": entities}
            )
        return records

    def score(
        self,
        examples: Sequence[TaggedExample],
        predictions: PredictionRecords,
    ) -> dict[str, float]:
        """Return precision, recall and F1 of entities, accuracy of words; of KLUE-NER also the benchmark's own two."""
        gold = gold_tags(examples)
        predicted = [record["tags"] for record in predictions]
        if self.labels:
            label_indices([tag for tags in gold for tag in tags], self.labels)
        right = sum(
            a == b
            for gold_row, predicted_row in zip(gold, predicted, strict=True)
            for a, b in zip(gold_row, predicted_row, strict=True)
        )
        scores = entity_scorer(gold, predicted)(EVERY_ROW) | {
            "accuracy": right / max(sum(map(len, gold)), 1)
        }
        return scores | klue_scores(examples, predicted) if self.name == "klue-ner" else scores

    def details(
        self,
        examples: Sequence[TaggedExample],
        predictions: PredictionRecords,
    ) -> dict[str, Any]:
        """Return the scores of each type, and bootstrap intervals over sentences."""
        gold = gold_tags(examples)
        predicted = [record["tags"] for record in predictions]
        return {
            "types": entity_scores_by_type(gold, predicted),
            "intervals": bootstrap_intervals(entity_scorer(gold, predicted), len(gold)),
        }

    def collapsed(
        self, examples: Sequence[TaggedExample], predictions: PredictionRecords
    ) -> str | None:
        """Return a note if no entity is found."""
        if any(record["entities"] for record in predictions):
            return None
        return f"every word of {len(predictions):,} sentences is tagged `O`"

    def read_predictions(
        self,
        file: str | os.PathLike[str],
        examples: Sequence[TaggedExample],
    ) -> list[Prediction]:
        """Read the last column of CoNLL lines, or records with `tags`; ill-formed tags are kept, and read as conlleval does."""
        tags = read_predicted_tags(file, examples, beside_gold=self.tag_column == -2)
        return [
            {"id": e.id, "tags": row, "entities": entity_spans(row)}
            for e, row in zip(examples, tags, strict=True)
        ]

    def error(self, example: TaggedExample, prediction: Prediction) -> float:
        """Return how many words have another tag than they should."""
        return float(
            sum(
                tag != gold_tag
                for tag, gold_tag in zip(prediction["tags"], example.tags, strict=False)
            )
        )

    def describe_example(self, example: TaggedExample) -> dict[str, Any]:
        """Return the entities that people marked; the words are in the prediction."""
        gap = " " if example.spaces else ""
        marked = [
            f"{gap.join(example.words[first : last + 1])} ({kind})"
            for kind, first, last in entity_spans(example.tags)
        ]
        return {"texts": [], "gold": ", ".join(marked) or "no entity"}

    def write(self, folder: Path, predictions: PredictionRecords, *, split: str) -> list[Path]:
        """Write `predictions.jsonl`, and `predictions.conll`: word, tab, tag; an empty line after each sentence."""
        records = folder / "predictions.jsonl"
        columns = folder / "predictions.conll"
        write_lines(records, predictions)
        with atomic_file(columns, "w") as stream:
            for record in predictions:
                stream.writelines(
                    f"{word}\t{tag}\n"
                    for word, tag in zip(record["words"], record["tags"], strict=True)
                )
                stream.write("\n")
        return [records, columns]


def tagging_task(name: str, **settings: Any) -> TaggingTask:
    """Return a task by name."""
    if name == "klue-ner":
        settings = {"layout": "characters", "metric": "entity_macro_f1", **settings}
    return TaggingTask(name=name, **settings)


TYPES = ("PS", "LC", "OG", "DT", "TI", "QT")
LABELS = ("O", *(f"{prefix}-{kind}" for kind in TYPES for prefix in "BI"))


def klue_scores(
    examples: Sequence[TaggedExample], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return entity and character macro F1.

    Spaces are left out first. Entities are read strictly: an `I-` that continues no entity is none.
    The mean over characters is over all 13 tags, `O` included; an unused tag counts 1. The baseline
    also counts its [CLS] and [SEP] as two characters a sentence, which only moves the F1 of `O`.

    Returns:
        entity_macro_f1, NaN if there is no entity, and character_macro_f1.

    Source: Park et al. 2021, "KLUE", section 4.4; KLUE-baseline, `metrics/functional.py`.
    """
    from sklearn.metrics import f1_score

    gold_rows = []
    predicted_rows = []
    for example, tags in zip(examples, predicted, strict=True):
        indices = [index for index, character in enumerate(example.words) if character != " "]
        gold_rows.append([example.tags[index] for index in indices])
        predicted_rows.append([tags[index] for index in indices])
    table = entity_scores_by_type(
        [_drop_stray_inside_tags(row) for row in gold_rows],
        [_drop_stray_inside_tags(row) for row in predicted_rows],
    )
    # KLUE-baseline documents "except O", and its code averages all 13.
    flat = [[tag for row in rows for tag in row] for rows in (gold_rows, predicted_rows)]
    return {
        "entity_macro_f1": sum(row["f1"] for row in table) / len(table) if table else nan,
        "character_macro_f1": float(
            f1_score(*flat, labels=LABELS, average="macro", zero_division=1)
        ),
    }


def _drop_stray_inside_tags(tags: Sequence[str]) -> list[str]:
    strict_tags: list[str] = []
    for tag in tags:
        continues = bool(strict_tags) and strict_tags[-1][2:] == tag[2:]
        strict_tags.append("O" if tag[0] == "I" and not continues else tag)
    return strict_tags
