"""Define the endpoints: those of the pipelines, and OpenAI's embeddings API."""

import base64
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Form, Request, Response, UploadFile
from starlette.concurrency import run_in_threadpool

from albertkit.batches.features import Features
from albertkit.errors import AlbertKitError, DataError
from albertkit.serve import schemas
from albertkit.serve.reading import StrictRoute
from albertkit.serve.refusals import check_answer_numbers, check_ids
from albertkit.serve.service import (
    PASSES,
    Proceed,
    Service,
    Shaped,
    compute_features_in_parts,
    encode_json,
    make_answer,
)

router = APIRouter(route_class=StrictRoute, responses=schemas.refusals(), tags=["models"])


def service_of(request: Request) -> Service:
    """Return the service behind the application."""
    return request.app.state.service


def _texts_of_body(body: Any) -> list[Any]:
    return [body.texts] if isinstance(body.texts, str) else body.texts


def _questions_of_body(body: Any) -> list[dict[str, Any]]:
    return [question.model_dump() for question in body.questions]


def _add_endpoint(
    kind: str, body: type, result: type, values: Callable[[Any], list[Any]], summary: str
) -> None:
    """Add the endpoint of a kind of pipeline: the values of a body, answered one by one."""

    async def endpoint(body: Any, request: Request) -> Response:
        options = {"top": body.top} if hasattr(body, "top") else {}
        truncate = getattr(body, "truncate", None)
        return await service_of(request).answer(
            request, kind, body.model, values(body), truncate=truncate, **options
        )

    endpoint.__annotations__["body"] = body
    endpoint.__name__, endpoint.__doc__ = kind.replace("-", "_"), summary
    answer = schemas.AnswerResponse[result]  # type: ignore[valid-type]
    router.post(f"/{kind}", response_model=answer, response_model_exclude_none=kind == "classify")(
        endpoint
    )


_add_endpoint(
    "fill-mask",
    schemas.FillMaskRequest,
    schemas.Filled,
    _texts_of_body,
    "The likeliest tokens for each `[MASK]`.",
)
_add_endpoint(
    "sentence-order",
    schemas.SentenceOrderRequest,
    schemas.Order,
    lambda body: body.pairs,
    "Whether two texts stand in their order.",
)
_add_endpoint(
    "classify",
    schemas.ClassifyRequest,
    schemas.Class,
    _texts_of_body,
    "The class or the labels of texts or pairs.",
)
_add_endpoint(
    "score",
    schemas.ClassifyRequest,
    schemas.Number,
    _texts_of_body,
    "The number of texts or pairs.",
)
_add_endpoint("tag", schemas.TagRequest, schemas.Tagged, _texts_of_body, "The entities of texts.")
_add_endpoint(
    "answer",
    schemas.AnswerRequest,
    schemas.Answered,
    _questions_of_body,
    "Answers to questions, as spans of their contexts.",
)
_add_endpoint(
    "choose", schemas.ChooseRequest, schemas.Chosen, _questions_of_body, "One of several choices."
)


@router.post("/passes", response_model=schemas.PassesAnswer)
async def passes(body: schemas.PassesRequest, request: Request) -> Response:
    """Show each layer of a text: attention, movement of the states, guesses after every layer."""
    name, states = await service_of(request).call(request, PASSES, body.model, {"text": body.text})
    return Response(
        encode_json({"model": name})[:-1] + b"," + states[1:], media_type="application/json"
    )


@router.post("/caption", response_model=schemas.AnswerResponse[schemas.Captioned])
async def caption(
    request: Request,
    file: Annotated[UploadFile, File(description="A video.")],
    model: Annotated[str | None, Form(max_length=500)] = None,
    num_captions: Annotated[int, Form(ge=1, le=10)] = 1,
    sheet: Annotated[bool, Form(description="Draw the contact sheet, too.")] = False,
) -> Response:
    """Caption a video."""
    suffix = Path(file.filename or "").suffix
    with NamedTemporaryFile(
        suffix=suffix if suffix[1:].isalnum() and len(suffix) < 8 else ""
    ) as video:
        await run_in_threadpool(shutil.copyfileobj, file.file, video, 1 << 20)
        video.flush()
        arguments: dict[str, Any] = {"videos": video.name, "sheet": sheet}
        if num_captions > 1:
            arguments |= {"num_captions": num_captions, "num_beams": max(4, num_captions)}
        try:
            name, captions = await service_of(request).call(request, "caption", model, arguments)
        except AlbertKitError as error:
            error.message = error.message.replace(video.name, file.filename or "the video")
            raise
    return Response(encode_json(make_answer(name, [captions])), media_type="application/json")


# --- OpenAI's embeddings API ----------------------------------------------------------------------

