"""Check values against the types of fields, their ranges and their choices.

    length: Annotated[int, Range(8)] = 512
    schedule: Literal["linear", "constant"] = "linear"

NumPy's numbers are numbers, True is none. A list is as good as a tuple, a text as a path. Of other generic types every value is
taken. msgspec, which checks the JSON that we read, knows neither `str | Path` nor instances of dataclasses nor NumPy's numbers,
and its import takes 25 ms of a help page.
"""

import dataclasses
import math
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from albertkit.errors import ConfigError, suggest_name

MAX_SEED = 2**63 - 1  # what torch takes
_ACCEPTED: dict[Any, Any] = {
    int: Integral,
    float: Real,
    str: str | os.PathLike,
    Path: str | os.PathLike,
}
_DESCRIPTIONS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Path: "a path",
    NoneType: "None",
}


@dataclass(frozen=True)
class Range:
    """Finite numbers that a field takes.

    Attributes:
        minimum: Smallest number.
        maximum: Largest number.
        above: Bound that every number exceeds.
        below: Bound that no number reaches.
    """

    minimum: float | None = None
    maximum: float | None = None
    _: KW_ONLY
    above: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        return (
            abs(number) < math.inf  # not NaN either
            and (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        bounds = {
            "at least": self.minimum,
            "above": self.above,
            "at most": self.maximum,
            "below": self.below,
        }
        return " and ".join(
            f"{word} {bound:,}" for word, bound in bounds.items() if bound is not None
        )


Positive = Annotated[int, Range(1)]
NotNegative = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, below=1)]


# msgspec does not do: it refuses `str | Path` and a range over `int | None`, knows no instance of a dataclass and no number of
# NumPy's, and takes infinity for "at least 0".
def is_of_type(value: Any, kind: Any) -> bool:
    """Return whether a value is of the type of a field, in its range and one of its choices."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        ranges = [limit for limit in arguments[1:] if isinstance(limit, Range)]
        return is_of_type(value, arguments[0]) and (
            value is None or all(value in limit for limit in ranges)
        )
    if origin in (Union, UnionType):
        return any(is_of_type(value, alternative) for alternative in arguments)
    if origin is Literal:
        return value in arguments
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            return False
        kinds = (
            arguments if origin is tuple and ... not in arguments else [arguments[0]] * len(value)
        )
        return len(value) == len(kinds) and all(map(is_of_type, value, kinds))
    if kind is bool:  # that of NumPy is no `bool`, and a 0 is as good as False
        return value is not None and hasattr(value, "__bool__")
    if kind in (int, float) and isinstance(value, bool):
        return False
    return kind is Any or not isinstance(kind, type) or isinstance(value, _ACCEPTED.get(kind, kind))


def describe_type(kind: Any) -> str:
    """Return the type of a field in words: "a whole number, at least 1"."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        return ", ".join(
            [
                describe_type(arguments[0]),
                *(str(limit) for limit in arguments[1:] if isinstance(limit, Range)),
            ]
        )
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(describe_type, arguments)))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (list, tuple):
        number = f" of {len(arguments)}" if origin is tuple and ... not in arguments else ""
        return f"a {origin.__name__}{number}, each {describe_type(arguments[0])}"
    return _DESCRIPTIONS.get(kind) or f"of the type {getattr(kind, '__name__', kind)}"


def field_types(settings: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass or its instance. A field `seed` is one that torch and NumPy both take."""
    settings_class = settings if isinstance(settings, type) else type(settings)
    hints = get_type_hints(settings_class, include_extras=True)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(settings_class)}
    if "seed" in kinds:
        seed = kinds["seed"]
        kinds["seed"] = Annotated[seed, Range(0, MAX_SEED)]
    return kinds


def list_wrong_values(values: Mapping[str, Any], types_by_name: Mapping[str, Any]) -> list[str]:
    """List the values that are not of the types of their names, one line for each."""
    return [
        f"{name} is {reprlib.repr(values[name])}, it must be {describe_type(kind)}"
        for name, kind in types_by_name.items()
        if name in values and not is_of_type(values[name], kind)
    ]


def list_wrong_fields(settings: Any) -> list[str]:
    """List the fields of a dataclass whose values are not of their types, one line for each."""
    kinds = field_types(settings)
    return list_wrong_values({name: getattr(settings, name) for name in kinds}, kinds)


def check_fields(settings: Any, hint: str = "change it, or leave it out for its default") -> None:
    """Refuse a dataclass with values that are not of the types of its fields.

    Raises:
        ConfigError: bad-value, with every such field.
    """
    if problems := list_wrong_fields(settings):
        raise ConfigError("bad-value", "; ".join(problems), hint)


def check_options(kind: str, options: Iterable[str], known_options: Sequence[str]) -> None:
    """Refuse an option that a kind of pipeline does not know."""
    unknown = [name for name in options if name not in known_options]
    if unknown:
        hint = (
            suggest_name(unknown[0], known_options) if known_options else f"{kind} has no options"
        )
        raise ConfigError("bad-value", f"{kind} has no option `{unknown[0]}`", hint)
