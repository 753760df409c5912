"""Choose the sequences that are computed next: many requests share a batch, and none waits behind a large one.

A queue for each pipeline; pipelines take turns. Within a pipeline clients take turns, and so do the requests of a client. Each
turn gives at most `SHARE` of a batch (deficit round robin): a text that arrives behind a million others waits for one batch,
not for all of them. Where this would let a request miss its deadline, the one that is due first
goes first; one that cannot be finished in time even so is refused and not computed.
"""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from albertkit.data.features import Features
from albertkit.serve.admission import NOBODY, Sender

CALL_TOKENS = 512  # what a call (a caption, a look inside) counts for in the queue
Key = tuple[str, str]  # name of a model, kind of its pipeline
BACKLOG = 0.6  # of a request's time: in which it should be done, with all that is served before it
ALONE = 0.9  # of a request's time: what all work may take, or one request where nothing else waits
_FULL = 0.5  # of a batch: the time of a smaller one is mostly overhead, and says little of a token's
_NEW = 0.2  # weight of the latest batch
_DENSITY = 0.25  # tokens of a character, about: English; until a text is tokenized nothing better is known
SHARE = 8  # parts of a batch that one request may take before others had their turn
_DUE = 0.7  # of a request's time, more than `BACKLOG`: the rest is for a machine that becomes slower


class Job:
    """Hold the work of one request: M sequences, or the arguments of a call, which counts as one.

    The future gets M outputs, or an error. Its client waits until the deadline; it should be done when it is `due`. Both
    are seconds of the loop's clock. Clients take turns: `sender` names it.
    """

    def __init__(
        self,
        key: Key,
        content: Features | dict[str, Any],
        future: "asyncio.Future[list[Any]]",
        deadline: float = inf,
        now: float = 0.0,
        sender: Sender = NOBODY,
    ) -> None:
        self.key, self.content, self.future, self.deadline = key, content, future, deadline
        self.sender = sender
        self.due = now + _DUE * (deadline - now)
        ends = content.offsets if isinstance(content, Features) else np.array([0, CALL_TOKENS])
        self.ends: list[int] = ends.tolist()  # tokens before each sequence
        self.outputs: list[Any] = [None] * (len(self.ends) - 1)
        self.unanswered = len(self.outputs)
        self.todo = deque([(0, len(self.outputs))])  # sequences from, to
        self.tokens = self.ends[-1]  # that wait; kept, as every refusal asks for those of all requests
        self.retried = False

    @property
    def is_call(self) -> bool:
        """Return whether this is a call and not sequences."""
        return isinstance(self.content, dict)

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
        self.tokens -= self.ends[end] - self.ends[start]
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


class Row:
    """Requests of a pipeline: clients take turns, and so do the requests of a client.

    Attributes:
        tokens: That wait, by client; kept, as every refusal asks for them.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, deque[Job]] = OrderedDict()  # by client
        self.tokens: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return (job for jobs in self._jobs.values() for job in jobs)

    def add(self, job: Job, first: bool = False) -> None:
        """Put a request at the end of its client's, or before all others."""
        jobs = self._jobs.setdefault(job.sender.client, deque())
        (jobs.appendleft if first else jobs.append)(job)
        self.tokens[job.sender.client] = self.tokens.get(job.sender.client, 0) + job.tokens
        if first:
            self._jobs.move_to_end(job.sender.client, last=False)

    def remove(self, job: Job) -> None:
        """Take a request out."""
        client = job.sender.client
        self._jobs[client].remove(job)
        self.tokens[client] -= job.tokens
        if not self._jobs[client]:
            del self._jobs[client], self.tokens[client]

    def of_client(self, client: str) -> Iterable[Job]:
        """Return the requests of a client."""
        return self._jobs.get(client, ())

    def end_turn(self, part: Part) -> None:
        """Let the next client have its turn, and after it the next request of the one that a part was taken of."""
        job = part.job
        self.tokens[job.sender.client] -= part.tokens
        self.remove(job)
        if job.todo:
            self.add(job)
        if job.sender.client in self._jobs:
            self._jobs.move_to_end(job.sender.client)


