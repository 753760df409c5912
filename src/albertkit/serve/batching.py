"""Choose the sequences that are computed next: many requests share a batch, and none waits behind a large one.

A queue for each pipeline; pipelines take turns. Within a pipeline requests stand in a row. The first one gives at most
`SHARE` of a batch and goes to the end of the row if it has more (deficit round robin): a text that arrives behind a million
others waits for one batch, not for all of them. Where this would let a request miss its deadline, the one that is due first
goes first; one that cannot be finished in time even so is refused and not computed.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from albertkit.data.features import Features
from albertkit.serve.refusals import ServiceError

CALL_TOKENS = 512  # what a call (a caption, a look inside) counts for in the queue
Key = tuple[str, str]  # name of a model, kind of its pipeline
BACKLOG = 0.6  # of a request's time: no more work is accepted than can be computed in it
ALONE = 0.9  # of a request's time: what a request may take where nothing else waits
_FULL = 0.5  # of a batch: the time of a smaller one is mostly overhead, and says little of a token's
_NEW = 0.2  # weight of the latest batch
SHARE = 8  # parts of a batch that one request may take before others had their turn
_DUE = 0.7  # of a request's time, more than `BACKLOG`: the rest is for a machine that becomes slower


class Job:
    """Hold the work of one request: M sequences, or the arguments of a call, which counts as one.

    The future gets M outputs, or an error. Its client waits until the deadline; it should be done when it is `due`. Both
    are seconds of the loop's clock.
    """

    def __init__(
        self,
        key: Key,
        content: Features | dict[str, Any],
        future: "asyncio.Future[list[Any]]",
        deadline: float = inf,
        now: float = 0.0,
    ) -> None:
        self.key, self.content, self.future, self.deadline = key, content, future, deadline
        self.due = now + _DUE * (deadline - now)
        ends = content.offsets if isinstance(content, Features) else np.array([0, CALL_TOKENS])
        self.ends: list[int] = ends.tolist()  # tokens before each sequence
        self.outputs: list[Any] = [None] * (len(self.ends) - 1)
        self.unanswered = len(self.outputs)
        self.todo = deque([(0, len(self.outputs))])  # sequences from, to
        self.retried = False

    @property
    def is_call(self) -> bool:
        """Return whether this is a call and not sequences."""
        return isinstance(self.content, dict)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that wait."""
        return sum(self.ends[stop] - self.ends[start] for start, stop in self.todo)

    def take(self, share: int, room: int) -> "Part | None":
        """Take the next sequences, at most `share` tokens and never more than `room`; at least one sequence.

        Room 0 means that the batch is empty: then a sequence of any length fits. None if the next one does not fit.
        """
        start, stop = self.todo[0]
        end = start + 1
        if room and self.ends[end] - self.ends[start] > room:
            return None
        limit = self.ends[start] + (min(share, room) if room else share)
        while end < stop and self.ends[end + 1] <= limit:
            end += 1
        self.todo.popleft()
        if end < stop:
            self.todo.appendleft((end, stop))
        return Part(self, start, end)

    def answer(self, start: int, stop: int, outputs: list[Any]) -> None:
        """Keep outputs of some sequences; the last ones answer the request."""
        self.outputs[start:stop] = outputs
        self.unanswered -= stop - start
        if not self.unanswered and not self.future.done():
            self.future.set_result(self.outputs)

    def fail(self, error: Exception) -> None:
        """Answer the request with an error."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, eq=False)
class Part:
    """Sequences `start` to `stop` of a request."""

    job: Job
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Return the number of tokens in these sequences."""
        return self.job.ends[self.stop] - self.job.ends[self.start]

    def content(self) -> Features:
        """Return these sequences alone."""
        whole, (a, b) = self.job.content, (self.start, self.stop)
        assert isinstance(whole, Features)
        if (a, b) == (0, whole.num_sequences):
            return whole
        tokens = slice(self.job.ends[a], self.job.ends[b])
        return Features(
            whole.input_ids[tokens],
            whole.token_type_ids[tokens],
            whole.offsets[a : b + 1] - whole.offsets[a],
            whole.examples[a:b],
            {name: values[a:b] for name, values in whole.per_sequence.items()},
            {name: values[tokens] for name, values in whole.per_token.items()},
        )


