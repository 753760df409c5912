"""What a benchmark works on: sentences of documents, and a folder with a tokenizer."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from albertkit.benchmarks.harness import progress
from albertkit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from albertkit.tokenizer import AlbertTokenizer

# Pieces of a tokenizer trained on the spot: the most that the text supports.
VOCABULARIES = (8000, 4000, 2000, 1000, 500, 250)


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
        return sum(len(line.encode()) + 1 for line in self.lines) / 1e6

    def open_tokenizer(self, most_pieces: int, text_rules: str | None = None) -> "AlbertTokenizer":
        """The tokenizer, for a model with random weights.

        Args:
            most_pieces: Rows of the model's table of words.
            text_rules: As `AlbertTokenizer.from_pretrained`.

        Raises:
            ConfigError: vocab-too-large for a tokenizer of more pieces.
        """
        from albertkit.tokenizer import AlbertTokenizer

        tokenizer = AlbertTokenizer.from_pretrained(self.tokenizer_folder, text_rules)
        if tokenizer.vocab_size > most_pieces:
            raise ConfigError(
                "vocab-too-large",
                f"the tokenizer has {tokenizer.vocab_size:,} pieces, the model measured has {most_pieces:,}",
                "name a tokenizer with at most that many",
            )
        return tokenizer

    def write_text(self, path: Path) -> None:
        """Write the text as every program of the family reads it: a sentence a line, a blank line after a document."""
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            for document in self.documents:
                stream.write("\n".join(document) + "\n\n")


@contextmanager
def open_inputs(text: Sequence[str], tokenizer: Path | None, megabytes: float) -> Iterator[Inputs]:
    """Read text, split it into sentences, and train a tokenizer on it if none is given.

    Args:
        text: Files, globs or folders in any format `albertkit corpus build` reads; none for the built-in English text.
        tokenizer: Folder with one `*.model`; None to train one of at most 8,000 pieces on the spot.
        megabytes: Text to use at most, in millions of bytes; whole documents, from the start.

    Raises:
        ConfigError: bad-megabytes.
        DataError: What the readers raise, or empty-input.
    """
    if megabytes <= 0:
        raise ConfigError(
            "bad-megabytes", f"--megabytes is {megabytes}, it must be above 0", "leave it out for the default"
        )
    documents = list(_up_to(_read(text) if text else _built_in(), megabytes * 1e6))
    if not documents:
        raise DataError("empty-input", f"there is no sentence in {', '.join(text)}", "name files with some text")
    name = ", ".join(text) if text else "built-in English text"
    if tokenizer is not None:
        yield Inputs(documents, name, tokenizer)
        return
    with TemporaryDirectory(prefix="albertkit-bench-") as folder:
        _train(documents, Path(folder))
        yield Inputs(documents, name, Path(folder))


def _train(documents: list[list[str]], folder: Path) -> None:
    from albertkit.tokenizer import train_tokenizer

    for size in VOCABULARIES:
        progress(f"training a tokenizer of {size:,} pieces on the text")
        try:
            train_tokenizer((line for document in documents for line in document), folder, vocab_size=size)
            return
        except ConfigError as error:
            if error.slug != "vocab-too-large":
                raise
    raise DataError(
        "empty-input", "there is too little text to train a tokenizer on", "give more text, or --tokenizer DIR"
    )


def _read(text: Sequence[str]) -> Iterator[list[str]]:
    from albertkit.corpus.inputs import find_inputs
    from albertkit.corpus.readers import DocumentFile
    from albertkit.corpus.sentences import line_rule, split_sentences

    for file in find_inputs(text):
        reader = DocumentFile(file)
        rule = line_rule(None, reader.format)
        for document in reader:
            yield split_sentences(document.text, rule)


def _built_in() -> Iterator[list[str]]:
    from albertkit.corpus.builtin import builtin_documents

    yield from builtin_documents()


def _up_to(documents: Iterable[list[str]], limit: float) -> Iterator[list[str]]:
    taken = 0
    for document in documents:
        if document:
            yield document
            taken += sum(len(sentence.encode()) + 1 for sentence in document)
        if taken >= limit:
            return