class Queue:
    """Requests that wait. A sequence longer than a batch is a batch of its own.

    Attributes:
        batch_tokens: As given.
        pace: How long work takes.
        rows: The requests of each pipeline; the first one's turn is next.
    """

    def __init__(self, batch_tokens: int, pace: "Pace | None" = None) -> None:
        self.batch_tokens = batch_tokens
        self.pace = pace or Pace(batch_tokens)
        self.rows: OrderedDict[Key, Row] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Return the number of tokens that wait."""
        return sum(sum(row.tokens.values()) for row in self.rows.values())

    @property
    def seconds(self) -> float:
        """Return how long they take, as far as the speed is known."""
        return sum(self.pace.seconds(key, sum(row.tokens.values())) for key, row in self.rows.items())

    def __iter__(self) -> Iterator[Job]:
        return (job for row in self.rows.values() for job in row)

    def add(self, job: Job, first: bool = False) -> None:
        """Put a request at the end of its client's row, or at the beginning of all."""
        self.rows.setdefault(job.key, Row()).add(job, first)

    def discard(self, job: Job) -> None:
        """Forget what is left of a request."""
        row = self.rows.get(job.key)
        if row is not None and job in row:
            row.remove(job)
            self._drop_if_empty(job.key)

    def put_back(self, batch: Batch) -> None:
        """Let a batch that got no answer wait again, before all others."""
        for part in reversed(batch.parts):
            job = part.job
            self.discard(job)
            job.todo.appendleft((part.start, part.stop))
            job.tokens += part.tokens
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
        if not self.rows:
            return None
        urgent = self._urgent(now, ahead)
        key = next(iter(self.rows)) if urgent is None else urgent.key
        row, batch, room = self.rows[key], Batch(key), self.batch_tokens
        share = self.batch_tokens // SHARE if urgent is None else self.batch_tokens
        due_first = iter(sorted(row, key=_deadline))
        while row and room > 0:
            job = next(iter(row)) if urgent is None else next(due_first, None)
            part = None if job is None else job.take(share, room if batch.parts else 0)
            if job is None or part is None:
                break
            row.end_turn(part)
            batch.parts.append(part)
            room -= part.tokens
            if job.is_call:  # it is alone
                break
        self.rows.move_to_end(key)
        self._drop_if_empty(key)
        return batch

    def _by_deadline(self) -> list[Job]:
        return sorted((job for job in self if job.deadline < inf), key=_deadline)

    def _urgent(self, now: float, ahead: float) -> Job | None:
        """Return the request that is due first, if some request has little time beyond what must be computed before it."""
        jobs = self._by_deadline()
        # Of what comes now, a batch goes before it, and one more if it just misses that.
        ahead += 2 * max((self.pace.seconds(key, self.batch_tokens) for key in self.rows), default=0.0)
        for job in jobs:
            ahead += self.pace.seconds(job.key, job.tokens)
            if now + ahead > job.due:
                return jobs[0]
        return None

    def _drop_if_empty(self, key: Key) -> None:
        if not self.rows[key]:
            del self.rows[key]


def _deadline(job: Job) -> float:
    return job.deadline


# --- how long work takes ------------------------------------------------------------------------------------------------


class Pace:
    """Tokens a second of each pipeline, and tokens of a character.

    Speed is learned from batches that are at least half full, which there are under load, and from calls. Until then it is
    unknown, and work counts as done at once.
    """

    def __init__(self, batch_tokens: int) -> None:
        self._least = _FULL * batch_tokens
        self._rates: dict[Key, float] = {}
        self._densities: dict[Key, float] = {}  # tokens of a character

    def learn(self, key: Key, tokens: int, seconds: float, is_call: bool = False) -> None:
        """Take the time of a batch into account."""
        if is_call or tokens >= self._least:
            rate = tokens / max(seconds, 1e-6)
            self._rates[key] = rate if key not in self._rates else (1 - _NEW) * self._rates[key] + _NEW * rate

    def seconds(self, key: Key, tokens: int) -> float:
        """Return how long tokens take; 0 while the speed is unknown."""
        return tokens / self._rates[key] if key in self._rates else 0.0

    def knows(self, key: Key) -> bool:
        """Return whether the speed is known."""
        return key in self._rates

    def learn_density(self, key: Key, size: int, tokens: int) -> None:
        """Take the tokens of a request of some size, in characters or ids, into account."""
        if size:
            self._densities[key] = (1 - _NEW) * self._densities.get(key, _DENSITY) + _NEW * tokens / size

    def tokens(self, key: Key, size: int) -> int:
        """Return about the number of tokens of a request of this size."""
        return math.ceil(self._densities.get(key, _DENSITY) * size)
