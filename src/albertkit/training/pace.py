"""Progress of a training, by its number of updates or by the clock. Loads no torch.

A training by the clock plans its number of updates from the time that is left and the speed it has,
and plans again about every sixtieth of the time, sooner if the speed changes. The learning rate
follows the plans alone, and every checkpoint holds them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_PARTS = 60  # plans of a run at a steady speed
_EVALUATIONS = 20  # of a run by the clock, and as many checkpoints
_PAUSES = 0.05  # of the time that evaluations and checkpoints may take
# The same after the first evaluation, whose time tells little of the next: it compiles. At 0.05 it
# delayed the second one by a third of a run of four minutes.
_FIRST_PAUSES = 0.1
# Updates before the first plan: the first one may compile. A plan from it gave 12 updates where 500
# fitted.
_FIRST_PLAN = 2
# Plans over which the speed is measured. Over four, the schedule lags by 0.157 after a sudden
# slow-down, in place of 0.13.
_REMEMBERED = 3
# A number of updates that differs by this factor from the last one reported is reported
_NEWS = 1.5

now = time.monotonic  # tests replace it


@dataclass(frozen=True)
class Plan:
    """Plan of a training by the clock from one of its updates on.

    Attributes:
        step: Updates made.
        seconds: Seconds of the time budget used.
        progress: Share of the schedule that is done, 0 to 1. From here it grows by the same amount
            with every update.
        total_steps: Updates after which it is 1; equal to `step` where the training ends.
        seconds_per_step: Of an update, evaluations and checkpoints left out.
        evaluate: Whether the model is evaluated and saved here.
    """

    step: int
    seconds: float
    progress: float
    total_steps: int
    seconds_per_step: float
    evaluate: bool = False


class TrainingProgress:
    """Progress of a training of a known number of updates."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def progress(self, step: int) -> float:
        """Return the share of the schedule that is done after so many updates, 0 to 1."""
        return min(step, self.steps) / self.steps

    def is_over(self, step: int) -> bool:
        """Return whether the training ends after so many updates."""
        return step >= self.steps

    @property
    def total_steps(self) -> int | None:
        """Updates of the whole training as far as they are known; None before the first plan."""
        return self.steps

    def seconds_left(self) -> float | None:
        """Return the seconds of the time budget that are left; None without one."""
        return None

    def seconds_used(self) -> float:
        """Return the seconds of the time budget that are used; 0 without one."""
        return 0.0

    def wants_plan(self, step: int) -> bool:
        """Return whether the clock calls for a plan after the update that follows; only the first process is asked."""
        return False

    def must_plan(self, step: int) -> bool:
        """Return whether a plan is due after so many updates; the same answer in all processes."""
        return False

    def plan(self, step: int) -> Plan | None:
        """Return a plan for what is left."""
        return None

    def adopt(self, plan: Plan) -> str | None:
        """Go on by a plan; return a line for the user if it is news."""
        return None

    @contextmanager
    def pause(self, step: int) -> Iterator[None]:
        """Exclude the time of an evaluation or a checkpoint, after so many updates."""
        yield


