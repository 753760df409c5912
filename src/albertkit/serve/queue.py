"""Choose the sequences of the next batch: many requests share one, and none waits behind a large one.

A queue for each pipeline; pipelines take turns. Within a pipeline clients take turns, and so do the
requests of a client. Each turn gives at most `SHARE` of a batch (deficit round robin): a text that
arrives behind a million others waits for one batch, not for all of them. Where this would let a
request miss its deadline, the one that is due first goes first; one that cannot be finished in time
even so is refused and not computed.
"""

import asyncio
import ipaddress
import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from albertkit.batches.features import Features

# Those who are refused beyond this number are all told the same time. A tiny model refuses hundreds
# a second: with 2,048 promises 25 % of a simulated minute's were served at their next try, with
# these (23 MB) 97 %.
MAX_PROMISES = 32_768
# Of the room: the time for which a promise stays open. A request that comes in time waits until the
# front reads it, for as long as the front needs for all that it holds.
PATIENCE = 1.0
_BIN_SECONDS = 0.125  # promises due within it are one in the plan
# Seconds after the promised time for which the room is kept free. So at three times the load all
# 521 requests that were refused once were answered when they came again.
EXACT = 0.2
SLIGHT = 0.02  # of a promised request: less work than this does not endanger it
# Weight of earlier requests against the latest one, in the rate at which places become free
_HISTORY_WEIGHT = 0.98
# Of a space: promises are whole seconds, so many clients return at the same moment
_PROMISED_SHARE = 2 / 3


class Sender(NamedTuple):
    """Client, connection and request.

    Attributes:
        client: Its address.
        connection: Its port; 0 where it is unknown.
        request: Its content: equal if it is sent again.
    """

    client: str = ""
    connection: int = 0
    request: Hashable = None


NOBODY = Sender()


@lru_cache(4096)
def client_of_address(host: str) -> str:
    """Return the client that has an address: of IPv6 the network that one client has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


class Waiting(NamedTuple):
    """Seconds of accepted work in the queue.

    Attributes:
        own_seconds: Of each request of the client in question.
        seconds_by_client: Of all requests of each other client.
    """

    own_seconds: Sequence[float]
    seconds_by_client: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Return the sum."""
        return sum(self.own_seconds) + sum(self.seconds_by_client.values())


class Room(NamedTuple):
    """Seconds of work for which there is room: for any request, and for those that clients' turns serve early."""

    fair: float
    limit: float


class Demand(NamedTuple):
    """A request as an admission sees it.

    Attributes:
        sender: Who sends it.
        seconds: Its work.
        waiting: Work that waits.
        at_work: Seconds of the batches in computation.
        room: For this request.
        now: The time.
    """

    sender: Sender
    seconds: float
    waiting: Waiting
    at_work: float
    room: Room
    now: float

    @property
    def total_seconds(self) -> float:
        """Return the work of the request, and all that is before it."""
        return self.at_work + self.waiting.seconds + self.seconds


@dataclass(frozen=True, eq=False)
class Promise:
    """A time, in seconds of the caller's clock, at which a refused request, of some seconds of work, would be accepted."""

    sender: Sender
    seconds: float
    due: float
    end: float


