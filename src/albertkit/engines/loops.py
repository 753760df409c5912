"""What happens between the matrix products of a layer, as compiled loops: one pass over the rows each.

T tokens, H hidden, I feed-forward, A heads of width D; N sequences laid out in P places each, P at least the longest.

bfloat16 is passed as uint16, its bits. Every row has a scale of its own, so a text's vector does not depend on its company.
Microseconds a token and pass on one Zen 4 core at H 768, sentences of 34, caches as the products leave them: the four
products take 35 in int8 and 69 in bf16; `activation_to_uint8` 2.1, `add_outliers` 0.4, `add_norm` 0.5 for both,
`to_uint8` 0.3; `to_heads` 0.9, the two products of attention 1.8, `softmax` 0.5, `from_heads` 0.2.
"""

import numpy as np

from albertkit.engines.arithmetic import (
    MAGNITUDE,
    exp,
    f32,
    from_bfloat16,
    gelu_erf,
    gelu_tanh,
    i32,
    loops,
    ordered,
    relu,
    to_bfloat16,
    within,
)

ZERO_POINT = 128  # of `to_uint8`
GELU_MINIMUM = 0.1701  # no gelu, with erf or tanh, is below minus this
# Feed-forward activations of trained models have a few numbers a row that are 20 to 30 times its root mean square, and one scale
# must serve them and the rest. Cosine of the worst [CLS] of 100 texts to fp32, a pretrained model with H 256: 0.9957 with all in
# uint8, 0.9989 with those above 8 apart, 0.9996 above 5 (4 numbers a row of 1024), 0.9997 above 4.
OUTLIER = 5.0
MOST_OUTLIERS = 1 / OUTLIER**2  # more than this share of a row cannot be so far above its root mean square
TABLE_ROWS = 16  # of `note_outliers`: known to the compiler, 3,072 numbers take 0.4 microseconds instead of 1.5
_ROWS_AT_ONCE = 8  # of `to_heads`: fewer pages touched in turn, 0.9 microseconds instead of 1.4 between products
_TINY = np.float32(1e-20)


@loops
def add_norm(update, scale, bias, hidden, weight, shift, eps):  # type: ignore[no-untyped-def]
    """hidden [T, H] becomes the layer norm of hidden + scale · update + bias; update uint16 [T, H], scale [T]."""
    rows, width = hidden.shape
    for t in range(rows):
        s, total = scale[t], f32(0)
        for c in range(width):
            value = from_bfloat16(update[t, c]) * s + bias[c] + hidden[t, c]
            hidden[t, c] = value
            total += value
        mean = total / f32(width)
        squares = f32(0)
        for c in range(width):
            difference = hidden[t, c] - mean
            squares += difference * difference
        factor = f32(1) / np.sqrt(squares / f32(width) + eps)
        for c in range(width):
            hidden[t, c] = (hidden[t, c] - mean) * factor * weight[c] + shift[c]


@loops
def to_uint8(rows, out, scale):  # type: ignore[no-untyped-def]
    """`rows_to_uint8`, for Python."""
    rows_to_uint8(rows, out, scale)


@within
def rows_to_uint8(rows, out, scale):  # type: ignore[no-untyped-def]
    """rows [T, H] as scale [T] · (out - ZERO_POINT), out uint8: each row's largest magnitude is 127."""
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


@loops
def activation_to_uint8(inner, scale, bias, kind, out, out_scale, outliers):  # type: ignore[no-untyped-def]
    """The activation of scale · inner + bias as out_scale [T] · out - GELU_MINIMUM; inner uint16, out uint8 [T, I].

    Numbers above OUTLIER times their row's root mean square are cut off there; what they lose is left in `outliers`.

    kind 0: gelu by tanh. 1: gelu by erf, Abramowitz and Stegun 7.1.26, error 2e-7. 2: relu.
    """
    counts, places, excess = outliers
    rows, width = inner.shape
    columns = (width + TABLE_ROWS - 1) // TABLE_ROWS
    values, peaks = np.zeros(columns * TABLE_ROWS, f32), np.empty(columns, f32)
    for t in range(rows):
        s, top, squares = scale[t], i32(0), f32(0)
        for c in range(width):
            x = from_bfloat16(inner[t, c]) * s + bias[c]
            if kind == 0:
                value = gelu_tanh(x)
            elif kind == 1:
                value = gelu_erf(x)
            else:
                value = relu(x)
            values[c] = value
            squares += value * value
            top = max(top, f32(value).view(i32))  # negative ones are negative integers
        counts[t], out_scale[t] = activated_to_uint8(values, top, squares, peaks, places[t], excess[t], out[t])


