"""Texts, labels and odd values of each kind of task, for the check of data."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albertkit.data.bad_rows import counted
from albertkit.data.features import Features
from albertkit.data.layouts import is_number
from albertkit.errors import listed
from albertkit.normalization import normalize
from albertkit.tasks.answers.windows import UNHELD, count_reasons, unrecoverable
from albertkit.tasks.label_names import named_counts, sorted_labels
from albertkit.tasks.metrics.tagging import spans
from albertkit.tasks.overlap import plain_text

Splits = Mapping[str, Sequence[Any]]

MANY_NUMBERS = 20  # as many different numbers are hardly classes
DOMINANT = 0.99
NO_LABEL = "(no label)"
_MISSING = ("nan", "none", "null", "n/a", "na", "<na>")  # what programs write for a label that is not there
FEW = 5  # examples of a class that it cannot be learned from


def label_of(kind: str, example: Any) -> Any:
    """Return what is to be predicted, so that it can be compared."""
    if kind == "answers":
        return tuple(sorted({answer.text for answer in example.answers}))
    return example.tags if kind == "tagging" else example.label


def balance(kind: str, examples: Sequence[Any]) -> dict[str, float]:
    """Return how the labels of a split are distributed: counts, or of a regression the range and the median."""
    if kind == "regression":
        values = np.array([example.label for example in examples], np.float64)
        return dict(zip(("lowest", "median", "highest"), np.quantile(values, [0, 0.5, 1]).tolist(), strict=True))
    counts: Counter[str] = Counter()
    for example in examples:
        if kind == "answers":
            counts["impossible" if example.impossible else "answerable"] += 1
        elif kind == "tagging":
            counts.update(entity for entity, _, _ in spans(example.tags))
        elif kind == "choice":
            counts[f"choice {example.label + 1}"] += 1
        elif kind == "multilabel":
            counts.update(example.label or (NO_LABEL,))
        else:
            counts[str(example.label)] += 1
    none = {NO_LABEL: counts.pop(NO_LABEL)} if kind == "multilabel" and NO_LABEL in counts else {}
    return {**none, **{label: counts[label] for label in sorted_labels(counts)}}


def label_findings(kind: str, balances: Mapping[str, Mapping[str, float]], known: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is odd about the labels."""
    train = balances["train"]
    if kind == "regression":
        if train["lowest"] == train["highest"]:
            yield f"all training labels are {train['lowest']:g}: there is nothing to learn"
        return
    if not train:
        yield "no training sentence has an entity: is it the right column?"
    total = sum(train.values())
    for name, count in train.items():
        if kind == "classification" and count == total:
            yield f"all training labels are `{name}`: there is nothing to learn"
        elif kind == "classification" and count >= DOMINANT * total:
            yield f"{count / total:.1%} of the training labels are `{name}`: look at F1, not at accuracy"
    missing = {name: count for name, count in train.items() if name.lower() in _MISSING}
    if missing and kind in ("classification", "multilabel"):
        examples = counted(int(sum(missing.values())), "training example")
        yield f"{_listed(missing)}: the label of {examples}; or is it missing there?"
    rare = [name for name, count in train.items() if count < FEW]
    if rare and kind in ("classification", "multilabel", "tagging"):
        yield f"{_listed(rare)}: fewer than {FEW} training examples"
    if kind in ("classification", "multilabel", "tagging"):
        yield from _similar_labels([name for counts in balances.values() for name in counts if name != NO_LABEL])
        yield from _joined_labels(kind, train)
    for split, counts in balances.items():
        unknown = {name: int(count) for name, count in counts.items() if name not in train}
        known_types = {label[2:] for label in known} if kind == "tagging" else set(known)
        refused = {name: count for name, count in unknown.items() if name not in known_types | {NO_LABEL}}
        if refused and kind in ("classification", "multilabel", "tagging"):
            yield f"finetune will stop: labels of {split} that train lacks: {named_counts(refused)}"
        elif unknown and kind != "answers":
            yield f"{_listed(unknown)}: in {split}, but not in train"
    if kind == "classification" and len(train) >= MANY_NUMBERS and all(map(is_number, train)):
        yield f"the labels are {len(train):,} different numbers: is this a regression (`regress`)?"
    if kind == "choice":
        first, share = max(train, key=lambda name: train[name]), 1 / len(train)
        if train[first] > share * total + max(0.2 * share * total, 4 * (total * share * (1 - share)) ** 0.5):
            yield f"{train[first] / total:.1%} of the right choices are {first}: always saying so is right as often"