class Admission:
    """Accept requests, or promise a time.

    Args:
        overdraft: Of the limit of the room, for those who were promised a time: work may take
            longer than it seemed.
    """

    def __init__(self, overdraft: float = 1.1) -> None:
        self._promises, self._overdraft = _Promises(), overdraft

    @property
    def has_promised(self) -> bool:
        """Return whether a promise is still open."""
        return len(self._promises) > 0

    def seconds_to_wait(self, demand: Demand) -> int | None:
        """Return None to accept a request, or the whole seconds until it would be accepted."""
        sender, now = demand.sender, demand.now
        self._promises.expire(now)
        equal = self._promises.promises_to_request(sender)
        # Equal requests of one address may be several clients', and some of them may be new: these
        # are told apart by their connections, and by coming exactly at the promised time.
        due = [promise for promise in equal if promise.due <= now]
        of_connection = [
            promise for promise in due if promise.sender.connection == sender.connection
        ]
        on_time = [promise for promise in due if len(equal) == 1 or now <= promise.due + EXACT]
        claimed = next(iter(of_connection or on_time), None)
        if claimed is not None:
            self._promises.remove(claimed)
            excess = demand.total_seconds - self._overdraft * demand.room.limit
        else:
            excess = self._seconds_until_room(demand)
        if excess <= 0 or not demand.waiting.seconds:
            return None
        for promise in equal:
            if promise.sender == sender and promise is not claimed:  # it came back too early
                return max(1, math.ceil(promise.due - now))
        return self._promise(demand, excess)

    def promise_seconds(self, demand: Demand) -> int:
        """Return the seconds until a refused request would be accepted."""
        return self._promise(demand, self._seconds_until_room(demand))

    def _promise(self, demand: Demand, excess: float) -> int:
        wait = max(1, math.ceil(excess))
        if len(self._promises) < MAX_PROMISES:
            due = demand.now + wait
            end = due + max(1.0, PATIENCE * demand.room.fair)
            self._promises.add(Promise(demand.sender, demand.seconds, due, end))
        return wait

    def _seconds_until_room(self, demand: Demand) -> float:
        """Return the seconds until there is room for work; 0 if there is now."""
        seconds, room = demand.seconds, demand.room
        own_seconds = [*demand.waiting.own_seconds]
        seconds_by_client = defaultdict(float, demand.waiting.seconds_by_client)
        for promise in self._promises.due_between(demand.now - EXACT, demand.now):
            if promise.sender.client == demand.sender.client:
                own_seconds.append(promise.seconds)
            else:
                seconds_by_client[promise.sender.client] += promise.seconds
        # Of each other client at most as much as its own: counting all that waits refused 39 of 50
        # requests of one text beside 24 clients of 512.
        first = sum(min(waiting_seconds, seconds) for waiting_seconds in own_seconds)
        second = sum(
            min(client_seconds, first + seconds) for client_seconds in seconds_by_client.values()
        )
        turn = demand.at_work + (first + second) + seconds
        level = max(room.fair, room.limit - (room.limit - room.fair) * turn / room.fair)
        # The plan below, without arrays: 0.02 for 0.1 ms of every request
        if not self.has_promised:
            return max(0.0, demand.total_seconds - level)
        due, promised, smallest = self._promises.due_after(demand.now - EXACT)
        # Now (0) and the time of each promise; the seconds of work that wait then. Where nothing
        # waits, time passes without work: as much as the balance has fallen below zero until then.
        times = np.concatenate(([0.0], np.maximum(due - demand.now, 0.0)))
        added = np.concatenate(([demand.at_work + demand.waiting.seconds], promised))
        balance = np.cumsum(added) - times
        waiting_then = balance - np.minimum.accumulate(balance - added)
        # The first time at which this work fits below the level, and from which on it does for as
        # long as the room's limit. Promises of much more work, for which it is slight, are passed
        # over: their times are not as exact as that.
        excess = waiting_then + seconds - level
        fits = times + np.maximum(excess, 0.0)
        following = np.append(times[1:], np.inf)
        is_slight = np.append(False, seconds <= SLIGHT * smallest)
        full = np.where((excess > 0) & ~is_slight, times, np.inf)
        # Compared with all promises, and not those of that time, a simulated machine idled for 8 %
        # of the time.
        next_full = np.append(np.minimum.accumulate(full[:0:-1])[::-1], np.inf)
        return float(fits[np.argmax((fits <= following) & (fits + room.limit < next_full))])


