"""A training by the clock, on a clock of the test's own: speeds that change, evaluations that cost time, kills, replays."""

import json
import random
from itertools import pairwise

import pytest
import torch
from small_loop import CountingStream, killed, replay_plans, saved_plans, train_small, weights

from albertkit.training import pace as pace_module
from albertkit.training.loop import learning_rate
from albertkit.training.pace import ClockPace, Plan


class Clock:
    """Seconds that pass only when somebody lets them."""

    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace_module, "now", clock)
    return clock


def simulate(clock, budget, speed, evaluation=0.0, steps=None, first_evaluation=None):
    """The whole of a training whose update number k, after s seconds, takes speed(k, s) seconds.

    Returns:
        The pace and the progress before each update.
    """
    pace = ClockPace(budget, [], 0.0, steps)
    step = 0
    began = clock.seconds
    progress = []
    while not pace.is_over(step):
        progress.append(pace.progress(step))
        is_due = pace.wants_plan(step)
        clock.seconds += speed(step, clock.seconds - began)
        step += 1
        plan = None
        if is_due or pace.must_plan(step):
            plan = pace.plan(step)
            pace.adopt(plan)
        if pace.is_over(step) or (plan and plan.evaluate):
            with pace.pause(step):
                is_first = sum(plan.evaluate for plan in pace.plans) == 1
                clock.seconds += first_evaluation if first_evaluation and is_first else evaluation
    return pace, progress, clock.seconds - began


def neighbour(seed):
    """A machine on which somebody else starts and ends at random: updates of 0.1 s take ten times as long meanwhile."""
    generator = random.Random(seed)
    ends = 0.0
    slow = False
    spans = []
    while ends < 1000:
        ends = ends + generator.expovariate(1 / 20)
        slow = not slow
        spans.append((ends, slow))
    return lambda step, seconds: 0.1 if next(slow for end, slow in spans if seconds < end) else 1.0


SPEEDS = {
    "steady": lambda step, seconds: 0.1,
    "a slow start": lambda step, seconds: 8.0 if step == 0 else 0.1,
    "a neighbour in the first three updates": lambda step, seconds: 2.0 if step < 3 else 0.1,
    "ten times slower from the middle": lambda step, seconds: 0.1 if seconds < 30 else 1.0,
    "ten times faster from the middle": lambda step, seconds: 1.0 if seconds < 30 else 0.1,
    "slow near the end": lambda step, seconds: 0.1 if seconds < 57 else 1.0,
    "fast near the end": lambda step, seconds: 1.0 if seconds < 57 else 0.1,
    **{f"neighbour {seed}": neighbour(seed) for seed in range(5)},
}


@pytest.mark.parametrize("name", SPEEDS)
def test_the_time_is_used_and_the_decay_follows_it(clock, name):
    pace, progress, took = simulate(clock, 60.0, SPEEDS[name], evaluation=0.3)
    assert took == pytest.approx(60, rel=0.05)
    assert progress == sorted(progress)
    assert progress[-1] > 0.95
    # Updates with a rate of zero are lost
    assert sum(value >= 1 for value in progress) <= 0.05 * len(progress)
    assert len(pace.plans) < 200
    # It is the share of the time, a little late where the speed has just changed
    for plan in pace.plans:
        assert plan.progress == pytest.approx(plan.seconds / 60, abs=0.2)


def test_the_decay_never_jumps(clock):
    _, progress, _ = simulate(clock, 60.0, neighbour(9))
    assert max(after - before for before, after in pairwise(progress)) < 0.06


def test_evaluations_are_paid_for_and_bounded(clock):
    pace, _, took = simulate(clock, 60.0, lambda step, seconds: 0.1, evaluation=2.0)
    assert took == pytest.approx(60, rel=0.05)
    assert 1 <= sum(plan.evaluate for plan in pace.plans) <= 2
    pace, *_ = simulate(clock, 60.0, lambda step, seconds: 0.1, evaluation=0.01)
    assert sum(plan.evaluate for plan in pace.plans) == pytest.approx(19, abs=2)


def test_an_evaluation_that_compiles_does_not_delay_the_next_ones_for_long(clock):
    pace, _, took = simulate(
        clock, 240.0, lambda step, seconds: 0.1, evaluation=0.3, first_evaluation=4.0
    )
    times = [plan.seconds for plan in pace.plans if plan.evaluate]
    assert took == pytest.approx(240, rel=0.05)
    assert times[1] - times[0] < 50  # 80 by the 5 % that pauses may take
    assert len(times) >= 14


def test_a_budget_that_fits_no_two_updates_ends_after_one(clock):
    pace, _, took = simulate(clock, 5.0, lambda step, seconds: 9.0)
    assert pace.plans[-1].total_steps <= 2
    assert took <= 18


