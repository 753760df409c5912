"""Batches of documents to ids, here or in worker processes; results come back in the order of the batches."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.corpus.sentences import split_sentences
from albertkit.corpus.store import token_dtype
from albertkit.errors import MachineError

# Batches a worker has before it, beside the one in its hands: 1 would let it wait for the reader at every batch.
_AHEAD = 2
# Threads without worker processes. Half of the work (1.1 of 2.2 s for 41 MB) is compiled and needs no interpreter lock, so
# that a third would have nothing to do.
_THREADS = 2


@dataclass
class Batch:
    """About 1 MB of text.

    Args:
        texts: The documents.
        rules: What a line is, for each document (`sentences.line_rule`).
        note: Whatever the sender wants back with the result.
    """

    texts: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    note: Any = None


@dataclass
class EncodedBatch:
    """The documents of a batch as ids; D counts all of them, also those without a token.

    Args:
        tokens: uint16 or uint32 [T].
        sentence_lengths: uint32 [S], all above 0: a sentence without a token is left out.
        document_sentences: uint32 [D], 0 for a document without a single token.
        unknown: int64 [D], tokens that are the unknown piece.
        unfinished: int64 [D], sentences of a document with one sentence a line that do not end in punctuation.
        lines: int64 [D], all sentences of such a document.
        line_tokens: int64 [D], their tokens.
        process: (name of the process, peak memory in MB) of who did it.
    """

    tokens: NDArray[Any]
    sentence_lengths: NDArray[np.uint32]
    document_sentences: NDArray[np.uint32]
    unknown: NDArray[np.int64]
    unfinished: NDArray[np.int64]
    lines: NDArray[np.int64]
    line_tokens: NDArray[np.int64]
    process: tuple[Any, float]

    def keep(self, wanted: NDArray[np.bool_]) -> "EncodedBatch":
        """Only some of the documents.

        Args:
            wanted: bool [D].
        """
        if wanted.all():
            return self
        sentences = np.repeat(wanted, self.document_sentences)
        return EncodedBatch(
            tokens=self.tokens[np.repeat(sentences, self.sentence_lengths)],
            sentence_lengths=self.sentence_lengths[sentences],
            document_sentences=self.document_sentences[wanted],
            unknown=self.unknown[wanted],
            unfinished=self.unfinished[wanted],
            lines=self.lines[wanted],
            line_tokens=self.line_tokens[wanted],
            process=self.process,
        )

    @classmethod
    def joined(cls, batches: "list[EncodedBatch]") -> "EncodedBatch":
        """Batches of one process, at least one, as one."""
        arrays = [item.name for item in fields(cls) if item.name != "process"]
        return cls(
            **{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in arrays},
            process=batches[-1].process,
        )


def encode_documents(batch: Batch, tokenizer: Any, language: str) -> EncodedBatch:
    """Split the documents of a batch into sentences and these into ids.

    Args:
        batch: The documents.
        tokenizer: An `AlbertTokenizer`.
        language: For the abbreviations.
    """
    sentences: list[str] = []
    counts = []
    unfinished = np.zeros(len(batch.texts), np.int64)
    lines = np.zeros(len(batch.texts), np.int64)
    for number, (text, rule) in enumerate(zip(batch.texts, batch.rules, strict=True)):
        found = split_sentences(text, rule, language)
        counts.append(len(found))
        sentences += found
        if rule == "sentence":
            lines[number] = len(found)
            unfinished[number] = sum(sentence[-1].isalnum() or sentence[-1] in ",-" for sentence in found)
    ragged = tokenizer.encode_batch(sentences, num_threads=1)
    lengths = np.diff(ragged.offsets)
    # sentences of nothing but characters that the text rules remove have no token
    before = np.concatenate([[0], np.cumsum(lengths > 0)])
    document_ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    unknown_before = np.concatenate([[0], np.cumsum(ragged.ids == tokenizer.unk_id, dtype=np.int64)])
    return EncodedBatch(
        tokens=ragged.ids.astype(token_dtype(tokenizer.vocab_size)),
        sentence_lengths=lengths[lengths > 0].astype(np.uint32),
        document_sentences=np.diff(before[document_ends]).astype(np.uint32),
        unknown=np.diff(unknown_before[ragged.offsets[document_ends]]),
        unfinished=unfinished,
        lines=lines,
        line_tokens=np.diff(ragged.offsets[document_ends]) * (lines > 0),
        process=(os.getpid(), peak_memory_mb()),
    )


def peak_memory_mb() -> float:
    """The most memory this process ever had resident, in MB of 10^6 bytes.

    Linux's VmHWM and not `ru_maxrss`, which in a process forked and then executed counts the parent's memory too.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


_tokenizer: Any = None


def _start(kind: type, folder: Path, fingerprint: str) -> None:
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:  # a killed parent cannot stop its workers, and they would wait for batches for ever
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    _tokenizer = kind.from_pretrained(folder)  # type: ignore[attr-defined]
    if _tokenizer.fingerprint != fingerprint:
        raise ValueError(f"the tokenizer saved in {folder} is not the one that was given")


def _work(batch: Batch, language: str) -> EncodedBatch:
    return encode_documents(batch, _tokenizer, language)


def encode_all(
    batches: Iterable[Batch], tokenizer: Any, folder: Path, language: str, workers: int
) -> Generator[tuple[Any, EncodedBatch], None, None]:
    """Encode batches, at most a few at a time, in order.

    Args:
        batches: Drawn only as fast as results are taken.
        tokenizer: An `AlbertTokenizer`.
        folder: Where it is saved; workers load it from there.
        language: For the abbreviations.
        workers: Processes; 0 works on threads of this one.

    Yields:
        (note of the batch, result).

    Raises:
        MachineError: worker-died.
    """
    pool: Executor
    encode: Callable[[Batch], EncodedBatch]
    if workers:
        pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start,
            initargs=(type(tokenizer), folder, tokenizer.fingerprint),
        )
        encode = partial(_work, language=language)
    else:
        pool = ThreadPoolExecutor(_THREADS)
        encode = partial(encode_documents, tokenizer=tokenizer, language=language)
    flying: deque[tuple[Any, Future[EncodedBatch]]] = deque()
    try:
        for batch in batches:
            flying.append((batch.note, pool.submit(encode, Batch(batch.texts, batch.rules))))
            if len(flying) > (workers or _THREADS) * (1 + _AHEAD):
                note, future = flying.popleft()
                yield note, future.result()
        while flying:
            note, future = flying.popleft()
            yield note, future.result()
    except BrokenProcessPool:
        raise MachineError(
            "worker-died",
            "a worker process died: killed for want of memory, or it could not start",
            "run the same command again to go on, with fewer --workers; a Python script needs "
            '`if __name__ == "__main__":` around its call, or workers=0',
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
