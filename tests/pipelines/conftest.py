"""Tiny models of the session by short names, and sentences for them."""

import numpy as np
import pytest

from albertkit.engines.cpu.engine import precision_problem

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
KOREAN = "서울 에서 온 마법사 가 강 을 건너 숲 으로 갔다 그 리고 다시".split()


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer):
    """See `tiny_tokenizer`."""
    return tiny_tokenizer


@pytest.fixture(scope="session")
def make_model(tiny_model):
    """See `tiny_model`."""
    return tiny_model


@pytest.fixture
def folder(tiny_model_folder):
    """See `tiny_model_folder`."""
    return tiny_model_folder


@pytest.fixture(scope="session")
def sentences():
    """40 sentences of 1 to 20 words, from one seed."""
    rng = np.random.default_rng(5)
    return [" ".join(rng.choice([*WORDS, *KOREAN], rng.integers(1, 21))) + "." for _ in range(40)]


@pytest.fixture(params=["bf16", "int8"])
def low_precision(request):
    """bf16 and int8, where the processor and torch have what packed weights need."""
    if reason := precision_problem("bf16") or precision_problem(request.param):
        pytest.skip(reason)
    return request.param
