"""Random models and batches for the engines, and what this processor can do."""

import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.engines.cpu import engine
from albertkit.model import AlbertModel, PackedBatch

LENGTHS = (5, 17, 16, 33, 17, 2, 64)
PIECES = 300


@pytest.fixture(params=["bf16", "int8"])
def precision(request):
    """bf16 and int8 with packed weights, where the processor and numba have what they need."""
    if reason := engine.precision_problem(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def make_model():
    """`make_model(**configuration changes)`: every parameter random, also those that start as 0 or 1."""

    def make(**changes):
        sizes = dict(
            vocab_size=PIECES,
            embedding_size=32,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=64,
        )
        torch.manual_seed(0)
        model = AlbertModel(AlbertConfig.from_dict({**sizes, **changes}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        return model.eval()

    return make


@pytest.fixture
def batch():
    """Seven sequences of `LENGTHS`, unsorted."""
    return packed(LENGTHS)


def packed(lengths, seed=1):
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return PackedBatch.from_sequences(
        [torch.randint(0, PIECES, (n,), generator=generator).tolist() for n in lengths]
    )
