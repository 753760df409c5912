"""Compiled loops against torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from albertkit.engines import arithmetic
from albertkit.engines.arithmetic import TABLE_ROWS, activations_to_uint8, loops, rows_to_uint8
from albertkit.engines.cpu.engine import split_batch

RANDOM = np.random.default_rng(0)


def single(*shape):
    return torch.from_numpy(RANDOM.normal(size=shape).astype(np.float32))


@loops
def to_uint8(rows, out, scale):
    rows_to_uint8(rows, out, scale)


@loops
def activated(values, top, squares, peaks, indices, excess, out):
    return activations_to_uint8(values, top, squares, peaks, indices, excess, out)


def test_rows_in_uint8_are_within_half_a_step():
    rows = single(8, 100) * torch.logspace(-12, 6, 8)[:, None]
    rows[3] = 0
    out = torch.empty(8, 100, dtype=torch.uint8)
    scale = torch.empty(8)
    to_uint8(rows.numpy(), out.numpy(), scale.numpy())
    error = (scale[:, None] * (out.float() - arithmetic.ZERO_POINT) - rows).abs()
    assert torch.all(error <= 0.5001 * scale[:, None])
    torch.testing.assert_close(scale * 127, rows.abs().amax(1).clamp(min=1e-20))
    assert torch.all(out[3] == arithmetic.ZERO_POINT)


ACTIVATIONS = (lambda x: F.gelu(x, approximate="tanh"), F.gelu, F.relu)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [48, 256])
def test_activations_in_uint8(activation, width):
    for row in range(4):
        inputs = 3 * single(width)
        if row == 2:  # outliers
            inputs[5], inputs[40] = 90, 70
        if row == 3:  # a row of nothing
            inputs[:] = -200
        values = activation(inputs)
        top = np.int32(values.max().view(torch.int32))
        squares = np.float32(values.square().sum())
        indices = np.zeros(width, np.int32)
        excess = np.zeros(width, np.float32)
        out = np.empty(width, np.uint8)
        peaks = np.empty(width // TABLE_ROWS, np.float32)
        count, step = activated(values.numpy(), top, squares, peaks, indices, excess, out)
        outliers = np.zeros(width, np.float32)
        outliers[indices[:count]] = excess[:count]
        assert count == (outliers > 0).sum() >= (2 if row == 2 and width > 48 else 0)
        restored = step * out.astype(np.float32) - arithmetic.GELU_MINIMUM + outliers
        assert np.all(
            np.abs(restored - values.numpy()) <= 0.5001 * step + 1e-5 * np.abs(values.numpy())
        )
        threshold = min(
            arithmetic.OUTLIER * float(values.square().mean().sqrt()), float(values.max())
        )
        assert step * 255 - arithmetic.GELU_MINIMUM == pytest.approx(threshold, abs=1e-5, rel=1e-4)


@pytest.mark.parametrize("max_tokens", [64, 512, 10_000])
def test_chunks_are_whole_sequences(max_tokens):
    lengths = (*RANDOM.integers(1, 60, 100).tolist(), 700, 3)
    chunks = list(split_batch(lengths, max_tokens))
    assert [start for start, _, _ in chunks] == [0, *(end for _, end, _ in chunks[:-1])]
    assert tuple(n for _, _, chunk_lengths in chunks for n in chunk_lengths) == lengths
    assert all(
        end - start <= max_tokens or len(chunk_lengths) == 1 for start, end, chunk_lengths in chunks
    )
    assert (len(chunks) == 1) == (max_tokens == 10_000)
