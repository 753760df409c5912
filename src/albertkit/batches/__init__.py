"""Data that flow: features of examples, packed batches, streams of updates."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Self


class MovableBatch:
    """Base of the dataclasses of tensors, of tensors by name and of other batches, that move to a device as one."""

    def to(self, device: Any, non_blocking: bool = False) -> Self:
        """Return the batch on another device."""
        return self._map_tensors(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory, from which copies to a GPU do not block."""
        return self._map_tensors(lambda part: part.pin_memory())

    def _map_tensors(self, change_tensor: Callable[[Any], Any]) -> Self:
        changed = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, dict):
                changed[field.name] = {name: change_tensor(part) for name, part in value.items()}
            elif hasattr(value, "pin_memory"):
                changed[field.name] = change_tensor(value)
        return replace(self, **changed)  # type: ignore[type-var]
