"""Answer requests: tokenize values, let the worker compute, and build the results."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fastapi import Request, Response
from pydantic_core import to_json

from albertkit.batches.features import Features
from albertkit.captioning.predict import CaptionPipeline
from albertkit.engines.onnx import is_onnx_folder
from albertkit.errors import AlbertKitError, DataError
from albertkit.model_paths import digest_while_loading, is_captioner_folder
from albertkit.pipelines.load import load_pipelines
from albertkit.pipelines.pipeline import Pipeline, check_finite
from albertkit.serve.observing import Metrics
from albertkit.serve.options import MEGABYTE, ServeOptions
from albertkit.serve.processes import WorkerProcess
from albertkit.serve.protocol import LoadedModel
from albertkit.serve.queue import CALL_TOKENS, Key, Queue, RequestJob, Sender, client_of_address
from albertkit.serve.refusals import (
    MAX_SPLIT_CHARACTERS,
    ServiceError,
    check_expansion,
    check_ids,
    check_request,
    check_results,
)
from albertkit.serve.supervisor import Supervisor

PASSES = "passes"  # a look inside; any model of text can be looked into


class Models:
    """Pipelines of every model, by name and kind.

    Attributes:
        folders: Folder of each model, by name.
        digests: Digest of the files that were loaded, by name of the model; without captioners,
            which the front does not load.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders = folders
        self._pipelines: dict[str, dict[str, Pipeline | None]] = {}
        self.digests: dict[str, str] = {}
        for name, folder in self.folders.items():
            if is_captioner_folder(folder):
                self._pipelines[name] = {CaptionPipeline.kind: None}
            else:
                with digest_while_loading(folder) as self.digests[name]:
                    pipelines = load_pipelines(folder, device="meta")
                exported = is_onnx_folder(Path(folder))  # it returns no states
                self._pipelines[name] = {**pipelines, **({} if exported else {PASSES: None})}

    def warm_up_tokenizers(self) -> None:
        """Load the tokenizers: loops are compiled at the first call, engines loaded after ten million characters."""
        for pipelines in self._pipelines.values():
            for pipeline in filter(None, pipelines.values()):
                pipeline.tokenizer.start_engine()
                with suppress(AlbertKitError):
                    pipeline.features([pipeline.parse(pipeline.example)])

    def find_model_and_pipeline(
        self, pipeline_kind: str, requested_name: str | None
    ) -> tuple[str, Any]:
        """Find the model of that name, or the first one that has a kind, and its pipeline, None for calls."""
        requested_name = self._choose_model_name(
            self.names(pipeline_kind), pipeline_kind, requested_name
        )
        return requested_name, self._pipelines[requested_name][pipeline_kind]

    def _choose_model_name(
        self, candidate_names: list[str], pipeline_kind: str, requested_name: str | None
    ) -> str:
        if requested_name is None and candidate_names:
            return candidate_names[0]
        if requested_name is not None and requested_name in candidate_names:
            return requested_name
        fact = (
            f"no model here can {pipeline_kind}"
            if requested_name is None
            else f"there is no model `{requested_name[:80]}` that can {pipeline_kind}"
        )
        alternatives = (
            ", ".join(candidate_names)
            if candidate_names
            else f"none; models here: {', '.join(self.folders)}"
        )
        raise ServiceError("unknown-name", fact, f"these can: {alternatives}", status=404)

    def tokenizer(self, name: str | None) -> tuple[str, Any]:
        """Find the model of that name, or the first one that reads text, and its tokenizer."""
        readers = {}
        for model, pipelines in self._pipelines.items():
            loaded = [pipeline for pipeline in pipelines.values() if pipeline]
            if loaded:
                readers[model] = loaded[0]
        name = self._choose_model_name([*readers], "tokenize", name)
        return name, readers[name].tokenizer

    def names(self, kind: str) -> list[str]:
        """Return the names of the models that have a kind."""
        return [name for name, pipelines in self._pipelines.items() if kind in pipelines]

    def description(self, name: str, facts: Mapping[str, LoadedModel]) -> dict[str, Any]:
        """Return the fields of a model in `/info`, named as in text-embeddings-inference."""
        pipelines: dict[str, Any] = {
            kind: loaded for kind, loaded in self._pipelines[name].items() if loaded
        }
        model_type: dict[str, Any] = {}
        length = None
        if (embed := pipelines.get("embed")) is not None:
            model_type, length = (
                {"embedding": {"pooling": embed.encoder.pooling}},
                embed.encoder.max_length,
            )
        for kind, their_kind in (("classify", "classifier"), ("score", "reranker")):
            if (pipeline := pipelines.get(kind)) is not None:
                labels = pipeline.model.config.id2label
                model_type = {
                    their_kind: {
                        "id2label": labels,
                        "label2id": {label: i for i, label in labels.items()},
                    }
                }
                length = pipeline.task.length
        precision = facts[name].precision if name in facts else None
        return {
            "model_id": name,
            "model_type": model_type,
            "model_dtype": precision,
            "max_input_length": length,
        }

    def listing(self, facts: Mapping[str, LoadedModel]) -> list[dict[str, Any]]:
        """Return the entry of each model in `/models`. `precision` is None while it is being loaded."""
        entries = []
        for name, pipelines in self._pipelines.items():
            loaded = facts.get(name)
            notes = list(loaded.notes) if loaded else []
            examples = {
                kind: pipeline.example
                for kind, pipeline in pipelines.items()
                if pipeline is not None
            }
            precision = loaded.precision if loaded else None
            entries.append(
                {
                    "name": name,
                    "kinds": list(pipelines),
                    "precision": precision,
                    "notes": notes,
                    "examples": examples,
                }
            )
        return entries


