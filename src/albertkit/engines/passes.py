"""All passes of a piece of text in one compiled loop.

What a layer does between its four matrix products is done on rows that are still in the cache, and a thread takes a few rows
from the attention of one pass to the queries, keys and values of the next; the members of a team meet twice a pass, since
attention alone reads rows of others.

Milliseconds of 32 for one text of 128 tokens, base in int8, one Zen 5 core: products with what finishes them 27 (23 at the
tile's full rate), attention 2.6, quantizing of inner activations 1.4, everything else 0.5.

T tokens of N sequences, H hidden, I feed-forward, A heads of width D, Q tokens wanted of the last pass. In memory rows are H',
I' and 3H' wide: rounded up to COLUMNS, zeros in between. Numbers are multiplied as uint8 (by int8), as bfloat16 (uint16, its
bits) or as float32; sums are int32 or float32, everything else is fp32.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import overload

from albertkit.engines.arithmetic import (
    WITHIN,
    as_float,
    as_held,
    exp,
    f32,
    from_bfloat16,
    gelu_erf,
    gelu_tanh,
    i32,
    loops,
    ordered,
    relu,
    u32,
    within,
)
from albertkit.engines.loops import activated_to_uint8, rows_to_uint8
from albertkit.engines.team import add_atomic, meet
from albertkit.engines.tiles import COLUMNS, ROWS, VECTOR, VECTORS, tile

GELU_TANH, GELU_ERF, RELU, STORE, ADD = range(5)  # what becomes of a linear layer's output
# Rows that go through a feed-forward block together. As many as leave room in a cache of 1 MB for a panel of the outer weight.
CHUNK = 72


class Linear(NamedTuple):
    """A linear layer of O outputs; the output is scale of the row · scale · (sums - shift) + bias."""

    weight: np.ndarray  # as `tiles.pack` lays it out
    scale: np.ndarray  # fp32 [O']
    shift: np.ndarray  # int32 or fp32 [O']
    bias: np.ndarray  # fp32 [O']


class Norm(NamedTuple):
    """A layer norm."""

    weight: np.ndarray  # fp32 [H]
    shift: np.ndarray  # fp32 [H]
    eps: np.float32


class Layer(NamedTuple):
    """The weights of a pass."""

    qkv: Linear  # queries, keys and values side by side, the scores' factor in the queries
    attention_output: Linear
    attention_norm: Norm
    inner: Linear
    outer: Linear
    outer_rows: np.ndarray  # uint16 [I, H]: the outer weight transposed, for outliers of int8
    ffn_norm: Norm
    num_heads: int
    activation: int  # GELU_TANH, GELU_ERF or RELU


class Tables(NamedTuple):
    """What ids become, fp32. E' is E rounded up to COLUMNS."""

    words: np.ndarray  # [V, E]
    positions: np.ndarray  # [P, E]
    types: np.ndarray  # [2, E]
    norm: Norm
    mapping: Linear  # E to H


class Ids(NamedTuple):
    """Of T tokens, int64 each."""

    words: np.ndarray
    positions: np.ndarray
    types: np.ndarray


class Piece(NamedTuple):
    """Sequences that run through all passes together, and room for what their tokens become."""

    embedded: np.ndarray  # fp32 [T, E'], zeros
    hidden: np.ndarray  # fp32 [T, H']
    rows: np.ndarray  # [T or Q, H'], numbers as they are multiplied
    scale: np.ndarray  # fp32 [T or Q], ones but for uint8
    qkv: np.ndarray  # [T, 3H'], numbers as attention multiplies them
    context: np.ndarray  # fp32 [T or Q, H']
    starts: np.ndarray  # int64 [N + 1], of sequences
    everyone: np.ndarray  # int64 [T], 0 to T - 1
    wanted: np.ndarray  # int64 [Q], ascending
    wanted_starts: np.ndarray  # int64 [N + 1], of sequences among the wanted
    chosen: np.ndarray  # fp32 [Q, H'], the wanted tokens' last states
    meeting: np.ndarray  # of `team.meet`
    tickets: np.ndarray  # int64 [passes], zeros: how many heads are taken


