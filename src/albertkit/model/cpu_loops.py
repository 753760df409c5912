"""Compiled loops over bfloat16 on the CPU for what torch is slow at there: gelu, a vocabulary's exponentials, short attention.

torch computes each step of them over all of a tensor, in memory, or one number after the other, and attention with some calls
for each sequence. Milliseconds on two cores of an Intel Xeon, torch's in brackets: gelu of 1,808 x 3,072 numbers 1.6 (5.6), its
gradient 2.0 (5.9), largest, exponentials and sums of 614 x 30,000 logits 6.9 (47), attention of 32 sentences of SST-2, base,
forward and backward 2.8 (8.3). Bits do not depend on the number of threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from albertkit.jit import Helpers, compiled, from_bfloat16

# No "nnan": a training looks for what is not finite, and such numbers must stay what they are.
_FAST = {"contract", "reassoc", "nsz", "arcp"}
_loops = partial(compiled, fastmath=_FAST)
_inline = numba.njit(inline="always", error_model="numpy", fastmath=_FAST)
_within = numba.njit(forceinline=True, error_model="numpy", fastmath=_FAST)
_f32, _i32, _u32, _i16 = np.float32, np.int32, np.uint32, np.int16

_PARTS = 8  # of the work of a thread: another takes what one whose core is taken away has not begun
_WORTH = 100_000  # numbers: for fewer, torch is done while a thread wakes up
# Powers of two below it count as it: products with numbers below 2^-126 are ten times as slow.
_LEAST = np.float32(-100)
_LOG2_E = np.float32(1.442695041)
_FAR = np.float32(50)  # gelu of less is 0, of more its argument; the square of what is much larger is infinite
# gelu(x) = x / (1 + 2^z), z = x (a + b x^2), from 0.5 (1 + tanh y) = 1 / (1 + exp(-2y)), y = sqrt(2/pi) (x + 0.044715 x^3)
_A, _B = np.float32(1.5957691216), np.float32(0.0713548162)
_INFINITE, _LEAST_FINITE = 0x7F80, -0x7F81  # plus and minus infinity as `_ordered` counts


def is_supported_by_loops(values: Tensor) -> bool:
    """Return whether the loops take a tensor: bfloat16 on the CPU, all of it in one piece."""
    is_held = values.dtype == torch.bfloat16 and values.device.type == "cpu" and values.is_contiguous()
    return is_held and values.numel() >= _WORTH and not torch.compiler.is_compiling()


def gelu_new(values: Tensor) -> Tensor:
    """Apply gelu in its tanh form, which is Google's."""
    return _Gelu.apply(values) if is_supported_by_loops(values) else F.gelu(values, approximate="tanh")


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        out = torch.empty_like(values)
        _in_parts(partial(_gelu, _bits(values), _bits(out)), values.numel())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        out = torch.empty_like(values)
        _in_parts(partial(_gelu_gradient, _bits(values), _bits(grad.contiguous()), _bits(out)), values.numel())
        return out


