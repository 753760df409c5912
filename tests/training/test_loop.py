"""The loop on a small regression-like task: accumulation, resume, signals, the guard against gradients that are not finite."""

import json
import math
import os
import signal
import sys
from contextlib import suppress
from functools import partial

import pytest
import torch
from record_files import read_records
from safetensors.torch import load_file
from small_loop import WORLD, CountingStream, killed, make_model, stopped, train_small, weights
from torch.testing import assert_close

from albertkit.training.checkpoints import list_checkpoints
from albertkit.training.launch import StopRequest, exit_status
from albertkit.training.loop import LossPart, Meter
from albertkit.training.monitor import Display


def run_training(folder, **how):
    return train_small(
        folder, **{**dict(steps=12, warmup_steps=2, save_every=4, log_every=2, eval_every=6), **how}
    )


def test_it_learns_and_records(tmp_path):
    _, result = run_training(tmp_path, steps=120)
    records = read_records(tmp_path / "metrics.jsonl")
    losses = [r["piece_loss"] for r in records if r["event"] == "step"]
    assert result.finished
    assert losses[-1] < losses[0] / 2
    assert {r["event"] for r in records} == {"step", "eval"}
    assert records[-2]["tokens"] == 120 * 15


def test_small_numbers_are_recorded_with_six_significant_digits(tmp_path):
    record = {
        "loss": 6.123456789,
        "learning_rate": 1.23456789e-06,
        "share": 0.0,
        "mfu": -0.123456789,
        "norm": math.nan,
    }
    with Display(tmp_path, silent=True) as display:
        display.update(1, 2, record)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "event": "step",
        "step": 1,
        "loss": 6.123457,
        "learning_rate": 1.23457e-06,
        "share": 0.0,
        "mfu": -0.123457,
        "norm": None,
    }


def test_a_loss_that_is_no_classification_has_no_accuracy():
    meter = Meter()
    meter.add({"distance": LossPart(torch.tensor(6.0), 3)})
    assert meter.averages(WORLD) == {"distance_loss": 2.0}


def test_accumulation_equals_one_big_batch(tmp_path):
    def without_dropout():
        model = make_model()
        model[1].p = 0.0
        return model

    unbroken, _ = run_training(tmp_path / "whole", model=without_dropout())
    parts, _ = run_training(
        tmp_path / "parts", model=without_dropout(), stream=CountingStream(split=True)
    )
    assert_close(weights(unbroken), weights(parts), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ema_decay": 0.9},
        {"optimizer": "lamb"},
        {"start_weights": 0.3},
    ],
)
def test_resumed_equals_uninterrupted_to_the_bit(tmp_path, options):
    straight, _ = run_training(tmp_path / "straight", **options)

    with pytest.raises(RuntimeError, match="killed"):
        run_training(tmp_path / "broken", stream=CountingStream(before={7: killed}), **options)
    resumed, result = run_training(tmp_path / "broken", resume=True, **options)
    assert result.finished
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9}])
def test_a_share_of_the_start_is_evaluated_and_kept(tmp_path, options):
    start = weights(make_model())
    evaluated = []

    def evaluate():
        evaluated.append(weights(model))
        return {"score": 0.0}

    plain, _ = run_training(tmp_path / "plain", **options)
    model = make_model()
    run_training(tmp_path / "mixed", model=model, start_weights=0.3, evaluate=evaluate, **options)
    expected = 0.3 * start + 0.7 * weights(plain)
    assert_close(weights(model), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(evaluated[-1], weights(model))
    assert not torch.equal(start, weights(plain))


def test_keeps_the_newest_checkpoints_and_the_best(tmp_path):
    scores = iter([0.3, 0.9, 0.2, 0.1])
    models = []

    def evaluate():
        models.append(weights(model))
        return {"score": next(scores)}

    model = make_model()
    run_training(tmp_path, steps=24, model=model, keep=2, evaluate=evaluate)
    assert [c.name for c in list_checkpoints(tmp_path)] == ["step-000020", "step-000024"]
    best = load_file(tmp_path / "best/model.safetensors")
    assert torch.equal(
        torch.cat([best[n].reshape(-1) for n, _ in model.named_parameters()]), models[1]
    )


def test_a_signal_saves_and_stops(tmp_path):
    straight, _ = run_training(tmp_path / "straight")
    _, result = run_training(tmp_path / "run", stream=CountingStream(before={5: stopped}))
    assert not result.finished
    assert result.state.step == 6
    resumed, _ = run_training(tmp_path / "run", resume=True)
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        (signal.SIGHUP, 129),
    ],
)
def test_a_stopped_training_ends_with_the_status_of_its_signal(tmp_path, number, status):
    stream = CountingStream(before={5: partial(os.kill, os.getpid(), number)})
    assert not run_training(tmp_path / "run", stream=stream)[1].finished
    assert exit_status() == status


def test_a_terminal_that_closes_saves_and_stops(tmp_path, monkeypatch):
    """The kernel and the shell send a SIGHUP each, and what is printed from then on fails."""
    reader, writer = os.pipe()
    os.close(reader)
    lost = os.fdopen(writer, "w", buffering=1)
    hang_up = partial(os.kill, os.getpid(), signal.SIGHUP)

    def close_terminal():
        monkeypatch.setattr(sys, "stderr", lost)
        hang_up()
        hang_up()
        print("after the terminal was closed", file=sys.stderr, flush=True)

    _, result = run_training(tmp_path / "run", stream=CountingStream(before={5: close_terminal}))
    monkeypatch.undo()
    assert result.stopped
    assert [checkpoint.name for checkpoint in list_checkpoints(tmp_path / "run")][
        -1
    ] == f"step-{result.state.step:06}"
    with suppress(BrokenPipeError):
        lost.close()


def test_nohup_is_heard():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_gradients_that_are_not_finite_are_skipped_then_stop_the_run(tmp_path, slug_of):
    assert (
        slug_of(run_training, tmp_path, stream=CountingStream(poison=range(6, 100))) == "not-finite"
    )
    assert [c.name for c in list_checkpoints(tmp_path)] == ["step-000004", "step-000008"]
    saved = load_file(tmp_path / "checkpoints/step-000008/model.safetensors")
    assert all(tensor.isfinite().all() for tensor in saved.values())


def test_skipped_updates_are_remembered_when_a_run_is_resumed(tmp_path):
    """Bias correction counts the updates that were made: it must not count the skipped ones after a resume."""

    options = dict(bias_correction=True)
    straight, _ = run_training(
        tmp_path / "straight", stream=CountingStream(poison=(1, 2)), **options
    )
    with pytest.raises(RuntimeError, match="killed"):
        run_training(
            tmp_path / "run", stream=CountingStream(poison=(1, 2), before={7: killed}), **options
        )
    resumed, result = run_training(
        tmp_path / "run", stream=CountingStream(poison=(1, 2)), resume=True, **options
    )
    assert result.state.skipped == 2
    assert torch.equal(weights(straight), weights(resumed))


def test_any_seed_will_do(tmp_path):
    for seed in (20_261_121, 2**40, -3):
        assert run_training(tmp_path / str(seed), steps=1, seed=seed)[1].finished


def test_a_torn_checkpoint_is_not_taken_for_one(tmp_path):
    run_training(tmp_path, steps=8)
    torn = tmp_path / "checkpoints/.partial-step-000012-abc"
    torn.mkdir()
    (torn / "training_state.json").write_text("{")
    _, result = run_training(tmp_path, steps=12, resume=True)
    assert result.state.step == 12
    assert not torn.exists()
