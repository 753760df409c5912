"""Write shards of a store: growing files of a job, document after document."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.corpus.store_format import FORMAT_VERSION, KINDS, MANIFEST, shard_file, signed, token_dtype
from albertkit.files import json_bytes
from albertkit.frame.job import Job


class StoreWriter:
    """Appends documents to shards, which are files of a job; `shards` are their counts at its last commit.

    A shard takes no document that would carry it beyond `shard_tokens`; a longer document has its own shard.
    """

    def __init__(self, job: Job, vocab_size: int, shard_tokens: int, shards: list[dict[str, int]]) -> None:
        self._job = job
        self.dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")
        self.shard_tokens = shard_tokens
        self.shards = [dict(shard) for shard in shards]

    def append(self, tokens: NDArray[Any], sentence_lengths: NDArray[Any], document_sentences: NDArray[Any]) -> None:
        """Add D documents of S sentences of T tokens; no sentence and no document is empty."""
        sentence_ends = np.concatenate([[0], np.cumsum(sentence_lengths, dtype=np.int64)])
        document_ends = np.concatenate([[0], np.cumsum(document_sentences, dtype=np.int64)])
        token_ends = sentence_ends[document_ends]  # [D + 1] tokens before each document
        done, total = 0, len(document_sentences)
        while done < total:
            room = self.shard_tokens - (self.shards[-1]["tokens"] if self.shards else self.shard_tokens)
            fitting = int(np.searchsorted(token_ends, token_ends[done] + room, "right")) - 1
            if fitting <= done or not self.shards:
                self._next_shard()
                fitting = int(np.searchsorted(token_ends, token_ends[done] + self.shard_tokens, "right")) - 1
                fitting = max(fitting, done + 1)
            self._write(tokens, sentence_ends, document_ends, done, fitting)
            done = fitting

    def _next_shard(self) -> None:
        if self.shards:
            self._job.close(*(shard_file(kind, len(self.shards) - 1) for kind in KINDS))
        self.shards.append(dict.fromkeys(KINDS, 0))
        self._put("tokens", b"")
        for kind in ("sentences", "documents"):
            self._put(kind, np.zeros(1, "<u4").tobytes())

    def _put(self, kind: str, content: bytes) -> None:
        self._job.write(shard_file(kind, len(self.shards) - 1), content)

    def _write(
        self, tokens: NDArray[Any], sentence_ends: NDArray[Any], document_ends: NDArray[Any], first: int, last: int
    ) -> None:
        shard = self.shards[-1]
        sentences = slice(document_ends[first], document_ends[last] + 1)
        ends = sentence_ends[sentences]
        in_tokens = shard["tokens"] + ends[1:] - ends[0]
        in_sentences = shard["sentences"] + document_ends[first + 1 : last + 1] - document_ends[first]
        self._put("tokens", tokens[ends[0] : ends[-1]].astype(self.dtype, copy=False).tobytes())
        self._put("sentences", in_tokens.astype("<u4").tobytes())
        self._put("documents", in_sentences.astype("<u4").tobytes())
        shard["tokens"], shard["sentences"] = int(in_tokens[-1]), int(in_sentences[-1])
        shard["documents"] += last - first

    def totals(self) -> dict[str, int]:
        """Return the numbers of documents, sentences and tokens in all shards."""
        return {kind: sum(shard[kind] for shard in self.shards) for kind in reversed(KINDS)}


def write_manifest(job: Job, shards: list[dict[str, int]], facts: dict[str, Any]) -> None:
    """Write the manifest of the committed shards and of `tokenizer/`: after it only `Job.publish` is left to do."""
    tokenizer = sorted(f"tokenizer/{file.name}" for file in (job.folder / "tokenizer").iterdir() if file.is_file())
    job.add(*tokenizer)
    names = [shard_file(kind, number) for number in range(len(shards)) for kind in KINDS] + tokenizer
    files = {name: job.files[name]._asdict() for name in names}
    manifest = signed({"albertkit_store": FORMAT_VERSION, **facts, "shards": shards, "files": files})
    with job.part(MANIFEST) as stream:
        stream.write(json_bytes(manifest))
