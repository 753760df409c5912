"""Keeps a worker alive, gives it batches, and hands out what it answers."""

import asyncio
import logging
from itertools import count

from albertkit.errors import AlbertKitError, MachineError
from albertkit.serve.batching import Batch, Job, Queue
from albertkit.serve.metrics import Metrics
from albertkit.serve.process import WorkerProcess
from albertkit.serve.refusals import ServiceError
from albertkit.serve.wire import Done, Facts, Failed, Ready, Start, Work

log = logging.getLogger(__name__)
AHEAD = 2  # batches at the worker: the second one lies ready when the first is done
_SHORTEST_DELAY, _LONGEST_DELAY = 1.0, 30.0  # seconds to the next start, after a worker that answered nothing


class Supervisor:
    """The worker's side of the service.

    A batch is sent as soon as the worker has nothing to do: who comes while it computes, shares the next one. Nobody is
    made to wait for company. A second batch goes ahead only if it is full.

    Args:
        start: What the worker loads.
        queue: Where requests wait.
        metrics: What is counted.
        patience: Seconds without an answer to a batch after which the worker is taken for stuck, and replaced.

    Attributes:
        facts: Of each model by name; None while no worker is ready.
        failure: Why the models could not be loaded when the service began; nothing can be served then.
    """

    def __init__(self, start: Start, queue: Queue, metrics: Metrics, patience: float) -> None:
        self.facts: dict[str, Facts] | None = None
        self.failure: AlbertKitError | None = None
        self._start, self._queue, self._metrics, self._patience = start, queue, metrics, patience
        self._worker: WorkerProcess | None = None
        self._at_work: dict[int, Batch] = {}
        self._numbers = count()
        self._rate = 0.0  # tokens a second
        self._was_ready = False
        self._watchdog: asyncio.Timeout | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a worker has loaded all models and lives."""
        return self.facts is not None

    def seconds_to_empty(self) -> int:
        """About how long it takes until what waits now is computed."""
        return max(1, round(self._queue.tokens / self._rate)) if self._rate else 1

    def submit(self, job: Job) -> None:
        """Let a request wait for its turn."""
        self._queue.add(job)
        self._send_batches()

    async def run(self) -> None:
        """Start workers, one after the other, until cancelled, or until the first one cannot load the models."""
        try:
            await self._run()
        except Exception as error:
            log.exception("the supervisor has failed")
            self.failure = MachineError("internal-error", f"{type(error).__name__}: {error}", "the log says more")

    async def _run(self) -> None:
        delay = 0.0
        while self.failure is None:
            self._worker = await WorkerProcess.spawn(self._start)
            try:
                answered = await self._attend(self._worker)
            finally:
                self.facts = None
                status = await self._worker.end()
            self._take_back()
            if not self._was_ready:
                self.failure = self.failure or MachineError(
                    "worker-died", f"the worker ended with status {status} while loading the models",
                    "most often memory was short: serve fewer models, or use --precision bf16",
                )  # fmt: skip
                return
            delay = 0.0 if answered else min(_LONGEST_DELAY, delay * 2 or _SHORTEST_DELAY)
            self._metrics.restarts.inc()
            log.error("the worker has died and is started again", extra={"status": status})
            await asyncio.sleep(delay)

    async def _attend(self, worker: WorkerProcess) -> bool:
        """Handle what a worker says until it ends. Whether it answered anything."""
        answered = False
        try:
            async with asyncio.timeout(None) as self._watchdog:
                while (message := await worker.receive()) is not None:
                    self._handle(message)
                    answered = answered or isinstance(message, Done)
        except TimeoutError:
            log.error("the worker is stuck", extra={"seconds": self._patience})
        finally:
            self._watchdog = None
        return answered

    def _handle(self, message: Ready | Done | Failed) -> None:
        if isinstance(message, Ready):
            self.facts, self._was_ready = message.models, True
            log.info("ready", extra={"models": {name: facts.precision for name, facts in message.models.items()}})
        elif message.number is None:
            self.failure = None if self._was_ready else message.error
            log.error(message.error.message, extra={"slug": message.error.slug, "trace": message.trace})
        else:
            self._hand_out(self._at_work.pop(message.number), message)
        self._send_batches()

    def _hand_out(self, batch: Batch, message: Done | Failed) -> None:
        if isinstance(message, Failed):
            if message.trace:
                log.error(message.error.message, extra={"slug": message.error.slug, "trace": message.trace})
            for job in batch.jobs:
                self._queue.discard(job)
                job.fail(message.error)
            return
        self._metrics.computed(batch, message.seconds)
        rate = batch.tokens / max(message.seconds, 1e-6)
        self._rate = 0.9 * self._rate + 0.1 * rate if self._rate else rate
        batch.answered(message.outputs)

    def _send_batches(self) -> None:
        while self.facts is not None and self._worker is not None:
            most = AHEAD if self._queue.tokens >= self._queue.batch_tokens else 1
            batch = self._queue.next_batch() if len(self._at_work) < most else None
            if batch is None:
                break
            number = next(self._numbers)
            self._at_work[number] = batch
            self._worker.send(Work(number, *batch.key, batch.content()))
        if self._watchdog is not None:
            now = asyncio.get_running_loop().time()
            self._watchdog.reschedule(now + self._patience if self._at_work else None)

    def _take_back(self) -> None:
        """Batches that a dead worker had wait again. The requests of the one it was at, the oldest, get no third try."""
        batches, self._at_work = list(self._at_work.values()), {}
        died_twice = ServiceError(
            "worker-died", "the worker died twice while it computed this request",
            "send it again later, or a smaller one", status=503, retry_after=5,
        )  # fmt: skip
        for job in batches[0].jobs if batches else ():
            if job.retried:
                self._queue.discard(job)
                job.fail(died_twice)
            job.retried = True
        for batch in reversed(batches):
            batch.parts = [part for part in batch.parts if not part.job.future.done()]
            self._queue.put_back(batch)
