"""Matrix products with weights packed once: oneDNN through torch's own operators, which are private.

They are what `torch.compile` uses for packed and for quantized layers; nothing public does the same. Everything known about
them is in this file: names, layouts, what the machine must have, and a trial at first use. Where one is missing or has
changed, `lacking` says so by name and the engine is made without it.

T tokens, I inputs, O outputs of a linear layer.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.engines import loops, processor
from albertkit.engines.packed import quantize

_FUSED = {"gelu_new": ("gelu", "tanh"), "gelu": ("gelu", "none"), "relu": ("relu", ""), "none": ("none", "")}
_KINDS = ("gelu_new", "gelu", "relu")  # of `loops.activation_to_uint8`


class Product(NamedTuple):
    """The linear layer's output is `scale · values + bias`: those who read it apply both in their own pass over it."""

    values: Tensor  # bfloat16 [T, O]
    scale: Tensor  # fp32 [T]
    bias: Tensor  # fp32 [O]


class QuantizedRows(NamedTuple):
    """Rows as `scale · (values - zero_point)`."""

    values: Tensor  # uint8 [T, I]
    scale: Tensor  # fp32 [T]
    zero_point: int


class Bf16Linear:
    """A linear layer in bfloat16, its weight in the order that oneDNN reads.

    Args:
        weight: fp32 [O, I].
        bias: fp32 [O].
        activation: Applied to the output before it leaves the registers.
    """

    def __init__(self, weight: Tensor, bias: Tensor, activation: str = "none") -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16).contiguous(), None)
        self._bias = bias.to(torch.bfloat16)
        self._zero = torch.zeros_like(bias)
        self._activation = _FUSED[activation]

    def values(self, rows: Tensor) -> Tensor:
        """[T, I] to bfloat16 [T, O]."""
        name, algorithm = self._activation
        rows = rows.to(torch.bfloat16)
        return torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, name, [], algorithm)

    def __call__(self, rows: Tensor) -> Product:
        """fp32 or bfloat16 [T, I] to [T, O]."""
        return Product(self.values(rows), torch.ones(len(rows)), self._zero)


class Int8Linear:
    """A linear layer in int8: a scale for each output of the weight and for each row of the input.

    Args:
        weight: fp32 [O, I].
        bias: fp32 [O].
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._scale, quantized = quantize(weight)
        self._weight = torch.ops.onednn.qlinear_prepack(quantized, None)
        self._zero_points = torch.zeros(len(weight), dtype=torch.int64)
        self._bias = bias.clone()

    def multiply(self, rows: QuantizedRows) -> Product:
        """Quantized [T, I] to [T, O]."""
        # uint8 input: with int8 input oneDNN 3.12 takes its reference code, a thousand times slower.
        values = torch.ops.onednn.qlinear_pointwise(
            rows.values, 1.0, rows.zero_point, self._weight, self._scale, self._zero_points, None, 1.0, 0,
            torch.bfloat16, "none", [], "none",
        )  # fmt: skip
        return Product(values, rows.scale, self._bias)

    def __call__(self, rows: Tensor) -> Product:
        """fp32 [T, I] to [T, O]."""
        values, scale = torch.empty(rows.shape, dtype=torch.uint8), torch.empty(len(rows))
        loops.to_uint8(rows.numpy(), values.numpy(), scale.numpy())
        return self.multiply(QuantizedRows(values, scale, loops.ZERO_POINT))


class Bf16FeedForward:
    """Both linear layers of a feed-forward block and the activation between them, in bfloat16."""

    def __init__(self, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, activation: str) -> None:
        self._inner = Bf16Linear(inner, inner_bias, activation)
        self._outer = Bf16Linear(outer, outer_bias)

    def __call__(self, rows: Tensor) -> Product:
        """fp32 [T, H] to [T, H]."""
        return self._outer(self._inner.values(rows))


class Int8FeedForward:
    """Both linear layers of a feed-forward block in int8, the activation between them in fp32.

    The activation's rows are stored without sign, from gelu's minimum up: what that adds to every output is a constant
    and comes off the bias. Their few outliers are multiplied apart from the rest, in fp32.
    """

    def __init__(self, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, activation: str) -> None:
        self._inner = Int8Linear(inner, inner_bias)
        self._outer = Int8Linear(outer, outer_bias - loops.GELU_MINIMUM * outer.sum(1))
        self._outer_rows = bits(outer.t().to(torch.bfloat16).contiguous())
        self._kind = _KINDS.index(activation)

    def __call__(self, rows: Tensor) -> Product:
        """fp32 [T, H] to [T, H], except for the outliers' share: that is added to the rows, which the output is added to."""
        product = self._inner(rows)
        tokens, width = product.values.shape
        values, scale = torch.empty(tokens, width, dtype=torch.uint8), torch.empty(tokens)
        most = int(width * loops.MOST_OUTLIERS) + 1
        outliers = np.empty(tokens, np.int64), np.empty((tokens, most), np.int32), np.empty((tokens, most), np.float32)
        given = bits(product.values), product.scale.numpy(), product.bias.numpy()
        loops.activation_to_uint8(*given, self._kind, values.numpy(), scale.numpy(), outliers)
        loops.add_outliers(outliers, self._outer_rows, rows.numpy())
        return self._outer.multiply(QuantizedRows(values, scale, 0))


def bits(values: Tensor) -> np.ndarray:
    """A bfloat16 tensor as numpy uint16, the same memory."""
    return values.view(torch.uint16).numpy()


# --- what this machine and this torch can do --------------------------------------------------------------------------


@cache
def lacking(precision: str) -> str:
    """What is missing for packed weights in "bf16" or "int8" on this processor; empty if nothing is."""
    wanted = {"bf16": ("avx512_bf16", "amx_bf16"), "int8": ("avx512_vnni", "amx_int8")}[precision]
    if not processor.has(*wanted):
        return f"the processor has neither {wanted[0]} nor {wanted[1]}"
    name = {"bf16": "mkldnn._linear_pointwise", "int8": "onednn.qlinear_pointwise"}[precision]
    try:
        worst = _trial(precision)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError) as error:
        return f"torch {torch.__version__} has no usable `{name}`: {str(error).splitlines()[0]}"
    return "" if worst < 0.05 else f"`{name}` of torch {torch.__version__} computes something else (off by {worst:.2g})"


def _trial(precision: str) -> float:
    """The largest error of a product with small random numbers."""
    random = torch.Generator().manual_seed(0)
    rows, weight, bias = (torch.rand(*shape, generator=random) - 0.5 for shape in ((5, 32), (16, 32), (16,)))
    linear: Any = Bf16Linear(weight, bias) if precision == "bf16" else Int8Linear(weight, bias)
    product = linear(rows)
    found = product.values.float() * product.scale[:, None]
    found = found + product.bias
    return float((found - F.linear(rows, weight, bias)).abs().max())
