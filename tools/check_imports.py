"""Check that packages import only downward and that no modules import each other in a circle.

Unlike import-linter it sees every way to import: at the top of a file, within a function, for type
checkers, and as text ("albertkit.module" or "albertkit.module:name"). The order of the packages is
the one in pyproject.toml.

    python tools/check_imports.py    # prints what is wrong; exit status 1
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
_IMPORT_PATH = re.compile(r"(albertkit(?:\.\w+)+)(?::\w+)?")
Graph = dict[str, dict[str, int]]  # module -> imported module -> line


def modules() -> dict[str, Path]:
    """Find all modules by name."""
    paths = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(module: str, paths: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """Yield the modules of ours that a module imports, with the line."""
    for node in ast.walk(ast.parse(paths[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (match := _IMPORT_PATH.fullmatch(node.value))
        ):
            names = [match[1]]
        else:
            continue
        if isinstance(node, ast.Constant):  # a package that names itself, such as for its templates
            names = [name for name in names if not module.startswith(f"{name}.")]
        for name in names:
            while name and name not in paths:
                name = name.rpartition(".")[0]
            # The package itself has the version, and public names by their places
            if name not in ("", "albertkit"):
                yield name, node.lineno


def circles(graph: Graph) -> Iterator[list[str]]:
    """Yield circles until none is left; each is opened at the import that closes it."""
    open_graph = {module: set(imported) for module, imported in graph.items()}
    while True:
        try:
            TopologicalSorter(open_graph).prepare()
            return
        except CycleError as error:
            circle = error.args[1][::-1]  # each imports the next
            yield circle
            open_graph[circle[0]].discard(circle[1])


def merged(graph: Graph, parts: int) -> Graph:
    """Return the graph of the packages that names have after so many parts."""
    packages: Graph = {}
    for module, imported in graph.items():
        package = ".".join(module.split(".")[:parts])
        for name, line in imported.items():
            other_package = ".".join(name.split(".")[:parts])
            if other_package != package:
                packages.setdefault(package, {}).setdefault(other_package, line)
    return packages


def main() -> int:
    """Check the tree."""
    paths = modules()
    graph: Graph = {name: {} for name in paths if name != "albertkit"}
    for name in paths:
        for imported, line in imports(name, paths) if name != "albertkit" else ():
            if imported != name:
                graph[name].setdefault(imported, line)
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ][0]
    height = {
        layer.strip(): -index
        for index, line in enumerate(contract["layers"])
        for layer in line.split("|")
    }
    wrong = []
    for name, imported in graph.items():
        package = ".".join(name.split(".")[:2])
        if package not in height:
            wrong.append(f"{name}: `{package}` is in no layer of pyproject.toml")
        for imported_module, line in imported.items():
            imported_package = ".".join(imported_module.split(".")[:2])
            if imported_package != package and height.get(imported_package, 0) >= height.get(
                package, 0
            ):
                location = f"{paths[name].relative_to(ROOT)}:{line}"
                wrong.append(
                    f"{location}: {package} imports {imported_package}, which is not below it"
                )
    wrong += [f"circle of modules: {' -> '.join(circle)}" for circle in circles(graph)]
    wrong += [f"circle of packages: {' -> '.join(circle)}" for circle in circles(merged(graph, 3))]
    print("\n".join(sorted(set(wrong))) or f"{len(graph)} modules, no circle")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
