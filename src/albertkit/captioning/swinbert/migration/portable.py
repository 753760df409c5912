"""SwinBERT without its container: on any device, started without apex, deepspeed, fairscale and azureml, scored without Java."""

import ast
from pathlib import PurePosixPath

from albertkit.captioning.swinbert.migration.source import Edit, PythonSource

OPTIONAL_PACKAGES = ("apex", "deepspeed", "fairscale", "azureml")
SCORERS = ("coco_caption", "cider")  # in src/evalcap, and only in SwinBERT's container
WORDS = (*OPTIONAL_PACKAGES, ".cuda(", ".coco_caption", '"--device"')  # a file without any of them stays as it is
_BEGINNING = "from albertkit.captioning.swinbert.optional_packages import {}"
_DEFAULT_DEVICE = ('"--device"', ",", "type", "=", "str", ",", "default", "=", "'cuda'", ",")
_NAMED_DEVICE = ("args", ".", "device", "=", "torch", ".", "device", "(", "args", ".", "device", ")")
_ANY_DEVICE = "'cuda' if torch.cuda.is_available() else 'cpu'"
_OWN_DEVICE = "next(self.parameters()).device"


def portable_edits(source: PythonSource) -> list[Edit]:
    """Return the edits that make a file run anywhere: a device that is there, packages imported where they are used."""
    named = [Edit(run[4].start, run[-1].end, "available_device(args.device)") for run in source.find(*_NAMED_DEVICE)]
    imports = _import_edits(source, [*(["available_device"] if named else []), "optional"])
    return _device_edits(source) + imports + (named if imports else [])


def _device_edits(source: PythonSource) -> list[Edit]:
    """`.cuda()` becomes `.to(…)`: in a method of a module, where its parameters are; elsewhere the GPU if there is one."""
    edits = []
    own = _lines_of_module_methods(ast.parse(source.content))
    has_torch = bool(source.find("import", "torch"))
    for dot, name, _, closing in source.find(".", "cuda", "(", ")"):
        device = _OWN_DEVICE if dot.start[0] in own else _ANY_DEVICE
        if device == _OWN_DEVICE or has_torch:
            edits.append(Edit(name.start, closing.end, f"to({device})"))
    if has_torch:
        edits += [Edit(run[-2].start, run[-2].end, _ANY_DEVICE) for run in source.find(*_DEFAULT_DEVICE)]
    return edits


def _lines_of_module_methods(tree: ast.Module) -> set[int]:
    """Lines inside methods, with a `self`, of classes derived from torch's Module."""
    lines: set[int] = set()
    for cls in ast.walk(tree):
        if isinstance(cls, ast.ClassDef) and any(ast.unparse(base).endswith("nn.Module") for base in cls.bases):
            for method in cls.body:
                if isinstance(method, ast.FunctionDef) and [arg.arg for arg in method.args.args][:1] == ["self"]:
                    lines.update(range(method.lineno, (method.end_lineno or method.lineno) + 1))
    return lines


def _import_edits(source: PythonSource, names: list[str]) -> list[Edit]:
    """Imports of optional packages at the left margin become assignments of what imports them when it is used.

    Args:
        source: The file.
        names: What it takes from `optional_packages`.
    """
    edits: list[Edit] = []
    for statement in ast.parse(source.content).body:
        assigned = _assigned(statement, source.name)
        if not assigned:
            continue
        first, end = (
            (statement.lineno, statement.col_offset),
            (statement.end_lineno or 0, statement.end_col_offset or 0),
        )
        lead = "" if edits else _BEGINNING.format(", ".join(names)) + source.newline
        edits.append(Edit(first, end, lead + source.newline.join(assigned)))
    return edits


def _assigned(statement: ast.stmt, path: str) -> list[str]:
    """Lines that assign what an import statement of these packages would."""
    if isinstance(statement, ast.Import):
        names = [(alias.asname or alias.name, f'"{alias.name}"', alias.name) for alias in statement.names]
        if any("." in name and name == module for name, _, module in names):
            return []  # binds the package's first name
    elif isinstance(statement, ast.ImportFrom) and statement.module and statement.level <= 1:
        module = statement.module
        if statement.level:
            if module.split(".")[0] not in SCORERS:
                return []
            module = ".".join((*PurePosixPath(path).parent.parts, module))
        names = [(alias.asname or alias.name, f'"{module}", "{alias.name}"', module) for alias in statement.names]
    else:
        return []
    known = OPTIONAL_PACKAGES if isinstance(statement, ast.Import) or not statement.level else ("src",)
    if not all(module.split(".")[0] in known for *_, module in names):
        return []
    return [f"{name} = optional({arguments})" for name, arguments, _ in names]
