"""The reader of a build: documents of all files in order, without duplicates, in batches, from any place on."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from albertkit.corpus.inputs import InputFile
from albertkit.corpus.readers import FAULTS_NAMED, Document, DocumentFile
from albertkit.corpus.sentences import line_rule
from albertkit.corpus.workers import Batch

if TYPE_CHECKING:
    from albertkit.corpus.settings import BuildSettings

BATCH_CHARACTERS = 1 << 20
# Documents of a few words make batches short in text and long in work: 20,000 empty-ish ones take as long as 1 MB.
BATCH_DOCUMENTS = 20_000
DIGEST_BYTES = 16


@dataclass
class Place:
    """The next document to read.

    Args:
        file: Number of its file.
        document: Its number among the documents from `offset` on.
        offset: Where a range of bytes of the file begins (`parts`); 0 in a build on one machine.
        lines: Lines of the file before `offset`.
    """

    file: int = 0
    document: int = 0
    offset: int = 0
    lines: int = 0


@dataclass
class Counts:
    """What a build counts beside documents, sentences and tokens; names as in `BuildReport`."""

    empty_documents: int = 0
    duplicate_documents: int = 0
    single_sentence_documents: int = 0
    cut_documents: int = 0
    unknown_tokens: int = 0
    bad_bytes: int = 0
    empty_files: int = 0
    characters: int = 0
    text_bytes: int = 0
    lines: int = 0
    unfinished_lines: int = 0
    line_tokens: int = 0
    faulty_lines: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Add another's numbers to these; of the faults, the first few are kept."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        del self.faults[FAULTS_NAMED:]


@dataclass
class BatchNote:
    """What is to be booked when a batch has been written.

    Args:
        place: Where the next batch begins.
        counts: What the reader counted since the batch before.
        digests: Hashes of the documents in the batch.
    """

    place: Place
    counts: Counts
    digests: list[bytes]


class Reader:
    """Streams the documents of a build.

    Args:
        files: All inputs.
        place: Where to begin.
        settings: Format, field, sentences.
        errors: "strict" or "replace".
        seen: Whether a hash belongs to a document written before.
    """

    def __init__(
        self,
        files: list[InputFile],
        place: Place,
        settings: "BuildSettings",
        errors: str,
        seen: Callable[[bytes], bool],
    ) -> None:
        self._files = files
        self._place = place
        self._settings = settings
        self._errors = errors
        self._seen = seen
        self._pending: set[bytes] = set()  # in batches read but not yet written: bounded by the batches in flight
        self._finished_bytes = sum(file.size for file in files[: place.file])
        self._open: DocumentFile | None = None

    def written(self, digests: list[bytes]) -> None:
        """These hashes are now known to `seen`."""
        self._pending.difference_update(digests)

    def stored_bytes(self) -> int:
        """Bytes of the inputs read so far, as stored."""
        return self._finished_bytes + (self._open.position() if self._open else 0)

    def batches(self) -> Iterator[Batch]:
        """Batches with a `BatchNote` each; the last may be empty and carry only counts."""
        self._begin(Place(self._place.file, self._place.document))
        for number in range(self._place.file, len(self._files)):
            skip = self._place.document if number == self._place.file else 0
            with_rule = self._open_file(number)
            if with_rule is not None:
                documents, rule = with_rule
                for document in documents:
                    if document.ordinal < skip:
                        continue
                    self._put(document, rule)
                    self._note.place = Place(number, document.ordinal + 1)
                    if self._size >= BATCH_CHARACTERS or len(self._batch.texts) >= BATCH_DOCUMENTS:
                        yield self._batch
                        self._begin(self._note.place)
                self._note.counts.bad_bytes += documents.bad_bytes
                self._count_faults(documents)
            self._open = None
            self._finished_bytes += self._files[number].size
            self._note.place = Place(number + 1, 0)
        yield self._batch

    def _begin(self, place: Place) -> None:
        self._note = BatchNote(Place(place.file, place.document), Counts(), [])
        self._batch = Batch(note=self._note)
        self._size = 0

    def _open_file(self, number: int) -> tuple[DocumentFile, str] | None:
        how = self._settings
        file = DocumentFile(self._files[number], how.format, how.field, self._errors, how.separator)
        if file.empty:
            file.close()
            self._note.counts.empty_files += 1
            return None
        self._open = file
        return file, line_rule(self._settings.sentences, file.format)

    def _count_faults(self, documents: DocumentFile) -> None:
        name = documents.file.name
        found = Counts(faulty_lines=documents.faulty_lines, faults=[f"{name}:{number}" for number in documents.faults])
        self._note.counts.add(found)

    def _put(self, document: Document, rule: str) -> None:
        counts = self._note.counts
        digest = count_document(document, counts)
        if digest is None:
            return
        if digest in self._pending or self._seen(digest):
            counts.duplicate_documents += 1
            return
        self._pending.add(digest)
        self._note.digests.append(digest)
        self._batch.texts.append(document.text)
        self._batch.rules.append(rule)
        self._size += len(document.text)


def count_document(document: Document, counts: Counts) -> bytes | None:
    """Count a document; its hash, `DIGEST_BYTES` long, or None if it has no text."""
    counts.cut_documents += document.cut
    if not document.text:
        counts.empty_documents += 1
        return None
    encoded = document.text.encode("utf-8")
    counts.characters += len(document.text)
    counts.text_bytes += len(encoded)
    return hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()
