"""What a model of a run said of some dev examples, as far as its files show texts."""

import json
import math
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from albertkit.report.results import percent
from albertkit.report.run_folder import Run, numbers, plain

MOST = 6  # examples
GUESSES = 4  # of each
LONGEST = 600  # characters of a text

Example = dict[str, Any]


WORST, FIRST = (
    "Its worst predictions on dev, the most confident mistakes first.",
    "The first examples of dev, not chosen.",
)


def run_examples(run: Run) -> list[tuple[str, list[Example]]]:
    """Some examples out of a run's predictions, or out of its card: mistakes first, then examples that nobody chose.

    Returns:
        Groups with examples: what they are, and of each example a `name`, `texts`, `parts` (pairs of text and mark, empty where
        nothing is marked), `guesses` (text, share and width of its bar in per cent), `value` (a number as text) and `said`: the
        labels.
    """
    folder = run.attempt / "dev" if (run.attempt / "dev").exists() else run.folder / "dev"
    if shown := _records(run, folder / "examples.jsonl"):
        groups = [(WORST, _records(run, folder / "errors.jsonl")), (FIRST, shown)]
        made = [(title, [example for example in map(_record, records) if example]) for title, records in groups]
        return [(title, examples) for title, examples in made if examples]
    answers = run.table(folder / "nbest_predictions.json")
    if answers:
        shown_answers = [_answer(name, guesses) for name, guesses in list(answers.items())[:MOST]]
    else:
        shown_answers = [_record(record) for record in _records(run, folder / "predictions.jsonl")]
    found = [example for example in shown_answers if example] or _captions(run.card)
    return [(FIRST, found)] if found else []


def _records(run: Run, file: Path) -> list[dict[str, Any]]:
    records = run.read(file, lambda text: [json.loads(line) for line in text.splitlines()[:MOST]]) or []
    return [plain(record) for record in records if isinstance(record, dict)]


def _record(record: dict[str, Any]) -> Example | None:
    """A prediction, with the texts and what people said where the run kept them."""
    words, entities, shares, nbest = (record.get(key) for key in ("words", "entities", "probabilities", "nbest"))
    made = _empty(str(record.get("id", "")))
    made["texts"] = [_short(text) for text in _texts(record.get("texts"))]
    made["said"] = _texts([label]) if (label := record.get("gold")) else []
    if isinstance(words, list) and isinstance(entities, list):
        return made | {"parts": list(_marked(" ".join(map(str, words)), entities))}
    if isinstance(nbest, list):
        return made | {"guesses": _guesses(_pairs(nbest))}
    if isinstance(shares, dict):
        return made | {"guesses": _guesses(list(shares.items()))}
    if (value := numbers({"value": record.get("value")}).get("value", math.nan)) == value and made["texts"]:
        return made | {"value": f"{value:.3f}"}
    return None


def _answer(name: str, guesses: Any) -> Example | None:
    """A question that is known by its number alone: the file has no text of it."""
    return _empty(name) | {"guesses": _guesses(_pairs(guesses))} if isinstance(guesses, list) else None


def _empty(name: str) -> Example:
    return {"name": name, "texts": [], "parts": [], "guesses": [], "value": "", "said": []}


def _texts(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _pairs(guesses: list[Any]) -> list[tuple[Any, Any]]:
    return [(guess.get("text"), guess.get("probability")) for guess in guesses if isinstance(guess, dict)]


def _guesses(pairs: list[tuple[Any, Any]]) -> list[dict[str, str]]:
    """The likeliest, best first; what has no share between 0 and 1 is left out."""
    known = [(str(text), numbers({"share": share}).get("share", -1.0)) for text, share in pairs]
    best = sorted((pair for pair in known if 0 <= pair[1] <= 1), key=lambda pair: -pair[1])[:GUESSES]
    return [
        {"text": text or "(no answer)", "share": percent(share), "width": f"{100 * share:.1f}"} for text, share in best
    ]


def _marked(text: str, entities: list[Any]) -> Iterator[tuple[str, str]]:
    """The text in parts, each entity with its type."""
    place = 0
    for entity in entities:
        start, end = (entity.get(key) if isinstance(entity, dict) else None for key in ("start", "end"))
        if not (isinstance(start, int) and isinstance(end, int) and place <= start < end <= len(text)):
            continue
        yield text[place:start], ""
        yield text[start:end], str(entity.get("type", "")) or "entity"
        place = end
    yield text[place:], ""


def _captions(card: str) -> list[Example]:
    """The captions that a captioner's card shows beside what people said."""
    rows = re.search(r"^\| caption \| said by people \|\n\|[-:| ]+\|\n((?:\|.*\|\n?)+)", card, re.MULTILINE)
    if not rows:
        return []
    cells = [
        [_text(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in rows[1].splitlines()[:MOST] if line
    ]
    return [_empty("") | {"texts": row[:1], "said": row[1:2]} for row in cells if len(row) > 1]


def _text(cell: str) -> str:
    """What a cell of a card shows: see `report.card.cell`."""
    return unescape(re.sub(r"\\(.)", r"\1", cell.strip()))
