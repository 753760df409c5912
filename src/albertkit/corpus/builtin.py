"""English text that every Python carries: the language reference of `pydoc_data` and the standard library's docstrings.

Source files are parsed, never imported. Tables, code, doctests and markup are taken out, so that
mostly sentences remain.
"""

import ast
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from albertkit.corpus.sentences import split_sentences
from albertkit.errors import MissingExtraError
from albertkit.files import StrPath, atomic_file

_TOPICS = "pydoc_data/topics.py"
_PASSED_OVER = set(
    "test tests idle_test site-packages dist-packages __pycache__ pydoc_data lib-dynload".split()
)

_BLANK_LINES = re.compile(r"\n\s*\n")
_ROLE = re.compile(r":[\w:+-]+:`~?([^`<]+?)(?: <[^`]*>)?`")
_MARKUP = re.compile(r"``?([^`\n]+)``?|\*\*?([^*\n]+)\*\*?|`([^`'\n]+)'")
_FOOTNOTE = re.compile(r"\s?\[\d+\]_?")
_BULLET = re.compile(r"^(?:[*•-]|\(?\d+[.)]|\([a-z]\))\s+")
_NOT_PROSE = re.compile(
    r"^(?:>>>|\.\. |[-=*~^+|#]{3,}|[:@]\w+|[+|]|\$ |Copyright\b|-\*-)|::=|^\S+ ?= |->|\w+\(\)?\n|https?://"
)
_DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WORD = re.compile(r"[A-Za-z]{2,}")


def builtin_documents() -> Iterator[list[str]]:
    """Yield the documents of the built-in corpus: topics by name, then docstrings by file and position.

    A document is a topic, a function's docstring, or a class's with those of its methods. What has
    a single sentence (most docstrings) joins the docstring of its module: sentence order needs two.

    Yields:
        The sentences of a document. The same Python version gives the same documents.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    has_documents = False
    for sentences in _read_library(library):
        if len(sentences) > 1:
            has_documents = True
            yield sentences
    if not has_documents:
        raise MissingExtraError(
            "not-installed",
            f"this Python came without the sources of its library (`{library}`)",
            "give text of your own",
        )


def write_builtin_corpus(path: StrPath) -> dict[str, int]:
    """Write the built-in corpus as plain text: a sentence a line, a blank line after each document.

    Args:
        path: The file to write.

    Returns:
        Numbers of `documents`, `sentences` and `bytes`.
    """
    documents = sentences = size = 0
    with atomic_file(path, "w") as stream:
        for document in builtin_documents():
            text = "\n".join(document) + "\n\n"
            stream.write(text)
            documents += 1
            sentences += len(document)
            size += len(text.encode("utf-8"))
    return {"documents": documents, "sentences": sentences, "bytes": size}


def prose_sentences(text: str) -> list[str]:
    """Return the English sentences of a docstring or help page with reST markup, code, tables and doctests."""
    sentences: list[str] = []
    literal_indent: int | None = None
    for block in _BLANK_LINES.split(inspect.cleandoc(text)):
        lines = block.strip("\n").splitlines()
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if literal_indent is not None and indent > literal_indent:
            continue  # still inside the block that `::` introduced
        paragraph = "\n".join(line.strip() for line in lines)
        literal_indent = indent if paragraph.endswith("::") else None
        paragraph = _BULLET.sub("", paragraph)
        if _NOT_PROSE.search(paragraph):
            continue
        paragraph = _ROLE.sub(r"\1", paragraph)
        paragraph = _MARKUP.sub(lambda match: next(filter(None, match.groups())), paragraph)
        paragraph = _FOOTNOTE.sub("", paragraph).replace("::", ":")
        for sentence in split_sentences(paragraph, "wrapped"):
            # At least four words, mostly letters, with an end: lists of names and rests of code
            # have none of these.
            words = _WORD.findall(sentence)
            letters = sum(map(len, words)) + sentence.count(" ")
            is_prose = len(words) >= 4 and letters >= 0.8 * len(sentence)
            if is_prose and sentence[-1] in '.!?:)"' and sentence[0] not in "|+=<>{[&%$#@_":
                sentences.append(sentence)
    return sentences


def _read_library(library: Path) -> Iterator[list[str]]:
    topics = _parse(library / _TOPICS)
    for statement in topics.body if topics else []:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            table: dict[str, str] = ast.literal_eval(statement.value)
            for name in sorted(table):
                yield prose_sentences(table[name])
    files: list[Path] = []
    for parent, folders, names in os.walk(library):
        folders[:] = [
            name for name in folders if name not in _PASSED_OVER and not name.startswith("config-")
        ]
        files += [Path(parent, name) for name in names if name.endswith(".py")]
    for file in sorted(files, key=lambda file: file.relative_to(library).as_posix()):
        tree = _parse(file)
        if tree is None:
            continue
        module = _own_sentences(tree)
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, _DOCUMENTED):
                # `walk` begins with the node itself.
                documented = [inner for inner in ast.walk(node) if isinstance(inner, _DOCUMENTED)]
                sentences = list(chain.from_iterable(map(_own_sentences, documented)))
                if len(sentences) > 1:
                    yield sentences
                else:
                    module += sentences
        yield module


def _own_sentences(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> list[str]:
    return prose_sentences(ast.get_docstring(node, clean=False) or "")


def _parse(file: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules
            return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
