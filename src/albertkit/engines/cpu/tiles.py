"""The inner loop of every matrix product: a tile of up to 6 x 64 sums in registers, in the processor's own instructions.

Numba has no name for AVX-512's dot products (four bytes or two bfloat16 multiplied and summed in
one instruction), but lets a function say what LLVM shall emit. That is all this file does; what is
around the tile is plain compiled Python.

With AMX, int8 and bfloat16 go through `matrix_tiles`, which reads another order of the weight.

24 of 32 registers hold sums, 4 a row of the packed weight, 1 or 2 the row's broadcast word: per
step of the loop 4 + 6 loads feed 24 instructions, so the loads hide behind the arithmetic. On a Zen
5 core 925 to 945 GOP/s in int8 with random numbers, where oneDNN's kernels reach 800 to 900; with
zeros, for which the clock is higher, 960 to 999, and in bf16 480 to 490.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload
from torch import Tensor

from albertkit.engines.arithmetic import WITHIN
from albertkit.engines.cpu import matrix_tiles
from albertkit.jit import call_llvm, call_once_emitted, int64_constant, prefetch

# Of a full tile; `num_rows_of_tile` says how many it has where it is matrix_tiles'
ROWS, VECTORS = 6, 4
MAX_TILE_ROWS = matrix_tiles.ROWS
VECTOR = 16  # 32-bit numbers of a register
COLUMNS = VECTORS * VECTOR

_WORD, _BYTE = ir.IntType(32), ir.IntType(8)
_BYTES = _BYTE.as_pointer()
_WORDS, _FLOATS = ir.VectorType(_WORD, VECTOR), ir.VectorType(ir.FloatType(), VECTOR)
# LLVM knows both under the types they once had, and brings them up to date itself.
_PRODUCT = {"int8": "llvm.x86.avx512.vpdpbusd.512", "bf16": "llvm.x86.avx512bf16.dpbf16ps.512"}


@intrinsic
def multiply_tile(context, left, row, count, right, start, vectors, steps, ahead, fetched, out):
    """Write rows of `left` times a packed matrix into out[:count, :16 x vectors].

    Args:
        left: C-contiguous [T, I] of uint8, uint16 (bfloat16's bits) or float32: what numbers are
            multiplied in.
        row: The first of its rows, int64.
        count: How many, int64, 1 to `num_rows_of_tile(left)`.
        right: The matrix, one-dimensional, in the order of `pack`: int8 for uint8, else as `left`,
            or words of such as uint32.
        start: Where its registers begin, int64.
        vectors: Registers a step, int64, 1 to 4, or with AMX any number.
        steps: Words of a row, int64: four bytes, two bfloat16 or one float each; `num_whole_steps` of
            them.
        ahead: From where on the matrix is fetched into the second cache, int64: a line at every
            step, or what `fetched` says.
        fetched: With AMX: how many times 8 lines are fetched at every 16 steps, int64, from
            `fetching`.
        out: Sums, [`num_rows_of_tile(left)`, at least 16 x vectors]: int32 for uint8, else float32. Columns
            beyond are left as they are, and rows; matrix tiles write 16 or 32 rows, computed of
            what lies there in `left`.
    """
    signature = types.void(
        left,
        types.int64,
        types.int64,
        right,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        out,
    )
    numbers = {types.uint8: "int8", types.uint16: "bf16", types.float32: "fp32"}[left.dtype]

    def generate(context, builder, signature, arguments):
        row, count, start, vectors, steps = (arguments[i] for i in (1, 2, 4, 5, 6))
        rows, weights, sums = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3, 9)
        )
        stride = builder.extract_value(rows.strides, 0)
        first = builder.gep(builder.bitcast(rows.data, _BYTES), [builder.mul(row, stride)])
        weight = builder.bitcast(builder.gep(weights.data, [start]), _BYTES)
        following = builder.bitcast(builder.gep(weights.data, [arguments[7]]), _BYTES)
        corner = builder.bitcast(sums.data, _BYTES)
        sums_stride = builder.extract_value(sums.strides, 0)
        if _in_matrices(left):
            values, emit = (
                [
                    first,
                    stride,
                    count,
                    vectors,
                    weight,
                    steps,
                    following,
                    arguments[8],
                    corner,
                    sums_stride,
                ],
                matrix_tiles.emit,
            )
        else:
            shape = builder.add(builder.shl(count, int64_constant(2)), vectors)
            values, emit = (
                [first, stride, shape, weight, steps, following, corner, sums_stride],
                _emit,
            )
        call_once_emitted(builder, f"albertkit_tile_{numbers}", partial(emit, numbers), values)
        return context.get_dummy_value()

    return signature, generate


def _in_matrices(rows: types.Array) -> bool:
    return rows.dtype != types.float32 and matrix_tiles.compiles_for_amx()


def num_rows_of_tile(rows: Any) -> Any:
    """Return how many rows a full tile has, given rows as they are multiplied."""


@overload(num_rows_of_tile, jit_options=WITHIN)
def _overload_num_rows_of_tile(rows):
    num_rows = matrix_tiles.ROWS if _in_matrices(rows) else ROWS
    return lambda rows: num_rows


def num_column_registers_of_tile(rows: Any) -> Any:
    """Return how many registers of columns are multiplied with all rows before the next ones are."""


@overload(num_column_registers_of_tile, jit_options=WITHIN)
def _overload_num_column_registers_of_tile(rows):
    num_vectors = 2 if _in_matrices(rows) else VECTORS
    return lambda rows: num_vectors


def fetching(rows: Any, tiles: Any, size: Any) -> Any:
    """Return what `multiply_tile` is told to fetch in each step, and how many numbers of the next panel that is for a tile."""


@overload(fetching, jit_options=WITHIN)
def _overload_fetching(rows, tiles, size):
    if not _in_matrices(rows):
        return lambda rows, tiles, size: (0, size // VECTORS)
    parts = 32 // matrix_tiles.LINES

    def fetching_matrices(rows, tiles, size):
        fetched = max(1, parts // tiles)
        return fetched, size * fetched // parts

    return fetching_matrices


def columns_of_panel(rows: Any) -> Any:
    """Return how many columns are a panel where attention lays keys and values out: without AMX as many as a tile takes."""


@overload(columns_of_panel, jit_options=WITHIN)
def _overload_columns_of_panel(rows):
    columns = 1 << 20 if _in_matrices(rows) else COLUMNS
    return lambda rows: columns


def num_whole_steps(rows: Any, steps: Any) -> Any:
    """Return how many steps a tile takes for rows of so many words; the words beyond must be zeros on both sides."""


@overload(num_whole_steps, jit_options=WITHIN)
def _overload_num_whole_steps(rows, steps):
    side = matrix_tiles.SIDE if _in_matrices(rows) else 1
    return lambda rows, steps: (steps + side - 1) // side * side


def panel_offset(rows: Any, steps: Any, columns: Any, register: Any, step: Any) -> Any:
    """Return where a register of a step lies in a panel of `columns` columns, a multiple of VECTOR, and so many steps."""


@overload(panel_offset, jit_options=WITHIN)
def _overload_panel_offset(rows, steps, columns, register, step):
    if not _in_matrices(rows):
        return lambda rows, steps, columns, register, step: step * columns + register * VECTOR
    side = matrix_tiles.SIDE

    def offset_in_matrices(rows, steps, columns, register, step):
        pair = register // 2
        width = min(2, columns // VECTOR - 2 * pair)
        matrix = step // side * width + register % 2
        return (2 * pair * steps + matrix * side + step % side) * VECTOR

    return offset_in_matrices


def _emit(numbers: str, builder: Any, *arguments: Any) -> None:
    """Emit all shapes of a tile."""
    rows, stride, shape, weight, steps, ahead, sums, sums_stride = arguments
    after = builder.append_basic_block("tiled")
    shapes = builder.switch(shape, after)
    for count in range(1, ROWS + 1):
        for vectors in range(1, VECTORS + 1):
            block = builder.append_basic_block(f"tile_{count}x{vectors}")
            shapes.add_case(int64_constant((count << 2) + vectors), block)
            builder.position_at_end(block)
            at = [builder.gep(rows, [builder.mul(stride, int64_constant(i))]) for i in range(count)]
            for i, registers in enumerate(
                _emit_loop(builder, numbers, at, weight, steps, ahead, vectors)
            ):
                for j, register in enumerate(registers):
                    offset = builder.add(
                        builder.mul(sums_stride, int64_constant(i)), int64_constant(64 * j)
                    )
                    store(builder, register, builder.gep(sums, [offset]))
            builder.branch(after)
    builder.position_at_end(after)


def _emit_loop(
    builder: Any, numbers: str, rows_at: list, weights: Any, steps: Any, ahead: Any, vectors: int
) -> list[list]:
    """Emit the sums over the steps: one broadcast word of each row times one row of registers of the weight."""
    kind = _WORDS if numbers == "int8" else _FLOATS
    before, body, after = (
        builder.block,
        builder.append_basic_block("step"),
        builder.append_basic_block("done"),
    )
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(ir.IntType(64))
    step.add_incoming(int64_constant(0), before)
    sums = [[builder.phi(kind) for _ in range(vectors)] for _ in rows_at]
    words = builder.shl(step, int64_constant(2))
    line = builder.gep(weights, [builder.mul(step, int64_constant(64 * vectors))])
    registers = [
        load_register(builder, builder.gep(line, [int64_constant(64 * j)]), _WORDS)
        for j in range(vectors)
    ]
    prefetch(builder, builder.gep(ahead, [builder.shl(step, int64_constant(6))]), second_cache=True)
    following = []
    for at, before_row in zip(rows_at, sums, strict=True):
        word = fill_register(builder, load_register(builder, builder.gep(at, [words]), _WORD))
        row = []
        for register, old in zip(registers, before_row, strict=True):
            if numbers == "fp32":
                factors = [builder.bitcast(factor, _FLOATS) for factor in (word, register)]
                new = call_llvm(builder, "llvm.fmuladd.v16f32", [*factors, old], _FLOATS)
            else:
                new = call_llvm(builder, _PRODUCT[numbers], [old, word, register], old.type)
            row.append(new)
        following.append(row)
    for olds, news in zip(sums, following, strict=True):
        for old, new in zip(olds, news, strict=True):
            old.add_incoming(ir.Constant(kind, None), before)
            old.add_incoming(new, body)
    step_after = builder.add(step, int64_constant(1))
    step.add_incoming(step_after, body)
    builder.cbranch(builder.icmp_signed("<", step_after, steps), body, after)
    builder.position_at_end(after)
    return following


def fill_register(builder: Any, number: Any) -> Any:
    """Return a register with a number in all its places."""
    nothing, first = (
        ir.Constant(ir.VectorType(number.type, VECTOR), ir.Undefined),
        ir.Constant(_WORD, 0),
    )
    return builder.shuffle_vector(
        builder.insert_element(nothing, number, first), nothing, ir.Constant(_WORDS, None)
    )


def load_register(builder: Any, pointer: Any, kind: Any) -> Any:
    """Load a number or a register from bytes that begin anywhere."""
    value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    value.align = 1
    return value


def store(builder: Any, value: Any, pointer: Any) -> None:
    """Store it, the same way."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 1


def pack(weight: Tensor, inputs: int | None = None) -> np.ndarray:
    """Lay a matrix out as `multiply_tile` reads it, flat: panels of COLUMNS outputs, each step of four, two or one input.

    Where tiles are matrix_tiles', a panel's registers of 16 steps by 16 columns lie in the order in
    which they are read.

    Args:
        weight: [O, I] of int8, bfloat16 or float32; both are rounded up to COLUMNS, with zeros.
        inputs: How many of them are packed together, a multiple of COLUMNS; one such part follows
            the other. Default: all.
    """
    if inputs and inputs < weight.shape[1]:
        return np.concatenate([pack(part) for part in weight.split(inputs, dim=1)])
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % COLUMNS, 0, -outputs % COLUMNS))
    panels = padded.view(
        -1, COLUMNS, padded.shape[1] * weight.itemsize // 4, 4 // weight.itemsize
    ).transpose(1, 2)
    if weight.dtype != torch.float32 and matrix_tiles.compiles_for_amx():
        split = panels.unflatten(1, (-1, matrix_tiles.SIDE))
        # Panel, 16 steps, step, pair, register, column, number
        pairs = split.unflatten(3, (2, 2, VECTOR))
        panels = pairs.permute(0, 3, 1, 4, 2, 5, 6)
    flat = panels.contiguous().flatten()
    return flat.view(torch.uint16).numpy() if weight.dtype == torch.bfloat16 else flat.numpy()
