"""Read documents in batches and encode them, here or in worker processes; results come back in the order of the batches."""

import errno
import hashlib
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.corpus.documents import FAULTS_NAMED, Document, DocumentFile
from albertkit.corpus.options import BuildSettings
from albertkit.corpus.sentences import line_rule, split_sentences
from albertkit.corpus.store import token_dtype
from albertkit.errors import CheckpointError, MachineError
from albertkit.tables.files import InputFile

DIGEST_BYTES = 16
# Hashes that are sorted and inserted at a time: in order, inserting takes a tenth of the time
_AT_ONCE = 1 << 20
_CODES = {
    "SQLITE_FULL": errno.ENOSPC,
    "SQLITE_READONLY": errno.EROFS,
    "SQLITE_CANTOPEN": errno.EACCES,
}


class SeenDocuments:
    """The hashes of a build's documents; a context manager. Nothing of it outlives the process that made it.

    Args:
        path: A file to create and use.
        hashes: A file of the hashes of earlier calls, `DIGEST_BYTES` each, if there is one.
    """

    def __init__(self, path: Path, hashes: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        with self._sqlite_errors():
            self._database = sqlite3.connect(path, isolation_level=None)
        try:
            with self._sqlite_errors():
                for pragma in (
                    "locking_mode=EXCLUSIVE",
                    "cache_size=-32768",
                    "journal_mode=OFF",
                    "synchronous=OFF",
                ):
                    self._database.execute(f"PRAGMA {pragma}")
                self._database.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")
                self._database.execute("BEGIN")  # never committed
            if hashes.exists():
                with open(hashes, "rb") as stream:
                    while data := stream.read(_AT_ONCE * DIGEST_BYTES):
                        starts = range(0, len(data), DIGEST_BYTES)
                        rows = sorted((data[start : start + DIGEST_BYTES],) for start in starts)
                        with self._sqlite_errors():
                            self._database.executemany(
                                "INSERT OR IGNORE INTO seen VALUES (?)", rows
                            )
        except BaseException:
            self._database.close()
            raise

    def add_if_new(self, digest: bytes) -> bool:
        """Return True the first time that a hash is asked for."""
        with self._sqlite_errors():
            # 7 µs a document. `RETURNING` would take 4 to 5, but needs SQLite 3.35.
            return (
                self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount
                > 0
            )

    @contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            code = errno.EIO if name.startswith("SQLITE_IOERR") else _CODES.get(name)
            if code is None:
                raise CheckpointError(
                    "corrupt",
                    f"`{self._path}`: {error}",
                    "run the same command again",
                ) from None
            raise OSError(code, os.strerror(code), str(self._path)) from None

    def __enter__(self) -> "SeenDocuments":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._path.unlink(missing_ok=True)


BATCH_CHARACTERS = 1 << 20
# Documents of a few words make batches short in text and long in work: 20,000 empty-ish ones take
# as long as 1 MB.
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
        start, end: Range of bytes of a single file; 0 and None: all of it.
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

    def add(self, batch: "DocumentBatch", encoded: "EncodedBatch") -> None:
        """Add a batch and what its documents became; keep the first few of the faults."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(batch.counts, item.name))
        self.faults += [f"{name}:{line}" for name, line in batch.faults]
        del self.faults[FAULTS_NAMED:]
        for name, values in encoded.counts.items():
            setattr(self, name, getattr(self, name) + int(values.sum()))
        self.empty_documents += int((encoded.document_sentences == 0).sum())
        self.single_sentence_documents += int((encoded.document_sentences == 1).sum())


@dataclass
class DocumentBatch:
    """About 1 MB of text.

    Attributes:
        texts: The documents.
        rules: Line rule of each document (`sentences.line_rule`).
        digests: Hash of each document, `DIGEST_BYTES` long.
        counts: Counts since the batch before.
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

    def add_document(
        self, document: Document, rule: str, add_if_new: Callable[[bytes], bool]
    ) -> int:
        """Add a document that has text and is new; return its number of characters."""
        self.counts.cut_documents += document.cut
        if not document.text:
            self.counts.empty_documents += 1
            return 0
        encoded = document.text.encode("utf-8")
        self.counts.characters += len(document.text)
        self.counts.text_bytes += len(encoded)
        digest = hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()
        if not add_if_new(digest):
            self.counts.duplicate_documents += 1
            return 0
        self.texts.append(document.text)
        self.rules.append(rule)
        self.digests.append(digest)
        return len(document.text)


def read_batches(
    part: InputPart,
    inputs: BuildInputs,
    add_if_new: Callable[[bytes], bool],
) -> Iterator[DocumentBatch]:
    """Yield batches of the documents of a part whose hashes are new; the last may be empty and carry only counts."""
    batch = DocumentBatch()
    size = stored_bytes = lines = 0
    for number, file in enumerate(part.files, part.first):
        skip = part.skip if number == part.first else 0
        source = DocumentFile(
            file,
            inputs.settings,
            inputs.errors,
            part.start,
            part.end,
            part.first_line,
        )
        if not source.stream.peek(1):
            source.stream.close()
            batch.counts.empty_files += 1
        else:
            rule = line_rule(inputs.settings.sentences, source.format)
            for document in source:
                if document.ordinal < skip:
                    continue
                size += batch.add_document(document, rule, add_if_new)
                if size >= BATCH_CHARACTERS or len(batch.texts) >= BATCH_DOCUMENTS:
                    batch.position = CorpusPosition(number, document.ordinal + 1, part.start)
                    batch.stored_bytes = stored_bytes + source.stream.position()
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
    batch.stored_bytes = stored_bytes
    batch.lines = lines
    batch.is_last = True
    yield batch


# Batches that wait for each worker: 1 would let it wait for the reader at every batch.
_AHEAD = 2
# Threads without worker processes. Half of the work (1.1 of 2.2 s for 41 MB) is compiled and needs
# no interpreter lock, so that a third would have nothing to do.
_THREADS = 2
# Bytes of input, packed or not, from which on the compiled engine is loaded first: 0.5 s, where
# SentencePiece takes 1.2 s longer than the engine for the first 10 MB of text. Beside the first
# batches it loads no sooner: both want the interpreter lock (41 MB of text 2.5 s in place of 2.8).
_ENGINE_BYTES = 4_000_000


@dataclass
class EncodedBatch:
    """The documents of a batch as ids; D counts all of them, also those without a token.

    Attributes:
        tokens: uint16 or uint32 [T].
        sentence_lengths: uint32 [S], all above 0: a sentence without a token is left out.
        document_sentences: uint32 [D], 0 for a document without a single token.
        counts: int64 [D], by name in `BuildCounts`: `unknown_tokens`; and of documents with one
            sentence a line their `lines`, those that do not end in punctuation
            (`unfinished_lines`), and `line_tokens`.
        process: Machine, id and peak memory in MB of the process that encoded it.
    """

    tokens: NDArray[Any]
    sentence_lengths: NDArray[np.uint32]
    document_sentences: NDArray[np.uint32]
    counts: dict[str, NDArray[np.int64]]
    process: tuple[Any, int, float]

    def documents_without(self, selected: NDArray[np.bool_]) -> "EncodedBatch":
        """Return only the selected documents, bool [D]."""
        if selected.all():
            return self
        sentences = np.repeat(selected, self.document_sentences)
        return EncodedBatch(
            tokens=self.tokens[np.repeat(sentences, self.sentence_lengths)],
            sentence_lengths=self.sentence_lengths[sentences],
            document_sentences=self.document_sentences[selected],
            counts={name: values[selected] for name, values in self.counts.items()},
            process=self.process,
        )


def encode_documents(
    texts: list[str],
    rules: list[str],
    tokenizer: Any,
    language: str,
) -> EncodedBatch:
    """Split documents into sentences and these into ids; `rules` are the line rules of the documents."""
    sentences: list[str] = []
    counts = []
    unfinished = np.zeros(len(texts), np.int64)
    lines = np.zeros(len(texts), np.int64)
    for number, (text, rule) in enumerate(zip(texts, rules, strict=True)):
        document = split_sentences(text, rule, language)
        counts.append(len(document))
        sentences += document
        if rule == "sentence":
            endings = "".join([sentence[-1] for sentence in document])
            lines[number] = len(endings)
            unfinished[number] = (
                sum(map(str.isalnum, endings)) + endings.count(",") + endings.count("-")
            )
    ragged = tokenizer.encode_batch(sentences, num_threads=1)
    lengths = np.diff(ragged.offsets)
    # sentences of nothing but characters that the text rules remove have no token
    sentences_before = np.concatenate([[0], np.cumsum(lengths > 0)])
    document_ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    unknown_before = np.concatenate(
        [[0], np.cumsum(ragged.ids == tokenizer.unk_id, dtype=np.int64)]
    )
    return EncodedBatch(
        tokens=ragged.ids.astype(token_dtype(tokenizer.vocab_size)),
        sentence_lengths=lengths[lengths > 0].astype(np.uint32),
        document_sentences=np.diff(sentences_before[document_ends]).astype(np.uint32),
        counts={
            "unknown_tokens": np.diff(unknown_before[ragged.offsets[document_ends]]),
            "unfinished_lines": unfinished,
            "lines": lines,
            "line_tokens": np.diff(ragged.offsets[document_ends]) * (lines > 0),
        },
        process=(None, os.getpid(), peak_memory_mb()),
    )


def peak_memory_mb() -> float:
    """Return the most memory this process ever had resident, in MB of 10^6 bytes; 0 where the system does not say (Windows)."""
    # Not `ru_maxrss` on Linux, which in a process forked and then executed counts the parent's
    # memory too.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


_tokenizer: Any = None


def _initialize_worker(
    tokenizer_class: type,
    folder: Path,
    fingerprint: str,
    needs_engine: bool,
) -> None:
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    parent = multiprocessing.parent_process()
    assert parent is not None

    # A killed parent cannot stop its workers, and they would wait for batches for ever.
    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    _tokenizer = tokenizer_class.from_pretrained(folder)  # type: ignore[attr-defined]
    if _tokenizer.fingerprint != fingerprint:
        raise ValueError(f"the tokenizer saved in {folder} is not the one that was given")
    if needs_engine:
        _tokenizer.start_engine()


def _encode_in_worker(texts: list[str], rules: list[str], language: str) -> EncodedBatch:
    return encode_documents(texts, rules, _tokenizer, language)


def encode_here(
    inputs: BuildInputs,
    position: CorpusPosition,
    add_if_new: Callable[[bytes], bool],
    folder: Path,
    workers: int,
) -> Generator[tuple[DocumentBatch, EncodedBatch], None, None]:
    """Read and encode on this machine, from a position on: batches come in order, a few are encoded ahead.

    Worker processes load the tokenizer from `folder`; 0 of them work on threads of this process.
    """
    tokenizer = inputs.tokenizer
    language = inputs.settings.language
    pool: Executor
    encode: Callable[[list[str], list[str]], EncodedBatch]
    read_bytes = sum(file.size for file in inputs.files[: position.file])
    remaining_bytes = sum(file.size for file in inputs.files) - read_bytes
    needs_engine = remaining_bytes > _ENGINE_BYTES * max(1, workers)
    if workers:
        arguments = (type(tokenizer), folder, tokenizer.fingerprint, needs_engine)
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_initialize_worker,
            initargs=arguments,
        )
        encode = partial(_encode_in_worker, language=language)
    else:
        pool = ThreadPoolExecutor(_THREADS)
        if needs_engine:
            tokenizer.start_engine()
        encode = partial(encode_documents, tokenizer=tokenizer, language=language)
    ahead: deque[tuple[DocumentBatch, Future[EncodedBatch]]] = deque()
    try:
        part = InputPart(
            tuple(inputs.files[position.file :]),
            position.file,
            skip=position.document,
        )
        for batch in read_batches(part, inputs, add_if_new):
            batch.stored_bytes += read_bytes
            ahead.append((batch, pool.submit(encode, batch.texts, batch.rules)))
            if len(ahead) > (workers or _THREADS) * (1 + _AHEAD):
                first, future = ahead.popleft()
                yield first, future.result()
        while ahead:
            first, future = ahead.popleft()
            yield first, future.result()
    except BrokenProcessPool:
        raise MachineError(
            "worker-died",
            "a worker process died: killed for want of memory, or it could not start",
            "run the same command again to go on, with fewer --workers; a Python script needs "
            '`if __name__ == "__main__":` around its call, or workers=0',
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
