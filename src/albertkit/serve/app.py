"""The application: routes, page, limits, logs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from albertkit import __version__
from albertkit.errors import AlbertKitError
from albertkit.serve import openai, operations, refusals, routes
from albertkit.serve.limits import Gate
from albertkit.serve.observing import Observed
from albertkit.serve.service import Service

_PAGE = Path(__file__).with_name("page")


def make_app(service: Service, on_end: Callable[[], None] = lambda: None) -> FastAPI:
    """Build the application around a service.

    Args:
        service: What answers.
        on_end: Called when a supervisor ends: its models cannot be loaded, or the service is stopping anyway.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        supervising = [asyncio.create_task(one.run()) for one in service.supervisors]
        for task in supervising:
            task.add_done_callback(lambda _: on_end())
        yield
        for task in supervising:
            task.cancel()
        await asyncio.gather(*supervising, return_exceptions=True)

    app = FastAPI(
        title="albertkit",
        version=__version__,
        summary="ALBERT models over HTTP.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    # The gate checks the key; here it is only said in the documentation.
    said = [] if service.settings.api_key is None else [Security(HTTPBearer(auto_error=False))]
    app.include_router(openai.router, dependencies=said)  # first: routes are tried one after the other
    app.include_router(routes.router, dependencies=said)
    app.include_router(operations.router)
    app.mount("/page", StaticFiles(directory=_PAGE, html=True), name="page")
    _describe_openai_as_it_is(app)
    app.add_exception_handler(AlbertKitError, refusals.on_error)
    app.add_exception_handler(RequestValidationError, refusals.on_bad_request)
    app.add_exception_handler(HTTPException, refusals.on_http_error)
    app.add_middleware(Gate, settings=service.settings)
    if origins := service.settings.allow_origins:
        headers = ["Authorization", "Content-Type", "X-Request-Id"]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=headers)
    # The last one is the outermost.
    app.add_middleware(Observed, metrics=service.metrics, is_draining=lambda: service.is_draining)
    return app


def _describe_openai_as_it_is(app: FastAPI) -> None:
    """Take FastAPI's own 422 from the description of paths where what does not fit is 400."""
    described = app.openapi

    def corrected() -> dict[str, Any]:
        found = described()
        for path, methods in found["paths"].items():
            if path.startswith(refusals.OPENAI):
                for one in methods.values():
                    one["responses"].pop("422", None)
        return found

    app.openapi = corrected  # type: ignore[method-assign]