class RequestCapacity:
    """Places, or bytes, that requests use until they end; a request that finds none is promised a time.

    How fast they become free is seen while at least half of them are held, where the latest
    requests count most; before that they count as held for the longest that a request may take.
    Once somebody is refused, the space counts as full where `_PROMISED` of it is held; all of it is
    for those who were promised a time. This is work for an `Admission`.

    Attributes:
        capacity: Their number.
        used: Number in use now.
    """

    def __init__(self, capacity: float, longest: float) -> None:
        self.capacity, self.used = capacity, 0.0
        self._freed, self._seconds = 0.0, 0.0
        self._since = 0.0
        self._longest, self._admission = longest, Admission(1 / _PROMISED_SHARE)

    @property
    def is_exceeded(self) -> bool:
        """Return whether more are in use than there are."""
        return self.used > self.capacity

    def seconds_until_free(self, sender: Sender, count: float, now: float) -> int | None:
        """Return None if `count` are free, or the seconds until they are."""
        if self.used + count <= self.capacity and not self._admission.has_promised:
            return None
        return self._admission.seconds_to_wait(self._demand(sender, count, now))

    def promise_seconds(self, sender: Sender, count: float, now: float) -> int:
        """Return the seconds until `count` are free, for a request that needs more of them."""
        return self._admission.promise_seconds(self._demand(sender, count, now))

    def occupy(self, count: float, now: float) -> None:
        """Use more."""
        if self.used < self.capacity / 2:
            self._since = now
        self.used += count

    def release(self, count: float, now: float) -> None:
        """Free those of a request."""
        if self.used >= self.capacity / 2:
            self._freed = _HISTORY_WEIGHT * self._freed + count
            self._seconds = _HISTORY_WEIGHT * self._seconds + now - self._since
            self._since = now
        self.used -= count

    def _demand(self, sender: Sender, count: float, now: float) -> Demand:
        seconds_each = self._seconds / self._freed if self._freed else self._longest / self.capacity
        full = seconds_each * _PROMISED_SHARE * self.capacity
        waiting = Waiting((), {"": seconds_each * self.used})
        return Demand(sender, seconds_each * count, waiting, 0.0, Room(full, full), now)


_due = attrgetter("due")


class _Promises:
    """Promises by due time.

    Every refusal plans with all of them: as sums over `_BIN_SECONDS`, whose number depends on the
    time and not on the load.
    """

    def __init__(self) -> None:
        self._promises: list[Promise] = []
        self._ends: list[tuple[float, int, Promise]] = []  # a heap
        self._by_request = defaultdict[Hashable, list[Promise]](list)
        self._numbers = count()
        # Due time, sum of the seconds, fewest seconds, and number of promises of each
        self._bins = np.empty((4, 0))

    def __len__(self) -> int:
        return len(self._promises)

    def add(self, promise: Promise) -> None:
        insort(self._promises, promise, key=_due)
        heappush(self._ends, (promise.end, next(self._numbers), promise))
        insort(self._by_request[_client_and_request(promise.sender)], promise, key=_due)
        due, index = self._find_bin(promise)
        if not np.array_equal(self._bins[0, index : index + 1], [due]):
            self._bins = np.insert(self._bins, index, (due, 0, promise.seconds, 0), axis=1)
        self._bins[1:, index] += promise.seconds, 0, 1
        self._bins[2, index] = min(self._bins[2, index], promise.seconds)

    def remove(self, promise: Promise) -> None:
        del self._promises[
            self._promises.index(promise, bisect_left(self._promises, promise.due, key=_due))
        ]
        equal = self._by_request[_client_and_request(promise.sender)]
        equal.remove(promise)
        if not equal:
            del self._by_request[_client_and_request(promise.sender)]
        _, index = self._find_bin(promise)
        self._bins[1:, index] -= promise.seconds, 0, 1
        if not self._bins[3, index]:
            self._bins = np.delete(self._bins, index, axis=1)

    def expire(self, now: float) -> None:
        """Remove those that have ended."""
        while self._ends and self._ends[0][0] <= now:
            promise = heappop(self._ends)[2]
            if promise in self._by_request.get(
                _client_and_request(promise.sender), ()
            ):  # else it was claimed
                self.remove(promise)

    def _find_bin(self, promise: Promise) -> tuple[float, int]:
        """Return the due time and the index of the bin of a promise."""
        due = math.ceil(promise.due / _BIN_SECONDS) * _BIN_SECONDS
        return due, int(self._bins[0].searchsorted(due))

    def promises_to_request(self, sender: Sender) -> list[Promise]:
        """Return the promises to a client for an equal request."""
        return [*self._by_request.get(_client_and_request(sender), ())]

    def due_between(self, start: float, stop: float) -> list[Promise]:
        """Return the promises due after `start`, up to `stop`."""
        first, last = (bisect_right(self._promises, time, key=_due) for time in (start, stop))
        return self._promises[first:last]

    def due_after(self, start: float) -> np.ndarray:
        """Return due time, sum of the seconds, and seconds of the smallest promise of the bins after `start`."""
        return self._bins[:3, self._bins[0].searchsorted(start, "right") :]


