"""Findings of a check of a task's data, and how they are shown: lengths, labels, a histogram of lengths, and findings."""

from dataclasses import dataclass, field

from albertkit.frame.result import Result
from albertkit.frame.section import Section, Table, Text

BAR_WIDTH = 40
MOST_LABELS = 30


@dataclass(frozen=True)
class SplitCheck:
    """Statistics of one split.

    Attributes:
        examples: How many.
        labels: Count of each label; of entities in tagging, of positions in multiple choice; of a regression lowest, median
            and highest.
        labelled: What the shares of `labels` are of: examples; in tagging entities.
        tokens: Length of the longest sequence of an example before anything is cut: median, p90, p99, longest.
        histogram: Upper bound in tokens, and how many examples are within it and above the bound before.
        cut: Examples that lose text.
        windowed: Examples that are read in several windows.
        windows: Sequences in all.
        unknown: Share of the pieces that the tokenizer does not know.
        empty: Examples with an empty text.
        wordless: Examples whose first text has no letter.
        repeated: Examples that an earlier one of the split equals, upper case and white space apart.
        contradictory: Examples whose texts occur with different labels.
        in_train: Of another split than train: examples that are in train, too.
        nearly_in_train: Examples that are in train but for punctuation.
    """

    examples: int
    labels: dict[str, float]
    labelled: int
    tokens: dict[str, int]
    histogram: list[tuple[int, int]]
    cut: int
    windowed: int
    windows: int
    unknown: float
    empty: int
    wordless: int
    repeated: int
    contradictory: int
    in_train: int = 0
    nearly_in_train: int = 0


@dataclass(frozen=True)
class CheckReport(Result):
    """Report on the data of a task.

    Attributes:
        task: Name.
        length: Tokens that a sequence may have.
        splits: Of each split.
        findings: A sentence for each thing that a person should look at.
        counting: What counting pieces alone reaches on dev, see `counting_baseline`; empty for other kinds of tasks.
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


def _split_table(splits: dict[str, SplitCheck]) -> Table:
    """Return a column for each split, so that it fits into 80 characters."""
    found = splits.values()
    rows = [["examples", *(split.examples for split in found)]]
    for key in next(iter(found)).tokens:
        rows.append([f"tokens, {key}", *(split.tokens[key] for split in found)])
    for key, name in (("cut", "cut"), ("windowed", "in windows"), ("repeated", "twice in the split")):
        rows.append([name, *(_share(getattr(split, key), split.examples) for split in found)])
    rows.append(["unknown tokens", *(f"{split.unknown:.2%}" for split in found)])
    shared = (None if name == "train" else _share(split.in_train, split.examples) for name, split in splits.items())
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


def _histogram(rows: "list[tuple[int, int]]", length: int) -> Table:
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
