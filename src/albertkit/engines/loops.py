"""What happens between the matrix products of a layer, as compiled loops: one pass over the rows each.

T tokens, H hidden, I feed-forward, A heads of width D; N sequences laid out in P places each, P at least the longest.

bfloat16 is passed as uint16, its bits. Every row has a scale of its own, so a text's vector does not depend on its company.
Microseconds a token and pass on one Zen 4 core at H 768, sentences of 34, caches as the products leave them: the four
products take 35 in int8 and 69 in bf16; `activation_to_uint8` 2.1, `add_outliers` 0.4, `add_norm` 0.5 for both,
`to_uint8` 0.3; `to_heads` 0.9, the two products of attention 1.8, `softmax` 0.5, `from_heads` 0.2.

Written so that LLVM vectorises them: no call in a loop (hence `_exp`), and the largest number is found among the bits of
floats read as integers, because a maximum of floats is not recognised as a reduction (0.58 against 0.09 ns a number).
"""

from functools import partial

import numba
import numpy as np

from albertkit.tokenizer.compiled import compiled

_FAST = {"contract", "reassoc", "nsz", "arcp", "nnan"}
_loops = partial(compiled, fastmath=_FAST)
_inline = numba.njit(inline="always", error_model="numpy", fastmath=_FAST)

ZERO_POINT = 128  # of `to_uint8`
GELU_MINIMUM = 0.1701  # no gelu, with erf or tanh, is below minus this
# Feed-forward activations of trained models have a few numbers a row that are 20 to 30 times its root mean square, and one scale
# must serve them and the rest. Cosine of the worst [CLS] of 100 texts to fp32, a pretrained model with H 256: 0.9957 with all in
# uint8, 0.9989 with those above 8 apart, 0.9996 above 5 (4 numbers a row of 1024), 0.9997 above 4.
OUTLIER = 5.0
MOST_OUTLIERS = 1 / OUTLIER**2  # more than this share of a row cannot be so far above its root mean square
_TABLE_ROWS = 16  # of `_note_outliers`: known to the compiler, 3,072 numbers take 0.4 microseconds instead of 1.5
_ROWS_AT_ONCE = 8  # of `to_heads`: fewer pages touched in turn, 0.9 microseconds instead of 1.4 between products

_f32, _i32, _u32 = np.float32, np.int32, np.uint32
_MAGNITUDE = np.int32(0x7FFFFFFF)
_TINY = np.float32(1e-20)


@_inline
def _float(bits):  # type: ignore[no-untyped-def]
    """bfloat16 to float32."""
    return _u32(_u32(bits) << _u32(16)).view(_f32)


@_inline
def _bits(value):  # type: ignore[no-untyped-def]
    """float32 to the nearest bfloat16, ties to even."""
    word = _f32(value).view(_u32)
    return np.uint16(_u32(_u32(word + _u32(0x7FFF)) + _u32(_u32(word >> _u32(16)) & _u32(1))) >> _u32(16))


@_inline
def _ordered(value):  # type: ignore[no-untyped-def]
    """A float's bits as an integer that compares as the float does; its own inverse."""
    word = _i32(value)
    return _i32(word ^ _i32(_i32(word >> _i32(31)) & _MAGNITUDE))


@_inline
def _exp(x):  # type: ignore[no-untyped-def]
    """e to the x for -87 < x < 87, relative error 2e-7: a power of two and a polynomial on [-0.5, 0.5]."""
    shifted = x * _f32(1.442695040888963) + _f32(160)  # above 0, where rounding down is truncation
    whole = _i32(shifted + _f32(0.5))
    f = shifted - _f32(whole)
    p = _f32(0.00132669799) * f + _f32(0.0096754694)
    p = p * f + _f32(0.0555074268)
    p = p * f + _f32(0.240221216)
    p = p * f + _f32(0.693146949)
    p = p * f + _f32(1)
    return _i32(_i32(whole - _i32(33)) << _i32(23)).view(_f32) * p  # 33: 160 less the exponent's bias


@_loops
def add_norm(update, scale, bias, hidden, weight, shift, eps):  # type: ignore[no-untyped-def]
    """hidden [T, H] becomes the layer norm of hidden + scale · update + bias; update uint16 [T, H], scale [T]."""
    rows, width = hidden.shape
    for t in range(rows):
        s, total = scale[t], _f32(0)
        for c in range(width):
            value = _float(update[t, c]) * s + bias[c] + hidden[t, c]
            hidden[t, c] = value
            total += value
        mean = total / _f32(width)
        squares = _f32(0)
        for c in range(width):
            difference = hidden[t, c] - mean
            squares += difference * difference
        factor = _f32(1) / np.sqrt(squares / _f32(width) + eps)
        for c in range(width):
            hidden[t, c] = (hidden[t, c] - mean) * factor * weight[c] + shift[c]


@_loops
def to_uint8(rows, out, scale):  # type: ignore[no-untyped-def]
    """rows [T, H] as scale [T] · (out - ZERO_POINT), out uint8: each row's largest magnitude is 127."""
    count, width = rows.shape
    for t in range(count):
        top = _i32(0)
        for c in range(width):
            top = max(top, _i32(_f32(rows[t, c]).view(_i32) & _MAGNITUDE))
        step = max(_i32(top).view(_f32), _TINY) / _f32(127)
        inverse = _f32(1) / step
        scale[t] = step
        for c in range(width):
            out[t, c] = np.uint8(_i32(rows[t, c] * inverse + _f32(ZERO_POINT + 0.5)))


