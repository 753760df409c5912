"""A look at the data of a task before training: labels, lengths, what is cut, what is twice, what leaks into dev.

Source of what is looked for: what went wrong for others, google-research/albert issues 7 and 9 of the specification among
them: columns swapped, labels in the wrong column, texts cut, the tokenizer of another language.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.data.bad_rows import BadRow, BadRows, counted
from albertkit.data.columns import Columns
from albertkit.data.features import Features
from albertkit.data.given import Data
from albertkit.errors import listed
from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table, Text
from albertkit.model_folder import local_folder
from albertkit.tasks.data import configured, read_given
from albertkit.tasks.findings import answer_findings, balance, label_findings, label_of, pair_findings
from albertkit.tasks.loading import check_order
from albertkit.tasks.metrics.regression import regression_scores
from albertkit.tasks.overlap import Key, Overlap, measure_overlap, plain_text, texts_of
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tasks.task import Task
from albertkit.tasks.texts.task import TextExample
from albertkit.tokenizer import AlbertTokenizer

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WHOLE = 1 << 20  # a length that cuts nothing
LENGTHS = (64, 128, 256, 512)  # to choose from when much is cut
MOST_SHOWN = 5  # rows or ids in a finding
MUCH_CUT, MUCH_UNKNOWN, MUCH_REPEATED, MUCH_WORDLESS = 0.05, 0.05, 0.25, 0.1  # of the examples, or tokens

MUCH_LONGER = 16  # times the tokens that are read: a whole file in one field, perhaps

_LETTER = re.compile(r"[^\W\d_]")
BAR_WIDTH = 40
MOST_LABELS = 30


@dataclass(frozen=True)
class SplitCheck:
    """Statistics of one split."""

    examples: int  # how many
    # count of each label; of entities in tagging, of positions in multiple choice; of a regression lowest, median
    # and highest
    labels: dict[str, float]
    labelled: int  # what the shares of `labels` are of: examples; in tagging entities
    # length of the longest sequence of an example before anything is cut: median, p90, p99, longest
    tokens: dict[str, int]
    # upper bound in tokens, and how many examples are within it and above the bound before
    histogram: list[tuple[int, int]]
    cut: int  # examples that lose text
    windowed: int  # examples that are read in several windows
    windows: int  # sequences in all
    unknown: float  # share of the tokens that the tokenizer does not know
    empty: int  # examples with an empty text
    wordless: int  # examples whose first text has no letter
    repeated: int  # examples that an earlier one of the split equals, upper case and white space apart
    contradictory: int  # examples whose texts occur with different labels
    overlap: Overlap = field(default_factory=Overlap)  # of another split than train: what it has in common with train


@dataclass(frozen=True)
class CheckReport(Result):
    """Report on the data of a task.

    Attributes:
        task: Name.
        length: Tokens that a sequence may have.
        splits: Of each split.
        findings: A sentence for each thing that the user should look at.
        counting: What counting tokens alone reaches on dev, see `counting_baseline`; empty for other kinds of tasks.
    """

    task: str
    length: int
    splits: dict[str, SplitCheck]
    findings: tuple[str, ...]
    counting: dict[str, float] = field(default_factory=dict)

    def sections(self) -> list[Section]:
        """Return the splits, the labels, the lengths of the training examples, what to beat, and the findings."""
        sections: list[Section] = [
            Text(f"{self.length} tokens at most", self.task),
            _split_table(self.splits),
            _label_table(self.splits),
            _histogram(self.splits["train"].histogram, self.length),
        ]
        if self.counting:
            reached = ", ".join(f"{name} {value:.3f}" for name, value in self.counting.items() if name != "majority")
            largest = f" (the largest class: {self.counting['majority']:.3f})" if "majority" in self.counting else ""
            sections.append(Text(f"to beat: a linear model that counts tokens reaches {reached} on dev{largest}"))
        sections += [Text(finding, tone="warning") for finding in self.findings]
        return sections if self.findings else [*sections, Text("nothing odd was found")]


def check_task(
    task: str | Task,
    model: str | Path,
    data: Data,
    settings: FinetuneSettings | None = None,
    *,
    columns: Columns | None = None,
    dev: Data = None,
) -> CheckReport:
    """Look at the data that `finetune` with the same arguments would train on; nothing is trained."""
    check_order(task, model, data)
    settings, bad_rows, folder = settings or FinetuneSettings(), BadRows("skip"), local_folder(model)
    settings.check()
    found = task if isinstance(task, Task) else find_task(task, columns)
    read = read_given(found, data, dev, settings.held_out, False, bad_rows)
    config = AlbertConfig.from_pretrained(folder)
    resolved, _ = settings.resolve(read.task.name, config, len(read.train))
    ready = configured(read.task, resolved)
    config.check_length(ready.length, f"`{model}`")
    examples = {"train": read.train, "dev": read.dev}
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    report = check_data(ready, examples, tokenizer)
    counting = counting_baseline(ready.kind, read.train, read.dev, tokenizer) if ready.kind in KINDS else {}
    findings = (*_unusable(bad_rows.found), *bad_rows.notes, *report.findings)
    return replace(report, findings=findings, counting=counting)


def _unusable(found: Sequence[BadRow]) -> Iterator[str]:
    """Yield a finding about rows that cannot be used."""
    if found:
        shown = "; ".join(f"`{Path(row.file).name}`, {row.where}: {row.reason}" for row in found[:MOST_SHOWN])
        more = f"; and {len(found) - MOST_SHOWN:,} more" if len(found) > MOST_SHOWN else ""
        rows, them = counted(len(found), "row"), "it" if len(found) == 1 else "the first of them"
        yield f"{rows} cannot be used, finetune will stop at {them} unless --on-error skip: {shown}{more}"


def check_data(task: Task, examples: Mapping[str, Sequence[Any]], tokenizer: AlbertTokenizer) -> CheckReport:
    """Look at labelled examples by split."""
    features = {
        split: task.features(rows, tokenizer, labelled=task.kind == "answers") for split, rows in examples.items()
    }
    keys = {split: [_key(texts_of(task.kind, example)) for example in rows] for split, rows in examples.items()}
    splits = {}
    for split, rows in examples.items():
        whole = task.with_changes(length=WHOLE).features(rows, tokenizer, labelled=False)
        splits[split] = SplitCheck(
            examples=len(rows),
            labels=(labels := balance(task.kind, rows)),
            labelled=int(sum(labels.values())) if task.kind == "tagging" else len(rows),
            **_lengths(whole, features[split], len(rows), task.length),
            unknown=float(np.mean(whole.input_ids == tokenizer.unk_id)),
            empty=sum(not all(key) for key in keys[split]),
            wordless=sum(not _LETTER.search(key[0]) for key in keys[split]),
            **_repetitions(keys[split], [label_of(task.kind, example) for example in rows]),
            overlap=Overlap() if split == "train" else measure_overlap(task.kind, examples["train"], rows),
        )
    found = [
        *label_findings(
            task.kind, {split: check.labels for split, check in splits.items()}, getattr(task, "labels", ())
        ),
        *_repeated_ids(examples),
        *pair_findings(task.kind, examples),
        *_split_findings(splits, task.length),
        *(answer_findings(examples, features) if task.kind == "answers" else ()),
        *_without_unanswerable(task, examples["train"]),
    ]
    return CheckReport(task.name, task.length, splits, tuple(found))


def _without_unanswerable(task: Task, train: Sequence[Any]) -> Iterator[str]:
    if getattr(task, "version", 1) == 2 and not any(example.impossible for example in train):
        yield "no training question is unanswerable, so nothing is learned about that: are these data SQuAD 1.1 (`squad1`)?"


def _key(texts: tuple[str, ...]) -> Key:
    return tuple(map(plain_text, texts))


def _lengths(whole: Features, real: Features, num_examples: int, length: int) -> dict[str, Any]:
    """Return lengths of examples, and how many of them are cut or read in windows."""
    longest = np.maximum.reduceat(whole.lengths, whole.sequences_of(num_examples)[:-1])
    sequences, windows = (np.diff(features.sequences_of(num_examples)) for features in (whole, real))
    quantiles = np.quantile(longest, [0.5, 0.9, 0.99, 1], method="inverted_cdf").tolist()
    bounds = [16 << number for number in range(max(1, int(np.ceil(np.log2(longest.max() / 16))) + 1))]
    counts = np.bincount(np.searchsorted(bounds, longest), minlength=len(bounds)).tolist()
    return {
        "tokens": dict(zip(("median", "p90", "p99", "longest"), quantiles, strict=True)),
        "histogram": list(zip(bounds, counts, strict=True)),
        "cut": int(((longest > length) & (windows == sequences)).sum()),
        "windowed": int((windows > sequences).sum()),
        "windows": real.num_sequences,
    }


def _repetitions(keys: Sequence[Key], labels: Sequence[Any]) -> dict[str, Any]:
    labels_of = defaultdict(list)
    for key, label in zip(keys, labels, strict=True):
        labels_of[key].append(label)
    differing = (len(same) for same in labels_of.values() if any(label != same[0] for label in same))
    return {"repeated": len(keys) - len(labels_of), "contradictory": sum(differing)}


def _repeated_ids(examples: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    for split, rows in examples.items():
        repeated = [name for name, count in Counter(example.id for example in rows).items() if count > 1]
        if repeated:
            names = listed([f"`{name}`" for name in repeated], MOST_SHOWN)
            yield f"{counted(len(repeated), 'id')} of {split} there more than once: {names}"


def _split_findings(splits: Mapping[str, SplitCheck], length: int) -> Iterator[str]:
    for split, check in splits.items():
        of = f"of {check.examples:,} {split} examples"
        noted = [
            (check.contradictory, 0, "have texts that occur with different labels"),
            (check.repeated, MUCH_REPEATED * check.examples, "are repetitions: is it the right column?"),
            (check.wordless, MUCH_WORDLESS * check.examples, "have no letter in their text: is it the right column?"),
            (check.empty, 0, "have an empty text"),
        ]
        yield from check.overlap.lines(split, check.examples)
        yield from (f"{count:,} {of} {what}" for count, least, what in noted if count > least)
        if check.unknown > MUCH_UNKNOWN:
            yield f"{check.unknown:.1%} of the tokens of {split} are unknown: is the tokenizer of another language?"
        if check.cut > MUCH_CUT * check.examples:
            within = {bound: sum(count for upto, count in check.histogram if upto <= bound) for bound in LENGTHS}
            longer = [bound for bound in LENGTHS if bound > length and within[bound] > within.get(length, 0)]
            enough = next((bound for bound in longer if within[bound] >= 0.99 * check.examples), max(longer, default=0))
            hint = f": --length {enough} holds {within[enough] / check.examples:.1%}" if enough else ""
            yield f"{check.cut:,} {of} are longer than {length} tokens, and are cut{hint}"
        elif check.cut and check.tokens["longest"] > MUCH_LONGER * length:
            yield f"the longest of {check.examples:,} {split} examples has {check.tokens['longest']:,} tokens; {length} are read"


MOST = 20_000  # training examples: half a minute of fitting at most
KINDS = ("classification", "regression")


def counting_baseline(
    kind: str, train: Sequence[TextExample], dev: Sequence[TextExample], tokenizer: AlbertTokenizer
) -> dict[str, float]:
    """Train a linear model on TF-IDF of tokens, and score it on dev; nothing if there is but one class to learn.

    Of pairs it sees both texts, what they share and where they differ. "majority" is the share of dev's largest class.
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    features = _Counts(train[:MOST], tokenizer)
    seen, asked = features(train[:MOST]), features(dev)
    labels, wanted = ([example.label for example in rows] for rows in (train[:MOST], dev))
    if kind == "regression":
        scores = regression_scores(np.array(wanted, np.float64), Ridge().fit(seen, labels).predict(asked))
        return {name: scores[name] for name in ("pearson", "spearman")}
    if len(set(labels)) < 2:
        return {}
    predicted = LogisticRegression(max_iter=1000).fit(seen, labels).predict(asked)
    largest = max(Counter(wanted).values())
    return {"accuracy": float(np.mean(predicted == np.array(wanted))), "majority": largest / len(wanted)}


