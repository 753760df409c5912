"""Who is accepted and when a refused request may come again, compared with hand-made numbers and with a simulated service.

The simulation has a clock of its own, and serves by turns: a slice of a client's request, then of
the next client's.
"""

import heapq
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from albertkit.serve.queue import Admission, Demand, Room, Sender, Waiting

TIMEOUT = 60.0
ROOM = Room(0.6 * TIMEOUT, 0.9 * TIMEOUT)


def ask(admission, name, seconds, waiting, now=0.0, client="a", connection=0):
    sender = Sender(client, connection or hash(name) % 60_000, name)
    demand = Demand(sender, seconds, as_seen_by(client, waiting), 0.0, ROOM, now)
    return admission.seconds_to_wait(demand)


def as_seen_by(client, works):
    """Pairs of a client and the seconds of a request of it, as one of the clients sees them."""
    seconds_of_others = Counter()
    for owner, seconds in works:
        seconds_of_others[owner] += seconds if owner != client else 0
    return Waiting([seconds for owner, seconds in works if owner == client], seconds_of_others)


FOUR = [("a", 10.0)] * 4


def test_a_request_is_accepted_if_it_is_done_in_time():
    assert ask(Admission(), "x", 50.0, []) is None  # alone
    assert ask(Admission(), "x", 6.0, [("a", 10.0)] * 3) is None  # 3 x 6 + 6 = 24
    assert ask(Admission(), "x", 10.0, FOUR) == 14  # 50 - 36


def test_a_small_request_waits_for_no_more_of_others_than_it_has_itself():
    assert ask(Admission(), "x", 0.1, [("a", 13.0)] * 4) is None
    assert ask(Admission(), "x", 0.1, [("b", 13.0)] * 4, client="a") is None
    assert ask(Admission(), "x", 0.1, [("b", 13.5)] * 4) == 1  # 54.1 of 54 seconds: there is an end


def test_a_client_that_asks_much_takes_no_other_clients_room():
    waiting = [("a", 12.5)] * 3
    # Done after 18 + 6, for which 54 - 18 x 24 / 36 = 42 is the level
    assert ask(Admission(), "x", 6.0, waiting) == 2
    assert ask(Admission(), "x", 6.0, waiting, client="b") is None  # after 6 + 6: 48


def test_who_is_refused_is_told_a_time_after_those_who_were_told_before():
    admission = Admission()
    assert [ask(admission, name, 10.0, FOUR) for name in "xyz"] == [14, 24, 34]
    # It did not wait: the same time
    assert ask(admission, "y", 10.0, [("a", 9.0)] * 4, now=4.0) == 20
    half = [("a", 6.5)] * 4
    assert ask(admission, "new", 10.0, half, now=14.0) == 30  # the room is x's; 26 + 30 + 10 - 36
    assert ask(admission, "x", 10.0, half, now=14.0) is None
    assert ask(admission, "y", 10.0, [("a", 5.2)] * 5, now=24.0) is None


def test_every_promise_counts_however_many_there_are():
    """A second does the work of 100 requests of 0.01 seconds, and one more is under way."""
    admission = Admission()
    waits = [ask(admission, number, 0.01, [("a", 13.5)] * 4) for number in range(6000)]
    assert waits == sorted(waits)
    assert max(Counter(waits).values()) <= 101
    assert max(waits) <= 61


def test_the_room_of_who_does_not_come_is_for_others():
    admission = Admission()
    assert ask(admission, "x", 10.0, FOUR) == 14
    # X may still come: 20 + 10 + 10 - 36
    assert ask(admission, "new", 10.0, [("a", 5.0)] * 4, now=14.125) == 4
    assert ask(admission, "other", 10.0, [("a", 5.0)] * 3, now=15.0) is None
    # It comes late, and what is left is for such
    assert ask(admission, "x", 15.0, [("a", 10.0)] * 4, now=20.0) is None


def test_equal_requests_are_told_apart_by_their_connections():
    admission = Admission()
    assert [ask(admission, "x", 10.0, FOUR, connection=port) for port in (1, 2)] == [14, 24]
    half = [("a", 6.5)] * 4
    assert ask(admission, "x", 10.0, half, now=14.5, connection=3) is not None
    assert ask(admission, "x", 10.0, half, now=14.5, connection=1) is None


def test_a_request_alone_of_its_kind_may_come_over_another_connection():
    admission = Admission()
    assert ask(admission, "x", 10.0, FOUR, connection=1) == 14
    assert ask(admission, "x", 10.0, [("a", 6.5)] * 4, now=19.0, connection=2) is None


def test_a_little_work_passes_promises_of_much_more():
    admission = Admission()
    assert [ask(admission, name, 10.0, FOUR) for name in "xy"] == [14, 24]
    assert ask(admission, "small", 0.1, [("a", 9.9)] * 4, now=0.1) is None


# --- a simulated service --------------------------------------------------------------------------

SLICE = 0.1  # seconds of a turn


