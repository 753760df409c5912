"""Keep a worker alive, give it batches, and hand out its answers."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import count

from albertkit.errors import AlbertKitError, CheckpointError, MachineError
from albertkit.serve.observing import Metrics
from albertkit.serve.processes import WorkerProcess
from albertkit.serve.protocol import Alive, Done, Failed, LoadedModel, Ready, WorkMessage
from albertkit.serve.queue import (
    ALONE,
    BACKLOG,
    Admission,
    Demand,
    Key,
    Queue,
    RequestBatch,
    RequestJob,
    Room,
    Sender,
    Waiting,
)
from albertkit.serve.refusals import ServiceError

log = logging.getLogger(__name__)
AHEAD = 2  # batches at the worker: the second one lies ready when the first is done
# Seconds until the next start, after a worker that computed nothing
_SHORTEST_DELAY, _LONGEST_DELAY = 1.0, 30.0
# That a call may take: one video of 4.7 million tiny frames decodes for minutes
_CALL_SECONDS = 30.0
_BEAT = 10.0  # seconds after which a worker without work is asked whether it lives


class Supervisor:
    """Supervise the worker of a queue.

    A batch is sent as soon as the worker has nothing to do: requests that come while it computes
    share the next one. None waits for company. A second batch goes ahead only if it is full.

    Attributes:
        queue: The requests for this worker.
        facts: Of each model by name; None while no worker is ready.
        failure: Why the models could not be loaded when the service began; nothing can be served
            then.
        changed: Names of models whose files are not those that the service loaded when it began.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        queue: Queue,
        metrics: Metrics,
        patience: float,
        digests: Mapping[str, str] | None = None,
        queue_tokens: int = 262_144,
    ) -> None:
        self.facts: dict[str, LoadedModel] | None = None
        self.failure: AlbertKitError | None = None
        self.changed: list[str] = []
        # Of the files from which the front loaded tokenizers and labels
        self._digests = {**(digests or {})}
        self._worker, self.queue = worker, queue
        self._metrics, self._patience = metrics, patience
        self._at_work: dict[int, RequestBatch] = {}
        self._numbers = count()
        self._queue_tokens, self._admission = queue_tokens, Admission()
        # Requests that are being prepared, and their tokens
        self._coming: list[tuple[Sender, Key, int]] = []
        self._was_ready = False
        self._is_asked = False  # whether it lives
        self._watchdog: asyncio.Timeout | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether a worker has loaded all models and lives."""
        return self.facts is not None

    def changed_error(self) -> ServiceError:
        """Return the error for requests while the files differ from those that the service loaded."""
        fact = f"the files of {', '.join(self.changed)} have changed since the service started"
        return ServiceError("changed", fact, "restart the service", status=503, retry_after=30)

    @contextlib.contextmanager
    def admit_and_count(
        self, sender: Sender, key: Key, size: int, deadline: float
    ) -> Iterator[None]:
        """Accept or refuse a request of some size, and count it while it is prepared."""
        tokens = self.queue.pace.tokens(key, size)
        self.admit(sender, key, tokens, deadline)
        coming = sender, key, tokens
        self._coming.append(coming)
        try:
            yield
        finally:
            self._coming.remove(coming)

    def admit(self, sender: Sender, key: Key, tokens: int, deadline: float) -> None:
        """Raise an error for a request whose turn would come too late."""
        wait = self._admission.seconds_to_wait(self._demand(sender, key, tokens, deadline))
        if wait is not None:
            raise self._busy_error(wait)

    def refuse_if_too_late(self, sender: Sender, key: Key, tokens: int, deadline: float) -> None:
        """Raise an error for an accepted request that, by its tokens, cannot be finished in its time."""
        seconds_left = deadline - asyncio.get_running_loop().time()
        seconds = self.queue.pace.seconds(key, tokens)
        if seconds > ALONE * seconds_left:
            fact = (
                f"the request takes about {seconds:.0f} seconds, {seconds_left:.0f} are left for it"
            )
            raise ServiceError("too-large", fact, "send fewer texts in a request", status=413)
        demand = self._demand(sender, key, tokens, deadline)
        if demand.waiting.seconds and demand.total_seconds > demand.room.limit:
            raise self._busy_error(self._admission.promise_seconds(demand))

    def _demand(self, sender: Sender, key: Key, tokens: int, deadline: float) -> Demand:
        """Return what the admission asks of a request; its room is a share of its remaining time, and of a full queue."""
        now = asyncio.get_running_loop().time()
        seconds_left = deadline - now
        seconds = self._estimate_seconds(key, tokens, seconds_left)
        limit = min(
            ALONE * seconds_left, self._estimate_seconds(key, self._queue_tokens, seconds_left)
        )
        room = Room(BACKLOG / ALONE * limit, limit)
        # The waiting work of its client and of the others
        own_seconds, seconds_by_client = list[float](), defaultdict[str, float](float)
        for row_key, row in self.queue.rows.items():
            of_a_token = self._estimate_seconds(row_key, 1, seconds_left)
            own_seconds += [of_a_token * job.tokens for job in row.jobs_of_client(sender.client)]
            for client, waiting_tokens in row.tokens.items():
                seconds_by_client[client] += of_a_token * waiting_tokens
        seconds_by_client.pop(sender.client, None)
        for coming_sender, coming_key, coming_tokens in self._coming:
            coming_seconds = self._estimate_seconds(coming_key, coming_tokens, seconds_left)
            if coming_sender.client == sender.client:
                own_seconds.append(coming_seconds)
            else:
                seconds_by_client[coming_sender.client] += coming_seconds
        waiting = Waiting(own_seconds, seconds_by_client)
        return Demand(sender, seconds, waiting, self._at_work_seconds(), room, now)

    def _estimate_seconds(self, key: Key, tokens: int, seconds_left: float) -> float:
        """Return the seconds that tokens take. While the speed is unknown, a full queue takes all the time of a request."""
        pace = self.queue.pace
        return (
            pace.seconds(key, tokens)
            if pace.is_speed_known(key)
            else tokens * ALONE * seconds_left / self._queue_tokens
        )

    def _busy_error(self, wait: int) -> ServiceError:
        seconds = self._at_work_seconds() + self.queue.seconds
        fact = f"about {seconds:.0f} seconds of work wait, more than can be done in time"
        return ServiceError(
            "busy", fact, f"send it again after {wait} s", status=429, retry_after=wait
        )

    def submit(self, job: RequestJob) -> None:
        """Let a request wait for its turn."""
        self.queue.add(job)
        self._send_batches()

    async def run(self) -> None:
        """Start workers, one after the other, until cancelled, or until the first one cannot load the models."""
        try:
            await self._run()
        except Exception as error:
            log.exception("the supervisor has failed")
            self.failure = MachineError(
                "internal-error", f"{type(error).__name__}: {error}", "see the log of the service"
            )

    async def _run(self) -> None:
        delay = 0.0
        await self._worker.connect()
        while True:
            try:
                beating = asyncio.create_task(self._check_idle_worker(self._worker))
                answered = await self._handle_messages(self._worker)
            finally:
                beating.cancel()
                self.facts = None
                status = await self._worker.end()
            # What it had is put back; requests of the batch that it was computing get no third try
            batches, self._at_work = list(self._at_work.values()), {}
            self._is_asked = False
            fact, hint = (
                "the worker died twice while it computed this request",
                "send it again later, or a smaller one",
            )
            died_twice = ServiceError("worker-died", fact, hint, status=503, retry_after=5)
            for job in batches[0].jobs if batches else ():
                if job.retried:
                    self.queue.discard(job)
                    job.fail(died_twice)
                job.retried = True
            for batch in reversed(batches):
                batch.parts = [part for part in batch.parts if not part.job.future.done()]
                self.queue.put_back(batch)
            if not self._was_ready:
                fact = f"the worker ended with status {status} while loading the models"
                hint = "most often memory was short: serve fewer models, or use --precision bf16"
                self.failure = self.failure or MachineError("worker-died", fact, hint)
                return
            delay = 0.0 if answered else _next_delay(delay)
            self._metrics.restarts.inc()
            log.error("the worker has died and is started again", extra={"status": status})
            while True:
                await asyncio.sleep(delay)
                try:
                    worker = self._worker.start_another()
                    await worker.connect()
                    break
                except (OSError, MemoryError) as error:  # no descriptor, process or memory is free
                    delay = _next_delay(delay)
                    extra = {"error": str(error), "seconds": delay}
                    log.error("no worker can be started", extra=extra)
            self._worker = worker

    async def _handle_messages(self, worker: WorkerProcess) -> bool:
        """Handle the messages of a worker until it ends; return whether it computed anything."""
        answered = False
        try:
            async with asyncio.timeout(None) as self._watchdog:
                while (message := await worker.receive()) is not None:
                    self._handle(message)
                    answered = answered or isinstance(message, Done)
                    if self.changed:
                        break
        except TimeoutError:
            log.error("the worker is stuck", extra={"seconds": self._patience})
        finally:
            self._watchdog = None
        return answered

    async def _check_idle_worker(self, worker: WorkerProcess) -> None:
        """Ask a worker without work whether it lives: one that is stopped would only be noticed at the next request."""
        while True:
            await asyncio.sleep(_BEAT)
            if self.is_ready and not self._at_work and not self._is_asked:
                self._is_asked = True
                worker.send(Alive())
                self._restart_watchdog()

    def _restart_watchdog(self) -> None:
        """Restart the time in which the worker must send its next message, if one is due."""
        if self._watchdog is not None:
            end = asyncio.get_running_loop().time() + self._patience
            self._watchdog.reschedule(end if self._at_work or self._is_asked else None)

    def _at_work_seconds(self) -> float:
        return sum(
            self.queue.pace.seconds(batch.key, batch.tokens) for batch in self._at_work.values()
        )

    def _handle(self, message: Ready | Alive | Done | Failed) -> None:
        self._is_asked = False
        if isinstance(message, Failed) and (message.trace or message.number is None):
            error = message.error
            log.error(error.message, extra={"slug": error.slug, "trace": message.trace})
        if isinstance(message, Alive):
            pass
        elif isinstance(message, Ready):
            self._accept_loaded_models(message.models)
        elif message.number is None:
            self.failure = None if self._was_ready else message.error
        else:
            batch = self._at_work.pop(message.number)
            if isinstance(message, Done):
                self._metrics.count_batch(batch, message.seconds)
                self.queue.pace.learn_speed(batch.key, batch.tokens, message.seconds, batch.is_call)
                batch.distribute_outputs(message.outputs)
            else:
                for job in batch.jobs:
                    self.queue.discard(job)
                    job.fail(message.error)
        self._send_batches()
        self._restart_watchdog()

    def _accept_loaded_models(self, models: dict[str, LoadedModel]) -> None:
        """Use a worker that has loaded the same files: ids of another tokenizer would give wrong answers silently."""
        self._digests = {name: facts.digest for name, facts in models.items()} | self._digests
        self.changed = [
            name for name, facts in models.items() if facts.digest != self._digests[name]
        ]
        if self.changed:
            error = self.changed_error()
            self.failure = (
                None if self._was_ready else CheckpointError(error.slug, error.message, error.hint)
            )
            log.error(error.message, extra={"slug": error.slug, "hint": error.hint})
            for job in list(self.queue):
                self.queue.discard(job)
                job.fail(error)
            return
        self.facts, self._was_ready = models, True
        log.info(
            "ready", extra={"models": {name: facts.precision for name, facts in models.items()}}
        )

    def _send_batches(self) -> None:
        was_idle, now = not self._at_work, asyncio.get_running_loop().time()
        while self.facts is not None:
            if len(self._at_work) >= (AHEAD if self.queue.tokens >= self.queue.batch_tokens else 1):
                break
            # Accepted requests that cannot be finished any more: the machine has become slower.
            for job in self.queue.find_too_late(now, self._at_work_seconds()):
                self.queue.discard(job)
                demand = self._demand(job.sender, job.key, job.tokens, job.deadline)
                wait = self._admission.promise_seconds(demand)
                fact = "the work that waits takes longer than expected, and this request's time is over before"
                job.fail(
                    ServiceError(
                        "busy", fact, f"send it again after {wait} s", status=429, retry_after=wait
                    )
                )
            batch = self.queue.next_batch(now, self._at_work_seconds())
            if batch is None:
                break
            number = next(self._numbers)
            self._at_work[number] = batch
            call_seconds = (
                min(_CALL_SECONDS, batch.parts[0].job.deadline - now) if batch.is_call else 0.0
            )
            self._worker.send(WorkMessage(number, *batch.key, batch.content(), call_seconds))
        if was_idle:  # otherwise new requests would postpone the end of a stuck worker for ever
            self._restart_watchdog()


def _next_delay(delay: float) -> float:
    return min(_LONGEST_DELAY, delay * 2 or _SHORTEST_DELAY)
