"""Compiled bfloat16 loops on the CPU for operations that are slow in torch: gelu, exponentials of logits, short attention.

torch computes each step of them over all of a tensor, in memory, or one number after the other, and
attention with some calls for each sequence. Milliseconds on two cores of an Intel Xeon, torch's in
brackets: gelu of 1,808 x 3,072 numbers 1.6 (5.6), its gradient 2.0 (5.9), largest, exponentials and
sums of 614 x 30,000 logits 6.9 (47), attention of 32 sentences of SST-2, base, forward and backward
2.8 (8.3). Bits do not depend on the number of threads.
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

from albertkit.jit import HelperThreads, compiled, from_bfloat16
from albertkit.model.padded import is_recorded_or_transformed

# No "nnan": training checks for NaN and infinity, so they must survive.
_FAST = {"contract", "reassoc", "nsz", "arcp"}
_loops = partial(compiled, fastmath=_FAST)
_inline = numba.njit(inline="always", error_model="numpy", fastmath=_FAST)
_within = partial(compiled, fastmath=_FAST, forceinline=True)
_f32, _i32, _u32, _i16 = np.float32, np.int32, np.uint32, np.int16

# For each thread: when the system takes a core away, other threads take its remaining parts
_PARTS = 8
_MIN_SIZE = 100_000  # numbers: torch computes fewer in the time that a thread takes to wake up
# Powers of two below it count as it: products with numbers below 2^-126 are ten times as slow.
_MIN_POWER = np.float32(-100)
_LOG2_E = np.float32(1.442695041)
# gelu of less is 0, of more its argument; the square of what is much larger is infinite
_GELU_LIMIT = np.float32(50)
# gelu(x) = x / (1 + 2^z), z = x (a + b x^2), from 0.5 (1 + tanh y) = 1 / (1 + exp(-2y)), y =
# sqrt(2/pi) (x + 0.044715 x^3)
_A, _B = np.float32(1.5957691216), np.float32(0.0713548162)
_INFINITE, _LEAST_FINITE = 0x7F80, -0x7F81  # plus and minus infinity as `_sortable_bits` counts


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse gradients of gradients, which torch's `once_differentiable` takes for constants where what arrives is one."""

    def refuse_or_run(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph
            raise RuntimeError(
                "gradients of gradients are not computed here: leave create_graph out"
            )
        return backward(ctx, *gradients)

    return refuse_or_run


def is_supported_by_loops(values: Tensor) -> bool:
    """Return whether the loops take a tensor: bfloat16 on the CPU, all of it in one piece."""
    is_held = (
        values.dtype == torch.bfloat16 and values.device.type == "cpu" and values.is_contiguous()
    )
    return is_held and values.numel() >= _MIN_SIZE and not is_recorded_or_transformed()


def gelu_new(values: Tensor) -> Tensor:
    """Apply gelu in its tanh form, which is Google's."""
    return (
        _Gelu.apply(values) if is_supported_by_loops(values) else F.gelu(values, approximate="tanh")
    )


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        out = torch.empty_like(values)
        _run_in_threads(partial(_gelu, _bfloat16_bits(values), _bfloat16_bits(out)), values.numel())
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        out = torch.empty_like(values)
        _run_in_threads(
            partial(
                _gelu_gradient,
                _bfloat16_bits(values),
                _bfloat16_bits(grad.contiguous()),
                _bfloat16_bits(out),
            ),
            values.numel(),
        )
        return out


def exponentials_and_losses_in_place(
    logits: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace logits [P, V] by exp(logit - largest of its row), as `heads.exponentials_and_losses_in_place` does."""
    lowest, highest = target.aminmax()
    if lowest < 0 or highest >= logits.shape[1]:  # a compiled loop would read outside the row
        raise IndexError(
            f"labels go from {lowest} to {highest}, there are {logits.shape[1]} logits"
        )
    totals, losses, right = torch.empty(3, len(logits))
    labels, results = target.contiguous().numpy(), (totals.numpy(), losses.numpy(), right.numpy())
    _run_in_threads(partial(_exponentials, _rows_of_bits(logits), labels, *results), len(logits))
    return totals[:, None], losses.sum(), right.sum().long()


def short_attention(qkv: Tensor, lengths: Sequence[int], num_heads: int) -> Tensor:
    """Return the context [T, H] of short sequences, as `attention.packed_attention` does without dropout.

    Args:
        qkv: bfloat16 [T, 3H], supported by the loops.
        lengths: Of the sequences.
        num_heads: A; H is divisible by it.
    """
    starts = np.append(0, np.cumsum(lengths))
    if starts[-1] != len(qkv):  # a compiled loop would read outside qkv
        raise ValueError(f"the sequences have {starts[-1]} tokens, qkv has {len(qkv)} rows")
    return _ShortAttention.apply(qkv, starts, num_heads)


class _ShortAttention(torch.autograd.Function):
    """Attention that saves only its input: scores of short sequences are computed faster than read."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, starts: np.ndarray, num_heads: int) -> Tensor:
        ctx.save_for_backward(qkv)
        ctx.starts, ctx.num_heads = starts, num_heads
        context = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
        units = (len(starts) - 1) * num_heads
        _run_in_threads(
            partial(_attend, _rows_of_bits(qkv), starts, num_heads, _rows_of_bits(context)), units
        )
        return context

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (qkv,), out = ctx.saved_tensors, torch.empty_like(ctx.saved_tensors[0])
        units = (len(ctx.starts) - 1) * ctx.num_heads
        arguments = (
            _rows_of_bits(qkv),
            ctx.starts,
            ctx.num_heads,
            _rows_of_bits(grad.contiguous()),
            _rows_of_bits(out),
        )
        _run_in_threads(partial(_attend_backward, *arguments), units)
        return out, None, None


def _rows_of_bits(values: Tensor) -> np.ndarray:
    return _bfloat16_bits(values).reshape(values.shape)


def _bfloat16_bits(values: Tensor) -> np.ndarray:
    return values.detach().view(torch.uint16).numpy().reshape(-1)


# --- loops ----------------------------------------------------------------------------------------


@_inline
def _as_bfloat16(value):
    word = _f32(value).view(_u32)
    return np.uint16(_u32(word + _u32(0x7FFF) + _u32(_u32(word >> _u32(16)) & _u32(1))) >> _u32(16))


@_inline
def _exp2(x):
    """Return two to the x, relative error 7.5e-8: a polynomial of the fraction, shifted by the exponent."""
    exponent = np.floor(x)
    fraction = x - exponent
    p = _f32(0.00187757667) * fraction + _f32(0.00898934009)
    p = (p * fraction + _f32(0.0558263181)) * fraction + _f32(0.240153617)
    p = (p * fraction + _f32(0.693153073)) * fraction + _f32(0.999999925)
    return p * _i32(_i32(_i32(exponent) + _i32(127)) << _i32(23)).view(_f32)


@_inline
def _gelu_factor(x):
    """Return 1 / (1 + 2^z), so that x times it is gelu."""
    z = x * (-_A * _LOG2_E - _B * _LOG2_E * x * x)
    return _f32(1) / (_f32(1) + _exp2(min(max(z, _MIN_POWER), -_MIN_POWER)))


@_loops
def _gelu(values, out, begin, end):
    values, out = values[begin:end], out[begin:end]  # indices from 0 on: LLVM vectorises no others
    for n in range(len(values)):
        x = from_bfloat16(values[n])
        x = -_GELU_LIMIT if x < -_GELU_LIMIT else x
        out[n] = _as_bfloat16(x * _gelu_factor(x))


@_loops
def _gelu_gradient(values, grad, out, begin, end):
    values, grad, out = values[begin:end], grad[begin:end], out[begin:end]
    for n in range(len(values)):
        x = from_bfloat16(values[n])
        x = -_GELU_LIMIT if x < -_GELU_LIMIT else x  # no min and max: they would drop NaN
        x = _GELU_LIMIT if x > _GELU_LIMIT else x
        s = _gelu_factor(x)
        out[n] = _as_bfloat16(
            from_bfloat16(grad[n]) * (s + x * s * (_f32(1) - s) * (_A + _f32(3) * _B * x * x))
        )


@_inline
def _sortable_bits(bits):
    """Return bits of a bfloat16 as an int16 that is in the order of the numbers; its own inverse."""
    return _i16(bits ^ _i16(_i16(bits >> _i16(15)) & _i16(0x7FFF)))


@_loops
def _exponentials(logits, labels, totals, losses, right, begin, end):
    """Write exponentials of rows begin to end over the logits, their sums, cross-entropies, and whether the label is largest.

    Of equal logits the first counts. A row that holds NaN or infinity gets NaN for both.
    """
    for r in range(begin, end):
        row, label = logits[r], labels[r]
        signed, max_key, min_key = row.view(_i16), _i16(-32768), _i16(32767)
        for c in range(len(row)):
            key = _sortable_bits(signed[c])
            max_key, min_key = max(max_key, key), min(min_key, key)
        right[r] = 0
        if max_key >= _INFINITE or min_key < _LEAST_FINITE:
            totals[r] = losses[r] = np.nan
            continue
        top, label_logit = (
            from_bfloat16(np.uint16(_sortable_bits(max_key))),
            from_bfloat16(row[label]),
        )
        if label_logit == top:
            first = 0
            while from_bfloat16(row[first]) != top:
                first += 1
            right[r] = first == label
        total = _f32(0)
        for c in range(len(row)):
            value = _exp2(max((from_bfloat16(row[c]) - top) * _LOG2_E, _MIN_POWER))
            total += value
            row[c] = _as_bfloat16(value)
        totals[r] = total
        losses[r] = np.log(total) + top - label_logit


@_within
def _read_scaled(rows, start, length, first_column, size, factor, out):
    """Write factor times `size` columns of some rows into out fp32 [length, size]."""
    for i in range(length):
        row = rows[start + i, first_column : first_column + size]
        for d in range(size):
            out[i, d] = from_bfloat16(row[d]) * factor


@_within
def _write_softmax(query, keys, length, shares):
    """Write the softmax of a query's scores with some keys into shares."""
    top, total = _f32(-np.inf), _f32(0)
    for j in range(length):
        shares[j] = _dot(query, keys[j])
        top = max(top, shares[j])
    for j in range(length):
        shares[j] = _exp2(max((shares[j] - top) * _LOG2_E, _MIN_POWER))  # in this order NaN stays
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
    size, max_length = width // num_heads, np.max(starts[1:] - starts[:-1])
    query, keys, values = (
        np.empty((max_length, size), _f32),
        np.empty((max_length, size), _f32),
        np.empty((max_length, size), _f32),
    )
    shares, row = np.empty(max_length, _f32), np.empty(size, _f32)
    for unit in range(begin, end):
        sequence, first_column = unit // num_heads, unit % num_heads * size
        start, length = starts[sequence], starts[sequence + 1] - starts[sequence]
        _read_scaled(qkv, start, length, first_column, size, _f32(1 / np.sqrt(size)), query)
        _read_scaled(qkv, start, length, width + first_column, size, _f32(1), keys)
        _read_scaled(qkv, start, length, 2 * width + first_column, size, _f32(1), values)
        for i in range(length):
            _write_softmax(query[i], keys, length, shares)
            row[:] = 0
            for j in range(length):
                _add(shares[j], values[j], row)
            target = context[start + i, first_column : first_column + size]
            for d in range(size):
                target[d] = _as_bfloat16(row[d])


@_loops
def _attend_backward(qkv, starts, num_heads, grad, out, begin, end):
    """Write the gradient of qkv from that of the context, for the same units."""
    width = qkv.shape[1] // 3
    size, max_length = width // num_heads, np.max(starts[1:] - starts[:-1])
    factor = _f32(1 / np.sqrt(size))
    query, keys, values = (
        np.empty((max_length, size), _f32),
        np.empty((max_length, size), _f32),
        np.empty((max_length, size), _f32),
    )
    grad_rows, grads = np.empty((max_length, size), _f32), np.empty((3, max_length, size), _f32)
    shares, slopes = np.empty(max_length, _f32), np.empty(max_length, _f32)
    for unit in range(begin, end):
        sequence, first_column = unit // num_heads, unit % num_heads * size
        start, length = starts[sequence], starts[sequence + 1] - starts[sequence]
        _read_scaled(qkv, start, length, first_column, size, factor, query)
        _read_scaled(qkv, start, length, width + first_column, size, _f32(1), keys)
        _read_scaled(qkv, start, length, 2 * width + first_column, size, _f32(1), values)
        _read_scaled(grad, start, length, first_column, size, _f32(1), grad_rows)
        grads[:, :length] = 0
        for i in range(length):
            _write_softmax(query[i], keys, length, shares)
            mean = _f32(0)
            for j in range(length):
                slopes[j] = _dot(grad_rows[i], values[j])
                mean += shares[j] * slopes[j]
            for j in range(length):
                slope = shares[j] * (slopes[j] - mean)
                _add(slope, keys[j], grads[0, i])
                _add(slope, query[i], grads[1, j])
                _add(shares[j], grad_rows[i], grads[2, j])
        for part in range(3):
            scale = factor if part == 0 else _f32(1)  # the queries in `query` have it already
            for i in range(length):
                target = out[
                    start + i, part * width + first_column : part * width + first_column + size
                ]
                for d in range(size):
                    target[d] = _as_bfloat16(grads[part, i, d] * scale)


# --- threads --------------------------------------------------------------------------------------

_HELPERS = HelperThreads("albertkit-loops")


def _run_in_threads(work: Callable[[int, int], None], size: int) -> None:
    """Call work(begin, end) until 0 to size is done, in as many threads as torch uses; work releases the GIL."""
    threads = torch.get_num_threads()
    parts = min(size, _PARTS * threads if threads > 1 else 1)
    numbers = count()

    def take() -> None:
        while (n := next(numbers)) < parts:
            work(size * n // parts, size * (n + 1) // parts)

    futures: list[Future[None]] = []
    if threads > 1:
        futures = [_HELPERS.submit(threads - 1, take) for _ in range(threads - 1)]
    take()
    for future in futures:
        if not future.cancel():  # it has started, and may be at the last part
            future.result()
