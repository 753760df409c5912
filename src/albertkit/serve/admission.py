"""Decide which requests are accepted, and when a refused one may come again. The caller reads the clock: nothing waits here.

All work that waits may fill the room to the level `fair`. Above it, to the level `limit`, is room for those who are served early:
clients take turns in the queue, and so do the requests of a client, so that a request waits for no more work of another one than
it has itself. The sooner a request is done, the higher is its level: large requests leave small ones a place.

A refused request is promised the time at which there will be room for it. Until then its work is part of the plan: what comes
later is accepted only if everybody who was promised a time still finds room then. Who does not come loses the promise.
"""

import ipaddress
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MOST_PROMISES = 2048
PATIENCE = 0.3  # of the room: who comes so late is still accepted
EXACT = 0.2  # seconds after the promised time, in which who waited for it comes: for so long its room is kept free
SLIGHT = 0.02  # of a promised request: so little work does not endanger it
_KEPT = 0.98  # weight of all earlier requests beside the latest one, where it is learned how fast places become free
_PROMISED = (
    2 / 3
)  # of a space: promises are of whole seconds, so that many come for them in one moment, few in the next


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


def client_of(host: str) -> str:
    """Return the client that has an address: of IPv6 the network that one client has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


class Waiting(NamedTuple):
    """Seconds of work that waits, as far as it was accepted.

    Attributes:
        own: Of each request of the client that asks.
        others: Of all requests of each other client.
    """

    own: Sequence[float]
    others: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Return the sum."""
        return sum(self.own) + sum(self.others.values())


class Room(NamedTuple):
    """Seconds of work for which there is room: for any request, and for those that clients' turns serve early."""

    fair: float
    limit: float


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
        overdraft: Of the limit of the room, for those who were promised a time: work may take longer than it seemed.
    """

    def __init__(self, overdraft: float = 1.1) -> None:
        self._promises, self._overdraft = _Promises(), overdraft

    @property
    def has_promised(self) -> bool:
        """Return whether somebody may still come for whom there must be room."""
        return len(self._promises) > 0

    def decide(
        self, sender: Sender, seconds: float, waiting: Waiting, at_work: float, room: Room, now: float
    ) -> int | None:
        """Return None to accept a request, or after how many whole seconds it would be accepted.

        Args:
            sender: Who sends it.
            seconds: Its work.
            waiting: Work that waits.
            at_work: Seconds of what is being computed.
            room: For this request.
            now: The time.
        """
        self._promises.expire(now)
        equal = self._promises.of_request(sender)
        claimed = _claim(equal, sender, now)
        if claimed is not None:
            self._promises.remove(claimed)
            excess = at_work + waiting.seconds + seconds - self._overdraft * room.limit
        else:
            excess = self._excess(sender.client, seconds, waiting, at_work, room, now)
        if excess <= 0 or not waiting.seconds:
            return None
        for promise in equal:
            if promise.sender == sender and promise is not claimed:  # it did not wait
                return max(1, math.ceil(promise.due - now))
        return self._promise(sender, seconds, excess, room, now)

    def promise(self, sender: Sender, seconds: float, waiting: Waiting, at_work: float, room: Room, now: float) -> int:
        """Return after how many seconds a refused request would be accepted. Arguments as `decide`."""
        excess = self._excess(sender.client, seconds, waiting, at_work, room, now)
        return self._promise(sender, seconds, excess, room, now)

    def _promise(self, sender: Sender, seconds: float, excess: float, room: Room, now: float) -> int:
        wait = max(1, math.ceil(excess))
        if len(self._promises) < MOST_PROMISES:
            end = now + wait + max(1.0, PATIENCE * room.fair)
            self._promises.add(Promise(sender, seconds, now + wait, end))
        return wait

    def _excess(self, client: str, seconds: float, waiting: Waiting, at_work: float, room: Room, now: float) -> float:
        """Return the seconds until there is room for work; 0 if there is now."""
        turn = at_work + _before(client, seconds, waiting, self._promises.between(now - EXACT, now)) + seconds
        level = max(room.fair, room.limit - (room.limit - room.fair) * turn / room.fair)
        due, promised = self._promises.after(now - EXACT)
        plan = _plan(at_work + waiting.seconds, due - now, promised)
        return _first_time(*plan, seconds, level, room.limit)


class Space:
    """Places, or bytes, that requests hold until they end; who finds none is promised when there will be some.

    How fast they become free is seen while at least half of them are held, where the latest requests count most; before that
    they count as held for the longest that a request may take. Once somebody is refused, the space counts as full where
    `_PROMISED` of it is held; all of it is for those who were promised a time. This is work for an `Admission`.

    Attributes:
        most: So many there are.
        held: So many are held now.
    """

    def __init__(self, most: float, longest: float) -> None:
        self.most, self.held = most, 0.0
        self._freed, self._seconds, self._since = 0.0, 0.0, 0.0
        self._longest, self._admission = longest, Admission(1 / _PROMISED)

    @property
    def is_exceeded(self) -> bool:
        """Return whether more are held than there are."""
        return self.held > self.most

    def refuse(self, sender: Sender, count: float, now: float) -> int | None:
        """Return None where so many are free, or after how many seconds they will be."""
        if self.held + count <= self.most and not self._admission.has_promised:
            return None
        return self._admission.decide(sender, *self._work(count), now)

    def promise(self, sender: Sender, count: float, now: float) -> int:
        """Return after how many seconds so many will be free, for a request that got no more of them."""
        return self._admission.promise(sender, *self._work(count), now)

    def take(self, count: float, now: float) -> None:
        """Hold more."""
        if self.held < self.most / 2:
            self._since = now
        self.held += count

    def free(self, count: float, now: float) -> None:
        """Give back what a request held."""
        if self.held >= self.most / 2:
            self._freed = _KEPT * self._freed + count
            self._seconds = _KEPT * self._seconds + now - self._since
            self._since = now
        self.held -= count

    def _work(self, count: float) -> tuple[float, Waiting, float, Room]:
        of_one = self._seconds / self._freed if self._freed else self._longest / self.most
        full = of_one * _PROMISED * self.most
        return of_one * count, Waiting((), {"": of_one * self.held}), 0.0, Room(full, full)


class _Promises:
    """Promises by the time that is due; also as arrays, since every refusal looks at all of them."""

    def __init__(self) -> None:
        self._promises: list[Promise] = []
        self._numbers = np.empty((3, 0))  # due, end and seconds of each
        self._by_request = defaultdict[Hashable, list[Promise]](list)

    def __len__(self) -> int:
        return len(self._promises)

    def add(self, promise: Promise) -> None:
        index = int(self._numbers[0].searchsorted(promise.due, "right"))
        self._promises.insert(index, promise)
        self._numbers = np.insert(self._numbers, index, (promise.due, promise.end, promise.seconds), axis=1)
        equal = self._by_request[_request(promise.sender)]
        equal.append(promise)
        equal.sort(key=lambda promise: promise.due)

    def remove(self, promise: Promise) -> None:
        self._remove([self._promises.index(promise)])

    def expire(self, now: float) -> None:
        """Remove those whose end has come."""
        self._remove(np.flatnonzero(self._numbers[1] <= now).tolist())

    def _remove(self, indices: list[int]) -> None:
        for index in reversed(indices):
            promise = self._promises.pop(index)
            equal = self._by_request[_request(promise.sender)]
            equal.remove(promise)
            if not equal:
                del self._by_request[_request(promise.sender)]
        if indices:
            self._numbers = np.delete(self._numbers, indices, axis=1)

    def of_request(self, sender: Sender) -> list[Promise]:
        """Return those that were made to a client for such a request."""
        return [*self._by_request.get(_request(sender), ())]

    def between(self, start: float, stop: float) -> list[Promise]:
        """Return those that are due after one time and until another."""
        first, last = self._numbers[0].searchsorted((start, stop), "right")
        return self._promises[first:last]

    def after(self, start: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the times and the seconds of work of those that are due after a time."""
        due, _, seconds = self._numbers[:, self._numbers[0].searchsorted(start, "right") :]
        return due, seconds


