"""The endpoints of the pipelines."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Form, Request, Response, UploadFile
from starlette.concurrency import run_in_threadpool

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import AlbertKitError
from albertkit.serve import answers, requests
from albertkit.serve.answers import Answer
from albertkit.serve.bounds import MOST_COSINES, check_size
from albertkit.serve.models import PASSES
from albertkit.serve.reading import StrictRoute
from albertkit.serve.service import Service, answer_of, encoded

_REASONS = {
    400: "The body cannot be read",
    401: "The API key is missing or wrong",
    404: "No such model",
    413: "The body is too large",
    422: "The input does not fit",
    429: "Too much waits already",
    503: "The models are not ready",
    504: "It took too long",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.FaultAnswer, "description": reason} for status, reason in _REASONS.items()
}
router = APIRouter(route_class=StrictRoute, responses=_REFUSALS, tags=["models"])


def service_of(request: Request) -> Service:
    """Return the service behind the application."""
    return request.app.state.service


def _texts(body: Any) -> list[Any]:
    return [body.texts] if isinstance(body.texts, str) else body.texts


def _questions(body: Any) -> list[dict[str, Any]]:
    return [one.model_dump() for one in body.questions]


def _add(kind: str, body: type, result: type, values: Callable[[Any], list[Any]], told: str) -> None:
    """Add the endpoint of a kind of pipeline: the values of a body, answered one by one."""

    async def endpoint(body: Any, request: Request) -> Response:
        options = {"top": body.top} if hasattr(body, "top") else {}
        truncate = getattr(body, "truncate", None)
        return await service_of(request).answer(request, kind, body.model, values(body), truncate=truncate, **options)

    endpoint.__annotations__["body"] = body
    endpoint.__name__, endpoint.__doc__ = kind.replace("-", "_"), told
    router.post(f"/{kind}", response_model=Answer[result], response_model_exclude_none=kind == "classify")(endpoint)  # type: ignore[valid-type]


_add("fill-mask", requests.FillMaskRequest, answers.Filled, _texts, "The likeliest tokens for each `[MASK]`.")
_add(
    "sentence-order",
    requests.SentenceOrderRequest,
    answers.Order,
    lambda body: body.pairs,
    "Whether two texts stand in their order.",
)
_add("classify", requests.ClassifyRequest, answers.Class, _texts, "The class or the labels of texts or pairs.")
_add("score", requests.ClassifyRequest, answers.Number, _texts, "The number of texts or pairs.")
_add("tag", requests.TagRequest, answers.Tagged, _texts, "The entities of texts.")
_add(
    "answer", requests.AnswerRequest, answers.Answered, _questions, "Answers to questions, as spans of their contexts."
)
_add("choose", requests.ChooseRequest, answers.Chosen, _questions, "One of several choices.")


@router.post("/similarity", response_model=Answer[list[float]])
async def similarity(body: requests.SimilarityRequest, request: Request) -> Response:
    """Cosines of texts."""
    rows, columns = len(body.texts), len(body.others or body.texts)
    hint = "compare fewer texts, or take their vectors from /v1/embeddings"
    check_size(rows * columns, MOST_COSINES, "cosines", hint)

    def shaped(model: str, results: list[Any]) -> Any:
        vectors = np.stack([result["embedding"] for result in results])
        return answer_of(model, SentenceEncoder.similarity(vectors[:rows], vectors[rows:] if body.others else vectors))

    texts = [*body.texts, *(body.others or [])]
    return await service_of(request).answer(request, "embed", body.model, texts, shaped, truncate=body.truncate)


@router.post("/rerank", response_model=list[answers.Rank], response_model_exclude_none=True)
async def rerank(body: requests.RerankRequest, request: Request) -> Response:
    """Texts by their score with a query, the best first; by a model that gives a number to a pair."""

    def shaped(model: str, results: list[Any]) -> Any:
        order = sorted(range(len(results)), key=lambda place: -results[place]["value"])
        ranks = [{"index": place, "score": results[place]["value"]} for place in order]
        return [{**one, "text": body.texts[one["index"]]} for one in ranks] if body.return_text else ranks

    pairs = [[body.query, text] for text in body.texts]
    return await service_of(request).answer(request, "score", body.model, pairs, shaped, truncate=body.truncate)


@router.post("/tokenize", response_model=list[list[answers.Token]])
async def tokenize(body: requests.TokenizeRequest, request: Request) -> Response:
    """The tokens of texts, with their places."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    return await service_of(request).tokens(request, body.model, texts, body.add_special_tokens)


@router.post("/passes", response_model=answers.PassesAnswer)
async def passes(body: requests.PassesRequest, request: Request) -> Response:
    """Show each layer of a text: attention, movement of the states, guesses after every layer."""
    name, found = await service_of(request).call(request, PASSES, body.model, {"text": body.text})
    return Response(encoded({"model": name})[:-1] + b"," + found[1:], media_type="application/json")


@router.post("/caption", response_model=Answer[answers.Captioned])
async def caption(
    request: Request,
    file: Annotated[UploadFile, File(description="A video.")],
    model: Annotated[str | None, Form(max_length=500)] = None,
    num_captions: Annotated[int, Form(ge=1, le=10)] = 1,
) -> Response:
    """What a video shows."""
    suffix = Path(file.filename or "").suffix
    with NamedTemporaryFile(suffix=suffix if suffix[1:].isalnum() and len(suffix) < 8 else "") as kept:
        await run_in_threadpool(_keep, file, kept)
        arguments: dict[str, Any] = {"videos": kept.name}
        if num_captions > 1:
            arguments |= {"num_captions": num_captions, "num_beams": max(4, num_captions)}
        try:
            name, found = await service_of(request).call(request, "caption", model, arguments)
        except AlbertKitError as error:
            error.message = error.message.replace(kept.name, file.filename or "the video")
            raise
    return Response(encoded(answer_of(name, [found])), media_type="application/json")


def _keep(file: UploadFile, kept: Any) -> None:
    shutil.copyfileobj(file.file, kept, 1 << 20)
    kept.flush()
