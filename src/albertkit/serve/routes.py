"""The endpoints of the pipelines."""

import shutil
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Form, Request, Response, UploadFile
from starlette.concurrency import run_in_threadpool

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import AlbertKitError
from albertkit.serve import answers, requests
from albertkit.serve.bounds import MOST_COSINES, check_size
from albertkit.serve.models import PASSES
from albertkit.serve.reading import StrictRoute
from albertkit.serve.service import Service, answer_of, encoded

_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.FaultAnswer, "description": told}
    for status, told in (
        (400, "The body cannot be read"), (401, "The API key is missing or wrong"), (404, "No such model"),
        (413, "The body is too large"), (422, "The input does not fit"), (429, "Too much waits already"),
        (503, "The models are not ready"), (504, "It took too long"),
    )
}  # fmt: skip
router = APIRouter(route_class=StrictRoute, responses=_REFUSALS, tags=["models"])


def service_of(request: Request) -> Service:
    """The service behind the application."""
    return request.app.state.service


def _listed(texts: Any) -> list[Any]:
    return [texts] if isinstance(texts, str) else texts


@router.post("/fill-mask", response_model=answers.FillMaskAnswer)
async def fill_mask(body: requests.FillMaskRequest, request: Request) -> Response:
    """The likeliest pieces for each `[MASK]`."""
    return await service_of(request).answer(request, "fill-mask", body.model, _listed(body.texts), top=body.top)


@router.post("/sentence-order", response_model=answers.SentenceOrderAnswer)
async def sentence_order(body: requests.SentenceOrderRequest, request: Request) -> Response:
    """Whether two texts stand in their order."""
    return await service_of(request).answer(request, "sentence-order", body.model, body.pairs, truncate=body.truncate)


@router.post("/classify", response_model=answers.ClassifyAnswer, response_model_exclude_none=True)
async def classify(body: requests.ClassifyRequest, request: Request) -> Response:
    """The class or the labels of texts or pairs."""
    return await service_of(request).answer(
        request, "classify", body.model, _listed(body.texts), truncate=body.truncate
    )


@router.post("/score", response_model=answers.ScoreAnswer)
async def score(body: requests.ClassifyRequest, request: Request) -> Response:
    """The number of texts or pairs."""
    return await service_of(request).answer(request, "score", body.model, _listed(body.texts), truncate=body.truncate)


@router.post("/tag", response_model=answers.TagAnswer)
async def tag(body: requests.TagRequest, request: Request) -> Response:
    """The entities of texts."""
    return await service_of(request).answer(request, "tag", body.model, _listed(body.texts))


@router.post("/answer", response_model=answers.AnswerAnswer)
async def answer(body: requests.AnswerRequest, request: Request) -> Response:
    """Answers to questions, as spans of their contexts."""
    values = [{"question": one.question, "context": one.context} for one in body.questions]
    return await service_of(request).answer(request, "answer", body.model, values, truncate=body.truncate, top=body.top)


@router.post("/choose", response_model=answers.ChooseAnswer)
async def choose(body: requests.ChooseRequest, request: Request) -> Response:
    """One of several choices."""
    values = [one.model_dump() for one in body.questions]
    return await service_of(request).answer(request, "choose", body.model, values, truncate=body.truncate)


@router.post("/similarity", response_model=answers.SimilarityAnswer)
async def similarity(body: requests.SimilarityRequest, request: Request) -> Response:
    """Cosines of texts."""
    rows, columns = len(body.texts), len(body.others or body.texts)
    hint = "compare fewer texts, or take their vectors from /v1/embeddings"
    check_size(rows * columns, MOST_COSINES, "cosines", hint)

    def shaped(model: str, results: list[Any]) -> Any:
        vectors = np.stack([result["embedding"] for result in results])
        return answer_of(model, SentenceEncoder.similarity(vectors[:rows], vectors[rows:] if body.others else vectors))

    return await service_of(request).answer(
        request, "embed", body.model, [*body.texts, *(body.others or [])], shaped, truncate=body.truncate
    )


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
    return await service_of(request).tokens(request, body.model, _listed(body.inputs), body.add_special_tokens)


@router.post("/passes", response_model=answers.PassesAnswer)
async def passes(body: requests.PassesRequest, request: Request) -> Response:
    """What each pass of the shared layer does to a text: attention, movement of the states, guesses after every pass."""
    name, found = await service_of(request).call(request, PASSES, body.model, {"text": body.text})
    return Response(encoded({"model": name})[:-1] + b"," + found[1:], media_type="application/json")


@router.post("/caption", response_model=answers.CaptionAnswer)
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
