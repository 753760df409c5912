"""Compiled loops and packed products against torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.engines import loops
from albertkit.engines.operators import Bf16Linear, Int8Linear, Product, bits, lacking
from albertkit.engines.packed import cut
from albertkit.engines.products import group_by_length

RANDOM = np.random.default_rng(0)


def half(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(RANDOM.normal(0, scale, shape)).to(torch.bfloat16)


def single(*shape: int) -> Tensor:
    return torch.from_numpy(RANDOM.normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("width", [64, 96, 770])
def test_add_norm(width: int) -> None:
    update, hidden = half(9, width), single(9, width)
    scale, bias, weight, shift = single(9).abs(), single(width), single(width), single(width)
    expected = F.layer_norm(hidden + update.float() * scale[:, None] + bias, (width,), weight, shift, 1e-12)
    arrays = (scale, bias, hidden, weight, shift)
    loops.add_norm(bits(update), *(array.numpy() for array in arrays), np.float32(1e-12))
    torch.testing.assert_close(hidden, expected, atol=2e-6, rtol=1e-5)


def test_rows_in_uint8_are_within_half_a_step() -> None:
    rows = single(8, 100) * torch.logspace(-12, 6, 8)[:, None]
    rows[3] = 0
    out, scale = torch.empty(8, 100, dtype=torch.uint8), torch.empty(8)
    loops.to_uint8(rows.numpy(), out.numpy(), scale.numpy())
    error = (scale[:, None] * (out.float() - loops.ZERO_POINT) - rows).abs()
    assert torch.all(error <= 0.5001 * scale[:, None])
    torch.testing.assert_close(scale * 127, rows.abs().amax(1).clamp(min=1e-20))
    assert torch.all(out[3] == loops.ZERO_POINT)


ACTIVATIONS = (lambda x: F.gelu(x, approximate="tanh"), F.gelu, F.relu)


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("width", [48, 250])
def test_activations_in_uint8(kind: int, width: int) -> None:
    inner, scale, bias = half(6, width, scale=2), single(6).abs() + 0.5, single(width)
    inner[2, 5], inner[2, 40], inner[3] = 90, 70, -200  # outliers; a row of nothing
    expected = ACTIVATIONS[kind](inner.float() * scale[:, None] + bias)
    out, out_scale = torch.empty(6, width, dtype=torch.uint8), torch.empty(6)
    most = int(width * loops.MOST_OUTLIERS) + 1
    outliers = np.zeros(6, np.int64), np.zeros((6, most), np.int32), np.zeros((6, most), np.float32)
    loops.activation_to_uint8(bits(inner), scale.numpy(), bias.numpy(), kind, out.numpy(), out_scale.numpy(), outliers)
    found = out_scale[:, None] * out.float() - loops.GELU_MINIMUM
    rest = torch.zeros(6, width)
    loops.add_outliers(outliers, bits(torch.eye(width).to(torch.bfloat16)), rest.numpy())
    assert int((rest > 0).sum()) == outliers[0].sum() >= (1 if width == 48 else 2)
    assert torch.all((found + rest - expected).abs() <= 0.5001 * out_scale[:, None] + 1e-5 * expected.abs())
    threshold = loops.OUTLIER * expected.square().mean(1).sqrt()
    torch.testing.assert_close(
        out_scale * 255 - loops.GELU_MINIMUM, torch.minimum(threshold, expected.amax(1)), atol=1e-5, rtol=1e-4
    )


def test_attention_in_groups() -> None:
    lengths, heads, size = np.array([3, 20, 18, 2, 19]), 2, 24
    width = heads * size
    product, scale, bias = half(lengths.sum(), 3 * width, scale=3), single(lengths.sum()).abs(), single(3 * width)
    groups = group_by_length(lengths)
    assert sorted(n for group in groups for n in group.lengths) == sorted(lengths)
    assert [group.places for group in groups] == [32, 16]
    context = torch.full((int(lengths.sum()), width), torch.nan)
    for group in groups:
        group.attend(Product(product, scale, bias), heads, context)
    values = (product.float() * scale[:, None] + bias).view(-1, 3, heads, size)
    for sequence, found in zip(values.split(lengths.tolist()), context.split(lengths.tolist()), strict=True):
        query, key, value = sequence.permute(1, 2, 0, 3)
        expected = F.scaled_dot_product_attention(query, key, value, scale=1.0).transpose(0, 1).flatten(1)
        assert F.cosine_similarity(found, expected, dim=1).min() > 0.999


def test_softmax_of_great_scores() -> None:
    scores = torch.full((1, 1, 16, 16), 1e4, dtype=torch.bfloat16)  # of tokens that are not there
    scores[0, 0, :3, :3] = torch.tensor([[-3e4, -3e4, -3.1e4], [500.0, 510.0, 0.0], [1.0, 2.0, 3.0]]).to(torch.bfloat16)
    expected = torch.zeros(3, 16)
    expected[:, :3] = scores[0, 0, :3, :3].float().softmax(-1)
    loops.softmax(bits(scores), np.array([3]))
    torch.testing.assert_close(scores[0, 0, :3].float(), expected, atol=4e-3, rtol=0)


@pytest.mark.parametrize(("linear", "most"), [(Bf16Linear, 0.01), (Int8Linear, 0.02)])
def test_packed_products(linear: type, most: float) -> None:
    if reason := lacking("bf16") or lacking("int8"):
        pytest.skip(reason)
    rows, weight, bias = single(37, 80), single(51, 80), single(51)
    rows[4] *= 1000
    rows[5] *= 0.001
    expected = F.linear(rows, weight, bias)
    values, scale, added = linear(weight, bias)(rows)
    found = values.float() * scale[:, None] + added
    size = expected.norm(dim=1)
    assert ((found - expected).norm(dim=1) / size).max() < most
    wrong = linear(weight.flip(0), bias)(rows)
    assert ((wrong.values.float() * wrong.scale[:, None] + added - expected).norm(dim=1) / size).max() > 0.5


@pytest.mark.parametrize("most", [64, 512, 10_000])
def test_pieces_are_whole_sequences(most: int) -> None:
    lengths = (*RANDOM.integers(1, 60, 100).tolist(), 700, 3)
    pieces = list(cut(lengths, most))
    assert [start for start, _, _ in pieces] == [0, *(end for _, end, _ in pieces[:-1])]
    assert tuple(n for _, _, own in pieces for n in own) == lengths
    assert all(end - start <= most or len(own) == 1 for start, end, own in pieces)
    assert (len(pieces) == 1) == (most == 10_000)
