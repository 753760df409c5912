"""All layers of a chunk of tokens in one compiled loop.

What a layer does between its four matrix products is done on rows that are still in the cache, and a thread takes a block of
rows from the attention of one layer to the queries, keys and values of the next; a layer has two phases, since attention alone
reads rows of others. Every member of a team writes to a copy of the states that is its own, and reads a block from the copy of
the member whose result counts: `thread_team` says why.

Milliseconds of 32 for one text of 128 tokens, base in int8, one Zen 5 core: products with what finishes them 27 (23 at the
tile's full rate), attention 2.6, quantizing of inner activations 1.4, everything else 0.5.

T tokens of N sequences, H hidden, I feed-forward, A heads of width D, Q tokens wanted of the last layer, M members. In memory
rows are H', I' and 3H' wide: rounded up to COLUMNS, zeros in between. Numbers are multiplied as uint8 (by int8), as bfloat16
(uint16, its bits) or as float32; sums are int32 or float32, everything else is fp32.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import overload

from albertkit.engines import matrix_tiles
from albertkit.engines.arithmetic import (
    TABLE_ROWS,
    WITHIN,
    activated_to_uint8,
    as_held,
    f32,
    i32,
    loops,
    rows_to_uint8,
    u32,
    within,
)
from albertkit.engines.finishing import ADD, STORE, exponentials, finish_rows, write_scaled
from albertkit.engines.laying_out import pair_up, transpose
from albertkit.engines.thread_team import FIRST_PATIENCE, PATIENCE, cycles, finish, is_done, take
from albertkit.engines.tiles import (
    COLUMNS,
    VECTOR,
    VECTORS,
    fetching,
    panel_of,
    place,
    rows_of,
    tile,
    vectors_of,
    whole_steps,
)
from albertkit.jit import from_bfloat16

# Rows that go through all of a layer but attention together. To fetch a weight from the shared cache takes as long as matrix
# tiles take for 128 rows; where there are none, 72 leave room for a panel in a cache of 1 MB.
BLOCK_ROWS = 128 if matrix_tiles.compiled_for() else 72


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
    outer: Linear  # packed in parts of `part` inputs
    outer_rows: np.ndarray  # uint16 [I, H]: the outer weight transposed, for outliers of int8
    no_bias: np.ndarray  # fp32 [H'], zeros
    ffn_norm: Norm
    num_heads: int
    activation: int  # GELU_TANH, GELU_ERF or RELU
    part: int  # inner activations that are computed and used up together


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
    """Sequences that run through all layers together, and the members' copies of their states."""

    given: np.ndarray  # fp32 [T, H'], the first layer's input; not read where there are ids
    hidden: np.ndarray  # fp32 [M, 2, T or Q, H'], of every second layer
    qkv: np.ndarray  # [M, T, 3H'], numbers as attention multiplies them
    context: np.ndarray  # fp32 [M, T or Q, H']
    starts: np.ndarray  # int64 [N + 1], of sequences
    sequences: np.ndarray  # int64 [T], the sequence of a token
    everyone: np.ndarray  # int64 [T], 0 to T - 1
    wanted: np.ndarray  # int64 [Q], ascending
    wanted_starts: np.ndarray  # int64 [N + 1], of sequences among the wanted
    block: int  # rows that are a task
    wanted_block: int  # the same of the last states, where some are wanted
    group: int  # heads that are a task; heads are counted through, sequence by sequence