class _Counts:
    """Examples as rows of TF-IDF; of a pair four blocks."""

    def __init__(self, train: Sequence[TextExample], tokenizer: AlbertTokenizer) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._tokenizer = tokenizer
        texts = [text for example in train for text in (example.text, example.pair) if text is not None]
        self._weights = TfidfVectorizer(analyzer=list, sublinear_tf=True).fit(self._pieces(texts))

    def __call__(self, examples: Sequence[TextExample]) -> "csr_matrix":
        from scipy.sparse import hstack

        first = self._weights.transform(self._pieces([example.text for example in examples]))
        if all(example.pair is None for example in examples):
            return first
        second = self._weights.transform(self._pieces([example.pair or "" for example in examples]))
        return hstack([first, second, first.multiply(second), abs(first - second)]).tocsr()

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids.tolist() for ids in self._tokenizer.encode_batch(texts).texts()]


# --- the report as it is shown ----------------------------------------------------------------------------------------


def _split_table(splits: dict[str, SplitCheck]) -> Table:
    """Return a column for each split, so that it fits into 80 characters."""
    found = splits.values()
    rows = [["examples", *(split.examples for split in found)]]
    for key in next(iter(found)).tokens:
        rows.append([f"tokens, {key}", *(split.tokens[key] for split in found)])
    for key, name in (("cut", "cut"), ("windowed", "in windows"), ("repeated", "twice in the split")):
        rows.append([name, *(_share(getattr(split, key), split.examples) for split in found)])
    rows.append(["unknown tokens", *(f"{split.unknown:.2%}" for split in found)])
    shared = (None if name == "train" else _share(split.overlap.same, split.examples) for name, split in splits.items())
    return Table(["", *splits], [*rows, ["also in train", *shared]])


