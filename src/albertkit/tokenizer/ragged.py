"""Many sequences of ids in two flat arrays."""

from collections.abc import Iterator
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

    def text(self, n: int) -> np.ndarray:
        """Return the ids of text n; a view."""
        return self.ids[self.offsets[n] : self.offsets[n + 1]]

    def texts(self) -> Iterator[np.ndarray]:
        """Return the ids of each text; views."""
        return (self.text(n) for n in range(self.num_texts))


def ragged(rows: list[np.ndarray]) -> RaggedIds:
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
