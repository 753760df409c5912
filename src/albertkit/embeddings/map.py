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
from albertkit.embeddings.data import LINE_HINTS
from albertkit.embeddings.metrics import unit_vectors
from albertkit.embeddings.models import load_embedding_model
from albertkit.embeddings.options import MapOptions
from albertkit.embeddings.silver.sampling import semantic_neighbours
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import atomic_file, check_page_file, sha256_bytes
from albertkit.frame.command import takes
from albertkit.frame.rendering import environment
from albertkit.frame.result import Result
from albertkit.tasks.loading import check_not_swapped
from albertkit.tokenizer.text_files import check_is_running_text, read_lines

MOST_POINTS = 5000  # more are a cloud in which nothing can be pointed at
NEIGHBOURS = 10
_SAME = 1e-5  # spread of unit vectors below which there is nothing to draw


@dataclass(frozen=True)
class MapReport(Result):
    """Result of `embedding_map`.

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
    check_not_swapped(options.model, options.input)
    input, given = Path(options.input), options.columns
    check_page_file(options.out)
    bad_rows = BadRows(options.on_error)
    labelled, seen, is_sample = _sampled(_labelled_texts(input, given, bad_rows), MOST_POINTS)
    texts, labels = list(labelled), list(labelled.values())
    if len(texts) < 3:
        raise DataError(
            "too-little-data", f"`{input}` has {counted(len(texts), 'different text')}", "a map needs three"
        )
    loaded = load_embedding_model(options.model, prompt_name=options.prompt_name, prompt=options.prompt)
    facts = [loaded.name, loaded.description, f"{loaded.dimension:,} numbers"]
    if is_sample:
        facts.insert(0, f"a sample of the {seen:,} in {input.name}")
    title, names = input.name, labels if given.label else None
    variance = draw_map(options.out, title, texts, loaded.encode(texts), labels=names, facts=facts)
    return MapReport(
        options.out,
        len(texts),
        seen,
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
    """Draw E >= 3 different texts by their vectors, fp32 [E, D]; labels colour the points, facts stand under the title.

    Returns the share of the variance of each axis.
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


def _sampled(texts: Iterable[tuple[str, str]], most: int) -> tuple[dict[str, str], int, bool]:
    """Keep different texts with their labels, at most `most`: those whose checksums are lowest, whatever the order.

    Returns them, the number of all texts, and whether some were left out. Memory holds no more than twice as many.
    """
    kept: dict[str, str] = {}
    seen, is_sample = 0, False
    for text, label in texts:
        seen += 1
        kept.setdefault(text, label)
        if len(kept) > 2 * most:
            kept, is_sample = _lowest(kept, most), True
    return _lowest(kept, most), seen, is_sample or len(kept) > most


def _lowest(kept: dict[str, str], most: int) -> dict[str, str]:
    lowest = set(heapq.nsmallest(most, kept, key=lambda text: sha256_bytes(text.encode())))
    return {text: label for text, label in kept.items() if text in lowest}


def _labelled_texts(file: Path, columns: Columns, bad_rows: BadRows) -> Iterable[tuple[str, str]]:
    """Yield texts and names."""
    if columns.id is not None:
        raise ConfigError("conflicting-options", "points have no id", "leave --id out")
    if columns.text is None:
        if columns.settings():
            raise ConfigError(
                "missing-column", "columns are named, but not that of the text", "name it: --text sentence"
            )
        check_is_running_text(file, LINE_HINTS)
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
    """Return the map as HTML without any outside resource; every text is escaped.

    E texts have two coordinates each, on one scale, and the numbers of the texts nearest to them, best first, with cosines.
    """
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
    """Return the names with a colour, the most frequent first, then perhaps one for all others; and the place of each label."""
    shown = [label.strip() or NO_NAME for label in labels]
    frequent = [name for name, _ in Counter(shown).most_common()]
    names = frequent[:COLOURS]
    if rest := len(frequent) - len(names):
        names.append(f"{rest:,} others")
    place = {name: number for number, name in enumerate(frequent[:COLOURS])}
    return names, [place.get(name, COLOURS) for name in shown]
