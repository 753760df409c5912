"""Answers before the loops are compiled: those of the model itself, and then the engine's."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numba.core.caching import NullCache

from albertkit.engines import compile_loops, load_engine
from albertkit.engines.cpu import engine as fused
from albertkit.engines.cpu.engine import FusedEngine
from albertkit.jit import compiled
from albertkit.loop_cache import LoopCache


class Compiler:
    """Stands for the process: it runs until `ended` is set."""

    ended = False

    def poll(self):
        return 0 if self.ended else None


@pytest.fixture
def compiler(monkeypatch):
    """Engines lack their loops, and one process compiles them; its arguments are `commands`."""
    process = Compiler()
    commands = []

    def start(command, **_):
        commands.append(command)
        return process

    compile_loops.start_compiler.cache_clear()
    monkeypatch.delenv("ALBERTKIT_WAIT_FOR_LOOPS")
    monkeypatch.setattr(FusedEngine, "lacks_loops", lambda engine: True)
    monkeypatch.setattr(compile_loops.subprocess, "Popen", start)
    process.commands = commands
    yield process
    compile_loops.start_compiler.cache_clear()


def packed_engine(model, precision):
    if reason := fused.precision_problem(precision):
        pytest.skip(reason)
    return load_engine(model, precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_model_itself_answers_until_the_process_has_ended(
    make_model, batch, compiler, precision
):
    model = make_model()
    positions = torch.tensor([3, 0])
    with torch.no_grad():
        expected = model.encode(batch), model.encode(batch, positions=positions)
    engine = packed_engine(model, precision)
    (note,) = compile_loops.start_compiling_in_background(engine)
    assert "computed by PyTorch in fp32" in note
    for of_model, selected in zip(expected, (None, positions), strict=True):
        answered = engine.encode(batch, selected)
        assert torch.equal(answered.hidden, of_model.hidden)
        assert torch.equal(answered.pooled, of_model.pooled)
    compiler.ended = True
    waiting = load_engine(model, precision)
    assert torch.equal(engine.encode(batch).hidden, waiting.encode(batch).hidden)
    assert not torch.equal(engine.encode(batch).hidden, expected[0].hidden)


def test_engines_of_a_precision_share_the_process(make_model, compiler):
    engines = [packed_engine(make_model(), "fp32") for _ in range(2)]
    assert len(set(map(compile_loops.start_compiling_in_background, engines))) == 1
    assert [command[-1] for command in compiler.commands] == ["fp32"]


def test_int8_and_whoever_asks_for_it_wait(make_model, compiler, monkeypatch):
    quantized = packed_engine(make_model(), "int8")
    assert compile_loops.start_compiling_in_background(quantized) == ()
    monkeypatch.setenv("ALBERTKIT_WAIT_FOR_LOOPS", "1")
    assert compile_loops.start_compiling_in_background(packed_engine(make_model(), "fp32")) == ()
    assert not compiler.commands


def test_a_cache_that_cannot_be_written_is_not_waited_for(make_model, compiler, monkeypatch):
    engine = packed_engine(make_model(), "fp32")
    monkeypatch.setattr(compile_loops.os, "access", lambda *_: False)
    assert compile_loops.start_compiling_in_background(engine) == ()
    assert not compiler.commands


def test_an_engine_lacks_what_neither_memory_nor_disk_has(make_model, batch, monkeypatch):
    engine = packed_engine(make_model(), "fp32")
    engine.encode(batch)
    assert not engine.lacks_loops()
    monkeypatch.setattr(fused.fused_layers.run, "overloads", {})
    assert not engine.lacks_loops()  # on the disk
    monkeypatch.setattr(LoopCache, "lacks", lambda *_: True)
    assert engine.lacks_loops()


def test_a_loop_that_cannot_be_kept_is_not_waited_for():
    double = compiled(lambda numbers: numbers * 2)
    assert not double.is_compiled(np.ones(2))
    double._cache = NullCache()
    assert double.is_compiled(np.ones(2))


@pytest.mark.slow
def test_a_first_prediction_does_not_wait_and_the_third_is_the_engine(tmp_path, make_model):
    """Real processes and an empty cache: 30 s."""
    packed_engine(make_model(), "fp32")
    model = tmp_path / "model"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "loops")}
    del environment["ALBERTKIT_WAIT_FOR_LOOPS"]
    (tmp_path / "random.py").write_text("raise SystemError('a module of the user')")

    def run(*command):
        return subprocess.run(
            [sys.executable, "-P", "-m", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )

    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    make_model(vocab_size=7).save_pretrained(model)
    (tmp_path / "vocab.txt").rename(model / "vocab.txt")
    predict = (
        "albertkit",
        "predict",
        str(model),
        "--kind",
        "embed",
        "--text",
        "a b",
        "--precision",
        "fp32",
        "--json",
    )
    first = run(*predict)
    assert "computed by PyTorch" in first.stderr
    assert not list(Path(environment["NUMBA_CACHE_DIR"]).rglob("run-*.loop"))
    run("albertkit.engines.compile_loops", "fp32")  # waits for the one that `predict` started
    second = run(*predict)
    assert second.stderr.count("computed by") == 0
    assert "compiling loops" not in second.stderr
