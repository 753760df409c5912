"""A map of texts: one HTML file that needs nothing else, with what is near what to be read beside the picture."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from albertkit.errors import ConfigError
from albertkit.files import atomic_file, check_page_file
from albertkit.report.templates import environment

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
    """The map as HTML without any outside resource. Every text is escaped.

    Args:
        title: Of the page.
        coordinates: E pairs of numbers; both axes have one scale.
        texts: E texts.
        labels: E names that give the points their colours: the most frequent ones get one each.
        neighbours: Of each text the numbers of the texts nearest to it, best first.
        cosines: As many numbers: how near.
        variance: Share of the variance that each axis shows, 0 to 1.
        facts: What else to say under the title.

    Returns:
        The page's text.

    Raises:
        ConfigError: bad-argument if these are not equally many.
    """
    sides = {"coordinates": coordinates, "texts": texts, "labels": labels, "neighbours": neighbours, "cosines": cosines}
    for name, values in sides.items():
        if values and len(values) != len(texts):
            raise ConfigError("bad-argument", f"{len(values)} {name} for {len(texts)} texts", "give one for each text")
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
    return environment().get_template("embedding_map.html.j2").render(
        title=title, facts=facts, variance=[f"{share:.1%}" for share in variance], total=f"{sum(variance):.1%}", data=data,
        legend=legend, count=len(texts),
    )  # fmt: skip


def write_embedding_map(path: str | Path, title: str, **facts: object) -> Path:
    """Write the map to a file; arguments are `embedding_map_page`'s.

    Returns:
        The file written.

    Raises:
        ConfigError: bad-argument. DataError: output-exists.
    """
    check_page_file(path)
    text = embedding_map_page(title, **facts)  # type: ignore[arg-type]
    with atomic_file(path, "w") as stream:
        stream.write(text)
    return Path(path)


def _named(labels: Sequence[str]) -> tuple[list[str], list[int]]:
    """The names with a colour, the most frequent first, then perhaps one for all others; and the place of each label."""
    shown = [label.strip() or NO_NAME for label in labels]
    frequent = [name for name, _ in Counter(shown).most_common()]
    names = frequent[:COLOURS]
    if rest := len(frequent) - len(names):
        names.append(f"{rest:,} others")
    place = {name: number for number, name in enumerate(frequent[:COLOURS])}
    return names, [place.get(name, COLOURS) for name in shown]
