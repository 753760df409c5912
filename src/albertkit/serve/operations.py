"""What operators and the page ask: is it alive, is it ready, what does it serve, what has it done."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST

from albertkit import __version__
from albertkit.serve import answers
from albertkit.serve.bounds import MOST_REQUESTS, MOST_TEXTS
from albertkit.serve.reference import reference
from albertkit.serve.routes import service_of
from albertkit.serve.settings import MEGABYTE

_REFUSED: dict[int | str, dict[str, Any]] = {401: {"model": answers.FaultAnswer, "description": "The API key is wrong"}}
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": answers.Status, "description": "Not ready"}}
router = APIRouter(tags=["operations"])


@router.get("/", include_in_schema=False)
async def page() -> RedirectResponse:
    """The demo page; relative, so that it is found behind a proxy that puts the service below a path."""
    return RedirectResponse("page/")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The reference: every path and every field. It needs no script and nothing of other machines."""
    return HTMLResponse(reference(request.app.openapi()))


@router.get("/health", response_model=answers.Status)
async def health() -> dict[str, str]:
    """200 as long as the process lives."""
    return {"status": "alive"}


@router.get("/ready", response_model=answers.Status, responses=_NOT_READY)
async def ready(request: Request) -> JSONResponse:
    """200 if all models are loaded and the workers live, else 503; also while the service is ending."""
    service = service_of(request)
    status = "draining" if service.is_draining else "ready" if service.is_ready else "loading"
    return JSONResponse({"status": status}, 200 if status == "ready" else 503)


@router.get("/models", response_model=answers.Listing, responses=_REFUSED)
async def models(request: Request) -> dict[str, Any]:
    """What is served: names, kinds, precision, examples."""
    service = service_of(request)
    return {"models": service.models.listing(service.facts)}


@router.get("/info", response_model=answers.Info, responses=_REFUSED)
async def info(request: Request) -> dict[str, Any]:
    """Version, models and limits."""
    settings, models = service_of(request).settings, service_of(request).models
    return {
        "version": __version__,
        "models": list(models.folders),
        "max_client_batch_size": MOST_TEXTS,
        "max_batch_tokens": settings.batch_tokens,
        "max_concurrent_requests": MOST_REQUESTS,
        "max_payload_bytes": round(settings.max_megabytes * MEGABYTE),
    }


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **_REFUSED})
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
