"""Token stores in memory, with the attributes of `TokenStore`."""

import gzip
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


def toy_tokenizer(vocab_size=100):
    """A tokenizer of numbers: ids 0 to 4 are special; of the others every third continues a word."""
    starts = np.arange(vocab_size) % 3 != 0
    return SimpleNamespace(
        vocab_size=vocab_size,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        word_starts=lambda: starts,
        special_ids=lambda: [0, 1, 2, 3, 4],
        id_to_piece=lambda i: f"▁{i}" if starts[i] else str(i),
        decode=lambda ids: " ".join(map(str, ids)),
    )


@dataclass
class MemoryStore:
    """Documents (lists of sentences of ids) in shards of equal numbers of documents."""

    documents: list[list[list[int]]]
    num_shards: int = 1
    dtype: type = np.uint16
    model: Any = field(default_factory=toy_tokenizer)

    def __post_init__(self):
        self.vocab_size = self.model.vocab_size
        self.tokens = []
        self.sentence_offsets = []
        self.document_offsets = []
        for part in np.array_split(np.arange(len(self.documents)), self.num_shards):
            documents = [self.documents[i] for i in part]
            sentences = [sentence for document in documents for sentence in document]
            self.tokens.append(
                np.array([i for sentence in sentences for i in sentence], self.dtype)
            )
            self.sentence_offsets.append(_offsets(sentences))
            self.document_offsets.append(_offsets(documents))

    def tokenizer(self):
        return self.model

    def all_documents(self):
        """Every document included."""
        return [np.ones(len(offsets) - 1, bool) for offsets in self.document_offsets]


def _offsets(parts):
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.uint32)


def read_novels(golden, tokenizer):
    """The corpus of the golden masks as documents of ids, and the ids of each line (empty for blank lines)."""
    lines = gzip.decompress((golden / "masking/corpus.txt.gz").read_bytes()).decode().split("\n")
    ragged = tokenizer.encode_batch(lines)
    ids = np.asarray(ragged.ids)
    line_ids = [
        ids[a:b].tolist() for a, b in zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)
    ]
    documents = [[]]
    for line, pieces in zip(lines, line_ids, strict=True):
        if line.strip():
            documents[-1].append(pieces)
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document], line_ids
