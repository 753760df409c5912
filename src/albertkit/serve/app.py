"""Build the application: routes of the pipelines, of operators and of the page, and the middleware around them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from albertkit import __version__
from albertkit.errors import AlbertKitError
from albertkit.output import PAGE_FOLDER
from albertkit.serve import refusals, routes, schemas, text_embeddings_inference
from albertkit.serve.gate import Gate
from albertkit.serve.observing import Observed
from albertkit.serve.options import MEGABYTE
from albertkit.serve.refusals import MAX_REQUESTS, MAX_TEXTS
from albertkit.serve.routes import service_of
from albertkit.serve.service import Service

_REFUSED: dict[int | str, dict[str, Any]] = {401: schemas.refusals()[401]}
_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": schemas.Status, "description": "Not ready"}
}
operations = APIRouter(tags=["operations"])


def make_app(service: Service, on_end: Callable[[], None] = lambda: None) -> FastAPI:
    """Build the application around a service; `on_end` is called when a worker cannot be kept alive, or the service stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        supervising = [asyncio.create_task(supervisor.run()) for supervisor in service.supervisors]
        for task in supervising:
            task.add_done_callback(lambda _: on_end())
        # While the workers load
        warming = asyncio.create_task(asyncio.to_thread(service.models.warm_up_tokenizers))
        yield
        await warming
        for task in supervising:
            task.cancel()
        await asyncio.gather(*supervising, return_exceptions=True)

    app = FastAPI(
        title="albertkit",
        version=__version__,
        summary="ALBERT models over HTTP.",
        lifespan=lifespan,
        docs_url=None,  # the page loads scripts from other machines
        redoc_url=None,
        redirect_slashes=False,  # a redirect repeats the client's `Host`
    )
    app.state.service = service
    # The gate checks the key; this only documents it.
    documented = [] if service.options.api_key is None else [Security(HTTPBearer(auto_error=False))]
    # First: routes are tried one after the other
    app.include_router(routes.openai_router, dependencies=documented)
    app.include_router(routes.router, dependencies=documented)
    app.include_router(text_embeddings_inference.router, dependencies=documented)
    app.include_router(operations)
    app.mount("/page", _WholeFiles(directory=PAGE_FOLDER, html=True), name="page")
    _drop_422_of_openai_paths(app)
    app.add_exception_handler(AlbertKitError, refusals.on_albertkit_error)
    app.add_exception_handler(OSError, refusals.on_system_error)
    app.add_exception_handler(RequestValidationError, refusals.on_bad_request)
    app.add_exception_handler(HTTPException, refusals.on_http_error)
    app.add_middleware(Gate, options=service.options)
    if origins := service.options.allow_origin:
        headers = ["Authorization", "Content-Type", "X-Request-Id"]
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=headers,
        )
    # The last one is the outermost.
    app.add_middleware(Observed, metrics=service.metrics, is_draining=lambda: service.is_draining())
    return app


class _WholeFiles(StaticFiles):
    """Small files, which are sent whole: a bad `Range` is answered in plain text otherwise."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": headers}, receive, send)


def _drop_422_of_openai_paths(app: FastAPI) -> None:
    """Remove FastAPI's own 422 from the description of OpenAI's paths, which answer 400."""
    describe = app.openapi

    def corrected() -> dict[str, Any]:
        description = describe()
        for path, methods in description["paths"].items():
            if path.startswith(refusals.OPENAI):
                for operation in methods.values():
                    operation["responses"].pop("422", None)
        return description

    app.openapi = corrected  # type: ignore[method-assign]


# --- paths of operators and of the page -----------------------------------------------------------


@operations.get("/", include_in_schema=False)
@operations.get("/page", include_in_schema=False)
async def page() -> RedirectResponse:
    """Redirect to the demo page; relative, so that it is found behind a proxy that puts the service below a path."""
    return RedirectResponse("page/")


@operations.get("/health", response_model=schemas.Status)
async def health() -> dict[str, str]:
    """200 as long as the process lives."""
    return {"status": "alive"}


@operations.get("/ready", response_model=schemas.Status, responses=_NOT_READY)
async def ready(request: Request) -> JSONResponse:
    """200 if all models are loaded and the workers live, else 503; also while the service is ending."""
    service = service_of(request)
    status = "ready" if service.is_ready else "loading"
    if service.is_draining():
        status = "draining"
    return JSONResponse({"status": status}, 200 if status == "ready" else 503)


@operations.get("/models", response_model=schemas.Listing, responses=_REFUSED)
async def models(request: Request) -> dict[str, Any]:
    """List the served models: names, kinds, precision, examples."""
    service = service_of(request)
    return {"models": service.models.listing(service.facts)}


@operations.get("/info", response_model=schemas.Info, responses=_REFUSED)
async def info(request: Request) -> dict[str, Any]:
    """Version, models and limits."""
    options, models = service_of(request).options, service_of(request).models
    return {
        "version": __version__,
        "models": list(models.folders),
        **models.description(next(iter(models.folders)), service_of(request).facts),
        "auto_truncate": False,
        "max_client_batch_size": MAX_TEXTS,
        "max_batch_tokens": options.batch_tokens,
        "max_concurrent_requests": MAX_REQUESTS,
        "max_payload_bytes": round(options.max_megabytes * MEGABYTE),
    }


@operations.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **_REFUSED},
)
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
