"""All layers of a chunk of tokens in one compiled loop.

What a layer does between its four matrix products is done on rows that are still in the cache, and
a thread takes a block of rows from the attention of one layer to the queries, keys and values of
the next; a layer has two phases, since attention alone reads rows of others. With few rows it has
four: each thread then computes half of the feed-forward block for all of them, and fetches half of
its weights. Every member of a team writes to a copy of the states that is its own, and reads a
block from the copy of the member whose result counts: `team` says why.

Milliseconds of 32 for one text of 128 tokens, base in int8, one Zen 5 core: products with what
finishes them 27 (23 at the tile's full rate), attention 2.6, quantizing of inner activations 1.4,
everything else 0.5.

T tokens of N sequences, H hidden, I feed-forward, A heads of width D, Q tokens selected of the last
layer, M members. In memory rows are H', I' and 3H' wide: rounded up to COLUMNS, zeros in between.
Numbers are multiplied as uint8 (by int8), as bfloat16 (uint16, its bits) or as float32; sums are
int32 or float32, everything else is fp32.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import overload

from albertkit.engines.arithmetic import (
    TABLE_ROWS,
    WITHIN,
    activations_to_uint8,
    cast_like,
    f32,
    i32,
    loops,
    rows_to_uint8,
    u32,
    within,
)
from albertkit.engines.cpu import matrix_tiles
from albertkit.engines.cpu.team import (
    FIRST_PATIENCE,
    PATIENCE,
    finish_task,
    is_done,
    read_cycle_counter,
    take_task,
)
from albertkit.engines.cpu.tile_outputs import (
    ADD,
    STORE,
    exponentials,
    finish_rows,
    interleave_tokens,
    transpose,
    write_scaled,
)
from albertkit.engines.cpu.tiles import (
    COLUMNS,
    VECTOR,
    VECTORS,
    columns_of_panel,
    fetching,
    multiply_tile,
    num_column_registers_of_tile,
    num_rows_of_tile,
    num_whole_steps,
    panel_offset,
)
from albertkit.jit import from_bfloat16

# Phases of a layer; ATTENDED and HALVES only where halves of its feed-forward block are tasks,
# DECIDED only for early exit.
ROWS, HEADS, ATTENDED, HALVES, DECIDED = range(5)
NUM_PHASES = 5
SHARES = 8  # tasks of attention a thread, where there are so many heads

# Rows that go through all of a layer but attention together. To fetch a weight from the shared
# cache takes as long as matrix tiles take for 80 rows; where there are none, 72 leave room for a
# panel in a cache of 1 MB.
BLOCK_ROWS = 128 if matrix_tiles.compiles_for_amx() else 72


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
    # Where the second half of them begins, whose outputs are added up apart; the end where there is
    # one part
    middle: int


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

    input_states: np.ndarray  # fp32 [T, H'], the first layer's input; not read where there are ids
    hidden: np.ndarray  # fp32 [M, 2, T or Q, H'], of every second layer
    qkv: np.ndarray  # [M, T, 3H'], numbers as attention multiplies them
    context: np.ndarray  # fp32 [M, T or Q, H']
    starts: np.ndarray  # int64 [N + 1], of sequences
    sequences: np.ndarray  # int64 [T], the sequence of a token
    everyone: np.ndarray  # int64 [T], 0 to T - 1
    selected: np.ndarray  # int64 [Q], tokens whose last states are needed, ascending
    selected_starts: np.ndarray  # int64 [N + 1], of sequences among the selected tokens
    block: int  # rows that are a task
    selected_block: int  # the same of the last layer, where tokens are selected
    # Rows that are a task of a half of the feed-forward block; 0: it is part of the task of rows
    half_block: int
    # fp32 [M, 3, T or Q, H'], read where half_block is not 0: the block's input, the sums of its
    # halves
    halves: np.ndarray
    group: int  # heads that are a task; heads are counted through, sequence by sequence


class Call(NamedTuple):
    """Numbers that `run` is called with."""

    member: int  # who computes
    members: int  # of the team
    repeats: int  # layers
    last: bool  # whether the last layer's output is that of the selected tokens


class Scratch(NamedTuple):
    """Scratch buffers of one thread. S: the longest sequence, rounded up to COLUMNS; D': D rounded up to VECTOR."""

    sums: np.ndarray  # int32 or fp32 [MAX_TILE_ROWS, COLUMNS]
    embedded: np.ndarray  # fp32 [BLOCK_ROWS, E'], zeros
    unit_scale: np.ndarray  # fp32 [BLOCK_ROWS]
    context: np.ndarray  # fp32 [1, H'], zeros
    holders: np.ndarray  # int64 [T], the member in whose copy a token's states are
    head_holders: np.ndarray  # int64 [N · A], the same of heads' contexts
    rows: np.ndarray  # [BLOCK_ROWS, H'], numbers as they are multiplied
    scale: np.ndarray  # fp32 [BLOCK_ROWS], ones but for uint8
    inner: np.ndarray  # [BLOCK_ROWS, part and a line], fp32, for bfloat16 uint16
    inner_rows: np.ndarray  # the same as they are multiplied: uint8, or the same memory
    inner_scale: np.ndarray  # fp32 [BLOCK_ROWS]
    # fp32 [BLOCK_ROWS, H'], sums of the second half of the feed-forward block, or first tokens
    second: np.ndarray
    patience: np.ndarray  # int64 [NUM_PHASES]
    outlier_columns: np.ndarray  # int32 [part], of a row's outliers
    excess: np.ndarray  # fp32 [part]
    peaks: np.ndarray  # fp32 [part / TABLE_ROWS]
    query: np.ndarray  # [MAX_TILE_ROWS, D rounded up to COLUMNS], zeros, as `Chunk.qkv`
    keys: np.ndarray  # uint32, a word is what one step of a tile multiplies: [S · words of a query]
    values: np.ndarray  # the same: [words of S · D']
    scores: np.ndarray  # fp32 [MAX_TILE_ROWS, S]
    shares: np.ndarray  # [MAX_TILE_ROWS, S], as `Chunk.qkv`
    weighted: np.ndarray  # fp32 [MAX_TILE_ROWS, COLUMNS]
    factors: np.ndarray  # fp32 [MAX_TILE_ROWS]


