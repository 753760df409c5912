"""The tile against numpy, layers in shapes that are not round, and threads that work together."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from albertkit.engines import engine as processor
from albertkit.engines import load_engine
from albertkit.engines.arithmetic import loops
from albertkit.engines.cpu import engine as fused
from albertkit.engines.cpu import layers, matrix_tiles
from albertkit.engines.cpu.engine import FusedEngine
from albertkit.engines.cpu.team import ThreadTeam, finish_task, new_progress, take_task
from albertkit.engines.cpu.tiles import (
    COLUMNS,
    MAX_TILE_ROWS,
    ROWS,
    VECTOR,
    VECTORS,
    multiply_tile,
    num_column_registers_of_tile,
    num_rows_of_tile,
    pack,
    panel_offset,
)
from albertkit.engines.engine import ModelEngine
from albertkit.model import PackedBatch

from .conftest import packed

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["fp32", "bf16", "int8"])
def numbers(request):
    """What passes multiply, where the processor can."""
    if reason := fused.precision_problem(request.param):
        pytest.skip(reason)
    return request.param


# --- tiles ----------------------------------------------------------------------------------------


@loops
def call_tile(left, row, count, right, start, vectors, steps, out):
    matrix_tiles.configure()
    multiply_tile(left, row, count, right, start, vectors, steps, start, 1, out)
    matrix_tiles.release()


def rows_and_weight(numbers, outputs, inputs):
    """Rows as they are multiplied, [35, I], and a weight [O, I]."""
    count = MAX_TILE_ROWS + 3
    if numbers == "int8":
        return RANDOM.integers(0, 256, (count, inputs), np.uint8), torch.randint(
            -127, 128, (outputs, inputs)
        ).to(torch.int8)
    rows = torch.randn(count, inputs)
    weight = torch.randn(outputs, inputs)
    if numbers == "fp32":
        return rows.numpy(), weight
    return rows.to(torch.bfloat16).view(torch.uint16).numpy(), weight.to(torch.bfloat16)


def as_numbers(rows):
    tensor = torch.from_numpy(rows)
    return (tensor.view(torch.bfloat16) if rows.dtype == np.uint16 else tensor).double().numpy()


@loops
def how_tiles_are(rows):
    return num_rows_of_tile(rows), num_column_registers_of_tile(rows)


@loops
def lay_out(rows, weight, columns, out):
    """Registers of a weight [columns, steps] of words, as attention lays keys out."""
    for column in range(columns):
        for step in range(weight.shape[1]):
            at = panel_offset(rows, weight.shape[1], columns, column // VECTOR, step)
            out[at + column % VECTOR] = weight[column, step]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 15, 16, 17, 31, 32])
def test_a_tile_of_every_shape(numbers, count):
    torch.manual_seed(0)
    rows, weight = rows_and_weight(numbers, 2 * COLUMNS, 192)
    max_rows, vectors_together = how_tiles_are(rows)
    if count > max_rows:
        pytest.skip(f"tiles have at most {max_rows} rows here")
    flat = pack(weight)
    steps = 192 * rows.itemsize // 4
    size = flat.size // 2
    out = np.full((MAX_TILE_ROWS, COLUMNS), -7, np.int32 if numbers == "int8" else np.float32)
    allowed = 0 if numbers == "int8" else 1e-3
    panel = size * vectors_together // VECTORS
    for first in range(0, COLUMNS, vectors_together * VECTOR):
        call_tile(
            rows,
            2,
            count,
            flat,
            size + panel * first // (vectors_together * VECTOR),
            vectors_together,
            steps,
            out,
        )
        columns = vectors_together * VECTOR
        expected = (
            as_numbers(rows)[2 : 2 + count] @ weight[COLUMNS + first :][:columns].double().numpy().T
        )
        assert_allclose(out[:count, :columns], expected, rtol=0, atol=allowed)
        # Matrix tiles' rows are in halves
        num_written = count if max_rows == ROWS else -(-count // VECTOR) * VECTOR
        assert np.all(out[num_written:] == -7)
    words = weight.view(torch.uint8).numpy().view(np.uint32)
    for vectors in range(1, VECTORS + 1):
        columns = vectors * VECTOR
        laid = np.empty(columns * steps, np.uint32)
        lay_out(rows, words, columns, laid)
        out[:] = -7
        call_tile(rows, 0, count, laid.view(flat.dtype), 0, vectors, steps, out)
        expected = as_numbers(rows)[:count] @ weight[:columns].double().numpy().T
        assert_allclose(out[:count, :columns], expected, rtol=0, atol=allowed)
        assert np.all(out[:, columns:] == -7)


def test_parts_of_a_matrix_follow_each_other(numbers):
    _, weight = rows_and_weight(numbers, 5, 200)
    parts = [pack(part) for part in (weight[:, :128], weight[:, 128:])]
    assert np.array_equal(pack(weight, 128), np.concatenate(parts))


def test_a_matrix_is_padded_with_zeros():
    flat = pack(torch.ones(3, 5))
    assert flat.shape == (64 * 64,)
    assert flat.sum() == 15
    assert flat.reshape(64, 64)[:5, :3].all()


# --- layers ---------------------------------------------------------------------------------------

LENGTHS = (1, 64, 65, 2, 127, 16, 15, 130, 33)
SHAPES = [
    {
        "hidden_size": 96,
        "num_attention_heads": 4,
        "intermediate_size": 200,
        "embedding_size": 24,
    },  # heads of 24
    {"hidden_size": 160, "num_attention_heads": 2, "intermediate_size": 70},  # of 80
    {"hidden_size": 256, "num_attention_heads": 2, "hidden_act": "gelu"},  # of 128
    {"num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "relu"},
    {"num_hidden_groups": 4, "parameter_sharing": "ffn", "num_attention_heads": 16},
]


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_shapes_that_are_not_round(make_model, numbers, changes):
    model = make_model(max_position_embeddings=130, **changes)
    batch = packed(LENGTHS)
    engine = load_engine(model, numbers)
    assert isinstance(engine, FusedEngine)
    assert engine.precision == numbers
    assert engine.notes == ()
    check(engine, model, batch, numbers)
    positions = torch.tensor([452, 0, 100, 100, 65])
    everywhere = engine.encode(batch).hidden
    assert_close(engine.encode(batch, positions).hidden, everywhere[positions], atol=1e-6, rtol=0)


def test_more_tokens_wanted_than_there_are(make_model, numbers):
    """Every token, and first tokens for the pooler besides; some of them again and again."""
    engine = load_engine(make_model(), numbers)
    batch = packed((1, 3, 2))
    everywhere = engine.encode(batch)
    for positions in (torch.arange(6), torch.arange(6).repeat(50), torch.full((400,), 5)):
        output = engine.encode(batch, positions)
        assert_close(output.hidden, everywhere.hidden[positions], atol=1e-6, rtol=0)
        assert_close(output.pooled, everywhere.pooled, atol=1e-6, rtol=0)


def test_places_that_are_not_there(make_model, numbers):
    engine = load_engine(make_model(), numbers)
    batch = packed((3, 2))
    for positions in (torch.tensor([5]), torch.tensor([0, -1])):
        with pytest.raises(IndexError, match="the batch has 5 tokens"):
            engine.encode(batch, positions)
    with pytest.raises(ValueError, match="5 ids"):
        engine.encode(dataclasses.replace(batch, lengths=(3, 30)))


def check(engine, model, batch, numbers):
    output = engine.encode(batch)
    expected = ModelEngine(model, "fp32").encode(batch)
    for ours, theirs in ((output.hidden, expected.hidden), (output.pooled, expected.pooled)):
        if numbers == "fp32":
            assert_close(ours, theirs, atol=2e-5, rtol=0)
        else:
            worst = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).min()
            assert worst > {"bf16": 0.9998, "int8": 0.998}[numbers]


@pytest.mark.slow  # half a minute to compile what only such processors use
def test_int8_without_bfloat16(make_model, monkeypatch):
    """Intel's Cascade Lake and Ice Lake: attention multiplies fp32 there."""
    if reason := fused.precision_problem("int8"):
        pytest.skip(reason)
    real = processor.has_instructions
    monkeypatch.setattr(
        processor, "has_instructions", lambda *names: real(*names) and "avx512_bf16" not in names
    )
    model = make_model(max_position_embeddings=130)
    engine = load_engine(model, "int8")
    assert isinstance(engine, FusedEngine)
    check(engine, model, packed(LENGTHS), "int8")


