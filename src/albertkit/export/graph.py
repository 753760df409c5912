"""Construct an ONNX graph in fp32: nodes in the order they run, every parameter stored once.

Values are names. T tokens, I inputs and O outputs of a linear layer, V tokens, E numbers of an
embedding.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from albertkit import __version__

OPSET = 20  # of ONNX: the first with Gelu; onnxruntime has it since 1.17
_IR_VERSION = 9  # of the file; belongs to that opset
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu": ("Gelu", {}),
    "relu": ("Relu", {}),
}


TensorName = str  # of a value of the graph


class Output(NamedTuple):
    """A value that the graph returns: its name, its axes (names, or sizes), and the type of its numbers."""

    value: TensorName
    axes: tuple[str | int, ...]
    kind: int = TensorProto.FLOAT


# Built node by node and not traced. torch's exporter takes 9 s for base (this 0.2 s), and in its
# graph every layer transposes the shared matrices: ONNX Runtime folds that into twelve copies in
# memory, and its quantiser finds 2 of 74 weights behind it.
class OnnxGraph:
    """Collect nodes, and the numbers they use.

    Args:
        parameters: The model's, by name. A `Parameter` is one initializer, however many layers use
            it.

    Attributes:
        part: What is being built, for the names of nodes: "layer_3", for example.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.part = ""
        self._names = {id(tensor): name for name, tensor in parameters.items()}
        self._stored: dict[str, onnx.TensorProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []

    # --- nodes ------------------------------------------------------------------------------------

    def add_node(self, op_type: str, *inputs: TensorName, **attributes: Any) -> TensorName:
        """Add a node with one output, and return its name."""
        return self.add_node_with_outputs(op_type, 1, *inputs, **attributes)[0]

    def add_node_with_outputs(
        self,
        op_type: str,
        output_count: int,
        *inputs: TensorName,
        **attributes: Any,
    ) -> list[TensorName]:
        """Add a node with several outputs, and return their names."""
        name = f"{self.part}/{op_type}_{len(self._nodes)}"
        outputs = (
            [name] if output_count == 1 else [f"{name}.{number}" for number in range(output_count)]
        )
        self._nodes.append(helper.make_node(op_type, inputs, outputs, name, **attributes))
        return outputs

    def reshape(self, values: TensorName, *sizes: int) -> TensorName:
        """Give values other axes; -1 stands for what remains, 0 for the same size as before."""
        return self.add_node("Reshape", values, self.store_ints(*sizes))

    def unsqueeze(self, values: TensorName, *axes: int) -> TensorName:
        """Insert axes of size 1."""
        return self.add_node("Unsqueeze", values, self.store_ints(*axes))

    def squeeze(self, values: TensorName, axis: int) -> TensorName:
        """Remove an axis of size 1."""
        return self.add_node("Squeeze", values, self.store_ints(axis))

    def add_input(self, name: str, *axes: str) -> TensorName:
        """Add an int64 input of the graph with named axes of any size."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, axes))
        return name

    # --- numbers ----------------------------------------------------------------------------------

    def store_initializer(self, name: str, array: np.ndarray) -> TensorName:
        """Add an initializer; of one name only the first is kept. With the name of an input: what that is if it is not given."""
        if name not in self._stored:
            self._stored[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def store_scalar(self, value: float | int, dtype: type[np.generic] = np.float32) -> TensorName:
        """Store a number."""
        return self.store_initializer(f"{dtype.__name__}_{value}", np.array(value, dtype))

    def store_ints(self, *values: int) -> TensorName:
        """Store a vector of int64: a shape, or axes."""
        return self.store_initializer(
            f"ints_{'_'.join(map(str, values))}", np.array(values, np.int64)
        )

    def store_parameter(self, tensor: Tensor) -> TensorName:
        """Store a parameter, in fp32 and in its own layout."""
        return self.store_initializer(self._names[id(tensor)], to_array(tensor))

    def weight_name_and_array(
        self, layer: nn.Linear, part_of_inputs: slice | None
    ) -> tuple[TensorName, np.ndarray]:
        """Return the name and the numbers [O, I] of a layer's weight, or of its part for some of the inputs."""
        name = self._names[id(layer.weight)]
        if part_of_inputs is None:
            return name, to_array(layer.weight)
        return f"{name}.{part_of_inputs.start or 0}", to_array(layer.weight[:, part_of_inputs])

    # --- layers -----------------------------------------------------------------------------------

    def linear(
        self, values: TensorName, layer: nn.Linear, part_of_inputs: slice | None = None
    ) -> TensorName:
        """Apply a linear layer, in the precision of the graph: [T, I] to [T, O].

        With `part_of_inputs`, `values` are only these inputs of the layer; the bias goes with the first.
        """
        return self.exact_linear(values, layer, part_of_inputs)

    def exact_linear(
        self, values: TensorName, layer: nn.Linear, part_of_inputs: slice | None = None
    ) -> TensorName:
        """Apply a linear layer in fp32, whatever the precision of the graph: the few outputs at the end of a head."""
        weight = self.store_initializer(*self.weight_name_and_array(layer, part_of_inputs))
        return self.add_node(
            "Gemm", values, weight, *self.store_bias(layer, part_of_inputs), transB=1
        )

    def store_bias(self, layer: nn.Linear, part_of_inputs: slice | None) -> list[TensorName]:
        """Return the bias of a layer if it has one and these are its first inputs."""
        first = part_of_inputs is None or not part_of_inputs.start
        return [self.store_parameter(layer.bias)] if layer.bias is not None and first else []

    def embedding(self, ids: TensorName, table: nn.Embedding) -> TensorName:
        """Look up rows of the table of words [V, E]: int64 [...] to [..., E]."""
        return self.add_node("Gather", self.store_parameter(table.weight), ids)

    def decoder(self, values: TensorName, table: Tensor, bias: Tensor) -> TensorName:
        """Multiply with the table of words [V, E]: [T, E] to [T, V]."""
        return self.add_node(
            "Gemm", values, self.store_parameter(table), self.store_parameter(bias), transB=1
        )

    def layer_norm(self, values: TensorName, norm: nn.LayerNorm) -> TensorName:
        """Apply a layer norm over the last axis."""
        weight = self.store_parameter(norm.weight)
        bias = self.store_parameter(norm.bias)
        return self.add_node("LayerNormalization", values, weight, bias, axis=-1, epsilon=norm.eps)

    def activation(self, values: TensorName, name: str) -> TensorName:
        """Apply an activation by its name in the configuration."""
        kind, attributes = _ACTIVATIONS[name]
        return self.add_node(kind, values, **attributes)

    # --- model ------------------------------------------------------------------------------------

    def finish_model(self, outputs: Mapping[str, Output], graph_name: str) -> onnx.ModelProto:
        """Return the finished model, given its outputs by name and the name of the graph."""
        infos = []
        for output_name, output in outputs.items():
            self._nodes.append(
                helper.make_node("Identity", [output.value], [output_name], f"output/{output_name}")
            )
            infos.append(helper.make_tensor_value_info(output_name, output.kind, output.axes))
        graph = helper.make_graph(
            self._nodes,
            graph_name,
            self._inputs,
            infos,
            list(self._stored.values()),
        )
        producer = dict(producer_name="albertkit", producer_version=__version__)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, **producer)


