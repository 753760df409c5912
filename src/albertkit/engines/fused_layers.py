"""All layers of a chunk of tokens in one compiled loop.

What a layer does between its four matrix products is done on rows that are still in the cache, and a thread takes a few rows
from the attention of one layer to the queries, keys and values of the next; the threads of a team wait for each other twice a
layer, since attention alone reads rows of others.

Milliseconds of 32 for one text of 128 tokens, base in int8, one Zen 5 core: products with what finishes them 27 (23 at the
tile's full rate), attention 2.6, quantizing of inner activations 1.4, everything else 0.5.

T tokens of N sequences, H hidden, I feed-forward, A heads of width D, Q tokens wanted of the last layer. In memory rows are H',
I' and 3H' wide: rounded up to COLUMNS, zeros in between. Numbers are multiplied as uint8 (by int8), as bfloat16 (uint16, its
bits) or as float32; sums are int32 or float32, everything else is fp32.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import overload

from albertkit.engines.arithmetic import (
    WITHIN,
    activated_to_uint8,
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
    rows_to_uint8,
    u32,
    within,
)
from albertkit.engines.thread_team import add_atomic, wait_for_all
from albertkit.engines.tiles import COLUMNS, ROWS, VECTOR, VECTORS, tile

GELU_TANH, GELU_ERF, RELU, STORE, ADD = range(5)  # how a linear layer's output is finished
# Rows that go through a feed-forward block together. As many as leave room in a cache of 1 MB for a panel of the outer weight.
BLOCK_ROWS = 72


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
    """The weights of a layer."""

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
    """Embedding tables, fp32. E' is E rounded up to COLUMNS."""

    words: np.ndarray  # [V, E]
    positions: np.ndarray  # [P, E]
    types: np.ndarray  # [2, E]
    norm: Norm
    mapping: Linear  # E to H


class Ids(NamedTuple):
    """Ids of T tokens, int64 each."""

    words: np.ndarray
    positions: np.ndarray
    types: np.ndarray


class Chunk(NamedTuple):
    """Sequences that run through all layers together, and the memory for their states."""

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
    barrier: np.ndarray  # of `thread_team.wait_for_all`
    tickets: np.ndarray  # int64 [layers], zeros: how many heads are taken


class Scratch(NamedTuple):
    """Scratch buffers of one thread. S: the longest sequence, rounded up to COLUMNS; D': D rounded up to VECTOR."""

    sums: np.ndarray  # int32 or fp32 [ROWS, COLUMNS]
    inner: np.ndarray  # [BLOCK_ROWS, I'], fp32, for bfloat16 uint16
    inner_rows: np.ndarray  # [BLOCK_ROWS, I'], numbers as they are multiplied; the same memory but for uint8
    inner_scale: np.ndarray  # fp32 [BLOCK_ROWS]
    places: np.ndarray  # int32 [I'], of a row's outliers
    excess: np.ndarray  # fp32 [I']
    peaks: np.ndarray  # fp32 [I' / TABLE_ROWS]
    query: np.ndarray  # [ROWS, D], as `Chunk.qkv`
    keys: np.ndarray  # uint32, a word is what one step of a tile multiplies: [S · words of a head]
    values: np.ndarray  # the same: [words of S · D'], zeros
    scores: np.ndarray  # fp32 [ROWS, S]
    shares: np.ndarray  # [ROWS, S], as `Chunk.qkv`
    weighted: np.ndarray  # fp32 [ROWS, COLUMNS]
    factors: np.ndarray  # fp32 [ROWS]


# --- embeddings -----------------------------------------------------------------------------------------------------


@within
def embed(ids, tables, chunk, first, end, sums):
    """Write the first layer's input into chunk.hidden[first:end], given ids, by way of chunk.embedded."""
    words, positions, kinds, norm, mapping = tables
    for t in range(first, end):
        word, position, kind = words[ids.words[t]], positions[ids.positions[t]], kinds[ids.types[t]]
        row = chunk.embedded[t]
        for c in range(len(word)):
            row[c] = word[c] + position[c] + kind[c]
    normalize(chunk.embedded[first:end], norm)
    multiply(chunk.embedded[first:end], chunk.scale[first:end], mapping, sums, STORE, chunk.hidden[first:end])


