"""Workers that die, hang or never start, and more work than they can do, on a clock that jumps: what becomes of requests."""

import asyncio
import errno
import os
from collections import Counter
from functools import partial
from itertools import count, pairwise

import numpy as np
import pytest
from jumping_clock import JumpingLoop

from albertkit.batches.features import Features
from albertkit.errors import CheckpointError, MachineError
from albertkit.serve import supervisor as module
from albertkit.serve.observing import Metrics
from albertkit.serve.protocol import Alive, Done, Failed, LoadedModel, Ready, WorkMessage
from albertkit.serve.queue import PipelineSpeed, Queue, RequestJob, Sender
from albertkit.serve.refusals import ServiceError
from albertkit.serve.supervisor import Supervisor

KEY = ("model", "embed")
READY = Ready({"model": LoadedModel("fp32", ())})
NUMBERS = count()  # of requests, which are all different
RATE = 1000  # tokens a second of the worker
TIMEOUT = 60


class Worker:
    """Computes RATE tokens a second, and answers a batch with the lengths of its sequences.

    Args:
        says: Its first messages, in place of `READY`; after None it has ended.
        slows_at: When it becomes four times slower.
        stops_at: When it answers nothing any more.
        batches: How many it answers.
        then: What it does at the next one: "dies" or "hangs".
    """

    def __init__(self, *says, slows_at=1e9, stops_at=1e9, batches=10**6, then="dies"):
        self._inbox = asyncio.Queue()
        for message in says or [READY]:
            self._inbox.put_nowait(message)
        self._slows_at = slows_at
        self._stops_at = stops_at
        self._batches = batches
        self._then = then
        self.tokens = 0
        self.ended_at = None
        self.connected = False

    def start_another(self):
        return self.following

    async def connect(self):
        self.connected = True

    def send(self, message):
        if isinstance(message, WorkMessage | Alive):
            self._inbox.put_nowait(message)

    async def receive(self):
        message = await self._inbox.get()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._stops_at or (self._batches == 0 and self._then == "hangs"):
            await asyncio.sleep(1e9)
        if not isinstance(message, WorkMessage):
            return message
        if self._batches == 0:
            return None
        self._batches -= 1
        tokens = int(message.content.offsets[-1])
        seconds = tokens / RATE * (4 if loop.time() >= self._slows_at else 1)
        await asyncio.sleep(seconds)
        self.tokens += tokens
        return Done(message.number, message.content.lengths.tolist(), seconds)

    async def end(self):
        self.ended_at = asyncio.get_running_loop().time()
        return -9


class Failing(Worker):
    """Answers every batch with an error."""

    async def receive(self):
        message = await super().receive()
        error = MachineError("internal-error", "no memory")
        return Failed(message.number, error) if isinstance(message, Done) else message


def play(monkeypatch, scene, *makers, batch_tokens=512):
    """Run a scene with a supervisor of these workers; what it returns."""

    async def run():
        queue = Queue(batch_tokens, PipelineSpeed(batch_tokens))
        workers = [make() for make in makers or (Worker,)]
        for worker, following in pairwise([*workers, None]):
            worker.following = following
        supervisor = module.Supervisor(workers[0], queue, Metrics([queue]), 1.5 * TIMEOUT)
        running = asyncio.create_task(supervisor.run())
        await asyncio.sleep(1)
        result = await scene(supervisor, workers)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert all(worker.connected for worker in workers)
        return result

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())


def job_of(lengths, **times):
    """A request of sequences of these lengths."""
    features = Features.from_sequences(
        [(np.zeros(length, np.int32), length) for length in lengths], range(len(lengths))
    )
    return RequestJob(KEY, features, asyncio.get_running_loop().create_future(), **times)


# --- workers that die, hang or never start --------------------------------------------------------


def results_of(monkeypatch, requests, *makers):
    """What becomes of requests of sequences of these lengths, none refused for its time; the supervisor and its workers."""

    async def scene(supervisor, workers):
        jobs = [job_of(lengths) for lengths in requests]
        for job in jobs:
            supervisor.submit(job)
        results = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        assert supervisor.queue.tokens == 0
        return results, supervisor, workers

    return play(monkeypatch, scene, *makers, batch_tokens=64)


@pytest.mark.parametrize("then", ["dies", "hangs"])
def test_what_a_worker_leaves_behind_is_computed_by_the_next(then, monkeypatch):
    requests = [[30, 5], [7], [20] * 9, [64]]
    results, supervisor, (first, _) = results_of(
        monkeypatch, requests, lambda: Worker(batches=2, then=then), Worker
    )
    assert results == requests
    assert first.ended_at is not None
    assert supervisor._metrics.registry.get_sample_value("albertkit_worker_restarts_total") == 1


def test_only_what_two_workers_died_of_is_refused(monkeypatch):
    """The first request is alone in the batch that kills; the others wait and are computed by the third worker."""
    dying = lambda: Worker(batches=0)  # noqa: E731
    results, *_ = results_of(monkeypatch, [[64], [64], [64]], dying, dying, Worker)
    assert isinstance(results[0], ServiceError)
    assert results[0].slug == "worker-died"
    assert results[0].status == 503
    assert results[1:] == [[64], [64]]