def _client_and_request(sender: Sender) -> Hashable:
    return sender.client, sender.request


CALL_TOKENS = 512  # size of a call (a caption, a look inside) in the queue
Key = tuple[str, str]  # name of a model, kind of its pipeline
BACKLOG = 0.6  # of a request's time: in which it should be done, with all that is served before it
ALONE = 0.9  # of a request's time: limit of all work, or of one request in an empty queue
# Of a batch: the time of a smaller one is mostly overhead, which makes the speed of a token 10
# times too low.
_LEARNED_SHARE = 0.5
_LATEST_WEIGHT = 0.2  # weight of the latest batch
# Tokens of a character, about: English; until a text is tokenized nothing better is known
_DENSITY = 0.25
SHARE = 8  # parts of a batch that one request may take before others had their turn
# Of a request's time, more than `BACKLOG`: the rest is for a machine that becomes slower. With what
# is due first going first goodput at three times the load is 100 %; turns alone had 78 %, the
# slowest answer after 59.9 of 60 s.
_DUE_SHARE = 0.7


class RequestJob:
    """Hold the work of one request: M sequences, or the arguments of a call, which counts as one.

    The future gets M outputs, or an error. Its client waits until the deadline; it should be done
    when it is `due`. Both are seconds of the loop's clock. Clients take turns: `sender` names it.
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
        self.due = now + _DUE_SHARE * (deadline - now)
        ends = content.offsets if isinstance(content, Features) else np.array([0, CALL_TOKENS])
        self.ends: list[int] = ends.tolist()  # tokens before each sequence
        self.outputs: list[Any] = [None] * (len(self.ends) - 1)
        self.unanswered = len(self.outputs)
        self.todo = deque([(0, len(self.outputs))])  # sequences from, to
        # That wait; kept, as every refusal asks for those of all requests
        self.tokens = self.ends[-1]
        self.retried = False

    @property
    def is_call(self) -> bool:
        """Return whether this is a call and not sequences."""
        return isinstance(self.content, dict)

    def take(self, max_tokens: int, room: int) -> "RequestPart | None":
        """Take the next sequences, at most `max_tokens` tokens and never more than `room`; at least one sequence.

        Room 0 means that the batch is empty: then a sequence of any length fits. None if the next
        one does not fit.
        """
        start, stop = self.todo[0]
        end = start + 1
        if room and self.ends[end] - self.ends[start] > room:
            return None
        limit = self.ends[start] + (min(max_tokens, room) if room else max_tokens)
        while end < stop and self.ends[end + 1] <= limit:
            end += 1
        self.todo.popleft()
        if end < stop:
            self.todo.appendleft((end, stop))
        self.tokens -= self.ends[end] - self.ends[start]
        return RequestPart(self, start, end)

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
class RequestPart:
    """Sequences `start` to `stop` of a request."""

    job: RequestJob
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Return the number of tokens in these sequences."""
        return self.job.ends[self.stop] - self.job.ends[self.start]

    def content(self) -> Features:
        """Return these sequences alone."""
        features, (a, b) = self.job.content, (self.start, self.stop)
        assert isinstance(features, Features)
        if (a, b) == (0, features.num_sequences):
            return features
        tokens = slice(self.job.ends[a], self.job.ends[b])
        return Features(
            features.input_ids[tokens],
            features.token_type_ids[tokens],
            features.offsets[a : b + 1] - features.offsets[a],
            features.examples[a:b],
            {name: values[a:b] for name, values in features.per_sequence.items()},
            {name: values[tokens] for name, values in features.per_token.items()},
        )


