"""Early exit: a classifier after every layer, when its answer is believed, and an encoder that is run no further.

An engine of packed weights does it in one compiled loop: sequences leave after as many layers as
they need, and waiting ones take their places. All layers have the same weights, so rows of
sequences at different layers share one matrix product; no other network can do that. A step applies
the layer to all rows that are in: those of sequences that stayed, packed anew, and of sequences
that enter. After it their first tokens' states go through pooler and classifiers, whose logits the
team shares. Who leaves every member finds out by itself: that needs no meeting, and who lost its
core can do it later, since logits are never overwritten.

L layers, N sequences, C classes, H hidden, P rows at most, M members; else as in `cpu.layers`.
Sources: Zhou et al. 2020, PABEE, section 3 (patience); Xin et al. 2020, DeeBERT, section 3
(entropy); Bae et al. 2025, Relaxed Recursive Transformers, section 3.8 (rows at different layers
together).
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.batches.packed import PackedBatch
from albertkit.engines.arithmetic import f32, loops, within
from albertkit.engines.cpu import matrix_tiles
from albertkit.engines.cpu.engine import (
    CHUNK_TOKENS,
    MAX_COPIED_TOKENS,
    TEAM,
    FusedEngine,
    num_team_threads,
)
from albertkit.engines.cpu.layers import (
    BLOCK_ROWS,
    DECIDED,
    HALVES,
    NUM_PHASES,
    ROWS,
    SHARES,
    Call,
    Chunk,
    add_halves,
    apply_feed_forward,
    attend_rows,
    compute_contexts_of_heads,
    compute_feed_forward_halves,
    compute_feed_forward_input,
    compute_qkv,
    copy_row,
    embed,
    finish_task_of_phase,
    multiply,
    note_members_with_rows,
    num_rows_of_a_half,
    num_rows_of_a_task,
    num_tasks_for,
    prepare_row,
    take_task_of_phase,
)
from albertkit.engines.cpu.team import FIRST_PATIENCE, is_done, new_progress, read_cycle_counter
from albertkit.engines.cpu.tile_outputs import TANH
from albertkit.engines.engine import Engine, ModelEngine, evaluation_mode
from albertkit.errors import ConfigError
from albertkit.model.pretrained import AlbertModel


class Exits(NamedTuple):
    """Linear layers over the pooler's output after every layer, the last the model's own, and a rule."""

    weight: np.ndarray  # fp32 [L, C, H]
    bias: np.ndarray  # fp32 [L, C]
    # Leave after so many layers in a row with the same label as the layer before; 0: by entropy
    patience: int
    threshold: float  # leave as soon as the entropy, as a share of its maximum, is below


class Exited(NamedTuple):
    """Answers of sequences that left as soon as they could."""

    logits: Tensor  # fp32 [N, C]
    layers: Tensor  # int64 [N], how many they had


def exit_early(engine: Engine, batch: PackedBatch, exits: Exits) -> Exited:
    """Classify sequences with as few layers as each needs; for models of one layer that is run L times.

    Args:
        engine: Of the model's encoder.
        batch: T tokens of N sequences, on the model's device.
        exits: Classifiers after every layer, and the rule.

    Raises:
        ConfigError: bad-value for a model over ONNX Runtime.
    """
    if isinstance(engine, FusedEngine):
        substitute = engine.repack_or_replace()
        if substitute is None:
            return _exit_packed(engine, batch, exits)
        engine = substitute
    if not isinstance(engine, ModelEngine):
        hint = "leave early exit out, or name the model's own folder"
        raise ConfigError("bad-value", "an ONNX model runs all its layers at once", hint)
    return _exit_model(engine, batch, exits)


@torch.inference_mode()
def _exit_model(engine: ModelEngine, batch: PackedBatch, exits: Exits) -> Exited:
    """Run the model itself, layer by layer."""
    model, count, lengths = engine.model, batch.num_sequences, np.array(batch.lengths)
    exit_logits, exit_layers = (
        np.empty((count, exits.weight.shape[1]), np.float32),
        np.zeros(count, np.int64),
    )
    labels, agreed, active = np.full(count, -1), np.zeros(count, np.int64), np.arange(count)
    with evaluation_mode(model):
        layer, weights = model.encoder.layers(engine.dtype)[0]
        hidden = model.encoder.embedding_hidden_mapping_in(model.embeddings(batch)).to(engine.dtype)
        for number, (weight, bias) in enumerate(
            zip(exits.weight, exits.bias, strict=True), start=1
        ):
            # Attention needs the offsets of the sequences alone; the ids are zeros
            ids = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
            active_lengths = lengths[active]
            offsets = torch.from_numpy(np.append(0, np.cumsum(active_lengths))).to(hidden.device)
            active_batch = PackedBatch(ids, ids, ids, offsets, tuple(active_lengths.tolist()))
            hidden = layer(hidden, weights, active_batch)
            logits = (
                pooler_output(model, hidden[active_batch.starts]).cpu().numpy() @ weight.T + bias
            )
            exit_logits[active], exit_layers[active] = logits, number
            stay = ~select_leaving(logits, exits, active, labels, agreed)
            if not stay.any():
                break
            rows = np.repeat(stay, active_lengths)
            hidden, active = hidden[torch.from_numpy(rows).to(hidden.device)], active[stay]
    return Exited(torch.from_numpy(exit_logits), torch.from_numpy(exit_layers))


def pooler_output(model: AlbertModel, first: Tensor) -> Tensor:
    """Return the pooler's output for states of first tokens [N, H], in fp32."""
    pooler = model.pooler
    assert pooler is not None
    return torch.tanh(F.linear(first.float(), pooler.weight.float(), pooler.bias.float()))


