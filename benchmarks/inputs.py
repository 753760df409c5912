"""Inputs of benchmarks: sentences of documents, and a folder with a tokenizer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from albertkit.corpus import TokenStore, build_store, builtin_documents
from albertkit.corpus.documents import DocumentFile
from albertkit.corpus.sentences import line_rule, split_sentences
from albertkit.errors import ConfigError
from albertkit.tables.files import find_inputs
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer
from benchmarks.harness import progress, scratch_folder

# Tokens of a tokenizer trained on the spot: the most that the text supports.
VOCABULARIES = (8000, 4000, 2000, 1000, 500, 250)
# `--text *.gz`, as the shell expands it
Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]


@dataclass(frozen=True)
class Inputs:
    """Text and tokenizer of a benchmark.

    Attributes:
        documents: Sentences of each document; none empty.
        text_name: What the text is, for the record.
        tokenizer_folder: Holds one `*.model`.
    """

    documents: list[list[str]]
    text_name: str
    tokenizer_folder: Path

    @cached_property
    def lines(self) -> list[str]:
        """All sentences."""
        return [sentence for document in self.documents for sentence in document]

    @cached_property
    def megabytes(self) -> float:
        """Size of the sentences in millions of bytes of UTF-8, a newline after each."""
        return sum(map(_size, self.lines)) / 1e6

    def lines_evenly(self, count: int) -> list[str]:
        """Return so many of the sentences, or all, at equal distances."""
        if count < 1:
            raise SystemExit(f"--sentences is {count}, it must be at least 1")
        return [
            self.lines[index]
            for index in np.linspace(0, len(self.lines) - 1, min(count, len(self.lines))).astype(
                int
            )
        ]

    def open_tokenizer(self, most_tokens: int, text_rules: str | None = None) -> AlbertTokenizer:
        """Return the tokenizer for a model with random weights, whose table of words has so many rows."""
        tokenizer = AlbertTokenizer.from_pretrained(self.tokenizer_folder, text_rules)
        if tokenizer.vocab_size > most_tokens:
            raise SystemExit(
                f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model measured has {most_tokens:,}"
            )
        return tokenizer

    def write_text(self, path: Path) -> None:
        """Write the text as every program of the family reads it: a sentence a line, a blank line after a document."""
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            for document in self.documents:
                stream.write("\n".join(document) + "\n\n")

    def build_store(self, folder: Path) -> TokenStore:
        """Build a token store of the text in `folder`."""
        self.write_text(folder / "text.txt")
        tokenizer = AlbertTokenizer.from_pretrained(self.tokenizer_folder, text_rules="google")
        build_store([str(folder / "text.txt")], folder / "store", tokenizer)
        return TokenStore.open(folder / "store")


@Parameter(name="*")
@dataclass(frozen=True)
class Text:
    """Options of rows that read text.

    Attributes:
        text: Files, globs or folders of text. Default: the built-in English text.
        tokenizer: Folder with one `*.model`. Default: one trained on the text on the spot.
        megabytes: Text to use at most, in millions of bytes; whole documents, from the start.
            Default: the row's own.
    """

    text: Words = ()
    tokenizer: Path | None = None
    megabytes: float | None = None

    @contextmanager
    def open(self, megabytes: float) -> Iterator[Inputs]:
        """Read so much text, split it into sentences, and train a tokenizer on it if none is given."""
        limit = self.megabytes or megabytes
        documents = list(_up_to(self._read() if self.text else builtin_documents(), limit * 1e6))
        if not documents:
            raise SystemExit(f"there is no sentence in {', '.join(self.text)}")
        name = ", ".join(self.text) or "built-in English text"
        if self.tokenizer is not None:
            yield Inputs(documents, name, self.tokenizer)
            return
        with scratch_folder() as folder:
            _train([line for document in documents for line in document], folder)
            yield Inputs(documents, name, folder)

    def _read(self) -> Iterator[list[str]]:
        for file in find_inputs(self.text):
            reader = DocumentFile(file)
            rule = line_rule(None, reader.format)
            for document in reader:
                yield split_sentences(document.text, rule)


TEXT = Text()


def _train(lines: list[str], folder: Path) -> None:
    for size in VOCABULARIES:
        progress(f"training a tokenizer of {size:,} tokens on the text")
        try:
            train_tokenizer(lines, folder, vocab_size=size)
            return
        except ConfigError as error:
            if error.slug != "too-little-data":
                raise
    raise SystemExit(
        "there is too little text to train a tokenizer on: give more text, or --tokenizer DIR"
    )


def _up_to(documents: Iterable[list[str]], limit: float) -> Iterator[list[str]]:
    num_characters = 0
    for document in documents:
        if document:
            yield document
            num_characters += sum(map(_size, document))
        if num_characters >= limit:
            return


def _size(line: str) -> int:
    return len(line.encode()) + 1