# --- embeddings -----------------------------------------------------------------------------------


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
        layer_norm_row(row, norm)
    multiply(embedded, scratch.unit_scale[: bottom - top], mapping, scratch.weighted, STORE, hidden)


# --- linear layers --------------------------------------------------------------------------------


@within
def multiply(rows, scale, linear, sums, finishing, out):
    """Apply a linear layer to rows [t, I'] with scale [t]; out [t, O'] is finished by one of the constants of `tile_outputs`."""
    multiply_part(
        rows, scale, linear.weight, (linear.scale, linear.shift, linear.bias), sums, finishing, out
    )


@within
def multiply_part(rows, scale, weight, columns, sums, finishing, out):
    """Apply a part of a linear layer, with scale, shift and bias of its outputs in `columns`.

    A panel of the weight stays in the cache for all rows, while the next one is fetched.
    """
    vectors, tile_rows = num_column_registers_of_tile(rows), num_rows_of_tile(rows)
    panels = len(columns[0]) // (vectors * VECTOR)
    size = len(weight) // panels
    steps = size * weight.itemsize // (4 * vectors * VECTOR)
    tiles = (len(rows) + tile_rows - 1) // tile_rows
    fetched, share = fetching(rows, tiles, size)
    for p in range(panels):
        first_column = p * vectors * VECTOR
        for top in range(0, len(rows), tile_rows):
            count = min(tile_rows, len(rows) - top)
            ahead = (p + 1) * size + top // tile_rows * share
            multiply_tile(rows, top, count, weight, p * size, vectors, steps, ahead, fetched, sums)
            finish_rows(sums, count, columns, first_column, vectors, scale, top, finishing, out)


