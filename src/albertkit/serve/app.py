"""The application: routes, page, limits, logs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from albertkit import __version__
from albertkit.errors import AlbertKitError
from albertkit.serve import openai, operations, refusals, routes
from albertkit.serve.limits import Gate
from albertkit.serve.observing import Observed
from albertkit.serve.service import Service

_PAGE = Path(__file__).with_name("page")


def make_app(service: Service, on_end: Callable[[], None] = lambda: None) -> FastAPI:
    """The application around a service.

    Args:
        service: What answers.
        on_end: Called when the supervisor ends: the models cannot be loaded, or the service is stopping anyway.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        supervising = asyncio.create_task(service.supervisor.run())
        supervising.add_done_callback(lambda _: on_end())
        yield
        supervising.cancel()
        with suppress(asyncio.CancelledError):
            await supervising

    app = FastAPI(
        title="albertkit",
        version=__version__,
        summary="ALBERT models over HTTP.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.service = service
    # The gate checks the key; here it is only said in the documentation.
    said = [] if service.settings.api_key is None else [Security(HTTPBearer(auto_error=False))]
    app.include_router(openai.router, dependencies=said)  # first: routes are tried one after the other
    app.include_router(routes.router, dependencies=said)
    app.include_router(operations.router)
    app.mount("/page", StaticFiles(directory=_PAGE, html=True), name="page")
    app.add_exception_handler(AlbertKitError, refusals.on_error)
    app.add_exception_handler(RequestValidationError, refusals.on_bad_request)
    app.add_exception_handler(HTTPException, refusals.on_http_error)
    app.add_middleware(Gate, settings=service.settings)
    app.add_middleware(Observed, metrics=service.metrics)  # the last one is the outermost
    return app