@dataclass(eq=False)
class Batch:
    """Parts of requests that are computed together."""

    key: Key
    parts: list[Part] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the batch."""
        return sum(part.tokens for part in self.parts)

    @property
    def sequences(self) -> int:
        """Return the number of sequences in the batch."""
        return sum(part.stop - part.start for part in self.parts)

    @property
    def is_call(self) -> bool:
        """Return whether this is a call and not sequences."""
        return self.parts[0].job.is_call

    @property
    def jobs(self) -> set[Job]:
        """Return the requests that share this batch."""
        return {part.job for part in self.parts}

    def content(self) -> Features | dict[str, Any]:
        """Return all sequences, or the call."""
        call = self.parts[0].job.content
        return call if isinstance(call, dict) else Features.concatenated([part.content() for part in self.parts])

    def answered(self, outputs: list[Any]) -> None:
        """Give every request its outputs."""
        at = 0
        for part in self.parts:
            size = part.stop - part.start
            part.job.answer(part.start, part.stop, outputs[at : at + size])
            at += size


class Queue:
    """Requests that wait. A sequence longer than a batch is a batch of its own."""

    def __init__(self, batch_tokens: int, pace: "Pace | None" = None) -> None:
        self.batch_tokens = batch_tokens
        self.pace = pace or Pace(batch_tokens)
        self._waiting: dict[Key, int] = {}  # tokens
        self._jobs: OrderedDict[Key, deque[Job]] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Return the number of tokens that wait."""
        return sum(self._waiting.values())

    @property
    def seconds(self) -> float:
        """Return how many seconds it takes to compute all that waits."""
        return sum(self.pace.seconds(key, tokens) for key, tokens in self._waiting.items())

    def add(self, job: Job, first: bool = False) -> None:
        """Put a request at the end of its row, or at the beginning."""
        row = self._jobs.setdefault(job.key, deque())
        (row.appendleft if first else row.append)(job)
        self._waiting[job.key] = self._waiting.get(job.key, 0) + job.tokens

    def discard(self, job: Job) -> None:
        """Forget what is left of a request."""
        row = self._jobs.get(job.key, deque())
        if job in row:
            row.remove(job)
            self._waiting[job.key] -= job.tokens
            self._drop_if_empty(job.key)

    def put_back(self, batch: Batch) -> None:
        """Let a batch that got no answer wait again, before all others."""
        for part in reversed(batch.parts):
            job = part.job
            self.discard(job)
            job.todo.appendleft((part.start, part.stop))
            self.add(job, first=True)

    def hopeless(self, now: float, ahead: float) -> list[Job]:
        """Return the requests that cannot be finished in time, even if the one that is due first is always next."""
        found = []
        for job in self._by_deadline():
            own = self.pace.seconds(job.key, job.tokens)
            if now + ahead + own > job.deadline:
                found.append(job)
            else:
                ahead += own
        return found

    def next_batch(self, now: float = 0.0, ahead: float = 0.0) -> Batch | None:
        """Return the batch of the pipeline whose turn it is, or of the one that must not wait; None if nothing waits."""
        if not self._jobs:
            return None
        urgent = self._urgent(now, ahead)
        key = next(iter(self._jobs)) if urgent is None else urgent.key
        if urgent is not None:
            self._jobs[key] = deque(sorted(self._jobs[key], key=_deadline))
        row, batch, room = self._jobs[key], Batch(key), self.batch_tokens
        share = self.batch_tokens // SHARE if urgent is None else self.batch_tokens
        while row and room > 0:
            job = row[0]
            part = job.take(share, room if batch.parts else 0)
            if part is None:
                break
            row.popleft()
            if job.todo:
                row.append(job)
            batch.parts.append(part)
            room -= part.tokens
            if job.is_call:  # it is alone
                break
        self._waiting[key] -= batch.tokens
        self._jobs.move_to_end(key)
        self._drop_if_empty(key)
        return batch

    def _by_deadline(self) -> list[Job]:
        return sorted((job for row in self._jobs.values() for job in row if job.deadline < inf), key=_deadline)

    def _urgent(self, now: float, ahead: float) -> Job | None:
        """Return the request that is due first, if some request has little time beyond what must be computed before it."""
        jobs = self._by_deadline()
        # Of what comes now, a batch goes before it, and one more if it just misses that.
        ahead += 2 * max((self.pace.seconds(key, self.batch_tokens) for key in self._jobs), default=0.0)
        for job in jobs:
            ahead += self.pace.seconds(job.key, job.tokens)
            if now + ahead > job.due:
                return jobs[0]
        return None

    def _drop_if_empty(self, key: Key) -> None:
        if not self._jobs[key]:
            del self._jobs[key], self._waiting[key]


def _deadline(job: Job) -> float:
    return job.deadline


# --- how long work takes ------------------------------------------------------------------------------------------------


class Pace:
    """Tokens a second of each pipeline.

    Speed is learned from batches that are at least half full, which there are under load, and from calls. Until then it is
    unknown, and work counts as done at once.
    """

    def __init__(self, batch_tokens: int) -> None:
        self._least = _FULL * batch_tokens
        self._rates: dict[Key, float] = {}

    def learn(self, key: Key, tokens: int, seconds: float, is_call: bool = False) -> None:
        """Take the time of a batch into account."""
        if is_call or tokens >= self._least:
            rate = tokens / max(seconds, 1e-6)
            self._rates[key] = rate if key not in self._rates else (1 - _NEW) * self._rates[key] + _NEW * rate

    def seconds(self, key: Key, tokens: int) -> float:
        """Return how long tokens take; 0 while the speed is unknown."""
        return tokens / self._rates[key] if key in self._rates else 0.0


def check_time(waiting: float, own: float, left: float) -> None:
    """Refuse a request that cannot be finished in the time that is left, before anything of it is computed.

    `waiting` are the seconds of work before it, `own` those of its own.
    """
    if own > ALONE * left:
        fact = f"the request takes about {own:.0f} seconds, {left:.0f} are left for it"
        raise ServiceError("too-large", fact, "send fewer texts in a request", status=413)
    if waiting and waiting + own > BACKLOG * left:
        fact = f"about {waiting:.0f} seconds of work wait, more than can be done in time"
        seconds = max(1, round(waiting + own - BACKLOG * left + 0.5))
        raise ServiceError("busy", fact, "send it again later", status=429, retry_after=seconds)
