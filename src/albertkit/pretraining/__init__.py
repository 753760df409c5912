"""Pretraining: examples drawn from a token store, masks, the batch stream, training and evaluation."""

from albertkit import lazy_names

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

__getattr__ = lazy_names(__name__, _WHERE)
