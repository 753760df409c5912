"""Tiny models of the session by short names, and every public class."""

import pytest

from albertkit import model as public

CLASSES = [getattr(public, name) for name in public.__all__ if name.startswith("Albert")]
SIZES = dict(embedding_size=32, intermediate_size=128, initializer_range=0.15)


@pytest.fixture(params=CLASSES, ids=lambda model_class: model_class.__name__)
def model_class(request):
    """Each of the public classes."""
    return request.param


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer):
    """See `tiny_tokenizer`."""
    return tiny_tokenizer


@pytest.fixture(scope="session")
def make_model(tiny_model):
    """`tiny_model` with smaller weights: the worst cosines of int8 are measured with these."""
    return lambda model_class, **changes: tiny_model(model_class, **{**SIZES, **changes})


@pytest.fixture
def folder(tiny_model_folder):
    """`tiny_model_folder` of such models."""
    return lambda model_class, **changes: tiny_model_folder(model_class, **{**SIZES, **changes})
