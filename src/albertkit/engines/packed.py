"""What engines with packed weights share: their input, which rows they compute, and pieces that stay in the cache.

T tokens of N sequences, H hidden.
"""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from albertkit.engines.engine import Engine, Precision, evaluating
from albertkit.model.albert import AlbertModel
from albertkit.model.encoder import AlbertAttention, AlbertLayer
from albertkit.model.outputs import PackedOutput
from albertkit.model.packing import PackedBatch

PIECE = 512  # tokens: base's activations of a pass are 7 MB then


class PackedEngine(Engine):
    """Weights packed once, on the CPU. A model that changes afterwards needs a new engine.

    Args:
        model: fp32, on the CPU; every part of its blocks a plain layer.
        precision: "fp32", "bf16" or "int8".
        notes: As `Engine`.
    """

    def __init__(self, model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()) -> None:
        super().__init__(precision, notes)
        self._model = model

    def __reduce__(self) -> tuple:  # packed weights are packed again: oneDNN's cannot be copied or pickled
        return type(self), (self._model, self.precision, self.notes)

    @abstractmethod
    def _run(self, batch: PackedBatch, rows: Tensor | None) -> Tensor:
        """Embeddings and all passes: fp32 [T, H], or the rows asked for, int64 [R], in their order."""

    @torch.inference_mode()
    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """As `Engine.encode`; fp32."""
        starts = batch.starts
        rows = None if positions is None else torch.cat([starts, positions])
        hidden = self._run(batch, rows)
        first = hidden.index_select(0, starts) if rows is None else hidden[: len(starts)]
        hidden = hidden if rows is None else hidden[len(starts) :]
        return PackedOutput(hidden, None if self._model.pooler is None else self._pool(first))

    def _pool(self, first: Tensor) -> Tensor:
        """The pooler: [N, H] to [N, H]."""
        return torch.tanh(self._model.pooler(first))  # type: ignore[misc]

    @torch.inference_mode()
    def begin(self, batch: PackedBatch) -> Tensor:
        """As `Engine.begin`."""
        with evaluating(self._model):
            return self._model.encoder.embedding_hidden_mapping_in(self._model.embeddings(batch))

    def _layers(self) -> list[AlbertLayer]:
        """The blocks in the order they run."""
        return [layer for layer, _ in self._model.encoder.passes(torch.float32)]


def queries_keys_values(attention: AlbertAttention, num_heads: int) -> tuple[Tensor, Tensor]:
    """Weight [3H, H] and bias [3H] of all three; the scores' factor 1 / sqrt(D), a power of two at D = 64, is in the queries'."""
    factor = (attention.query.out_features // num_heads) ** -0.5
    weight = torch.cat([attention.query.weight * factor, attention.key.weight, attention.value.weight])
    return weight, torch.cat([attention.query.bias * factor, attention.key.bias, attention.value.bias])


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each output, fp32 [O], and int8 [O, I] of a matrix fp32 [O, I]."""
    scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return scale, (weight / scale[:, None]).round().to(torch.int8)


def cut(lengths: tuple[int, ...], most: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Pieces of whole sequences with at most so many tokens, or of one sequence: first token, end, lengths."""
    ends = list(accumulate(lengths))
    first = start = 0
    for number, end in enumerate(ends):
        last = number + 1 == len(ends)
        if last or end + lengths[number + 1] - start > most:
            yield start, end, np.array(lengths[first : number + 1], dtype=np.int64)
            first, start = number + 1, end
