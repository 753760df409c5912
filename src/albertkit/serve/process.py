"""The worker as the front sees it: a process and a socket."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Self

from albertkit.serve.wire import Start, packed, read_message


@dataclass(frozen=True, eq=False)
class WorkerProcess:
    """One life of a worker."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def spawn(cls, start: Start) -> Self:
        """Start a fresh interpreter, which inherits one end of a socket and nothing else.

        Threads that wait must sleep: OpenMP's spin by default, and take the cores from the front and from each other. A text
        alone took 190 ms of processor time so on two busy cores, and 25 without; batches of 32 took a quarter more.

        Not a fork: torch's threads do not survive one. It ends when the front's end of the socket closes, however that came.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", "albertkit.serve.worker", str(theirs.fileno()))
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()],
                env={"OMP_WAIT_POLICY": "passive", **os.environ},
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = cls(process, reader, writer)
        worker.send(start)
        return worker

    def send(self, message: Any) -> None:
        """Put a message on its way; what the socket does not take at once, the event loop sends later."""
        self.writer.write(packed(message))

    async def receive(self) -> Any:
        """The next message; None once the process has ended."""
        return await read_message(self.reader)

    async def end(self) -> int:
        """Kill the process if it lives, and wait for its end. Its exit status."""
        self.writer.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        return await self.process.wait()
