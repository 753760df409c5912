"""A build on one machine: one reader, N workers or the threads of this process."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from albertkit.corpus.inputs import InputFile
from albertkit.corpus.journal import Journal
from albertkit.corpus.reading import BatchNote, Place, Reader
from albertkit.corpus.settings import BuildSettings
from albertkit.corpus.workers import EncodedBatch, encode_all


@dataclass(frozen=True)
class Work:
    """What is to be read and encoded.

    Args:
        files: All inputs.
        settings: Format, field, sentences.
        errors: "strict" or "replace".
        tokenizer: An `AlbertTokenizer`.
        folder: Where the tokenizer is saved.
    """

    files: list[InputFile]
    settings: BuildSettings
    errors: str
    tokenizer: Any
    folder: Path


class BuildEngine(Protocol):
    """Who reads and encodes.

    Attributes:
        workers: Worker processes; 0 is this one.
        nodes: Machines.
        retried: Parts of the inputs that were lost and done again.
        stored_bytes: Of the inputs, as stored, read so far.
    """

    workers: int
    nodes: int
    retried: int
    stored_bytes: int

    def results(
        self, work: Work, place: Place, journal: Journal
    ) -> Generator[tuple[BatchNote, EncodedBatch], None, None]:
        """Documents in order, from a place on, without those seen before.

        Args:
            work: What to do.
            place: Where to begin.
            journal: Knows the documents of earlier results; asked anew after each.
        """

    def describe(self) -> str:
        """What the display shows of it."""

    def close(self) -> None:
        """Leave nothing running."""


class LocalEngine:
    """This machine.

    Args:
        workers: Processes that encode; 0 means threads of this process.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.nodes, self.retried, self.stored_bytes = 1, 0, 0

    def results(
        self, work: Work, place: Place, journal: Journal
    ) -> Generator[tuple[BatchNote, EncodedBatch], None, None]:
        """See `BuildEngine`."""
        reader = Reader(work.files, place, work.settings, work.errors, journal.seen)
        encoded = encode_all(reader.batches(), work.tokenizer, work.folder, work.settings.language, self.workers)
        try:
            for note, result in encoded:
                self.stored_bytes = reader.stored_bytes()
                yield note, result
                reader.written(note.digests)
        finally:
            encoded.close()

    def describe(self) -> str:
        """Nothing."""
        return ""

    def close(self) -> None:
        """Nothing is left."""
