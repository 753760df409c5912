"""`embedding_map`: texts laid out by their vectors, in one HTML file."""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.data.bad_rows import BadRows, counted
from albertkit.data.columns import Columns
from albertkit.data.tables import Table
from albertkit.embeddings.metrics import unit_vectors
from albertkit.embeddings.models import load_embedding_model
from albertkit.embeddings.options import MapOptions
from albertkit.embeddings.silver.sampling import semantic_neighbours
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import atomic_file, check_page_file, sha256_bytes
from albertkit.frame.command import takes
from albertkit.frame.rendering import environment
from albertkit.frame.result import Result
from albertkit.tokenizer.text_files import read_lines

MOST_POINTS = 5000  # more are a cloud in which nothing can be pointed at
NEIGHBOURS = 10
_SAME = 1e-5  # spread of unit vectors below which there is nothing to draw


@dataclass(frozen=True)
class MapReport(Result):
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


@takes(MapOptions)
def embedding_map(options: MapOptions) -> MapReport:
    """Draw a map: unit vectors in the two directions in which they differ most, and of each text its nearest by cosine.

    Equal texts are one point. Of more than `MOST_POINTS` different ones a sample is drawn, the same each time.

    Raises:
        CheckpointError: wrong-model, and what loading raises.
        ConfigError: bad-value, missing-column, conflicting-options.
        DataError: too-little-data, wrong-kind, and what reading raises.
    """
    input, given = Path(options.input), options.columns
    check_page_file(options.out)
    bad_rows = BadRows(options.on_error)
    sample = _Sample(MOST_POINTS)
    sample.add(_labelled_texts(input, given, bad_rows))
    texts, labels = sample.texts()
    if len(texts) < 3:
        raise DataError(
            "too-little-data", f"`{input}` has {counted(len(texts), 'different text')}", "a map needs three"
        )
    loaded = load_embedding_model(options.model, prompt_name=options.prompt_name, prompt=options.prompt)
    facts = [loaded.name, loaded.description, f"{loaded.dimension:,} numbers"]
    if sample.drawn:
        facts.insert(0, f"a sample of the {sample.seen:,} in {input.name}")
    title, names = input.name, labels if given.label else None
    variance = draw_map(options.out, title, texts, loaded.encode(texts), labels=names, facts=facts)
    return MapReport(
        options.out,
        len(texts),
        sample.seen,
        len(bad_rows.found),
        variance,
        loaded.num_truncated(texts),
        loaded.description,
        (*loaded.notes, *loaded.reading_notes(texts)),
    )


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
    """
    from sklearn.decomposition import PCA

    units = unit_vectors(vectors)
    if np.ptp(units, axis=0).max() <= _SAME:
        raise CheckpointError(
            "wrong-model",
            f"all {len(texts):,} texts of `{title}` have the same vector",
            "there is nothing to draw",
        )
    found = PCA(2 if units.shape[1] > 1 else 1, random_state=0).fit(units)
    axes = np.zeros((len(texts), 2))
    axes[:, : found.n_components_] = found.transform(units)
    nearest = semantic_neighbours(units, min(NEIGHBOURS, len(texts) - 1))
    cosines = np.stack([(units * units[column]).sum(1) for column in nearest.T], axis=1)
    variance = tuple(map(float, found.explained_variance_ratio_))
    page = embedding_map_page(
        title,
        coordinates=axes.tolist(),
        texts=texts,
        labels=labels,
        neighbours=nearest.tolist(),
        cosines=cosines.tolist(),
        variance=variance,
        facts=facts,
    )
    with atomic_file(check_page_file(out), "w") as stream:
        stream.write(page)
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


def _labelled_texts(file: Path, columns: Columns, bad_rows: BadRows) -> Iterable[tuple[str, str]]:
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
    with Table(file, quoted=columns.quoted, bad_rows=bad_rows) as table:
        if columns.columns is not None:
            table.without_header([name.strip() for name in columns.columns.split(",")])
        for row in table.rows([*sides, *([columns.label] if columns.label else [])]):
            for side in sides:
                if text := row.values[side].strip():
                    yield text, row.values[columns.label] if columns.label else ""
                else:
                    table.add_bad_row(row.line, f"`{side}` is empty")


# --- the page ---------------------------------------------------------------------------------------------------------------

COLOURS = 8  # names with a colour of their own; the others share grey
NO_NAME = "(no name)"


def embedding_map_page(
    title: str,
    *,
    coordinates: Sequence[Sequence[float]],
    texts: Sequence[str],
    labels: Sequence[str] | None = None,
    neighbours: Sequence[Sequence[int]] = (),
    cosines: Sequence[Sequence[float]] = (),
    variance: Sequence[float] = (),
    facts: Sequence[str] = (),
) -> str:
    """Return the map as HTML without any outside resource. Every text is escaped.

    E texts have two coordinates each, on one scale, perhaps a label that gives the point its colour, the numbers of the texts
    nearest to it, best first, and their cosines; `variance` is the share that each axis shows, `facts` stand under the title.
    """
    sides = {"coordinates": coordinates, "texts": texts, "labels": labels, "neighbours": neighbours, "cosines": cosines}
    for name, values in sides.items():
        if values and len(values) != len(texts):
            raise ConfigError("bad-value", f"{len(values)} {name} for {len(texts)} texts", "give one for each text")
    names, places = _named(labels or [])
    data = {
        "points": [[round(float(number), 5) for number in point] for point in coordinates],
        "texts": list(texts),
        "names": names,
        "labels": places,
        "neighbours": [[int(number) for number in row] for row in neighbours],
        "cosines": [[round(float(number), 3) for number in row] for row in cosines],
    }
    legend = [(name, places.count(place)) for place, name in enumerate(names)]
    shown = {"variance": [f"{share:.1%}" for share in variance], "total": f"{sum(variance):.1%}"}
    template = environment("albertkit.embeddings").get_template("embedding_map.html.j2")
    return template.render(title=title, facts=facts, data=data, legend=legend, count=len(texts), **shown)


def _named(labels: Sequence[str]) -> tuple[list[str], list[int]]:
    """The names with a colour, the most frequent first, then perhaps one for all others; and the place of each label."""
    shown = [label.strip() or NO_NAME for label in labels]
    frequent = [name for name, _ in Counter(shown).most_common()]
    names = frequent[:COLOURS]
    if rest := len(frequent) - len(names):
        names.append(f"{rest:,} others")
    place = {name: number for number, name in enumerate(frequent[:COLOURS])}
    return names, [place.get(name, COLOURS) for name in shown]
