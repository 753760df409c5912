"""What all public classes have in common: initialisation, numeric settings, loading and saving by name."""

from collections.abc import Collection, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.packing import PackedBatch, unpack

if TYPE_CHECKING:
    from albertkit.model.albert import AlbertModel


class PretrainedAlbert(nn.Module):
    """Base of the public classes.

    Attributes:
        config: The configuration the model was made from.
        compute_dtype: Dtype of activations and of the weights during a forward pass, or None for the parameters' own.
            With bfloat16 each weight is cast once per forward, parameters and their gradients stay as they are.
        tied: State-dict names that are another name's tensor and are not stored.
    """

    tied: ClassVar[dict[str, str]] = {}

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def encoder_model(self) -> "AlbertModel":
        """The `AlbertModel` in this model."""
        return self.albert  # type: ignore[return-value]

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """Dtype to compute in; None: the parameters' own."""
        return self.encoder_model._compute_dtype

    @compute_dtype.setter
    def compute_dtype(self, dtype: torch.dtype | None) -> None:
        self.encoder_model._compute_dtype = dtype

    @property
    def gradient_checkpointing(self) -> bool:
        """Keep only the input of each block for the backward pass and compute the rest again: a third slower."""
        return self.encoder_model.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.encoder_model.encoder.gradient_checkpointing = on

    def num_parameters(self) -> int:
        """Parameters, each shared one counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def initialize(self, ready: Iterable[nn.Parameter] = ()) -> None:
        """Start afresh, as the original: normal(0, initializer_range) cut at two deviations, zero biases, plain norms.

        Args:
            ready: Parameters to leave as they are.

        Source: google-research/albert `modeling.create_initializer`; `nn.init` draws from torch's global generator.
        """
        std = self.config.initializer_range
        done = set(ready)
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in done:
                    continue
                done.add(parameter)
                if name == "bias":
                    nn.init.zeros_(parameter)
                elif isinstance(module, nn.LayerNorm):
                    nn.init.ones_(parameter)
                else:
                    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)

    # --- files: the work is done by `albertkit.checkpoints`, the room below -------------------------------------
    # The model knows no files. These two methods belong to the class for its users' sake and reach the room by name, at
    # call time, so that importing and running a model never needs it.

    @classmethod
    def from_pretrained(cls, folder: str | Path, allow_missing: Collection[str] = (), **changes: Any) -> Self:
        """Load a checkpoint folder: `config.json` and `model.safetensors` (or `pytorch_model.bin`), strictly.

        Args:
            folder: The folder.
            allow_missing: First parts of parameter names, for example "sop_classifier", that may be missing from
                the file and are then initialised afresh. Anything else missing or unmatched is an error.
            **changes: Configuration fields to set otherwise, for example `hidden_dropout_prob=0.1`.

        Returns:
            The model in fp32 on the CPU, in evaluation mode.

        Raises:
            DataError: not-found or broken-json. ConfigError: as `AlbertConfig.from_pretrained`.
            CheckpointError: no-weights, broken-weights or weights-mismatch.
        """
        return import_module("albertkit.checkpoints").load_checkpoint(folder, cls, allow_missing, **changes)

    def save_pretrained(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write `config.json` and `model.safetensors`, each whole or not at all, as transformers reads them.

        Args:
            folder: Made if missing.
            tokenizer: An `AlbertTokenizer` to save beside the weights.
        """
        import_module("albertkit.checkpoints").save_checkpoint(folder, self, tokenizer)


def pack(
    input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None, position_ids: Tensor | None
) -> tuple[PackedBatch, Tensor]:
    """The real tokens of padded input, and the mask [B, S] that lays results out again."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return PackedBatch.from_padded(input_ids, attention_mask, token_type_ids, position_ids), mask


class Trace:
    """Hidden states and attentions collected on the way, as far as they are asked for."""

    def __init__(self, hidden_states: bool, attentions: bool) -> None:
        self.hidden_states: list[Tensor] | None = [] if hidden_states else None
        self.attentions: list[list[Tensor]] | None = [] if attentions else None

    def padded(self, mask: Tensor) -> dict[str, tuple[Tensor, ...] | None]:
        """In padded form, by their names in the outputs; zeros wherever padding is involved."""
        hidden, attentions = self.hidden_states, self.attentions
        return {
            "hidden_states": None if hidden is None else tuple(unpack(of_pass, mask) for of_pass in hidden),
            "attentions": None
            if attentions is None
            else tuple(_pad_attention(of_pass, mask) for of_pass in attentions),
        }


def _pad_attention(probabilities: list[Tensor], mask: Tensor) -> Tensor:
    rows, width = mask.shape
    padded = probabilities[0].new_zeros(rows, probabilities[0].shape[0], width, width)
    for row, of_sequence in enumerate(probabilities):
        real = mask[row].nonzero().squeeze(1)
        padded[row, :, real[:, None], real] = of_sequence
    return padded
