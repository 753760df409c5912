"""The engine of processors with AVX-512: all passes in one compiled loop over weights that stay in the cache.

A batch is cut into pieces, and a team of threads takes each through all passes, whether it is one sequence or many. Nothing
is left that one thread does while others wait, and nothing of torch: its threads spin for milliseconds after their last work,
on cores that the team needs (one text of 128 tokens: 26 milliseconds in place of 17).

T tokens of N sequences, H hidden, I feed-forward, A heads of width D.
"""

import os
from functools import cache
from itertools import groupby

import numba
import numpy as np
import torch
import torch.nn.functional as F
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from torch import Tensor, nn

from albertkit.engines import processor
from albertkit.engines.engine import Precision
from albertkit.engines.loops import GELU_MINIMUM, TABLE_ROWS, ZERO_POINT
from albertkit.engines.packed import PIECE, PackedEngine, cut, quantize, queries_keys_values
from albertkit.engines.passes import (
    CHUNK,
    GELU_ERF,
    GELU_TANH,
    RELU,
    Desk,
    Ids,
    Layer,
    Linear,
    Norm,
    Piece,
    Tables,
    multiply_once,
    run,
)
from albertkit.engines.team import Team, new_meeting
from albertkit.engines.tiles import COLUMNS, ROWS, VECTOR, pack
from albertkit.model.albert import AlbertModel
from albertkit.model.encoder import AlbertLayer
from albertkit.model.packing import PackedBatch

_ACTIVATIONS = {"gelu_new": GELU_TANH, "gelu": GELU_ERF, "relu": RELU}
_NUMBERS: dict[str, np.dtype] = {"int8": np.dtype(np.uint8), "bf16": np.dtype(np.uint16), "fp32": np.dtype(np.float32)}
_LINE = 64  # bytes of the cache
_NO_IDS = Ids(*(np.zeros(0, np.int64) for _ in range(3)))
_TEAM = Team()