class ClockPace(TrainingProgress):
    """A pace that ends with a time budget. Evaluations and checkpoints are paid for from it.

    It follows the last plan that was adopted; before the first its progress is 0. Progress is
    continuous: a plan begins with the progress that the one before had reached, and lets it grow to
    1 over the updates that still fit into the time. So the learning rate never jumps, and has
    decayed when the time is up.

    Args:
        seconds: The time budget.
        plans: Those of a run that is resumed.
        used: Seconds of the budget that were used before.
        steps: Updates at most; None for as many as fit.
        eval_every: Updates between two evaluations, 0 for none before the end, None to let the
            plans say when.
    """

    def __init__(
        self,
        seconds: float,
        plans: list[Plan],
        used: float,
        steps: int | None = None,
        eval_every: int | None = None,
    ) -> None:
        self.plans = plans
        self._reported: Plan | None = plans[-1] if plans else None
        self._budget = seconds
        self._steps = steps
        self._eval_every = eval_every
        self._start = now() - used
        # Seconds, of all pauses and of those after the last update that had any
        self._paused = self._last_pause = 0.0
        self._paused_at = -1
        # Active seconds and updates where this process has planned
        self._measured: list[tuple[float, int]] = []
        self._first_step: int | None = None  # the update before which this process began
        self._last_evaluation = next(
            (plan.seconds for plan in reversed(plans) if plan.evaluate), 0.0
        )

    def progress(self, step: int) -> float:
        if not self.plans:
            return 0.0
        last = self.plans[-1]
        if step >= last.total_steps:
            return 1.0
        return last.progress + (1 - last.progress) * (
            (step - last.step) / (last.total_steps - last.step)
        )

    def is_over(self, step: int) -> bool:
        return bool(self.plans) and step >= self.plans[-1].total_steps

    @property
    def total_steps(self) -> int | None:
        return self.plans[-1].total_steps if self.plans else None

    def adopt(self, plan: Plan) -> str | None:
        self.plans.append(plan)
        if plan.total_steps == plan.step:
            return None
        last = self._reported
        if (
            last is not None
            and max(plan.total_steps, 1) < _NEWS * last.total_steps < _NEWS**2 * plan.total_steps
        ):
            return None
        self._reported = plan
        pace = f"{plan.seconds_per_step:.3g} s each"
        if last is None:
            return f"plan: {plan.total_steps:,} updates, {pace}; it changes with the speed"
        return (
            f"step {plan.step}: the plan is {plan.total_steps:,} updates now, {pace}; it was {last.total_steps:,}, "
            f"{last.seconds_per_step:.3g} s each"
        )

    def seconds_used(self) -> float:
        return now() - self._start

    def seconds_left(self) -> float:
        return self._budget - self.seconds_used()

    def wants_plan(self, step: int) -> bool:
        if self._first_step is None:
            self._first_step = step
        if not self._measured and step > self._first_step:  # after the first update of this process
            self._measured.append((self._seconds_used_for_updates(), step))
        if not self.plans:
            return self.seconds_left() <= 0
        last = self.plans[-1]
        return (
            self.seconds_used() + last.seconds_per_step
            >= last.seconds + self._seconds_from_plan_to_next(last)
        )

    def must_plan(self, step: int) -> bool:
        if not self.plans:
            return step >= _FIRST_PLAN
        last = self.plans[-1]
        ahead = max(1, int(self._seconds_from_plan_to_next(last) / last.seconds_per_step))
        return step >= min(last.step + ahead, last.total_steps)

    def _seconds_from_plan_to_next(self, plan: Plan) -> float:
        """Return the seconds until the plan after this one: shorter towards the end, which is to be met exactly."""
        # On 12 simulated machines progress is never more than 0.2 from the share of the time, even
        # where speed changes tenfold, and the time is met within 5 %.
        return min(
            self._budget / _PARTS, max((self._budget - plan.seconds) / 4, plan.seconds_per_step)
        )

    def plan(self, step: int) -> Plan:
        used = self.seconds_used()
        active = self._seconds_used_for_updates()
        earlier = [measured for measured in self._measured[-_REMEMBERED:] if measured[1] < step]
        self._measured.append((active, step))
        if earlier:
            first_active, first_step = earlier[0]
            seconds_per_step = max((active - first_active) / (step - first_step), 1e-6)
        elif self.plans:
            seconds_per_step = self.plans[-1].seconds_per_step
        else:
            seconds_per_step = max(active / step, 1e-6)
        seconds_left = self._budget - used
        pause_share = _FIRST_PAUSES if sum(plan.evaluate for plan in self.plans) == 1 else _PAUSES
        # Between evaluations
        interval = max(self._budget / _EVALUATIONS, self._last_pause / pause_share)
        # The plan that is nearest to the twentieth
        due = self._last_evaluation + interval - self._budget / _PARTS / 2
        evaluate = (
            self._eval_every is None
            and bool(self.plans)
            and used >= due
            and seconds_left >= interval / 2
        )
        pauses = 1 + int(seconds_left / interval) if self._eval_every is None else 1
        seconds_with_pauses = seconds_per_step
        if self._eval_every:
            seconds_with_pauses += self._last_pause / self._eval_every
        total_steps = step + max(
            0, round((seconds_left - pauses * self._last_pause) / seconds_with_pauses)
        )
        if self._steps is not None:
            total_steps = min(total_steps, max(self._steps, step))
        if evaluate:
            self._last_evaluation = used
        progress = self.progress(step)
        return Plan(
            step,
            round(used, 3),
            progress,
            total_steps,
            seconds_per_step,
            evaluate and total_steps > step,
        )

    def _seconds_used_for_updates(self) -> float:
        """Return the seconds used by this process for updates."""
        return self.seconds_used() - self._paused

    @contextmanager
    def pause(self, step: int) -> Iterator[None]:
        start = now()
        yield
        seconds = now() - start
        self._paused += seconds
        self._last_pause = seconds + (self._last_pause if self._paused_at == step else 0.0)
        self._paused_at = step
