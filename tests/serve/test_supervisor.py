"""Workers that get stuck, die, or never start, played by a stand-in: what becomes of the requests."""

import asyncio

import numpy as np
import pytest

from albertkit.errors import CheckpointError, MachineError
from albertkit.serve import supervisor as module
from albertkit.serve.batching import Job, Queue
from albertkit.serve.metrics import Metrics
from albertkit.serve.refusals import ServiceError
from albertkit.serve.supervisor import Supervisor
from albertkit.serve.wire import Done, Facts, Failed, Ready, Start, Work
from albertkit.tasks.features import Features

READY = Ready({"model": Facts("fp32", ())})
START = Start({"model": "folder"}, "fp32", "cpu", threads=1, batch_tokens=64, exits=None, force=False)


class StandIn:
    """A worker that says `READY` and then answers a batch with the lengths of its sequences.

    Args:
        says: What it says in place of `READY`; None: it ends.
        batches: How many it answers before it fails.
        then: How it fails: "dies" or "hangs".
    """

    def __init__(self, says=READY, batches=10**6, then="dies"):
        self._inbox = asyncio.Queue()
        self._says, self._batches, self._then = says, batches, then
        self.seen = []
        self.is_ended = False

    def send(self, message):
        if isinstance(message, Work):
            self.seen.append(message)
            self._inbox.put_nowait(message)

    async def receive(self):
        if self._says is not None:
            said, self._says = self._says, None
            return said
        if self._batches == 0 and self._then == "dies" and self._inbox.empty():
            await asyncio.sleep(0.01)
        work = await self._inbox.get()
        if self._batches == 0:
            if self._then == "hangs":
                await asyncio.sleep(3600)
            return None
        self._batches -= 1
        return Done(work.number, work.content.lengths.tolist(), 0.01)

    async def end(self):
        self.is_ended = True
        return -9


class Silent(StandIn):
    """One that ends before it is ready."""

    async def receive(self):
        return None


def run(workers, lengths, monkeypatch, patience=60.0, batch_tokens=64):
    """Hand requests of these lengths to a supervisor of these workers; results, errors, and the supervisor."""

    async def play():
        queue = Queue(batch_tokens)
        supervisor = Supervisor(START, queue, Metrics([queue]), patience)
        made = []

        async def spawn(_):
            made.append(workers[min(len(made), len(workers) - 1)]())
            return made[-1]

        monkeypatch.setattr(module.WorkerProcess, "spawn", spawn)
        monkeypatch.setattr(module, "_SHORTEST_DELAY", 0.01)
        running = asyncio.create_task(supervisor.run())
        jobs = []
        for one in lengths:
            features = Features.of([(np.zeros(length), length) for length in one], range(len(one)))
            jobs.append(Job(("model", "embed"), features, asyncio.get_running_loop().create_future()))
            supervisor.submit(jobs[-1])
        found = await asyncio.wait_for(asyncio.gather(*(job.future for job in jobs), return_exceptions=True), 30)
        if not jobs:
            await asyncio.wait_for(running, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return found, supervisor, made, queue

    return asyncio.run(play())


@pytest.mark.parametrize("then", ["dies", "hangs"])
def test_what_a_worker_leaves_behind_is_computed_by_the_next(then, monkeypatch):
    requests = [[30, 5], [7], [20] * 9, [64]]
    workers = [lambda: StandIn(batches=2, then=then), StandIn]
    found, supervisor, made, queue = run(workers, requests, monkeypatch, patience=0.2)
    assert found == requests
    assert len(made) == 2
    assert made[0].is_ended
    assert queue.tokens == 0
    assert supervisor._metrics.registry.get_sample_value("albertkit_worker_restarts_total") == 1


def test_only_what_two_workers_died_of_is_refused(monkeypatch):
    """The first request is alone in the batch that kills; the others wait and are computed by the third worker."""
    workers = [lambda: StandIn(batches=0), lambda: StandIn(batches=0), StandIn]
    found, _, made, queue = run(workers, [[64], [64], [64]], monkeypatch)
    assert isinstance(found[0], ServiceError)
    assert (found[0].slug, found[0].status) == ("worker-died", 503)
    assert found[1:] == [[64], [64]]
    assert len(made) == 3
    assert queue.tokens == 0


def test_an_error_of_a_batch_is_an_answer(monkeypatch):
    class Failing(StandIn):
        async def receive(self):
            message = await super().receive()
            return (
                Failed(message.number, MachineError("inference-failed", "no memory"))
                if isinstance(message, Done)
                else message
            )

    found, _, made, queue = run([Failing], [[64, 64], [3]], monkeypatch)
    assert {error.slug for error in found} == {"inference-failed"}
    assert (len(made), queue.tokens) == (1, 0)


@pytest.mark.parametrize(
    ("worker", "slug"),
    [
        (lambda: StandIn(says=Failed(None, CheckpointError("no-weights", "there are no weights"))), "no-weights"),
        (Silent, "worker-died"),
    ],
)
def test_models_that_cannot_be_loaded_end_the_service(worker, slug, monkeypatch):
    def once():
        made = worker()
        made._inbox.put_nowait(None)  # it ends after what it says
        made._batches = 0
        return made

    _, supervisor, made, _ = run([once], [], monkeypatch)
    assert supervisor.failure.slug == slug
    assert not supervisor.is_ready
    assert len(made) == 1


def test_a_restart_that_fails_is_tried_again(monkeypatch):
    workers = [lambda: StandIn(batches=1), Silent, Silent, StandIn]
    found, supervisor, made, _ = run(workers, [[64], [64], [64]], monkeypatch)
    assert found == [[64], [64], [64]]
    assert len(made) == 4
    assert supervisor.failure is None