def test_an_error_of_a_batch_is_an_answer(monkeypatch):
    results, *_ = results_of(monkeypatch, [[64, 64], [3]], Failing)
    assert {error.slug for error in results} == {"internal-error"}


NO_WEIGHTS = Failed(None, CheckpointError("missing-file", "there are no weights"))


@pytest.mark.parametrize(
    ("says", "slug"),
    [
        ([NO_WEIGHTS, None], "missing-file"),
        ([None], "worker-died"),
    ],
)
def test_models_that_cannot_be_loaded_end_the_service(says, slug, monkeypatch):
    _, supervisor, _ = results_of(monkeypatch, [], lambda: Worker(*says))
    assert supervisor.failure.slug == slug
    assert not supervisor.is_ready


def test_a_restart_that_fails_is_tried_again(monkeypatch):
    silent = lambda: Worker(None)  # noqa: E731
    makers = (lambda: Worker(batches=1), silent, silent, Worker)
    results, supervisor, _ = results_of(monkeypatch, [[64], [64], [64]], *makers)
    assert results == [[64], [64], [64]]
    assert supervisor.failure is None


def test_no_worker_is_used_that_loaded_other_files_than_the_service(monkeypatch):
    """The second one would compute ids of the first one's tokenizer; the third one has the files of the first again."""
    old, new = (Ready({"model": LoadedModel("fp32", (), digest)}) for digest in ("old", "new"))

    async def scene(supervisor, workers):
        jobs = [job_of([64]) for _ in range(3)]
        for job in jobs:
            supervisor.submit(job)
        results = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        assert supervisor.changed == ["model"]
        while not supervisor.is_ready:
            await asyncio.sleep(1)
        later = job_of([64])
        supervisor.submit(later)
        assert await later.future == [64]
        assert supervisor.changed == []
        return results, [worker.tokens for worker in workers]

    makers = (lambda: Worker(old, batches=1), lambda: Worker(new), lambda: Worker(old))
    (first, *errors), tokens = play(monkeypatch, scene, *makers, batch_tokens=64)
    assert first == [64]
    # At once, not after their time
    assert [(error.slug, error.status) for error in errors] == [("changed", 503)] * 2
    assert tokens == [64, 0, 64]


def test_files_that_changed_while_the_service_began_end_it(monkeypatch):
    monkeypatch.setattr(module, "Supervisor", partial(Supervisor, digests={"model": "other"}))
    _, supervisor, _ = results_of(monkeypatch, [], Worker)
    assert supervisor.failure.slug == "changed"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EAGAIN])
@pytest.mark.parametrize("method", ["another", "connect"])
def test_a_worker_that_cannot_be_started_is_tried_again(code, method, monkeypatch):
    class Scarce(Worker):
        """Raises an error three times in place of doing what `method` says."""

        lacking = 3

        def fail(self, name):
            if method == name and Scarce.lacking:
                Scarce.lacking -= 1
                raise OSError(code, os.strerror(code))

        def start_another(self):
            self.fail("another")
            return super().start_another()

        async def connect(self):
            if hasattr(self, "is_second"):
                self.fail("connect")
            await super().connect()

    def second():
        worker = Scarce()
        worker.is_second = True
        return worker

    results, supervisor, _ = results_of(
        monkeypatch, [[64], [64]], lambda: Scarce(batches=1), second
    )
    assert results == [[64], [64]]
    assert supervisor.failure is None
    assert Scarce.lacking == 0


# --- more work than a worker can do ---------------------------------------------------------------


