"""Pretraining: examples drawn from a token store, masks, the batch stream, training and evaluation."""

from importlib import import_module
from typing import Any

_WHERE = {
    "BatchStream": "albertkit.pretraining.batches",
    "EvaluationStream": "albertkit.pretraining.batches",
    "ExampleSettings": "albertkit.pretraining.examples",
    "MaskSettings": "albertkit.pretraining.masking",
    "PretrainSettings": "albertkit.pretraining.settings",
    "evaluate": "albertkit.pretraining.run",
    "pretrain": "albertkit.pretraining.run",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'albertkit.pretraining' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
