"""Show examples with a model's predictions, as panels: filled-in masks, and dev predictions that a run kept."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from albertkit.frame.section import Bar, Bars, Panel, Section, Span, Text
from albertkit.report.run_folder import RunFolder, numbers, plain

MASK = "[MASK]"
WORD_START = "▁"  # SentencePiece's mark
MAX_EXAMPLES = 6
MAX_GUESSES = 4  # of each
MAX_CHARACTERS = 600  # of a text
WORST = "Its worst predictions on dev, the most confident mistakes first."
FIRST = "The first examples of dev, not chosen."


def filled_masks(examples: Iterable[Mapping[str, Any]]) -> list[Section]:
    """Return a panel for each example: `text` with `[MASK]`, `answer`, and `predictions`, pairs of token and probability."""
    panels = []
    for example in examples:
        answer = str(example.get("answer", ""))
        has_marks = any(str(token).startswith(WORD_START) for token, _ in example["predictions"])
        bars, is_predicted = [], False
        for token, probability in example["predictions"]:
            token = str(token)
            is_right = answer != "" and answer in (token, token.removeprefix(WORD_START))
            is_predicted = is_predicted or is_right
            share = min(max(float(probability), 0.0), 1.0)
            bars.append(Bar(_readable_token(token, has_marks), share, "good" if is_right else ""))
        parts = re.split(f"({re.escape(MASK)})", str(example["text"]))
        sections: list[Section] = [Text([Span(part, "strong" if part == MASK else "") for part in parts]), Bars(bars)]
        if answer and not is_predicted:
            word = _readable_token(answer, has_marks and answer.startswith(WORD_START))
            sections.append(Text([Span("In the text: "), Span(word, "strong")], tone="muted"))
        panels.append(Panel(sections))
    note = "An ellipsis marks a token that goes on with a word; ✓ is what the text has."
    return [Text("", "Masks filled in"), *panels, Text(note, tone="muted")] if panels else []


def _readable_token(token: str, has_marks: bool) -> str:
    """Return a token without SentencePiece's mark; one that goes on with a word begins with an ellipsis."""
    if token.startswith(WORD_START):
        return token.removeprefix(WORD_START) or "(space)"
    return f"…{token}" if has_marks else token


def dev_examples(run: RunFolder) -> list[Section]:
    """Return panels of a run's predictions on dev: mistakes first, then examples that were not chosen."""
    folder = run.attempt / "dev" if (run.attempt / "dev").exists() else run.folder / "dev"
    records = _read_records(run, folder / "examples.jsonl")
    panels: list[Panel | None]
    mistakes: list[Panel | None] = []
    if records:
        mistakes = list(map(_prediction_panel, _read_records(run, folder / "errors.jsonl")))
        panels = list(map(_prediction_panel, records))
    else:
        questions = list(run.table(folder / "nbest_predictions.json").items())[:MAX_EXAMPLES]
        if questions:  # known by their numbers alone: the file has no text of them
            panels = [Panel(_bars(_pairs(nbest)), name) for name, nbest in questions if isinstance(nbest, list)]
        else:
            panels = list(map(_prediction_panel, _read_records(run, folder / "predictions.jsonl")))
        if not any(panels):
            panels = list(_captions(run.results.get("examples")))
    sections: list[Section] = []
    for title, group in ((WORST, mistakes), (FIRST, panels)):
        shown_panels = [panel for panel in group if panel is not None]
        if shown_panels:
            sections += [Text(title, tone="muted"), *shown_panels]
    return [Text("", "Predictions"), *sections] if sections else []


def _read_records(run: RunFolder, file: Path) -> list[dict[str, Any]]:
    records = run.read(file, lambda text: [json.loads(line) for line in text.split("\n")[:MAX_EXAMPLES] if line]) or []
    return [plain(record) for record in records if isinstance(record, dict)]


def _prediction_panel(record: dict[str, Any]) -> Panel | None:
    """Return a prediction, with the texts and the label where the run kept them."""
    words, entities, shares, nbest = (record.get(key) for key in ("words", "entities", "probabilities", "nbest"))
    texts = record.get("texts")
    sections: list[Section] = []
    if isinstance(texts, list):
        sections += [Text(_shortened(text)) for text in texts if isinstance(text, str)]
    value = numbers({"value": record.get("value")}).get("value")
    if isinstance(words, list) and isinstance(entities, list):
        sections.append(Text(list(_entity_spans(" ".join(map(str, words)), entities))))
    elif isinstance(nbest, list):
        sections += _bars(_pairs(nbest))
    elif isinstance(shares, dict):
        sections += _bars(list(shares.items()))
    elif value is not None and value == value and sections:
        sections.append(Text([Span("Prediction: "), Span(f"{value:.3f}", "strong")], tone="muted"))
    else:
        return None
    label = record.get("gold")
    if isinstance(label, str) and label:
        sections.append(_label(label))
    return Panel(sections, str(record.get("id", "")))


def _captions(examples: Any) -> list[Panel]:
    """Return the captions that a captioner's results hold, with the first reference of each."""
    panels = []
    for example in examples[:MAX_EXAMPLES] if isinstance(examples, list) else []:
        example = example if isinstance(example, dict) else {}
        caption, references = example.get("caption"), example.get("references")
        if isinstance(caption, str) and isinstance(references, list):
            labels = [_label(str(reference)) for reference in references[:1]]
            panels.append(Panel([Text(_shortened(caption)), *labels], str(example.get("key", ""))))
    return panels


def _label(text: str) -> Text:
    return Text([Span("Label: "), Span(text, "strong")], tone="muted")


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _pairs(guesses: list[Any]) -> list[tuple[Any, Any]]:
    return [(guess.get("text"), guess.get("probability")) for guess in guesses if isinstance(guess, dict)]


def _bars(pairs: list[tuple[Any, Any]]) -> list[Section]:
    """Return bars of the likeliest texts, best first; what has no share between 0 and 1 is left out."""
    shares = [(str(text), numbers({"share": share}).get("share", -1.0)) for text, share in pairs]
    possible = [(text, share) for text, share in shares if 0 <= share <= 1]
    best = sorted(possible, key=lambda pair: -pair[1])[:MAX_GUESSES]
    return [Bars([Bar(text or "(no answer)", share) for text, share in best])] if best else []


def _entity_spans(text: str, entities: list[Any]) -> Iterator[Span]:
    """Yield the text in parts, each entity with its type."""
    position = 0
    for entity in entities:
        start, end = (entity.get(key) if isinstance(entity, dict) else None for key in ("start", "end"))
        if not (isinstance(start, int) and isinstance(end, int) and position <= start < end <= len(text)):
            continue
        yield Span(text[position:start])
        yield Span(text[start:end], "strong", str(entity.get("type", "")) or "entity")
        position = end
    yield Span(text[position:])
