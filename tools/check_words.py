"""Check how the source reads: vague names, private functions used once, class names that stand twice, pressed lines.

The limits are what the tree has reached; lower them when it gets better. `--list` prints every
place.

    python tools/check_words.py [--list]    # prints a line for each folder and measure; exit status 1 above a limit
"""

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Participles, pronouns and adverbs that name nothing; short names of pairs and formulas are right.
VAGUE = frozenset(
    "found given said told taken made kept seen shown wanted known own what there here place places most least whole rest other "
    "others same ready more much few many some such one ones two both each several thing things way left which who whose where "
    "when read held asked meant done gone named called written drawn placed passed put got let stands standing beside anew again "
    "beyond apart inside within behind between".split()
)
CODE_TOKENS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
MEASURES = (
    "vague names",
    "private functions used once",
    "class names that stand twice",
    "assignments of three values",
    "tokens a line",
)
LIMITS = {
    "src": dict(zip(MEASURES, (25, 336, 4, 196, 8.35), strict=True)),
    "tests": dict(zip(MEASURES, (39, 31, 7, 155, 9.63), strict=True)),
}
Finding = tuple[str, str]  # place, name


class Source:
    """The files of a folder and what is worth looking at in them."""

    def __init__(self, folder: Path) -> None:
        self.findings: dict[str, list[Finding]] = {measure: [] for measure in MEASURES[:-1]}
        self.tokens = self.lines = self.functions = 0
        self._classes: dict[str, list[str]] = defaultdict(list)
        for path in sorted(folder.rglob("*.py")):
            self._add_file(path)
        for name, paths in self._classes.items():
            if len(paths) > 1:
                self.findings["class names that stand twice"].append((", ".join(paths), name))

    def values(self) -> dict[str, float]:
        """Return a number for each measure: a count, or tokens of code a line of code."""
        counts: dict[str, float] = {
            measure: len(findings) for measure, findings in self.findings.items()
        }
        return counts | {"tokens a line": round(self.tokens / max(self.lines, 1), 2)}

    def _add_file(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        relative_path = path.relative_to(ROOT)
        uses: Counter[str] = Counter()
        private_functions = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute):
                uses[node.id if isinstance(node, ast.Name) else node.attr] += 1
            for name in names_bound_by(node):
                if name.strip("_") in VAGUE:
                    self.findings["vague names"].append((f"{relative_path}:{node.lineno}", name))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions += 1
                if node.name.startswith("_") and not node.name.startswith("__"):
                    private_functions.append(node)
            if isinstance(node, ast.ClassDef) and node in tree.body:
                self._classes[node.name.lstrip("_")].append(f"{relative_path}:{node.lineno}")
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Tuple) and len(t.elts) > 2 for t in node.targets
            ):
                self.findings["assignments of three values"].append(
                    (f"{relative_path}:{node.lineno}", ast.unparse(node.targets[0]))
                )
        self.findings["private functions used once"] += [
            (f"{relative_path}:{function.lineno}", function.name)
            for function in private_functions
            if uses[function.name] == 1
        ]
        self._count_tokens(text, tree)

    def _count_tokens(self, text: str, tree: ast.Module) -> None:
        """Count the tokens and the lines of code: neither blank, nor comments, docstrings or imports."""
        skipped = {
            number
            for number, line in enumerate(text.splitlines(), 1)
            if not line.strip() or line.strip().startswith("#")
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                skipped.update(range(node.lineno, node.end_lineno + 1))
            is_documented = isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            )
            if is_documented and ast.get_docstring(node, clean=False) is not None:
                skipped.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        self.lines += len(text.splitlines()) - len(skipped)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            self.tokens += token.type in CODE_TOKENS and token.start[0] not in skipped


def names_bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node gives to a variable, an attribute, an argument or a function."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name


def main() -> int:
    """Print the measures of both folders, beside their limits."""
    is_above = False
    for folder, limits in LIMITS.items():
        source = Source(ROOT / folder)
        for measure, value in source.values().items():
            limit = limits.get(measure)
            is_above |= limit is not None and value > limit
            print(
                f"{folder:6} {measure:30} {value:8g}"
                + ("" if limit is None else f"  (limit {limit:g})")
            )
            if "--list" in sys.argv:
                print(
                    "".join(
                        f"    {location} {name}\n"
                        for location, name in source.findings.get(measure, [])
                    ),
                    end="",
                )
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main())
