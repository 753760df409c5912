"""Versions of what computed the numbers."""

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Package to version, Python first."""
    packages = ("albertkit", "torch", "numpy", "numba", "sentencepiece")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
