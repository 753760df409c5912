"""SwinBERT's checkpoint: its arguments, and its state dict under our names.

A `model.bin` is what `torch.save` made of VideoTransformer's state dict: `swin.*` (the backbone), `fc.*`,
`trans_encoder.*` and, with the learnable mask, `learn_vid_att.weight`. Below `trans_encoder.` stand `bert.*`, `cls.predictions.*`
and `cls_img_feat.*`, or after the migration `albert.*` and `predictions.*`. A state dict of the text model alone has its names
without `trans_encoder.`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from albertkit.conversion import bert
from albertkit.conversion.names import MAPPING_IN
from albertkit.errors import CheckpointError, DataError, listed
from albertkit.files import load

ARGS = "log/args.json"  # in the folder above the checkpoints, written by SwinBERT's training
RECORDED = "albert_folder"  # in it; `model_name_or_path` becomes that of --pretrained_checkpoint there
STRUCTURE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")  # -1: the configuration's
TEXT_MODEL = "trans_encoder."
NAMES = ("model.bin", "model.safetensors", "pytorch_model.bin")
_UNUSED = "cls_img_feat."  # a 2048-wide head for masked regions, which no loss and no output looks at
BACKBONE = "swin."
_PREDICTIONS = "cls.predictions."
_DECODER, _WORDS = "predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"
_PROJECTION = "albert.img_embedding.projection."
_GATE = "albert.video_gate"
# Around the text model: SwinBERT's names and ours.
_AROUND = {
    "fc.weight": "albert.img_embedding.fc.weight",
    "fc.bias": "albert.img_embedding.fc.bias",
    "learn_vid_att.weight": _GATE,
}


@dataclass
class SwinBertState:
    """The tensors of a SwinBERT checkpoint, sorted."""

    tensors: dict[str, Tensor] = field(default_factory=dict)  # named as in `AlbertForImageCaptioning`, float32
    body: Literal["bert", "albert"] = "bert"  # as Microsoft trains it, or a migrated checkout
    tied: bool = False  # the output matrix is the word embeddings
    backbone: dict[str, Tensor] = field(default_factory=dict)  # `swin.*` under its own names
    left_out: Counter[str] = field(default_factory=Counter)  # tensors without a place here: `cls_img_feat.*`

    @property
    def gate_tokens(self) -> int:
        """Return M of the learned mask, 0 without one."""
        gate = self.tensors.get(_GATE)
        return 0 if gate is None else round(gate.numel() ** 0.5)

    @property
    def backbone_dim(self) -> int:
        """Return the width of the visual tokens that `fc` reads; 0 without `fc`."""
        weight = self.tensors.get(_AROUND["fc.weight"])
        return 0 if weight is None else weight.shape[1]


def read_arguments(file: Path) -> dict[str, Any]:
    """Read SwinBERT's arguments of the training that left a file of weights; empty if they are not kept."""
    for folder in (file.parent.parent, file.parent):
        if (folder / ARGS).is_file():
            return load(folder / ARGS, dict[str, Any], "SwinBERT's arguments")
    return {}


def find_state_file(source: Path) -> Path:
    """Return the file itself, or that of a checkpoint's folder."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise DataError("not-found", f"no SwinBERT checkpoint at `{source}`", "name its folder, or its model.bin")
    for name in NAMES:
        if (source / name).is_file():
            return source / name
    there = ", ".join(sorted(file.name for file in source.iterdir())) or "nothing"
    raise CheckpointError(
        "missing-file", f"none of {', '.join(NAMES)} in `{source}` (there: {there})", "name a folder `checkpoint-…-…`"
    )


def sort_state(state: Mapping[str, Tensor], file: Path) -> SwinBertState:
    """Give every tensor its name here."""
    shorts = {name: name.removeprefix(TEXT_MODEL) for name in state}
    bodies = {short.split(".")[0] for short in shorts.values() if ".img_embedding." in short} & {"bert", "albert"}
    if len(bodies) != 1:
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` has neither bert.img_embedding.* nor albert.img_embedding.*: it is not of SwinBERT",
            "convert an ALBERT or BERT with `albertkit convert`",
        )
    found = SwinBertState(body="bert" if bodies == {"bert"} else "albert")
    text = ("bert.", _PREDICTIONS) if found.body == "bert" else ("albert.", "predictions.")
    unknown = []
    for name, short in shorts.items():
        if short.startswith(_UNUSED):
            found.left_out[f"{_UNUSED}*"] += 1
        elif name.startswith(BACKBONE):
            found.backbone[name] = state[name]
        elif short in _AROUND:
            found.tensors[_AROUND[short]] = state[name].float()
        elif short.startswith(text):
            found.tensors[_own_name(short) if found.body == "bert" else short] = state[name].float()
        else:
            unknown.append(name)
    if unknown:
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` has {len(unknown)} names that SwinBERT has not: {listed(unknown)}",
            "take out what your changes of SwinBERT added, or give it a place in the code",
        )
    _check_projection(found, file)
    if found.body == "bert":
        width = len(found.tensors[f"{_PROJECTION}weight"])
        found.tensors |= {f"{MAPPING_IN}weight": torch.eye(width), f"{MAPPING_IN}bias": torch.zeros(width)}
    found.tensors.pop("predictions.decoder.bias", None)  # a second copy of predictions.bias
    decoder, words = found.tensors.get(_DECODER), found.tensors.get(_WORDS)
    found.tied = decoder is None or (words is not None and torch.equal(decoder, words))
    if found.tied:
        found.tensors.pop(_DECODER, None)
    return found


def _own_name(short: str) -> str:
    """Return our name of a tensor of SwinBERT's BERT."""
    if short.startswith("bert.img_embedding."):
        return short.replace("bert.img_embedding.", _PROJECTION)
    return ("" if short.startswith(_PREDICTIONS) else "albert.") + bert.albert_name(short.removeprefix("bert."))


def _check_projection(found: SwinBertState, file: Path) -> None:
    """Make sure that `fc` and `img_embedding` are whole and fit each other."""
    first, offset, second, last = (
        found.tensors.get(name)
        for name in (_AROUND["fc.weight"], _AROUND["fc.bias"], f"{_PROJECTION}weight", f"{_PROJECTION}bias")
    )
    if second is None or last is None or (first is None) != (offset is None):
        raise CheckpointError("weights-mismatch", f"`{file}` has only a part of fc and img_embedding", "copy it again")
    if first is None or offset is None:
        return
    if first.dim() != 2 or second.dim() != 2 or second.shape[1] != len(first) or first.shape[:1] != offset.shape:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise CheckpointError(
            "weights-mismatch", f"fc and img_embedding in `{file}` have shapes {shapes}", "copy it again"
        )
