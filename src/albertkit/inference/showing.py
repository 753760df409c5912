"""Show answers: bars of probabilities, the answer in its context, entities in their text."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from albertkit.frame.rendering import to_terminal
from albertkit.frame.section import Bar, Bars, Cell, Panel, Section, Span, Table, Text
from albertkit.inference.asking import Answers
from albertkit.inference.pipeline import Result
from albertkit.inference.predict import PredictReport
from albertkit.inference.pretrained import MASK

MAX_LABELS = 10
CONTEXT_CHARACTERS = 160  # before and after an answer
MAX_NUMBERS = 6  # of a vector


def show(result: Answers | PredictReport) -> None:
    """Show what `albertkit predict` did."""
    to_terminal(answer_sections(result) if isinstance(result, Answers) else result.sections())


def answer_sections(answers: Answers) -> list[Section]:
    """Return a panel for each value: what was asked, and what the model answers."""
    sections_of = _SECTIONS[answers.kind]
    sections: list[Section] = [
        Panel(sections_of(value, result)) for value, result in zip(answers.values, answers.results, strict=True)
    ]
    if answers.similarity:
        names = [str(number) for number in range(1, len(answers.similarity) + 1)]
        rows = [
            [name, *(f"{cosine:.3f}" for cosine in row)] for name, row in zip(names, answers.similarity, strict=True)
        ]
        sections.append(Table(["", *names], rows, "cosines"))
    return sections


def _fill_mask(value: str, result: Result) -> list[Section]:
    parts = re.split(f"({re.escape(MASK)})", value)
    sections: list[Section] = [Text([Span(part, "strong" if part == MASK else "") for part in parts])]
    for number, guesses in enumerate(result["masks"], start=1):
        if len(result["masks"]) > 1:
            sections.append(Text(f"{MASK} {number}", tone="muted"))
        sections.append(_bars([(guess["word"] or guess["piece"], guess["probability"]) for guess in guesses]))
    return sections


def _order(value: tuple[str, str], result: Result) -> list[Section]:
    return [*_texts(value), _bars([("in order", result["in_order"]), ("swapped", result["swapped"])])]


def _classes(value: Any, result: Result) -> list[Section]:
    shares = sorted(result["probabilities"].items(), key=lambda item: -item[1])
    more = [Text(f"and {len(shares) - MAX_LABELS:,} more")] if len(shares) > MAX_LABELS else []
    return [*_texts(value), _bars(shares[:MAX_LABELS], result.get("labels", [result.get("label")])), *more]


def _score(value: Any, result: Result) -> list[Section]:
    return [*_texts(value), Text(f"{result['value']:.4f}", tone="strong")]


def _entities(value: str, result: Result) -> list[Section]:
    spans, rows, position = [], [], 0
    for entity in sorted(result["entities"], key=lambda entity: entity["start"]):
        start, end = entity["start"], entity["end"]
        spans += [Span(value[position:start]), Span(value[max(position, start) : end], "strong")]
        position = max(position, end)
        rows.append([entity["type"], entity["text"], Cell(f"{start:,} to {end:,}", "muted"), f"{entity['score']:.1%}"])
    entities = Table(["", "", "", ""], rows) if rows else Text("no entity", tone="muted")
    return [Text([*spans, Span(value[position:])]), entities]


def _answer(value: dict[str, str], result: Result) -> list[Section]:
    answer = Span(result["answer"] or "no answer", "strong")
    sections: list[Section] = [Text(value["question"]), Text([answer, Span(f"  {result['score']:.1%}", "muted")])]
    if result["answer"]:
        context, start, end = value["context"], result["start"], result["end"]
        before = ("… " if start > CONTEXT_CHARACTERS else "") + context[max(start - CONTEXT_CHARACTERS, 0) : start]
        after = context[end : end + CONTEXT_CHARACTERS] + (" …" if end + CONTEXT_CHARACTERS < len(context) else "")
        sections.append(Text([Span(before, "muted"), Span(context[start:end], "strong"), Span(after, "muted")]))
    return [*sections, _bars([(guess["text"] or "no answer", guess["probability"]) for guess in result["nbest"]])]


def _choice(value: dict[str, Any], result: Result) -> list[Section]:
    shares = result["probabilities"]
    names = {letter: f"{letter}  {choice}" for letter, choice in zip(shares, value["choices"], strict=False)}
    bars = _bars([(names[letter], share) for letter, share in shares.items()], [names[result["label"]]])
    return [*_texts(value[name] for name in ("context", "question") if value.get(name)), bars]


def _vector(value: str, result: Result) -> list[Section]:
    vector = result["embedding"]
    shown = ", ".join(f"{number:.4f}" for number in vector[:MAX_NUMBERS])
    more = ", …" if len(vector) > MAX_NUMBERS else ""
    return [Text(value), Text(f"{len(vector):,} numbers, {result['tokens']:,} tokens: {shown}{more}", tone="muted")]


_SECTIONS: dict[str, Callable[[Any, Result], list[Section]]] = {
    "fill-mask": _fill_mask,
    "sentence-order": _order,
    "classify": _classes,
    "score": _score,
    "tag": _entities,
    "answer": _answer,
    "choose": _choice,
    "embed": _vector,
}


def _texts(value: Any) -> list[Section]:
    return [Text(text) for text in ([value] if isinstance(value, str) else value)]


def _bars(shares: list[tuple[str, float]], best: Iterable[str | None] | None = None) -> Bars:
    """Return names with a bar and a probability each; the best are emphasised, by default the first."""
    best_names = {name for name, _ in shares[:1]} if best is None else set(best)
    return Bars([Bar(name, share, "strong" if name in best_names else "") for name, share in shares])
