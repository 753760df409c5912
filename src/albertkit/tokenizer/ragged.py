"""Many sequences of ids in two flat arrays."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class RaggedIds(NamedTuple):
    """Ids of N texts, end to end.

    Attributes:
        ids: int32 [T].
        offsets: int64 [N+1]. Text n is `ids[offsets[n]:offsets[n + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @property
    def num_texts(self) -> int:
        """Return the number of texts, N."""
        return len(self.offsets) - 1

    def ids_of_text(self, n: int) -> np.ndarray:
        """Return the ids of text n; a view."""
        return self.ids[self.offsets[n] : self.offsets[n + 1]]

    def texts(self) -> Iterator[np.ndarray]:
        """Return the ids of each text; views."""
        return (self.ids_of_text(n) for n in range(self.num_texts))


def concatenate_ids(rows: list[np.ndarray]) -> RaggedIds:
    """Put rows end to end."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return RaggedIds(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32), offsets)


def concatenate_groups(parts: list[RaggedIds]) -> RaggedIds:
    """Put groups of texts end to end."""
    if len(parts) == 1:
        return parts[0]
    shift = 0
    offsets = [np.zeros(1, dtype=np.int64)]
    for part in parts:
        offsets.append(part.offsets[1:] + shift)
        shift += len(part.ids)
    ids = np.concatenate([np.zeros(0, dtype=np.int32), *(part.ids for part in parts)])
    return RaggedIds(ids, np.concatenate(offsets))


# One thread's work at a time: 0.5 MB of text and 2 MB of room for ids stay in the caches
_CHARACTERS_A_CHUNK = 500_000


def encode_in_chunks(
    encode: Callable[[Sequence[str]], RaggedIds],
    texts: Sequence[str],
    threads: int,
) -> RaggedIds:
    """Encode texts in runs of about `_CHARACTERS_A_CHUNK` characters, on so many threads."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    num_characters = int(ends[-1]) if len(ends) else 0
    chunk_ends = np.arange(_CHARACTERS_A_CHUNK, num_characters, _CHARACTERS_A_CHUNK)
    cuts = sorted({0, *(np.searchsorted(ends, chunk_ends) + 1).tolist(), len(texts)})
    chunks = [texts[first:last] for first, last in pairwise(cuts)] or [texts]
    if threads == 1 or len(chunks) == 1:
        return concatenate_groups([encode(chunk) for chunk in chunks])
    with ThreadPoolExecutor(threads) as pool:
        return concatenate_groups(list(pool.map(encode, chunks)))


def encode_refused_texts(
    encoded: RaggedIds,
    refused: np.ndarray,
    texts: Sequence[str],
    encode: Callable[[list[str]], RaggedIds],
) -> RaggedIds:
    """Encode the texts that an engine has refused, bool [N], in another way."""
    indices = np.flatnonzero(refused)
    if not len(indices):
        return encoded
    return insert_missing_texts(
        encoded, indices, encode([texts[index] for index in indices.tolist()])
    )


def insert_missing_texts(encoded: RaggedIds, indices: np.ndarray, missing: RaggedIds) -> RaggedIds:
    """Put the texts of `missing` at the indices where `encoded` has none yet."""
    counts = np.diff(encoded.offsets)
    counts[indices] = np.diff(missing.offsets)
    segments = []
    last = 0
    for index, ids in zip(indices, missing.texts(), strict=True):
        segments += [encoded.ids[last : encoded.offsets[index]], ids]
        last = encoded.offsets[index]
    offsets = np.zeros(len(encoded.offsets), dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return RaggedIds(np.concatenate([*segments, encoded.ids[last:]]), offsets)