class FusedEngine(PackedEngine):
    """Passes compiled as a whole, in fp32, bf16 or int8.

    Sums, residuals, layer norms, softmax and activations are fp32; attention multiplies bf16 where the engine's precision is not
    fp32 and the processor can.
    """

    @torch.no_grad()
    def __init__(self, model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()) -> None:
        super().__init__(model, precision, notes)
        activation = _ACTIVATIONS[model.config.hidden_act]
        layers = self._layers()
        ready = {layer: _ready(layer, activation, precision) for layer in dict.fromkeys(layers)}
        self._passes = [(ready[layer], len(list(same))) for layer, same in groupby(layers)]
        self._tables = _tables(model)
        self._pooler = None if model.pooler is None else _linear(model.pooler.weight, model.pooler.bias, "fp32")
        self._numbers = _NUMBERS[precision]
        bfloat16 = precision != "fp32" and processor.has("avx512_bf16")
        self._attention_numbers = np.dtype(np.uint16 if bfloat16 else np.float32)
        self._desks: list[Desk] = []  # that nobody sits at

    @torch.inference_mode()
    def step(self, hidden: Tensor, lengths: np.ndarray) -> Tensor:
        """As `Engine.step`."""
        layer = self._passes[0][0]
        piece = self._piece(layer, lengths, None)
        piece.hidden[:, : hidden.shape[1]] = hidden.numpy()
        return torch.from_numpy(self._advance(piece, _NO_IDS, [(layer, 1)], False))

    def _run(self, batch: PackedBatch, rows: Tensor | None) -> Tensor:
        self._model.embeddings.check(batch)
        _check_places(batch, rows)
        parts = (batch.input_ids, batch.position_ids, batch.token_type_ids)
        ids = Ids(*(np.ascontiguousarray(part.numpy()) for part in parts))
        output = np.empty((batch.num_tokens if rows is None else len(rows), self._model.config.hidden_size), np.float32)
        order = None if rows is None else rows.numpy().argsort()
        wanted = None if rows is None else rows.numpy()[order]
        for start, end, lengths in cut(batch.lengths, PIECE * torch.get_num_threads()):
            own = slice(start, end) if wanted is None else slice(*wanted.searchsorted([start, end]))
            piece = self._piece(self._passes[0][0], lengths, None if wanted is None else wanted[own] - start)
            found = self._advance(piece, Ids(*(part[start:end] for part in ids)), self._passes, wanted is not None)
            output[own if order is None else order[own]] = found
        return torch.from_numpy(output)

    def _advance(self, piece: Piece, ids: Ids, passes: list[tuple[Layer, int]], last: bool) -> np.ndarray:
        """Passes over one piece by a team: fp32 [T, H], or the wanted tokens' [Q, H]."""
        threads, longest = torch.get_num_threads(), int(np.diff(piece.starts).max())
        for number, (layer, count) in enumerate(passes, start=1):
            now = piece._replace(meeting=new_meeting(), tickets=np.zeros(count, np.int64))
            chosen = last and number == len(passes)
            given = ids if number == 1 else _NO_IDS
            desks = [self._desk(layer, longest) for _ in range(threads)]

            def work(member: int, members: int) -> None:
                run(member, members, given, self._tables, layer, count, now, desks[member], chosen)  # noqa: B023

            _TEAM.work(work, threads, now.meeting)
            self._desks += desks
        return (piece.chosen if last else piece.hidden)[:, : self._model.config.hidden_size]

    def _pool(self, first: Tensor) -> Tensor:
        count, width = first.shape
        source, out = (_room(count, self._pooler.bias.size, np.float32) for _ in range(2))  # type: ignore[union-attr]
        source[:, :width] = first.numpy()
        sums = _room(ROWS, COLUMNS, np.float32)
        multiply_once(source, source, np.ones(count, np.float32), self._pooler, sums, out)
        return torch.from_numpy(np.tanh(out[:, :width]))  # torch's tanh wakes its threads, see `_room`

    def _piece(self, layer: Layer, lengths: np.ndarray, wanted: np.ndarray | None) -> Piece:
        starts, width = np.append(0, np.cumsum(lengths)), layer.outer.bias.size
        tokens, where = int(starts[-1]), np.zeros(0, np.int64) if wanted is None else wanted
        most = max(tokens, len(where))  # a token may be wanted more than once
        return Piece(
            embedded=_room(tokens, _width(self._tables.mapping), np.float32),
            hidden=_room(tokens, width, np.float32),
            rows=_room(most, width, self._numbers),
            scale=np.ones(most, np.float32),
            qkv=_room(tokens, layer.qkv.bias.size, self._attention_numbers),
            context=_room(most, width, np.float32),
            starts=starts,
            everyone=np.arange(tokens),
            wanted=where,
            wanted_starts=np.searchsorted(where, starts),
            chosen=_room(len(where), width, np.float32),
            meeting=new_meeting(),
            tickets=np.zeros(0, np.int64),
        )

    def _desk(self, layer: Layer, longest: int) -> Desk:
        try:
            while (desk := self._desks.pop()).scores.shape[1] < longest:
                pass
            return desk
        except IndexError:  # none is left: asking first would be a race with other callers
            pass
        quantized, attention = self._numbers == np.uint8, self._attention_numbers
        inner_width, size = layer.inner.bias.size, len(layer.attention_norm.weight) // layer.num_heads
        places = -(-longest // COLUMNS) * COLUMNS
        inner = _room(CHUNK, inner_width, np.float32 if quantized else self._numbers)
        return Desk(
            sums=_room(ROWS, COLUMNS, np.int32 if quantized else np.float32),
            inner=inner,
            inner_rows=_room(CHUNK, inner_width, np.uint8) if quantized else inner,
            inner_scale=np.ones(CHUNK, np.float32),
            places=np.zeros(inner_width, np.int32),
            excess=np.zeros(inner_width, np.float32),
            peaks=np.zeros(inner_width // TABLE_ROWS, np.float32),
            query=_room(ROWS, size, attention),
            keys=_room(1, places * size * attention.itemsize // 4, np.uint32)[0],
            values=_room(1, places * -(-size // VECTOR) * VECTOR * attention.itemsize // 4, np.uint32)[0],
            scores=_room(ROWS, places, np.float32),
            shares=_room(ROWS, places, attention),
            weighted=_room(ROWS, COLUMNS, np.float32),
            factors=np.zeros(ROWS, np.float32),
        )


def _check_places(batch: PackedBatch, rows: Tensor | None) -> None:
    """Compiled loops believe every place they are given."""
    tokens = len(batch.input_ids)
    if not (sum(batch.lengths) == len(batch.position_ids) == len(batch.token_type_ids) == tokens):
        raise ValueError(f"the batch has {tokens} ids, and lengths, positions or types of another number of tokens")
    if rows is not None and len(rows):
        least, most = (int(place) for place in rows.aminmax())
        if least < 0 or most >= tokens:
            raise IndexError(f"positions go from {least} to {most}, the batch has {tokens} tokens")


def _room(rows: int, columns: int, dtype: np.dtype | type) -> np.ndarray:
    """Zeros from the start of a cache line on: a register's load that crosses two lines takes twice as long.

    numpy's own begin anywhere. torch's would do, but it fills them with threads of its own, which then spin for milliseconds on
    cores that the team needs.
    """
    size = rows * columns * np.dtype(dtype).itemsize
    memory = np.zeros(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(rows, columns)


def _ready(layer: AlbertLayer, activation: int, precision: str) -> Layer:
    attention, outer = layer.attention, layer.ffn_output
    quantized = precision == "int8"
    # Activations are stored from gelu's minimum up: what that adds to every output is a constant.
    outer_bias = outer.bias - GELU_MINIMUM * outer.weight.sum(1) if quantized else outer.bias
    rows = outer.weight.t().to(torch.bfloat16) if quantized else torch.zeros(0, 0, dtype=torch.bfloat16)
    return Layer(
        qkv=_linear(*queries_keys_values(attention, layer.num_heads), precision),
        attention_output=_linear(attention.dense.weight, attention.dense.bias, precision),
        attention_norm=_norm(attention.LayerNorm),
        inner=_linear(layer.ffn.weight, layer.ffn.bias, precision),
        outer=_linear(outer.weight, outer_bias, precision, zero_point=0),
        outer_rows=rows.contiguous().view(torch.uint16).numpy(),
        ffn_norm=_norm(layer.full_layer_layer_norm),
        num_heads=layer.num_heads,
        activation=activation,
    )


def _tables(model: AlbertModel) -> Tables:
    embeddings, mapping = model.embeddings, model.encoder.embedding_hidden_mapping_in
    return Tables(
        words=embeddings.word_embeddings.weight.contiguous().numpy(),
        positions=embeddings.position_embeddings.weight.contiguous().numpy(),
        types=embeddings.token_type_embeddings.weight.contiguous().numpy(),
        norm=_norm(embeddings.LayerNorm),
        mapping=_linear(mapping.weight, mapping.bias, "fp32"),
    )


def _linear(weight: Tensor, bias: Tensor, precision: str, zero_point: int = ZERO_POINT) -> Linear:
    """Packed; in int8 with a scale for each output."""
    if precision == "int8":
        scale, quantized = quantize(weight)
        shift = zero_point * quantized.sum(1, dtype=torch.int32)
        return Linear(pack(quantized), _columns(scale), _columns(shift), _columns(bias))
    packed = pack(weight.to(torch.bfloat16) if precision == "bf16" else weight)
    return Linear(packed, _columns(torch.ones_like(bias)), _columns(torch.zeros_like(bias)), _columns(bias))


def _width(linear: Linear) -> int:
    """Inputs of an fp32 linear layer, rounded up to COLUMNS."""
    return linear.weight.size // len(linear.bias)


def _columns(values: Tensor) -> np.ndarray:
    """A number for each output, and zeros up to COLUMNS."""
    return F.pad(values, (0, -len(values) % COLUMNS)).clone().numpy()


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.contiguous().numpy(), norm.bias.numpy(), np.float32(norm.eps))


# --- what this machine and this numba can do --------------------------------------------------------------------------


def unfit(model: AlbertModel, precision: str) -> str:
    """Why a model cannot run so; empty if it can."""
    size = model.config.hidden_size // model.config.num_attention_heads
    return f"its heads have the odd size {size}" if size % 2 and precision != "fp32" else ""


def lacking(precision: str) -> str:
    """What is missing for passes in "fp32", "bf16" or "int8"; empty if nothing is."""
    name = {"fp32": "avx512_f", "bf16": "avx512_bf16", "int8": "avx512_vnni"}[precision]
    if not processor.has(name):
        return f"the processor has no {name}"
    if not hasattr(os, "sched_yield"):  # Windows
        return "the system has no sched_yield"
    if f"+{name.replace('_', '')}" not in cpu_target.target_context.codegen().magic_tuple()[2].split(","):
        return f"numba compiles for a processor without {name} (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES)"
    return _tried(precision)


@cache
def _tried(precision: str) -> str:
    """What is wrong with what numba compiles here; empty if nothing is."""
    try:
        worst = _trial(precision)
    except (NumbaError, RuntimeError) as error:  # LLVM's own are RuntimeErrors
        return f"numba {numba.__version__} cannot compile it: {(str(error).splitlines() or [''])[0]}"
    return "" if worst < 0.05 else f"numba {numba.__version__} compiles something else (off by {worst:.2g})"


@torch.no_grad()
def _trial(precision: str) -> float:
    """The largest error of a linear layer with small random numbers."""
    random = torch.Generator().manual_seed(0)
    given, weight, bias = (torch.rand(*shape, generator=random) - 0.5 for shape in ((7, 64), (64, 64), (64,)))
    rows, out = _room(7, 64, _NUMBERS[precision]), _room(7, 64, np.float32)
    sums = _room(ROWS, COLUMNS, np.int32 if precision == "int8" else np.float32)
    multiply_once(given.numpy(), rows, np.ones(7, np.float32), _linear(weight, bias, precision), sums, out)
    return float((torch.from_numpy(out) - F.linear(given, weight, bias)).abs().max())
