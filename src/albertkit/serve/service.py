"""From a request's values to its answer: tokenized and put together here, computed in the worker."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from fastapi import Request, Response
from pydantic_core import to_json

from albertkit.inference import Pipeline
from albertkit.serve.batching import CALL_TOKENS, Job, Key, Queue
from albertkit.serve.metrics import Metrics
from albertkit.serve.models import Models
from albertkit.serve.refusals import ServiceError
from albertkit.serve.settings import ServeSettings
from albertkit.serve.supervisor import Supervisor
from albertkit.serve.wire import Start
from albertkit.tasks.features import Features

T = TypeVar("T")
SMALL = 4_000  # characters or tokens: handled in less than a millisecond, and a thread would cost as much
_THREADS = 2


class Service:
    """Everything behind the routes.

    Args:
        models: What is served.
        settings: How.
    """

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self.models, self.settings = models, settings
        self.queue = Queue(settings.batch_tokens)
        self.metrics = Metrics(self.queue)
        start = Start(
            models.folders, settings.precision, settings.device, settings.threads, settings.batch_tokens, settings.exits,
            settings.force,
        )  # fmt: skip
        self.supervisor = Supervisor(start, self.queue, self.metrics, patience=2 * settings.timeout)
        self._threads = ThreadPoolExecutor(_THREADS, "answers")

    async def answer(
        self,
        request: Request,
        kind: str,
        model: str | None,
        values: Sequence[Any],
        shaped: Callable[[str, list[Any]], Any] | None = None,
        **options: Any,
    ) -> Response:
        """What a pipeline says of values: `model` and `results`.

        Args:
            request: Whose tokens are counted.
            kind: Of the pipeline.
            model: Its name; None for the first one that has the kind.
            values: What `Pipeline.parse` takes.
            shaped: As `run`. Default: `model` and `results`.
            **options: As `Pipeline.results`.

        Raises:
            ServiceError: unknown-model, not-ready, queue-full, worker-died. DataError: what the pipeline raises.
        """

        def prepared(pipeline: Pipeline[Any]) -> tuple[list[Any], Features]:
            inputs = [pipeline.parse(value) for value in values]
            return inputs, pipeline.features(inputs)

        return await self.run(request, kind, model, _characters(values), prepared, shaped or answer_of, **options)

    async def run(
        self,
        request: Request,
        kind: str,
        model: str | None,
        size: int,
        prepared: Callable[[Pipeline[Any]], tuple[list[Any], Features]],
        shaped: Callable[[str, list[Any]], Any],
        **options: Any,
    ) -> Response:
        """As `answer`, with a shape of its own.

        Args:
            request, kind, model: As `answer`.
            size: About the characters to tokenize.
            prepared: Inputs and features, given the pipeline.
            shaped: The answer as plain values, given the model's name and the results.
            **options: As `Pipeline.results`.
        """
        name, pipeline = self.models.find(kind, model)
        self._check_ready()
        inputs, features = await self._off_the_loop(size, lambda: prepared(pipeline))
        tokens = int(features.offsets[-1])
        outputs = await self._computed(request, (name, kind), features, tokens)

        def finished() -> bytes:
            return encoded(shaped(name, pipeline.results(inputs, features, outputs, **options)))

        return Response(await self._off_the_loop(tokens, finished), media_type="application/json")

    async def call(self, request: Request, kind: str, model: str | None, arguments: dict[str, Any]) -> tuple[str, Any]:
        """The name of the model and what a call returns: a caption, or a look inside.

        Raises:
            As `answer`.
        """
        name, _ = self.models.find(kind, model)
        self._check_ready()
        outputs = await self._computed(request, (name, kind), arguments, CALL_TOKENS)
        return name, outputs[0]

    def _check_ready(self) -> None:
        if not self.supervisor.is_ready:
            raise ServiceError(
                "not-ready", "the models are being loaded", "GET /ready says when they are", status=503, retry_after=2
            )

    async def _computed(self, request: Request, key: Key, content: Features | dict[str, Any], tokens: int) -> list[Any]:
        waiting, most = self.queue.tokens, self.settings.queue_tokens
        if waiting and waiting + tokens > most:
            raise ServiceError(
                "queue-full", f"{waiting:,} tokens wait, this request has {tokens:,}, at most {most:,} may wait",
                "send it again later", status=429, retry_after=self.supervisor.seconds_to_empty(),
            )  # fmt: skip
        job = Job(key, content, asyncio.get_running_loop().create_future())
        self.supervisor.submit(job)
        try:
            outputs = await job.future
        finally:
            if job.unanswered:  # nobody waits for it any more
                self.queue.discard(job)
        request.state.tokens = tokens
        return outputs

    async def _off_the_loop(self, size: int, work: Callable[[], T]) -> T:
        """Small work at once, larger work in a thread: other requests go on meanwhile."""
        if size <= SMALL:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def answer_of(model: str, results: Any) -> dict[str, Any]:
    """The shape of most answers."""
    return {"model": model, "results": results}


def encoded(value: Any) -> bytes:
    """Plain values and arrays as JSON; a number that JSON cannot say is null."""
    return to_json(value, inf_nan_mode="null", fallback=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON")


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(_characters, parts))
