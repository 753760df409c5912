"""The templates, and how they are read."""

from functools import cache
from typing import Any


@cache
def environment() -> Any:
    """Jinja2 with every mistake an error, and HTML escaped: texts come from corpora."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("albertkit.report", "templates"),
        autoescape=lambda name: name is not None and name.endswith((".html.j2", ".css")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
