"""Batches on the device: on a GPU copied one update ahead, while the present one is computed.

A copy from page-locked memory on a CUDA stream of its own needs neither the host nor the stream that computes. While the host
would only wait for the gradient's norm, it prepares and sends the next update's batches instead.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import torch


class Batch(Protocol):
    """A micro-batch: a `PackedBatch`, or one with labels beside it."""

    @property
    def num_tokens(self) -> int:
        """Real tokens; 0 of an empty one."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """Return the batch on a device."""

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)
Given = TypeVar("Given", bound=Batch, covariant=True)


class Stream(Protocol[Given]):
    """Endless batches whose position is a few integers.

    Each process gets its own micro-batches of an update, at least one; at the end of an epoch that may be an empty one.
    """

    def __next__(self) -> Sequence[Given]: ...

    def state(self) -> dict[str, Any]:
        """Return where the next batches start: a few plain values, saved with every checkpoint."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go where `state` was taken."""


class Copies(Protocol):
    """Copying of batches to a device while it computes."""

    def send(self, batches: Sequence[AnyBatch]) -> tuple[list[AnyBatch], Callable[[], None]]:
        """Begin to copy; what is computed after the function returned was called finds the copies complete."""

    def reuse(self) -> None:
        """Note that nothing after the work asked of the device so far reads copies that were let go."""


class Feed(Generic[AnyBatch]):
    """A stream's batches on the device where they are computed, copied ahead to a CUDA device; itself a stream of the same."""

    def __init__(self, stream: Stream[AnyBatch], device: torch.device, copies: Copies | None = None) -> None:
        self._stream, self._device = stream, device
        self._copies = copies or (CudaCopies(device) if device.type == "cuda" else None)
        self._ahead: tuple[list[AnyBatch], Callable[[], None]] | None = None
        self._before: dict[str, Any] = {}  # the stream's state before the batches that are ahead
        self._given: list[AnyBatch] = []  # held until `reuse` is called

    def __next__(self) -> list[AnyBatch]:
        """Return the next update's micro-batches, on the device."""
        if self._copies is None:
            return [batch.to(self._device) for batch in next(self._stream)]
        self.send_next()
        assert self._ahead is not None
        (self._given, arrive), self._ahead = self._ahead, None
        self._copies.reuse()
        arrive()
        return self._given

    def send_next(self) -> None:
        """Begin to copy the next update's batches, if they are copied ahead and that has not begun."""
        if self._copies is not None and self._ahead is None:
            self._before = self._stream.state()
            self._ahead = self._copies.send(next(self._stream))

    def state(self) -> dict[str, Any]:
        """Return where the batches that `next` gives start."""
        return self._stream.state() if self._ahead is None else self._before

    def restore(self, state: dict[str, Any]) -> None:
        """Go where `state` was taken."""
        self._ahead = None
        self._stream.restore(state)


class CudaCopies:
    """Copies from page-locked memory on a CUDA stream of their own.

    The copies' memory belongs to that stream: torch may give it to the next copies as soon as a batch is let go, which the
    device may still be reading. So every copy waits for what was asked of the device when the last batches were let go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._read = torch.cuda.Event()
        self.reuse()

    def send(self, batches: Sequence[AnyBatch]) -> tuple[list[AnyBatch], Callable[[], None]]:
        self._stream.wait_event(self._read)
        with torch.cuda.stream(self._stream):
            sent = [batch.pin_memory().to(self._device, non_blocking=True) for batch in batches]
            arrived = torch.cuda.Event()
            arrived.record()
        return sent, lambda: torch.cuda.current_stream(self._device).wait_event(arrived)

    def reuse(self) -> None:
        self._read.record(torch.cuda.current_stream(self._device))
