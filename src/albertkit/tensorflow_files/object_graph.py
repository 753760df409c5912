"""The graph of objects in a checkpoint of TensorFlow 2: which key holds the variable of which name.

`tf.train.Checkpoint` and SavedModels key a variable by one path to it through Python objects, such as
`model/layer_with_weights-0/embeddings/.ATTRIBUTES/VARIABLE_VALUE` or `variables/7/.ATTRIBUTES/VARIABLE_VALUE`. Each object is
a node of the graph once, however many paths reach it, and a variable's node holds its key and its name. So the nodes are
listed and no path is followed. Source: tensorflow/core/protobuf/trackable_object_graph.proto.
"""

from typing import Any

from numpy.typing import NDArray

from albertkit.tensorflow_files.encoding import MalformedError
from albertkit.tensorflow_files.messages import define_messages

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
MAX_GRAPH_BYTES = 4 << 20  # about 15,000 variables. A graph of nothing but empty nodes takes 30 times its bytes

_ObjectGraph: Any = define_messages(
    "object_graph",
    {
        "ObjectGraph": {"nodes": (1, "repeated Node")},
        "Node": {"attributes": (2, "repeated Attribute")},
        "Attribute": {"full_name": (2, "string"), "checkpoint_key": (3, "string")},
    },
)["ObjectGraph"]


def read_variable_names(graph: NDArray[Any]) -> dict[str, str]:
    """Checkpoint key to variable name.

    Args:
        graph: The tensor stored under `OBJECT_GRAPH`: one string.

    Returns:
        Only variables that have a name.

    Raises:
        MalformedError: The tensor is no object graph. DecodeError: It is none that protobuf can parse.
    """
    if graph.shape != () or not isinstance(graph.item(), bytes):
        raise MalformedError(f"has an object graph that is not one string but {graph.dtype} {list(graph.shape)}")
    if len(graph.item()) > MAX_GRAPH_BYTES:
        raise MalformedError(
            f"has an object graph of {len(graph.item()):,} bytes; more than {MAX_GRAPH_BYTES:,} are not read"
        )
    nodes = _ObjectGraph.FromString(graph.item()).nodes
    return {a.checkpoint_key: a.full_name for node in nodes for a in node.attributes if a.full_name}