class Scratch(NamedTuple):
    """Scratch buffers of one thread. S: the longest sequence, rounded up to COLUMNS; D': D rounded up to VECTOR."""

    sums: np.ndarray  # int32 or fp32 [MOST_ROWS, COLUMNS]
    embedded: np.ndarray  # fp32 [BLOCK_ROWS, E'], zeros
    ones: np.ndarray  # fp32 [BLOCK_ROWS]
    context: np.ndarray  # fp32 [1, H'], zeros
    holders: np.ndarray  # int64 [T], the member in whose copy a token's states are
    head_holders: np.ndarray  # int64 [N · A], the same of heads' contexts
    rows: np.ndarray  # [BLOCK_ROWS, H'], numbers as they are multiplied
    scale: np.ndarray  # fp32 [BLOCK_ROWS], ones but for uint8
    inner: np.ndarray  # [BLOCK_ROWS, part and a line], fp32, for bfloat16 uint16
    inner_rows: np.ndarray  # the same as they are multiplied: uint8, or the same memory
    inner_scale: np.ndarray  # fp32 [BLOCK_ROWS]
    places: np.ndarray  # int32 [part], of a row's outliers
    excess: np.ndarray  # fp32 [part]
    peaks: np.ndarray  # fp32 [part / TABLE_ROWS]
    query: np.ndarray  # [MOST_ROWS, D rounded up to COLUMNS], zeros, as `Chunk.qkv`
    keys: np.ndarray  # uint32, a word is what one step of a tile multiplies: [S · words of a query]
    values: np.ndarray  # the same: [words of S · D']
    scores: np.ndarray  # fp32 [MOST_ROWS, S]
    shares: np.ndarray  # [MOST_ROWS, S], as `Chunk.qkv`
    weighted: np.ndarray  # fp32 [MOST_ROWS, COLUMNS]
    factors: np.ndarray  # fp32 [MOST_ROWS]


# --- embeddings -----------------------------------------------------------------------------------------------------


@within
def embed(ids, tables, top, bottom, scratch, hidden):
    """Write the first layer's input of tokens top to bottom into hidden [t, H']."""
    words, positions, kinds, norm, mapping = tables
    embedded = scratch.embedded[: bottom - top]
    for t in range(top, bottom):
        word, position, kind = words[ids.words[t]], positions[ids.positions[t]], kinds[ids.types[t]]
        row = embedded[t - top]
        for c in range(len(word)):
            row[c] = word[c] + position[c] + kind[c]
    normalize(embedded, norm)
    multiply(embedded, scratch.ones[: bottom - top], mapping, scratch.weighted, STORE, hidden)


# --- linear layers ----------------------------------------------------------------------------------------------------


@within
def multiply(rows, scale, linear, sums, finishing, out):
    """Apply a linear layer to rows [t, I'] with scale [t]; out [t, O'] is finished as one of `finishing`'s constants says."""
    multiply_part(rows, scale, linear.weight, (linear.scale, linear.shift, linear.bias), sums, finishing, out)


@within
def multiply_part(rows, scale, weight, columns, sums, finishing, out):
    """Apply a part of a linear layer, given scale, shift and bias of its outputs.

    A panel of the weight stays in the cache for all rows, while the next one is fetched.
    """
    vectors, most = vectors_of(rows), rows_of(rows)
    panels = len(columns[0]) // (vectors * VECTOR)
    size = len(weight) // panels
    steps = size * weight.itemsize // (4 * vectors * VECTOR)
    tiles = (len(rows) + most - 1) // most
    fetched, share = fetching(rows, tiles, size)
    for p in range(panels):
        left = p * vectors * VECTOR
        for top in range(0, len(rows), most):
            count = min(most, len(rows) - top)
            ahead = (p + 1) * size + top // most * share
            tile(rows, top, count, weight, p * size, vectors, steps, ahead, fetched, sums)
            finish_rows(sums, count, columns, left, vectors, scale, top, finishing, out)


@loops
def multiply_once(source, rows, scale, linear, sums, out):
    """Apply a linear layer to fp32 source [t, I'], by way of rows and scale, into out [t, O']; called by Python."""
    matrix_tiles.configure()
    prepare(source, rows, scale)
    multiply(rows, scale, linear, sums, STORE, out)
    matrix_tiles.release()


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


def prepare_inner(scratch: Any, width: int, outer_rows: Any, hidden: Any) -> None:
    """Write scratch.inner [t, width] into scratch.inner_rows as the numbers of their type; add what outliers add to hidden."""


