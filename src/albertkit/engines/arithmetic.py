"""Numbers inside compiled loops: bfloat16 as its bits, rows as uint8, in formulas that LLVM turns into vectors.

No call may stay in a loop that is to be vectorised, and the largest number is found among the bits
of floats read as integers, because a maximum of floats is not recognised as a reduction (0.58
against 0.09 ns a number).
"""

from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from albertkit.jit import compiled

_FAST = {"contract", "reassoc", "nsz", "arcp", "nnan"}
loops = partial(compiled, fastmath=_FAST)  # decorator of what Python calls
# Of a formula within a loop
inline = numba.njit(inline="always", error_model="numpy", fastmath=_FAST)
# Of loops that other loops consist of. LLVM puts them into their callers: as functions they would
# exist twice, optimised alone and in company, with sums in two orders, and which of the two runs
# would depend on what the process has loaded before.
WITHIN: Any = {"forceinline": True, "error_model": "numpy", "fastmath": _FAST}
within = partial(compiled, fastmath=_FAST, forceinline=True)

f32, i32, u32 = np.float32, np.int32, np.uint32
MAGNITUDE = np.int32(0x7FFFFFFF)  # a float's bits without its sign


@intrinsic
def cast_like(context, array, value):
    """Convert a float32 to the array's own numbers: itself, or the nearest bfloat16's bits for uint16.

    Not a function that numba chooses by type, since what such a function calls is not vectorised.
    """
    dtype = array.dtype

    def generate(context, builder, signature, arguments):
        if dtype == types.float32:
            return arguments[1]

        def number(value: int) -> Any:
            return ir.Constant(ir.IntType(32), value)

        word = builder.bitcast(arguments[1], ir.IntType(32))
        odd = builder.and_(builder.lshr(word, number(16)), number(1))
        rounded = builder.add(builder.add(word, number(0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, number(16)), ir.IntType(16))

    return dtype(array, types.float32), generate


# --- rows as uint8 --------------------------------------------------------------------------------

ZERO_POINT = 128  # of `rows_to_uint8`
GELU_MINIMUM = 0.1701  # no gelu, with erf or tanh, is below minus this
# Feed-forward activations of trained models have a few numbers a row that are 20 to 30 times its
# root mean square, and one scale must serve them and the rest. Cosine of the worst [CLS] of 100
# texts to fp32, a pretrained model with H 256: 0.9957 with all in uint8, 0.9989 with those above 8
# apart, 0.9996 above 5 (4 numbers a row of 1024), 0.9997 above 4.
OUTLIER = 5.0
# Of `note_and_count_outliers`: known to the compiler, 3,072 numbers take 0.4 microseconds instead of 1.5
TABLE_ROWS = 16
_TINY = np.float32(1e-20)


@within
def rows_to_uint8(rows, out, scale):
    """Write rows [T, H] as scale [T] · (out - ZERO_POINT), out uint8: each row's largest magnitude is 127."""
    count, width = rows.shape
    for t in range(count):
        top = i32(0)
        for c in range(width):
            top = max(top, i32(f32(rows[t, c]).view(i32) & MAGNITUDE))
        step = max(i32(top).view(f32), _TINY) / f32(127)
        inverse = f32(1) / step
        scale[t] = step
        for c in range(width):
            out[t, c] = np.uint8(i32(rows[t, c] * inverse + f32(ZERO_POINT + 0.5)))


@within
def activations_to_uint8(values, top, squares, peaks, indices, excess, out):
    """Write a row of activations as scale · out - GELU_MINIMUM, given its largest number's bits and its sum of squares.

    Numbers above OUTLIER times the root mean square are cut off there; `indices` and `excess` say
    where and by how much. Return the count of outliers and the scale.
    """
    width, largest = len(out), i32(top).view(f32)
    limit = min(largest, f32(OUTLIER) * np.sqrt(squares / f32(width)))
    count = note_and_count_outliers(values, limit, peaks, indices, excess) if largest > limit else 0
    step = (limit + f32(GELU_MINIMUM)) / f32(255)
    inverse = f32(1) / step
    offset = f32(GELU_MINIMUM) * inverse + f32(0.5)
    for c in range(width):
        out[c] = np.uint8(i32(min(values[c], limit) * inverse + offset))
    return count, step


@within
def note_and_count_outliers(values, limit, peaks, indices, excess):
    """Note where values exceed `limit` and by how much; return how many. Read as a table, whose columns are searched first."""
    columns, count = len(peaks), 0
    for c in range(columns):
        peaks[c] = f32(0)
    for r in range(TABLE_ROWS):
        for c in range(columns):
            peaks[c] = max(peaks[c], values[r * columns + c])
    for c in range(columns):
        if peaks[c] > limit:
            for r in range(TABLE_ROWS):
                index = r * columns + c
                if values[index] > limit:
                    indices[count], excess[count] = index, values[index] - limit
                    count += 1
    return count
