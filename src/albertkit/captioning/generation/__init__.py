"""Captions word by word: greedy, beam and sampling over cached states."""

from importlib import import_module
from typing import Any

_WHERE = {
    "CaptionIds": "albertkit.captioning.generation.settings",
    "GenerationSettings": "albertkit.captioning.generation.settings",
    "Generated": "albertkit.captioning.generation.search",
    "generate": "albertkit.captioning.generation.search",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Return the command line reads the settings alone, without torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