def to_array(tensor: Tensor) -> np.ndarray:
    """Return an fp32 array on the host."""
    return tensor.detach().float().cpu().numpy()


_MIDDLE_ZERO_POINT = 128  # the zero point of rows that go both ways
# Activations go far up and a little down: no gelu is below minus 0.1701. With this zero point a row
# has 223 steps for what is above 0, where 128 leaves 127; only rows whose largest number is below
# 0.68 get longer steps. A pretrained model with H 256: worst cosine of a state 0.9996, with 128
# 0.9991; with a scale for the whole batch 0.9956.
_LOW_ZERO_POINT = 32
_MIN_ACTIVATION = {"gelu_new": 0.1701, "gelu": 0.1701, "relu": 0.0}
_MIN_SCALE = 1e-20  # the scale of a row of zeros


class QuantizedGraph(OnnxGraph):
    """Construct a graph with matrices in int8: a scale for each output, and for each row of the table of words."""

    # The few outputs at the end of a head, positions, segments, norms and biases stay fp32: 0.3 MB
    # of base.
    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        # Query, key and value read the same rows
        self._quantized: dict[TensorName, tuple[TensorName, TensorName, TensorName]] = {}
        self._lowest: dict[str, float] = {}  # of values that an activation made

    def linear(
        self, values: TensorName, layer: nn.Linear, part_of_inputs: slice | None = None
    ) -> TensorName:
        """Apply a linear layer in int8: [T, I] to [T, O]."""
        name, weight = self.weight_name_and_array(layer, part_of_inputs)
        scales = self._store_scales(name, weight)
        integers = self.store_initializer(f"{name}.int8", to_int8(weight).T)
        product = self._add_product(values, integers, scales)
        bias = self.store_bias(layer, part_of_inputs)
        return self.add_node("Add", product, *bias) if bias else product

    def embedding(self, ids: TensorName, table: nn.Embedding) -> TensorName:
        """Look up rows of the table of words, int8 times a scale: int64 [...] to [..., E]."""
        integers, scales = self._store_table(table.weight)
        rows = self.add_node("Cast", self.add_node("Gather", integers, ids), to=TensorProto.FLOAT)
        scales_of_rows = self.unsqueeze(self.add_node("Gather", scales, ids), -1)
        return self.add_node("Mul", rows, scales_of_rows)

    def decoder(self, values: TensorName, table: Tensor, bias: Tensor) -> TensorName:
        """Multiply with the same table; ONNX Runtime transposes it once, when it loads the model."""
        integers, scales = self._store_table(table)
        product = self._add_product(values, self.add_node("Transpose", integers), scales)
        return self.add_node("Add", product, self.store_parameter(bias))

    def activation(self, values: TensorName, name: str) -> TensorName:
        """Apply an activation, and note the least value of its result for quantising."""
        output = super().activation(values, name)
        self._lowest[output] = _MIN_ACTIVATION[name]
        return output

    def _store_table(self, table: Tensor) -> tuple[TensorName, TensorName]:
        name = self._names[id(table)]
        weight = to_array(table)
        return self.store_initializer(f"{name}.int8", to_int8(weight)), self._store_scales(
            name, weight
        )

    def _store_scales(self, name: str, weight: np.ndarray) -> TensorName:
        return self.store_initializer(f"{name}.scale", row_scales(weight))

    def _add_product(
        self, values: TensorName, integers: TensorName, scales: TensorName
    ) -> TensorName:
        """Multiply [T, I] with int8 [I, O], whose scales are [O]."""
        rows, row_scale, zero_point = self.quantize_rows(values)
        total = self.add_node("MatMulInteger", rows, integers, zero_point)
        total = self.add_node("Cast", total, to=TensorProto.FLOAT)
        return self.add_node("Mul", self.add_node("Mul", total, scales), row_scale)

    def quantize_rows(self, values: TensorName) -> tuple[TensorName, TensorName, TensorName]:
        """Return [T, I] as uint8, the scale of each row [T, 1], and the zero point, which is the same for all."""
        if values not in self._quantized:
            lowest = self._lowest.get(values)
            zero = _MIDDLE_ZERO_POINT if lowest is None else _LOW_ZERO_POINT
            magnitudes = self.add_node("Abs", values) if lowest is None else values
            # A scale a row costs 7 % over a scale a tensor (42.1 and 39.4 ms), and the worst cosine
            # is 0.99956 for 0.99556.
            largest = self.add_node("ReduceMax", magnitudes, self.store_ints(-1), keepdims=0)
            step = self.add_node("Mul", largest, self.store_scalar(1 / (255 - zero)))
            min_step = max((lowest or 0.0) / zero, _MIN_SCALE)
            step = self.add_node("Max", step, self.store_scalar(min_step))
            # ONNX Runtime multiplies uint8 with int8 at 730 G/s, uint8 with uint8 at 350, int8 with
            # int8 at 42.
            zero_point = self.store_scalar(zero, np.uint8)
            step = self.unsqueeze(step, 1)
            # Divided first, since OpenVINO quantises by constant scales alone.
            divided = self.add_node("Div", values, step)
            rows = self.add_node("QuantizeLinear", divided, self.store_scalar(1.0), zero_point)
            self._quantized[values] = rows, step, zero_point
        return self._quantized[values]


def row_scales(weight: np.ndarray) -> np.ndarray:
    """Return the scale of each row [O, I]: its largest number becomes 127."""
    return np.maximum(np.abs(weight).max(1), _MIN_SCALE).astype(np.float32) / np.float32(127)


def to_int8(weight: np.ndarray) -> np.ndarray:
    """Return rows [O, I] in steps of their scale."""
    return np.rint(weight / row_scales(weight)[:, None]).astype(np.int8)
