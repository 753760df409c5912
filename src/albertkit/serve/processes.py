"""Start the processes that run the models.

Nothing here needs torch, so that a worker loads its models while the front still imports what it
needs.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from albertkit.errors import ConfigError
from albertkit.model_paths import is_captioner_folder, local_folder
from albertkit.serve.options import API_KEY, ServeOptions
from albertkit.serve.protocol import StartMessage, pack_message, receive

_POLL = 0.01  # seconds


def parse_folders(models: Sequence[str]) -> dict[str, str]:
    """Return name to folder, from `FOLDER` or `NAME=FOLDER`; without a name the folder's own."""
    folders: dict[str, str] = {}
    for model in models:
        name, equals, folder = model.partition("=")
        if not equals or Path(model).exists():
            name, folder = Path(model).resolve().name, model
        if not name or not folder:
            raise ConfigError(
                "bad-value", f"`{model}` is not a model", "write FOLDER or NAME=FOLDER"
            )
        if name in folders:
            raise ConfigError(
                "bad-value",
                f"two models are named `{name}`",
                f"name one yourself: {name}-2={folder}",
            )
        folders[name] = folder
    if not folders:
        raise ConfigError(
            "bad-value", "there is no model to serve", "name a folder: albertkit serve FOLDER"
        )
    return folders


class WorkerProcess:
    """Hold a worker's process and the front's end of its socket.

    Attributes:
        start: The models to load and the service's options.
    """

    def __init__(self, start: StartMessage) -> None:
        """Start a fresh interpreter, which inherits one end of a socket and nothing else.

        Threads that wait must sleep: OpenMP's spin by default, and take the cores from the front
        and from each other. A text alone took 190 ms of processor time so on two busy cores, and 25
        without; batches of 32 took a quarter more.

        Not a fork: torch's threads do not survive one. It ends when the front's end of the socket
        closes, however that came; signals of the terminal are the front's to hear, so it has a
        process group of its own.
        """
        self.start = start
        environment = {name: value for name, value in os.environ.items() if name != API_KEY}
        self._socket, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.enter_context(self._socket)  # closed if no process can be started
            self._process = subprocess.Popen(
                # -P: the folder that it is started in may have modules of any name
                [sys.executable, "-P", "-m", "albertkit.serve.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                env={"OMP_WAIT_POLICY": "passive", **environment},
                process_group=0,
            )
            stack.pop_all()
        # It has ended: `receive` says so
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(pack_message(start))

    def start_another(self) -> Self:
        """Start a process for the same models."""
        return type(self)(self.start)

    async def connect(self) -> None:
        """Let the event loop handle the socket."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)

    def send(self, message: Any) -> None:
        """Put a message on its way; what the socket does not take at once, the event loop sends later.

        A process that has ended gets nothing: `receive` reports its end, and uvloop raises at a
        closed socket.
        """
        if not self._writer.is_closing():
            self._writer.write(pack_message(message))

    async def receive(self) -> Any:
        """Return the next message; None once the process has ended."""
        return await receive(self._reader)

    async def end(self) -> int:
        """Kill the process if it lives, and wait for its end; return its exit status."""
        self._writer.close()
        self.kill()
        while (status := self._process.poll()) is None:  # no thread: perhaps none can be started
            await asyncio.sleep(_POLL)
        return status

    def kill(self) -> None:
        """Kill the process if it lives."""
        self._process.kill()


def start_workers(options: ServeOptions) -> list[WorkerProcess]:
    """Start a worker for the models of text, and one for captioners: those take seconds, and decode files of unknown clients."""
    folders = {
        name: str(local_folder(folder)) for name, folder in parse_folders(options.models).items()
    }
    captioners = {name: folder for name, folder in folders.items() if is_captioner_folder(folder)}
    texts = {name: folder for name, folder in folders.items() if name not in captioners}
    return [WorkerProcess(StartMessage(group, options)) for group in (texts, captioners) if group]
