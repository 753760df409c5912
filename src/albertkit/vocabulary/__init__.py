"""A vocabulary and the rows that belong to it: training on files, more or fewer tokens for both, renumbered ids."""

from importlib import import_module
from typing import Any

_WHERE = {
    "ExtensionReport": "albertkit.vocabulary.extend",
    "RepairReport": "albertkit.vocabulary.repair",
    "TextChange": "albertkit.vocabulary.trim",
    "TrainingReport": "albertkit.vocabulary.train",
    "TrimReport": "albertkit.vocabulary.trim",
    "extend_vocabulary": "albertkit.vocabulary.extend",
    "repair_vocabulary": "albertkit.vocabulary.repair",
    "train_vocabulary": "albertkit.vocabulary.train",
    "trim_vocabulary": "albertkit.vocabulary.trim",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'albertkit.vocabulary' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
