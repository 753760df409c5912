"""Text of any size to a token store: readers, sentence splitting, the store and its build, the built-in text."""

from albertkit import lazy_names

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

__getattr__ = lazy_names(__name__, _WHERE)
