"""Small models with random weights of every class, and a tokenizer that knows some English and some Korean."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.engines.operators import lacking
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
KOREAN = "서울 에서 온 마법사 가 강 을 건너 숲 으로 갔다 그 리고 다시".split()
MakeModel = Callable[..., PretrainedAlbert]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
    """96 pieces."""
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice([*WORDS, *KOREAN], 9)) + rng.choice([".", ",", "!", "?", "'s"]) for _ in range(400)]
    return train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), 96)


@pytest.fixture(scope="session")
def make_model(tokenizer: AlbertTokenizer) -> MakeModel:
    """`make_model(class, **configuration changes)`: every parameter random, so that none can be left out unnoticed."""

    def make(model_class: type[PretrainedAlbert], **changes: Any) -> PretrainedAlbert:
        config = AlbertConfig(
            vocab_size=tokenizer.vocab_size, embedding_size=16, hidden_size=64, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=96, max_position_embeddings=64, initializer_range=0.2,
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


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """40 sentences of 1 to 20 words, from one seed."""
    rng = np.random.default_rng(5)
    return [" ".join(rng.choice([*WORDS, *KOREAN], rng.integers(1, 21))) + "." for _ in range(40)]


@pytest.fixture(params=["bf16", "int8"])
def low_precision(request: pytest.FixtureRequest) -> str:
    """bf16 and int8, where the processor and torch have what packed weights need."""
    if reason := lacking("bf16") or lacking(request.param):
        pytest.skip(reason)
    return request.param
