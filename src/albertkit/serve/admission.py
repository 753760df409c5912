"""Decide which requests are accepted, and when a refused one may come again. The caller reads the clock: nothing waits here.

All work that waits may fill the room to the level `fair`. Above it, to the level `limit`, is room for those who are served early:
clients take turns in the queue, and so do the requests of a client, so that a request waits for no more work of another one than
it has itself. The sooner a request is done, the higher is its level: large requests leave small ones a place.

A refused request is promised the time at which there will be room for it. Until then its work is part of the plan: what comes
later is accepted only if everybody who was promised a time still finds room then. Who does not come loses the promise.
"""

import bisect
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_PROMISES = 2048
PATIENCE = 0.3  # of the room: who comes so late is still accepted
EXACT = 0.2  # seconds after the promised time, in which who waited for it comes: for so long its room is kept free
SLIGHT = 0.02  # of a promised request: so little work does not endanger it
_OVERDRAFT = 1.1  # of the room, for those who were promised a time: work may take longer than it seemed


class Sender(NamedTuple):
    """Who sends which request.

    Attributes:
        client: Its address.
        connection: Its port; 0 where it is unknown.
        request: What it asks: equal if it is sent again.
    """

    client: str = ""
    connection: int = 0
    request: Hashable = None


NOBODY = Sender()


class Work(NamedTuple):
    """Seconds of work that a client waits for."""

    client: str
    seconds: float


class Room(NamedTuple):
    """Seconds of work for which there is room: for any request, and for those that clients' turns serve early."""

    fair: float
    limit: float


@dataclass(frozen=True, eq=False)
class Promise:
    """A time, in seconds of the caller's clock, at which a refused request would be accepted."""

    sender: Sender
    work: Work
    due: float
    end: float


class Admission:
    """Accept requests, or promise a time."""

    def __init__(self) -> None:
        self._promises: list[Promise] = []  # by the time that is due

    def decide(
        self, sender: Sender, seconds: float, waiting: Sequence[Work], at_work: float, room: Room, now: float
    ) -> int | None:
        """Return None to accept a request, or after how many whole seconds it would be accepted.

        Args:
            sender: Who sends it.
            seconds: Its work.
            waiting: Work of all requests that were accepted, as far as it waits.
            at_work: Seconds of what is being computed.
            room: For this request.
            now: The time.
        """
        self._promises = [promise for promise in self._promises if promise.end > now]
        claimed = self._claim(sender, now)
        if claimed is not None:
            self._promises.remove(claimed)
            excess = at_work + sum(work.seconds for work in waiting) + seconds - _OVERDRAFT * room.limit
        else:
            excess = self._excess(Work(sender.client, seconds), waiting, at_work, room, now)
        if excess <= 0 or not waiting:
            return None
        if known := [promise for promise in self._promises if promise.sender == sender]:  # it did not wait
            return max(1, math.ceil(known[0].due - now))
        return self._promised(sender, seconds, excess, room, now)

    def promise(
        self, sender: Sender, seconds: float, waiting: Sequence[Work], at_work: float, room: Room, now: float
    ) -> int:
        """Return after how many seconds a refused request would be accepted. Arguments as `decide`."""
        excess = self._excess(Work(sender.client, seconds), waiting, at_work, room, now)
        return self._promised(sender, seconds, excess, room, now)

    def _promised(self, sender: Sender, seconds: float, excess: float, room: Room, now: float) -> int:
        wait = max(1, math.ceil(excess))
        if len(self._promises) < MOST_PROMISES:
            end = now + wait + max(1.0, PATIENCE * room.fair)
            promise = Promise(sender, Work(sender.client, seconds), now + wait, end)
            bisect.insort(self._promises, promise, key=lambda promise: promise.due)
        return wait

    def _claim(self, sender: Sender, now: float) -> Promise | None:
        """Find the promise that a request comes for.

        Equal requests of one address may be several clients', and some of them may be new: these are told apart by their
        connections, and by coming exactly at the promised time.
        """
        equal = [p for p in self._promises if (p.sender.client, p.sender.request) == (sender.client, sender.request)]
        due = [promise for promise in equal if promise.due <= now]
        same = [promise for promise in due if promise.sender.connection == sender.connection]
        exact = [promise for promise in due if len(equal) == 1 or now <= promise.due + EXACT]
        return next(iter(same or exact), None)

    def _excess(self, work: Work, waiting: Sequence[Work], at_work: float, room: Room, now: float) -> float:
        """Return the seconds until there is room for work; 0 if there is now."""
        expected = self._promises[bisect.bisect_right(self._promises, now - EXACT, key=lambda promise: promise.due) :]
        plan = list(_plan(at_work + sum(other.seconds for other in waiting), expected, now))
        present = [*waiting, *(promise.work for promise in expected if promise.due <= now)]
        turn = at_work + _before(work, present) + work.seconds
        level = max(room.fair, room.limit - (room.limit - room.fair) * turn / room.fair)
        return _first_time(plan, work.seconds, level, room.limit) - now


def _plan(seconds: float, promises: Sequence[Promise], now: float) -> Iterator[tuple[float, float, float]]:
    """Yield the time of each promise, the seconds of work that wait then, and those that it adds; first those of now."""
    time = now
    yield time, seconds, 0.0
    for promise in promises:
        due = max(promise.due, now)
        seconds, time = max(seconds - (due - time), 0.0) + promise.work.seconds, due
        yield time, seconds, promise.work.seconds


def _first_time(plan: list[tuple[float, float, float]], seconds: float, level: float, horizon: float) -> float:
    """Return the first time at which work fits below a level, and from which on it does for as long as the horizon.

    Promises of much more work are passed over: their times are not as exact as that.
    """
    following = full = first = math.inf
    for time, waiting, promised in reversed(plan):
        fits = time + max(waiting + seconds - level, 0.0)
        if fits <= following and fits + horizon < full:
            first = fits
        following = time
        if waiting + seconds > level and seconds > SLIGHT * promised:
            full = time
    return first


def _before(work: Work, others: Sequence[Work]) -> float:
    """Return the seconds of other requests that clients' turns serve before a request is served."""
    own = sum(min(other.seconds, work.seconds) for other in others if other.client == work.client)
    sums = defaultdict[str, float](float)
    for other in others:
        if other.client != work.client:
            sums[other.client] += other.seconds
    return own + sum(min(total, own + work.seconds) for total in sums.values())
