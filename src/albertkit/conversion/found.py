"""A model as it was found somewhere: its tensors under transformers' names, its configuration, what else there was."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError


@dataclass
class FoundModel:
    """A model to convert.

    Attributes:
        kind: What it was: "TensorFlow 1 checkpoint", "TensorFlow 2 checkpoint", "SavedModel", "transformers folder", …
        config: Its configuration.
        tensors: fp32 on the CPU, under transformers' names, with "albert." before the encoder's, whatever the class.
        architecture: The class that its configuration names, if it names one.
        folder: Where its tokenizer's files may lie.
        unknown: Names in the source that no parameter of ALBERT has.
        skipped: Kinds of variables that are no weights, and how many of each there are.
        relative_errors: Of tensors that were not taken over exactly: name to |change| / |original|.
        notes: What else there is to say.
    """

    kind: str
    config: AlbertConfig
    tensors: dict[str, Tensor]
    folder: Path
    architecture: str = ""
    unknown: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    relative_errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, tensor: Tensor, origin: str) -> None:
        """Take over a tensor under transformers' name, as fp32."""
        if name in self.tensors:
            raise CheckpointError(
                "weights-mismatch", f"`{origin}` is a second tensor for {name}", "leave out one of the two"
            )
        if not tensor.is_floating_point():
            fact = f"`{origin}` is of the type {str(tensor.dtype).removeprefix('torch.')}"
            raise CheckpointError("unsupported", fact, "convert the model before it is quantised")
        if tensor.dtype == torch.float64:
            self.notes.append(f"{name} was float64 and is rounded to float32")
        self.tensors[name] = tensor.to(torch.float32).contiguous()