class Desk(NamedTuple):
    """One thread's own room. S: the longest sequence, rounded up to COLUMNS; D': D rounded up to VECTOR."""

    sums: np.ndarray  # int32 or fp32 [ROWS, COLUMNS]
    inner: np.ndarray  # [CHUNK, I'], fp32, for bfloat16 uint16
    inner_rows: np.ndarray  # [CHUNK, I'], numbers as they are multiplied; the same memory but for uint8
    inner_scale: np.ndarray  # fp32 [CHUNK]
    places: np.ndarray  # int32 [I'], of a row's outliers
    excess: np.ndarray  # fp32 [I']
    peaks: np.ndarray  # fp32 [I' / TABLE_ROWS]
    query: np.ndarray  # [ROWS, D], as `Piece.qkv`
    keys: np.ndarray  # uint32, a word is what one step of a tile multiplies: [S · words of a head]
    values: np.ndarray  # the same: [words of S · D'], zeros
    scores: np.ndarray  # fp32 [ROWS, S]
    shares: np.ndarray  # [ROWS, S], as `Piece.qkv`
    weighted: np.ndarray  # fp32 [ROWS, COLUMNS]
    factors: np.ndarray  # fp32 [ROWS]


# --- embeddings -----------------------------------------------------------------------------------------------------


@within
def embed(ids, tables, piece, first, end, sums):  # type: ignore[no-untyped-def]
    """piece.hidden[first:end], what the first pass reads, of ids, by way of piece.embedded."""
    words, positions, kinds, norm, mapping = tables
    for t in range(first, end):
        word, position, kind = words[ids.words[t]], positions[ids.positions[t]], kinds[ids.types[t]]
        row = piece.embedded[t]
        for c in range(len(word)):
            row[c] = word[c] + position[c] + kind[c]
    normalize(piece.embedded[first:end], norm)
    multiply(piece.embedded[first:end], piece.scale[first:end], mapping, sums, STORE, piece.hidden[first:end])


# --- linear layers ----------------------------------------------------------------------------------------------------


@within
def multiply(rows, scale, linear, sums, finish, out):  # type: ignore[no-untyped-def]
    """A linear layer of rows [t, I'] with scale [t] to out [t, O'], finished as one of the constants above says.

    A panel of the weight stays in the cache for all rows, while the next one is fetched.
    """
    weight, column_scale, shift, bias = linear
    panels = len(bias) // COLUMNS
    size = len(weight) // panels
    steps = size * weight.itemsize // (4 * COLUMNS)
    for p in range(panels):
        left, right = p * COLUMNS, (p + 1) * COLUMNS
        scales, shifts, biases = column_scale[left:right], shift[left:right], bias[left:right]
        for top in range(0, len(rows), ROWS):
            count = min(ROWS, len(rows) - top)
            ahead = (p + 1) * size + top // ROWS * (size // VECTORS)
            tile(rows, top, count, weight, p * size, VECTORS, steps, ahead, sums)
            for i in range(count):
                s, found, target = scale[top + i], sums[i], out[top + i, left:right]
                for c in range(COLUMNS):
                    value = f32(found[c] - shifts[c]) * (scales[c] * s) + biases[c]
                    if finish == ADD:
                        value += as_float(target, target[c])
                    elif finish == GELU_TANH:
                        value = gelu_tanh(value)
                    elif finish == GELU_ERF:
                        value = gelu_erf(value)
                    elif finish == RELU:
                        value = relu(value)
                    target[c] = as_held(target, value)


@loops
def multiply_once(source, rows, scale, linear, sums, out):  # type: ignore[no-untyped-def]
    """out [t, O'] becomes the linear layer of fp32 source [t, I'], by way of rows and scale: for Python."""
    prepare(source, rows, scale)
    multiply(rows, scale, linear, sums, STORE, out)


# --- rows as they are multiplied --------------------------------------------------------------------------------------


def prepare(source: Any, rows: Any, scale: Any) -> None:
    """rows [t, H'], and for uint8 their scales [t], become the numbers of fp32 source [t, H']."""


@overload(prepare, jit_options=WITHIN)
def _overload_prepare(source, rows, scale):  # type: ignore[no-untyped-def]
    if rows.dtype == types.uint8:
        return lambda source, rows, scale: rows_to_uint8(source, rows, scale)

    def prepare_rows(source, rows, scale):  # type: ignore[no-untyped-def]
        for t in range(len(rows)):
            given, row = source[t], rows[t]
            for c in range(len(row)):
                row[c] = as_held(row, given[c])

    return prepare_rows


def prepare_inner(desk: Any, outer_rows: Any, hidden: Any) -> None:
    """The first of desk.inner_rows become the numbers of desk.inner; what outliers add to the rows hidden [t, H'] is added."""


