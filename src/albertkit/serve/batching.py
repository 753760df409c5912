"""Which sequences are computed next: those of many requests in one batch, and nobody waits behind a large request.

A queue for each pipeline; pipelines take turns. Within a pipeline requests stand in a row. The first one gives at most
`SHARE` of a batch and goes to the end of the row if it has more (deficit round robin): a text that arrives behind a million
others waits for one batch, not for all of them.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from albertkit.tasks.features import Features

SHARE = 8  # parts of a batch that one request may take before others had their turn
CALL_TOKENS = 512  # what a call (a caption, a look inside) counts for in the queue
Key = tuple[str, str]  # name of a model, kind of its pipeline


class Job:
    """What one request wants computed.

    Args:
        key: Which pipeline.
        content: M sequences; or arguments of a call, which counts as one.
        future: Gets M outputs, or an error.
    """

    def __init__(self, key: Key, content: Features | dict[str, Any], future: "asyncio.Future[list[Any]]") -> None:
        self.key, self.content, self.future = key, content, future
        ends = content.offsets if isinstance(content, Features) else np.array([0, CALL_TOKENS])
        self.ends: list[int] = ends.tolist()  # tokens before each sequence
        self.outputs: list[Any] = [None] * (len(self.ends) - 1)
        self.unanswered = len(self.outputs)
        self.todo = deque([(0, len(self.outputs))])  # sequences from, to
        self.retried = False

    @property
    def tokens(self) -> int:
        """Of the sequences that wait."""
        return sum(self.ends[stop] - self.ends[start] for start, stop in self.todo)

    def take(self, share: int, room: int) -> "Part | None":
        """The next sequences, at most `share` tokens and never more than `room`; at least one sequence.

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
        """In these sequences."""
        return self.job.ends[self.stop] - self.job.ends[self.start]

    def content(self) -> Features:
        """These sequences alone."""
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
        """T."""
        return sum(part.tokens for part in self.parts)

    @property
    def sequences(self) -> int:
        """N."""
        return sum(part.stop - part.start for part in self.parts)

    @property
    def jobs(self) -> set[Job]:
        """The requests."""
        return {part.job for part in self.parts}

    def content(self) -> Features | dict[str, Any]:
        """All sequences, or the call."""
        call = self.parts[0].job.content
        return call if isinstance(call, dict) else Features.concatenated([part.content() for part in self.parts])

    def answered(self, outputs: list[Any]) -> None:
        """Give everybody his outputs."""
        at = 0
        for part in self.parts:
            size = part.stop - part.start
            part.job.answer(part.start, part.stop, outputs[at : at + size])
            at += size


class Queue:
    """What waits.

    Args:
        batch_tokens: Most tokens of a batch; a longer sequence is a batch of its own.
    """

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens
        self.tokens = 0
        self._jobs: OrderedDict[Key, deque[Job]] = OrderedDict()

    def add(self, job: Job, first: bool = False) -> None:
        """Put a request at the end of its row, or at the beginning."""
        row = self._jobs.setdefault(job.key, deque())
        (row.appendleft if first else row.append)(job)
        self.tokens += job.tokens

    def discard(self, job: Job) -> None:
        """Forget what is left of a request."""
        row = self._jobs.get(job.key, deque())
        if job in row:
            row.remove(job)
            self.tokens -= job.tokens
            self._drop_if_empty(job.key)

    def put_back(self, batch: Batch) -> None:
        """Let a batch that got no answer wait again, before all others."""
        for part in reversed(batch.parts):
            job = part.job
            self.discard(job)
            job.todo.appendleft((part.start, part.stop))
            self.add(job, first=True)

    def next_batch(self) -> Batch | None:
        """The batch of the pipeline whose turn it is; None if nothing waits."""
        if not self._jobs:
            return None
        key, row = next(iter(self._jobs.items()))
        batch = Batch(key)
        room = self.batch_tokens
        while row and room > 0:
            job = row[0]
            part = job.take(self.batch_tokens // SHARE, room if batch.parts else 0)
            if part is None:
                break
            row.popleft()
            if job.todo:
                row.append(job)
            batch.parts.append(part)
            room -= part.tokens
            if isinstance(job.content, dict):  # a call is alone
                break
        self.tokens -= batch.tokens
        self._jobs.move_to_end(key)
        self._drop_if_empty(key)
        return batch

    def _drop_if_empty(self, key: Key) -> None:
        if not self._jobs[key]:
            del self._jobs[key]
