"""Define what the front and its worker send each other over a socket.

A message is a length, then a pickle. Both ends are this program's own.
"""

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from albertkit.batches.features import Features
from albertkit.errors import AlbertKitError
from albertkit.serve.options import ServeOptions

# Work for a sentence encoder: the states of all tokens in place of vectors
TOKEN_STATES = "token-states"
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class StartMessage:
    """Tell a worker the folder of each model by name, and the service's options: the first message."""

    folders: dict[str, str]
    options: ServeOptions


@dataclass(frozen=True)
class LoadedModel:
    """Describe a loaded model: its precision, what its engine fell back from, and the digest of its files."""

    precision: str
    notes: tuple[str, ...]
    digest: str = ""


@dataclass(frozen=True)
class Ready:
    """Answer `Start` with the facts of each model by name."""

    models: dict[str, LoadedModel]


@dataclass(frozen=True)
class Alive:
    """Ask a worker without work whether it lives; it answers the same."""


@dataclass(frozen=True, eq=False)
class WorkMessage:
    """Hand over a batch for one pipeline, or a call (caption, passes) with arguments.

    Attributes:
        number: Number of the batch; its answer has the same.
        model: Name of the model.
        kind: Kind of its pipeline.
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
    """Return the outputs of a batch, one for each sequence in its order, or of a call; and the seconds they took."""

    number: int
    outputs: list[Any]
    seconds: float


@dataclass(frozen=True, eq=False)
class Failed:
    """Return an error in place of an answer; `number` is None if the models could not be loaded, `trace` is set for bugs."""

    number: int | None
    error: AlbertKitError
    trace: str = ""


def pack_message(message: Any) -> bytes:
    """Return a message as bytes, its length first."""
    content = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(content)) + content


class Channel:
    """Send and receive at the worker's end, which may wait."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")

    def send(self, message: Any) -> None:
        """Send a message, whole."""
        self._connection.sendall(pack_message(message))

    def receive(self) -> Any:
        """Return the next message; None once the front has ended."""
        head = self._stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        content = self._stream.read(length)
        return pickle.loads(content) if len(content) == length else None


async def receive(stream: asyncio.StreamReader) -> Any:
    """Return the next message at the front's end; None once the worker has ended."""
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        return pickle.loads(await stream.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
