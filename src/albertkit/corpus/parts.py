"""What one task of a build on many machines does: read a part of the inputs, from its bytes to ids."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from albertkit.corpus.inputs import InputFile
from albertkit.corpus.readers import DocumentFile
from albertkit.corpus.reading import BATCH_CHARACTERS, BATCH_DOCUMENTS, Counts, Place, count_document
from albertkit.corpus.sentences import line_rule
from albertkit.corpus.settings import BuildSettings
from albertkit.corpus.workers import Batch, EncodedBatch, encode_documents

# About 1.5 s of work on a core: 1,000 times what it costs to send a task. Results of two for each core lie in memory: 2 x 8 MB.
PART_BYTES = 1 << 24
# A file that must be read from its beginning gives its results in pieces, so that no machine holds it whole.
_RESULT_CHARACTERS = 1 << 24
_PART_FILES = 1000
_WHOLE = (".gz", ".xz", ".zst", ".parquet", ".pq")


@dataclass(frozen=True)
class Part:
    """A range of a large file, or small files.

    Args:
        files: Files with consecutive numbers.
        first: Number of the first.
        start, end: Range of bytes of a single file (`ranges`); 0 and None: all of it.
        skip: Documents at its beginning that are written already.
        first_line: Number of its first line.
    """

    files: tuple[InputFile, ...]
    first: int
    start: int = 0
    end: int | None = None
    skip: int = 0
    first_line: int = 1

    def place(self, documents: int, lines: int) -> Place:
        """Where to go on after this many documents of the part; `lines` of the file come before the part."""
        return Place(self.first, documents, self.start, lines)

    def next_place(self, lines: int) -> Place:
        """Where to go on after the part; `lines` of the file come before that."""
        if self.end is None:
            return Place(self.first + len(self.files))
        return Place(self.first, 0, self.end, lines)


@dataclass
class EncodedPart:
    """Documents of a part, in order; those with the same text as an earlier one are still among them.

    Args:
        encoded: All documents with text.
        digests: Their hashes, `DIGEST_BYTES` each.
        counts: What the reader counts.
        faults: (name of the file, line in the part) of faulty lines.
        documents: Read in this part so far, with those that were skipped.
        lines: Read in this part so far; only after the last document of a range.
        end: Nothing follows.
    """

    encoded: EncodedBatch
    digests: bytes
    counts: Counts
    faults: list[tuple[str, int]]
    documents: int
    lines: int = 0
    end: bool = False


def plan_parts(files: list[InputFile], place: Place, settings: BuildSettings) -> Iterator[Part]:
    """Cut the inputs, from a place on, into parts of about `PART_BYTES`, by names and sizes alone.

    Args:
        files: All inputs.
        place: Where to begin.
        settings: Format.
    """
    number, start, skip, lines = place.file, place.offset, place.document, place.lines
    while number < len(files):
        file = files[number]
        if start or skip or file.size > PART_BYTES or not file.size:
            whole = settings.format == "parquet" or file.name.lower().endswith(_WHOLE) or not file.size
            while not whole and start + PART_BYTES < file.size:
                yield Part((file,), number, start, start + PART_BYTES, skip, lines + 1 if start == place.offset else 1)
                start, skip = start + PART_BYTES, 0
            yield Part((file,), number, start, None, skip)
            number, start, skip = number + 1, 0, 0
            continue
        last, size = number, 0
        while (
            last < len(files) and last - number < _PART_FILES and files[last].size > 0
            and (last == number or size + _text_bytes(files[last]) <= PART_BYTES)
        ):  # fmt: skip
            size += _text_bytes(files[last])
            last += 1
        yield Part(tuple(files[number:last]), number)
        number = last


def _text_bytes(file: InputFile) -> int:
    """About how much text a small file holds: packed text is three to four times as long."""
    return file.size * (4 if file.name.lower().endswith(_WHOLE) else 1)


@dataclass
class _Gathered:
    """The documents since the last result."""

    batches: list[EncodedBatch] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    faults: list[tuple[str, int]] = field(default_factory=list)
    characters: int = 0  # of `texts`


def encode_part(part: Part, settings: BuildSettings, errors: str, tokenizer: Any) -> Iterator[EncodedPart]:
    """Read, split and encode a part.

    Args:
        part: What to read.
        settings: How.
        errors: "strict" or "replace".
        tokenizer: An `AlbertTokenizer`.

    Raises:
        DataError: See `DocumentFile`.
    """
    gathered = _Gathered()
    documents = lines = 0
    for file in part.files:
        source = DocumentFile(
            file, settings.format, settings.field, errors, settings.separator, part.start, part.end, part.first_line
        )
        if source.empty:
            source.close()
            gathered.counts.empty_files += 1
            continue
        rule = line_rule(settings.sentences, source.format)
        for document in source:
            documents += 1
            if documents <= part.skip:
                continue
            digest = count_document(document, gathered.counts)
            if digest is None:
                continue
            gathered.digests.append(digest)
            gathered.texts.append(document.text)
            gathered.rules.append(rule)
            gathered.characters += len(document.text)
            if gathered.characters >= BATCH_CHARACTERS or len(gathered.texts) >= BATCH_DOCUMENTS:
                _encode(gathered, tokenizer, settings.language)
                # Files of a group are few and small: what is counted for a file at its end need not be remembered.
                if len(part.files) == 1 and gathered.counts.characters >= _RESULT_CHARACTERS:
                    yield _result(gathered, documents)
                    gathered = _Gathered()
        gathered.counts.bad_bytes += source.bad_bytes
        gathered.counts.faulty_lines += source.faulty_lines
        gathered.faults += [(file.name, line) for line in source.faults]
        lines = source.lines
    _encode(gathered, tokenizer, settings.language)
    yield _result(gathered, documents, lines, end=True)


def _encode(gathered: _Gathered, tokenizer: Any, language: str) -> None:
    gathered.batches.append(encode_documents(Batch(gathered.texts, gathered.rules), tokenizer, language))
    gathered.texts, gathered.rules, gathered.characters = [], [], 0


def _result(gathered: _Gathered, documents: int, lines: int = 0, end: bool = False) -> EncodedPart:
    return EncodedPart(
        EncodedBatch.joined(gathered.batches), b"".join(gathered.digests), gathered.counts, gathered.faults, documents,
        lines, end,
    )  # fmt: skip
