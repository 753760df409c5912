"""A look at the data of a task before training: labels, lengths, what is cut, what is twice, what leaks into dev.

Source of what is looked for: what went wrong for others, google-research/albert issues 7 and 9 of
the specification among them: columns swapped, labels in the wrong column, texts cut, the tokenizer
of another language.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.batches.features import Features
from albertkit.config import AlbertConfig
from albertkit.encodings import normalize
from albertkit.errors import AlbertKitError, format_list
from albertkit.model_paths import local_folder
from albertkit.output.sections import Paragraph, Result, Section, TableSection
from albertkit.tables.bad_rows import BadRows, pluralize
from albertkit.tables.columns import Columns
from albertkit.tables.layouts import is_number
from albertkit.tables.records import Data
from albertkit.tasks.answers import UNHELD, count_reasons, unrecoverable_answers
from albertkit.tasks.data import (
    Overlap,
    apply_task_settings,
    measure_overlap,
    placeholder_label_lines,
    plain_text,
    read_data_from_anywhere,
    texts_of_example,
    unknown_token_lines,
    unknown_token_share,
)
from albertkit.tasks.metrics import entity_spans
from albertkit.tasks.models import check_order
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.task import Task, format_counts, sorted_labels
from albertkit.tasks.teacher import open_teacher
from albertkit.tokenizer import AlbertTokenizer
from albertkit.training.processes import World

Splits = Mapping[str, Sequence[Any]]

UNLABELLED = "unlabelled"  # the split of examples without labels
_NOT_EVALUATED = ("train", UNLABELLED)
MANY_NUMBERS = 20  # as many different numbers are hardly classes
DOMINANT = 0.99
NO_LABEL = "(no label)"
FEW = 5  # examples of a class that it cannot be learned from


def label_of(task_kind: str, example: Any) -> Any:
    """Return the label of an example as a value that can be compared."""
    if task_kind == "answers":
        return tuple(sorted({answer.text for answer in example.answers}))
    return example.tags if task_kind == "tagging" else example.label


def label_counts_or_quantiles(task_kind: str, examples: Sequence[Any]) -> dict[str, float]:
    """Return how the labels of a split are distributed: counts, or of a regression the range and the median."""
    if task_kind == "regression":
        values = np.array([example.label for example in examples], np.float64)
        return dict(
            zip(
                ("lowest", "median", "highest"),
                np.quantile(values, [0, 0.5, 1]).tolist(),
                strict=True,
            )
        )
    counts: Counter[str] = Counter()
    for example in examples:
        if task_kind == "answers":
            counts["impossible" if example.impossible else "answerable"] += 1
        elif task_kind == "tagging":
            counts.update(entity for entity, _, _ in entity_spans(example.tags))
        elif task_kind == "choice":
            counts[f"choice {example.label + 1}"] += 1
        elif task_kind == "multilabel":
            counts.update(example.label or (NO_LABEL,))
        else:
            counts[str(example.label)] += 1
    none = (
        {NO_LABEL: counts.pop(NO_LABEL)} if task_kind == "multilabel" and NO_LABEL in counts else {}
    )
    return {**none, **{label: counts[label] for label in sorted_labels(counts)}}


def label_findings(
    task_kind: str,
    label_counts_by_split: Mapping[str, Mapping[str, float]],
    labels: Sequence[str] = (),
) -> Iterator[str]:
    """Yield what is odd about the labels."""
    train = label_counts_by_split["train"]
    if task_kind == "regression":
        if train["lowest"] == train["highest"]:
            yield f"all training labels are {train['lowest']:g}: there is nothing to learn"
        return
    if not train:
        yield "no training sentence has an entity: is it the right column?"
    has_names = task_kind in ("classification", "multilabel", "tagging")
    total = sum(train.values())
    for name, count in train.items():
        if task_kind == "classification" and count == total:
            yield f"all training labels are `{name}`: there is nothing to learn"
        elif task_kind == "classification" and count >= DOMINANT * total:
            yield f"{count / total:.1%} of the training labels are `{name}`: look at F1, not at accuracy"
    yield from placeholder_label_lines(task_kind, train)
    rare = [name for name, count in train.items() if count < FEW]
    if rare and has_names:
        yield f"{_list_labels(rare)}: fewer than {FEW} training examples"
    if has_names:
        yield from _similar_labels(
            [
                name
                for counts in label_counts_by_split.values()
                for name in counts
                if name != NO_LABEL
            ]
        )
        yield from _joined_labels(task_kind, train)
    for split, counts in label_counts_by_split.items():
        unknown = {name: int(count) for name, count in counts.items() if name not in train}
        known_types = {label[2:] for label in labels} if task_kind == "tagging" else set(labels)
        refused = {
            name: count for name, count in unknown.items() if name not in known_types | {NO_LABEL}
        }
        if refused and has_names:
            yield f"finetune will stop: labels of {split} that train lacks: {format_counts(refused)}"
        elif unknown and task_kind != "answers":
            yield f"{_list_labels(unknown)}: in {split}, but not in train"
    if task_kind == "classification" and len(train) >= MANY_NUMBERS and all(map(is_number, train)):
        yield f"the labels are {len(train):,} different numbers: is this a regression (`regress`)?"
    if task_kind == "choice":
        first = max(train, key=lambda name: train[name])
        expected = total / len(train)
        four_deviations = 4 * (expected * (1 - 1 / len(train))) ** 0.5
        if train[first] > expected + max(0.2 * expected, four_deviations):
            yield f"{train[first] / total:.1%} of the right choices are {first}: always saying so is right as often"


# Dashes and quotes look like those of ASCII, characters of no width like none.
_LOOK = str.maketrans(
    "‐‑‒–—−‘’“”", "------''\"\"", "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
)
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_])[ _-](?=[^\W\d_])")
# Between names: those that names have, too, are believed where there are fewer names than labels
_SEPARATORS, _SIGNS = "|;，；、", "/+&·"


def _similar_labels(names: Iterable[str]) -> Iterator[str]:
    """Yield labels that look alike, or are the same number."""
    groups: dict[Any, list[str]] = {}
    for name in dict.fromkeys(names):
        plain = _BETWEEN_WORDS.sub(" ", plain_text(name.translate(_LOOK)))
        words = plain.strip("\"'()[]{}").rstrip(".,;:!")
        groups.setdefault(float(name) if is_number(name) else words or plain, []).append(name)
    for group in groups.values():
        if len(group) < 2:
            continue
        if is_number(group[0]):
            difference = "how the number is written"
        elif len({normalize("NFC", name) for name in group}) < len(group):
            difference = "the form of Unicode (NFC or NFD)"
        elif len({name.casefold() for name in group}) < len(group):
            difference = "upper case"
        elif len({name.translate(_LOOK) for name in group}) < len(group):
            difference = "dashes, quotes or characters that are not seen"
        elif len({plain_text(name.translate(_LOOK)) for name in group}) < len(group):
            difference = "white space or the width of characters"
        else:
            difference = "punctuation"
        yield f"{_list_labels(group)} differ in {difference} alone: are they one label?"


def _joined_labels(task_kind: str, names: Iterable[str]) -> Iterator[str]:
    """Yield labels that are several names in one text.

    Taken apart at `|` or `;` two of them share a name; at signs that a name may have there are fewer names than labels, and
    at blanks every name is a label, too.
    """
    names = [name for name in names if name != NO_LABEL]
    if task_kind == "tagging" and (joined_tags := [name for name in names if "|" in name]):
        yield f"{_list_labels(joined_tags)} seem to be several tags of one word with `|` between them: a word has one"
    for separator in f"{_SEPARATORS}{_SIGNS} {',' * (task_kind == 'classification')}":
        joined = [name for name in names if separator in name]
        parts = Counter(part.strip() for name in names for part in name.split(separator))
        is_shared = len(parts) < len(names)
        if separator in _SEPARATORS:
            is_shared = max(parts.values(), default=0) > 1
        elif separator == " ":
            is_shared = set(parts) < set(names) and len(joined) > 1
        if joined and task_kind != "tagging" and is_shared:
            advice = (
                "is the task `multilabel`?"
                if task_kind == "classification"
                else "write commas between them, or a list"
            )
            yield f"{_list_labels(joined)} seem to be several labels with `{separator}` between them: {advice}"


def placeholder_text_findings(task_kind: str, train: Sequence[Any]) -> Iterator[str]:
    """Yield texts that programs write where there is none."""
    if task_kind in ("classification", "regression", "multilabel"):
        texts = [text for example in train for text in texts_of_example(task_kind, example)]
        missing = [
            text
            for text in texts
            if text.strip().lower() in ("nan", "none", "null", "<na>", "#n/a")
        ]
        if missing:
            yield f"{pluralize(len(missing), 'training text')} such as `{missing[0].strip()}`: or is it missing there?"


def pair_findings(task_kind: str, examples_by_split: Splits) -> Iterator[str]:
    """Yield what is odd about pairs of texts: equal, or the one where the other should be."""
    if (
        task_kind not in ("classification", "regression", "multilabel")
        or examples_by_split["train"][0].pair is None
    ):
        return
    train = [(example.text, example.pair) for example in examples_by_split["train"]]
    equal = sum(text == pair for text, pair in train)
    if equal > 0.2 * len(train):
        yield f"{equal / len(train):.0%} of the training pairs have the same text twice: is it the right column?"
    train_pairs = set(train)
    for split, rows in examples_by_split.items():
        pairs = [(example.text, example.pair) for example in rows if example.pair is not None]
        if split == "train" or not pairs:
            continue
        swapped = sum(
            (pair, text) in train_pairs and (text, pair) not in train_pairs for text, pair in pairs
        )
        if swapped > 0.05 * len(pairs):
            yield f"{pluralize(swapped, 'pair')} of {split} in train the other way round: are the columns swapped?"


def answer_findings(examples: Splits, features: Mapping[str, Features]) -> Iterator[str]:
    """Yield questions that are cut, answers that were moved or that do not come back from their tokens."""
    for split, rows in examples.items():
        cut = features[split].examples[features[split].per_sequence["question_cut"]]
        if len(cut):
            yield f"{split}: {pluralize(len(set(cut.tolist())), 'question')} longer than is kept, and cut"
        if moved := sum(example.repaired for example in rows):
            yield f"{split}: {pluralize(moved, 'answer')} not where the file says, and taken from the nearest place in the text"
        reasons = count_reasons(list(unrecoverable_answers(rows, features[split])))
        if reasons:
            listing = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.items())
            hint = "; with a smaller --stride windows overlap more" if UNHELD in reasons else ""
            answers = pluralize(sum(reasons.values()), "answer")
            yield f"{split}: {answers} that cannot be had back exactly from the tokens: {listing}{hint}"


def _list_labels(names: Iterable[str]) -> str:
    return f"labels {format_list([f'`{name}`' for name in names], 5)}"


NO_TRUNCATION = 1 << 20  # a length that cuts nothing
LENGTHS = (64, 128, 256, 512)  # to choose from when much is cut
MAX_SHOWN = 5  # rows or ids in a finding
MAX_LABELS_SHOWN = 30
# Shares of the examples above which there is a finding.
TRUNCATION_SHARE = 0.05
REPETITION_SHARE = 0.25
WORDLESS_SHARE = 0.1
LONG_FACTOR = 16  # times the tokens that are read: a whole file in one field, perhaps

_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class SplitCheck:
    """Statistics of one split."""

    examples: int  # how many
    # count of each label; of entities in tagging, of positions in multiple choice; of a regression
    # lowest, median and highest
    labels: dict[str, float]
    labelled: int  # what the shares of `labels` are of: examples; in tagging entities
    # length of the longest sequence of an example before anything is cut: median, p90, p99, longest
    tokens: dict[str, int]
    cut: int  # examples that lose text
    windowed: int  # examples that are read in several windows
    windows: int  # sequences in all
    unknown: float  # share of the tokens that the tokenizer does not know
    empty: int  # examples with an empty text
    wordless: int  # examples whose first text has no letter
    # Examples that an earlier one of the split equals, upper case and white space apart
    repeated: int
    contradictory: int  # examples whose texts occur with different labels
    # Of another split than train: what it has in common with train
    overlap: Overlap = field(default_factory=Overlap)


@dataclass(frozen=True)
class DataCheckReport(Result):
    """Report on the data of a task.

    Attributes:
        task: Name.
        length: Tokens that a sequence may have.
        splits: Of each split.
        findings: A sentence for each thing that the user should look at.
    """

    task: str
    length: int
    splits: dict[str, SplitCheck]
    findings: tuple[str, ...]

    def sections(self) -> list[Section]:
        """Return tables of the splits and of their labels, and the findings."""
        checks = self.splits.values()
        # A column a split: 80 characters
        rows: list[list[Any]] = [["examples", *(check.examples for check in checks)]]
        for key in next(iter(checks)).tokens:
            rows.append([f"tokens, {key}", *(check.tokens[key] for check in checks)])
        for key, name in (
            ("cut", "cut"),
            ("windowed", "in windows"),
            ("repeated", "twice in the split"),
        ):
            rows.append(
                [
                    name,
                    *(
                        _format_count_and_share(getattr(check, key), check.examples)
                        for check in checks
                    ),
                ]
            )
        rows.append(["unknown tokens", *(f"{check.unknown:.2%}" for check in checks)])
        shared = [
            None
            if name in _NOT_EVALUATED
            else _format_count_and_share(check.overlap.same, check.examples)
            for name, check in self.splits.items()
        ]
        rows.append(["also in train", *shared])
        labels = list(dict.fromkeys(name for check in checks for name in check.labels))
        labelled_splits = [name for name in self.splits if name != UNLABELLED]
        label_rows = []
        for label in labels[:MAX_LABELS_SHOWN]:
            cells = []
            for check in map(self.splits.__getitem__, labelled_splits):
                value = check.labels.get(label, 0)
                share = value / max(check.labelled, 1)
                cells.append(
                    f"{value:g}" if isinstance(value, float) else f"{value:,}  {share:6.1%}"
                )
            label_rows.append([label, *cells])
        note = (
            f"and {len(labels) - MAX_LABELS_SHOWN:,} more" if len(labels) > MAX_LABELS_SHOWN else ""
        )
        findings = [Paragraph(finding, tone="warning") for finding in self.findings]
        return [
            Paragraph(f"{self.length} tokens at most", self.task),
            TableSection(["", *self.splits], rows),
            TableSection(["label", *labelled_splits], label_rows, note=note),
            *(findings or [Paragraph("nothing odd was found")]),
        ]


def check_task(
    task: str | Task,
    model: str | Path,
    data: Data,
    settings: FinetuneSettings | None = None,
    *,
    columns: Columns | None = None,
    dev: Data = None,
    unlabelled: Data = None,
) -> DataCheckReport:
    """Look at the data that `finetune` with the same arguments would train on; nothing is trained."""
    check_order(task, model, data)
    settings = settings or FinetuneSettings()
    settings.check()
    bad_rows = BadRows("skip")
    folder = local_folder(model)
    source = task if isinstance(task, Task) else find_task(task, columns)
    task_data = read_data_from_anywhere(source, data, dev, settings, False, bad_rows, unlabelled)
    teacher_findings: list[str] = []
    if settings.teacher is not None:
        try:
            fitted = apply_task_settings(task_data.task, settings)
            world = World(0, 1, torch.device("cpu"))
            teacher, task_data = open_teacher(settings, fitted, task_data, model, world)
            teacher_findings = teacher.notes
        except AlbertKitError as error:
            teacher_findings = [f"finetune will stop: {error.message}"]
    config = AlbertConfig.from_pretrained(folder)
    resolved, _ = settings.resolve(
        task_data.task.name,
        config,
        len(task_data.train) + len(task_data.unlabelled),
        len(task_data.unlabelled),
    )
    fitted = apply_task_settings(task_data.task, resolved)
    config.check_length(fitted.length, f"`{model}`")
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    examples = {"train": task_data.train, "dev": task_data.dev}
    if task_data.unlabelled:
        examples[UNLABELLED] = task_data.unlabelled
    report = check_data(fitted, examples, tokenizer)
    findings: list[str] = []
    if bad_rows.rows:
        first_rows = bad_rows.rows[:MAX_SHOWN]
        them = "it" if len(bad_rows.rows) == 1 else "the first of them"
        listing = "; ".join(
            f"`{Path(row.file).name}`, {row.where}: {row.reason}" for row in first_rows
        )
        if len(bad_rows.rows) > MAX_SHOWN:
            listing += f"; and {len(bad_rows.rows) - MAX_SHOWN:,} more"
        findings.append(
            f"{pluralize(len(bad_rows.rows), 'row')} cannot be used, finetune will stop at {them} unless --on-error skip: "
            f"{listing}"
        )
    findings += bad_rows.notes
    findings += teacher_findings
    return replace(report, findings=(*findings, *report.findings))


def check_data(
    task: Task,
    examples: Mapping[str, Sequence[Any]],
    tokenizer: AlbertTokenizer,
) -> DataCheckReport:
    """Look at examples by split; all but those of UNLABELLED have labels."""
    # Answers are looked up in the tokens of labelled features.
    features = {
        split: task.features(
            rows, tokenizer, labelled=task.kind == "answers" and split != UNLABELLED
        )
        for split, rows in examples.items()
    }
    labelled_examples = {split: rows for split, rows in examples.items() if split != UNLABELLED}
    splits = {}
    repeated_ids: list[str] = []
    for split, rows in examples.items():
        keys = [tuple(map(plain_text, texts_of_example(task.kind, example))) for example in rows]
        labels_of_key = defaultdict(list)
        for key, example in zip(keys, rows, strict=True):
            labels_of_key[key].append(label_of(task.kind, example))
        contradictory = [
            group for group in labels_of_key.values() if any(label != group[0] for label in group)
        ]
        whole_features = task.with_changes(length=NO_TRUNCATION).features(
            rows,
            tokenizer,
            labelled=False,
        )
        whole_sequences = whole_features.sequence_bounds(len(rows))
        num_windows = np.diff(features[split].sequence_bounds(len(rows)))
        is_windowed = num_windows > np.diff(whole_sequences)
        lengths = np.maximum.reduceat(whole_features.lengths, whole_sequences[:-1])
        quantiles = np.quantile(lengths, [0.5, 0.9, 0.99, 1], method="inverted_cdf").tolist()
        labels = label_counts_or_quantiles(task.kind, rows) if split in labelled_examples else {}
        splits[split] = SplitCheck(
            examples=len(rows),
            labels=labels,
            labelled=int(sum(labels.values())) if task.kind == "tagging" else len(rows),
            tokens=dict(zip(("median", "p90", "p99", "longest"), quantiles, strict=True)),
            cut=int(((lengths > task.length) & ~is_windowed).sum()),
            windowed=int(is_windowed.sum()),
            windows=features[split].num_sequences,
            unknown=unknown_token_share(whole_features, tokenizer),
            empty=sum(not all(key) for key in keys),
            wordless=sum(not _LETTER.search(key[0]) for key in keys),
            repeated=len(keys) - len(set(keys)),
            contradictory=sum(map(len, contradictory)),
            overlap=Overlap()
            if split in _NOT_EVALUATED
            else measure_overlap(task.kind, examples["train"], rows),
        )
        repeated = [
            name for name, count in Counter(example.id for example in rows).items() if count > 1
        ]
        if repeated:
            names = format_list([f"`{name}`" for name in repeated], MAX_SHOWN)
            repeated_ids.append(
                f"{pluralize(len(repeated), 'id')} of {split} there more than once: {names}"
            )
    balances = {split: splits[split].labels for split in labelled_examples}
    findings = [
        *label_findings(task.kind, balances, getattr(task, "labels", ())),
        *repeated_ids,
        *placeholder_text_findings(task.kind, examples["train"]),
        *pair_findings(task.kind, examples),
        *_split_findings(splits, task.length),
    ]
    if task.kind == "answers":
        findings += answer_findings(labelled_examples, features)
    if getattr(task, "version", 1) == 2 and not any(
        example.impossible for example in examples["train"]
    ):
        findings.append(
            "no training question is unanswerable, so nothing is learned about that: are these data SQuAD 1.1 (`squad1`)?"
        )
    return DataCheckReport(task.name, task.length, splits, tuple(findings))


def _split_findings(splits: Mapping[str, SplitCheck], length: int) -> Iterator[str]:
    for split, check in splits.items():
        of = f"of {check.examples:,} {split} examples"
        yield from check.overlap.lines(split, check.examples)
        if check.contradictory:
            yield f"{check.contradictory:,} {of} have texts that occur with different labels"
        if check.repeated > REPETITION_SHARE * check.examples:
            yield f"{check.repeated:,} {of} are repetitions: is it the right column?"
        if check.wordless > WORDLESS_SHARE * check.examples:
            yield f"{check.wordless:,} {of} have no letter in their text: is it the right column?"
        if check.empty:
            yield f"{check.empty:,} {of} have an empty text"
        yield from unknown_token_lines(split, check.unknown)
        longest = check.tokens["longest"]
        if check.cut > TRUNCATION_SHARE * check.examples:
            larger = next(
                (bound for bound in LENGTHS if bound > length and bound >= check.tokens["p99"]),
                None,
            )
            hint = f"--length {larger} holds 99%" if larger else f"the longest has {longest:,}"
            yield f"{check.cut:,} {of} are longer than {length} tokens, and are cut: {hint}"
        elif check.cut and longest > LONG_FACTOR * length:
            yield f"the longest of {check.examples:,} {split} examples has {longest:,} tokens; {length} are read"


def _format_count_and_share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if count else "0"