def test_great_scores(make_model, numbers):
    model = make_model()
    attention = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    with torch.no_grad():
        attention.query.weight *= 40
        attention.key.bias += 5
    states = load_engine(model, numbers).encode(packed((20, 64))).hidden
    assert torch.isfinite(states).all()
    if numbers == "fp32":  # shares near 0 and 1: rounding of the scores tells
        expected = ModelEngine(model, "fp32").encode(packed((20, 64))).hidden
        assert_close(states, expected, atol=2e-4, rtol=0)


def test_ids_that_the_model_does_not_know(make_model, numbers):
    from albertkit.errors import DataError

    engine = load_engine(make_model(), numbers)
    for ids, slug in (
        ([5, 300], "wrong-tokenizer"),
        ([-1], "wrong-tokenizer"),
        ([5] * 65, "too-large"),
    ):
        with pytest.raises(DataError, match=rf"\[{slug}\]"):
            engine.encode(PackedBatch.from_sequences([ids]))


# --- threads --------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    """torch's threads for a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_a_team_computes_what_one_thread_does(make_model, numbers, threads):
    engine = load_engine(make_model(max_position_embeddings=130), numbers)
    batch = packed(LENGTHS)
    shared = engine.encode(batch)
    torch.set_num_threads(1)
    alone = engine.encode(batch)
    # Every number is computed by one thread, in one order
    assert torch.equal(shared.hidden, alone.hidden)
    assert torch.equal(shared.pooled, alone.pooled)


