"""A question with choices, however it is written down."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from albertkit.tasks.tables.source import NOT_UTF8, has_half_characters


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question with choices.

    Attributes:
        id: What the data say, else the number of the row, from 0.
        context: The text to read first; "" for none.
        question: May be empty, if there is a context that the choices continue.
        choices: Two or more, none empty.
        label: Place of the right choice, from 0; None if not read.
        names: What the choices are called, one each; mostly A, B, C, …
        level: Part of the data that is scored for itself, too: "middle" or "high" of RACE; "" for none.
    """

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    names: tuple[str, ...]
    level: str = ""


def checked_example(
    name: str,
    context: str,
    question: str,
    choices: Sequence[Any],
    label: Any = None,
    *,
    first: int = 0,
    names: Sequence[str] = (),
    level: str = "",
) -> ChoiceExample:
    """An example, if it is one.

    Args:
        name: Its id.
        context: As in `ChoiceExample`.
        question: As there.
        choices: Their texts; empty ones at the end are none.
        label: Name of the right choice, or its number; None if it is not wanted.
        first: What the numbers begin with.
        names: Of the choices. Default: letters.
        level: As in `ChoiceExample`.

    Raises:
        ValueError: with what is wrong.
    """
    for text in (context, question, *choices):
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a text")
        if has_half_characters(text):
            raise ValueError(NOT_UTF8)
    kept = list(choices)
    while kept and not kept[-1].strip():
        kept.pop()
    names = tuple(names) or tuple(ascii_uppercase[: len(kept)])
    if len(kept) < 2:
        raise ValueError(f"{len(kept)} choices that are not empty")
    if len(names) < len(kept):
        raise ValueError(f"{len(kept)} choices, {len(names)} names of choices")
    if empty := [name for name, text in zip(names, kept, strict=False) if not text.strip()]:
        raise ValueError(f"choice {empty[0]} is empty")
    if not context.strip() and not question.strip():
        raise ValueError("no context and no question")
    place = None if label is None else _place(str(label).strip(), names[: len(kept)], first)
    return ChoiceExample(name, context.strip() and context, question, tuple(kept), place, names[: len(kept)], level)


def _place(label: str, names: tuple[str, ...], first: int) -> int:
    if label in names:
        return names.index(label)
    if label.isascii() and label.isdigit() and first <= int(label) < first + len(names):
        return int(label) - first
    last = first + len(names) - 1
    raise ValueError(f"label `{label}` is none of {', '.join(names)}, and no number from {first} to {last}")
