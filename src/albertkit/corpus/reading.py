"""Read the documents of a build: files in order, from any position on, without duplicates, in batches of about 1 MB of text."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from albertkit.corpus.options import BuildSettings
from albertkit.corpus.readers import FAULTS_NAMED, Document, DocumentFile
from albertkit.corpus.seen import DIGEST_BYTES
from albertkit.corpus.sentences import line_rule
from albertkit.data.inputs import InputFile

BATCH_CHARACTERS = 1 << 20
# Documents of a few words make batches short in text and long in work: 20,000 empty-ish ones take as long as 1 MB.
BATCH_DOCUMENTS = 20_000


@dataclass(frozen=True)
class BuildInputs:
    """Inputs of an encoding, and how they are read.

    Attributes:
        files: All inputs.
        settings: Format, field, sentences.
        errors: "strict" or "replace".
        tokenizer: An `AlbertTokenizer`.
    """

    files: list[InputFile]
    settings: BuildSettings
    errors: str
    tokenizer: Any


@dataclass
class CorpusPosition:
    """The next document to read.

    Attributes:
        file: Number of its file.
        document: Its number among the documents from `offset` on.
        offset: Where a range of bytes of the file begins; 0 in a build on one machine.
        lines: Lines of the file before `offset`.
    """

    file: int = 0
    document: int = 0
    offset: int = 0
    lines: int = 0


@dataclass(frozen=True)
class InputPart:
    """Consecutive input files, or a range of bytes of one.

    Attributes:
        files: The files.
        first: Number of the first.
        start, end: Range of bytes of a single file (`ranges`); 0 and None: all of it.
        skip: Documents of the first file that were read before.
        first_line: Number of the first line of the range; 1 if unknown.
    """

    files: tuple[InputFile, ...]
    first: int
    start: int = 0
    end: int | None = None
    skip: int = 0
    first_line: int = 1


@dataclass
class BuildCounts:
    """Counters of a build besides documents, sentences and tokens; names as in `BuildReport`."""

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

    def add(self, other: "BuildCounts") -> None:
        """Add another's numbers to these; of the faults, the first few are kept."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        del self.faults[FAULTS_NAMED:]


@dataclass
class DocumentBatch:
    """About 1 MB of text.

    Attributes:
        texts: The documents.
        rules: What a line is, for each document (`sentences.line_rule`).
        digests: Hash of each document, `DIGEST_BYTES` long.
        counts: What was counted since the batch before.
        faults: (name of the file, line in the part) of faulty lines.
        position: Where the next batch begins.
        stored_bytes: Of the part, as stored, read so far.
        lines: Of the part, read so far; only in its last batch.
        is_last: No batch of the part follows.
    """

    texts: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    counts: BuildCounts = field(default_factory=BuildCounts)
    faults: list[tuple[str, int]] = field(default_factory=list)
    position: CorpusPosition = field(default_factory=CorpusPosition)
    stored_bytes: int = 0
    lines: int = 0
    is_last: bool = False

    def take(self, document: Document, rule: str, is_new: Callable[[bytes], bool]) -> int:
        """Add a document that has text and is new; return its number of characters."""
        self.counts.cut_documents += document.cut
        if not document.text:
            self.counts.empty_documents += 1
            return 0
        encoded = document.text.encode("utf-8")
        self.counts.characters += len(document.text)
        self.counts.text_bytes += len(encoded)
        digest = hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()
        if not is_new(digest):
            self.counts.duplicate_documents += 1
            return 0
        self.texts.append(document.text)
        self.rules.append(rule)
        self.digests.append(digest)
        return len(document.text)


def read_batches(part: InputPart, inputs: BuildInputs, is_new: Callable[[bytes], bool]) -> Iterator[DocumentBatch]:
    """Yield batches of the documents of a part whose hashes are new; the last may be empty and carry only counts."""
    batch = DocumentBatch()
    size = stored_bytes = lines = 0
    for number, file in enumerate(part.files, part.first):
        skip = part.skip if number == part.first else 0
        source = DocumentFile(file, inputs.settings, inputs.errors, part.start, part.end, part.first_line)
        if source.empty:
            source.close()
            batch.counts.empty_files += 1
        else:
            rule = line_rule(inputs.settings.sentences, source.format)
            for document in source:
                if document.ordinal < skip:
                    continue
                size += batch.take(document, rule, is_new)
                if size >= BATCH_CHARACTERS or len(batch.texts) >= BATCH_DOCUMENTS:
                    batch.position = CorpusPosition(number, document.ordinal + 1, part.start)
                    batch.stored_bytes = stored_bytes + source.position()
                    yield batch
                    batch = DocumentBatch()
                    size = 0
            batch.counts.bad_bytes += source.bad_bytes
            batch.counts.faulty_lines += source.faulty_lines
            batch.faults += [(file.name, line) for line in source.faults]
            lines = source.lines
        stored_bytes += file.size
    if part.end is None:
        batch.position = CorpusPosition(part.first + len(part.files))
    else:
        batch.position = CorpusPosition(part.first, 0, part.end)
    batch.stored_bytes, batch.lines = stored_bytes, lines
    batch.is_last = True
    yield batch
