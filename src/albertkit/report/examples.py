"""Show examples with a model's predictions, as panels: filled-in masks, and dev predictions that a run kept."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from albertkit.frame.section import Bar, Bars, Panel, Section, Span, Text
from albertkit.report.run_folder import RunFolder, numbers, plain

MASK = "[MASK]"
WORD_START = "▁"  # SentencePiece's mark
MOST = 6  # examples
GUESSES = 4  # of each
LONGEST = 600  # characters of a text
WORST = "Its worst predictions on dev, the most confident mistakes first."
FIRST = "The first examples of dev, not chosen."


def filled_masks(examples: Iterable[Mapping[str, Any]]) -> list[Section]:
    """Return a panel for each example: `text` with `[MASK]`, `answer`, and `predictions`, pairs of token and probability."""
    panels = [_filled_mask(example) for example in examples]
    note = "An ellipsis marks a token that goes on with a word; ✓ is what the text has."
    sections: list[Section] = [Text("", "Masks filled in"), *panels, Text(note, tone="muted")]
    return sections if panels else []


def _filled_mask(example: Mapping[str, Any]) -> Panel:
    answer = str(example.get("answer", ""))
    tokens = [(str(token), float(probability)) for token, probability in example["predictions"]]
    marked = any(token.startswith(WORD_START) for token, _ in tokens)
    rights = [answer != "" and answer in (token, token.removeprefix(WORD_START)) for token, _ in tokens]
    bars = [
        Bar(_readable(token, marked), min(max(probability, 0.0), 1.0), "good" if right else "")
        for (token, probability), right in zip(tokens, rights, strict=True)
    ]
    parts = re.split(f"({re.escape(MASK)})", str(example["text"]))
    sections: list[Section] = [Text([Span(part, "strong" if part == MASK else "") for part in parts]), Bars(bars)]
    if answer and not any(rights):
        word = _readable(answer, marked and answer.startswith(WORD_START))
        sections.append(Text([Span("In the text: "), Span(word, "strong")], tone="muted"))
    return Panel(sections)


def _readable(token: str, marked: bool) -> str:
    """Return a token without SentencePiece's mark; one that goes on with a word begins with an ellipsis."""
    if token.startswith(WORD_START):
        return token.removeprefix(WORD_START) or "(space)"
    return f"…{token}" if marked else token


def dev_examples(run: RunFolder) -> list[Section]:
    """Return panels of a run's predictions on dev: mistakes first, then examples that were not chosen."""
    folder = run.attempt / "dev" if (run.attempt / "dev").exists() else run.folder / "dev"
    if records := _records(run, folder / "examples.jsonl"):
        groups = [(WORST, _records(run, folder / "errors.jsonl")), (FIRST, records)]
        made = [(title, list(filter(None, map(_prediction, kept)))) for title, kept in groups]
    else:
        answers = list(run.table(folder / "nbest_predictions.json").items())[:MOST]
        found = [_answer(name, guesses) for name, guesses in answers]
        if not answers:
            found = [_prediction(record) for record in _records(run, folder / "predictions.jsonl")]
        made = [(FIRST, list(filter(None, found)) or _captions(run.results.get("examples")))]
    shown: list[Section] = [Text("", "Predictions")]
    for title, panels in made:
        shown += [Text(title, tone="muted"), *panels] if panels else []
    return shown if len(shown) > 1 else []


def _records(run: RunFolder, file: Any) -> list[dict[str, Any]]:
    records = run.read(file, lambda text: [json.loads(line) for line in text.split("\n")[:MOST] if line]) or []
    return [plain(record) for record in records if isinstance(record, dict)]


def _prediction(record: dict[str, Any]) -> Panel | None:
    """Return a prediction, with the texts and the label where the run kept them."""
    words, entities, shares, nbest = (record.get(key) for key in ("words", "entities", "probabilities", "nbest"))
    kept = record.get("texts")
    kept = kept if isinstance(kept, list) else []
    texts: list[Section] = [Text(_short(text)) for text in kept if isinstance(text, str)]
    value = numbers({"value": record.get("value")}).get("value")
    if isinstance(words, list) and isinstance(entities, list):
        texts.append(Text(list(_entities(" ".join(map(str, words)), entities))))
    elif isinstance(nbest, list):
        texts += _guesses(_pairs(nbest))
    elif isinstance(shares, dict):
        texts += _guesses(list(shares.items()))
    elif value is not None and value == value and texts:
        texts.append(Text([Span("Prediction: "), Span(f"{value:.3f}", "strong")], tone="muted"))
    else:
        return None
    if isinstance(label := record.get("gold"), str) and label:
        texts.append(_label(label))
    return Panel(texts, str(record.get("id", "")))


def _answer(name: str, guesses: Any) -> Panel | None:
    """Return the answers to a question that is known by its number alone: the file has no text of it."""
    return Panel(_guesses(_pairs(guesses)), name) if isinstance(guesses, list) else None


def _captions(examples: Any) -> list[Panel]:
    """Return the captions that a captioner's results hold, with the first reference of each."""
    found = []
    for example in examples[:MOST] if isinstance(examples, list) else []:
        example = example if isinstance(example, dict) else {}
        caption, references = example.get("caption"), example.get("references")
        if isinstance(caption, str) and isinstance(references, list):
            labels = [_label(str(reference)) for reference in references[:1]]
            found.append(Panel([Text(_short(caption)), *labels], str(example.get("key", ""))))
    return found


def _label(text: str) -> Text:
    return Text([Span("Label: "), Span(text, "strong")], tone="muted")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _pairs(guesses: list[Any]) -> list[tuple[Any, Any]]:
    return [(guess.get("text"), guess.get("probability")) for guess in guesses if isinstance(guess, dict)]


def _guesses(pairs: list[tuple[Any, Any]]) -> list[Section]:
    """Return the likeliest, best first; what has no share between 0 and 1 is left out."""
    known = [(str(text), numbers({"share": share}).get("share", -1.0)) for text, share in pairs]
    best = sorted((pair for pair in known if 0 <= pair[1] <= 1), key=lambda pair: -pair[1])[:GUESSES]
    return [Bars([Bar(text or "(no answer)", share) for text, share in best])] if best else []


def _entities(text: str, entities: list[Any]) -> Iterator[Span]:
    """Yield the text in parts, each entity with its type."""
    place = 0
    for entity in entities:
        start, end = (entity.get(key) if isinstance(entity, dict) else None for key in ("start", "end"))
        if not (isinstance(start, int) and isinstance(end, int) and place <= start < end <= len(text)):
            continue
        yield Span(text[place:start])
        yield Span(text[start:end], "strong", str(entity.get("type", "")) or "entity")
        place = end
    yield Span(text[place:])