T = TypeVar("T")
# Called between the texts of a request; it raises once the request has ended
Proceed = Callable[[], None]
Prepared = Callable[[Pipeline[Any], Proceed], tuple[list[Any], Features]]
# From the name of the model and its results
Shaped = Callable[[str, list[Any]], Any]
ReadResults = Callable[[Pipeline[Any], list[Any], Features, list[Any]], list[Any]]
SMALL = 4_000  # characters or tokens: handled in a millisecond, the cost of a thread
_THREADS = 2
_CHARACTERS_A_PART = 100_000  # tokenized between two calls of `Proceed`; 0.1 s
_PATIENCE = 1.5  # of a request's time, after which a silent worker counts as stuck


class Service:
    """Answer requests with the models of all workers.

    Attributes:
        is_draining: Whether the service is ending.
    """

    def __init__(
        self, models: Models, options: ServeOptions, workers: Sequence[WorkerProcess]
    ) -> None:
        self.models, self.options = models, options
        queues = [Queue(options.batch_tokens) for _ in workers]
        self.metrics = Metrics(queues)
        self.supervisors = [
            Supervisor(
                worker,
                queue,
                self.metrics,
                _PATIENCE * options.timeout,
                models.digests,
                options.queue_tokens,
            )
            for worker, queue in zip(workers, queues, strict=True)
        ]
        self._supervisors = {
            name: supervisor
            for worker, supervisor in zip(workers, self.supervisors, strict=True)
            for name in worker.start.folders
        }
        self._threads = ThreadPoolExecutor(_THREADS, "answers")
        self.is_draining: Callable[[], bool] = lambda: False

    @property
    def is_ready(self) -> bool:
        """Return whether all models are loaded, and their workers live."""
        return all(supervisor.is_ready for supervisor in self.supervisors)

    @property
    def facts(self) -> dict[str, LoadedModel]:
        """Return the facts of each model that is loaded, by name."""
        return {
            name: facts
            for supervisor in self.supervisors
            for name, facts in (supervisor.facts or {}).items()
        }

    @property
    def failure(self) -> AlbertKitError | None:
        """Return the error of loading the models; None if they were loaded."""
        return next(
            (
                supervisor.failure
                for supervisor in self.supervisors
                if supervisor.failure is not None
            ),
            None,
        )

    async def answer(
        self,
        request: Request,
        kind: str,
        model: str | None,
        values: Sequence[Any],
        shaped: Shaped | None = None,
        **options: Any,
    ) -> Response:
        """Answer values with a pipeline: `model` and `results`, or the value of `shaped`. Options as `run`."""

        def prepared(pipeline: Pipeline[Any], proceed: Proceed) -> tuple[list[Any], Features]:
            self.check_expansion(values)
            try:
                inputs = pipeline.parse_all(values)
            except DataError as error:  # its hint is for Python
                if error.slug == "bad-input":
                    error.hint = f"for example {json.dumps(pipeline.example, ensure_ascii=False)}"
                raise
            return inputs, compute_features_in_parts(pipeline.features, inputs, values, proceed)

        size = _count_characters(values)
        check_request(kind, values, size, options)
        shaped = shaped or make_answer
        return await self.run(request, kind, model, size, prepared, shaped, **options)

    async def run(
        self,
        request: Request,
        kind: str,
        model: str | None,
        size: int,
        prepared: Prepared,
        shaped: Shaped,
        *,
        truncate: bool | None = None,
        read_results: ReadResults | None = None,
        work: str | None = None,
        **options: Any,
    ) -> Response:
        """Answer as `answer` does, with a function that returns inputs and features.

        Without `truncate` texts that are too long are refused; with it results say of how many
        `tokens` how many were `truncated`. None where nothing is cut.

        Args:
            size: About the number of characters to tokenize.
            read_results: Returns results for inputs, features and outputs. Default: the pipeline's
                own, with the numbers of tokens that were read and cut.
            work: Kind of the outputs that the worker computes. Default: `kind`.
        """
        name, pipeline = self.models.find_model_and_pipeline(kind, model)
        key, state, sender = (name, work or kind), request.state, sender_of(request)
        state.model = name
        supervisor = self._ready_supervisor(name)
        with supervisor.admit_and_count(sender, key, size, state.deadline):
            inputs, features = await self._run_off_the_event_loop(
                size, lambda proceed: prepared(pipeline, proceed)
            )
        left_out = features.left_out
        if left_out is not None and not truncate and left_out.any():
            raise too_long_error(left_out, features)
        tokens = int(features.offsets[-1])
        supervisor.queue.pace.learn_density(key, size, tokens)
        check_results(pipeline, inputs, options)
        outputs = await self._compute_outputs(request, supervisor, sender, key, features, tokens)

        def finished(_: Proceed) -> bytes:
            check_finite(outputs)
            if read_results is not None:
                return encode_json(shaped(name, read_results(pipeline, inputs, features, outputs)))
            results = pipeline.results(inputs, features, outputs, **options)
            if left_out is not None and truncate is not None:
                lengths = np.add.reduceat(
                    features.lengths, features.sequence_bounds(len(inputs))[:-1]
                )
                results = [
                    {**result, "tokens": int(count), "truncated": int(num_left_out)}
                    for result, count, num_left_out in zip(results, lengths, left_out, strict=True)
                ]
            return encode_json(shaped(name, results))

        return Response(
            await self._run_off_the_event_loop(tokens, finished), media_type="application/json"
        )

    async def tokens(
        self, request: Request, model: str | None, texts: list[str], special: bool
    ) -> Response:
        """Return the tokens of texts: `id`, `text`, `special`, `start` and `stop`; nothing is computed."""
        name, tokenizer = self.models.tokenizer(model)
        request.state.model = name
        size = _count_characters(texts)
        check_request("tokenize", texts, size, {})

        def token(i: int, start: int | None = None, stop: int | None = None) -> dict[str, Any]:
            piece = tokenizer.id_to_piece(i)
            return {"id": i, "text": piece, "special": start is None, "start": start, "stop": stop}

        def split(text: str) -> list[dict[str, Any]]:
            ids, spans = tokenizer.encode_with_offsets(text)
            tokens = [
                token(int(i), int(start), int(stop))
                for i, (start, stop) in zip(ids, spans, strict=True)
            ]
            return (
                [token(tokenizer.cls_id), *tokens, token(tokenizer.sep_id)] if special else tokens
            )

        def tokenize_texts(proceed: Proceed) -> bytes:
            check_expansion(texts, MAX_SPLIT_CHARACTERS)
            return encode_json([split(text) for text in _values_while_awaited(texts, proceed)])

        body = await self._run_off_the_event_loop(size, tokenize_texts)
        return Response(body, media_type="application/json")

    async def decoded(
        self, request: Request, model: str | None, rows: list[list[int]], skip_special: bool
    ) -> Response:
        """Return the text of rows of ids; nothing is computed."""
        name, tokenizer = self.models.tokenizer(model)
        request.state.model = name

        def decode_all(proceed: Proceed) -> bytes:
            check_ids(rows, tokenizer.vocab_size)
            return encode_json(
                [
                    tokenizer.decode(row, skip_special)
                    for row in _values_while_awaited(rows, proceed)
                ]
            )

        body = await self._run_off_the_event_loop(sum(map(len, rows)), decode_all)
        return Response(body, media_type="application/json")

    async def call(
        self, request: Request, kind: str, model: str | None, arguments: dict[str, Any]
    ) -> tuple[str, Any]:
        """Return the name of the model and the result of a call: a caption, or the states of all layers."""
        name, _ = self.models.find_model_and_pipeline(kind, model)
        request.state.model = name
        supervisor = self._ready_supervisor(name)
        sender = sender_of(request)
        supervisor.admit(sender, (name, kind), CALL_TOKENS, request.state.deadline)
        outputs = await self._compute_outputs(
            request, supervisor, sender, (name, kind), arguments, CALL_TOKENS
        )
        return name, outputs[0]

    def check_expansion(self, values: Any) -> None:
        """Raise an error for texts of more characters after NFKC than the largest body has bytes."""
        check_expansion(values, int(self.options.max_megabytes * MEGABYTE))

    def _ready_supervisor(self, name: str) -> Supervisor:
        supervisor = self._supervisors[name]
        if supervisor.changed:
            raise supervisor.changed_error()
        if not supervisor.is_ready:
            fact, hint = "the models are being loaded", "GET /ready says when they are"
            raise ServiceError("busy", fact, hint, status=503, retry_after=2)
        return supervisor

    async def _compute_outputs(
        self,
        request: Request,
        supervisor: Supervisor,
        sender: Sender,
        key: Key,
        content: Features | dict[str, Any],
        tokens: int,
    ) -> list[Any]:
        deadline = request.state.deadline
        supervisor.refuse_if_too_late(sender, key, tokens, deadline)
        loop = asyncio.get_running_loop()
        job = RequestJob(key, content, loop.create_future(), deadline, loop.time(), sender)
        supervisor.submit(job)
        try:
            outputs = await job.future
        finally:
            if job.unanswered:  # its client has gone
                supervisor.queue.discard(job)
        request.state.tokens = tokens
        return outputs

    async def _run_off_the_event_loop(self, size: int, work: Callable[[Proceed], T]) -> T:
        """Run small work at once, larger work in a thread, which ends soon after its request has ended."""
        if size <= SMALL:
            return work(lambda: None)
        has_ended = threading.Event()

        def proceed() -> None:
            if has_ended.is_set():
                raise RuntimeError("the request has ended")

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, proceed)
        finally:
            has_ended.set()


