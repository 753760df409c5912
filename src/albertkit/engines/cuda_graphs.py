"""The engine for CUDA: the model itself, all kernels of a batch launched at once.

A layer is ten kernels of a few microseconds each, which Python takes longer to launch than the GPU
takes to run. A CUDA graph launches a whole forward pass: 0.47 ms for 128 tokens of base in bf16 on
an H200, where launched one by one it took 8.8 (a virtual machine whose launches are slow), 0.75 and
9.5 for 1,024. It is recorded for one shape of buffers, so a batch is copied into buffers of the
next larger shape. The rest of the buffers is one more sequence, of old tokens, whose states are not
returned.
"""

import copy
import logging
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any, Self

import torch
from torch import Tensor

from albertkit.batches.packed import PackedBatch
from albertkit.engines.engine import (
    ModelEngine,
    Precision,
    all_modules_by_name,
    evaluation_mode,
    parameter_identities,
)
from albertkit.model.padded import PackedOutput
from albertkit.model.pretrained import AlbertModel

logger = logging.getLogger(__name__)

# 128 tokens of base take 0.47 ms so, compiled as well 0.42; gelu inside the product gains 0.01.
MAX_GRAPH_TOKENS = 16_384  # beyond, the GPU computes longer than Python launches
MAX_GRAPHS = 128
# Of the smallest shapes; the longest sequence is counted in powers of two
TOKENS, LONGEST = 64, 128


@dataclass(frozen=True)
class Shape:
    """A size of buffers, for which one graph is recorded.

    Attributes:
        tokens: Room for tokens, those behind the batch's included.
        sequences: Room for sequences; the last is the padding behind the batch, unless the batch
            fills all of it.
        positions: Room for positions; None for all states.
        longest: No sequence is longer.
    """

    tokens: int
    sequences: int
    positions: int | None
    longest: int

    @classmethod
    def fixed_shape_for(cls, batch: PackedBatch, positions: Tensor | None) -> Self:
        """Return the next larger shape of a batch."""
        tokens, sequences = batch.num_tokens, batch.num_sequences
        step = max(TOKENS, _power_of_two(tokens) // 32)  # at most a sixteenth more than the batch's
        if tokens % step or sequences != _power_of_two(sequences):
            tokens, sequences = (tokens // step + 1) * step, _power_of_two(sequences) + 1
        max_positions_of_network = None if positions is None else _power_of_two(len(positions))
        num_padding = tokens - batch.num_tokens
        return cls(
            tokens,
            sequences,
            max_positions_of_network,
            max(LONGEST, _power_of_two(max(batch.longest, num_padding))),
        )


class RecordedPass:
    """A forward pass recorded for one shape.

    Args:
        model: On CUDA, without dropout.
        shape: Of the batches that will run.
        pool: Memory shared with other graphs, of which one runs at a time.
    """

    def __init__(self, model: AlbertModel, shape: Shape, pool: Any) -> None:
        device = model.device
        ids, types, positions = torch.zeros(3, shape.tokens, dtype=torch.int64, device=device)
        offsets = torch.arange(shape.sequences + 1, device=device) * shape.tokens // shape.sequences
        longest = min(shape.longest, model.config.max_position_embeddings)
        self._batch = PackedBatch(ids, types, positions, offsets, (longest,) * shape.sequences)
        self._positions = None
        if shape.positions is not None:
            self._positions = torch.zeros(shape.positions, dtype=torch.int64, device=device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            # Libraries make themselves ready, compilers compile
            model.encode(self._batch, positions=self._positions)
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._output = model.encode(self._batch, positions=self._positions)

    def run(self, batch: PackedBatch, positions: Tensor | None) -> PackedOutput:
        """Compute a batch that fits the shape; the result is the caller's."""
        fill_buffers(batch, self._batch)
        if positions is not None and self._positions is not None:
            self._positions[: len(positions)].copy_(positions)
        self._graph.replay()
        hidden, pooled = self._output
        states = hidden[: batch.num_tokens if positions is None else len(positions)].clone()
        return PackedOutput(
            states, None if pooled is None else pooled[: batch.num_sequences].clone()
        )


def fill_buffers(batch: PackedBatch, buffers: PackedBatch) -> None:
    """Copy a batch into larger buffers; the tokens behind it stay those of earlier batches, whose ids are valid."""
    tokens, sequences = batch.num_tokens, batch.num_sequences
    for name in ("input_ids", "token_type_ids", "position_ids"):
        getattr(buffers, name)[:tokens].copy_(getattr(batch, name))
    buffers.offsets[: sequences + 1].copy_(batch.offsets)
    buffers.offsets[sequences + 1 : -1].fill_(tokens)  # sequences of no token, then one to the end


class GraphEngine(ModelEngine):
    """The model on CUDA in one precision. A graph reads the model's weights, and casts them, each time that it runs.

    A shape is recorded when it comes for the second time.
    """

    def __init__(
        self, model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(model, precision, notes)
        self._lock, self._finished = Lock(), torch.cuda.Event()
        self._recording = model.config.max_position_embeddings >= LONGEST
        self._forget_graphs(parameter_identities(model))

    def _forget_graphs(self, structure: list[tuple]) -> None:
        """Begin without graphs, for the modules and addresses of now."""
        self._recorded_from = structure
        self._casting = copy.copy(self.model)
        self._casting.compute_dtype = self.dtype
        self._graphs: OrderedDict[Shape, RecordedPass | None] = OrderedDict()  # None: it came once
        self._pool = torch.cuda.graph_pool_handle()

    @torch.inference_mode()
    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """See `Engine.encode`."""
        with self._lock, evaluation_mode(self.model):
            structure = parameter_identities(self.model)
            if self._recorded_from != structure:
                self._forget_graphs(structure)
            graph = self._graph(batch, positions)
            if graph is None:
                return self._casting.encode(batch, positions=positions)
            stream = torch.cuda.current_stream(batch.device)
            # Graphs share memory, and callers may have streams of their own
            stream.wait_event(self._finished)
            output = graph.run(batch, positions)
            self._finished.record(stream)
            return output

    def _graph(self, batch: PackedBatch, positions: Tensor | None) -> RecordedPass | None:
        """Return the graph that computes a batch; None for a large one, for the first of a shape, and where there are hooks."""
        if not self._recording or batch.num_tokens > MAX_GRAPH_TOKENS:
            return None
        if any(
            module._forward_hooks or module._forward_pre_hooks
            for _, module in all_modules_by_name(self.model)
        ):
            return None
        shape = Shape.fixed_shape_for(batch, positions)
        graph = None
        if shape in self._graphs:
            graph = self._graphs.pop(shape) or self._record(shape)
        self._graphs[shape] = graph  # the last used stands last
        if len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def _record(self, shape: Shape) -> RecordedPass | None:
        """Record a graph; if that fails, log a warning once and stop recording."""
        try:
            return RecordedPass(self._casting, shape, self._pool)
        except RuntimeError as error:  # a module that waits for the GPU, too little memory
            self._recording = False
            generator = torch.cuda.default_generators[self.model.device.index]
            # A failed recording leaves the generator's state recording: the next dropout would
            # raise.
            generator.graphsafe_set_state(generator.clone_state())
            logger.warning(
                "kernels are launched one by one, slower for small batches: %s",
                str(error).split("\n", 1)[0],
            )
            return None


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number from 1 on."""
    return 1 << (number - 1).bit_length()
