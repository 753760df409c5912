"""Training a captioner on prepared clips."""

from importlib import import_module
from typing import Any

_WHERE = {
    "CaptionSettings": "albertkit.captioning.training.settings",
    "CaptionResult": "albertkit.captioning.training.train",
    "train_captioner": "albertkit.captioning.training.train",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Import a name when it is used: the command line reads the settings without torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