def _label_table(splits: dict[str, SplitCheck]) -> Table:
    names = list(dict.fromkeys(name for split in splits.values() for name in split.labels))
    rows = []
    for label in names[:MOST_LABELS]:
        cells = []
        for split in splits.values():
            value = split.labels.get(label, 0)
            share = value / max(split.labelled, 1)
            cells.append(f"{value:g}" if isinstance(value, float) else f"{value:,}  {share:6.1%}")
        rows.append([label, *cells])
    more = f"and {len(names) - MOST_LABELS:,} more" if len(names) > MOST_LABELS else ""
    return Table(["label", *splits], rows, note=more)


def _histogram(rows: list[tuple[int, int]], length: int) -> Table:
    """Return bars of the lengths of the training examples; the bound that the task's length is in is marked."""
    most, total = max(count for _, count in rows), sum(count for _, count in rows)
    cells, below = [], 0
    for bound, count in rows:
        bar = "█" * round(BAR_WIDTH * count / most) or ("▏" if count else "")
        mark = f"  ← {length}" if below < length <= bound else ""
        cells.append([f"{below + 1:,} to {bound:,}", f"{count / total:.1%}", f"{bar}{mark}"])
        below = bound
    return Table(["tokens", "share", ""], cells, "tokens of the training examples")


def _share(count: int, of: int) -> str:
    return f"{count:,} ({count / of:.1%})" if count else "0"
