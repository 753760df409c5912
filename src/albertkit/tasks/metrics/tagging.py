"""Precision, recall and F1 of the entities in tagged words: right is the same type at the same words.

Tags are read as conlleval (Sang and Buchholz 2000) and seqeval's default mode read them, ill-formed ones included: an `I-PER`
after `O` or after another type starts an entity. The reading is ours, because scores of single sentences are needed for
intervals, nervaluate 1.2 refuses `E-` and `S-`, and seqeval has not been kept since 2020.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Tags = Sequence[str]


def spans(tags: Tags) -> list[tuple[str, int, int]]:
    """Return the entities of a sentence: type, first word, last word; ascending."""
    found: list[tuple[str, int, int]] = []
    before, open_type, first = "O", "", 0
    for place, tag in enumerate([*tags, "O"]):
        place_in_entity, entity_type = tag[:1], tag[1:].removeprefix("-") or "_"
        new = place_in_entity in "BS" or before in "OES" or entity_type != open_type
        if before != "O" and (new or place_in_entity == "O"):
            found.append((open_type, first, place - 1))
        if new:
            first = place
        before, open_type = place_in_entity, entity_type
    return found


def span_counts(gold: Sequence[Tags], predicted: Sequence[Tags]) -> np.ndarray:
    """Count entities that are right, predicted, and in the gold data: int64 [sentences, 3]."""
    counts = []
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        wanted, had = set(spans(gold_tags)), set(spans(predicted_tags))
        counts.append((len(wanted & had), len(had), len(wanted)))
    return np.array(counts, np.int64).reshape(-1, 3)


def span_scores(gold: Sequence[Tags], predicted: Sequence[Tags]) -> dict[str, float]:
    """Return precision, recall and f1 over all entities; 0 where nothing was predicted or nothing is there."""
    return _scores(*span_counts(gold, predicted).sum(0))


def span_scores_of(gold: Sequence[Tags], predicted: Sequence[Tags]) -> Callable[[np.ndarray], dict[str, float]]:
    """Return `span_scores` as a function of numbers of sentences, for `bootstrap_intervals`."""
    counts = span_counts(gold, predicted)
    return lambda rows: _scores(*counts[rows].sum(0))


def span_table(gold: Sequence[Tags], predicted: Sequence[Tags]) -> list[dict[str, Any]]:
    """Return the scores of each type: name, precision, recall, f1, support (entities in the gold data); sorted by name."""
    right, had, wanted = Counter[str](), Counter[str](), Counter[str]()
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = set(spans(gold_tags)), set(spans(predicted_tags))
        wanted.update(kind for kind, _, _ in gold_spans)
        had.update(kind for kind, _, _ in predicted_spans)
        right.update(kind for kind, _, _ in gold_spans & predicted_spans)
    return [
        {"name": kind, **_scores(right[kind], had[kind], wanted[kind]), "support": wanted[kind]}
        for kind in sorted(wanted | had)
    ]


def _scores(right: int, predicted: int, gold: int) -> dict[str, float]:
    precision, recall = float(right / max(predicted, 1)), float(right / max(gold, 1))
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall or 1.0)}
