"""The graph of objects in a checkpoint of TensorFlow 2: which key holds the variable of which name.

`tf.train.Checkpoint` and SavedModels key a variable by one path to it through Python objects, such as
`model/layer_with_weights-0/embeddings/.ATTRIBUTES/VARIABLE_VALUE` or `variables/7/.ATTRIBUTES/VARIABLE_VALUE`. Each object is
a node of the graph once, however many paths reach it, and a variable's node holds its key and its name. So the nodes are
listed and no path is followed. Source: tensorflow/core/protobuf/trackable_object_graph.proto.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from albertkit.conversion.tensorflow.encoding import MalformedError, define_messages

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
MAX_GRAPH_BYTES = 4 << 20  # about 15,000 variables. A graph of nothing but empty nodes takes 30 times its bytes

_ObjectGraph: Any = define_messages(
    "object_graph",
    {
        "ObjectGraph": {"nodes": (1, "repeated Node")},
        "Node": {
            "children": (1, "repeated Child"), "attributes": (2, "repeated Attribute"),
            "has_checkpoint_values": (5, "BoolValue"),
        },
        "Child": {"node_id": (1, "int32"), "local_name": (2, "string")},
        "Attribute": {"name": (1, "string"), "full_name": (2, "string"), "checkpoint_key": (3, "string")},
        "BoolValue": {"value": (1, "bool")},
    },
)["ObjectGraph"]  # fmt: skip
_ATTRIBUTE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class Variable:
    """A variable in a graph of objects.

    Attributes:
        path: Names of the attributes that lead to it from the root; its key is made of them.
        name: The variable's own name.
        others: More paths to it.
    """

    path: tuple[str, ...]
    name: str
    others: tuple[tuple[str, ...], ...] = ()

    @property
    def key(self) -> str:
        """The key of its values in the checkpoint; dots and slashes in a name are escaped with a dot."""
        escaped = (part.replace(".", "..").replace("/", ".S") for part in self.path)
        return f"{'/'.join(escaped)}/.ATTRIBUTES/{_ATTRIBUTE}"


def write_object_graph(variables: Iterable[Variable]) -> bytes:
    """Make the graph of objects that a checkpoint with these variables holds, under `OBJECT_GRAPH`.

    Paths with the same names lead through the same objects; two paths to a variable end at one node.
    """
    graph = _ObjectGraph()
    graph.nodes.add()
    children: list[dict[str, int]] = [{}]  # of each node: name to node

    def node_at(path: tuple[str, ...], end: int | None = None) -> int:
        node = 0
        for place, part in enumerate(path):
            if part not in children[node]:
                last = place == len(path) - 1
                following = end if last and end is not None else len(children)
                if following == len(children):
                    graph.nodes.add()
                    children.append({})
                children[node][part] = following
                graph.nodes[node].children.add(node_id=following, local_name=part)
            node = children[node][part]
        return node

    for variable in variables:
        node = node_at(variable.path)
        graph.nodes[node].attributes.add(name=_ATTRIBUTE, full_name=variable.name, checkpoint_key=variable.key)
        for other in variable.others:
            node_at(other, node)
    for node in graph.nodes:
        node.has_checkpoint_values.value = True  # every node leads to a variable
    return graph.SerializeToString()


def read_variable_names(graph: NDArray[Any]) -> dict[str, str]:
    """Read the variable names by checkpoint key."""
    if graph.shape != () or not isinstance(graph.item(), bytes):
        raise MalformedError(f"has an object graph that is not one string but {graph.dtype} {list(graph.shape)}")
    if len(graph.item()) > MAX_GRAPH_BYTES:
        raise MalformedError(
            f"has an object graph of {len(graph.item()):,} bytes; more than {MAX_GRAPH_BYTES:,} are not read"
        )
    nodes = _ObjectGraph.FromString(graph.item()).nodes
    return {a.checkpoint_key: a.full_name for node in nodes for a in node.attributes if a.full_name}