@overload(prepare_inner, jit_options=WITHIN)
def _overload_prepare_inner(desk, outer_rows, hidden):  # type: ignore[no-untyped-def]
    if desk.types[Desk._fields.index("inner_rows")].dtype != types.uint8:
        return lambda desk, outer_rows, hidden: None

    def prepare_rows(desk, outer_rows, hidden):  # type: ignore[no-untyped-def]
        for t in range(len(hidden)):
            values, row, top, squares = desk.inner[t], hidden[t], i32(0), f32(0)
            for c in range(len(values)):
                squares += values[c] * values[c]
                top = max(top, f32(values[c]).view(i32))  # negative ones are negative integers
            outliers, desk.inner_scale[t] = activated_to_uint8(
                values, top, squares, desk.peaks, desk.places, desk.excess, desk.inner_rows[t]
            )
            for n in range(outliers):
                factor, weights = desk.excess[n], outer_rows[desk.places[n]]
                for c in range(len(weights)):
                    row[c] += factor * from_bfloat16(weights[c])

    return prepare_rows


@within
def normalize(hidden, norm):  # type: ignore[no-untyped-def]
    """Layer norm of hidden [t, H'], in place."""
    weight, shift, eps = norm
    width = len(weight)
    for t in range(len(hidden)):
        row, total, squares = hidden[t], f32(0), f32(0)
        for c in range(width):
            total += row[c]
        mean = total / f32(width)
        for c in range(width):
            squares += (row[c] - mean) * (row[c] - mean)
        factor = f32(1) / np.sqrt(squares / f32(width) + eps)
        for c in range(width):
            row[c] = (row[c] - mean) * factor * weight[c] + shift[c]


# --- attention --------------------------------------------------------------------------------------------------------