def test_several_callers_at_once(make_model, numbers):
    engine = load_engine(make_model(), numbers)
    batches = [packed((3 + n, 64, 20), seed=n) for n in range(8)]
    expected = [engine.encode(batch).hidden for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for states, reference in zip(
            pool.map(lambda batch: engine.encode(batch).hidden, batches * 3),
            expected * 3,
            strict=True,
        ):
            assert torch.equal(states, reference)


SLOW = 1
NEVER = 2


@loops
def sum_rows(member, members, numbers, sums, progress, tasks, behaviour):
    """Rounds in which every task adds up all numbers of the round before, each member in memory of its own.

    A member that is SLOW computes each task many times over; one that NEVER finishes takes tasks
    and leaves.
    """
    patience = np.int64(1_000_000)
    for phase in range(len(progress.finished)):
        task = take_task(progress, phase, tasks, member, members, patience)
        while task >= 0:
            if behaviour[member] == NEVER:
                return
            for _ in range(3000 if behaviour[member] == SLOW else 1):
                total = np.int64(task)
                for index in range(tasks):
                    before = (
                        numbers[index]
                        if phase == 0
                        else sums[progress.winners[phase - 1, index] - 1, phase - 1, index]
                    )
                    total = (total * 31 + before) % 1_000_003
                sums[member, phase, task] = total
            finish_task(progress, phase, task, member, 0, 0)
            patience = np.int64(2000)
            task = take_task(progress, phase, tasks, member, members, patience)


def _in_a_team(members, behaviour, phases=200, tasks=7):
    numbers = np.arange(tasks) + 1
    sums = np.zeros((members, phases, tasks), np.int64)
    progress = new_progress(phases, tasks, members)
    finished = threading.Event()
    how = np.array(behaviour)

    def work(member, of):
        sum_rows(member, of, numbers, sums, progress, tasks, how)

    ThreadTeam().run(work, members, finished.set)
    assert (progress.finished == tasks).all()
    totals = [int(sums[holder - 1, -1, task]) for task, holder in enumerate(progress.winners[-1])]
    assert finished.wait(60)
    return totals


@pytest.mark.parametrize(
    "behaviour",
    [
        [0, 0],
        [0, SLOW],
        [SLOW, 0, 0],
        [0, NEVER],
        [0, NEVER, SLOW],
    ],
)
def test_members_finish_whatever_becomes_of_the_others(behaviour):
    assert _in_a_team(len(behaviour), behaviour) == _in_a_team(1, [0])


@pytest.mark.parametrize("member", [0, 1, 2])
def test_one_member_does_what_the_others_have_taken(make_model, numbers, member):
    engine = load_engine(make_model(), numbers)
    batch = packed((40, 64, 3), seed=3)
    expected = engine.encode(batch).hidden
    compiled = layers.run

    def alone(call, *arguments):  # the others are never there
        if call.member == 0:
            compiled(call._replace(member=member), *arguments)

    torch.set_num_threads(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "run", alone)
        assert torch.equal(engine.encode(batch).hidden, expected)


def test_profile(make_model, numbers):
    engine = load_engine(make_model(), numbers)
    # With more, it is there when the last one has left, which may be after the call
    torch.set_num_threads(1)
    engine.encode(packed((40, 64, 3), seed=3))
    assert list(engine.profile) == ["rows", "attention", "waiting"]
    assert sum(engine.profile.values()) == pytest.approx(1)
    assert min(engine.profile.values()) >= 0


def test_an_interrupted_call_leaves_the_team_free():
    team = ThreadTeam()
    finished = threading.Event()
    sizes = []

    def work(member, members):
        if member == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        team.run(work, 3, finished.set)
    assert finished.wait(60)
    team.run(lambda member, members: sizes.append(members), 3, lambda: None)
    assert 3 in sizes


def test_a_busy_team_lets_others_work_alone():
    team = ThreadTeam()
    begun = threading.Event()
    end = threading.Event()
    sizes = []

    def slow(member, members):
        begun.set()
        assert end.wait(30)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(team.run, slow, 2, lambda: None)
        assert begun.wait(30)
        team.run(lambda member, members: sizes.append((member, members)), 2, lambda: None)
        end.set()
        running.result()
    assert sizes == [(0, 1)]


def test_without_threads_one_does_all(monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    finished = threading.Event()
    calls = []
    ThreadTeam().run(lambda member, members: calls.append((member, members)), 3, finished.set)
    assert calls == [(0, 3)]
    assert finished.is_set()


def test_many_threads_do_not_share_one_chunk(make_model):
    engine = load_engine(make_model(max_position_embeddings=130), "fp32")
    batch = packed(LENGTHS)
    expected = engine.encode(batch).hidden
    torch.set_num_threads(200)
    assert torch.equal(engine.encode(batch).hidden, expected)
    assert len(engine._free_scratch) <= 2 + 16


# --- what is not there ----------------------------------------------------------------------------


@pytest.fixture
def forgotten():
    """What was tried before is forgotten, and what is tried in the test, too."""
    fused.compiler_problem.cache_clear()
    yield
    fused.compiler_problem.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_what_is_missing_is_named(monkeypatch):
    real = processor.has_instructions
    monkeypatch.setattr(processor, "has_instructions", lambda *names: False)
    assert fused.precision_problem("int8") == "the processor has no avx512_vnni"
    monkeypatch.setattr(processor, "has_instructions", real)
    if fused.precision_problem("fp32"):
        pytest.skip(fused.precision_problem("fp32"))
    for trial, message in (
        (lambda _: 0.5, "compiles something else"),
        (broken, "cannot compile it: no such word"),
    ):
        fused.compiler_problem.cache_clear()
        monkeypatch.setattr(fused, "largest_deviation", trial)
        assert message in fused.precision_problem("fp32")


@pytest.mark.usefixtures("forgotten")
def test_a_system_that_refuses_matrix_registers(monkeypatch):
    if not matrix_tiles.compiles_for_amx():
        pytest.skip("the processor has no AMX")
    monkeypatch.setattr(matrix_tiles, "request_matrix_registers", lambda: False)
    assert fused.precision_problem("int8") == "the system does not let this process use AMX"
    assert not fused.precision_problem("fp32")


@pytest.mark.slow  # half a minute to compile what other processors use
def test_the_same_without_matrix_registers():
    """Numba told of a processor without AMX: int8's sums are whole numbers, so the states hardly differ."""
    if not matrix_tiles.compiles_for_amx():
        pytest.skip("the processor has no AMX")
    states = [_states_of(features) for features in ("", without_amx())]
    for expected, vectors in zip(*states, strict=True):
        assert_close(torch.tensor(expected), torch.tensor(vectors), atol=0.05, rtol=0)


def without_amx():
    from numba.core.registry import cpu_target

    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return ",".join(feature.replace("+amx", "-amx") for feature in features)


STATES = """
import json, torch
from albertkit import AlbertConfig, AlbertModel
from albertkit.engines import load_engine
from albertkit.engines.cpu import matrix_tiles
from albertkit.model import PackedBatch
torch.manual_seed(0)
sizes = dict(hidden_size=128, num_attention_heads=2, embedding_size=16, intermediate_size=200, num_hidden_layers=2)
model = AlbertModel(AlbertConfig.from_size("tiny", vocab_size=50, **sizes)).eval()
batch = PackedBatch.from_sequences([list(range(40)), [3, 4, 5]])
engines = [load_engine(model, precision) for precision in ("bf16", "int8")]
assert not any(engine.notes for engine in engines)
print(json.dumps([engine.encode(batch).hidden.tolist() for engine in engines]))
"""


def _states_of(features):
    environment = {**os.environ, **({"NUMBA_CPU_FEATURES": features} if features else {})}
    completed = subprocess.run(
        [sys.executable, "-c", STATES], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(completed.stdout)


def broken(_):
    raise RuntimeError("no such word\nin line 3")


def test_numba_told_of_another_processor():
    """An instruction that LLVM may not use would end the process."""
    code = (
        "from albertkit.engines.cpu import engine as fused; print(fused.precision_problem('fp32'))"
    )
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"}
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "avx512" in completed.stdout
