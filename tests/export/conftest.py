"""Small models with random weights of every class, and a tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albertkit import model as public
from albertkit.config import AlbertConfig
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
CLASSES = [getattr(public, name) for name in public.__all__ if name.startswith("Albert")]
MakeModel = Callable[..., PretrainedAlbert]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
    """56 pieces."""
    rng = np.random.default_rng(1)
    return train_tokenizer([" ".join(rng.choice(WORDS, 9)) for _ in range(400)], tmp_path_factory.mktemp("t"), 56)


@pytest.fixture(params=CLASSES, ids=lambda model_class: model_class.__name__)
def model_class(request: pytest.FixtureRequest) -> type[PretrainedAlbert]:
    """Each of the public classes."""
    return request.param


@pytest.fixture(scope="session")
def make_model(tokenizer: AlbertTokenizer) -> MakeModel:
    """`make_model(class, **configuration changes)`: every parameter random, so that none can be left out unnoticed."""

    def make(model_class: type[PretrainedAlbert], **changes: Any) -> PretrainedAlbert:
        config = AlbertConfig(
            vocab_size=tokenizer.vocab_size, embedding_size=32, hidden_size=64, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=128, max_position_embeddings=64, initializer_range=0.15,
        )  # fmt: skip
        torch.manual_seed(3)
        model = model_class(config.with_changes(**changes))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return model.eval()

    return make


@pytest.fixture
def folder(tmp_path: Path, tokenizer: AlbertTokenizer, make_model: MakeModel) -> Callable[..., Path]:
    """`folder(class, **configuration changes)`: such a model as a checkpoint folder."""

    def save(model_class: type[PretrainedAlbert], **changes: Any) -> Path:
        path = tmp_path / model_class.__name__
        make_model(model_class, **changes).save_pretrained(path, tokenizer)
        return path

    return save