@within
def attend(piece, desk, sequence, head, width, queries, query_starts):  # type: ignore[no-untyped-def]
    """The context rows of one head of one sequence: row q for queries[q]."""
    size = desk.query.shape[1]
    start, length, left = piece.starts[sequence], piece.starts[sequence + 1] - piece.starts[sequence], head * size
    lay_keys_out(piece.qkv, start, length, width + left, size, desk.keys)
    lay_values_out(piece.qkv, start, length, 2 * width + left, size, desk.values)
    end = query_starts[sequence + 1]
    for top in range(query_starts[sequence], end, ROWS):
        count = min(ROWS, end - top)
        for i in range(count):
            given, query = piece.qkv[queries[top + i], left : left + size], desk.query[i]
            for d in range(size):
                query[d] = given[d]
        words = size * desk.query.itemsize // 4
        for panel in range(0, length, COLUMNS):
            vectors = min(VECTORS, (length - panel + VECTOR - 1) // VECTOR)
            tile(desk.query, 0, count, desk.keys, panel * words, vectors, words, panel * words, desk.scores[:, panel:])
        softmax(desk.scores, count, length, desk.shares, desk.factors)
        words = (length * desk.shares.itemsize + 3) // 4
        for panel in range(0, size, COLUMNS):
            vectors = min(VECTORS, (size - panel + VECTOR - 1) // VECTOR)
            tile(desk.shares, 0, count, desk.values, panel * words, vectors, words, panel * words, desk.weighted)
            for i in range(count):
                found, factor = desk.weighted[i], desk.factors[i]
                target = piece.context[top + i, left + panel : left + min(panel + COLUMNS, size)]
                for d in range(len(target)):
                    target[d] = found[d] * factor


@within
def lay_keys_out(qkv, start, length, left, size, out):  # type: ignore[no-untyped-def]
    """Transposed, so that keys are columns: panels of COLUMNS keys, the last as many registers wide as it needs."""
    given = qkv.view(u32)
    per = 4 // qkv.itemsize
    words = size // per
    for panel in range(0, length, COLUMNS):
        columns = min(COLUMNS, (length - panel + VECTOR - 1) // VECTOR * VECTOR)
        target = out[panel * words : (panel + columns) * words]
        for j in range(min(columns, length - panel)):
            row = given[start + panel + j, left // per : left // per + words]
            for w in range(words):
                target[w * columns + j] = row[w]


def lay_values_out(qkv: Any, start: int, length: int, left: int, size: int, out: Any) -> None:
    """Words of values that share a step, two tokens' in bfloat16, in panels as those of keys."""


@overload(lay_values_out, jit_options=WITHIN)
def _overload_lay_values_out(qkv, start, length, left, size, out):  # type: ignore[no-untyped-def]
    if qkv.dtype == types.uint16:

        def lay_out(qkv, start, length, left, size, out):  # type: ignore[no-untyped-def]
            words = (length + 1) // 2
            for panel in range(0, size, COLUMNS):
                real = min(COLUMNS, size - panel)
                columns = (real + VECTOR - 1) // VECTOR * VECTOR
                for w in range(words):
                    even, odd = start + 2 * w, start + min(2 * w + 1, length - 1)  # an odd one's share is zero
                    first = qkv[even, left + panel : left + panel + real]
                    second = qkv[odd, left + panel : left + panel + real]
                    target = out[panel * words + w * columns : panel * words + (w + 1) * columns]
                    for d in range(real):
                        target[d] = u32(first[d]) | u32(u32(second[d]) << u32(16))
    else:

        def lay_out(qkv, start, length, left, size, out):  # type: ignore[no-untyped-def]
            given = qkv.view(u32)
            for panel in range(0, size, COLUMNS):
                real = min(COLUMNS, size - panel)
                columns = (real + VECTOR - 1) // VECTOR * VECTOR
                for w in range(length):
                    row = given[start + w, left + panel : left + panel + real]
                    target = out[panel * length + w * columns : panel * length + (w + 1) * columns]
                    for d in range(real):
                        target[d] = row[d]

    return lay_out


@within
def softmax(scores, count, length, shares, factors):  # type: ignore[no-untyped-def]
    """exp(score - largest score) of each row in `shares`, one over their sum in `factors`."""
    for i in range(count):
        row, share, top, total = scores[i], shares[i], i32(-2147483648), f32(0)
        for j in range(length):
            top = max(top, ordered(f32(row[j]).view(i32)))
        largest = i32(ordered(top)).view(f32)
        for j in range(length):
            value = exp(max(row[j] - largest, f32(-80)))
            share[j] = as_held(share, value)
            total += value
        factors[i] = f32(1) / total
        if length % 2:
            share[length] = as_held(share, f32(0))


# --- passes --------------------------------------------------------------------------------------------------------


@within
def after_attention(layer, context, rows, scale, desk, hidden):  # type: ignore[no-untyped-def]
    """The rest of a pass for t rows, at most CHUNK: context, rows and hidden [t, H'], scale [t]."""
    prepare(context, rows, scale)
    multiply(rows, scale, layer.attention_output, desk.sums, ADD, hidden)
    normalize(hidden, layer.attention_norm)
    prepare(hidden, rows, scale)
    count = len(hidden)
    multiply(rows, scale, layer.inner, desk.sums, layer.activation, desk.inner[:count])
    prepare_inner(desk, layer.outer_rows, hidden)
    multiply(desk.inner_rows[:count], desk.inner_scale[:count], layer.outer, desk.sums, ADD, hidden)
    normalize(hidden, layer.ffn_norm)


@loops
def run(member, members, ids, tables, layer, passes, piece, desk, last):  # type: ignore[no-untyped-def]
    """Passes of one layer over a piece, as one member of a team.

    Args:
        member: Its number, from 0.
        members: Of the team; all call this with the same piece.
        ids: `Ids`; of no tokens: `piece.hidden` is what the first pass reads.
        tables: `Tables`.
        layer: `Layer`.
        passes: How many, with the same weights.
        piece: `Piece`; `hidden` becomes the output.
        desk: `Desk`.
        last: Whether only the wanted tokens' states are looked at after these passes: they are in `chosen` then.
    """
    hidden, num_heads = piece.hidden, layer.num_heads
    width, tasks = len(layer.attention_norm.weight), (len(piece.starts) - 1) * num_heads
    for number in range(passes):
        first, end = len(hidden) * member // members, len(hidden) * (member + 1) // members
        if number == 0 and len(ids.words):
            embed(ids, tables, piece, first, end, desk.weighted)
        for top in range(first, end, CHUNK):
            bottom = min(top + CHUNK, end)
            rows, scale = piece.rows[top:bottom], piece.scale[top:bottom]
            prepare(hidden[top:bottom], rows, scale)
            multiply(rows, scale, layer.qkv, desk.sums, STORE, piece.qkv[top:bottom])
        if not meet(piece.meeting, members):
            return
        chosen = last and number == passes - 1
        queries = piece.wanted if chosen else piece.everyone
        query_starts = piece.wanted_starts if chosen else piece.starts
        task = add_atomic(piece.tickets, number, 1)
        while task < tasks:
            attend(piece, desk, task // num_heads, task % num_heads, width, queries, query_starts)
            task = add_atomic(piece.tickets, number, 1)
        if not meet(piece.meeting, members):
            return
        if chosen:
            first, end = len(queries) * member // members, len(queries) * (member + 1) // members
            for q in range(first, end):
                given, target = hidden[queries[q]], piece.chosen[q]
                for c in range(len(target)):
                    target[c] = given[c]
        state = piece.chosen if chosen else hidden
        for top in range(first, end, CHUNK):
            bottom = min(top + CHUNK, end)
            rows, scale = piece.rows[top:bottom], piece.scale[top:bottom]
            after_attention(layer, piece.context[top:bottom], rows, scale, desk, state[top:bottom])