@loops
def multiply_once(source, rows, scale, linear, sums, out):
    """Apply a linear layer to fp32 source [t, I'], by way of rows and scale, into out [t, O']; called by Python."""
    matrix_tiles.configure()
    quantize_rows(source, rows, scale)
    multiply(rows, scale, linear, sums, STORE, out)
    matrix_tiles.release()


# --- rows as they are multiplied ------------------------------------------------------------------


def quantize_rows(source: Any, rows: Any, scale: Any) -> None:
    """Write fp32 source [t, H'] into rows [t, H'] as the numbers of their type, and for uint8 their scales [t]."""


@overload(quantize_rows, jit_options=WITHIN)
def _overload_quantize_rows(source, rows, scale):
    if rows.dtype == types.uint8:
        return lambda source, rows, scale: rows_to_uint8(source, rows, scale)

    def prepare_rows(source, rows, scale):
        for t in range(len(rows)):
            source_row, row = source[t], rows[t]
            for c in range(len(row)):
                row[c] = cast_like(row, source_row[c])

    return prepare_rows


def quantize_inner_and_add_outliers(scratch: Any, width: int, outer_rows: Any, hidden: Any) -> None:
    """Write scratch.inner [t, width] into scratch.inner_rows as the numbers of their type; add what outliers add to hidden."""


