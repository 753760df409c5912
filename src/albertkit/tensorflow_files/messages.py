"""Protocol-buffer messages of TensorFlow's files, described here and parsed by protobuf's own library.

Only the fields that are read or written are described; a parser keeps the others as unknown. Field numbers are those of
tensorflow/core/protobuf and tensorflow/core/example.
"""

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "int32": _Field.TYPE_INT32, "int64": _Field.TYPE_INT64, "float": _Field.TYPE_FLOAT, "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "fixed32": _Field.TYPE_FIXED32,
}  # fmt: skip


def define_messages(file: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, type[Message]]:
    """Message classes from a description.

    Args:
        file: A name for this set; no other set may have it.
        messages: Message name to field name to (number, type). A type is a scalar's name or another message's of the
            set, behind "repeated " for a list; "map KEY VALUE" is a map.

    Returns:
        Message name to class.
    """
    package = f"albertkit.{file}"
    described = descriptor_pb2.FileDescriptorProto(name=f"albertkit/{file}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = described.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            if kind.startswith("map "):
                _, key, value = kind.split()
                entry = message.nested_type.add(name="".join(map(str.capitalize, field.split("_"))) + "Entry")
                entry.options.map_entry = True
                _add_field(entry, package, "key", 1, key)
                _add_field(entry, package, "value", 2, value)
                kind = f"repeated {name}.{entry.name}"
            _add_field(message, package, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add_field(message: descriptor_pb2.DescriptorProto, package: str, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("repeated "):
        kind = kind.removeprefix("repeated ")
        field.label = _Field.LABEL_REPEATED
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"