def exponentials_in_place(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace logits [P, V] by exp(logit - largest of its row), as `heads.exponentials_in_place` does."""
    least, most = target.aminmax()
    if least < 0 or most >= logits.shape[1]:  # a compiled loop would read what is not a logit
        raise IndexError(f"labels go from {least} to {most}, there are {logits.shape[1]} logits")
    totals, losses, right = torch.empty(3, len(logits))
    labels, found = target.contiguous().numpy(), (totals.numpy(), losses.numpy(), right.numpy())
    _in_parts(partial(_exponentials, _rows(logits), labels, *found), len(logits))
    return totals[:, None], losses.sum(), right.sum().long()


def short_attention(qkv: Tensor, lengths: Sequence[int], num_heads: int) -> Tensor:
    """Return the context [T, H] of short sequences, as `attention.packed_attention` does without dropout.

    Args:
        qkv: bfloat16 [T, 3H], as `fits` wants it.
        lengths: Of the sequences.
        num_heads: A; H is divisible by it.
    """
    starts = np.append(0, np.cumsum(lengths))
    if starts[-1] != len(qkv):  # a compiled loop would read what is not a token
        raise ValueError(f"the sequences have {starts[-1]} tokens, qkv has {len(qkv)} rows")
    return _ShortAttention.apply(qkv, starts, num_heads)


class _ShortAttention(torch.autograd.Function):
    """Nothing is kept but the input: scores of short sequences are sooner computed than read."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, starts: np.ndarray, num_heads: int) -> Tensor:
        ctx.save_for_backward(qkv)
        ctx.starts, ctx.num_heads = starts, num_heads
        context = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
        units = (len(starts) - 1) * num_heads
        _in_parts(partial(_attend, _rows(qkv), starts, num_heads, _rows(context)), units)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (qkv,), out = ctx.saved_tensors, torch.empty_like(ctx.saved_tensors[0])
        units = (len(ctx.starts) - 1) * ctx.num_heads
        given = (_rows(qkv), ctx.starts, ctx.num_heads, _rows(grad.contiguous()), _rows(out))
        _in_parts(partial(_attend_backward, *given), units)
        return out, None, None


def _rows(values: Tensor) -> np.ndarray:
    return _bits(values).reshape(values.shape)


def _bits(values: Tensor) -> np.ndarray:
    return values.detach().view(torch.uint16).numpy().reshape(-1)


# --- loops ------------------------------------------------------------------------------------------------------------


@_inline
def _as_bfloat16(value):
    word = _f32(value).view(_u32)
    return np.uint16(_u32(word + _u32(0x7FFF) + _u32(_u32(word >> _u32(16)) & _u32(1))) >> _u32(16))


@_inline
def _exp2(x):
    """Two to the x, relative error 7.5e-8: a polynomial of what is above the whole number below."""
    whole = np.floor(x)
    above = x - whole
    p = _f32(0.00187757667) * above + _f32(0.00898934009)
    p = (p * above + _f32(0.0558263181)) * above + _f32(0.240153617)
    p = (p * above + _f32(0.693153073)) * above + _f32(0.999999925)
    return p * _i32(_i32(_i32(whole) + _i32(127)) << _i32(23)).view(_f32)


@_inline
def _sigmoid(x):
    """Return 1 / (1 + 2^z), so that x times it is gelu."""
    z = x * (-_A * _LOG2_E - _B * _LOG2_E * x * x)
    return _f32(1) / (_f32(1) + _exp2(min(max(z, _LEAST), -_LEAST)))


@_loops
def _gelu(values, out, begin, end):
    values, out = values[begin:end], out[begin:end]  # places from 0 on: LLVM makes no vectors of others
    for n in range(len(values)):
        x = from_bfloat16(values[n])
        x = -_FAR if x < -_FAR else x
        out[n] = _as_bfloat16(x * _sigmoid(x))


@_loops
def _gelu_gradient(values, grad, out, begin, end):
    values, grad, out = values[begin:end], grad[begin:end], out[begin:end]
    for n in range(len(values)):
        x = from_bfloat16(values[n])
        x = -_FAR if x < -_FAR else _FAR if x > _FAR else x
        s = _sigmoid(x)
        out[n] = _as_bfloat16(from_bfloat16(grad[n]) * (s + x * s * (_f32(1) - s) * (_A + _f32(3) * _B * x * x)))


@_inline
def _ordered(bits):
    """Return bits of a bfloat16 as an int16 that is in the order of the numbers; its own inverse."""
    return _i16(bits ^ _i16(_i16(bits >> _i16(15)) & _i16(0x7FFF)))


@_loops
def _exponentials(logits, labels, totals, losses, right, begin, end):
    """Write exponentials of rows begin to end over the logits, their sums, cross-entropies, and whether the label is largest.

    Of equal logits the first counts. A row that holds NaN or infinity gets NaN for both.
    """
    for r in range(begin, end):
        row, label = logits[r], labels[r]
        signed, most, least = row.view(_i16), _i16(-32768), _i16(32767)
        for c in range(len(row)):
            key = _ordered(signed[c])
            most, least = max(most, key), min(least, key)
        right[r] = 0
        if most >= _INFINITE or least < _LEAST_FINITE:
            totals[r] = losses[r] = np.nan
            continue
        top, own = from_bfloat16(np.uint16(_ordered(most))), from_bfloat16(row[label])
        if own == top:
            first = 0
            while from_bfloat16(row[first]) != top:
                first += 1
            right[r] = first == label
        total = _f32(0)
        for c in range(len(row)):
            value = _exp2(max((from_bfloat16(row[c]) - top) * _LOG2_E, _LEAST))
            total += value
            row[c] = _as_bfloat16(value)
        totals[r] = total
        losses[r] = np.log(total) + top - own


@_within
def _read(rows, start, length, left, size, factor, out):
    """Write factor times the numbers left to left + size of some rows into out fp32 [length, size]."""
    for i in range(length):
        row = rows[start + i, left : left + size]
        for d in range(size):
            out[i, d] = from_bfloat16(row[d]) * factor


@_within
def _shares_of(query, keys, length, shares):
    """Write the softmax of a query's scores with some keys into shares."""
    top, total = _f32(-np.inf), _f32(0)
    for j in range(length):
        shares[j] = _dot(query, keys[j])
        top = max(top, shares[j])
    for j in range(length):
        shares[j] = _exp2(max((shares[j] - top) * _LOG2_E, _LEAST))  # in this order NaN stays
        total += shares[j]
    for j in range(length):
        shares[j] /= total


@_within
def _dot(first, second):
    total = _f32(0)
    for d in range(len(first)):
        total += first[d] * second[d]
    return total


@_within
def _add(factor, values, out):
    for d in range(len(out)):
        out[d] += factor * values[d]


@_loops
def _attend(qkv, starts, num_heads, context, begin, end):
    """Write the context of heads of sequences: unit n is head n % A of sequence n // A."""
    width = qkv.shape[1] // 3
    size, most = width // num_heads, np.max(starts[1:] - starts[:-1])
    query, keys, values = np.empty((most, size), _f32), np.empty((most, size), _f32), np.empty((most, size), _f32)
    shares, row = np.empty(most, _f32), np.empty(size, _f32)
    for unit in range(begin, end):
        sequence, left = unit // num_heads, unit % num_heads * size
        start, length = starts[sequence], starts[sequence + 1] - starts[sequence]
        _read(qkv, start, length, left, size, _f32(1 / np.sqrt(size)), query)
        _read(qkv, start, length, width + left, size, _f32(1), keys)
        _read(qkv, start, length, 2 * width + left, size, _f32(1), values)
        for i in range(length):
            _shares_of(query[i], keys, length, shares)
            row[:] = 0
            for j in range(length):
                _add(shares[j], values[j], row)
            target = context[start + i, left : left + size]
            for d in range(size):
                target[d] = _as_bfloat16(row[d])


@_loops
def _attend_backward(qkv, starts, num_heads, grad, out, begin, end):
    """Write the gradient of qkv from that of the context, for the same units."""
    width = qkv.shape[1] // 3
    size, most = width // num_heads, np.max(starts[1:] - starts[:-1])
    factor = _f32(1 / np.sqrt(size))
    query, keys, values = np.empty((most, size), _f32), np.empty((most, size), _f32), np.empty((most, size), _f32)
    given, grads = np.empty((most, size), _f32), np.empty((3, most, size), _f32)
    shares, slopes = np.empty(most, _f32), np.empty(most, _f32)
    for unit in range(begin, end):
        sequence, left = unit // num_heads, unit % num_heads * size
        start, length = starts[sequence], starts[sequence + 1] - starts[sequence]
        _read(qkv, start, length, left, size, factor, query)
        _read(qkv, start, length, width + left, size, _f32(1), keys)
        _read(qkv, start, length, 2 * width + left, size, _f32(1), values)
        _read(grad, start, length, left, size, _f32(1), given)
        grads[:, :length] = 0
        for i in range(length):
            _shares_of(query[i], keys, length, shares)
            mean = _f32(0)
            for j in range(length):
                slopes[j] = _dot(given[i], values[j])
                mean += shares[j] * slopes[j]
            for j in range(length):
                slope = shares[j] * (slopes[j] - mean)
                _add(slope, keys[j], grads[0, i])
                _add(slope, query[i], grads[1, j])
                _add(shares[j], given[i], grads[2, j])
        for part in range(3):
            scale = factor if part == 0 else _f32(1)  # the queries in `query` have it already
            for i in range(length):
                target = out[start + i, part * width + left : part * width + left + size]
                for d in range(size):
                    target[d] = _as_bfloat16(grads[part, i, d] * scale)


# --- threads ----------------------------------------------------------------------------------------------------------

_HELPERS = Helpers("albertkit-loops")


def _in_parts(work: Callable[[int, int], None], size: int) -> None:
    """Call work(begin, end) until 0 to size is done, in as many threads as torch uses; work releases the GIL."""
    threads = torch.get_num_threads()
    parts = min(size, _PARTS * threads if threads > 1 else 1)
    numbers = count()

    def take() -> None:
        while (n := next(numbers)) < parts:
            work(size * n // parts, size * (n + 1) // parts)

    others: list[Future[None]] = []
    if threads > 1:
        others = [_HELPERS.submit(threads - 1, take) for _ in range(threads - 1)]
    take()
    for other in others:
        if not other.cancel():  # it has begun: it may be at the last part
            other.result()