@dataclass
class Service:
    """Serves requests by turns, and asks an admission about each.

    Attributes:
        jobs: Seconds that are left of each request, by client.
        served: Seconds from a request's acceptance to its end.
        tries: How many requests were accepted (True) or refused (False) at their first, second …
            try.
    """

    admission: object
    timeout: float = TIMEOUT
    jobs: OrderedDict = field(default_factory=OrderedDict)
    served: dict = field(default_factory=dict)
    tries: Counter = field(default_factory=Counter)
    busy: float = 0.0

    def run(self, requests, end, obeys=True):
        """Requests are (time, client, seconds); who is refused comes again when he is told to."""
        room = Room(0.6 * self.timeout, 0.9 * self.timeout)
        numbers = count()
        events = [(time, next(numbers), client, seconds, 1) for time, client, seconds in requests]
        heapq.heapify(events)
        now = 0.0
        while now < end and (events or self.jobs):
            while events and events[0][0] <= now:
                _, number, client, seconds, attempt = heapq.heappop(events)
                waiting = as_seen_by(
                    client, [(name, job[1]) for name, jobs in self.jobs.items() for job in jobs]
                )
                sender = Sender(client, number, number)
                demand = Demand(sender, seconds, waiting, 0.0, room, now)
                wait = self.admission.seconds_to_wait(demand)
                self.tries[attempt, wait is None] += 1
                if wait is None:
                    self.jobs.setdefault(client, deque()).append([(client, number), seconds, now])
                elif obeys:
                    heapq.heappush(events, (now + wait, number, client, seconds, attempt + 1))
            now += SLICE
            self._serve(now)

    def _next(self, now):
        """The next in turn, or who was accepted first where somebody has no time for turns."""
        seconds = 0.0
        by_turn = [(client, job) for client, jobs in self.jobs.items() for job in jobs]
        by_age = sorted(by_turn, key=lambda entry: entry[1][2])
        for _, job in by_age:
            seconds += job[1]
            if now + seconds > job[2] + 0.9 * self.timeout:
                return by_age[0]
        return by_turn[0]

    def _serve(self, now):
        if not self.jobs:
            return
        client, job = self._next(now)
        jobs = self.jobs[client]
        jobs.remove(job)
        job[1] -= SLICE
        self.busy += SLICE
        if job[1] > 1e-9:
            jobs.append(job)
        else:
            self.served[job[0]] = now - job[2]
        self.jobs.move_to_end(client)
        if not jobs:
            del self.jobs[client]


def arrivals(times, seconds=30.0, of=0.4, clients=40):
    """Random requests at `times` the rate of the service."""
    rng = np.random.default_rng(0)
    time = 0.0
    requests = []
    while time < seconds:
        requests.append((time, f"c{rng.integers(clients)}", of * rng.integers(1, 4) / 2))
        time += rng.exponential(of / times)
    return requests


@pytest.mark.parametrize("clients", [1, 40])
@pytest.mark.parametrize("timeout", [6.0, 60.0])
@pytest.mark.parametrize("times", [1, 3, 10])
def test_who_waits_as_told_is_served_at_the_next_try(times, timeout, clients):
    service = Service(Admission(), timeout)
    requests = arrivals(times, clients=clients)
    service.run(requests, end=1000)
    assert service.tries[2, False] <= 0.1 * service.tries[2, True]
    assert service.tries[1, True] + service.tries[2, True] >= 0.95 * len(requests)
    assert len(service.served) == len(requests)
    assert max(service.served.values()) < timeout
    if times == 10:
        assert service.tries[2, True] > 0.5 * len(requests)


@pytest.mark.parametrize("timeout", [6.0, 60.0])
def test_the_service_is_busy_though_those_who_are_refused_never_come_again(timeout):
    service = Service(Admission(), timeout)
    service.run(arrivals(5, seconds=150), end=150, obeys=False)
    assert service.busy > 0.97 * 150
    assert max(service.served.values()) < timeout


class FirstComeFirstServed:
    """What admission was before: all that waits is before a request."""

    def seconds_to_wait(self, demand):
        excess = demand.waiting.seconds + demand.seconds - demand.room.fair
        return 1 if excess > 0 and demand.waiting.seconds else None


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("make", [Admission, FirstComeFirstServed])
def test_a_client_of_one_text_is_served_beside_clients_of_many(make, shared):
    """24 that ask again and again; all from one address, or each from its own."""
    service = Service(make(), 6.0)
    heavy = [(0.05 * step, "a" if shared else f"c{step % 24}", 0.5) for step in range(1800)]
    light = [(10.0 + 1.5 * step, "a" if shared else "light", 0.1) for step in range(50)]
    numbers = [number for number, request in enumerate([*heavy, *light]) if request[2] == 0.1]
    service.run([*heavy, *light], end=92, obeys=False)
    served = sum(number in numbers for _, number in service.served)
    assert served == 50 if make is Admission else served < 25


def test_clients_get_equal_shares_however_much_they_ask():
    service = Service(Admission(), 30.0)
    frequent = [(0.05 * step, "many", 1.0) for step in range(2000)]
    rare = [(1.0 * step + 0.01, "few", 1.0) for step in range(100)]
    service.run([*frequent, *rare], end=100, obeys=False)
    shares = Counter(client for client, _ in service.served)
    assert shares["few"] > 33