_OPENAI_REFUSALS = schemas.refusals(schemas.OpenAIError)
_OPENAI_REFUSALS[400] = _OPENAI_REFUSALS.pop(422)  # the status that OpenAI has for it
openai_router = APIRouter(
    prefix="/v1", route_class=StrictRoute, responses=_OPENAI_REFUSALS, tags=["OpenAI"]
)
_STARTED = int(time.time())


@openai_router.post("/embeddings", response_model=schemas.EmbeddingsAnswer)
async def embeddings(body: schemas.EmbeddingsRequest, request: Request) -> Response:
    """Vectors of texts."""

    def shaped(model: str, results: list[Any]) -> dict[str, Any]:
        data = []
        for index, result in enumerate(results):
            vector = result["embedding"]
            if body.encoding_format != "float":
                vector = base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode(
                    "ascii"
                )
            data.append({"object": "embedding", "index": index, "embedding": vector})
        tokens = sum(result["tokens"] for result in results)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}

    return await answer_vectors(request, body, body.input, shaped, body.truncate, body.dimensions)


@openai_router.get("/models", response_model=schemas.ModelList)
async def models(request: Request) -> dict[str, Any]:
    """List the models that make vectors."""
    return {
        "object": "list",
        "data": [_model_object(name) for name in service_of(request).models.names("embed")],
    }


@openai_router.get("/models/{model:path}", response_model=schemas.ModelObject)
async def model(model: str, request: Request) -> dict[str, Any]:
    """One of them."""
    name, _ = service_of(request).models.find_model_and_pipeline("embed", model)
    return _model_object(name)


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "albertkit"}


async def answer_vectors(
    request: Request,
    body: Any,
    texts: Any,
    shaped: Shaped,
    truncate: bool | None,
    dimensions: int | None = None,
    prompt_name: str | None = None,
) -> Response:
    """Answer an `Input` of a request with the vectors of its texts, shaped; arguments as `embedding_features` and `run`."""
    prepared = partial(embedding_features, request, texts, dimensions, prompt_name=prompt_name)
    return await service_of(request).run(
        request,
        "embed",
        body.model,
        input_size(texts),
        prepared,
        shaped,
        truncate=truncate,
        dimension=dimensions,
    )


def input_size(texts: Any) -> int:
    """Return about the number of characters or ids of an `Input`."""
    return (
        len(texts) if isinstance(texts, str) or isinstance(texts[0], int) else sum(map(len, texts))
    )


def embedding_features(
    request: Request,
    texts: Any,
    dimensions: int | None,
    pipeline: Any,
    proceed: Proceed,
    prompt_name: str | None = None,
) -> tuple[list[Any], Features]:
    """Return the inputs and features of an `Input`: one or several texts, or rows of ids.

    Args:
        request: The request.
        texts: The `Input`.
        dimensions: Numbers kept of each vector; None for all.
        pipeline: `Embed`.
        proceed: Called between parts of the texts.
        prompt_name: Name of one of the encoder's prompts, which is put before each text.
    """
    values = [texts] if isinstance(texts, str) or isinstance(texts[0], int) else texts
    check_answer_numbers(len(values) * pipeline.encoder.output_dimension(dimensions))
    encoder = pipeline.encoder.with_prompt(prompt_name)
    if isinstance(values[0], str):
        service_of(request).check_expansion(values)
        inputs = pipeline.parse_all(values)
        return inputs, compute_features_in_parts(encoder.features, inputs, values, proceed)
    if encoder.prompt:
        fact = f"ids cannot follow the prompt {encoder.prompt[:40]!r}: it is put before texts"
        raise DataError("bad-input", fact, "send texts")
    # A row as tokenizers return it, `[CLS] … [SEP]` and padded at an end, is read as the ids
    # between them.
    tokenizer, room = pipeline.tokenizer, pipeline.encoder.max_length - 2
    check_ids(values, tokenizer.vocab_size)
    specials = [tokenizer.cls_id, tokenizer.sep_id]
    sequences, left_out = [], []
    for index, row in enumerate(values):
        padding = np.flatnonzero(np.array(row) != tokenizer.pad_id)
        ids = row[padding[0] : padding[-1] + 1] if len(padding) else []
        if specials == [*ids[:1], *ids[-1:]]:
            ids = ids[1:-1]
        elif ids and (ids[0] == specials[0] or ids[-1] == specials[1]):
            fact = f"row {index} of the ids has only one of [CLS] at its start and [SEP] at its end"
            raise DataError("bad-input", fact, "send both or neither, or send texts")
        sequences.append(np.array([specials[0], *ids[:room], specials[1]], np.int32))
        left_out.append(max(len(ids) - room, 0))
    features = Features.from_sequences(
        [(ids, len(ids)) for ids in sequences],
        range(len(sequences)),
        left_out=np.array(left_out, np.int64),
    )
    return values, features
