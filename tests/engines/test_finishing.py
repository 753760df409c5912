"""What follows a tile, against torch: activations, residuals, exponentials of scores."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from albertkit.engines.arithmetic import loops
from albertkit.engines.cpu import engine
from albertkit.engines.cpu.tile_outputs import (
    ADD,
    GELU_ERF,
    GELU_TANH,
    RELU,
    STORE,
    TANH,
    exponentials,
    finish_rows,
)

pytestmark = pytest.mark.skipif(
    bool(engine.precision_problem("fp32")), reason=engine.precision_problem("fp32")
)
FUNCTIONS = {
    GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    GELU_ERF: F.gelu,
    RELU: F.relu,
    STORE: lambda x: x,
    ADD: lambda x: x + 3,
    TANH: torch.tanh,
}
# Small, usual and extreme ones; what is near -90 would end among numbers too small for a processor
# to multiply fast.
INPUTS = torch.cat(
    [
        torch.linspace(-12, 12, 480),
        torch.tensor([0.0, -0.0, 1e-30, -1e-6, -88, -90, 1e4, -1e4, 1e18, -1e18]),
    ]
)
COLUMNS = 64


@loops
def finish(sums, count, columns, scale, how, out):
    finish_rows(sums, count, columns, 0, 4, scale, 1, how, out)


@pytest.mark.parametrize("how", FUNCTIONS)
@pytest.mark.parametrize(
    ("sums", "out_dtype", "allowed"),
    [
        ("fp32", "fp32", 4e-7),
        ("fp32", "bf16", 8e-3),
        ("int8", "fp32", 2e-4),
    ],
)
def test_outputs_are_those_of_torch(how, sums, out_dtype, allowed):
    values = F.pad(INPUTS, (0, -len(INPUTS) % COLUMNS)).view(-1, COLUMNS)
    count = len(values)
    row_scale = torch.linspace(0.5, 2, count + 1)
    if sums == "int8":
        scale = torch.full((COLUMNS,), 1e-3)
        shift = torch.arange(COLUMNS, dtype=torch.int32)
        tile_sums = (values.clamp(-1e4, 1e4) / scale).round().to(torch.int32) + shift
        values = (tile_sums - shift) * scale
    else:
        scale = torch.linspace(0.9, 1.1, COLUMNS)
        shift = torch.zeros(COLUMNS)
        tile_sums = values
        values = values * scale
    bias = torch.linspace(-0.1, 0.1, COLUMNS)
    expected = FUNCTIONS[how](values.double() * row_scale[1:, None] + bias)
    out = torch.full(
        (count + 1, COLUMNS), 3.0, dtype=torch.float32 if out_dtype == "fp32" else torch.bfloat16
    )
    columns = (scale.numpy(), shift.numpy(), bias.numpy())
    raw = out.view(torch.uint16) if out_dtype == "bf16" else out
    finish(tile_sums.contiguous().numpy(), count, columns, row_scale.numpy(), how, raw.numpy())
    assert torch.all(out[0] == 3)
    assert_close(
        out[1:].double(),
        expected,
        atol=1e-6 if out_dtype == "fp32" and sums == "fp32" else 1e-3,
        rtol=allowed,
    )


@loops
def exponentials_of(scores, row, length, shares):
    return exponentials(scores, row, length, shares)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
@pytest.mark.parametrize(
    ("out_dtype", "allowed"),
    [
        (torch.float32, 5e-7),
        (torch.bfloat16, 5e-3),
    ],
)
def test_exponentials_of_scores(length, out_dtype, allowed):
    scores = torch.randn(3, 112) * 20 + 1e3
    scores[1, 0] = 1e3 - 500  # underflows
    scores[:, length:] = float("nan")  # left there by a longer text
    shares = torch.full((3, 112), 7.0, dtype=out_dtype)
    raw = shares.view(torch.uint16) if out_dtype == torch.bfloat16 else shares
    for row in range(3):
        expected = (scores[row, :length].double() - scores[row, :length].max()).exp()
        total = exponentials_of(scores.numpy(), row, length, raw.numpy())
        assert_close(shares[row, :length].double(), expected, atol=1e-9, rtol=allowed)
        assert total == pytest.approx(
            float(expected.sum()), rel=1e-4 if out_dtype == torch.bfloat16 else 1e-6
        )
        padded = -(-length // 16) * 16
        assert torch.all(shares[row, length:padded] == 0)
        assert torch.all(shares[row, padded:] == 7)
