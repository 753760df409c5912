"""Construct the same graph in int8: matrices and the table of words as int8, activations quantised row by row at run time.

T tokens, I inputs and O outputs of a linear layer, V tokens.

A scale for every row of activations, and not one for the whole batch as in ONNX Runtime's own `quantize_dynamic`: trained ALBERTs
have tokens with numbers far above all others, whose scale would leave the other tokens a few steps (onnxruntime #11701), and a
text's result would depend on its batch. MatMulInteger takes one zero point, which is a constant here, and the scales
multiply its result. Processor time of base, 1 x 128, one Zen 4 core: 42 ms, with one scale 39, or 37 where ONNX Runtime fuses
that; fp32 116.

uint8 times int8 is the one pair that ONNX Runtime multiplies fast on x86: on Zen 4 730 billion operations a second and core,
two uint8 350, two int8 42. On processors without VNNI its kernel adds pairs of products in 16 bits, which may saturate where
activations and weights are both near their largest.
"""

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto
from torch import Tensor, nn

from albertkit.export.graph import Graph, to_array

_MIDDLE = 128  # the zero point of rows that go both ways
# Activations go far up and a little down: no gelu is below minus 0.1701. With this zero point a row has 223 steps for what is
# above 0, where 128 leaves 127; only rows whose largest number is below 0.68 get longer steps. A pretrained model with H 256:
# worst cosine of a state 0.9996, with 128 0.9991; with a scale for the whole batch 0.9956.
_LOW = 32
_LOWEST = {"gelu_new": 0.1701, "gelu": 0.1701, "relu": 0.0}
_TINY = 1e-20  # the scale of a row of zeros


class QuantizedGraph(Graph):
    """Construct a graph with matrices in int8: a scale for each output, and for each row of the table of words.

    The few outputs at the end of a head, positions, segments, norms and biases stay fp32: 0.3 MB of base.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self._quantized: dict[str, tuple[str, str, str]] = {}  # query, key and value read the same rows
        self._lowest: dict[str, float] = {}  # of values that an activation made

    def linear(self, values: str, layer: nn.Linear, inputs: slice | None = None) -> str:
        """Apply a linear layer in int8: [T, I] to [T, O]."""
        name, weight = self.weight(layer, inputs)
        scales = self._scales(name, weight)
        integers = self.store(f"{name}.int8", to_int8(weight).T)
        found = self._product(values, integers, scales)
        return self.add("Add", found, *bias) if (bias := self.bias(layer, inputs)) else found

    def embedding(self, ids: str, table: nn.Embedding) -> str:
        """Look up rows of the table of words, int8 times a scale: int64 [...] to [..., E]."""
        integers, scales = self._table(table.weight)
        rows = self.add("Cast", self.add("Gather", integers, ids), to=TensorProto.FLOAT)
        return self.add("Mul", rows, self.add("Unsqueeze", self.add("Gather", scales, ids), self.ints(-1)))

    def decoder(self, values: str, table: Tensor, bias: Tensor) -> str:
        """Multiply with the same table; ONNX Runtime transposes it once, when it loads the model."""
        integers, scales = self._table(table)
        return self.add("Add", self._product(values, self.add("Transpose", integers), scales), self.parameter(bias))

    def activation(self, values: str, name: str) -> str:
        """Apply an activation, and note the least value of its result for quantising."""
        found = super().activation(values, name)
        self._lowest[found] = _LOWEST[name]
        return found

    def _table(self, table: Tensor) -> tuple[str, str]:
        name = self._names[id(table)]
        return self.store(f"{name}.int8", to_int8(to_array(table))), self._scales(name, to_array(table))

    def _scales(self, name: str, weight: np.ndarray) -> str:
        return self.store(f"{name}.scale", row_scales(weight))

    def _product(self, values: str, integers: str, scales: str) -> str:
        """Multiply [T, I] with int8 [I, O], whose scales are [O]."""
        rows, row_scale, zero_point = self._rows(values)
        total = self.add("Cast", self.add("MatMulInteger", rows, integers, zero_point), to=TensorProto.FLOAT)
        return self.add("Mul", self.add("Mul", total, scales), row_scale)

    def _rows(self, values: str) -> tuple[str, str, str]:
        """Return [T, I] as uint8, the scale of each row [T, 1], and the zero point, which is the same for all."""
        if values not in self._quantized:
            lowest = self._lowest.get(values)
            zero = _MIDDLE if lowest is None else _LOW
            shown = self.add("Abs", values) if lowest is None else values
            largest = self.add("ReduceMax", shown, self.ints(-1), keepdims=0)
            step = self.add("Mul", largest, self.scalar(1 / (255 - zero)))
            step = self.add("Max", step, self.scalar(max((lowest or 0.0) / zero, _TINY)))
            zero_point = self.scalar(zero, np.uint8)
            step = self.add("Unsqueeze", step, self.ints(1))
            # Divided first, since OpenVINO quantises by constant scales alone.
            rows = self.add("QuantizeLinear", self.add("Div", values, step), self.scalar(1.0), zero_point)
            self._quantized[values] = rows, step, zero_point
        return self._quantized[values]


def row_scales(weight: np.ndarray) -> np.ndarray:
    """Return the scale of each row [O, I]: its largest number becomes 127."""
    return np.maximum(np.abs(weight).max(1), _TINY).astype(np.float32) / np.float32(127)


def to_int8(weight: np.ndarray) -> np.ndarray:
    """Return rows [O, I] in steps of their scale."""
    return np.rint(weight / row_scales(weight)[:, None]).astype(np.int8)
