"""Define the endpoints of text-embeddings-inference, so that its clients work unchanged. Errors have our form.

That server has one model. Here `model` in the body chooses one; the default is the first that can
answer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from scipy.special import expit, softmax

from albertkit.batches.features import Features
from albertkit.embeddings.folder import similarity_matrix
from albertkit.pipelines.pipeline import Pipeline
from albertkit.serve import schemas
from albertkit.serve.protocol import TOKEN_STATES
from albertkit.serve.reading import StrictRoute, validate_request
from albertkit.serve.refusals import MAX_COSINES, check_answer_numbers, check_answer_size
from albertkit.serve.routes import answer_vectors, embedding_features, input_size, service_of
from albertkit.serve.service import Proceed, make_answer
from albertkit.tasks.texts import TextClassification

router = APIRouter(
    route_class=StrictRoute, responses=schemas.refusals(), tags=["text-embeddings-inference"]
)


@router.post("/embed", response_model=list[list[float]])
async def embed(body: schemas.EmbedRequest, request: Request) -> Response:
    """Vectors of texts."""

    def shaped(_: str, results: list[Any]) -> Any:
        vectors = np.stack([result["embedding"] for result in results])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if body.normalize else 1.0
        return vectors / np.maximum(lengths, np.float32(1e-12))

    return await answer_vectors(
        request, body, body.inputs, shaped, body.truncate, body.dimensions, body.prompt_name
    )


@router.post("/embed_all", response_model=list[list[list[float]]])
async def embed_all(body: schemas.EmbedAllRequest, request: Request) -> Response:
    """The hidden states of all tokens of texts, special tokens included; they are neither pooled nor normalised."""

    def prepared(pipeline: Any, proceed: Proceed) -> tuple[list[Any], Features]:
        inputs, features = embedding_features(
            request, body.inputs, None, pipeline, proceed, body.prompt_name
        )
        check_answer_numbers(int(features.offsets[-1]) * pipeline.model.config.hidden_size)
        return inputs, features

    return await service_of(request).run(
        request,
        "embed",
        body.model,
        input_size(body.inputs),
        prepared,
        lambda _, states: states,
        truncate=body.truncate,
        read_results=lambda pipeline, inputs, features, outputs: outputs,
        work=TOKEN_STATES,
    )


@router.post("/similarity", response_model=schemas.AnswerResponse[list[float]] | list[float])
async def similarity(body: schemas.SimilarityRequest, request: Request) -> Response:
    """Compare texts by the cosines of their vectors."""
    question = body.root
    is_pairwise = isinstance(question, schemas.CompareRequest)
    truncate: bool | None
    prompt_name = None
    if isinstance(question, schemas.CompareRequest):
        first, second, truncate = question.texts, question.others or [], question.truncate
    else:
        first, second = [question.inputs.source_sentence], question.inputs.sentences
        truncate = question.parameters.truncate if question.parameters else None
        prompt_name = question.parameters.prompt_name if question.parameters else None
    hint = "compare fewer texts, or take their vectors from /v1/embeddings"
    check_answer_size(len(first) * len(second or first), MAX_COSINES, "cosines", hint)

    def shaped(model: str, results: list[Any]) -> Any:
        vectors = np.stack([result["embedding"] for result in results])
        cosines = similarity_matrix(
            vectors[: len(first)], vectors[len(first) :] if second else vectors
        )
        return make_answer(model, cosines) if is_pairwise else cosines[0]

    texts = [*first, *second]
    return await answer_vectors(request, question, texts, shaped, truncate, prompt_name=prompt_name)


@router.post("/predict", response_model=list[schemas.Scored] | list[list[schemas.Scored]])
async def predict(body: schemas.PredictRequest, request: Request) -> Response:
    """Scores of all labels of a text, a pair or several of them, the best first."""
    inputs = body.inputs
    function = body.parameters.function_to_apply if body.parameters else None
    top_k = body.parameters.top_k if body.parameters else None
    is_batch = isinstance(inputs, list) and isinstance(inputs[0], list)
    rows = inputs if is_batch else [[inputs] if isinstance(inputs, str) else inputs]
    values = [tuple(row) if len(row) == 2 else row[0] for row in rows]
    raw = body.raw_scores or function == "none"

    def shaped(_: str, results: list[Any]) -> Any:
        return results if is_batch else results[0]

    def labelled(
        pipeline: Pipeline, inputs: list[Any], features: Features, outputs: list[Any]
    ) -> list[Any]:
        names = pipeline.model.config.id2label
        scores = _label_scores(pipeline, inputs, features, outputs, raw, function)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        return [
            [{"score": row[index], "label": names[index]} for index in indices.tolist()]
            for row, indices in zip(scores.tolist(), best, strict=True)
        ]

    kind = _first_served_kind(request, body.model, ("classify", "score"))
    return await service_of(request).answer(
        request, kind, body.model, values, shaped, truncate=body.truncate, read_results=labelled
    )


@router.post("/rerank", response_model=list[schemas.Rank], response_model_exclude_none=True)
async def rerank(body: schemas.RerankRequest, request: Request) -> Response:
    """Order texts by their score with a query, the best first; by a model that gives a number to a pair."""

    def ranked(
        pipeline: Pipeline, inputs: list[Any], features: Features, outputs: list[Any]
    ) -> list[Any]:
        scores = _label_scores(pipeline, inputs, features, outputs, body.raw_scores)[:, 0]
        ranks = [
            {"index": index, "score": float(scores[index])}
            for index in np.argsort(-scores, kind="stable").tolist()
        ]
        return (
            [{**rank, "text": body.texts[rank["index"]]} for rank in ranks]
            if body.return_text
            else ranks
        )

    pairs = [(body.query, text) for text in body.texts]
    return await service_of(request).answer(
        request,
        "score",
        body.model,
        pairs,
        lambda _, ranks: ranks,
        truncate=body.truncate,
        read_results=ranked,
    )


@router.post("/tokenize", response_model=list[list[schemas.Token]])
async def tokenize(body: schemas.TokenizeRequest, request: Request) -> Response:
    """Split texts into tokens, with their places."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    return await service_of(request).tokens(request, body.model, texts, body.add_special_tokens)