def _request(sender: Sender) -> Hashable:
    return sender.client, sender.request


def _claim(equal: list[Promise], sender: Sender, now: float) -> Promise | None:
    """Find the promise that a request comes for.

    Equal requests of one address may be several clients', and some of them may be new: these are told apart by their
    connections, and by coming exactly at the promised time.
    """
    due = [promise for promise in equal if promise.due <= now]
    same = [promise for promise in due if promise.sender.connection == sender.connection]
    exact = [promise for promise in due if len(equal) == 1 or now <= promise.due + EXACT]
    return next(iter(same or exact), None)


def _before(client: str, seconds: float, waiting: Waiting, promises: list[Promise]) -> float:
    """Return the seconds of other requests that clients' turns serve before a request is served."""
    own, others = [*waiting.own], defaultdict(float, waiting.others)
    for promise in promises:
        if promise.sender.client == client:
            own.append(promise.seconds)
        else:
            others[promise.sender.client] += promise.seconds
    first = float(np.minimum(own, seconds).sum())
    sums = np.fromiter(others.values(), np.float64, len(others))
    return first + float(np.minimum(sums, first + seconds).sum())


def _plan(seconds: float, due: np.ndarray, promised: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return now (0) and the time of each promise, the seconds of work that wait then, and those that it adds."""
    times = np.concatenate(([0.0], np.maximum(due, 0.0)))
    added = np.concatenate(([seconds], promised))
    # Where nothing waits, time passes without work: as much as the balance has fallen below zero until then.
    balance = np.cumsum(added) - times
    return times, balance - np.minimum.accumulate(balance - added), added


def _first_time(
    times: np.ndarray, waiting: np.ndarray, added: np.ndarray, seconds: float, level: float, horizon: float
) -> float:
    """Return the first time at which work fits below a level, and from which on it does for as long as the horizon.

    Promises of much more work are passed over: their times are not as exact as that.
    """
    excess = waiting + seconds - level
    fits = times + np.maximum(excess, 0.0)
    following = np.append(times[1:], np.inf)
    full = np.where((excess > 0) & (seconds > SLIGHT * added), times, np.inf)
    next_full = np.append(np.minimum.accumulate(full[:0:-1])[::-1], np.inf)
    return float(fits[np.argmax((fits <= following) & (fits + horizon < next_full))])
