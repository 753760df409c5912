"""The engine of processors with AVX-512: all layers in one compiled loop over weights that stay in the cache.

A batch is cut into chunks, and a team of threads takes each through all layers, whether it is one
sequence or many. Nothing is left that one thread does while others wait, and nothing of torch: its
threads spin for milliseconds after their last work, on cores that the team needs (one text of 128
tokens: 26 milliseconds in place of 17).

T tokens of N sequences, H hidden, I feed-forward, A heads of width D.
"""

import logging
import warnings
from collections.abc import Iterator
from functools import cache, partial
from itertools import accumulate, groupby
from math import isfinite, prod
from typing import NamedTuple

import numba
import numpy as np
import torch
import torch.nn.functional as F
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from torch import Tensor, nn

from albertkit.batches.packed import PackedBatch
from albertkit.engines import engine
from albertkit.engines.arithmetic import GELU_MINIMUM, TABLE_ROWS, ZERO_POINT
from albertkit.engines.cpu import layers as fused_layers
from albertkit.engines.cpu import matrix_tiles, tile_outputs
from albertkit.engines.cpu.layers import (
    BLOCK_ROWS,
    Call,
    Chunk,
    Ids,
    Layer,
    Linear,
    Norm,
    Scratch,
    Tables,
    multiply_once,
    num_rows_of_a_half,
    num_rows_of_a_task,
)
from albertkit.engines.cpu.team import TaskProgress, ThreadTeam, new_progress
from albertkit.engines.cpu.tiles import COLUMNS, MAX_TILE_ROWS, VECTOR, pack
from albertkit.engines.engine import (
    Engine,
    ModelEngine,
    PackedWeights,
    Precision,
    reason_not_to_pack,
)
from albertkit.errors import first_line
from albertkit.model.layers import AlbertAttention, AlbertLayer
from albertkit.model.padded import PackedOutput
from albertkit.model.pretrained import AlbertModel, without_torch_threads

logger = logging.getLogger(__name__)

CHUNK_TOKENS = 512  # a thread: base's activations of a layer are 7 MB then
# Threads that share a chunk. Each has its own copy of the states, so memory grows with the square
# of their number.
MAX_MEMBERS = 16
MAX_COPIED_TOKENS = 1 << 15  # tokens of a chunk times members: 600 MB for base in fp32

_ACTIVATIONS = {
    "gelu_new": tile_outputs.GELU_TANH,
    "gelu": tile_outputs.GELU_ERF,
    "relu": tile_outputs.RELU,
}
_NUMBERS: dict[str, np.dtype] = {
    "int8": np.dtype(np.uint8),
    "bf16": np.dtype(np.uint16),
    "fp32": np.dtype(np.float32),
}
_LINE = 64  # bytes of the cache
_NO_IDS = Ids(*(np.zeros(0, np.int64) for _ in range(3)))
TEAM = ThreadTeam()


class _States(NamedTuple):
    """Memory of the members' states, one-dimensional, as large as the largest chunk so far needed."""

    hidden: np.ndarray
    qkv: np.ndarray
    context: np.ndarray
    halves: np.ndarray


