"""How answers are shown in a terminal: bars of probabilities, the answer in its context, entities in their text."""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from albertkit.inference.asking import Answers
from albertkit.inference.pipeline import Result
from albertkit.inference.pretrained import MASK

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

BAR_WIDTH = 30
MOST_LABELS = 10
AROUND = 160  # characters of the context before and after an answer
NUMBERS = 6  # of a vector


def print_answers(answers: Answers, out: TextIO | None = None) -> None:
    """Print what a model says of each value.

    Args:
        answers: Of any kind.
        out: Where to; standard output by default.
    """
    from rich.console import Console

    console = Console(file=out or sys.stdout, highlight=False)
    show = _SHOWN[answers.kind]
    for number, (value, result) in enumerate(zip(answers.values, answers.results, strict=True)):
        if number:
            console.print()
        for part in show(value, result):
            console.print(part, soft_wrap=isinstance(part, str))
    if answers.similarity:
        _print_similarity(answers.similarity, console)


def _fill_mask(value: str, result: Result) -> Iterable["RenderableType"]:
    from rich.text import Text

    text = Text(value)
    text.highlight_words([MASK], "bold")
    yield text
    for number, guesses in enumerate(result["masks"], start=1):
        if len(result["masks"]) > 1:
            yield Text(f"{MASK} {number}", "dim")
        yield _bars([(guess["word"] or guess["piece"], guess["probability"]) for guess in guesses])


def _order(value: tuple[str, str], result: Result) -> Iterable["RenderableType"]:
    yield from _texts(value)
    yield _bars([("in order", result["in_order"]), ("swapped", result["swapped"])])


def _classes(value: Any, result: Result) -> Iterable["RenderableType"]:
    yield from _texts(value)
    shares = sorted(result["probabilities"].items(), key=lambda item: -item[1])
    yield _bars(shares[:MOST_LABELS], result.get("labels", [result.get("label")]))
    if len(shares) > MOST_LABELS:
        yield f"and {len(shares) - MOST_LABELS:,} more"


def _score(value: Any, result: Result) -> Iterable["RenderableType"]:
    from rich.text import Text

    yield from _texts(value)
    yield Text(f"{result['value']:.4f}", "bold")


def _entities(value: str, result: Result) -> Iterable["RenderableType"]:
    from rich.text import Text

    text, table = Text(value), _table()
    for entity in result["entities"]:
        text.stylize("bold", entity["start"], entity["end"])
        place = f"{entity['start']:,} to {entity['end']:,}"
        table.add_row(Text(entity["type"], "cyan"), Text(entity["text"]), Text(place, "dim"), f"{entity['score']:.1%}")
    yield text
    yield table if result["entities"] else Text("no entity", "dim")


def _answer(value: dict[str, str], result: Result) -> Iterable["RenderableType"]:
    from rich.text import Text

    yield Text(value["question"])
    yield Text.assemble((result["answer"] or "no answer", "bold"), (f"  {result['score']:.1%}", "dim"))
    if result["answer"]:
        context, start, end = value["context"], result["start"], result["end"]
        before, after = context[max(start - AROUND, 0) : start], context[end : end + AROUND]
        dots = "… " if start > AROUND else "", " …" if end + AROUND < len(context) else ""
        yield Text.assemble((dots[0] + before, "dim"), (context[start:end], "bold"), (after + dots[1], "dim"))
    yield _bars([(guess["text"] or "no answer", guess["probability"]) for guess in result["nbest"]])


def _choice(value: dict[str, Any], result: Result) -> Iterable["RenderableType"]:
    yield from _texts(part for name in ("context", "question") if (part := value.get(name)))
    shares = result["probabilities"]
    names = {letter: f"{letter}  {choice}" for letter, choice in zip(shares, value["choices"], strict=False)}
    yield _bars([(names[letter], share) for letter, share in shares.items()], [names[result["label"]]])


def _vector(value: str, result: Result) -> Iterable["RenderableType"]:
    from rich.text import Text

    vector = result["embedding"]
    shown = ", ".join(f"{number:.4f}" for number in vector[:NUMBERS])
    yield Text(value)
    yield Text(f"{len(vector):,} numbers, {result['tokens']:,} tokens: {shown}{', …' * (len(vector) > NUMBERS)}", "dim")


_SHOWN: dict[str, Callable[[Any, Result], Iterable["RenderableType"]]] = {
    "fill-mask": _fill_mask, "sentence-order": _order, "classify": _classes, "score": _score, "tag": _entities,
    "answer": _answer, "choose": _choice, "embed": _vector,
}  # fmt: skip


def _texts(value: Any) -> Iterable["RenderableType"]:
    from rich.text import Text

    return [Text(text) for text in ([value] if isinstance(value, str) else value)]


def _bars(shares: list[tuple[str, float]], best: Iterable[str | None] | None = None) -> "RenderableType":
    """Names with a bar and a probability each; the best in bold, by default the first."""
    from rich.text import Text

    chosen = set(shares[0][:1] if best is None else best)
    table = _table()
    table.add_column(no_wrap=True, overflow="ellipsis")
    for name, share in shares:
        style = "bold" if name in chosen else ""
        table.add_row(
            Text(f"  {name}", style), Text(f"{share:6.1%}", style), Text("█" * round(BAR_WIDTH * share), "cyan")
        )
    return table


def _print_similarity(cosines: list[list[float]], console: "Console") -> None:
    from rich.text import Text

    table = _table()
    console.print("\ncosines")
    for number, row in enumerate(cosines, start=1):
        table.add_row(Text(f"  {number}", "dim"), *(f"{cosine:.3f}" for cosine in row))
    console.print(table)


def _table() -> Any:
    from rich.table import Table

    return Table(box=None, show_header=False, padding=(0, 2, 0, 0))