def sender_of(request: Request) -> Sender:
    """Return the sender of a request."""
    host, port = (request.client.host, request.client.port) if request.client else ("", 0)
    return Sender(
        client_of_address(host), port, (request.scope["path"], hash(getattr(request, "_body", b"")))
    )


def compute_features_in_parts(
    features: Callable[[Any], Features],
    inputs: Sequence[Any],
    values: Sequence[Any],
    proceed: Proceed,
) -> Features:
    """Return the features of inputs, parsed from as many values, part by part while the answer is awaited."""
    parts = []
    start = characters = 0
    for stop, value in enumerate(values, 1):
        characters += _count_characters(value)
        if characters >= _CHARACTERS_A_PART or stop == len(values):
            proceed()
            parts.append(features(inputs[start:stop]))
            start, characters = stop, 0
    if len(parts) == 1:
        return parts[0]
    left_out = (
        None if parts[0].left_out is None else np.concatenate([part.left_out for part in parts])
    )
    return replace(Features.concatenated(parts), left_out=left_out)


def _values_while_awaited(values: Iterable[T], proceed: Proceed) -> Iterator[T]:
    for value in values:
        proceed()
        yield value


def make_answer(model: str, results: Any) -> dict[str, Any]:
    """Return the shape of most answers."""
    return {"model": model, "results": results}


