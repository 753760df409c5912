"""Small random models and batches."""

from functools import partial

import pytest
import torch
from small_models import shaken, tiny_config

from albertkit.model import AlbertForPreTraining, PackedBatch

LENGTHS = (9, 1, 17, 9, 4)


@pytest.fixture
def make_class():
    """`make_class(class, **configuration changes)`: a random model in evaluation mode."""

    def make(model_class, **changes):
        torch.manual_seed(0)
        return shaken(model_class(tiny_config(**changes)))

    return make


@pytest.fixture
def make_model(make_class):
    """`make_model(**configuration changes)`: a random `AlbertForPreTraining` in evaluation mode."""
    return partial(make_class, AlbertForPreTraining)


@pytest.fixture
def padded():
    """Arguments of a padded forward pass with labels, sequences of `LENGTHS`."""
    generator = torch.Generator().manual_seed(2)
    shape = (len(LENGTHS), max(LENGTHS))
    mask = torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]
    labels = torch.randint(0, 90, shape, generator=generator)
    chosen = (torch.rand(shape, generator=generator) < 0.3) & mask
    return {
        "input_ids": torch.randint(5, 90, shape, generator=generator) * mask,
        "attention_mask": mask.long(),
        "token_type_ids": torch.randint(0, 2, shape, generator=generator) * mask,
        "labels": labels.masked_fill(~chosen, -100),
        "sentence_order_label": torch.tensor([0, 1, 1, 0, 1]),
    }


@pytest.fixture
def packed(padded):
    """The same as a packed batch."""
    return PackedBatch.from_padded(
        padded["input_ids"],
        padded["attention_mask"],
        padded["token_type_ids"],
        labels=padded["labels"],
        sentence_order_labels=padded["sentence_order_label"],
    )