@dataclass(eq=False)
class RequestBatch:
    """Parts of requests that are computed together."""

    key: Key
    parts: list[RequestPart] = field(default_factory=list)

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
    def jobs(self) -> set[RequestJob]:
        """Return the requests that share this batch."""
        return {part.job for part in self.parts}

    def content(self) -> Features | dict[str, Any]:
        """Return all sequences, or the call."""
        call = self.parts[0].job.content
        return (
            call
            if isinstance(call, dict)
            else Features.concatenated([part.content() for part in self.parts])
        )

    def distribute_outputs(self, outputs: list[Any]) -> None:
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
        self._jobs: OrderedDict[str, deque[RequestJob]] = OrderedDict()  # by client
        self.tokens: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __iter__(self) -> Iterator[RequestJob]:
        return (job for jobs in self._jobs.values() for job in jobs)

    def add(self, job: RequestJob, first: bool = False) -> None:
        """Put a request at the end of its client's, or before all others."""
        jobs = self._jobs.setdefault(job.sender.client, deque())
        (jobs.appendleft if first else jobs.append)(job)
        self.tokens[job.sender.client] = self.tokens.get(job.sender.client, 0) + job.tokens
        if first:
            self._jobs.move_to_end(job.sender.client, last=False)

    def remove(self, job: RequestJob) -> None:
        """Remove a request."""
        client = job.sender.client
        self._jobs[client].remove(job)
        self.tokens[client] -= job.tokens
        if not self._jobs[client]:
            del self._jobs[client], self.tokens[client]

    def jobs_of_client(self, client: str) -> Iterable[RequestJob]:
        """Return the requests of a client."""
        return self._jobs.get(client, ())

    def end_turn(self, part: RequestPart) -> None:
        """Move on to the next client, and to the next request of the client of this part."""
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
        batch_tokens: Maximum tokens of a batch.
        pace: Speed of each pipeline.
        rows: The requests of each pipeline; the first one's turn is next.
    """

    def __init__(self, batch_tokens: int, pace: "PipelineSpeed | None" = None) -> None:
        self.batch_tokens = batch_tokens
        self.pace = pace or PipelineSpeed(batch_tokens)
        self.rows: OrderedDict[Key, Row] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Return the number of tokens that wait."""
        return sum(sum(row.tokens.values()) for row in self.rows.values())

    @property
    def seconds(self) -> float:
        """Return the seconds that they take, as far as the speed is known."""
        return sum(
            self.pace.seconds(key, sum(row.tokens.values())) for key, row in self.rows.items()
        )

    def __iter__(self) -> Iterator[RequestJob]:
        return (job for row in self.rows.values() for job in row)

    def add(self, job: RequestJob, first: bool = False) -> None:
        """Put a request at the end of its client's row, or at the beginning of all."""
        self.rows.setdefault(job.key, Row()).add(job, first)

    def discard(self, job: RequestJob) -> None:
        """Remove the sequences of a request that still wait."""
        row = self.rows.get(job.key)
        if row is not None and job in row:
            row.remove(job)
            self._drop_if_empty(job.key)

    def put_back(self, batch: RequestBatch) -> None:
        """Put an unanswered batch back, before all others."""
        for part in reversed(batch.parts):
            job = part.job
            self.discard(job)
            job.todo.appendleft((part.start, part.stop))
            job.tokens += part.tokens
            self.add(job, first=True)

    def find_too_late(self, now: float, seconds_of_work_before: float) -> list[RequestJob]:
        """Return the requests that cannot be finished in time, even if the one that is due first is always next."""
        jobs = []
        for job in self._by_deadline():
            seconds = self.pace.seconds(job.key, job.tokens)
            if now + seconds_of_work_before + seconds > job.deadline:
                jobs.append(job)
            else:
                seconds_of_work_before += seconds
        return jobs

    def next_batch(
        self, now: float = 0.0, seconds_of_work_before: float = 0.0
    ) -> RequestBatch | None:
        """Return the batch of the pipeline whose turn it is, or of the one that must not wait; None if nothing waits."""
        if not self.rows:
            return None
        urgent = self.find_urgent_job(now, seconds_of_work_before)
        key = next(iter(self.rows)) if urgent is None else urgent.key
        row, batch, room = self.rows[key], RequestBatch(key), self.batch_tokens
        share = self.batch_tokens // SHARE if urgent is None else self.batch_tokens
        due_first = iter(sorted(row, key=_deadline_of_job))
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

    def _by_deadline(self) -> list[RequestJob]:
        return sorted((job for job in self if job.deadline < inf), key=_deadline_of_job)

    def find_urgent_job(self, now: float, seconds_of_work_before: float) -> RequestJob | None:
        """Return the request that is due first, if some request has little time beyond what must be computed before it."""
        jobs = self._by_deadline()
        # Of what comes now, a batch goes before it, and one more if it just misses that.
        seconds_of_work_before += 2 * max(
            (self.pace.seconds(key, self.batch_tokens) for key in self.rows), default=0.0
        )
        for job in jobs:
            seconds_of_work_before += self.pace.seconds(job.key, job.tokens)
            if now + seconds_of_work_before > job.due:
                return jobs[0]
        return None

    def _drop_if_empty(self, key: Key) -> None:
        if not self.rows[key]:
            del self.rows[key]


