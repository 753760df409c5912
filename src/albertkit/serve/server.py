"""The command `albertkit serve`."""

import errno
import gc
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from albertkit.command import takes
from albertkit.errors import ConfigError, MachineError, MissingExtraError
from albertkit.serve.logs import log_to_stderr
from albertkit.serve.options import ServeOptions
from albertkit.serve.processes import WorkerProcess, start_workers
from albertkit.training.launch import stop_signals

if TYPE_CHECKING:
    from albertkit.serve.connection import Server

log = logging.getLogger(__name__)
_PACKAGES = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}
_SWITCH_SECONDS = 0.0005  # after which a thread releases Python's lock
# Connections that wait to be accepted; the kernel's own limit, most often 4,096, is lower. uvloop
# accepts one in a turn: with 2,048 places 575 of 7,000 requests ended in resets at three times the
# load.
_BACKLOG = 65_535
_GRACE = 5  # seconds beyond the timeout of requests, in which the last answers are sent


@takes(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve models until SIGTERM or Ctrl-C, then answer every accepted request. See `ServeOptions`."""
    for module, package in _PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError.for_package(package, "serve", "albertkit serve")
    if os.name == "nt":
        fact = "albertkit serve hands a socket to the process of its models, which Windows cannot"
        raise ConfigError(
            "unsupported", fact, "run it in the Windows Subsystem for Linux: wsl --install"
        )
    with ExitStack() as resources:
        listener = resources.enter_context(listening_socket(options.host, options.port))
        log_to_stderr(options.log_level)  # first, as it reports the model of a run
        # They load the models while this process imports what it needs: 4.8 s in place of 9.1 until
        # the first answer.
        workers = start_workers(options)
        for worker in workers:
            resources.callback(worker.kill)
        _run_server(options, listener, workers)


def _run_server(
    options: ServeOptions, listener: socket.socket, workers: Sequence[WorkerProcess]
) -> None:
    """Answer until a signal comes, or a worker cannot load its models."""
    import torch
    import uvicorn

    from albertkit.engines.engine import check_precision
    from albertkit.serve.app import make_app
    from albertkit.serve.connection import Connection, Server
    from albertkit.serve.service import Models, Service
    from albertkit.tasks.early_exit import check_exits

    check_precision(options.precision)
    folders = {name: folder for worker in workers for name, folder in worker.start.folders.items()}
    if options.exits is not None:
        check_exits(folders.values(), options.exits)
    service = Service(Models(folders), options, workers)

    def stop() -> None:
        server.should_exit = True

    config = uvicorn.Config(
        make_app(service, on_end=stop),
        http=Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(options.timeout) + _GRACE,
    )
    server = Server(config, options.drain_seconds)
    service.is_draining = lambda: server.is_draining
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log.info("listening", extra={"url": url, "models": list(service.models.folders)})
    torch.set_num_threads(1)  # this process only tokenizes
    # Its threads make and read large answers while the loop must go on: they give way ten times as
    # often as by default, and a full collection of garbage no longer walks over the million objects
    # of what is imported (0.2 s). Beside a million cosines the longest wait for /health fell from
    # 194 to 25 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    with graceful_signals(server):
        server.run(sockets=[listener])
    if service.failure is not None:
        raise service.failure
    log.info("ended")


@contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Bind a socket, so that errors of the address are reported before the models are loaded."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        fact = f"cannot listen on {host} port {port}: {error.strerror or error}"
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            hint = "give an address of this machine: --host 127.0.0.1, or --host 0.0.0.0 for all"
            raise ConfigError("bad-value", fact, hint) from None
        raise MachineError(
            "in-use", fact, "choose another port: --port 8001, or --port 0 for any free one"
        ) from None
    with listener:
        yield listener


@contextmanager
def graceful_signals(server: "Server") -> Iterator[None]:
    """End gracefully at SIGTERM, Ctrl-C, and SIGHUP of a terminal that closes, which uvicorn does not know.

    uvicorn raises the first two again when it has ended; here they are ignored then.
    """
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)
    }
    for number in set(stop_signals()) - before.keys():
        before[number] = signal.signal(number, server.handle_exit)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
