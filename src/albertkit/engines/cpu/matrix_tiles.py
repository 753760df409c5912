"""The tile of `tiles` on processors with AMX: 32 rows by 32 columns of sums in matrix registers, for int8 and bfloat16.

Matrix registers hold 16 rows of 64 bytes. Four are sums, two hold rows and two the weight, so that
four loads feed four products. A weight whose registers lie one after the other in the order in
which they are read is up to 40 % faster than one in panels of 64 columns. Where it comes from the
shared cache, every tile fetches its share of the next panel ahead: 128 rows 4,100 GOP/s in place of
3,170 in int8, a loop in C on a core of an Intel Xeon, and 5,100 from the core's own caches.
"""

import ctypes
import sys
from functools import cache, partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from albertkit.jit import call_llvm, int64_constant, prefetch

ROWS = 32  # of a full tile
SIDE = 16  # rows and columns of a matrix register; words of a row
LINES = 8  # of the cache, fetched one after the other
_BYTES_OF = 1024  # a register

_BYTE = ir.IntType(8)
_BYTES = _BYTE.as_pointer()
_PRODUCT = {"int8": "llvm.x86.tdpbusd", "bf16": "llvm.x86.tdpbf16ps"}
_LEFT, _RIGHT = 4, 6  # the first registers of rows and of the weight; sums begin at 0


@cache
def compiles_for_amx() -> bool:
    """Return whether numba compiles for a processor with AMX: what is compiled and cached then uses it."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return sys.platform == "linux" and {"+amx-tile", "+amx-int8", "+amx-bf16"} <= set(features)


@cache
def request_matrix_registers() -> bool:
    """Ask Linux for the matrix registers, which it saves for those processes only that have asked; return whether it agreed."""
    if not compiles_for_amx():
        return False
    arch_prctl, request, matrix_registers = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, matrix_registers) == 0


@intrinsic
def configure(context):
    """Set the shape of the matrix registers of this thread, once for all tiles until `release`."""

    def generate(context, builder, signature, arguments):
        if compiles_for_amx():
            # 16 rows of 64 bytes for each register, as the processor reads it
            shapes = np.zeros(64, np.uint8)
            shapes[0] = 1
            shapes[16:32:2] = 64  # bytes of a row
            shapes[48:56] = SIDE
            data = cgutils.create_constant_array(_BYTE, bytearray(shapes.tobytes()))
            constant = cgutils.global_constant(builder.module, "albertkit_matrix_shapes", data)
            constant.align = 64
            call_llvm(builder, "llvm.x86.ldtilecfg", [constant.bitcast(_BYTES)])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def release(context):
    """Give the matrix registers back, so that the system need not save them when it stops this thread."""

    def generate(context, builder, signature, arguments):
        if compiles_for_amx():
            call_llvm(builder, "llvm.x86.tilerelease", [])
        return context.get_dummy_value()

    return types.void(), generate


def emit(numbers: str, builder: Any, *arguments: Any) -> None:
    """Emit the tile: see `tiles.multiply_tile`."""
    rows, stride, count, vectors, weight, steps, following, fetched, sums, sums_stride = arguments
    kernel = _Kernel(builder, numbers, rows, stride, steps, following, fetched, sums_stride)
    is_tall = builder.icmp_signed(">", count, int64_constant(SIDE))
    pairs = builder.lshr(vectors, int64_constant(1))
    pair_size = builder.shl(steps, int64_constant(7))
    for tall, likely in ((2, is_tall), (1, builder.not_(is_tall))):
        with builder.if_then(likely):
            with cgutils.for_range(builder, pairs) as loop:
                right = builder.gep(weight, [builder.mul(loop.index, pair_size)])
                target = builder.gep(sums, [builder.shl(loop.index, int64_constant(7))])
                kernel.emit(tall, 2, right, target)
            with builder.if_then(builder.trunc(vectors, ir.IntType(1))):
                right = builder.gep(weight, [builder.mul(pairs, pair_size)])
                kernel.emit(
                    tall, 1, right, builder.gep(sums, [builder.shl(pairs, int64_constant(7))])
                )


class _Kernel:
    """Emits sums of 16 or 32 rows and 16 or 32 columns over all steps, 16 words at a time."""

    def __init__(
        self,
        builder: Any,
        numbers: str,
        rows: Any,
        stride: Any,
        steps: Any,
        following: Any,
        fetched: Any,
        sums_stride: Any,
    ) -> None:
        self.builder, self.product, self.following, self.fetched = (
            builder,
            _PRODUCT[numbers],
            following,
            fetched,
        )
        self.stride, self.steps, self.sums_stride = (
            stride,
            builder.lshr(steps, int64_constant(4)),
            sums_stride,
        )
        self.rows = (rows, builder.gep(rows, [builder.shl(stride, int64_constant(4))]))

    def emit(self, tall: int, wide: int, weight: Any, sums: Any) -> None:
        """Emit a loop over the steps, for `tall` times 16 rows and `wide` times 16 columns."""
        builder, line = self.builder, int64_constant(64)
        register = partial(ir.Constant, _BYTE)
        for number in range(4):
            if number // 2 < tall and number % 2 < wide:
                call_llvm(builder, "llvm.x86.tilezero", [register(number)])
        with cgutils.for_range(builder, self.steps) as loop:
            along = builder.shl(loop.index, int64_constant(6))
            right = builder.gep(weight, [builder.mul(loop.index, int64_constant(_BYTES_OF * wide))])
            for j in range(wide):
                at = builder.gep(right, [int64_constant(_BYTES_OF * j)])
                call_llvm(builder, "llvm.x86.tileloadd64", [register(_RIGHT + j), at, line])
            for i in range(tall):
                at = builder.gep(self.rows[i], [along])
                call_llvm(builder, "llvm.x86.tileloadd64", [register(_LEFT + i), at, self.stride])
                for j in range(wide):
                    call_llvm(
                        builder,
                        self.product,
                        [register(2 * i + j), register(_LEFT + i), register(_RIGHT + j)],
                    )
                    if i == j == 0:
                        self._prefetch_panel(loop.index)
        for i in range(tall):
            for j in range(wide):
                below = builder.mul(self.sums_stride, int64_constant(SIDE * i))
                at = builder.gep(sums, [builder.add(below, int64_constant(64 * j))])
                call_llvm(
                    builder, "llvm.x86.tilestored64", [register(2 * i + j), at, self.sums_stride]
                )

    def _prefetch_panel(self, step: Any) -> None:
        """Emit a step's prefetches of the weight's next panel."""
        builder, lines = self.builder, [int64_constant(64 * line) for line in range(LINES)]
        first = builder.mul(step, self.fetched)
        with cgutils.for_range(builder, self.fetched) as loop:
            block = builder.mul(builder.add(first, loop.index), int64_constant(64 * LINES))
            for line in lines:
                prefetch(
                    builder,
                    builder.gep(self.following, [builder.add(block, line)]),
                    second_cache=True,
                )
