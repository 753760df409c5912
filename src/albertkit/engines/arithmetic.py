"""Numbers inside compiled loops: bfloat16 as its bits, exponentials and activations that LLVM turns into vectors.

No call may stay in a loop that is to be vectorised (hence `exp`), and the largest number is found among the bits of floats read
as integers, because a maximum of floats is not recognised as a reduction (0.58 against 0.09 ns a number).
"""

from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from albertkit.tokenizer.compiled import compiled

_FAST = {"contract", "reassoc", "nsz", "arcp", "nnan"}
loops = partial(compiled, fastmath=_FAST)  # decorator of what Python calls
inline = numba.njit(inline="always", error_model="numpy", fastmath=_FAST)  # of a formula within a loop
# Of loops that other loops consist of. LLVM puts them into their callers: as functions they would exist twice, optimised alone
# and in company, with sums in two orders, and which of the two runs would depend on what the process has loaded before.
WITHIN: Any = {"forceinline": True, "error_model": "numpy", "fastmath": _FAST}
within = numba.njit(**WITHIN)

f32, i32, u32 = np.float32, np.int32, np.uint32
MAGNITUDE = np.int32(0x7FFFFFFF)  # a float's bits without its sign


@inline
def from_bfloat16(bits):  # type: ignore[no-untyped-def]
    """bfloat16 to float32."""
    return u32(u32(bits) << u32(16)).view(f32)


@inline
def to_bfloat16(value):  # type: ignore[no-untyped-def]
    """float32 to the nearest bfloat16, ties to even."""
    word = f32(value).view(u32)
    return np.uint16(u32(u32(word + u32(0x7FFF)) + u32(u32(word >> u32(16)) & u32(1))) >> u32(16))


@intrinsic
def as_held(context, array, value):  # type: ignore[no-untyped-def]
    """A float32 as the array's numbers are held: itself, or the nearest bfloat16's bits for uint16.

    Not a function that numba chooses by type, since what such a function calls is not vectorised.
    """
    held = array.dtype

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        if held == types.float32:
            return arguments[1]

        def number(value: int) -> Any:
            return ir.Constant(ir.IntType(32), value)

        word = builder.bitcast(arguments[1], ir.IntType(32))
        odd = builder.and_(builder.lshr(word, number(16)), number(1))
        rounded = builder.add(builder.add(word, number(0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, number(16)), ir.IntType(16))

    return held(array, types.float32), generate


@intrinsic
def as_float(context, array, held):  # type: ignore[no-untyped-def]
    """The inverse of `as_held`."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        if array.dtype == types.float32:
            return arguments[1]
        word = builder.zext(arguments[1], ir.IntType(32))
        return builder.bitcast(builder.shl(word, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(array, array.dtype), generate


@inline
def ordered(value):  # type: ignore[no-untyped-def]
    """A float's bits as an integer that compares as the float does; its own inverse."""
    word = i32(value)
    return i32(word ^ i32(i32(word >> i32(31)) & MAGNITUDE))


@inline
def exp(x):  # type: ignore[no-untyped-def]
    """e to the x for -87 < x < 87, relative error 2e-7: a power of two and a polynomial on [-0.5, 0.5]."""
    shifted = x * f32(1.442695040888963) + f32(160)  # above 0, where rounding down is truncation
    whole = i32(shifted + f32(0.5))
    f = shifted - f32(whole)
    p = f32(0.00132669799) * f + f32(0.0096754694)
    p = p * f + f32(0.0555074268)
    p = p * f + f32(0.240221216)
    p = p * f + f32(0.693146949)
    p = p * f + f32(1)
    return i32(i32(whole - i32(33)) << i32(23)).view(f32) * p  # 33: 160 less the exponent's bias


@inline
def gelu_tanh(x):  # type: ignore[no-untyped-def]
    """gelu by tanh, as Google's."""
    z = x * (f32(-1.5957691216) + f32(-0.0713548162) * x * x)  # -2·sqrt(2/pi)·(x + 0.044715·x³)
    return x / (f32(1) + exp(min(max(z, f32(-80)), f32(80))))


@inline
def gelu_erf(x):  # type: ignore[no-untyped-def]
    """gelu by erf: Abramowitz and Stegun 7.1.26, error 2e-7."""
    y = abs(x)
    r = f32(1) / (f32(1) + f32(0.23164189) * y)  # 0.3275911 / sqrt(2)
    p = f32(0.5307027) * r - f32(0.72657603)  # their coefficients, halved
    p = (p * r + f32(0.71070687)) * r - f32(0.14224837)
    p = (p * r + f32(0.12741479)) * r
    return max(x, f32(0)) - y * p * exp(max(x * x * f32(-0.5), f32(-80)))


@inline
def relu(x):  # type: ignore[no-untyped-def]
    """The larger of 0 and x."""
    return max(x, f32(0))