@overload(quantize_inner_and_add_outliers, jit_options=WITHIN)
def _overload_quantize_inner_and_add_outliers(scratch, width, outer_rows, hidden):
    if scratch.types[Scratch._fields.index("inner_rows")].dtype != types.uint8:
        return lambda scratch, width, outer_rows, hidden: None

    def prepare_rows(scratch, width, outer_rows, hidden):
        for t in range(len(hidden)):
            values, row, top, squares = scratch.inner[t, :width], hidden[t], i32(0), f32(0)
            for c in range(width):
                squares += values[c] * values[c]
                top = max(top, f32(values[c]).view(i32))  # negative ones are negative integers
            peaks, out = scratch.peaks[: width // TABLE_ROWS], scratch.inner_rows[t, :width]
            outliers, scratch.inner_scale[t] = activations_to_uint8(
                values, top, squares, peaks, scratch.outlier_columns, scratch.excess, out
            )
            for n in range(outliers):
                factor, weights = scratch.excess[n], outer_rows[scratch.outlier_columns[n]]
                for c in range(len(weights)):
                    row[c] += factor * from_bfloat16(weights[c])

    return prepare_rows


@within
def layer_norm_row(row, norm):
    """Apply a layer norm to a row [H'], in place."""
    weight, shift, eps = norm
    width, total, squares = len(weight), f32(0), f32(0)
    for c in range(width):
        total += row[c]
    mean = total / f32(width)
    for c in range(width):
        squares += (row[c] - mean) * (row[c] - mean)
    factor = f32(1) / np.sqrt(squares / f32(width) + eps)
    for c in range(width):
        row[c] = (row[c] - mean) * factor * weight[c] + shift[c]


@within
def prepare_row(hidden, t, scratch):
    """Write row t of hidden [t, H'] as it is multiplied, while it is in the first cache."""
    quantize_rows(hidden[t : t + 1], scratch.rows[t : t + 1], scratch.scale[t : t + 1])


# --- attention ------------------------------------------------------------------------------------


@within
def attend(chunk, scratch, sequence, head, width, size, queries, query_starts, context):
    """Compute the context rows of one head of one sequence: row q for queries[q]."""
    if query_starts[sequence] == query_starts[sequence + 1]:
        return
    start, length, first_column = (
        chunk.starts[sequence],
        chunk.starts[sequence + 1] - chunk.starts[sequence],
        head * size,
    )
    holders, tile_rows = scratch.holders, num_rows_of_tile(scratch.query)
    pack_keys(chunk.qkv, holders, start, length, width + first_column, size, scratch.keys)
    pack_values(chunk.qkv, holders, start, length, 2 * width + first_column, size, scratch.values)
    words = num_whole_steps(scratch.query, size * scratch.query.itemsize // 4)
    token_words = num_whole_steps(scratch.shares, (length * scratch.shares.itemsize + 3) // 4)
    end = query_starts[sequence + 1]
    for top in range(query_starts[sequence], end, tile_rows):
        count = min(tile_rows, end - top)
        for i in range(count):
            token = queries[top + i]
            copy_row(
                chunk.qkv[holders[token], token, first_column : first_column + size],
                scratch.query[i, :size],
            )
        for panel in range(0, length, columns_of_panel(scratch.query)):
            vectors = (min(columns_of_panel(scratch.query), length - panel) + VECTOR - 1) // VECTOR
            begin = panel * words
            multiply_tile(
                scratch.query,
                0,
                count,
                scratch.keys,
                begin,
                vectors,
                words,
                begin,
                0,
                scratch.scores[:, panel:],
            )
        softmax(scratch.scores, count, length, scratch.shares, scratch.factors)
        for panel in range(0, size, COLUMNS):
            vectors, begin = (
                min(VECTORS, (size - panel + VECTOR - 1) // VECTOR),
                panel * token_words,
            )
            multiply_tile(
                scratch.shares,
                0,
                count,
                scratch.values,
                begin,
                vectors,
                token_words,
                begin,
                0,
                scratch.weighted,
            )
            columns = min(COLUMNS, size - panel)
            write_scaled(
                scratch.weighted,
                count,
                scratch.factors,
                columns,
                context,
                top,
                first_column + panel,
            )


@within
def pack_keys(qkv, holders, start, length, first_column, size, out):
    """Transpose keys, of copies qkv [M, T, 3H'], into columns: panels, the last of as many registers as it needs."""
    qkv_words, per = qkv.view(u32), 4 // qkv.itemsize
    words = size // per
    steps = num_whole_steps(qkv, words)
    for panel in range(0, length, columns_of_panel(qkv)):
        columns = min(columns_of_panel(qkv), (length - panel + VECTOR - 1) // VECTOR * VECTOR)
        target = out[panel * steps : (panel + columns) * steps]
        for register in range(columns // VECTOR):
            first, stride = (
                start + panel + register * VECTOR,
                panel_offset(qkv, steps, columns, 0, 1),
            )
            for w in range(0, words, VECTOR):
                at, count = panel_offset(qkv, steps, columns, register, w), min(VECTOR, words - w)
                transpose(
                    qkv_words,
                    holders,
                    first,
                    start + length - 1,
                    first_column // per + w,
                    count,
                    target,
                    at,
                    stride,
                )
            for w in range(words, steps):
                at = panel_offset(qkv, steps, columns, register, w)
                target[at : at + VECTOR] = u32(0)


@within
def pack_values(qkv, holders, start, length, first_column, size, out):
    """Lay values out in words that share a step, two tokens' in bfloat16, in panels of COLUMNS."""
    per = 4 // qkv.itemsize
    words = (length + per - 1) // per
    steps = num_whole_steps(qkv, words)
    for panel in range(0, size, COLUMNS):
        real = min(COLUMNS, size - panel)
        columns = (real + VECTOR - 1) // VECTOR * VECTOR
        target = out[panel * steps : (panel + columns) * steps]
        for w in range(words):
            # An odd one's share is zero
            even, odd = start + w * per, min(start + w * per + 1, start + length - 1)
            first, second = qkv[holders[even], even], qkv[holders[odd], odd]
            for register in range(columns // VECTOR):
                at, begin = (
                    panel_offset(qkv, steps, columns, register, w),
                    first_column + panel + register * VECTOR,
                )
                write_words(first, second, begin, min(VECTOR, real - register * VECTOR), target, at)
        for w in range(words, steps):
            for register in range(columns // VECTOR):
                at = panel_offset(qkv, steps, columns, register, w)
                target[at : at + VECTOR] = u32(0)


def write_words(first: Any, second: Any, begin: int, count: int, out: Any, at: int) -> None:
    """Write numbers of a token as words from out[at] on, or of two tokens where two numbers are a word."""


@overload(write_words, jit_options=WITHIN)
def _overload_write_words(first, second, begin, count, out, at):
    if first.dtype == types.uint16:

        def pairs(first, second, begin, count, out, at):
            if count == VECTOR:
                interleave_tokens(first, second, begin, out, at)
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
    end = num_whole_steps(shares, (length + per - 1) // per) * per
    for i in range(count):
        factors[i] = f32(1) / exponentials(scores, i, length, shares)
        for j in range(length, end):
            shares[i, j] = cast_like(shares, f32(0))


# --- layers ---------------------------------------------------------------------------------------


@within
def compute_qkv(layer, scratch, out):
    """Compute queries, keys and values, out [t, 3H'], of the t rows, at most BLOCK_ROWS, in scratch.rows."""
    count = len(out)
    multiply(scratch.rows[:count], scratch.scale[:count], layer.qkv, scratch.sums, STORE, out)


@within
def feed_forward(layer, scratch, start, end, out, winners, task):
    """Add to out [t, H'] what the inner activations from `start` to `end` of the rows in scratch.rows contribute.

    Stops where another member has done the task in the meantime.
    """
    inner, outer, count = layer.inner, layer.outer, len(out)
    width = len(inner.bias)
    size, outer_size = len(inner.weight) // width, len(outer.weight) // width
    for part_start in range(start, end, layer.part):  # as many as stay in the cache
        if is_done(winners, task):
            return
        part_end = min(part_start + layer.part, width)
        columns = (
            inner.scale[part_start:part_end],
            inner.shift[part_start:part_end],
            inner.bias[part_start:part_end],
        )
        rows, scale, weight = (
            scratch.rows[:count],
            scratch.scale[:count],
            inner.weight[part_start * size : part_end * size],
        )
        multiply_part(
            rows, scale, weight, columns, scratch.sums, layer.activation, scratch.inner[:count]
        )
        quantize_inner_and_add_outliers(
            scratch, part_end - part_start, layer.outer_rows[part_start:], out
        )
        columns = (outer.scale, outer.shift, outer.bias if part_start == 0 else layer.no_bias)
        weight, inner_rows = (
            outer.weight[part_start * outer_size : part_end * outer_size],
            scratch.inner_rows[:count],
        )
        multiply_part(
            inner_rows, scratch.inner_scale[:count], weight, columns, scratch.sums, ADD, out
        )


@within
def gather_and_quantize_context(chunk, scratch, queries, top, bottom, num_heads, size):
    """Write the context rows of queries[top:bottom], quantized, into scratch.rows, from the members who have their heads."""
    for q in range(top, bottom):
        first, row = chunk.sequences[queries[q]] * num_heads, scratch.context[0]
        for head in range(num_heads):
            start, end = head * size, (head + 1) * size
            copy_row(
                chunk.context[scratch.head_holders[first + head], q, start:end], row[start:end]
            )
        quantize_rows(
            scratch.context,
            scratch.rows[q - top : q - top + 1],
            scratch.scale[q - top : q - top + 1],
        )


@within
def num_rows_of_a_task(rows: int, members: int, spare: bool) -> int:
    """Return how many rows are a task: at most BLOCK_ROWS, and one task for every member of a team, or two of them.

    Smaller ones are sooner done again for a member whose core was taken away: one text of 128
    tokens in int8 beside one busy process 62 ms with two each, 80 with one; alone on the machine
    both 34. Where products are fast enough to wait for the weight, two tasks fetch it twice: 20.0
    ms with one each, 21.3 with two, and 13.4 against 16.3 alone.
    """
    tasks = members * max(1 + (spare and members > 1), -(-rows // (members * BLOCK_ROWS)))
    return max(1, -(-rows // tasks))


@within
def num_rows_of_a_half(rows: int, members: int, layer: Layer) -> int:
    """Return how many rows are a task of a half of the feed-forward block, or 0 where a half is no task of its own.

    With halves each member fetches half of that block's weights for twice as many rows: one text of
    16 tokens in int8 3.3 ms for 4.7, but two more meetings a layer.
    """
    block = -(-2 * rows // members)
    divided = layer.middle < len(layer.inner.bias)
    return block if divided and members > 1 and block <= BLOCK_ROWS else 0


@within
def note_members_with_rows(winners, size, holders):
    """Write into `holders` the member that has each row or head, given the winners of tasks of `size` rows or heads."""
    for task in range(num_tasks_for(len(holders), size)):
        for n in range(task * size, min((task + 1) * size, len(holders))):
            holders[n] = winners[task] - 1


@within
def num_tasks_for(count, task_size):
    """Return how many tasks so many rows or heads are."""
    return (count + task_size - 1) // task_size


@within
def copy_row(source, target):
    """Copy a row."""
    for c in range(len(target)):
        target[c] = source[c]


# --- phases ---------------------------------------------------------------------------------------


@within
def take_task_of_phase(call, progress, layer_number, phase, tasks, scratch):
    """Return a task of a layer's phase for this member, or -1; see `team.take_task`."""
    return take_task(
        progress,
        NUM_PHASES * layer_number + phase,
        tasks,
        call.member,
        call.members,
        scratch.patience[phase],
    )


@within
def finish_task_of_phase(call, progress, layer_number, phase, task, began, scratch):
    """Mark as done a task of a layer's phase, see `team.finish_task`; others wait no longer than such a task takes."""
    duration = finish_task(
        progress,
        NUM_PHASES * layer_number + phase,
        task,
        call.member,
        began,
        np.int64(phase == HEADS),
    )
    scratch.patience[phase] = min(scratch.patience[phase], duration // PATIENCE)


@within
def compute_layer_input_and_qkv(call, ids, tables, layer, layer_number, chunk, progress, scratch):
    """Compute a layer's input, out of the layer before or of embeddings, and the queries, keys and values of it."""
    last, member_hidden = call.last and layer_number == call.repeats, chunk.hidden[call.member]
    queries, block = (
        (chunk.selected, chunk.selected_block) if last else (chunk.everyone, chunk.block)
    )
    winners = progress.winners[NUM_PHASES * layer_number + ROWS]
    tasks = num_tasks_for(len(queries), block)
    task = take_task_of_phase(call, progress, layer_number, ROWS, tasks, scratch)
    while task >= 0:
        began = read_cycle_counter()
        top, bottom = task * block, min((task + 1) * block, len(queries))
        hidden = member_hidden[layer_number % 2, top:bottom]
        if layer_number == 0:
            write_first_layer_input(ids, tables, chunk, top, bottom, scratch, hidden)
        elif chunk.half_block:
            halves = progress.winners[NUM_PHASES * (layer_number - 1) + HALVES]
            add_halves(layer, chunk, halves, top, bottom, len(queries), scratch, hidden)
        else:
            attend_rows(layer, chunk, scratch, layer_number - 1, queries, top, bottom, hidden)
            apply_feed_forward(layer, scratch, hidden, winners, task)
        if layer_number < call.repeats and not is_done(winners, task):
            compute_qkv(layer, scratch, chunk.qkv[call.member, top:bottom])
        finish_task_of_phase(call, progress, layer_number, ROWS, task, began, scratch)
        task = take_task_of_phase(call, progress, layer_number, ROWS, tasks, scratch)


@within
def write_first_layer_input(ids, tables, chunk, top, bottom, scratch, hidden):
    """Write the first layer's input of tokens top to bottom to hidden, and as it is multiplied."""
    if len(ids.words):
        embed(ids, tables, top, bottom, scratch, hidden)
    for t in range(len(hidden)):
        if not len(ids.words):
            copy_row(chunk.input_states[top + t], hidden[t])
        prepare_row(hidden, t, scratch)


@within
def compute_contexts_of_heads(
    call, layer, layer_number, queries, query_starts, chunk, progress, scratch
):
    """Compute the context of heads."""
    width = len(layer.attention_norm.weight)
    size, heads = width // layer.num_heads, (len(chunk.starts) - 1) * layer.num_heads
    tasks = num_tasks_for(heads, chunk.group)
    task = take_task_of_phase(call, progress, layer_number, HEADS, tasks, scratch)
    while task >= 0:
        began = read_cycle_counter()
        for pair in range(task * chunk.group, min((task + 1) * chunk.group, heads)):
            sequence, head = pair // layer.num_heads, pair % layer.num_heads
            attend(
                chunk,
                scratch,
                sequence,
                head,
                width,
                size,
                queries,
                query_starts,
                chunk.context[call.member],
            )
        finish_task_of_phase(call, progress, layer_number, HEADS, task, began, scratch)
        task = take_task_of_phase(call, progress, layer_number, HEADS, tasks, scratch)
    note_members_with_rows(
        progress.winners[NUM_PHASES * layer_number + HEADS],
        chunk.group,
        scratch.head_holders[:heads],
    )


@within
def compute_feed_forward_input(call, layer, layer_number, queries, block, chunk, progress, scratch):
    """Compute the input of the feed-forward block, where halves of it are tasks."""
    tasks = num_tasks_for(len(queries), block)
    task = take_task_of_phase(call, progress, layer_number, ATTENDED, tasks, scratch)
    while task >= 0:
        began = read_cycle_counter()
        top, bottom = task * block, min((task + 1) * block, len(queries))
        attend_rows(
            layer,
            chunk,
            scratch,
            layer_number,
            queries,
            top,
            bottom,
            chunk.halves[call.member, 0, top:bottom],
        )
        finish_task_of_phase(call, progress, layer_number, ATTENDED, task, began, scratch)
        task = take_task_of_phase(call, progress, layer_number, ATTENDED, tasks, scratch)
    note_members_with_rows(
        progress.winners[NUM_PHASES * layer_number + ATTENDED],
        block,
        scratch.holders[: len(queries)],
    )


@within
def compute_feed_forward_halves(call, layer, layer_number, count, chunk, progress, scratch):
    """Compute the halves of the feed-forward block for `count` rows: the first adds to its input."""
    winners, block = progress.winners[NUM_PHASES * layer_number + HALVES], chunk.half_block
    tasks = 2 * num_tasks_for(count, block)
    task = take_task_of_phase(call, progress, layer_number, HALVES, tasks, scratch)
    while task >= 0:
        began = read_cycle_counter()
        half, top = task // (tasks // 2), task % (tasks // 2) * block
        bottom = min(top + block, count)
        out = chunk.halves[call.member, 1 + half, top:bottom]
        for q in range(top, bottom):
            copy_row(chunk.halves[scratch.holders[q], 0, q], out[q - top])
        quantize_rows(out, scratch.rows[: bottom - top], scratch.scale[: bottom - top])
        start, end = 0, layer.middle
        if half:
            start, end = layer.middle, len(layer.inner.bias)
            fill_with_zeros(out)
        feed_forward(layer, scratch, start, end, out, winners, task)
        finish_task_of_phase(call, progress, layer_number, HALVES, task, began, scratch)
        task = take_task_of_phase(call, progress, layer_number, HALVES, tasks, scratch)


@within
def attend_rows(layer, chunk, scratch, layer_number, queries, top, bottom, hidden):
    """Write the input of a layer's feed-forward block, of queries[top:bottom], to hidden, and as it is multiplied.

    It is the output of attention, gathered from the members that have its parts, plus the layer's
    input.
    """
    count, width = len(hidden), len(layer.attention_norm.weight)
    gather_and_quantize_context(
        chunk, scratch, queries, top, bottom, layer.num_heads, width // layer.num_heads
    )
    multiply(
        scratch.rows[:count],
        scratch.scale[:count],
        layer.attention_output,
        scratch.sums,
        STORE,
        hidden,
    )
    for t in range(count):
        token = queries[top + t]
        add_row(chunk.hidden[scratch.holders[token], layer_number % 2, token], hidden[t])
        layer_norm_row(hidden[t], layer.attention_norm)
        if not chunk.half_block:
            prepare_row(hidden, t, scratch)


@within
def apply_feed_forward(layer, scratch, hidden, winners, task):
    """Apply both halves of the feed-forward block to hidden [t, H'], in place, prepared before and after."""
    count, end = len(hidden), len(layer.inner.bias)
    second, divided = scratch.second[:count], layer.middle < end
    if divided:
        fill_with_zeros(second)
    for half in range(1 + divided):
        start, stop, out = (layer.middle, end, second) if half else (0, layer.middle, hidden)
        feed_forward(layer, scratch, start, stop, out, winners, task)
    for t in range(count):
        if divided:
            add_row(second[t], hidden[t])
        layer_norm_row(hidden[t], layer.ffn_norm)
        prepare_row(hidden, t, scratch)


@within
def add_halves(layer, chunk, winners, top, bottom, count, scratch, hidden):
    """Write rows top to bottom, of `count`, to hidden, the layer's output, from the members who have its halves."""
    tasks = num_tasks_for(count, chunk.half_block)
    for q in range(top, bottom):
        first, second = (
            winners[q // chunk.half_block] - 1,
            winners[tasks + q // chunk.half_block] - 1,
        )
        first_sums, second_sums, row = (
            chunk.halves[first, 1, q],
            chunk.halves[second, 2, q],
            hidden[q - top],
        )
        for c in range(len(row)):
            row[c] = first_sums[c] + second_sums[c]
        layer_norm_row(row, layer.ffn_norm)
        prepare_row(hidden, q - top, scratch)


@within
def add_row(source, target):
    """Add a row to another."""
    for c in range(len(target)):
        target[c] += source[c]


@within
def fill_with_zeros(rows):
    """Fill rows with zeros."""
    for t in range(len(rows)):
        row = rows[t]
        for c in range(len(row)):
            row[c] = f32(0)


@loops
def run(call, ids, tables, layer, chunk, progress, scratch):
    """Apply one layer to a chunk as many times as `call.repeats` says, as one of the members of a thread team.

    All members call this with the same chunk and progress, and return when all is done. The output
    is in the members' copies `hidden[:, repeats % 2]`; progress.winners[-1] has their numbers. With
    `call.last`, only selected tokens have output.
    """
    entered = read_cycle_counter()
    matrix_tiles.configure()
    scratch.patience[:] = FIRST_PATIENCE
    for layer_number in range(call.repeats + 1):
        compute_layer_input_and_qkv(
            call, ids, tables, layer, layer_number, chunk, progress, scratch
        )
        if layer_number == call.repeats:
            break
        note_members_with_rows(
            progress.winners[NUM_PHASES * layer_number + ROWS],
            chunk.block,
            scratch.holders[: len(chunk.everyone)],
        )
        queries, query_starts, block = chunk.everyone, chunk.starts, chunk.block
        if call.last and layer_number == call.repeats - 1:
            queries, query_starts, block = (
                chunk.selected,
                chunk.selected_starts,
                chunk.selected_block,
            )
        compute_contexts_of_heads(
            call, layer, layer_number, queries, query_starts, chunk, progress, scratch
        )
        if chunk.half_block:
            compute_feed_forward_input(
                call, layer, layer_number, queries, block, chunk, progress, scratch
            )
            compute_feed_forward_halves(
                call, layer, layer_number, len(queries), chunk, progress, scratch
            )
    progress.spent[call.member, 2] = read_cycle_counter() - entered
    matrix_tiles.release()