def _deadline_of_job(job: RequestJob) -> float:
    return job.deadline


# --- speed of the pipelines -----------------------------------------------------------------------


class PipelineSpeed:
    """Tokens a second of each pipeline, and tokens of a character.

    Speed is learned from batches that are at least half full, which there are under load, and from
    calls. Until then it is unknown, and work counts as done at once.
    """

    def __init__(self, batch_tokens: int) -> None:
        self._min_tokens = _LEARNED_SHARE * batch_tokens
        self._rates: dict[Key, float] = {}
        self._densities: dict[Key, float] = {}  # tokens of a character

    def learn_speed(self, key: Key, tokens: int, seconds: float, is_call: bool = False) -> None:
        """Take the time of a batch into account."""
        if is_call or tokens >= self._min_tokens:
            rate = tokens / max(seconds, 1e-6)
            self._rates[key] = _moving_average(self._rates.get(key, rate), rate)

    def seconds(self, key: Key, tokens: int) -> float:
        """Return the seconds that tokens take; 0 while the speed is unknown."""
        return tokens / self._rates[key] if key in self._rates else 0.0

    def is_speed_known(self, key: Key) -> bool:
        """Return whether the speed is known."""
        return key in self._rates

    def learn_density(self, key: Key, size: int, tokens: int) -> None:
        """Take the tokens of a request of some size, in characters or ids, into account."""
        if size:
            self._densities[key] = _moving_average(
                self._densities.get(key, _DENSITY), tokens / size
            )

    def tokens(self, key: Key, size: int) -> int:
        """Estimate the number of tokens of a request of this size."""
        return math.ceil(self._densities.get(key, _DENSITY) * size)


def _moving_average(average: float, latest: float) -> float:
    return (1 - _LATEST_WEIGHT) * average + _LATEST_WEIGHT * latest