async def ask(supervisor, lengths, counts, waits=TIMEOUT):
    """A request as the service handles it; its tokens are counted under what became of it."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    tokens = sum(lengths)
    job = job_of(lengths, deadline=begin + TIMEOUT, now=begin, sender=Sender(request=next(NUMBERS)))
    try:
        supervisor.admit(job.sender, KEY, tokens, job.deadline)
        supervisor.refuse_if_too_late(job.sender, KEY, tokens, job.deadline)
        supervisor.submit(job)
        async with asyncio.timeout(waits):
            assert await job.future == lengths
        counts["done"] += tokens
        counts["slowest"] = max(counts["slowest"], loop.time() - begin)
    except ServiceError as error:
        counts[error.status] += tokens
        counts["waits"] = max(counts["waits"], error.retry_after or 0)
    except TimeoutError:
        counts[504] += tokens
    finally:
        if job.unanswered:
            supervisor.queue.discard(job)


def load(times, seconds=300, of=(64,) * 16, waits=TIMEOUT):
    """A scene: requests come at `times` the rate of the worker."""

    async def scene(supervisor, workers):
        counts = Counter()
        rng = np.random.default_rng(0)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        tasks = []
        while loop.time() < end:
            tasks.append(asyncio.create_task(ask(supervisor, list(of), counts, waits)))
            await asyncio.sleep(rng.exponential(sum(of) / RATE / times))
        await asyncio.gather(*tasks)
        counts["computed"] = workers[0].tokens
        return counts

    return scene


@pytest.mark.parametrize("times", [3, 10])
def test_under_too_much_load_as_much_is_answered_as_can_be(times, monkeypatch):
    counts = play(monkeypatch, load(times))
    assert counts["done"] > 0.97 * 300 * RATE
    assert counts["done"] == counts["computed"]  # nothing in vain
    assert counts[504] == 0
    assert counts[429] > 0.9 * (times - 1.2) * 300 * RATE
    assert counts["slowest"] < 0.8 * TIMEOUT


def test_nothing_is_refused_while_it_can_be_done(monkeypatch):
    counts = play(monkeypatch, load(0.8))
    assert counts.keys() == {"done", "slowest", "computed"}
    assert counts["done"] == counts["computed"]


def test_a_queue_that_only_counts_tokens_answers_next_to_nothing(monkeypatch):
    """The same load without the check: the figures above come from it."""
    monkeypatch.setattr(module.Supervisor, "admit", lambda *_: None)
    monkeypatch.setattr(Queue, "find_too_late", lambda *_: [])
    monkeypatch.setattr(Queue, "find_urgent_job", lambda *_: None)
    counts = play(monkeypatch, load(10))
    assert counts["done"] < 0.5 * 300 * RATE


def test_a_retry_after_is_true(monkeypatch):
    """Who comes again when he is told to, while nobody else comes, is let in; a little earlier he is not."""

    async def scene(supervisor, _):
        counts = Counter()
        tasks = [asyncio.create_task(ask(supervisor, [100] * 40, counts)) for _ in range(2)]
        await asyncio.sleep(5)  # now the speed is known
        tasks += [asyncio.create_task(ask(supervisor, [100] * 40, counts)) for _ in range(8)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        def admit(name):
            supervisor.admit(
                Sender(request=name), KEY, 4000, asyncio.get_running_loop().time() + TIMEOUT
            )

        with pytest.raises(ServiceError) as refused:
            admit("mine")
        wait = refused.value.retry_after
        await asyncio.sleep(wait - 2)
        for name in ("mine", "another"):
            with pytest.raises(ServiceError):
                admit(name)
        await asyncio.sleep(2)
        with pytest.raises(ServiceError):
            admit("a third")
        admit("mine")
        for task in tasks:
            task.cancel()
        return refused.value.status

    assert play(monkeypatch, scene) == 429


def test_what_nobody_waits_for_is_not_computed(monkeypatch):
    """Clients that give up after 5 seconds, at ten times the load."""
    counts = play(monkeypatch, load(10, waits=5))
    assert counts["computed"] < 1.02 * 300 * RATE + 30 * RATE
    assert counts[504] > 0


def test_of_a_request_that_is_given_up_only_what_the_worker_has_is_computed(monkeypatch):
    async def scene(supervisor, workers):
        counts = Counter()
        await ask(supervisor, [64] * 400, counts, waits=5)
        before = workers[0].tokens
        await asyncio.sleep(TIMEOUT)
        return counts, before, workers[0].tokens

    counts, before, after = play(monkeypatch, scene)
    assert counts[504] == 64 * 400
    assert 0 < after - before <= 2 * 512  # the batch that it computes, and the one that lies ready


def test_a_request_too_large_for_its_time_is_refused_even_alone(monkeypatch):
    async def scene(supervisor, _):
        counts = Counter()
        await ask(supervisor, [100] * 20, counts)
        await ask(supervisor, [100] * 500, counts)  # 50 of 60 seconds
        await ask(supervisor, [100] * 1000, counts)
        return counts

    counts = play(monkeypatch, scene)
    assert counts["done"] == 52_000
    assert counts[413] == 100_000


def test_a_large_request_is_finished_though_small_ones_keep_coming(monkeypatch):
    async def scene(supervisor, workers):
        counts = Counter()
        large = Counter()
        await ask(supervisor, [100] * 20, counts)
        large_task = asyncio.create_task(ask(supervisor, [100] * 100, large))
        await asyncio.sleep(0)
        await load(5, seconds=40, of=(16,) * 4)(supervisor, workers)
        await large_task
        return large

    assert play(monkeypatch, scene)["done"] == 10_000


def test_when_the_machine_becomes_slower_what_cannot_be_done_is_refused_early(monkeypatch):
    counts = play(monkeypatch, load(10, seconds=150), lambda: Worker(slows_at=75))
    assert counts["done"] > 0.85 * (75 + 75 / 4) * RATE
    assert counts[504] < 0.1 * counts["done"]


@pytest.mark.parametrize("busy", [False, True])
def test_a_worker_that_hangs_is_replaced(busy, monkeypatch):
    """Also one without work, and one to which requests keep coming."""

    async def scene(supervisor, workers):
        counts = Counter()
        if busy:
            await load(0.5, seconds=300)(supervisor, workers)
        else:
            await asyncio.sleep(300)
        await ask(supervisor, [16], counts)
        return workers[0].ended_at, supervisor.is_ready, counts["done"]

    ended_at, is_ready, done_tokens = play(monkeypatch, scene, lambda: Worker(stops_at=100), Worker)
    assert 100 < ended_at < 100 + 1.5 * TIMEOUT + 15
    assert is_ready
    assert done_tokens == 16
