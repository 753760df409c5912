"""The names that users write are kept in a record, which a change of one of them has to change, too, meant or not."""

import inspect
import re
from pathlib import Path
from typing import get_args, get_type_hints

import albertkit
from albertkit.cli import app
from albertkit.cli.commands import COMMANDS

RECORD = Path(__file__).with_name("public_names.txt")
HOW = "if users shall write it so: python tests/test_public_names.py > tests/public_names.txt"


def command_line(name):
    """Return a command with its arguments and flags."""
    command = app
    for word in name.split():
        command = command[word]
    arguments = command.assemble_argument_collection()
    flags = [name for argument in arguments if argument.show for name in argument.names]
    return f"$ albertkit {name} {' '.join(flags)}"


def signature(name, function):
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return f"{name}({', '.join(names)})"


def attributes(cls):
    """Return the public attributes that this package gives a class, those that only its documentation names among them."""
    names = set()
    for base in cls.__mro__:
        if base.__module__.startswith("albertkit"):
            documented = (base.__doc__ or "").partition("Attributes:\n")[2]
            names |= {*vars(base), *inspect.get_annotations(base)}
            names |= {*re.findall(r"^ {8}(\w+):", documented, re.MULTILINE)}
    return sorted(name for name in names if not name.startswith("_"))


def classes_of(annotations):
    """Return the classes of this package in annotations."""
    for annotation in annotations:
        annotations.extend(get_args(annotation))
    return [
        annotation
        for annotation in annotations
        if inspect.isclass(annotation) and annotation.__module__.startswith("albertkit")
    ]


def python_lines():
    """Yield the public functions with their parameters, and the classes, those of parameters and results among them."""
    values = [getattr(albertkit, name) for name in albertkit.__all__ if name != "__version__"]
    for value in values:
        function = value.__init__ if inspect.isclass(value) else value
        line = signature(value.__name__, function)
        annotations = [*get_type_hints(function).values()]
        for name in attributes(value) if inspect.isclass(value) else []:
            attribute = inspect.getattr_static(value, name, None)
            attribute = getattr(attribute, "__func__", attribute)
            if inspect.isfunction(attribute):
                annotations.append(get_type_hints(attribute).get("return"))
                name = signature(name, attribute)
            line += f" .{name}"
        yield line
        values += [cls for cls in classes_of(annotations) if cls not in values]


def record():
    return sorted({*[command_line(command.name) for command in COMMANDS], *python_lines()})


def test_the_names_that_users_write_are_those_of_the_record():
    changed = sorted({*record()} ^ {*RECORD.read_text(encoding="utf-8").splitlines()})
    assert not changed, HOW


if __name__ == "__main__":
    print(*record(), sep="\n")
