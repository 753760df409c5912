"""Poolings beside sentence-transformers' own numbers, from the states of an ALBERT in padded rows."""

import numpy as np
import pytest
import torch

from albertkit.embeddings.folder import POOLINGS, Projection, pool_hidden_states, pooled_positions
from albertkit.errors import ConfigError
from albertkit.model import AlbertModel, PackedBatch

from .conftest import largest_difference

CASES = [*((name, name, 0) for name in POOLINGS), ("cls+mean", ("cls", "mean"), 0)]
CASES += [("mean_without_first_2_prompt_tokens", "mean", 2)]


@pytest.fixture(scope="module")
def numbers(golden):
    with np.load(golden / "sts/pooling.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file}


def packed(numbers, side):
    """States of the real tokens, and the batch that they are of."""
    mask = numbers[f"{side}_attention_mask"]
    batch = PackedBatch.from_padded(numbers[f"{side}_input_ids"], mask)
    return numbers[f"{side}_token_embeddings"][mask != 0], batch


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("name", "pooling", "prompt_tokens"), CASES)
def test_the_vectors_are_those_of_sentence_transformers(
    numbers, side, name, pooling, prompt_tokens
):
    hidden, batch = packed(numbers, side)
    expected = numbers[f"{side}_{name}"]
    vectors = pool_hidden_states(hidden, batch, pooling, prompt_tokens)
    assert vectors.shape == expected.shape
    assert largest_difference(vectors, expected) < 1e-5
    # the comparison notices one token more, and one number that is wrong
    assert (
        largest_difference(pool_hidden_states(hidden, batch, pooling, prompt_tokens + 1), expected)
        > 1e-3
        or name == "lasttoken"
    )
    assert (
        largest_difference(
            pool_hidden_states(hidden + 1e-4, batch, pooling, prompt_tokens), expected
        )
        > 1e-5
    )


def test_a_text_shorter_than_the_prompt_becomes_zeros(numbers):
    hidden, batch = packed(numbers, "right")
    for pooling in ("mean", "max", "mean_sqrt_len_tokens", "weightedmean"):
        vectors = pool_hidden_states(hidden, batch, pooling, 3)
        empty = torch.tensor(batch.lengths) <= 3
        assert empty.any()
        assert not vectors[empty].any()
        assert vectors[~empty].abs().amin(1).min() > 0


def test_the_first_passes_can_leave_the_other_tokens_out(numbers, golden):
    """The encoder computes only the positions that a pooling names, and the vectors are the same."""
    model = AlbertModel.from_pretrained(golden / "hf/pretraining_g1", allow_missing=("pooler",))
    _, batch = packed(numbers, "right")
    for pooling in ("cls", "lasttoken"):
        with torch.inference_mode():
            short = model.encode(batch, positions=pooled_positions(batch, pooling)).hidden
        assert largest_difference(short, numbers[f"right_{pooling}"]) < 1e-5
    assert pooled_positions(batch, "mean") is None
    assert pooled_positions(batch, ("cls", "lasttoken")) is None


def test_gradients_are_those_of_plain_arithmetic(numbers):
    hidden, batch = packed(numbers, "right")
    for pooling in POOLINGS:
        ours = hidden.clone().requires_grad_()
        plain = hidden.clone().requires_grad_()
        weights = torch.linspace(-1, 1, hidden.shape[1])
        (pool_hidden_states(ours, batch, pooling) * weights).sum().backward()
        rows = plain.split(batch.lengths)
        positions = [torch.arange(1.0, n + 1)[:, None] for n in batch.lengths]
        vectors = {
            "cls": [row[0] for row in rows],
            "lasttoken": [row[-1] for row in rows],
            "max": [row.amax(0) for row in rows],
            "mean": [row.mean(0) for row in rows],
            "mean_sqrt_len_tokens": [row.sum(0) / len(row) ** 0.5 for row in rows],
            "weightedmean": [
                (row * w).sum(0) / w.sum() for row, w in zip(rows, positions, strict=True)
            ],
        }[pooling]
        (torch.stack(vectors) * weights).sum().backward()
        assert largest_difference(ours.grad, plain.grad) < 1e-6
        assert ours.grad.abs().max() > 1e-3


def test_projection_and_length_one(numbers):
    projection = Projection(32, 12, "tanh")
    projection.load_state_dict(
        {"linear.weight": numbers["dense_weight"], "linear.bias": numbers["dense_bias"]}
    )
    hidden, batch = packed(numbers, "right")
    with torch.no_grad():
        vectors = projection(pool_hidden_states(hidden, batch, "mean"))
    assert largest_difference(vectors, numbers["dense_tanh_of_right_mean"]) < 1e-5
    normalised = torch.nn.functional.normalize(vectors, dim=1)
    assert largest_difference(normalised, numbers["dense_tanh_normalised"]) < 1e-5
    assert largest_difference(vectors, numbers["dense_tanh_normalised"]) > 0.1


@pytest.mark.parametrize("pooling", ["avg", ("mean", "avg"), ()])
def test_an_unknown_pooling_is_named(numbers, pooling):
    with pytest.raises(ConfigError, match=r"\[unknown-name\].*no pooling"):
        pool_hidden_states(*packed(numbers, "right"), pooling)
