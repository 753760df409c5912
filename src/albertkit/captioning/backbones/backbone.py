"""What every backbone is: a module that turns frames into visual tokens laid out on a grid of time and space."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Self

from torch import Tensor, nn


class Grid(NamedTuple):
    """How the M = frames x height x width visual tokens of a clip lie; they are stored in this order."""

    frames: int
    height: int
    width: int

    @property
    def num_tokens(self) -> int:
        """M."""
        return self.frames * self.height * self.width


class Backbone(nn.Module, ABC):
    """Base of the backbones.

    Attributes:
        name: As it is written on the command line and in a captioner's folder, for example `conv3d` or `hf:FOLDER`.
        out_dim: Width of a visual token (D).
        frame_size: Height and width in pixels that it wants by itself.
        trained_from_scratch: Whether it has no weights of its own and must be trained with the captioner.
        kept: Whether its weights are saved with the captioner also while it is frozen.
    """

    name: str
    out_dim: int
    frame_size: int
    trained_from_scratch: bool = False
    kept: bool = False

    @abstractmethod
    def grid(self, num_frames: int, size: int) -> Grid:
        """How the tokens of `num_frames` frames of `size` pixels lie."""

    @abstractmethod
    def forward(self, frames: Tensor) -> Tensor:
        """uint8 [B, T, S, S, 3], RGB, to [B, M, D]. Scaling and normalising of values is done here."""

    def train(self, mode: bool = True) -> Self:
        """Training mode, unless frozen: dropout would only be noise then."""
        super().train(mode and any(parameter.requires_grad for parameter in self.parameters()))
        return self

    def settings(self) -> dict[str, Any]:
        """What makes it again, with `name`; nothing by default."""
        return {}

    def fingerprint(self) -> str:
        """Sha256 over name, settings and weights, 64 hex digits: features made by another backbone are not the same.

        Of one that is trained from scratch without the weights: the frames that are prepared for it do not depend on them.
        """
        state = {} if self.trained_from_scratch else self.state_dict()
        return hash_weights(f"{self.name} {self.settings()}", state)


def hash_weights(told: str, state: Mapping[str, Tensor]) -> str:
    """Sha256 over a text and the names, types, shapes and numbers of tensors."""
    digest = sha256(told.encode())
    for key, tensor in sorted(state.items()):
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
