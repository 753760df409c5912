"""What the front and its worker say to each other over a socket: a length, then a pickle. Both are this program's own."""

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from albertkit.errors import AlbertKitError
from albertkit.tasks.features import Features

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Start:
    """The first message to a worker.

    Attributes:
        folders: Name to folder of each model.
        precision, device, threads, batch_tokens, exits, force: As `ServeSettings`.
    """

    folders: dict[str, str]
    precision: str
    device: str
    threads: int
    batch_tokens: int
    exits: str | None
    force: bool


@dataclass(frozen=True)
class Facts:
    """What a loaded model computes in, and what its engine fell back from."""

    precision: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Ready:
    """The worker's answer to `Start`: facts of each model by name."""

    models: dict[str, Facts]


@dataclass(frozen=True)
class Alive:
    """A question to a worker that has no work, and its answer."""


@dataclass(frozen=True, eq=False)
class Work:
    """A batch for one pipeline, or a call with arguments.

    Attributes:
        number: Of the batch; its answer has the same.
        model: Name of the model.
        kind: Of its pipeline; or caption or passes, which are calls.
        content: Sequences, or the call's arguments.
        seconds: After which a call is given up.
    """

    number: int
    model: str
    kind: str
    content: Features | dict[str, Any]
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Done:
    """Outputs of a batch, one a sequence in its order, of a call one; and the seconds they took."""

    number: int
    outputs: list[Any]
    seconds: float


@dataclass(frozen=True, eq=False)
class Failed:
    """An error in place of an answer; `number` None if the models could not be loaded. `trace`: of one that is not ours."""

    number: int | None
    error: AlbertKitError
    trace: str = ""


def packed(message: Any) -> bytes:
    """Encode a message for the socket."""
    content = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(content)) + content


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message; None where the other side has ended."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Channel:
    """The worker's end, which may wait."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")

    def send(self, message: Any) -> None:
        """Send a message, whole."""
        self._connection.sendall(packed(message))

    def receive(self) -> Any:
        """The next message; None where the front has ended."""
        head = self._stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        content = self._stream.read(length)
        return pickle.loads(content) if len(content) == length else None
