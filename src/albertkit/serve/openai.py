"""Answer requests of OpenAI's embeddings API."""

import base64
import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from albertkit.data.features import Features
from albertkit.errors import DataError
from albertkit.serve import schemas
from albertkit.serve.bounds import check_numbers
from albertkit.serve.reading import StrictRoute
from albertkit.serve.routes import service_of

_REFUSALS = schemas.refusals(schemas.OpenAIError)
_REFUSALS[400] = _REFUSALS.pop(422)  # the status that OpenAI has for it
router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=_REFUSALS, tags=["OpenAI"])
_STARTED = int(time.time())


@router.post("/embeddings", response_model=schemas.EmbeddingsAnswer)
async def embeddings(body: schemas.EmbeddingsRequest, request: Request) -> Response:
    """Vectors of texts."""
    texts, rows = _texts_and_ids(body.input)

    def prepared(pipeline: Any) -> tuple[list[Any], Features]:
        check_numbers((len(texts) + len(rows)) * pipeline.encoder.kept(body.dimensions))
        if rows:
            return rows, _features_of_ids(pipeline, rows)
        inputs = [pipeline.parse(text) for text in texts]
        return inputs, pipeline.features(inputs)

    def shaped(model: str, results: list[Any]) -> dict[str, Any]:
        tokens = sum(result["tokens"] for result in results)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": n, "embedding": _vector(result["embedding"], body.encoding_format)}
                for n, result in enumerate(results)
            ],
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    size = sum(map(len, texts)) + sum(map(len, rows))
    return await service_of(request).run(
        request, "embed", body.model, size, prepared, shaped, truncate=body.truncate, dimension=body.dimensions
    )


@router.get("/models", response_model=schemas.ModelList)
async def models(request: Request) -> dict[str, Any]:
    """List the models that make vectors."""
    return {"object": "list", "data": [_model_object(name) for name in service_of(request).models.names("embed")]}


@router.get("/models/{model}", response_model=schemas.ModelObject)
async def model(model: str, request: Request) -> dict[str, Any]:
    """One of them."""
    name, _ = service_of(request).models.find("embed", model)
    return _model_object(name)


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "albertkit"}


def _texts_and_ids(given: Any) -> tuple[list[str], list[list[int]]]:
    """Return the input as texts, or as rows of ids; one of both is empty."""
    if isinstance(given, str):
        return [given], []
    if isinstance(given[0], int):
        return [], [given]
    return (given, []) if isinstance(given[0], str) else ([], given)


def _features_of_ids(pipeline: Any, rows: list[list[int]]) -> Features:
    """Return `[CLS]`, as many of the ids as the model reads, and `[SEP]` for each row."""
    tokenizer, room = pipeline.tokenizer, pipeline.encoder.max_length - 2
    for row in rows:
        if not 0 <= min(row) <= max(row) < tokenizer.vocab_size:
            fact = f"ids from {min(row)} to {max(row)}, the tokenizer has {tokenizer.vocab_size:,} tokens"
            raise DataError("bad-input", fact, "send texts, or ids of this model's tokenizer")
    made = [np.array([tokenizer.cls_id, *row[:room], tokenizer.sep_id], np.int32) for row in rows]
    left_out = np.array([max(len(row) - room, 0) for row in rows], np.int64)
    return Features.of([(row, len(row)) for row in made], range(len(made)), left_out=left_out)


def _vector(vector: np.ndarray, encoding: str) -> Any:
    if encoding == "float":
        return vector
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode("ascii")
