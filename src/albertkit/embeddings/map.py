"""`embedding_map`: texts laid out by their vectors, in one HTML file."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from albertkit.embeddings.evaluation.similarity import unit_vectors
from albertkit.embeddings.models import load_embedding_model
from albertkit.embeddings.silver.sampling import semantic_neighbours
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import check_page_file, sha256_bytes
from albertkit.report.embedding_map import write_embedding_map
from albertkit.tasks.columns import Columns
from albertkit.tasks.faults import Faults, counted
from albertkit.tasks.tables import Table
from albertkit.tokenizer.text_files import read_lines

MOST_POINTS = 5000  # more are a cloud in which nothing can be pointed at
NEIGHBOURS = 10
_SAME = 1e-5  # spread of unit vectors below which there is nothing to draw


@dataclass(frozen=True)
class MapReport:
    """What `embedding_map` drew.

    Attributes:
        written: The page.
        texts: Points.
        rows: Texts of the file, equal ones and those left out counted.
        left_out: Rows that could not be used.
        variance: Share of the variance of each axis.
        truncated: Texts that were longer than the model reads and were cut.
        model: What made the vectors.
        notes: What a user should know about how the vectors were computed.
    """

    written: Path
    texts: int
    rows: int
    left_out: int
    variance: tuple[float, ...]
    truncated: int
    model: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "written": str(self.written), "notes": list(self.notes)}


def embedding_map(
    model: str | Path,
    input: str | Path,
    out: str | Path,
    *,
    columns: Columns | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    on_error: Literal["stop", "skip"] = "stop",
) -> MapReport:
    """Draw a map: unit vectors in the two directions in which they differ most, and of each text its nearest by cosine.

    Args:
        model: Anything that makes vectors: see `load_embedding_model`.
        input: A table with a column of texts, perhaps a second one (`pair`), and perhaps names (`label`), which colour the
            points; or, without columns, a text a line. Equal texts are one point; of more than `MOST_POINTS` different ones a
            sample is drawn, the same each time.
        out: The HTML file.
        columns: Of a table.
        prompt_name, prompt: What is put before every text: see `load_embedding_model`.
        on_error: Rows that cannot be used: stop, or skip and count them.

    Raises:
        CheckpointError: constant-vectors, and what loading raises. ConfigError: bad-argument, missing-column,
        conflicting-options. DataError: no-examples, wrong-kind, and what reading raises.
    """
    check_page_file(out)
    faults = Faults(on_error)
    given = columns or Columns()
    sample = _Sample(MOST_POINTS)
    sample.add(_labelled_texts(Path(input), given, faults))
    texts, labels = sample.texts()
    if len(texts) < 3:
        raise DataError("no-examples", f"`{input}` has {counted(len(texts), 'different text')}", "a map needs three")
    loaded = load_embedding_model(model, prompt_name=prompt_name, prompt=prompt)
    facts = [loaded.name, loaded.description, f"{loaded.dimension:,} numbers"]
    if sample.drawn:
        facts.insert(0, f"a sample of the {sample.seen:,} in {Path(input).name}")
    title, names = Path(input).name, labels if given.label else None
    variance = draw_map(out, title, texts, loaded.encode(texts), labels=names, facts=facts)
    return MapReport(
        Path(out), len(texts), sample.seen, len(faults.found), variance, loaded.num_truncated(texts), loaded.description,
        (*loaded.notes, *loaded.reading_notes(texts)),
    )  # fmt: skip


def draw_map(
    out: str | Path,
    title: str,
    texts: Sequence[str],
    vectors: np.ndarray,
    *,
    labels: Sequence[str] | None = None,
    facts: Sequence[str] = (),
) -> tuple[float, ...]:
    """Draw different texts whose vectors are there.

    Args:
        out: The HTML file.
        title: Of the page.
        texts: E texts, at least 3.
        vectors: fp32 [E, D].
        labels: E names, which colour the points.
        facts: What else is shown.

    Returns:
        Share of the variance of each axis.

    Raises:
        CheckpointError: constant-vectors.
    """
    from sklearn.decomposition import PCA

    units = unit_vectors(vectors)
    if np.ptp(units, axis=0).max() <= _SAME:
        raise CheckpointError(
            "constant-vectors",
            f"all {len(texts):,} texts of `{title}` have the same vector",
            "there is nothing to draw",
        )
    found = PCA(2 if units.shape[1] > 1 else 1, random_state=0).fit(units)
    axes = np.zeros((len(texts), 2))
    axes[:, : found.n_components_] = found.transform(units)
    nearest = semantic_neighbours(units, min(NEIGHBOURS, len(texts) - 1))
    cosines = np.stack([(units * units[column]).sum(1) for column in nearest.T], axis=1)
    variance = tuple(map(float, found.explained_variance_ratio_))
    write_embedding_map(
        out, title, coordinates=axes.tolist(), texts=texts, labels=labels, neighbours=nearest.tolist(),
        cosines=cosines.tolist(), variance=variance, facts=facts,
    )  # fmt: skip
    return variance


class _Sample:
    """Different texts with their names, at most so many: those whose checksums are lowest. Bounded memory, one pass.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, tuple[int, str]] = {}  # text to place in the file and name
        self._heap: list[tuple[int, str]] = []  # the highest checksum first
        self.seen, self.drawn = 0, False

    def add(self, texts: Iterable[tuple[str, str]]) -> None:
        """Look at texts and their names."""
        for text, label in texts:
            self.seen += 1
            if text in self._kept:
                continue
            entry = (-int(sha256_bytes(text.encode())[:16], 16), text)
            if len(self._heap) < self._most:
                heapq.heappush(self._heap, entry)
            else:
                self.drawn = True
                dropped = heapq.heappushpop(self._heap, entry)
                self._kept.pop(dropped[1], None)
                if dropped is entry:
                    continue
            self._kept[text] = (self.seen, label)

    def texts(self) -> tuple[list[str], list[str]]:
        """The texts that are kept, in the order of the file, and their names."""
        ordered = sorted(self._kept.items(), key=lambda item: item[1])
        return [text for text, _ in ordered], [label for _, (_, label) in ordered]


def _labelled_texts(file: Path, columns: Columns, faults: Faults) -> Iterable[tuple[str, str]]:
    """Texts and names, one after the other."""
    if columns.id is not None:
        raise ConfigError("conflicting-options", "points have no id", "leave --id out")
    if columns.text is None:
        if columns.settings():
            raise ConfigError(
                "missing-column", "columns are named, but not that of the text", "name it: --text sentence"
            )
        yield from ((line.strip(), "") for line in read_lines(file) if line.strip())
        return
    sides = [name for name in (columns.text, columns.pair) if name is not None]
    with Table(file, quoted=columns.quoted, faults=faults) as table:
        if columns.columns is not None:
            table.without_header([name.strip() for name in columns.columns.split(",")])
        for row in table.rows([*sides, *([columns.label] if columns.label else [])]):
            for side in sides:
                if text := row.values[side].strip():
                    yield text, row.values[columns.label] if columns.label else ""
                else:
                    table.add_fault(row.line, f"`{side}` is empty")