@within
def activated_to_uint8(values, top, squares, peaks, places, excess, out):  # type: ignore[no-untyped-def]
    """One row for `activation_to_uint8`, given its largest number's bits and its sum of squares: count of outliers, scale."""
    width, largest = len(out), i32(top).view(f32)
    most = min(largest, f32(OUTLIER) * np.sqrt(squares / f32(width)))
    count = note_outliers(values, most, peaks, places, excess) if largest > most else 0
    step = (most + f32(GELU_MINIMUM)) / f32(255)
    inverse = f32(1) / step
    offset = f32(GELU_MINIMUM) * inverse + f32(0.5)
    for c in range(width):
        out[c] = np.uint8(i32(min(values[c], most) * inverse + offset))
    return count, step


@within
def note_outliers(values, most, peaks, places, excess):  # type: ignore[no-untyped-def]
    """Where values exceed `most`, and by how much; the number of them. Read as a table, whose columns are searched first."""
    columns, count = len(peaks), 0
    for c in range(columns):
        peaks[c] = f32(0)
    for r in range(TABLE_ROWS):
        for c in range(columns):
            peaks[c] = max(peaks[c], values[r * columns + c])
    for c in range(columns):
        if peaks[c] > most:
            for r in range(TABLE_ROWS):
                place = r * columns + c
                if values[place] > most:
                    places[count], excess[count] = place, values[place] - most
                    count += 1
    return count


@loops
def add_outliers(outliers, weight, hidden):  # type: ignore[no-untyped-def]
    """hidden [T, H] gets what was cut off times its rows of weight uint16 [I, H]."""
    counts, places, excess = outliers
    rows, width = hidden.shape
    for t in range(rows):
        for n in range(counts[t]):
            channel, factor = places[t, n], excess[t, n]
            for c in range(width):
                hidden[t, c] += factor * from_bfloat16(weight[channel, c])


@loops
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
                            heads[j, n, a, i, d] = to_bfloat16(
                                from_bfloat16(product[t, first + d]) * s + bias[first + d]
                            )
        for j in range(3):
            for a in range(num_heads):
                for i in range(length, places):
                    for d in range(size):
                        heads[j, n, a, i, d] = np.uint16(0)


@loops
def softmax(scores, lengths):  # type: ignore[no-untyped-def]
    """scores uint16 [N, A, P, P] become probabilities of the sequence's own tokens; rows after it are left as they are."""
    count, num_heads, places, _ = scores.shape
    row = np.empty(places, f32)
    for n in range(count):
        length = i32(lengths[n])
        for a in range(num_heads):
            for i in range(length):
                top = i32(-2147483648)
                for j in range(places):
                    score = from_bfloat16(scores[n, a, i, j])
                    score = score if i32(j) < length else f32(-1e30)
                    row[j] = score
                    top = max(top, ordered(f32(score).view(i32)))
                largest = i32(ordered(top)).view(f32)
                total = f32(0)
                for j in range(places):
                    value = exp(max(row[j] - largest, f32(-80)))
                    value = value if i32(j) < length else f32(0)
                    row[j] = value
                    total += value
                share = f32(1) / total
                for j in range(places):
                    scores[n, a, i, j] = to_bfloat16(row[j] * share)


@loops
def from_heads(heads, starts, lengths, rows):  # type: ignore[no-untyped-def]
    """heads uint16 [N, A, P, D] back into rows f32 [T, H]."""
    count, num_heads, _, size = heads.shape
    for n in range(count):
        for i in range(lengths[n]):
            t = starts[n] + i
            for a in range(num_heads):
                for d in range(size):
                    rows[t, a * size + d] = from_bfloat16(heads[n, a, i, d])
