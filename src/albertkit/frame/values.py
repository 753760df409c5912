"""Format values: one formatter for every output, with the unit that the value's name ends with."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

_SHARES = ("most_guessed", "tokens_used")  # shares of 1 shown in per cent, like every name that ends with `accuracy`
_ROUGH = ("epochs",)  # three figures are enough
# C0 and C1 control characters and the marks that reverse the direction of text: hostile in a terminal, invalid in HTML.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def label(name: str) -> str:
    """Return a name for readers: no underscores, and no unit that stands beside the number."""
    return name.replace("_", " ").removesuffix(" mb")


def value_text(value: Any, name: str = "") -> str:
    """Return a value for readers.

    Args:
        value: Anything.
        name: Its name. `_seconds`, `_mb`, `_accuracy`, `_interval`, `_per_second` and others at its end give the unit.
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        if name.endswith("_interval") and len(value) == 2:
            return " to ".join(f"{end:.2%}" for end in value)
        is_interval = isinstance(value, tuple) and len(value) == 2
        return (" to " if is_interval else ", ").join(map(value_text, value))
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "undefined" if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    if name.endswith("accuracy") or name in _SHARES:
        return f"{value:.2%}"
    if isinstance(value, int):
        return f"{value:,}"
    for unit, text in _UNITS.items():
        if name == unit or name.endswith(f"_{unit}"):
            return text(value)
    if name in _ROUGH or name.endswith(("_per_second", "perplexity")):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def exact_text(value: Any) -> str:
    """Return a setting as it could be given again: no separators, six figures."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(exact_text, value))
    return value_text(value)


def duration(seconds: float) -> str:
    """Return a time span: 0.25 s, 42.1 s, 4 min 12 s, 3 h 05 min."""
    return f"{seconds:.3g} s" if seconds < 60 else duration_text(seconds)


def duration_text(seconds: float) -> str:
    """Return a time span in whole seconds: 42 s, 4 min 12 s, 3 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


_UNITS: dict[str, Callable[[float], str]] = {
    "hours": lambda value: duration(3600 * value),
    "minutes_used": lambda value: duration(60 * value),
    "seconds": duration,
    "seconds_per_step": duration,
    "mb_per_second": lambda value: f"{value:,.3g} MB/s",
    "mb": lambda value: f"{value:,.0f} MB" if value >= 100 else f"{value:.3g} MB",
}


def nats(value: float) -> str:
    """Return a loss with three decimals; empty for NaN."""
    return f"{value:.3f}" if math.isfinite(value) else ""


def percent(share: float) -> str:
    """Return a share in per cent with one decimal; empty for NaN."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else ""


def count_text(value: float) -> str:
    """Return a large count: 813,810 and everything else below a million exact, then 11.8 M, 1.2 B."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:,.0f}"


def bytes_text(size: float) -> str:
    """Return a size in kilobytes, megabytes or gigabytes."""
    if size >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def clean(text: str) -> str:
    """Return a text with control characters and direction marks spelled out: they act on a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def flatten(values: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one with dotted names, as TOML would write them."""
    flat: dict[str, Any] = {}
    for key, value in (values or {}).items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: paths as text, dataclasses as objects, NaN and infinity as null."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return plain(value.tolist())
    return str(value)
