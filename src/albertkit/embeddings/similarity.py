"""Similarities of vectors, under sentence-transformers' names."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.errors import ConfigError, near_miss

SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda a, b: (F.normalize(a, dim=1) @ F.normalize(b, dim=1).T).clamp(-1, 1),  # rounding
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -torch.cdist(a, b, p=2.0),
    "manhattan": lambda a, b: -torch.cdist(a, b, p=1.0),
}


def similarities(a: np.ndarray, b: np.ndarray, name: str = "cosine") -> np.ndarray:
    """Return the similarity of every vector with every other.

    Args:
        a: [A, D], or [D].
        b: [B, D], or [D].
        name: "cosine" (0 where a vector is all zeros), "dot", or the negative distance: "euclidean", "manhattan".

    Returns:
        fp32 [A, B].

    Raises:
        ConfigError: bad-value, unknown-name.
    """
    if name not in SIMILARITIES:
        raise ConfigError("unknown-name", f"there is no similarity `{name}`", near_miss(name, SIMILARITIES))
    if np.shape(a)[-1:] != np.shape(b)[-1:] or np.ndim(a) > 2 or np.ndim(b) > 2:
        fact = f"vectors of the shapes {tuple(np.shape(a))} and {tuple(np.shape(b))} cannot be compared"
        raise ConfigError("bad-value", fact, "give vectors of one model, [D] or [N, D]")
    first, second = (torch.as_tensor(np.atleast_2d(vectors), dtype=torch.float32) for vectors in (a, b))
    return SIMILARITIES[name](first, second).numpy()
