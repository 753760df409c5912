"""Early exit in one compiled loop: sequences leave after as many layers as they need, and waiting ones take their places.

All layers have the same weights, so rows of sequences at different layers share one matrix product; no other network can do that.
A step applies the layer to all rows that are in: those of sequences that stayed, packed anew, and of sequences that enter. After
it their first tokens' states go through pooler and classifiers, whose logits the members of the team share. Who leaves every
member finds out by itself: that needs no meeting, and who lost its core can do it later, since logits are never overwritten.

Source of the idea: Bae et al. 2025, Relaxed Recursive Transformers, section 3.8.
N sequences, L layers, C classes, P rows at most, M members; else as in `fused_layers`.
"""

from typing import NamedTuple

import numpy as np

from albertkit.engines.arithmetic import f32, loops, within
from albertkit.engines.cpu import matrix_tiles
from albertkit.engines.cpu.layers import (
    BLOCK_ROWS,
    DECIDED,
    HALVES,
    KINDS,
    ROWS,
    SHARES,
    Chunk,
    add_halves,
    attend_rows,
    begin_layer,
    copy,
    do_attended,
    do_halves,
    do_heads,
    embed,
    end_task,
    multiply,
    next_task,
    note_holders,
    prepare_row,
    rows_of_a_half,
    rows_of_a_task,
    tasks_of,
    whole_feed_forward,
)
from albertkit.engines.cpu.team import FIRST_PATIENCE, cycles, is_done
from albertkit.engines.cpu.tile_outputs import TANH
from albertkit.engines.early_exit import is_sure


class Own(NamedTuple):
    """Memory of a member: the sequences, and the rows of this step and the one before, by turns [2, …]."""

    who: np.ndarray  # int64 [2, P], the sequences that are in
    starts: np.ndarray  # int64 [2, P + 1], of them among the rows
    sequences: np.ndarray  # int64 [2, P], the place of a row's sequence among those that are in
    queries: np.ndarray  # int64 [2, P], rows of those that stay
    query_starts: np.ndarray  # int64 [2, P + 1], of the sequences among these
    counts: np.ndarray  # int64 [2], sequences that are in
    halves: np.ndarray  # int64 [2], see `Chunk.half_block`
    entered: np.ndarray  # int64 [1], sequences that have entered so far
    layers: np.ndarray  # int64 [N], how many each has had
    said: np.ndarray  # int64 [N], see `is_sure`
    agreed: np.ndarray  # int64 [N]
    pooled: np.ndarray  # fp32 [BLOCK_ROWS, H']
    logits: np.ndarray  # fp32 [N, C], the answers


class ExitStep(NamedTuple):
    """Sequences and rows of a step; first come those that have had a layer."""

    number: int
    now: int  # which half of `Own`'s memory is this step's
    inside: int  # sequences
    old: int  # of which have had a layer
    rows: int
    old_rows: int
    last_rows: int  # rows of sequences for which this was the last layer; they are the first
    first_id: int  # the token of the batch that is the first new row


def new_own(sequences: int, classes: int, rows: int, width: int) -> Own:
    """Return the memory of a member at the beginning."""

    def numbers(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int64)

    return Own(
        who=numbers(2, rows),
        starts=numbers(2, rows + 1),
        sequences=numbers(2, rows),
        queries=numbers(2, rows),
        query_starts=numbers(2, rows + 1),
        counts=numbers(2),
        halves=numbers(2),
        entered=numbers(1),
        layers=numbers(sequences),
        said=np.full(sequences, -1),
        agreed=numbers(sequences),
        pooled=np.zeros((BLOCK_ROWS, width), np.float32),
        logits=np.zeros((sequences, classes), np.float32),
    )


@within
def next_step(own, starts, number, room, most_layers):
    """Return the next step: sequences that stayed, and those that wait as far as there is room."""
    now, before = number % 2, (number + 1) % 2
    count = rows = last_rows = 0
    for place in range(own.counts[before]):
        length = own.query_starts[before, place + 1] - own.query_starts[before, place]
        if length:
            n = own.who[before, place]
            enter(own, now, count, n, rows, length)
            count, rows = count + 1, rows + length
            last_rows = rows if own.layers[n] + 1 == most_layers else last_rows
    old, old_rows, n = count, rows, own.entered[0]
    first_id = starts[n]
    while n < len(starts) - 1 and rows + starts[n + 1] - starts[n] <= room:
        length = starts[n + 1] - starts[n]
        enter(own, now, count, n, rows, length)
        count, rows, n = count + 1, rows + length, n + 1
    own.entered[0], own.counts[now] = n, count
    return ExitStep(number, now, count, old, rows, old_rows, last_rows, first_id)


@within
def enter(own, now, place, n, row, length):
    """Note that sequence n has rows from `row` on."""
    own.who[now, place], own.starts[now, place], own.starts[now, place + 1] = n, row, row + length
    for r in range(row, row + length):
        own.sequences[now, r] = place


@within
def chunk_of(chunk, own, which, count, rows, group):
    """Return the chunk of the sequences that are in."""
    starts, sequences = own.starts[which, : count + 1], own.sequences[which, :rows]
    return Chunk(
        chunk.given,
        chunk.hidden,
        chunk.qkv,
        chunk.context,
        starts,
        sequences,
        chunk.everyone,
        chunk.wanted,
        chunk.wanted_starts,
        chunk.block,
        chunk.wanted_block,
        own.halves[which],
        chunk.halves,
        group,
    )


