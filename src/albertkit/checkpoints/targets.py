"""What a conversion writes: a checkpoint folder, or google-research/albert's files; and the tokenizer beside it."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albertkit.checkpoints import model_garden, names
from albertkit.checkpoints.configurations import google_values
from albertkit.checkpoints.folder import WEIGHTS, write_tensors
from albertkit.checkpoints.found import FoundModel
from albertkit.checkpoints.matching import PREFIX
from albertkit.checkpoints.tensorflow_source import NPZ
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertKitError, CheckpointError
from albertkit.files import atomic_file, write_json
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tensorflow_files.bundle import write_bundle
from albertkit.tensorflow_files.object_graph import OBJECT_GRAPH, write_object_graph
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.loading import TOKENIZER_FILES

TF1_PREFIX = "model.ckpt-best"  # as in Google's archives
_GOOGLE_EPSILON = 1e-12  # written into its code


def check_expressible(tensors: Mapping[str, Tensor], config: AlbertConfig, to: str, lossy: bool) -> None:
    """Make sure that whoever reads the target computes what the source did.

    Raises:
        CheckpointError: not-expressible.
    """
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    differing = [
        layer for layer in range(layers) if int(layer / (layers / groups)) != int(layer / layers * groups)
    ]  # fmt: skip
    if differing:
        raise CheckpointError(
            "not-expressible",
            f"with {layers} layers in {groups} groups, transformers and google-research/albert round differently and use "
            f"another group in layer {differing[0]}",
        )
    if to == "transformers":
        return
    if to == "tf2":
        model_garden.check_one_block(config)
    reasons = []
    if config.layer_norm_eps != _GOOGLE_EPSILON:
        reasons.append(f"layer_norm_eps {config.layer_norm_eps} (always {_GOOGLE_EPSILON})")
    if config.hidden_act == "gelu":
        reasons.append("hidden_act gelu, the erf (always the tanh approximation, gelu_new)")
    if reasons and not lossy:
        raise CheckpointError(
            "not-expressible",
            f"google-research/albert cannot compute what this model does: {'; '.join(reasons)}",
            "to write it all the same, with outputs that differ, add --lossy",
        )
    if config.embedding_size == config.hidden_size and not _is_identity(tensors):
        raise CheckpointError(
            "not-expressible",
            "google-research/albert has no projection from E to H when they are equal, and this model has one that changes "
            "the embeddings",
        )


def drop_unknown_heads(found: FoundModel, to: str, lossy: bool) -> None:
    """Leave out the heads that the target has no place for, where that was asked for, and note them.

    Raises:
        CheckpointError: not-expressible.
    """
    unknown = model_garden.unknown_heads(found.tensors) if to == "tf2" else []
    if not unknown:
        return
    heads = ", ".join(sorted({name.split(".")[0] for name in unknown}))
    if not lossy:
        raise CheckpointError(
            "not-expressible", f"checkpoints of the Model Garden have no place for {heads}: they hold an encoder, or an encoder "
            "and a masked-LM head",
            "to leave them out, add --lossy; --to tf1 keeps them",
        )  # fmt: skip
    for name in unknown:
        del found.tensors[name]
    found.notes.append(f"left out, the Model Garden's checkpoints have no place for them: {heads}")


def write_transformers(
    folder: Path, tensors: Mapping[str, Tensor], config: AlbertConfig, model_class: type[PretrainedAlbert]
) -> None:
    """`config.json` and `model.safetensors`; every tensor is kept, also those that the class has no use for."""
    bare = all(name.startswith(PREFIX) for name in tensors)  # the encoder alone has no prefix
    write_tensors(folder / WEIGHTS, {name.removeprefix(PREFIX) if bare else name: t for name, t in tensors.items()})
    foreign = {key: value for key, value in config.foreign.items() if key != "torch_dtype"}
    foreign |= {"architectures": [model_class.__name__], "dtype": "float32"}
    config.replace(foreign=foreign).save_pretrained(folder)


def write_tf1(
    folder: Path, tensors: Mapping[str, Tensor], config: AlbertConfig, model_class: type[PretrainedAlbert]
) -> None:
    """`model.ckpt-best` and `albert_config.json`."""
    write_bundle(folder / TF1_PREFIX, _variables(tensors, config))
    write_json(folder / "albert_config.json", google_values(config))


def write_npz(
    folder: Path, tensors: Mapping[str, Tensor], config: AlbertConfig, model_class: type[PretrainedAlbert]
) -> None:
    """`model.npz`, the same names, and `albert_config.json`."""
    with atomic_file(folder / NPZ) as stream:
        np.savez(stream, allow_pickle=False, **_variables(tensors, config))
    write_json(folder / "albert_config.json", google_values(config))


def write_tf2(
    folder: Path, tensors: Mapping[str, Tensor], config: AlbertConfig, model_class: type[PretrainedAlbert]
) -> None:
    """`bert_model.ckpt` as the Model Garden's converter writes it, and `albert_config.json`."""
    found, values = model_garden.variables(tensors, config)
    graph = np.array(write_object_graph(found), object)
    write_bundle(folder / model_garden.PREFIX, {**values, OBJECT_GRAPH: graph})
    write_json(folder / "albert_config.json", google_values(config))


Writer = Callable[[Path, Mapping[str, Tensor], AlbertConfig, type[PretrainedAlbert]], None]
WRITERS: dict[str, Writer] = {"transformers": write_transformers, "tf1": write_tf1, "tf2": write_tf2, "npz": write_npz}


def carry_tokenizer(found: FoundModel, target: Path) -> AlbertConfig:
    """Save the tokenizer that lies beside the source beside the target, or copy its files if it cannot be loaded.

    Google's configurations, and BERT's in part, do not know the ids of `<pad>`, `[CLS]` and `[SEP]`: the tokenizer does.

    Args:
        found: What was done is added to its notes.
        target: Folder to write into.

    Returns:
        The model's configuration, with those ids.
    """
    files = sorted({file for pattern in TOKENIZER_FILES for file in found.folder.glob(pattern)})
    if not files:
        found.notes.append("no tokenizer beside the source: put its spiece.model or vocab.txt into the target")
        return found.config
    try:
        tokenizer = AlbertTokenizer.from_pretrained(found.folder)
        tokenizer.save_pretrained(target)
    except AlbertKitError as error:
        for file in files:
            shutil.copyfile(file, target / file.name)
        found.notes.append(f"tokenizer copied as it is, for it does not load: {error.message}")
        return found.config
    doubt = (
        "" if tokenizer.vocab_size == found.config.vocab_size else f", but the model has {found.config.vocab_size:,}"
    )
    found.notes.append(f"tokenizer: {tokenizer.vocab_size:,} pieces{doubt}")
    if found.kind == "transformers folder":
        return found.config
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return found.config.replace(**ids)


def _variables(tensors: Mapping[str, Tensor], config: AlbertConfig) -> dict[str, NDArray[np.float32]]:
    """The tensors under TensorFlow 1's names, in its layout."""
    variables = {}
    for name, tensor in tensors.items():
        if name.startswith(names.MAPPING_IN) and config.embedding_size == config.hidden_size:
            continue
        found = names.tf1_variable(name)
        assert found is not None  # a source's names are the table's
        variables[found[0]] = names.to_tf1(tensor.numpy(), found[1])
    return variables


def _is_identity(tensors: Mapping[str, Tensor]) -> bool:
    weight, bias = tensors[f"{names.MAPPING_IN}weight"], tensors[f"{names.MAPPING_IN}bias"]
    return torch.equal(weight, torch.eye(len(weight))) and not bias.any()
