"""Tagging: a tag for each word of a sentence, for example named entities in IOB2; or for each character, as in KLUE-NER."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from albertkit.errors import DataError
from albertkit.files import atomic_file
from albertkit.model import AlbertForTokenClassification
from albertkit.model.losses import class_loss
from albertkit.model.outputs import SummedLoss
from albertkit.model.packing import IGNORED
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tasks.faults import Faults
from albertkit.tasks.features import Features, LabelledBatch
from albertkit.tasks.metrics.bootstrap import bootstrap_intervals
from albertkit.tasks.metrics.tagging import span_scores, span_scores_of, span_table, spans
from albertkit.tasks.tagging.features import gold_tags, tagging_features
from albertkit.tasks.tagging.files import FILES, Layout, TaggedExample, find_files, read_tagged
from albertkit.tasks.tagging.klue import klue_scores
from albertkit.tasks.tagging.places import spread
from albertkit.tasks.task import Prediction, Task
from albertkit.tasks.texts.label_names import label_indices, named_outputs
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
    """

    kind: ClassVar[str] = "tagging"
    metric: str = "f1"
    labels: tuple[str, ...] = ()
    layout: str = "words"
    word_column: int = 0
    tag_column: int = -1

    # --- the model ----------------------------------------------------------------------------------------------------

    @property
    def model_class(self) -> type[PretrainedAlbert]:
        """A class for each token."""
        return AlbertForTokenClassification

    def head(self) -> dict[str, Any]:
        """One output a tag."""
        return named_outputs(self.labels, "single_label_classification")

    # --- the data -----------------------------------------------------------------------------------------------------

    def files(self, data: Path) -> dict[str, Path]:
        """See `Task.files`."""
        return find_files(data, self.name)

    def examples(self, file: Path, *, split: str, labelled: bool, faults: Faults) -> Iterator[TaggedExample]:
        """See `Task.examples` and `read_tagged`."""
        layout = Layout(self.layout == "characters", self.word_column, self.tag_column)
        return read_tagged(file, layout, labelled=labelled, faults=faults)

    def fitted(self, train: Sequence[TaggedExample]) -> Self:
        """With the tags of the types in the training examples: `O`, then by type `B-` and `I-`, though only one may occur.

        Raises:
            DataError: one-class if there is no entity.
        """
        types = sorted({tag[2:] for example in train for tag in example.tags if tag != "O"})
        if not types:
            raise DataError(
                "one-class",
                f"the {len(train):,} training sentences have no tag but `O`",
                "name the right column of the tags",
            )
        return self.with_changes(labels=("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI")))

    def label_counts(self, examples: Sequence[TaggedExample]) -> list[int]:
        """Words of each tag."""
        counts = Counter(tag for example in examples for tag in example.tags)
        return [counts[label] for label in self.labels]

    def features(self, examples: Sequence[TaggedExample], tokenizer: AlbertTokenizer, *, labelled: bool) -> Features:
        """See `tagging_features`."""
        return tagging_features(examples, tokenizer, self.length, self.labels if labelled else None)

    # --- the model on a batch -----------------------------------------------------------------------------------------

    def losses(
        self, model: PretrainedAlbert, batch: LabelledBatch, class_weights: Tensor | None = None
    ) -> dict[str, SummedLoss]:
        """Cross-entropy of the tags of the words that have a piece of their own."""
        assert isinstance(model, AlbertForTokenClassification)
        logits, labels = model.packed_logits(batch.packed).float(), batch.per_token["labels"]
        loss = class_loss(logits, labels)
        if class_weights is not None:
            weighted = F.cross_entropy(logits, labels, class_weights, ignore_index=IGNORED, reduction="sum")
            loss = loss._replace(loss_sum=weighted)
        return {"tagging": loss}

    def counts(self, batch: LabelledBatch) -> dict[str, int]:
        """Words with a piece of their own."""
        return {"tagging": int((batch.per_token["labels"] != IGNORED).sum())}

    def outputs(self, model: PretrainedAlbert, batch: LabelledBatch) -> list[Outputs]:
        """Of each sequence the likeliest tags of its words and their probabilities."""
        assert isinstance(model, AlbertForTokenClassification)
        tagged = batch.per_token["words"] >= 0
        probabilities, labels = model.packed_logits(batch.packed)[tagged].float().softmax(-1).max(-1)
        before = F.pad(tagged.cumsum(0), (1, 0))[batch.packed.offsets[1:-1]].cpu().numpy()
        return list(
            zip(np.split(labels.cpu().numpy(), before), np.split(probabilities.cpu().numpy(), before), strict=True)
        )

    # --- the result ---------------------------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[TaggedExample], features: Features, outputs: Sequence[Outputs]
    ) -> list[Prediction]:
        """Of each sentence id, words, tags (a tag a word, as predicted), and entities: type, text, start and end in
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
                len(example.words), words[tokens][tagged], features.per_token["ends"][tokens][tagged],
                [self.labels[label] for label in labels], probabilities,
            )  # fmt: skip
            entities = list(_entities(example, tags, shares))
            records.append({"id": example.id, "words": list(example.words), "tags": tags, "entities": entities})
        return records

    def score(self, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Precision, recall and F1 of entities, accuracy of words; of KLUE-NER also the benchmark's own two.

        Raises:
            DataError: no-labels, unknown-label.
        """
        gold, predicted = gold_tags(examples), [record["tags"] for record in predictions]
        if self.labels:
            label_indices([tag for tags in gold for tag in tags], self.labels)
        right = sum(a == b for one, other in zip(gold, predicted, strict=True) for a, b in zip(one, other, strict=True))
        scores = span_scores(gold, predicted) | {"accuracy": right / max(sum(map(len, gold)), 1)}
        return scores | klue_scores(examples, predicted) if self.name == "klue-ner" else scores

    def details(self, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """The scores of each type, and bootstrap intervals over sentences."""
        gold, predicted = gold_tags(examples), [record["tags"] for record in predictions]
        return {
            "types": span_table(gold, predicted),
            "intervals": bootstrap_intervals(span_scores_of(gold, predicted), len(gold)),
        }

    def collapsed(self, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]) -> str | None:
        """Whether no entity is found."""
        if any(record["entities"] for record in predictions):
            return None
        return f"every word of {len(predictions):,} sentences is tagged `O`"

    def error(self, example: TaggedExample, prediction: Prediction) -> float:
        """How many words have another tag than they should."""
        return float(sum(tag != own for tag, own in zip(prediction["tags"], example.tags, strict=False)))

    def shown(self, example: TaggedExample) -> dict[str, Any]:
        """The entities that people marked; the words are in the prediction."""
        gap = " " if example.spaces else ""
        marked = [f"{gap.join(example.words[first : last + 1])} ({kind})" for kind, first, last in spans(example.tags)]
        return {"texts": [], "gold": ", ".join(marked) or "no entity"}

    def write(self, folder: Path, predictions: Sequence[Prediction], *, split: str) -> list[Path]:
        """Write `predictions.jsonl`, and `predictions.conll`: word, tab, tag; an empty line after each sentence."""
        records, columns = folder / "predictions.jsonl", folder / "predictions.conll"
        with atomic_file(records, "w") as stream:
            stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in predictions)
        with atomic_file(columns, "w") as stream:
            for record in predictions:
                stream.writelines(f"{word}\t{tag}\n" for word, tag in zip(record["words"], record["tags"], strict=True))
                stream.write("\n")
        return [records, columns]

    def ceiling(self, examples: Sequence[TaggedExample], features: Features) -> dict[str, float]:
        """What a model without a fault would reach: words that share a piece cannot have tags of their own.

        Args:
            examples: Labelled.
            features: Of these examples, labelled.

        Returns:
            `words_without_piece`: share of the words that follow others; and the scores, among them f1.
        """
        labels = features.per_token["labels"]
        kept = [labels[start:stop] for start, stop in zip(features.offsets[:-1], features.offsets[1:], strict=True)]
        outputs = [(row[row != IGNORED], np.ones((row != IGNORED).sum())) for row in kept]
        words = sum(len(example.words) for example in examples)
        followers = 1 - sum(len(row) for row, _ in outputs) / max(words, 1)
        return {"words_without_piece": followers, **self.score(examples, self.predictions(examples, features, outputs))}


def tagging_task(name: str, **settings: Any) -> TaggingTask:
    """A task by name.

    Args:
        name: ner (CoNLL columns or JSONL), wnut17 or klue-ner.
        **settings: Fields of `TaggingTask`.
    """
    if name == "klue-ner":
        settings = {"layout": "characters", "metric": "entity_macro_f1", **settings}
    return TaggingTask(name=name, **settings)


def _entities(example: TaggedExample, tags: Sequence[str], probabilities: Sequence[float]) -> Iterator[dict[str, Any]]:
    text = example.text
    starts = np.cumsum([0, *(len(word) + example.spaces for word in example.words)])
    for kind, first, last in spans(tags):
        start, end = int(starts[first]), int(starts[last]) + len(example.words[last])
        score = float(np.mean(probabilities[first : last + 1]))
        yield {"type": kind, "text": text[start:end], "start": start, "end": end, "score": round(score, 6)}