@within
def do_step_rows(call, ids, tables, layer, step, chunk, own, progress, scratch):
    """Compute the rows of a step and their queries, keys and values; see `fused_layers.do_rows`."""
    before = chunk_of(chunk, own, 1 - step.now, own.counts[1 - step.now], own.sequences.shape[1], 1)
    queries, block = own.queries[1 - step.now], rows_of_a_task(step.rows, call.members, False)
    done, tasks = progress.done[KINDS * step.number + ROWS], tasks_of(step.rows, block)
    task = next_task(call, progress, step.number, ROWS, tasks, scratch)
    while task >= 0:
        began = cycles()
        top, bottom = task * block, min((task + 1) * block, step.rows)
        middle = max(top, min(bottom, step.old_rows))
        hidden = chunk.hidden[call.member, step.now, top:bottom]
        if top < middle:
            some = hidden[: middle - top]
            if before.half_block:
                halves = progress.done[KINDS * (step.number - 1) + HALVES]
                add_halves(layer, before, halves, top, middle, step.old_rows, scratch, some)
            else:
                attend_rows(layer, before, scratch, step.number - 1, queries, top, middle, some)
                whole_feed_forward(layer, scratch, some, done, task)
        if middle < bottom:
            first = step.first_id + middle - step.old_rows
            embed(ids, tables, first, first + bottom - middle, scratch, hidden[middle - top :])
            for t in range(middle - top, bottom - top):
                prepare_row(hidden, t, scratch)
        if bottom > step.last_rows and not is_done(done, task):
            begin_layer(layer, scratch, chunk.qkv[call.member, top:bottom])
        end_task(call, progress, step.number, ROWS, task, began, scratch)
        task = next_task(call, progress, step.number, ROWS, tasks, scratch)
    note_holders(done, block, scratch.holders[: step.rows])


@within
def do_logits(call, exits, pooler, step, chunk, logits, own, progress, scratch):
    """Compute logits [M, N, L, C] of the sequences that have had a layer; return how many are a task."""
    size = min(BLOCK_ROWS, max(1, (step.old + call.members - 1) // call.members))
    tasks = tasks_of(step.old, size)
    task = next_task(call, progress, step.number, DECIDED, tasks, scratch)
    while task >= 0:
        began = cycles()
        top, count = task * size, min(size, step.old - task * size)
        first, pooled = scratch.second[:count], own.pooled[:count]
        for i in range(count):
            row = own.starts[step.now, top + i]
            copy(chunk.hidden[scratch.holders[row], step.now, row], first[i])
        multiply(first, scratch.ones[:count], pooler, scratch.weighted, TANH, pooled)
        for i in range(count):
            n = own.who[step.now, top + i]
            classify(pooled[i], exits, own.layers[n], logits[call.member, n, own.layers[n]])
        end_task(call, progress, step.number, DECIDED, task, began, scratch)
        task = next_task(call, progress, step.number, DECIDED, tasks, scratch)
    return size


@within
def classify(pooled, exits, layer, out):
    """Apply the classifier after a layer to the pooler's output [H'], into out [C]."""
    for c in range(len(out)):
        weight, total = exits.weight[layer, c], f32(0)
        for h in range(len(weight)):
            total += pooled[h] * weight[h]
        out[c] = total + exits.bias[layer, c]


@within
def leave(exits, step, size, done, logits, own):
    """Let sequences leave that may; list the rows that the next layer has of the others, and return how many they are."""
    now, rows = step.now, 0
    for place in range(step.inside):
        own.query_starts[now, place] = rows
        n, stays = own.who[now, place], True
        if place < step.old:
            found = logits[done[place // size] - 1, n, own.layers[n]]
            own.layers[n] += 1
            if is_sure(found, exits, n, own.said, own.agreed) or own.layers[n] == len(exits.bias):
                stays = False
                copy(found, own.logits[n])
        if stays:
            start, end = own.starts[now, place], own.starts[now, place + 1]
            if own.layers[n] + 1 == len(exits.bias):  # nothing reads other states of the last layer
                end = start + 1
            for row in range(start, end):
                own.queries[now, rows] = row
                rows += 1
    own.query_starts[now, step.inside] = rows
    return rows


@loops
def run_until_sure(call, starts, ids, tables, layer, chunk, exits, pooler, logits, own, progress, scratch):
    """Run sequences, whose tokens' starts are int64 [N + 1], until they leave, as one of the members of a thread team.

    All members call this with the same arguments but for `own` and `scratch`, and return when all is done; all know the answers
    then. `call.repeats` is how many steps there are at most.
    """
    entered = cycles()
    matrix_tiles.configure()
    scratch.patience[:] = FIRST_PATIENCE
    for number in range(call.repeats):
        step = next_step(own, starts, number, chunk.hidden.shape[2], len(exits.bias))
        if not step.inside:
            break
        do_step_rows(call, ids, tables, layer, step, chunk, own, progress, scratch)
        size = do_logits(call, exits, pooler, step, chunk, logits, own, progress, scratch)
        stay = leave(exits, step, size, progress.done[KINDS * number + DECIDED], logits, own)
        own.halves[step.now] = rows_of_a_half(stay, call.members, layer)
        group = max(1, step.inside * layer.num_heads // (call.members * SHARES))
        here = chunk_of(chunk, own, step.now, step.inside, step.rows, group)
        queries, query_starts = own.queries[step.now, :stay], own.query_starts[step.now, : step.inside + 1]
        do_heads(call, layer, number, queries, query_starts, here, progress, scratch)
        if here.half_block:
            block = rows_of_a_task(stay, call.members, False)
            do_attended(call, layer, number, queries, block, here, progress, scratch)
            do_halves(call, layer, number, stay, here, progress, scratch)
    progress.spent[call.member, 2] = cycles() - entered
    matrix_tiles.release()
