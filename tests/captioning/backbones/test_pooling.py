"""Pooling against the windows written out as loops."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from albertkit.captioning.backbone import TokenGrid, grid_after_pooling, pool_grid
from albertkit.errors import ConfigError


def means_by_loops(features, grid, target):
    laid = features.double().unflatten(1, tuple(grid))
    means = []
    for token in product(*map(range, target)):
        window = (
            slice(index * size // out, -((-(index + 1) * size) // out))
            for index, out, size in zip(token, target, grid, strict=True)
        )
        means.append(laid[:, *window].mean((1, 2, 3)))
    return torch.stack(means, 1)


@pytest.mark.parametrize(
    ("grid", "max_tokens", "expected"),
    [
        (TokenGrid(8, 14, 14), 1568, (8, 14, 14)),
        (TokenGrid(8, 14, 14), 5000, (8, 14, 14)),
        (TokenGrid(8, 14, 14), 1567, (8, 13, 14)),
        (TokenGrid(8, 14, 14), 196, (8, 4, 5)),
        (TokenGrid(16, 7, 7), 196, (16, 3, 4)),
        (TokenGrid(64, 14, 14), 196, (64, 1, 2)),
        (TokenGrid(64, 14, 14), 64, (64, 1, 1)),
        (TokenGrid(64, 14, 14), 20, (20, 1, 1)),
        (TokenGrid(8, 3, 9), 100, (8, 3, 4)),
        (TokenGrid(3, 2, 2), 1, (1, 1, 1)),
    ],
)
def test_space_goes_first_then_time(grid, max_tokens, expected):
    assert grid_after_pooling(grid, max_tokens) == expected
    features = torch.randn(2, grid.num_tokens, 5, generator=torch.Generator().manual_seed(0))
    pooled, target = pool_grid(features, grid, max_tokens)
    assert target == expected
    assert pooled.shape == (2, target.num_tokens, 5)
    assert_close(pooled.double(), means_by_loops(features, grid, target), atol=1e-6, rtol=0)


def test_gradients_flow_and_half_precision_stays():
    features = torch.randn(1, 32, 4, requires_grad=True)
    pool_grid(features, TokenGrid(2, 4, 4), 2)[0].sum().backward()
    assert features.grad is not None
    assert_close(features.grad, torch.full_like(features, 1 / 16))
    for dtype in (torch.float16, torch.bfloat16):
        assert pool_grid(torch.ones(1, 32, 4, dtype=dtype), TokenGrid(2, 4, 4), 8)[0].dtype == dtype


def test_wrong_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"\[bad-value\].*max_tokens is 0"):
        pool_grid(torch.ones(1, 8, 4), TokenGrid(2, 2, 2), 0)
    with pytest.raises(ConfigError, match=r"features are \[1, 9, 4\]"):
        pool_grid(torch.ones(1, 9, 4), TokenGrid(2, 2, 2), 4)