# --- linear layers ----------------------------------------------------------------------------------------------------


@within
def multiply(rows, scale, linear, sums, finish, out):
    """Apply a linear layer to rows [t, I'] with scale [t]; out [t, O'] is finished as one of the constants above says.

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
def multiply_once(source, rows, scale, linear, sums, out):
    """Apply a linear layer to fp32 source [t, I'], by way of rows and scale, into out [t, O']; called by Python."""
    prepare(source, rows, scale)
    multiply(rows, scale, linear, sums, STORE, out)


# --- rows as they are multiplied --------------------------------------------------------------------------------------


def prepare(source: Any, rows: Any, scale: Any) -> None:
    """Write fp32 source [t, H'] into rows [t, H'] as the numbers of their type, and for uint8 their scales [t]."""


@overload(prepare, jit_options=WITHIN)
def _overload_prepare(source, rows, scale):
    if rows.dtype == types.uint8:
        return lambda source, rows, scale: rows_to_uint8(source, rows, scale)

    def prepare_rows(source, rows, scale):
        for t in range(len(rows)):
            given, row = source[t], rows[t]
            for c in range(len(row)):
                row[c] = as_held(row, given[c])

    return prepare_rows


def prepare_inner(scratch: Any, outer_rows: Any, hidden: Any) -> None:
    """Write scratch.inner into scratch.inner_rows as the numbers of their type; add what outliers add to hidden [t, H']."""


@overload(prepare_inner, jit_options=WITHIN)
def _overload_prepare_inner(scratch, outer_rows, hidden):
    if scratch.types[Scratch._fields.index("inner_rows")].dtype != types.uint8:
        return lambda scratch, outer_rows, hidden: None

    def prepare_rows(scratch, outer_rows, hidden):
        for t in range(len(hidden)):
            values, row, top, squares = scratch.inner[t], hidden[t], i32(0), f32(0)
            for c in range(len(values)):
                squares += values[c] * values[c]
                top = max(top, f32(values[c]).view(i32))  # negative ones are negative integers
            outliers, scratch.inner_scale[t] = activated_to_uint8(
                values, top, squares, scratch.peaks, scratch.places, scratch.excess, scratch.inner_rows[t]
            )
            for n in range(outliers):
                factor, weights = scratch.excess[n], outer_rows[scratch.places[n]]
                for c in range(len(weights)):
                    row[c] += factor * from_bfloat16(weights[c])

    return prepare_rows


@within
def normalize(hidden, norm):
    """Apply a layer norm to hidden [t, H'], in place."""
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
def attend(chunk, scratch, sequence, head, width, queries, query_starts):
    """Compute the context rows of one head of one sequence: row q for queries[q]."""
    size = scratch.query.shape[1]
    start, length, left = chunk.starts[sequence], chunk.starts[sequence + 1] - chunk.starts[sequence], head * size
    lay_keys_out(chunk.qkv, start, length, width + left, size, scratch.keys)
    lay_values_out(chunk.qkv, start, length, 2 * width + left, size, scratch.values)
    end = query_starts[sequence + 1]
    for top in range(query_starts[sequence], end, ROWS):
        count = min(ROWS, end - top)
        for i in range(count):
            given, query = chunk.qkv[queries[top + i], left : left + size], scratch.query[i]
            for d in range(size):
                query[d] = given[d]
        words = size * scratch.query.itemsize // 4
        for panel in range(0, length, COLUMNS):
            vectors = min(VECTORS, (length - panel + VECTOR - 1) // VECTOR)
            tile(
                scratch.query,
                0,
                count,
                scratch.keys,
                panel * words,
                vectors,
                words,
                panel * words,
                scratch.scores[:, panel:],
            )
        softmax(scratch.scores, count, length, scratch.shares, scratch.factors)
        words = (length * scratch.shares.itemsize + 3) // 4
        for panel in range(0, size, COLUMNS):
            vectors = min(VECTORS, (size - panel + VECTOR - 1) // VECTOR)
            tile(
                scratch.shares, 0, count, scratch.values, panel * words, vectors, words, panel * words, scratch.weighted
            )
            for i in range(count):
                found, factor = scratch.weighted[i], scratch.factors[i]
                target = chunk.context[top + i, left + panel : left + min(panel + COLUMNS, size)]
                for d in range(len(target)):
                    target[d] = found[d] * factor


@within
def lay_keys_out(qkv, start, length, left, size, out):
    """Transpose keys into columns: panels of COLUMNS keys, the last as many registers wide as it needs."""
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
    """Lay values out in words that share a step, two tokens' in bfloat16, in panels as those of keys."""


@overload(lay_values_out, jit_options=WITHIN)
def _overload_lay_values_out(qkv, start, length, left, size, out):
    if qkv.dtype == types.uint16:

        def lay_out(qkv, start, length, left, size, out):
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

        def lay_out(qkv, start, length, left, size, out):
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
def softmax(scores, count, length, shares, factors):
    """Write exp(score - largest score) of each row into `shares`, one over their sum into `factors`."""
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


# --- layers --------------------------------------------------------------------------------------------------------


@within
def after_attention(layer, context, rows, scale, scratch, hidden):
    """Compute the rest of a layer for t rows, at most BLOCK_ROWS: context, rows and hidden [t, H'], scale [t]."""
    prepare(context, rows, scale)
    multiply(rows, scale, layer.attention_output, scratch.sums, ADD, hidden)
    normalize(hidden, layer.attention_norm)
    prepare(hidden, rows, scale)
    count = len(hidden)
    multiply(rows, scale, layer.inner, scratch.sums, layer.activation, scratch.inner[:count])
    prepare_inner(scratch, layer.outer_rows, hidden)
    multiply(scratch.inner_rows[:count], scratch.inner_scale[:count], layer.outer, scratch.sums, ADD, hidden)
    normalize(hidden, layer.ffn_norm)


@loops
def run(member, members, ids, tables, layer, repeats, chunk, scratch, last):
    """Apply one layer to a chunk as many times as `repeats` says, as one of the members of a thread team.

    All members call this with the same chunk, whose `hidden` becomes the output and, without ids, is the first layer's input.
    With `last`, only the wanted tokens' states are computed at the end: into `chosen`.
    """
    hidden, num_heads = chunk.hidden, layer.num_heads
    width, tasks = len(layer.attention_norm.weight), (len(chunk.starts) - 1) * num_heads
    for number in range(repeats):
        first, end = len(hidden) * member // members, len(hidden) * (member + 1) // members
        if number == 0 and len(ids.words):
            embed(ids, tables, chunk, first, end, scratch.weighted)
        for top in range(first, end, BLOCK_ROWS):
            bottom = min(top + BLOCK_ROWS, end)
            rows, scale = chunk.rows[top:bottom], chunk.scale[top:bottom]
            prepare(hidden[top:bottom], rows, scale)
            multiply(rows, scale, layer.qkv, scratch.sums, STORE, chunk.qkv[top:bottom])
        if not wait_for_all(chunk.barrier, members):
            return
        chosen = last and number == repeats - 1
        queries = chunk.wanted if chosen else chunk.everyone
        query_starts = chunk.wanted_starts if chosen else chunk.starts
        task = add_atomic(chunk.tickets, number, 1)
        while task < tasks:
            attend(chunk, scratch, task // num_heads, task % num_heads, width, queries, query_starts)
            task = add_atomic(chunk.tickets, number, 1)
        if not wait_for_all(chunk.barrier, members):
            return
        if chosen:
            first, end = len(queries) * member // members, len(queries) * (member + 1) // members
            for q in range(first, end):
                given, target = hidden[queries[q]], chunk.chosen[q]
                for c in range(len(target)):
                    target[c] = given[c]
        state = chunk.chosen if chosen else hidden
        for top in range(first, end, BLOCK_ROWS):
            bottom = min(top + BLOCK_ROWS, end)
            rows, scale = chunk.rows[top:bottom], chunk.scale[top:bottom]
            after_attention(layer, chunk.context[top:bottom], rows, scale, scratch, state[top:bottom])
