"""Changes of files as a unified diff."""

import difflib
from collections.abc import Mapping


def unified_diff(changes: Mapping[str, tuple[bytes | None, bytes | None]]) -> str:
    """A diff that `patch -p1` and `git apply` understand, bytes that are no UTF-8 included.

    Args:
        changes: Paths to the contents before and after; None: no such file.

    Returns:
        Text with the file's own line ends; bytes that are no UTF-8 are surrogate escapes.
    """
    lines: list[str] = []
    for path, (before, after) in changes.items():
        old, new = ("/dev/null" if before is None else f"a/{path}"), ("/dev/null" if after is None else f"b/{path}")
        lines.append(f"diff --git a/{path} b/{path}\n")
        if before is None:
            lines.append("new file mode 100644\n")
        if after is None:
            lines.append("deleted file mode 100644\n")
        for line in difflib.unified_diff(_lines(before), _lines(after), old, new):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(content: bytes | None) -> list[str]:
    """Lines with their ends; only a line feed ends a line, as for `patch`."""
    text = (content or b"").decode("utf-8", "surrogateescape")
    return [line + "\n" for line in text.split("\n")[:-1]] + [rest for rest in [text.split("\n")[-1]] if rest]
