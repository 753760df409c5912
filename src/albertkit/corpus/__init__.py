"""Text of any size to a token store: readers, sentence splitting, the store and its build, the built-in text."""

from importlib import import_module
from typing import Any

_WHERE = {
    "BuildReport": "albertkit.corpus.build",
    "BuildSettings": "albertkit.corpus.options",
    "Document": "albertkit.corpus.documents",
    "TokenStore": "albertkit.corpus.store",
    "build_store": "albertkit.corpus.build",
    "builtin_documents": "albertkit.corpus.builtin",
    "read_documents": "albertkit.corpus.documents",
    "split_sentences": "albertkit.corpus.sentences",
    "write_builtin_corpus": "albertkit.corpus.builtin",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'albertkit.corpus' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
