"""Base class of engines, and the engine that works everywhere: the model itself."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from albertkit.data.packing import PackedBatch
from albertkit.errors import ConfigError
from albertkit.model.outputs import PackedOutput
from albertkit.model.pretrained import AlbertModel

Precision = Literal["auto", "fp32", "bf16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def check_precision(precision: str) -> None:
    """Refuse a name that is no precision."""
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ConfigError("unknown-name", f"there is no precision `{precision}`", f"use one of {known}")


class Engine(ABC):
    """An encoder made ready once, for inference.

    Attributes:
        precision: "fp32", "bf16" or "int8": what is computed in.
        notes: What it fell back from, and why; empty when it is what was asked for.
    """

    def __init__(self, precision: Precision, notes: tuple[str, ...] = ()) -> None:
        self.precision, self.notes = precision, notes

    @abstractmethod
    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """Run a packed batch, without gradient and dropout.

        Args:
            batch: T tokens of N sequences, on the model's device.
            positions: int64 [Q] into the T tokens, when only these states are wanted.

        Returns:
            hidden [T, H] or [Q, H], and pooled [N, H] or None, as `AlbertModel.encode`.
        """

    @abstractmethod
    def begin(self, batch: PackedBatch) -> Tensor:
        """Return the input of the first layer: projected embeddings, fp32 [T, H]."""

    @abstractmethod
    def step(self, hidden: Tensor, lengths: np.ndarray) -> Tensor:
        """One pass of the one layer that all passes share, over sequences that may have had different numbers of passes.

        Args:
            hidden: fp32 [T, H], which may be overwritten.
            lengths: int64 [N], tokens of each sequence.

        Returns:
            fp32 [T, H].
        """


@contextmanager
def evaluating(model: AlbertModel) -> Iterator[None]:
    """Without dropout; afterwards as it was."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


class ModelEngine(Engine):
    """The model itself in one precision. Its weights are cast once a batch, and are always the model's present ones."""

    def __init__(self, model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()) -> None:
        super().__init__(precision, notes)
        self._model = model
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    @torch.inference_mode()
    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """See `Engine.encode`."""
        model, dtype = self._model, self._model.compute_dtype
        model.compute_dtype = self._dtype
        try:
            with evaluating(model):
                return model.encode(batch, positions=positions)
        finally:
            model.compute_dtype = dtype

    @torch.inference_mode()
    def begin(self, batch: PackedBatch) -> Tensor:
        """See `Engine.begin`."""
        with evaluating(self._model):
            return self._model.encoder.embedding_hidden_mapping_in(self._model.embeddings(batch)).float()

    @torch.inference_mode()
    def step(self, hidden: Tensor, lengths: np.ndarray) -> Tensor:
        """See `Engine.step`; weights are cast for every layer."""
        with evaluating(self._model):
            layer, weights = self._model.encoder.layers(self._dtype)[0]
            return layer(hidden.to(self._dtype), weights, _of_lengths(lengths, hidden)).float()


def _of_lengths(lengths: np.ndarray, hidden: Tensor) -> PackedBatch:
    """A batch that says where sequences begin; its ids are not those of any text."""
    nothing = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
    offsets = torch.from_numpy(np.append(0, np.cumsum(lengths))).to(hidden.device)
    return PackedBatch(nothing, nothing, nothing, offsets, tuple(lengths.tolist()))