def test_updates_are_bounded_too(clock):
    _, progress, took = simulate(clock, 60.0, lambda step, seconds: 0.1, steps=100)
    assert len(progress) == 100
    assert progress[-1] == pytest.approx(0.99, abs=0.01)
    assert took == pytest.approx(10, rel=0.02)


def test_plans_are_reported_when_they_change():
    pace = ClockPace(60.0, [], 0.0)
    lines = []
    for step, total, speed in (
        (2, 600, 0.1),
        (20, 590, 0.1),
        (30, 200, 0.4),
        (50, 210, 0.4),
        (200, 200, 0.4),
    ):
        lines.append(pace.adopt(Plan(step, 1.0 * step, 0.0, total, speed)))
    assert [bool(line) for line in lines] == [True, False, True, False, False]
    assert "200 updates now, 0.4 s each; it was 600" in lines[2]


def test_the_learning_rate_rises_by_updates_or_by_time_whichever_is_further():
    options = dict(peak=1.0, warmup_steps=100, warmup_share=0.1)
    assert learning_rate(10, progress=0.0, **options) == pytest.approx(0.1)
    assert learning_rate(10, progress=0.05, **options) == pytest.approx(0.5)
    assert learning_rate(10, progress=0.1, **options) == pytest.approx(0.9)
    assert learning_rate(10, progress=0.5, peak=1.0, power=2.0) == pytest.approx(0.25)


# --- in the loop ----------------------------------------------------------------------------------


class TimedStream(CountingStream):
    """Each update takes as long as `speed` says; before update number `kill` the process ends."""

    def __init__(self, clock, speed, kill=None):
        super().__init__(before={kill: killed})
        self.clock = clock
        self.speed = speed

    def __next__(self):
        self.clock.seconds += self.speed(self.cursor) if self.cursor not in self.before else 0.0
        return super().__next__()


def run(folder, clock, stream, **how):
    losses = iter(range(1000, 0, -1))

    def evaluate():
        clock.seconds += 0.5
        return {"score": float(next(losses))}

    options = dict(
        steps=None,
        warmup_steps=10,
        warmup_share=0.1,
        log_every=10,
        eval_every=None,
        save_every=None,
    )
    return train_small(folder, stream, evaluate=evaluate, smaller=True, **options, **how)


def varied(step):
    return 0.1 if step % 70 < 40 else 1.0


def test_the_bits_follow_from_the_plans_whatever_the_clock_says(tmp_path, clock, monkeypatch):
    timed, result = run(tmp_path / "timed", clock, TimedStream(clock, varied), minutes=1)
    assert result.finished
    assert result.state.clock == pytest.approx(60, rel=0.05)
    replay_plans(monkeypatch, tmp_path / "timed")
    second, replayed = run(
        tmp_path / "again", clock, TimedStream(clock, lambda step: 0.0), minutes=1
    )
    assert replayed.state.step == result.state.step
    assert torch.equal(weights(timed), weights(second))
    evaluated = [
        [
            record["step"]
            for record in map(json.loads, (tmp_path / name / "metrics.jsonl").open())
            if record["event"] == "eval"
        ]
        for name in ("timed", "again")
    ]
    assert evaluated[0] == evaluated[1]
    assert len(evaluated[0]) > 5


def test_a_killed_run_goes_on_with_the_time_and_the_plans_of_its_checkpoint(
    tmp_path, clock, monkeypatch
):
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "run", clock, TimedStream(clock, varied, kill=57), minutes=1)
    clock.seconds += 86_400
    state = json.loads(
        sorted((tmp_path / "run/checkpoints").glob("*/training_state.json"))[-1].read_text()
    )
    assert 0 < state["clock"] < 60
    with pytest.raises(RuntimeError, match="killed"):
        run(
            tmp_path / "run",
            clock,
            TimedStream(clock, lambda step: 0.02, kill=200),
            resume=True,
            minutes=1,
        )
    model, result = run(tmp_path / "run", clock, TimedStream(clock, varied), resume=True, minutes=1)
    assert result.finished
    assert result.state.clock == pytest.approx(60, rel=0.05)
    steps = [plan.step for plan in saved_plans(tmp_path / "run")]
    assert steps == sorted(set(steps))
    replay_plans(monkeypatch, tmp_path / "run")
    undisturbed, _ = run(
        tmp_path / "replay", clock, TimedStream(clock, lambda step: 0.3), minutes=1
    )
    assert torch.equal(weights(model), weights(undisturbed))
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "broken", clock, TimedStream(clock, varied, kill=70), minutes=1)
    resumed, _ = run(tmp_path / "broken", clock, TimedStream(clock, varied), resume=True, minutes=1)
    assert torch.equal(weights(model), weights(resumed))