@router.post("/decode", response_model=list[str])
async def decode(body: schemas.DecodeRequest, request: Request) -> Response:
    """Put ids into text."""
    rows = [body.ids] if isinstance(body.ids[0], int) else body.ids
    return await service_of(request).decoded(request, body.model, rows, body.skip_special_tokens)


_ENDPOINTS: dict[str, tuple[type[BaseModel], Callable[..., Any]]] = {
    "embed": (schemas.EmbedRequest, embed),
    "classify": (schemas.PredictRequest, predict),
    "score": (schemas.PredictRequest, predict),
    "rerank": (schemas.RerankRequest, rerank),
    "similarity": (schemas.SimilarityRequest, similarity),
}


@router.post("/", include_in_schema=False)
async def root(body: schemas.AnyRequest, request: Request) -> Response:
    """Answer as the endpoint of the first model: /embed or /predict; /similarity or /rerank where the body has its form."""
    if "query" in body.root:
        kind = "rerank"
    elif isinstance(body.root.get("inputs"), dict):
        kind = "similarity"
    else:
        kind = _first_served_kind(request, body.root.get("model"), ("embed", "classify", "score"))
    schema, endpoint = _ENDPOINTS[kind]
    return await endpoint(validate_request(body.root, schema), request)


# --- parts of the endpoints -----------------------------------------------------------------------


def _first_served_kind(request: Request, model: Any, kinds: Sequence[str]) -> str:
    """Return the first of some kinds that a model has: the named one, or else the first that is served and has one."""
    models = service_of(request).models
    names = list(models.folders) if model is None else [model]
    return next((kind for name in names for kind in kinds if name in models.names(kind)), kinds[0])


def _label_scores(
    pipeline: Any,
    inputs: list[Any],
    features: Features,
    outputs: list[Any],
    as_logits: bool,
    function: str | None = None,
) -> np.ndarray:
    """Return the score of each label, float64 [E, C]: the model's outputs, or their softmax or sigmoid."""
    logits = pipeline.task.logits(inputs, features, outputs)
    if as_logits:
        return logits
    default = "softmax" if isinstance(pipeline.task, TextClassification) else "sigmoid"
    return softmax(logits, axis=1) if (function or default) == "softmax" else expit(logits)
