"""Write what a conversion gives: a checkpoint folder or google-research/albert's files, and the tokenizer."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albertkit.config import AlbertConfig
from albertkit.conversion import model_garden, names
from albertkit.conversion.found import FoundModel
from albertkit.conversion.tensorflow.bundle import write_bundle
from albertkit.conversion.tensorflow.object_graph import OBJECT_GRAPH, write_object_graph
from albertkit.conversion.tensorflow_source import NPZ
from albertkit.errors import AlbertKitError, CheckpointError
from albertkit.files import atomic_file, write_json
from albertkit.model.folder import WEIGHTS, write_tensors
from albertkit.model.matching import PREFIX
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.folder_files import TOKENIZER_FILES

TF1_PREFIX = "model.ckpt-best"  # as in Google's archives
_GOOGLE_EPSILON = 1e-12  # written into its code
# The keys that google-research/albert's AlbertConfig knows, in the order of its released files, then those it ignores.
_GOOGLE_KEYS = """
attention_probs_dropout_prob hidden_act hidden_dropout_prob embedding_size hidden_size initializer_range
intermediate_size max_position_embeddings num_attention_heads num_hidden_layers num_hidden_groups net_structure_type
layers_to_keep gap_size num_memory_blocks inner_group_num down_scale_factor type_vocab_size vocab_size
""".split()


def check_expressible(tensors: Mapping[str, Tensor], config: AlbertConfig, to: str, lossy: bool) -> None:
    """Make sure that whoever reads the target computes what the source did."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    differing = [n for n in range(layers) if int(n / (layers / groups)) != int(n / layers * groups)]
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
        fact = f"google-research/albert cannot compute what this model does: {'; '.join(reasons)}"
        raise CheckpointError(
            "not-expressible", fact, "to write it all the same, with outputs that differ, add --lossy"
        )
    if config.embedding_size == config.hidden_size and not _is_identity(tensors):
        raise CheckpointError(
            "not-expressible",
            "google-research/albert has no projection from E to H when they are equal, and this model has one that changes "
            "the embeddings",
        )


def drop_unknown_heads(found: FoundModel, to: str, lossy: bool) -> None:
    """Leave out the heads that the target has no place for, where that was asked for, and note them."""
    unknown = model_garden.unknown_heads(found.tensors) if to == "tf2" else []
    if not unknown:
        return
    heads = ", ".join(sorted({name.split(".")[0] for name in unknown}))
    if not lossy:
        fact = (
            f"checkpoints of the Model Garden have no place for {heads}: they hold an encoder, or an encoder "
            "and a masked-LM head"
        )
        raise CheckpointError("not-expressible", fact, "to leave them out, add --lossy; --to tf1 keeps them")
    for name in unknown:
        del found.tensors[name]
    found.notes.append(f"left out, the Model Garden's checkpoints have no place for them: {heads}")


def write_transformers(
    folder: Path, tensors: Mapping[str, Tensor], config: AlbertConfig, model_class: type[PretrainedAlbert]
) -> None:
    """Write `config.json` and `model.safetensors`; every tensor is kept, also those that the class has no use for."""
    bare = all(name.startswith(PREFIX) for name in tensors)  # the encoder alone has no prefix
    write_tensors(folder / WEIGHTS, {name.removeprefix(PREFIX) if bare else name: t for name, t in tensors.items()})
    foreign = {key: value for key, value in config.foreign.items() if key != "torch_dtype"}
    foreign |= {"architectures": [model_class.__name__], "dtype": "float32"}
    config.replace(foreign=foreign).save_pretrained(folder)


def write(
    to: str, folder: Path, tensors: Mapping[str, Tensor], config: AlbertConfig, model_class: type[PretrainedAlbert]
) -> None:
    """Write a model in the format `to` of `ConvertOptions`; Google's have an `albert_config.json`."""
    if to == "transformers":
        write_transformers(folder, tensors, config, model_class)
        return
    if to == "tf1":
        write_bundle(folder / TF1_PREFIX, _variables(tensors, config))
    elif to == "npz":
        with atomic_file(folder / NPZ) as stream:
            np.savez(stream, allow_pickle=False, **_variables(tensors, config))
    else:  # as the Model Garden's converter writes it
        found, values = model_garden.variables(tensors, config)
        graph = np.array(write_object_graph(found), object)
        write_bundle(folder / model_garden.PREFIX, {**values, OBJECT_GRAPH: graph})
    write_json(folder / "albert_config.json", _google_values(config))


def carry_tokenizer(found: FoundModel, target: Path) -> AlbertConfig:
    """Save the tokenizer that lies beside the source beside the target, or copy its files if it cannot be loaded.

    Google's configurations, and BERT's in part, do not know the ids of `<pad>`, `[CLS]` and `[SEP]`: the tokenizer does.
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
    found.notes.append(f"tokenizer: {tokenizer.vocab_size:,} tokens{doubt}")
    if found.kind == "transformers folder":
        return found.config
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return found.config.replace(**ids)


def _variables(tensors: Mapping[str, Tensor], config: AlbertConfig) -> dict[str, NDArray[np.float32]]:
    """Return the tensors under TensorFlow 1's names, in its layout."""
    variables = {}
    for name, tensor in tensors.items():
        if name.startswith(names.MAPPING_IN) and config.embedding_size == config.hidden_size:
            continue
        found = names.tf1_variable(name)
        assert found is not None  # a source's names are the table's
        variables[found[0]] = names.to_tf1(tensor.numpy(), found[1])
    return variables


def _google_values(config: AlbertConfig) -> dict[str, Any]:
    """Return the content of `albert_config.json`, as google-research/albert reads it."""
    values = {key: value for key, value in config.to_dict().items() if key in _GOOGLE_KEYS}
    if config.hidden_act.startswith("gelu"):
        values["hidden_act"] = "gelu"
    return {key: values[key] for key in _GOOGLE_KEYS if key in values}


def _is_identity(tensors: Mapping[str, Tensor]) -> bool:
    weight, bias = tensors[f"{names.MAPPING_IN}weight"], tensors[f"{names.MAPPING_IN}bias"]
    return torch.equal(weight, torch.eye(len(weight))) and not bias.any()