def _similar_labels(names: Iterable[str]) -> Iterator[str]:
    """Yield labels that look alike, or are the same number."""
    groups: dict[Any, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(float(name) if is_number(name) else plain_text(name), []).append(name)
    for group in groups.values():
        if len(group) < 2:
            continue
        if is_number(group[0]):
            difference = "how the number is written"
        elif len({normalize("NFC", name) for name in group}) < len(group):
            difference = "the form of Unicode (NFC or NFD)"
        elif len({name.casefold() for name in group}) < len(group):
            difference = "upper case"
        else:
            difference = "white space or the width of characters"
        yield f"{_listed(group)} differ in {difference} alone: are they one label?"


def _joined_labels(kind: str, names: Iterable[str]) -> Iterator[str]:
    """Yield labels that are several names in one text.

    Taken apart at `|` or `;` two of them share a name; at signs that a name may have there are fewer names than labels.
    """
    names = [name for name in names if name != NO_LABEL]
    for separator in ("|", ";", "/", *([","] if kind == "classification" else [])):
        joined = [name for name in names if separator in name]
        parts = Counter(part.strip() for name in names for part in name.split(separator))
        is_shared = max(parts.values(), default=0) > 1 if separator in "|;" else len(parts) < len(names)
        if joined and kind != "tagging" and is_shared:
            advice = "is the task `multilabel`?" if kind == "classification" else "write commas between them, or a list"
            yield f"{_listed(joined)} seem to be several labels with `{separator}` between them: {advice}"


def pair_findings(kind: str, examples: Splits) -> Iterator[str]:
    """Yield what is odd about pairs of texts: equal, or the one where the other should be."""
    if kind not in ("classification", "regression", "multilabel") or examples["train"][0].pair is None:
        return
    train = [(example.text, example.pair) for example in examples["train"]]
    equal = sum(text == pair for text, pair in train)
    if equal > 0.2 * len(train):
        yield f"{equal / len(train):.0%} of the training pairs have the same text twice: is it the right column?"
    train_pairs = set(train)
    for split, rows in examples.items():
        pairs = [(example.text, example.pair) for example in rows if example.pair is not None]
        if split == "train" or not pairs:
            continue
        swapped = sum((pair, text) in train_pairs and (text, pair) not in train_pairs for text, pair in pairs)
        if swapped > 0.05 * len(pairs):
            yield f"{counted(swapped, 'pair')} of {split} in train the other way round: are the columns swapped?"


def answer_findings(examples: Splits, features: Mapping[str, Features]) -> Iterator[str]:
    """Yield questions that are cut, answers that were moved or that do not come back from their tokens."""
    for split, rows in examples.items():
        cut = features[split].examples[features[split].per_sequence["question_cut"]]
        if len(cut):
            yield f"{split}: {counted(len(set(cut.tolist())), 'question')} longer than is kept, and cut"
        if moved := sum(example.repaired for example in rows):
            yield f"{split}: {counted(moved, 'answer')} not where the file says, and taken from the nearest place in the text"
        reasons = count_reasons(list(unrecoverable(rows, features[split])))
        if reasons:
            shown = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.items())
            hint = "; with a smaller --stride windows overlap more" if UNHELD in reasons else ""
            many = counted(sum(reasons.values()), "answer")
            yield f"{split}: {many} that cannot be had back exactly from the tokens: {shown}{hint}"


def _listed(names: Iterable[str]) -> str:
    return f"labels {listed([f'`{name}`' for name in names], 5)}"
