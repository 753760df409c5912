"""SwinBERT's state dict: where it lies, and its tensors under our names.

A `model.bin` is what `torch.save` made of VideoTransformer's state dict: `swin.*` (the backbone), `fc.*`, `trans_encoder.bert.*`,
`trans_encoder.cls.*`, `trans_encoder.cls_img_feat.*` and, with the learnable mask, `learn_vid_att.weight`. A state dict of
`BertForImageCaptioning` alone has the same names without `trans_encoder.`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from albertkit.checkpoints import bert
from albertkit.checkpoints.names import MAPPING_IN
from albertkit.errors import CheckpointError, DataError

NAMES = ("model.bin", "model.safetensors", "pytorch_model.bin")
_UNUSED = "cls_img_feat."  # a 2048-wide head for masked regions, which no loss and no output looks at
_BACKBONE = "swin."
_PREDICTIONS = "cls.predictions."
_DECODER = f"{_PREDICTIONS}decoder.weight"
_PROJECTION = "albert.img_embedding.projection."


@dataclass
class SwinBertState:
    """The tensors of a SwinBERT checkpoint, sorted.

    Attributes:
        tensors: Under the names of `AlbertForImageCaptioning`; float32, what was computed float64.
        tied: Whether the output matrix is the word embeddings.
        folded: Whether `fc` and `img_embedding`, two linear maps with nothing between them, were multiplied into one.
        left_out: Of tensors that have no place here, what they are and how many: `swin.*`, `cls_img_feat.*`.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    tied: bool = False
    folded: bool = False
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def gate_tokens(self) -> int:
        """M of the learned mask, 0 without one."""
        gate = self.tensors.get("albert.video_gate")
        return 0 if gate is None else round(gate.numel() ** 0.5)


def find_state_file(source: Path) -> Path:
    """The file itself, or that of a checkpoint's folder.

    Raises:
        DataError: not-found. CheckpointError: no-weights.
    """
    if source.is_file():
        return source
    if not source.is_dir():
        raise DataError("not-found", f"no SwinBERT checkpoint at `{source}`", "name its folder, or its model.bin")
    for name in NAMES:
        if (source / name).is_file():
            return source / name
    there = ", ".join(sorted(file.name for file in source.iterdir())) or "nothing"
    raise CheckpointError(
        "no-weights", f"none of {', '.join(NAMES)} in `{source}` (there: {there})", "name a folder `checkpoint-…-…`"
    )


def is_swinbert(names: Mapping[str, Tensor]) -> bool:
    """Whether a state dict is SwinBERT's: BERT's layers, and visual tokens embedded beside them."""
    return any(name.removeprefix("trans_encoder.") == "bert.img_embedding.weight" for name in names)


def sort_state(state: Mapping[str, Tensor], file: Path) -> SwinBertState:
    """Every tensor under its name here.

    Args:
        state: SwinBERT's.
        file: Where it is from, for messages.

    Raises:
        CheckpointError: weights-mismatch for a state dict that is not SwinBERT's, or has names that SwinBERT has not.
    """
    if not is_swinbert(state):
        raise CheckpointError(
            "weights-mismatch", f"`{file}` has no bert.img_embedding.weight: it is not of SwinBERT",
            "convert an ALBERT or BERT with `albertkit convert`",
        )  # fmt: skip
    sorted_state, unknown = SwinBertState(), []
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        short = name.removeprefix("trans_encoder.")
        if short.startswith((_BACKBONE, _UNUSED)):
            sorted_state.left_out[short.split(".")[0] + ".*"] += 1
        elif short.startswith(("bert.", _PREDICTIONS)) or short in ("fc.weight", "fc.bias", "learn_vid_att.weight"):
            plain[short] = tensor.float()
        else:
            unknown.append(name)
    if unknown:
        raise CheckpointError(
            "weights-mismatch", f"`{file}` has {len(unknown)} names that SwinBERT has not: {', '.join(unknown[:8])}",
            "take out what your changes of SwinBERT added, or give it a place in the code",
        )  # fmt: skip
    weight, bias, sorted_state.folded = _projection(plain, file)
    sorted_state.tensors[f"{_PROJECTION}weight"], sorted_state.tensors[f"{_PROJECTION}bias"] = weight, bias
    sorted_state.tensors[f"{MAPPING_IN}weight"] = torch.eye(len(weight))
    sorted_state.tensors[f"{MAPPING_IN}bias"] = torch.zeros(len(weight))
    decoder, words = plain.get(_DECODER), plain.get("bert.embeddings.word_embeddings.weight")
    sorted_state.tied = decoder is None or (words is not None and torch.equal(decoder, words))
    for name, tensor in plain.items():
        if name == "learn_vid_att.weight":
            sorted_state.tensors["albert.video_gate"] = tensor
        elif name != _DECODER or not sorted_state.tied:
            start = "" if name.startswith(_PREDICTIONS) else "albert."
            sorted_state.tensors[start + bert.albert_name(name.removeprefix("bert."))] = tensor
    return sorted_state


def _projection(plain: dict[str, Tensor], file: Path) -> tuple[Tensor, Tensor, bool]:
    """Take out `fc` and `img_embedding`: their product W = W2 W1, b = W2 b1 + b2, in float64; and whether there was an `fc`."""
    inner = [plain.pop(f"fc.{part}", None) for part in ("weight", "bias")]
    outer = [plain.pop(f"bert.img_embedding.{part}", None) for part in ("weight", "bias")]
    (first, offset), (second, last) = inner, outer
    if second is None or last is None or (first is None) != (offset is None):
        raise CheckpointError("weights-mismatch", f"`{file}` has only a part of fc and img_embedding", "copy it again")
    if first is None or offset is None:
        return second, last, False
    if first.dim() != 2 or second.dim() != 2 or second.shape[1] != len(first) or first.shape[:1] != offset.shape:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise CheckpointError(
            "weights-mismatch", f"fc and img_embedding in `{file}` have shapes {shapes}", "copy it again"
        )
    second = second.double()
    return second @ first.double(), second @ offset.double() + last.double(), True