def encode_json(value: Any) -> bytes:
    """Encode plain values and arrays as JSON; NaN and infinity become null.

    Long lists are encoded item by item, so that other threads have their turn: a million cosines at
    once take 0.1 s.
    """
    if isinstance(value, dict):
        return (
            b"{"
            + b",".join(to_json(name) + b":" + encode_json(item) for name, item in value.items())
            + b"}"
        )
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 1):
        return b"[" + b",".join(map(_encode_item, value)) + b"]"
    return _encode_item(value)


def _encode_item(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="null", fallback=_numpy_to_python)


def shorten_floats(values: np.ndarray) -> np.ndarray:
    """Return fp32 as fp64 that JSON writes with the nine digits that identify an fp32, in place of 17."""
    wide = values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        digits = 8 - np.floor(np.log10(np.abs(wide)))
        scale = 10.0**digits
        short = np.rint(wide * scale) / scale
    exact = (digits >= 0) & (digits <= 22)  # powers of ten that fp64 holds
    return np.where(exact, short, wide)


def too_long_error(left_out: np.ndarray, features: Features) -> DataError:
    worst = int(left_out.argmax())
    sequences = features.sequence_bounds(len(left_out))[worst : worst + 2]
    num_read = int(features.lengths[sequences[0] : sequences[1]].max())
    prefix = (
        f"{np.count_nonzero(left_out):,} of {len(left_out):,} texts are too long: "
        if len(left_out) > 1
        else ""
    )
    fact = f"{prefix}text {worst} has {num_read + int(left_out[worst]):,} tokens, {num_read:,} of them are read"
    return DataError("too-large", fact, 'send it in parts, or say "truncate": true')


def _numpy_to_python(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (shorten_floats(value) if value.dtype == np.float32 else value).tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON")


def _count_characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [*value.values()]
    return sum(map(_count_characters, value)) if isinstance(value, list | tuple) else 0
