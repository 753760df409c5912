"""Folders of transformers, of every year: `model.safetensors` or `pytorch_model.bin`, in one file or several.

What the years changed in ALBERT's files:

- `LayerNorm.gamma` and `.beta` became `.weight` and `.bias` (2018; PyTorch conversions kept TensorFlow's names);
- `embeddings.position_ids` and `token_type_ids` were stored (transformers 3.1 to 4.30), though they count 0, 1, 2, …;
- `predictions.decoder.weight` and `.bias` are second copies of other tensors, stored until safetensors refused to (2023);
- `AlbertForMaskedLM` and others that have no use for the pooler stored it all the same (before transformers 4.0);
- `module.` stands before all names of a model saved from inside `torch.nn.DataParallel`;
- an ALBERT cut out of a larger model may be called `bert.` (PL-BERT, Kokoro).
"""

import re
from pathlib import Path

import torch

from albertkit.checkpoints import bert, names
from albertkit.checkpoints.configurations import make_config, read_values
from albertkit.checkpoints.folder import read_tensors
from albertkit.checkpoints.found import FoundModel
from albertkit.checkpoints.matching import BUFFERS, HEADS, PREFIX
from albertkit.errors import CheckpointError
from albertkit.model.albert import TIED

_WRAPPER = re.compile(r"^(module\.)?(albert\.|bert\.)?")
_OLD_NORM = re.compile(r"LayerNorm\.(gamma|beta)$")
_TODAY = {"gamma": "LayerNorm.weight", "beta": "LayerNorm.bias"}


def read_folder(folder: Path, config_file: Path | None, lossy: bool) -> FoundModel:
    """A folder that transformers wrote, of an ALBERT or of a BERT.

    Args:
        folder: With `config.json` and weights.
        config_file: Used instead of `config.json`; for a BERT the configuration of the ALBERT to make of it.
        lossy: For a BERT: share layers.

    Raises:
        DataError: not-found or broken-json. ConfigError: bad-config, wrong-model. CheckpointError: no-weights, broken-weights,
        weights-mismatch, missing-shard, and for a BERT lossy-conversion, config-mismatch.
    """
    stored = read_tensors(folder)
    plain = {name: _OLD_NORM.sub(lambda old: _TODAY[old[1]], _WRAPPER.sub("", name)) for name in stored}
    is_bert = any(map(bert.is_layer, plain.values()))
    own = folder / "config.json"
    file = own if config_file is None or is_bert else config_file
    values = read_values(file)
    config, notes = make_config(bert.albert_values(values) if is_bert else values, file)
    source = FoundModel("BERT folder" if is_bert else "transformers folder", config, {}, folder, notes=notes)
    source.architecture = str(next(iter(values.get("architectures") or ()), ""))
    for name, tensor in stored.items():
        today = bert.albert_name(plain[name]) if is_bert else plain[name]
        if today in BUFFERS:
            source.skipped["buffer"] += 1
            continue
        full = today if today.split(".")[0] in HEADS else PREFIX + today
        if full in TIED or names.tf1_variable(full):
            source.add(full, tensor, name)
        else:
            source.unknown.append(name)
    _drop_copies(source, folder)
    if is_bert:
        bert.bridge(source, config_file, lossy)
    return source


def _drop_copies(source: FoundModel, folder: Path) -> None:
    """Leave each tied tensor under one name."""
    for copy, original in TIED.items():
        tensor = source.tensors.pop(copy, None)
        if tensor is None:
            continue
        source.skipped["tied copy"] += 1
        if not torch.equal(source.tensors.setdefault(original, tensor), tensor):
            raise CheckpointError(
                "weights-mismatch",
                f"{copy} and {original} in `{folder}` differ; in ALBERT they are one tensor",
                "save the model with tied weights (tie_word_embeddings true)",
            )