@overload(prepare_inner, jit_options=WITHIN)
def _overload_prepare_inner(scratch, width, outer_rows, hidden):
    if scratch.types[Scratch._fields.index("inner_rows")].dtype != types.uint8:
        return lambda scratch, width, outer_rows, hidden: None

    def prepare_rows(scratch, width, outer_rows, hidden):
        for t in range(len(hidden)):
            values, row, top, squares = scratch.inner[t, :width], hidden[t], i32(0), f32(0)
            for c in range(width):
                squares += values[c] * values[c]
                top = max(top, f32(values[c]).view(i32))  # negative ones are negative integers
            peaks, out = scratch.peaks[: width // TABLE_ROWS], scratch.inner_rows[t, :width]
            outliers, scratch.inner_scale[t] = activated_to_uint8(
                values, top, squares, peaks, scratch.places, scratch.excess, out
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
def attend(chunk, scratch, sequence, head, width, size, queries, query_starts, context):
    """Compute the context rows of one head of one sequence: row q for queries[q]."""
    start, length, left = chunk.starts[sequence], chunk.starts[sequence + 1] - chunk.starts[sequence], head * size
    holders, most = scratch.holders, rows_of(scratch.query)
    lay_keys_out(chunk.qkv, holders, start, length, width + left, size, scratch.keys)
    lay_values_out(chunk.qkv, holders, start, length, 2 * width + left, size, scratch.values)
    words = whole_steps(scratch.query, size * scratch.query.itemsize // 4)
    token_words = whole_steps(scratch.shares, (length * scratch.shares.itemsize + 3) // 4)
    end = query_starts[sequence + 1]
    for top in range(query_starts[sequence], end, most):
        count = min(most, end - top)
        for i in range(count):
            token = queries[top + i]
            copy(chunk.qkv[holders[token], token, left : left + size], scratch.query[i, :size])
        for panel in range(0, length, panel_of(scratch.query)):
            vectors = (min(panel_of(scratch.query), length - panel) + VECTOR - 1) // VECTOR
            begin = panel * words
            tile(scratch.query, 0, count, scratch.keys, begin, vectors, words, begin, 0, scratch.scores[:, panel:])
        softmax(scratch.scores, count, length, scratch.shares, scratch.factors)
        for panel in range(0, size, COLUMNS):
            vectors, begin = min(VECTORS, (size - panel + VECTOR - 1) // VECTOR), panel * token_words
            tile(scratch.shares, 0, count, scratch.values, begin, vectors, token_words, begin, 0, scratch.weighted)
            columns = min(COLUMNS, size - panel)
            write_scaled(scratch.weighted, count, scratch.factors, columns, context, top, left + panel)


@within
def lay_keys_out(qkv, holders, start, length, left, size, out):
    """Transpose keys, of copies qkv [M, T, 3H'], into columns: panels, the last of as many registers as it needs."""
    given, per = qkv.view(u32), 4 // qkv.itemsize
    words = size // per
    steps = whole_steps(qkv, words)
    for panel in range(0, length, panel_of(qkv)):
        columns = min(panel_of(qkv), (length - panel + VECTOR - 1) // VECTOR * VECTOR)
        target = out[panel * steps : (panel + columns) * steps]
        for register in range(columns // VECTOR):
            first, between = start + panel + register * VECTOR, place(qkv, steps, columns, 0, 1)
            for w in range(0, words, VECTOR):
                at, count = place(qkv, steps, columns, register, w), min(VECTOR, words - w)
                transpose(given, holders, first, start + length - 1, left // per + w, count, target, at, between)
            for w in range(words, steps):
                at = place(qkv, steps, columns, register, w)
                target[at : at + VECTOR] = u32(0)


@within
def lay_values_out(qkv, holders, start, length, left, size, out):
    """Lay values out in words that share a step, two tokens' in bfloat16, in panels of COLUMNS."""
    per = 4 // qkv.itemsize
    words = (length + per - 1) // per
    steps = whole_steps(qkv, words)
    for panel in range(0, size, COLUMNS):
        real = min(COLUMNS, size - panel)
        columns = (real + VECTOR - 1) // VECTOR * VECTOR
        target = out[panel * steps : (panel + columns) * steps]
        for w in range(words):
            even, odd = start + w * per, min(start + w * per + 1, start + length - 1)  # an odd one's share is zero
            first, second = qkv[holders[even], even], qkv[holders[odd], odd]
            for register in range(columns // VECTOR):
                at, begin = place(qkv, steps, columns, register, w), left + panel + register * VECTOR
                words_of(first, second, begin, min(VECTOR, real - register * VECTOR), target, at)
        for w in range(words, steps):
            for register in range(columns // VECTOR):
                at = place(qkv, steps, columns, register, w)
                target[at : at + VECTOR] = u32(0)


def words_of(first: Any, second: Any, begin: int, count: int, out: Any, at: int) -> None:
    """Write numbers of a token as words from out[at] on, or of two tokens where two numbers are a word."""


@overload(words_of, jit_options=WITHIN)
def _overload_words_of(first, second, begin, count, out, at):
    if first.dtype == types.uint16:

        def pairs(first, second, begin, count, out, at):
            if count == VECTOR:
                pair_up(first, second, begin, out, at)
            else:
                for d in range(begin, begin + count):
                    out[at + d - begin] = u32(first[d]) | u32(u32(second[d]) << u32(16))

        return pairs

    def singles(first, second, begin, count, out, at):
        for d in range(begin, begin + count):
            out[at + d - begin] = f32(first[d]).view(u32)

    return singles


@within
def softmax(scores, count, length, shares, factors):
    """Write exp(score - largest score) of each row into `shares`, one over their sum into `factors`."""
    per = 4 // shares.itemsize
    end = whole_steps(shares, (length + per - 1) // per) * per
    for i in range(count):
        factors[i] = f32(1) / exponentials(scores, i, length, shares)
        for j in range(length, end):
            shares[i, j] = as_held(shares, f32(0))


# --- layers --------------------------------------------------------------------------------------------------------


@within
def begin_layer(layer, scratch, hidden, qkv):
    """Compute queries, keys and values qkv [t, 3H'] of t rows, at most BLOCK_ROWS, of hidden [t, H']."""
    count = len(hidden)
    prepare(hidden, scratch.rows[:count], scratch.scale[:count])
    multiply(scratch.rows[:count], scratch.scale[:count], layer.qkv, scratch.sums, STORE, qkv)


@within
def after_attention(layer, scratch, hidden, done, task):
    """Compute the rest of a layer for t rows, at most BLOCK_ROWS, of its input hidden [t, H'] and the context in scratch.rows.

    Stops where another member has done the task in the meantime.
    """
    count = len(hidden)
    rows, scale = scratch.rows[:count], scratch.scale[:count]
    multiply(rows, scale, layer.attention_output, scratch.sums, ADD, hidden)
    if is_done(done, task):
        return
    normalize(hidden, layer.attention_norm)
    prepare(hidden, rows, scale)
    for start in range(0, len(layer.inner.bias), layer.part):
        if is_done(done, task):
            return
        feed_forward(layer, scratch, start, rows, scale, hidden)
    normalize(hidden, layer.ffn_norm)


@within
def feed_forward(layer, scratch, start, rows, scale, hidden):
    """Add to hidden [t, H'] what the inner activations from `start` on contribute: `part` of them, which stay in the cache."""
    inner, outer, count = layer.inner, layer.outer, len(hidden)
    whole = len(inner.bias)
    end = min(start + layer.part, whole)
    size, outer_size = len(inner.weight) // whole, len(outer.weight) // whole
    columns = (inner.scale[start:end], inner.shift[start:end], inner.bias[start:end])
    weight = inner.weight[start * size : end * size]
    multiply_part(rows, scale, weight, columns, scratch.sums, layer.activation, scratch.inner[:count])
    prepare_inner(scratch, end - start, layer.outer_rows[start:], hidden)
    columns = (outer.scale, outer.shift, outer.bias if start == 0 else layer.no_bias)
    weight, inner_rows = outer.weight[start * outer_size : end * outer_size], scratch.inner_rows[:count]
    multiply_part(inner_rows, scratch.inner_scale[:count], weight, columns, scratch.sums, ADD, hidden)


@within
def gather_context(chunk, scratch, queries, top, bottom, num_heads, size):
    """Write the context rows of queries[top:bottom] into scratch.rows, from the members who have their heads."""
    for q in range(top, bottom):
        first, row = chunk.sequences[queries[q]] * num_heads, scratch.context[0]
        for head in range(num_heads):
            left, right = head * size, (head + 1) * size
            copy(chunk.context[scratch.head_holders[first + head], q, left:right], row[left:right])
        prepare(scratch.context, scratch.rows[q - top : q - top + 1], scratch.scale[q - top : q - top + 1])


@within
def note_holders(done, size, holders):
    """Write out who has each row or head, where `done` tells it of tasks with `size` of them."""
    for task in range((len(holders) + size - 1) // size):
        for n in range(task * size, min((task + 1) * size, len(holders))):
            holders[n] = done[task] - 1


@within
def copy(source, target):
    """Copy a row."""
    for c in range(len(target)):
        target[c] = source[c]


@loops
def run(member, members, ids, tables, layer, repeats, chunk, progress, scratch, last):
    """Apply one layer to a chunk as many times as `repeats` says, as one of the members of a thread team.

    All members call this with the same chunk and progress, and return when all is done. Phases are rows, heads, rows, …, rows.
    The output is in the members' copies `hidden[:, repeats % 2]`; progress.done[-1] says in whose. With `last`, it is the states
    of the wanted tokens only.
    """
    num_heads, width, own = layer.num_heads, len(layer.attention_norm.weight), chunk.hidden[member]
    size = width // num_heads
    tokens, heads = len(chunk.everyone), (len(chunk.starts) - 1) * num_heads
    row_patience = head_patience = np.int64(FIRST_PATIENCE)
    entered = cycles()
    matrix_tiles.configure()
    for number in range(repeats + 1):
        chosen = last and number == repeats
        queries, block = (chunk.wanted, chunk.wanted_block) if chosen else (chunk.everyone, chunk.block)
        phase, tasks = 2 * number, (len(queries) + block - 1) // block
        done = progress.done[phase]
        if number:
            note_holders(progress.done[phase - 1], chunk.group, scratch.head_holders[:heads])
        task = take(progress, phase, tasks, member, members, row_patience)
        while task >= 0:
            began = cycles()
            top, bottom = task * block, min((task + 1) * block, len(queries))
            hidden = own[number % 2, top:bottom]
            if number == 0 and len(ids.words):
                embed(ids, tables, top, bottom, scratch, hidden)
            elif number == 0:
                for t in range(top, bottom):
                    copy(chunk.given[t], hidden[t - top])
            else:
                for q in range(top, bottom):
                    token = queries[q]
                    copy(chunk.hidden[scratch.holders[token], (number - 1) % 2, token], hidden[q - top])
                gather_context(chunk, scratch, queries, top, bottom, num_heads, size)
                after_attention(layer, scratch, hidden, done, task)
            if number < repeats and not is_done(done, task):
                begin_layer(layer, scratch, hidden, chunk.qkv[member, top:bottom])
            row_patience = min(row_patience, finish(progress, phase, task, member, began) // PATIENCE)
            task = take(progress, phase, tasks, member, members, row_patience)
        if number == repeats:
            progress.spent[member, 2] = cycles() - entered
            matrix_tiles.release()
            return
        note_holders(done, chunk.block, scratch.holders[:tokens])
        chosen = last and number == repeats - 1
        queries, query_starts = (chunk.wanted, chunk.wanted_starts) if chosen else (chunk.everyone, chunk.starts)
        phase, tasks = 2 * number + 1, (heads + chunk.group - 1) // chunk.group
        task = take(progress, phase, tasks, member, members, head_patience)
        while task >= 0:
            began = cycles()
            for pair in range(task * chunk.group, min((task + 1) * chunk.group, heads)):
                sequence, head = pair // num_heads, pair % num_heads
                attend(chunk, scratch, sequence, head, width, size, queries, query_starts, chunk.context[member])
            head_patience = min(head_patience, finish(progress, phase, task, member, began) // PATIENCE)
            task = take(progress, phase, tasks, member, members, head_patience)