@_loops
def activation_to_uint8(inner, scale, bias, kind, out, out_scale, outliers):  # type: ignore[no-untyped-def]
    """The activation of scale · inner + bias as out_scale [T] · out - GELU_MINIMUM; inner uint16, out uint8 [T, I].

    Numbers above OUTLIER times their row's root mean square are cut off there; what they lose is left in `outliers`.

    kind 0: gelu by tanh. 1: gelu by erf, Abramowitz and Stegun 7.1.26, error 2e-7. 2: relu.
    """
    counts, places, excess = outliers
    rows, width = inner.shape
    columns = (width + _TABLE_ROWS - 1) // _TABLE_ROWS
    values, peaks = np.zeros(columns * _TABLE_ROWS, _f32), np.empty(columns, _f32)
    for t in range(rows):
        s, top, squares = scale[t], _i32(0), _f32(0)
        for c in range(width):
            x = _float(inner[t, c]) * s + bias[c]
            if kind == 0:
                z = x * (_f32(-1.5957691216) + _f32(-0.0713548162) * x * x)  # -2·sqrt(2/pi)·(x + 0.044715·x³)
                value = x / (_f32(1) + _exp(min(max(z, _f32(-80)), _f32(80))))
            elif kind == 1:
                y = abs(x)
                r = _f32(1) / (_f32(1) + _f32(0.23164189) * y)  # 0.3275911 / sqrt(2)
                p = _f32(0.5307027) * r - _f32(0.72657603)  # their coefficients, halved
                p = (p * r + _f32(0.71070687)) * r - _f32(0.14224837)
                p = (p * r + _f32(0.12741479)) * r
                value = max(x, _f32(0)) - y * p * _exp(max(x * x * _f32(-0.5), _f32(-80)))
            else:
                value = max(x, _f32(0))
            values[c] = value
            squares += value * value
            top = max(top, _f32(value).view(_i32))  # negative ones are negative integers
        largest = _i32(top).view(_f32)
        most = min(largest, _f32(OUTLIER) * np.sqrt(squares / _f32(width)))
        counts[t] = _note_outliers(values, most, peaks, places[t], excess[t]) if largest > most else 0
        step = (most + _f32(GELU_MINIMUM)) / _f32(255)
        inverse = _f32(1) / step
        out_scale[t] = step
        offset = _f32(GELU_MINIMUM) * inverse + _f32(0.5)
        for c in range(width):
            out[t, c] = np.uint8(_i32(min(values[c], most) * inverse + offset))


@_loops
def _note_outliers(values, most, peaks, places, excess):  # type: ignore[no-untyped-def]
    """Where values exceed `most`, and by how much; the number of them. Read as a table, whose columns are searched first."""
    columns, count = len(peaks), 0
    for c in range(columns):
        peaks[c] = _f32(0)
    for r in range(_TABLE_ROWS):
        for c in range(columns):
            peaks[c] = max(peaks[c], values[r * columns + c])
    for c in range(columns):
        if peaks[c] > most:
            for r in range(_TABLE_ROWS):
                place = r * columns + c
                if values[place] > most:
                    places[count], excess[count] = place, values[place] - most
                    count += 1
    return count


@_loops
def add_outliers(outliers, weight, hidden):  # type: ignore[no-untyped-def]
    """hidden [T, H] gets what was cut off times its rows of weight uint16 [I, H]."""
    counts, places, excess = outliers
    rows, width = hidden.shape
    for t in range(rows):
        for n in range(counts[t]):
            channel, factor = places[t, n], excess[t, n]
            for c in range(width):
                hidden[t, c] += factor * _float(weight[channel, c])


@_loops
def to_heads(product, scale, bias, starts, lengths, heads):  # type: ignore[no-untyped-def]
    """Lay scale · product + bias, uint16 [T, 3H], out by head: heads uint16 [3, N, A, P, D], zeros after a sequence."""
    _, count, num_heads, places, size = heads.shape
    for n in range(count):
        length, start = lengths[n], starts[n]
        for top in range(0, length, _ROWS_AT_ONCE):
            for j in range(3):
                for a in range(num_heads):
                    first = (j * num_heads + a) * size
                    for i in range(top, min(top + _ROWS_AT_ONCE, length)):
                        t = start + i
                        s = scale[t]
                        for d in range(size):
                            heads[j, n, a, i, d] = _bits(_float(product[t, first + d]) * s + bias[first + d])
        for j in range(3):
            for a in range(num_heads):
                for i in range(length, places):
                    for d in range(size):
                        heads[j, n, a, i, d] = np.uint16(0)


@_loops
def softmax(scores, lengths):  # type: ignore[no-untyped-def]
    """scores uint16 [N, A, P, P] become probabilities of the sequence's own tokens; rows after it are left as they are."""
    count, num_heads, places, _ = scores.shape
    row = np.empty(places, _f32)
    for n in range(count):
        length = _i32(lengths[n])
        for a in range(num_heads):
            for i in range(length):
                top = _i32(-2147483648)
                for j in range(places):
                    score = _float(scores[n, a, i, j])
                    score = score if _i32(j) < length else _f32(-1e30)
                    row[j] = score
                    top = max(top, _ordered(_f32(score).view(_i32)))
                largest = _i32(_ordered(top)).view(_f32)
                total = _f32(0)
                for j in range(places):
                    value = _exp(max(row[j] - largest, _f32(-80)))
                    value = value if _i32(j) < length else _f32(0)
                    row[j] = value
                    total += value
                share = _f32(1) / total
                for j in range(places):
                    scores[n, a, i, j] = _bits(row[j] * share)


@_loops
def from_heads(heads, starts, lengths, rows):  # type: ignore[no-untyped-def]
    """heads uint16 [N, A, P, D] back into rows f32 [T, H]."""
    count, num_heads, _, size = heads.shape
    for n in range(count):
        for i in range(lengths[n]):
            t = starts[n] + i
            for a in range(num_heads):
                for d in range(size):
                    rows[t, a * size + d] = _float(heads[n, a, i, d])