def _exit_packed(engine: FusedEngine, batch: PackedBatch, exits: Exits) -> Exited:
    """Run the compiled loop over packed weights."""
    assert engine.pooler is not None
    ids, layer = engine.checked_ids(batch, None), engine.layers[0][0]
    starts, longest = np.append(0, np.cumsum(batch.lengths)), max(batch.lengths)
    members = num_team_threads()
    max_layers, classes, _ = exits.weight.shape
    room = min(
        batch.num_tokens,
        max(min(CHUNK_TOKENS * members, MAX_COPIED_TOKENS // members), 2 * longest),
    )
    free, states = engine.take_states(layer, members, room)
    chunk = engine.make_chunk(layer, np.array([room]), None, ids, states)
    # While sequences wait, more than half of the room is taken; afterwards each has at most its
    # layers to go.
    steps = 2 * max_layers * batch.num_tokens // room + max_layers + 1
    tasks = max(2 * members * SHARES, -(-room // BLOCK_ROWS) + members)
    progress = new_progress(NUM_PHASES * steps, tasks, members)
    scratch = [engine.take_scratch(layer, longest, room) for _ in range(members)]
    member_states = [
        new_member_state(batch.num_sequences, classes, room, layer.outer.bias.size)
        for _ in range(members)
    ]
    logits = np.empty((members, batch.num_sequences, max_layers, classes), np.float32)

    def work(member: int, members: int) -> None:
        call = Call(member, members, steps, last=False)
        common = starts, ids, engine.tables, layer, chunk, exits, engine.pooler, logits
        run_until_sure(call, *common, member_states[member], progress, scratch[member])

    TEAM.run(work, members, partial(engine.reclaim_memory, progress, scratch, free))
    return Exited(
        torch.from_numpy(member_states[0].logits), torch.from_numpy(member_states[0].layers)
    )


# --- the rule -------------------------------------------------------------------------------------


@within
def may_exit(logits, exits, sequence, labels, num_agreed):
    """Return whether a sequence, named by its index, may leave, given its logits [C] after one more layer.

    `labels` and `num_agreed` hold for every sequence, int64 [N], its label (-1 at first), and how many
    layers agreed in a row.
    """
    if not exits.patience:
        return entropy_share(logits) < exits.threshold
    label = 0
    for c in range(1, len(logits)):
        if logits[c] > logits[label]:
            label = c
    num_agreed[sequence] = num_agreed[sequence] + 1 if labels[sequence] == label else 0
    labels[sequence] = label
    return num_agreed[sequence] >= exits.patience


@loops
def select_leaving(logits, exits, numbers, labels, agreed):
    """Return whether sequences `numbers`, int64 [n], may leave, bool [n], given their logits [n, C]; see `may_exit`."""
    sure = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        sure[i] = may_exit(logits[i], exits, numbers[i], labels, agreed)
    return sure


@within
def entropy_share(logits):
    """Return the entropy of softmax(logits [C]) as a share of its maximum, log C."""
    top, total, entropy = logits[0], f32(0), f32(0)
    for c in range(1, len(logits)):
        top = max(top, logits[c])
    for c in range(len(logits)):
        total += np.exp(logits[c] - top)
    for c in range(len(logits)):
        log_share = logits[c] - top - np.log(total)
        entropy -= np.exp(log_share) * log_share
    return entropy / np.log(f32(max(2, len(logits))))


# --- the compiled loop of an engine of packed weights ---------------------------------------------


class MemberState(NamedTuple):
    """Memory of a member: the sequences, and the rows of this step and the one before, in two slots [2, …]."""

    active: np.ndarray  # int64 [2, P], the sequences that are in
    starts: np.ndarray  # int64 [2, P + 1], of them among the rows
    sequences: np.ndarray  # int64 [2, P], the place of a row's sequence among those that are in
    queries: np.ndarray  # int64 [2, P], rows of those that stay
    query_starts: np.ndarray  # int64 [2, P + 1], of the sequences among these
    counts: np.ndarray  # int64 [2], sequences that are in
    halves: np.ndarray  # int64 [2], see `Chunk.half_block`
    entered: np.ndarray  # int64 [1], sequences that have entered so far
    layers: np.ndarray  # int64 [N], how many each has had
    labels: np.ndarray  # int64 [N], see `may_exit`
    agreed: np.ndarray  # int64 [N]
    pooled: np.ndarray  # fp32 [BLOCK_ROWS, H']
    logits: np.ndarray  # fp32 [N, C], the answers


class ExitStep(NamedTuple):
    """Sequences and rows of a step; first come those that have had a layer."""

    number: int
    now: int  # slot of `MemberState` that is this step's
    num_sequences: int  # sequences
    old: int  # of which have had a layer
    rows: int
    old_rows: int
    last_rows: int  # rows of sequences for which this was the last layer; they are the first
    first_id: int  # the token of the batch that is the first new row


def new_member_state(sequences: int, classes: int, rows: int, width: int) -> MemberState:
    """Return the memory of a member before the first step."""

    def numbers(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int64)

    return MemberState(
        active=numbers(2, rows),
        starts=numbers(2, rows + 1),
        sequences=numbers(2, rows),
        queries=numbers(2, rows),
        query_starts=numbers(2, rows + 1),
        counts=numbers(2),
        halves=numbers(2),
        entered=numbers(1),
        layers=numbers(sequences),
        labels=np.full(sequences, -1),
        agreed=numbers(sequences),
        pooled=np.zeros((BLOCK_ROWS, width), np.float32),
        logits=np.zeros((sequences, classes), np.float32),
    )


@within
def pack_next_step(state, starts, number, room, most_layers):
    """Return the next step: sequences that stayed, and those that wait as far as there is room."""
    now, before = number % 2, (number + 1) % 2
    count = rows = last_rows = 0
    for index in range(state.counts[before]):
        length = state.query_starts[before, index + 1] - state.query_starts[before, index]
        if length:
            n = state.active[before, index]
            place_sequence(state, now, count, n, rows, length)
            count, rows = count + 1, rows + length
            last_rows = rows if state.layers[n] + 1 == most_layers else last_rows
    old, old_rows, n = count, rows, state.entered[0]
    first_id = starts[n]
    while n < len(starts) - 1 and rows + starts[n + 1] - starts[n] <= room:
        length = starts[n + 1] - starts[n]
        place_sequence(state, now, count, n, rows, length)
        count, rows, n = count + 1, rows + length, n + 1
    state.entered[0], state.counts[now] = n, count
    return ExitStep(number, now, count, old, rows, old_rows, last_rows, first_id)


@within
def place_sequence(state, slot, index, sequence, first_row, num_rows):
    """Record that a sequence, the index-th of a slot, has `num_rows` rows from `first_row` on."""
    state.active[slot, index], state.starts[slot, index], state.starts[slot, index + 1] = (
        sequence,
        first_row,
        first_row + num_rows,
    )
    for r in range(first_row, first_row + num_rows):
        state.sequences[slot, r] = index


@within
def chunk_of_active_sequences(chunk, state, slot, count, rows, group):
    """Return the chunk of the sequences that are in."""
    starts, sequences = state.starts[slot, : count + 1], state.sequences[slot, :rows]
    return Chunk(
        chunk.input_states,
        chunk.hidden,
        chunk.qkv,
        chunk.context,
        starts,
        sequences,
        chunk.everyone,
        chunk.selected,
        chunk.selected_starts,
        chunk.block,
        chunk.selected_block,
        state.halves[slot],
        chunk.halves,
        group,
    )


@within
def compute_rows_of_step(call, ids, tables, layer, step, chunk, state, progress, scratch):
    """Compute the rows of a step and their queries, keys and values; see `layers.compute_layer_input_and_qkv`."""
    before = chunk_of_active_sequences(
        chunk, state, 1 - step.now, state.counts[1 - step.now], state.sequences.shape[1], 1
    )
    queries, block = state.queries[1 - step.now], num_rows_of_a_task(step.rows, call.members, False)
    winners = progress.winners[NUM_PHASES * step.number + ROWS]
    tasks = num_tasks_for(step.rows, block)
    task = take_task_of_phase(call, progress, step.number, ROWS, tasks, scratch)
    while task >= 0:
        began = read_cycle_counter()
        top, bottom = task * block, min((task + 1) * block, step.rows)
        middle = max(top, min(bottom, step.old_rows))
        hidden = chunk.hidden[call.member, step.now, top:bottom]
        if top < middle:
            old_hidden = hidden[: middle - top]
            if before.half_block:
                halves = progress.winners[NUM_PHASES * (step.number - 1) + HALVES]
                add_halves(layer, before, halves, top, middle, step.old_rows, scratch, old_hidden)
            else:
                attend_rows(
                    layer, before, scratch, step.number - 1, queries, top, middle, old_hidden
                )
                apply_feed_forward(layer, scratch, old_hidden, winners, task)
        if middle < bottom:
            first = step.first_id + middle - step.old_rows
            embed(ids, tables, first, first + bottom - middle, scratch, hidden[middle - top :])
            for t in range(middle - top, bottom - top):
                prepare_row(hidden, t, scratch)
        if bottom > step.last_rows and not is_done(winners, task):
            compute_qkv(layer, scratch, chunk.qkv[call.member, top:bottom])
        finish_task_of_phase(call, progress, step.number, ROWS, task, began, scratch)
        task = take_task_of_phase(call, progress, step.number, ROWS, tasks, scratch)
    note_members_with_rows(winners, block, scratch.holders[: step.rows])


@within
def compute_exit_logits(call, exits, pooler, step, chunk, logits, state, progress, scratch):
    """Compute logits [M, N, L, C] of the sequences that have had a layer; return how many are a task."""
    size = min(BLOCK_ROWS, max(1, (step.old + call.members - 1) // call.members))
    tasks = num_tasks_for(step.old, size)
    task = take_task_of_phase(call, progress, step.number, DECIDED, tasks, scratch)
    while task >= 0:
        began = read_cycle_counter()
        top, count = task * size, min(size, step.old - task * size)
        first, pooled = scratch.second[:count], state.pooled[:count]
        for i in range(count):
            row = state.starts[step.now, top + i]
            copy_row(chunk.hidden[scratch.holders[row], step.now, row], first[i])
        multiply(first, scratch.unit_scale[:count], pooler, scratch.weighted, TANH, pooled)
        for i in range(count):
            n = state.active[step.now, top + i]
            classify(pooled[i], exits, state.layers[n], logits[call.member, n, state.layers[n]])
        finish_task_of_phase(call, progress, step.number, DECIDED, task, began, scratch)
        task = take_task_of_phase(call, progress, step.number, DECIDED, tasks, scratch)
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
def take_out_sure_sequences(exits, step, size, winners, logits, state):
    """Take out the sequences that may leave; list the rows of the others for the next layer, and return their number."""
    now, rows = step.now, 0
    for index in range(step.num_sequences):
        state.query_starts[now, index] = rows
        n, stays = state.active[now, index], True
        if index < step.old:
            sequence_logits = logits[winners[index // size] - 1, n, state.layers[n]]
            state.layers[n] += 1
            if may_exit(sequence_logits, exits, n, state.labels, state.agreed) or state.layers[
                n
            ] == len(exits.bias):
                stays = False
                copy_row(sequence_logits, state.logits[n])
        if stays:
            start, end = state.starts[now, index], state.starts[now, index + 1]
            # Nothing reads other states of the last layer
            if state.layers[n] + 1 == len(exits.bias):
                end = start + 1
            for row in range(start, end):
                state.queries[now, rows] = row
                rows += 1
    state.query_starts[now, step.num_sequences] = rows
    return rows


@loops
def run_until_sure(
    call, starts, ids, tables, layer, chunk, exits, pooler, logits, state, progress, scratch
):
    """Run sequences, whose tokens' starts are int64 [N + 1], until they leave, as one of the members of a thread team.

    All members call this with the same arguments but for `state` and `scratch`, and return when all
    is done; all know the answers then. `call.repeats` is how many steps there are at most.
    """
    entered = read_cycle_counter()
    matrix_tiles.configure()
    scratch.patience[:] = FIRST_PATIENCE
    for number in range(call.repeats):
        step = pack_next_step(state, starts, number, chunk.hidden.shape[2], len(exits.bias))
        if not step.num_sequences:
            break
        compute_rows_of_step(call, ids, tables, layer, step, chunk, state, progress, scratch)
        size = compute_exit_logits(
            call, exits, pooler, step, chunk, logits, state, progress, scratch
        )
        stay = take_out_sure_sequences(
            exits, step, size, progress.winners[NUM_PHASES * number + DECIDED], logits, state
        )
        state.halves[step.now] = num_rows_of_a_half(stay, call.members, layer)
        group = max(1, step.num_sequences * layer.num_heads // (call.members * SHARES))
        step_chunk = chunk_of_active_sequences(
            chunk, state, step.now, step.num_sequences, step.rows, group
        )
        queries, query_starts = (
            state.queries[step.now, :stay],
            state.query_starts[step.now, : step.num_sequences + 1],
        )
        compute_contexts_of_heads(
            call, layer, number, queries, query_starts, step_chunk, progress, scratch
        )
        if step_chunk.half_block:
            block = num_rows_of_a_task(stay, call.members, False)
            compute_feed_forward_input(
                call, layer, number, queries, block, step_chunk, progress, scratch
            )
            compute_feed_forward_halves(call, layer, number, stay, step_chunk, progress, scratch)
    progress.spent[call.member, 2] = read_cycle_counter() - entered
    matrix_tiles.release()