class FusedEngine(Engine):
    """Weights packed once, on the CPU, and layers compiled as a whole, in fp32, bf16 or int8.

    The weights of a model that changes afterwards are packed again before the next batch. Sums,
    residuals, layer norms, softmax and activations are fp32; attention multiplies bf16 where the
    engine's precision is not fp32 and the processor can.

    Attributes:
        profile: Shares of the threads' time in the last call that all of them have left: "rows"
            (linear layers and what finishes them), "attention", and "waiting" for each other.
    """

    def __init__(
        self, model: AlbertModel, precision: Precision, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(precision, notes)
        matrix_tiles.request_matrix_registers()  # a copy in another process has to ask anew
        self._model = model
        self._numbers = _NUMBERS[precision]
        bfloat16 = precision != "fp32" and engine.has_instructions("avx512_bf16")
        self._attention_numbers = np.dtype(np.uint16 if bfloat16 else np.float32)
        self.profile: dict[str, float] = {}
        self._free_scratch: list[Scratch] = []  # buffers of a thread, used again
        self._free_states: list[_States] = []  # the same of a team
        with without_torch_threads():
            self._pack_weights()

    @torch.no_grad()
    def _pack_weights(self) -> None:
        model, precision = self._model, self.precision
        activation = _ACTIVATIONS[model.config.hidden_act]
        layers = [layer for layer, _ in model.encoder.layers(torch.float32)]
        packed = {
            layer: _pack_layer(layer, activation, precision) for layer in dict.fromkeys(layers)
        }
        self.layers = [(packed[layer], len(list(repeated))) for layer, repeated in groupby(layers)]
        embeddings, mapping = model.embeddings, model.encoder.embedding_hidden_mapping_in
        self.tables = Tables(
            words=embeddings.word_embeddings.weight.contiguous().numpy(),
            positions=embeddings.position_embeddings.weight.contiguous().numpy(),
            types=embeddings.token_type_embeddings.weight.contiguous().numpy(),
            norm=_pack_norm(embeddings.LayerNorm),
            mapping=_pack_linear(mapping.weight, mapping.bias, "fp32"),
        )
        self.pooler = (
            None
            if model.pooler is None
            else _pack_linear(model.pooler.weight, model.pooler.bias, "fp32")
        )
        self._weights = PackedWeights(
            model, (self.tables.words, self.tables.positions, self.tables.types)
        )

    def lacks_loops(self) -> bool:
        """See `Engine.lacks_loops`."""
        layer, ids = self.layers[0][0], Ids(*(np.zeros(1, np.int64) for _ in range(3)))
        _, states = self.take_states(layer, 1, 1)
        chunk = self.make_chunk(layer, np.ones(1, np.int64), None, ids, states)
        call = Call(0, 1, 1, last=False)
        progress, scratch = new_progress(1, 1, 1), self.take_scratch(layer, 1, 1)
        return not fused_layers.run.is_compiled(
            call, ids, self.tables, layer, chunk, progress, scratch
        )

    def repack_or_replace(self) -> Engine | None:
        """Pack weights that have changed; return the model's own engine where they cannot be packed any more.

        And while another process compiles the loops.
        """
        if self.compiler:
            if self.compiler.poll() is None:
                # A quarter of bf16's distance from what this engine computes in bf16
                return ModelEngine(self._model, "fp32")
            logger.info("the engine's loops are compiled")
            self.compiler = None
        if not self.follows_weights:
            return None
        reason = reason_not_to_pack(self._model)
        if not reason and not self._weights.are_current():
            with without_torch_threads():
                reason = model_problem(self._model, self.precision)
                # Another thread may have packed them
                if not reason and not self._weights.are_current():
                    self._pack_weights()
        if not reason:
            return None
        warnings.warn(f"computed by the model itself: {reason}", stacklevel=3)
        return ModelEngine(self._model, "fp32" if self.precision == "fp32" else "bf16")

    def __reduce__(self) -> tuple:  # a copy packs its weights again
        return type(self), (self._model, self.precision, self.notes)

    @torch.inference_mode()
    def encode(self, batch: PackedBatch, positions: Tensor | None = None) -> PackedOutput:
        """Encode in fp32; see `Engine.encode`."""
        if substitute := self.repack_or_replace():
            return substitute.encode(batch, positions)
        starts = batch.starts
        if positions is None:
            hidden = self._run(batch, None)
            first = hidden.index_select(0, starts)
        else:
            states = self._run(batch, torch.cat([starts, positions]))
            first, hidden = states[: len(starts)], states[len(starts) :]
        if self.pooler is None:
            return PackedOutput(hidden, None)
        count, width = first.shape
        source, out = (_zeros(count, self.pooler.bias.size, np.float32) for _ in range(2))
        source[:, :width] = first.numpy()
        sums = _zeros(MAX_TILE_ROWS, COLUMNS, np.float32)
        multiply_once(source, source, np.ones(count, np.float32), self.pooler, sums, out)
        # torch's tanh wakes its threads, see `_zeros`
        return PackedOutput(hidden, torch.from_numpy(np.tanh(out[:, :width])))

    def checked_ids(self, batch: PackedBatch, rows: Tensor | None) -> Ids:
        """Return a batch's ids, checked: copies, since a thread that lost its core may still read them after the call."""
        self._model.embeddings.check(batch)
        tokens = len(batch.input_ids)
        if min(batch.lengths, default=0) < 1:
            raise ValueError("the batch has a sequence without tokens, or no sequence")
        if not (
            sum(batch.lengths) == len(batch.position_ids) == len(batch.token_type_ids) == tokens
        ):
            raise ValueError(
                f"the batch has {tokens} ids, and lengths, positions or types of another number of tokens"
            )
        if rows is not None and len(rows):
            first, last = (int(position) for position in rows.aminmax())
            if first < 0 or last >= tokens:
                raise IndexError(
                    f"positions go from {first} to {last}, the batch has {tokens} tokens"
                )
        return Ids(
            *(
                np.array(x.numpy(), np.int64)
                for x in (batch.input_ids, batch.position_ids, batch.token_type_ids)
            )
        )

    def _run(self, batch: PackedBatch, rows: Tensor | None) -> Tensor:
        """Run embeddings and all layers: fp32 [T, H], or the rows asked for, int64 [R], in their order."""
        ids = self.checked_ids(batch, rows)
        output = np.empty(
            (batch.num_tokens if rows is None else len(rows), self._model.config.hidden_size),
            np.float32,
        )
        order = None if rows is None else rows.numpy().argsort()
        sorted_rows = None if rows is None else rows.numpy()[order]
        members = num_team_threads()
        for start, end, lengths in split_batch(
            batch.lengths, min(CHUNK_TOKENS * members, MAX_COPIED_TOKENS // members)
        ):
            output_rows = (
                slice(start, end)
                if sorted_rows is None
                else slice(*sorted_rows.searchsorted([start, end]))
            )
            selected = None if sorted_rows is None else sorted_rows[output_rows] - start
            states: Ids | np.ndarray = Ids(*(part[start:end] for part in ids))
            for number, (layer, repeats) in enumerate(self.layers, start=1):
                layer_rows = selected if number == len(self.layers) else None
                states = self._apply_layer_repeatedly(layer, repeats, lengths, layer_rows, states)
            assert isinstance(states, np.ndarray)
            output[output_rows if order is None else order[output_rows]] = states[
                :, : output.shape[1]
            ]
        return torch.from_numpy(output)

    def _apply_layer_repeatedly(
        self,
        layer: Layer,
        repeats: int,
        lengths: np.ndarray,
        selected: np.ndarray | None,
        inputs: Ids | np.ndarray,
    ) -> np.ndarray:
        """Apply one layer several times: fp32 [T or Q, H']."""
        members = num_team_threads()
        rows = max(int(lengths.sum()), 0 if selected is None else len(selected))
        free, states = self.take_states(layer, members, rows)
        chunk = self.make_chunk(layer, lengths, selected, inputs, states)
        heads, tokens = len(lengths) * layer.num_heads, len(chunk.everyone)
        max_tasks = max(
            -(-tokens // chunk.block),
            -(-len(chunk.selected) // chunk.selected_block),
            -(-heads // chunk.group),
        )
        if chunk.half_block:
            max_tasks = max(max_tasks, 2 * -(-tokens // chunk.half_block))
        progress = new_progress(fused_layers.NUM_PHASES * repeats + 1, max_tasks, members)
        scratch = [self.take_scratch(layer, int(lengths.max()), tokens) for _ in range(members)]
        ids, last = inputs if isinstance(inputs, Ids) else _NO_IDS, selected is not None
        rows, block = (len(chunk.selected), chunk.selected_block) if last else (tokens, chunk.block)
        output = np.empty((rows, chunk.hidden.shape[-1]), np.float32)

        def work(member: int, members: int) -> None:
            buffers = scratch[member]
            call = Call(member, members, repeats, last)
            fused_layers.run(call, ids, self.tables, layer, chunk, progress, buffers)
            if member == 0:  # before anybody else is given this memory
                for task, holder in enumerate(progress.winners[-1, : -(-rows // block)] - 1):
                    task_rows = slice(task * block, min((task + 1) * block, rows))
                    output[task_rows] = chunk.hidden[holder, repeats % 2, task_rows]

        TEAM.run(work, members, partial(self.reclaim_memory, progress, scratch, free))
        return output

    def reclaim_memory(self, progress: TaskProgress, scratch: list[Scratch], free: _States) -> None:
        """Note the profile of a call, and keep its memory for the next."""
        cycles = progress.spent.sum(0)[:3]
        rows, attention, total = (cycles / max(1, cycles[2])).tolist()
        self.profile = {"rows": rows, "attention": attention, "waiting": total - rows - attention}
        self._free_scratch += scratch
        self._free_states.append(free)

    def make_chunk(
        self,
        layer: Layer,
        lengths: np.ndarray,
        selected: np.ndarray | None,
        inputs: Ids | np.ndarray,
        states: _States,
    ) -> Chunk:
        members = len(states.hidden)
        tokens = int(lengths.sum())
        width = states.hidden.shape[-1]
        spare = self.precision == "fp32" or not matrix_tiles.compiles_for_amx()
        starts = np.append(0, np.cumsum(lengths))
        selected_tokens = np.zeros(0, np.int64) if selected is None else selected
        if isinstance(inputs, np.ndarray) and inputs.shape[1] < width:
            inputs = np.pad(inputs, ((0, 0), (0, width - inputs.shape[1])))
        return Chunk(
            input_states=np.zeros((0, width), np.float32) if isinstance(inputs, Ids) else inputs,
            **states._asdict(),
            starts=starts,
            sequences=np.repeat(np.arange(len(lengths)), lengths),
            everyone=np.arange(tokens),
            selected=selected_tokens,
            selected_starts=np.searchsorted(selected_tokens, starts),
            block=num_rows_of_a_task.py_func(tokens, members, spare),
            selected_block=num_rows_of_a_task.py_func(len(selected_tokens), members, spare),
            half_block=num_rows_of_a_half.py_func(
                max(tokens, len(selected_tokens)), members, layer
            ),
            group=max(1, len(lengths) * layer.num_heads // (members * fused_layers.SHARES)),
        )

    def take_states(self, layer: Layer, members: int, rows: int) -> tuple[_States, _States]:
        """Take state buffers for a batch, new ones if none that are free are large enough.

        The buffers to give back, and their views of shape [M, …, rows, …].
        """
        width = layer.outer.bias.size
        qkv, fp32 = layer.qkv.bias.size, np.dtype(np.float32)
        # More are never divided; what is not used stays unmapped
        half_rows = min(rows, BLOCK_ROWS * members // 2)
        shapes = (
            (members, 2, rows, width),
            (members, rows, qkv),
            (members, rows, width),
            (members, 3, half_rows, width),
        )
        kinds = fp32, self._attention_numbers, fp32, fp32
        sizes = [prod(shape) for shape in shapes]
        try:
            free = self._free_states.pop()
            while any(part.size < size for part, size in zip(free, sizes, strict=True)):
                free = self._free_states.pop()
        except IndexError:
            free = _States(
                *(
                    _zeros(1, prod(shape), kind)[0]
                    for shape, kind in zip(shapes, kinds, strict=True)
                )
            )
        views = (
            part[:size].reshape(shape)
            for part, size, shape in zip(free, sizes, shapes, strict=True)
        )
        return free, _States(*views)

    def take_scratch(self, layer: Layer, longest: int, tokens: int) -> Scratch:
        try:
            while True:
                free = self._free_scratch.pop()
                if free.scores.shape[1] - _LINE // 4 >= longest and len(free.holders) >= tokens:
                    return free
        except IndexError:  # none is left: asking first would be a race with other callers
            pass
        quantized, attention = self._numbers == np.uint8, self._attention_numbers
        part, size = layer.part, len(layer.attention_norm.weight) // layer.num_heads
        padded_length = -(-longest // COLUMNS) * COLUMNS
        inner_dtype = np.dtype(np.float32) if quantized else self._numbers
        inner = _zeros(BLOCK_ROWS, part + _LINE // inner_dtype.itemsize, inner_dtype)
        mapping = self.tables.mapping
        return Scratch(
            sums=_zeros(MAX_TILE_ROWS, COLUMNS, np.int32 if quantized else np.float32),
            embedded=_zeros(BLOCK_ROWS, mapping.weight.size // len(mapping.bias), np.float32),
            unit_scale=np.ones(BLOCK_ROWS, np.float32),
            context=_zeros(1, layer.outer.bias.size, np.float32),
            holders=np.zeros(tokens, np.int64),
            head_holders=np.zeros(tokens * layer.num_heads, np.int64),
            rows=_zeros(BLOCK_ROWS, layer.outer.bias.size, self._numbers),
            scale=np.ones(BLOCK_ROWS, np.float32),
            inner=inner,
            inner_rows=_zeros(BLOCK_ROWS, part + _LINE, np.uint8) if quantized else inner,
            inner_scale=np.ones(BLOCK_ROWS, np.float32),
            outlier_columns=np.zeros(part, np.int32),
            excess=np.zeros(part, np.float32),
            peaks=np.zeros(part // TABLE_ROWS, np.float32),
            query=_zeros(MAX_TILE_ROWS, -(-size // COLUMNS) * COLUMNS, attention),
            keys=_zeros(
                1,
                padded_length * -(-size // COLUMNS) * COLUMNS * attention.itemsize // 4,
                np.uint32,
            )[0],
            values=_zeros(
                1, padded_length * -(-size // VECTOR) * VECTOR * attention.itemsize // 4, np.uint32
            )[0],
            scores=_zeros(MAX_TILE_ROWS, padded_length + _LINE // 4, np.float32),
            shares=_zeros(MAX_TILE_ROWS, padded_length + _LINE // attention.itemsize, attention),
            weighted=_zeros(MAX_TILE_ROWS, COLUMNS, np.float32),
            factors=np.zeros(MAX_TILE_ROWS, np.float32),
            second=_zeros(BLOCK_ROWS, layer.outer.bias.size, np.float32),
            patience=np.zeros(fused_layers.NUM_PHASES, np.int64),
        )


def num_team_threads() -> int:
    """Return how many threads share a chunk."""
    return min(torch.get_num_threads(), MAX_MEMBERS)


def _zeros(rows: int, columns: int, dtype: np.dtype | type) -> np.ndarray:
    """Return zeros from the start of a cache line on: a register's load that crosses two lines takes twice as long.

    numpy's own begin anywhere. torch's would do, but it fills them with threads of its own, which
    then spin for milliseconds on cores that the team needs.
    """
    size = rows * columns * np.dtype(dtype).itemsize
    memory = np.zeros(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(rows, columns)


def split_batch(lengths: tuple[int, ...], max_tokens: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield first token, end and lengths of chunks: whole sequences of at most `max_tokens` together, or a single one."""
    ends = list(accumulate(lengths))
    first = start = 0
    for number, end in enumerate(ends):
        last = number + 1 == len(ends)
        if last or end + lengths[number + 1] - start > max_tokens:
            yield start, end, np.array(lengths[first : number + 1], dtype=np.int64)
            first, start = number + 1, end


# --- packed weights -------------------------------------------------------------------------------


def _pack_layer(layer: AlbertLayer, activation: int, precision: str) -> Layer:
    attention, outer = layer.attention, layer.ffn_output
    quantized = precision == "int8"
    # Activations are stored from gelu's minimum up: what that adds to every output is a constant.
    outer_bias = outer.bias - GELU_MINIMUM * outer.weight.sum(1) if quantized else outer.bias
    rows = (
        outer.weight.t().to(torch.bfloat16)
        if quantized
        else torch.zeros(0, 0, dtype=torch.bfloat16)
    )
    # How many inner activations are computed and used up together, evenly: about as many as there
    # are outputs
    outputs, inputs = outer.weight.shape
    parts = -(-inputs // max(768, outputs))
    part = -(-inputs // (parts * COLUMNS)) * COLUMNS
    return Layer(
        qkv=_pack_linear(*join_query_key_value_weights(attention, layer.num_heads), precision),
        attention_output=_pack_linear(attention.dense.weight, attention.dense.bias, precision),
        attention_norm=_pack_norm(attention.LayerNorm),
        inner=_pack_linear(layer.ffn.weight, layer.ffn.bias, precision),
        outer=_pack_linear(outer.weight, outer_bias, precision, zero_point=0, inputs=part),
        outer_rows=rows.contiguous().view(torch.uint16).numpy(),
        no_bias=_pad_to_columns(torch.zeros_like(outer.bias)),
        ffn_norm=_pack_norm(layer.full_layer_layer_norm),
        num_heads=layer.num_heads,
        activation=activation,
        part=part,
        middle=-(-len(_pad_to_columns(layer.ffn.bias)) // (2 * part)) * part,
    )


def join_query_key_value_weights(
    attention: AlbertAttention, num_heads: int
) -> tuple[Tensor, Tensor]:
    """Join weight [3H, H] and bias [3H]; the scores' factor 1 / sqrt(D), a power of two at D = 64, is in the queries'."""
    factor = (attention.query.out_features // num_heads) ** -0.5
    weight = torch.cat(
        [attention.query.weight * factor, attention.key.weight, attention.value.weight]
    )
    return weight, torch.cat(
        [attention.query.bias * factor, attention.key.bias, attention.value.bias]
    )


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a matrix fp32 [O, I]: a scale for each output, fp32 [O], and int8 [O, I]."""
    scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return scale, (weight / scale[:, None]).round().to(torch.int8)


def _pack_linear(
    weight: Tensor,
    bias: Tensor,
    precision: str,
    zero_point: int = ZERO_POINT,
    inputs: int | None = None,
) -> Linear:
    """Pack a linear layer; in int8 with a scale for each output."""
    scale, shift = torch.ones_like(bias), torch.zeros_like(bias)
    if precision == "int8":
        scale, weight = quantize(weight)
        shift = zero_point * weight.sum(1, dtype=torch.int32)
    elif precision == "bf16":
        weight = weight.to(torch.bfloat16)
    return Linear(pack(weight, inputs), *map(_pad_to_columns, (scale, shift, bias)))


def _pad_to_columns(values: Tensor) -> np.ndarray:
    """Pad a number for each output with zeros up to COLUMNS."""
    return F.pad(values, (0, -len(values) % COLUMNS)).clone().numpy()


def _pack_norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.contiguous().numpy(), norm.bias.numpy(), np.float32(norm.eps))


# --- what this machine and this numba can do ------------------------------------------------------


def model_problem(model: AlbertModel, precision: str) -> str:
    """Return the reason why a model cannot run in a precision, or an empty string."""
    size = model.config.hidden_size // model.config.num_attention_heads
    if size % 2 and precision != "fp32":
        return f"its heads have the odd size {size}"
    # A twentieth of the time of `isfinite`, half of what xlarge's engine is made in.
    ends = (end for weight in model.parameters() for end in weight.detach().aminmax())
    if not all(map(isfinite, ends)):
        # In a largest score, in relu, in int8
        return "weights that are not finite would become numbers"
    return ""


def precision_problem(precision: str) -> str:
    """Return what is missing for "fp32", "bf16" or "int8" on this machine, or an empty string."""
    compiled_features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    for name in engine.FUSED_INSTRUCTIONS[precision]:
        if not engine.has_instructions(name):
            return f"the processor has no {name}"
        if f"+{name.replace('_', '')}" not in compiled_features:
            return f"numba compiles for a processor without {name} (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES)"
    if (
        precision != "fp32"
        and matrix_tiles.compiles_for_amx()
        and not matrix_tiles.request_matrix_registers()
    ):
        return "the system does not let this process use AMX"
    return compiler_problem(precision)


@cache
def compiler_problem(precision: str) -> str:
    """Return what is wrong with the code that numba compiles here, or an empty string."""
    try:
        worst = largest_deviation(precision)
    except (NumbaError, RuntimeError) as error:  # LLVM's own are RuntimeErrors
        return f"numba {numba.__version__} cannot compile it: {first_line(error)}"
    return (
        ""
        if worst < 0.05
        else f"numba {numba.__version__} compiles something else (off by {worst:.2g})"
    )


@torch.no_grad()
def largest_deviation(precision: str) -> float:
    """Return the largest error of a linear layer with small random numbers."""
    random = torch.Generator().manual_seed(0)
    inputs, weight, bias = (
        torch.rand(*shape, generator=random) - 0.5 for shape in ((7, 64), (64, 64), (64,))
    )
    rows = _zeros(MAX_TILE_ROWS, 64, _NUMBERS[precision])[:7]
    out = _zeros(7, 64, np.float32)
    sums = _zeros(MAX_TILE_ROWS, COLUMNS, np.int32 if precision == "int8" else np.float32)
    multiply_once(
        inputs.numpy(),
        rows,
        np.ones(7, np.float32),
        _pack_linear(weight, bias, precision),
        sums,
        out,
    )
    return float((torch.from_numpy(out) - F.linear(inputs, weight, bias)).abs().max())
