"""Batches of documents to ids, here or in worker processes; results come back in the order of the batches."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.corpus.reading import BuildInputs, CorpusPosition, DocumentBatch, InputPart, read_batches
from albertkit.corpus.sentences import split_sentences
from albertkit.corpus.store_format import token_dtype
from albertkit.errors import MachineError

# Batches that wait for each worker: 1 would let it wait for the reader at every batch.
_AHEAD = 2
# Threads without worker processes. Half of the work (1.1 of 2.2 s for 41 MB) is compiled and needs no interpreter lock, so
# that a third would have nothing to do.
_THREADS = 2
# Bytes of input, packed or not, from which on the compiled engine is loaded first: 0.5 s, where SentencePiece takes 1.2 s longer
# than the engine for the first 10 MB of text. Beside the first batches it loads no sooner: both want the interpreter lock (41 MB
# of text 2.5 s in place of 2.8).
_ENGINE_BYTES = 4_000_000


@dataclass
class EncodedBatch:
    """The documents of a batch as ids; D counts all of them, also those without a token.

    Attributes:
        tokens: uint16 or uint32 [T].
        sentence_lengths: uint32 [S], all above 0: a sentence without a token is left out.
        document_sentences: uint32 [D], 0 for a document without a single token.
        counts: int64 [D], by name in `BuildCounts`: `unknown_tokens`; and of documents with one sentence a line their `lines`,
            those that do not end in punctuation (`unfinished_lines`), and `line_tokens`.
        process: Machine, id and peak memory in MB of the process that encoded it.
    """

    tokens: NDArray[Any]
    sentence_lengths: NDArray[np.uint32]
    document_sentences: NDArray[np.uint32]
    counts: dict[str, NDArray[np.int64]]
    process: tuple[Any, int, float]

    def keep(self, selected: NDArray[np.bool_]) -> "EncodedBatch":
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


def encode_documents(texts: list[str], rules: list[str], tokenizer: Any, language: str) -> EncodedBatch:
    """Split documents into sentences and these into ids; `rules` are what a line is in each document."""
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
            unfinished[number] = sum(map(str.isalnum, endings)) + endings.count(",") + endings.count("-")
    ragged = tokenizer.encode_batch(sentences, num_threads=1)
    lengths = np.diff(ragged.offsets)
    # sentences of nothing but characters that the text rules remove have no token
    sentences_before = np.concatenate([[0], np.cumsum(lengths > 0)])
    document_ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    unknown_before = np.concatenate([[0], np.cumsum(ragged.ids == tokenizer.unk_id, dtype=np.int64)])
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
    """Return the most memory this process ever had resident, in MB of 10^6 bytes.

    Linux's VmHWM and not `ru_maxrss`, which in a process forked and then executed counts the parent's memory too.
    0 where the system does not say (Windows).
    """
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


def _initialize_worker(tokenizer_class: type, folder: Path, fingerprint: str, needs_engine: bool) -> None:
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:  # a killed parent cannot stop its workers, and they would wait for batches for ever
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
    inputs: BuildInputs, position: CorpusPosition, is_new: Callable[[bytes], bool], folder: Path, workers: int
) -> Generator[tuple[DocumentBatch, EncodedBatch], None, None]:
    """Read and encode on this machine, from a position on: batches come in order, a few are encoded ahead.

    Worker processes load the tokenizer from `folder`; 0 of them work on threads of this process.
    """
    tokenizer, language = inputs.tokenizer, inputs.settings.language
    pool: Executor
    encode: Callable[[list[str], list[str]], EncodedBatch]
    read_bytes = sum(file.size for file in inputs.files[: position.file])
    remaining_bytes = sum(file.size for file in inputs.files) - read_bytes
    needs_engine = remaining_bytes > _ENGINE_BYTES * max(1, workers)
    if workers:
        arguments = (type(tokenizer), folder, tokenizer.fingerprint, needs_engine)
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_initialize_worker, initargs=arguments)
        encode = partial(_encode_in_worker, language=language)
    else:
        pool = ThreadPoolExecutor(_THREADS)
        if needs_engine:
            tokenizer.start_engine()
        encode = partial(encode_documents, tokenizer=tokenizer, language=language)
    ahead: deque[tuple[DocumentBatch, Future[EncodedBatch]]] = deque()
    try:
        part = InputPart(tuple(inputs.files[position.file :]), position.file, skip=position.document)
        for batch in read_batches(part, inputs, is_new):
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
