"""Engines against the model they were made of."""

import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.engines import make_engine
from albertkit.errors import ConfigError
from albertkit.model import AlbertModel, PackedBatch


@pytest.fixture(scope="module")
def model() -> AlbertModel:
    torch.manual_seed(0)
    return AlbertModel(AlbertConfig.from_size("tiny", vocab_size=300)).eval()


@pytest.fixture(scope="module")
def batch() -> PackedBatch:
    generator = torch.Generator().manual_seed(1)
    lengths = [5, 17, 17, 30, 2]
    return PackedBatch.from_sequences([torch.randint(0, 300, (n,), generator=generator).tolist() for n in lengths])


def test_fp32_is_the_model(model: AlbertModel, batch: PackedBatch) -> None:
    with torch.no_grad():
        expected = model.encode(batch)
        found = make_engine(model, "fp32").encode(batch)
    torch.testing.assert_close(found.hidden, expected.hidden, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=0)


def test_an_unknown_precision_is_named(model: AlbertModel) -> None:
    with pytest.raises(ConfigError, match="fp8"):
        make_engine(model, "fp8")  # type: ignore[arg-type]
