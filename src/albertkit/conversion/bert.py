"""BERT as an ALBERT: exactly, with a group for every layer and E = H; or with layers shared, which loses most of it.

The blocks are the same arithmetic. What ALBERT has beyond BERT, the projection from E to H, is the
identity then.
"""

import re
from pathlib import Path
from typing import Any

import torch

from albertkit.config import make_config_with_notes
from albertkit.conversion.classes import SourceModel, identity_projection
from albertkit.errors import CheckpointError
from albertkit.files import read_typed

_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")
_GROUP = "encoder.albert_layer_groups.{}.albert_layers.0."
# Modules of a BERT and what they are called in an ALBERT, the longest first.
_MODULES = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "attention.LayerNorm",
    "intermediate.dense": "ffn",
    "output.dense": "ffn_output",
    "output.LayerNorm": "full_layer_layer_norm",
    "pooler.dense": "pooler",
    "cls.predictions.transform.dense": "predictions.dense",
    "cls.predictions.transform.LayerNorm": "predictions.LayerNorm",
    "cls.predictions.decoder": "predictions.decoder",
    "cls.predictions": "predictions",
    "cls.seq_relationship": "sop_classifier.classifier",
}

_SAME = """
vocab_size embedding_size hidden_size num_hidden_layers num_attention_heads intermediate_size inner_group_num hidden_act
max_position_embeddings type_vocab_size
"""  # of the configuration, in an ALBERT made of a BERT


def is_transformers_bert_layer(name: str) -> bool:
    """Return whether a parameter's name is of a layer of BERT."""
    return _LAYER.match(name) is not None


def grouped_albert_name(name: str) -> str:
    """Return a parameter's name in an ALBERT with one group a layer; itself for one that both have, or neither."""
    layer = _LAYER.match(name)
    start = _GROUP.format(layer[1]) if layer else ""
    module, _, parameter = name[layer.end() if layer else 0 :].rpartition(".")
    return f"{start}{_MODULES.get(module, module)}.{parameter}"


def albert_config_from_bert(values: dict[str, Any]) -> dict[str, Any]:
    """Return a BERT's configuration as that of the same ALBERT."""
    values = {
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        **values,
    }
    converted = {key: value for key, value in values.items() if key != "classifier_dropout"}
    if values.get("model_type") == "bert":
        del converted["model_type"]
    converted |= {
        "embedding_size": values.get("hidden_size"),
        "num_hidden_groups": values.get("num_hidden_layers"),
    }
    dropout = values.get("classifier_dropout")
    converted["classifier_dropout_prob"] = (
        values["hidden_dropout_prob"] if dropout is None else dropout
    )
    return {key: value for key, value in converted.items() if value is not None}


def complete_albert_from_bert(source: SourceModel, config_file: Path | None, lossy: bool) -> None:
    """Make the rest of an ALBERT of a BERT's tensors: the projection, and with `lossy` fewer groups of layers.

    `config_file` is an ALBERT's configuration with the number of groups wanted: 1 without it.
    Layers of a group are averaged.
    """
    exact = source.config
    target = exact.replace(num_hidden_groups=1) if lossy else exact
    if config_file is not None:
        target, _ = make_config_with_notes(
            read_typed(config_file, dict[str, Any], "model configuration"),
            config_file,
        )
        pairs = ((key, getattr(target, key), getattr(exact, key)) for key in _SAME.split())
        differing = [
            f"{key} {value} and not {bert_value}"
            for key, value, bert_value in pairs
            if value != bert_value
        ]
        if differing:
            raise CheckpointError(
                "weights-mismatch",
                f"`{config_file}` differs from the BERT in more than num_hidden_groups: {'; '.join(differing)}",
                "leave --config out, or correct these values; embeddings are not factorised, because BERT normalises them at "
                "width H and ALBERT at width E",
            )
        target = exact.replace(num_hidden_groups=target.num_hidden_groups)
    source.tensors |= identity_projection(exact.hidden_size)
    source.notes.append(
        "E = H: the projection that BERT does not have is an identity matrix, which changes no bit"
    )
    if "sop_classifier.classifier.weight" in source.tensors:
        source.notes.append(
            "sop_classifier was trained to predict the next sentence, not the order of two"
        )
    layers = exact.num_hidden_layers
    groups = target.num_hidden_groups
    if groups == layers:
        return
    if not lossy:
        raise CheckpointError(
            "doubtful",
            f"{layers} layers of BERT do not fit {groups} groups without averaging them",
            "for an ALBERT that learns from the BERT: `albertkit pretrain STORE --teacher BERT`; for a start of training, "
            f"which computes something else, add --lossy; for the exact model use num_hidden_groups {layers}",
        )
    source.config = target
    # Layers are assigned as `AlbertEncoder.group_of_layer` does it.
    prefix = "albert." + _GROUP
    of_layer = [int(layer / layers * groups) for layer in range(layers)]
    parts = [
        name.removeprefix(prefix.format(0))
        for name in source.tensors
        if name.startswith(prefix.format(0))
    ]
    for part in parts:
        stack = [source.tensors.pop(prefix.format(layer) + part) for layer in range(layers)]
        for group in range(groups):
            # In double precision, so that rounding is no part of what averaging is said to change.
            members = torch.stack(
                [stack[layer] for layer in range(layers) if of_layer[layer] == group]
            ).double()
            mean = members.mean(0)
            name = prefix.format(group) + part
            source.tensors[name] = mean.float()
            source.relative_errors[name] = float(
                (members - mean).norm() / members.norm().clamp(min=1e-30)
            )
    source.notes.append(
        f"{layers} layers averaged into {groups}: a start for training, not the model that it was"
    )
    source.notes.append(
        "to train an ALBERT that learns from the BERT: albertkit pretrain STORE --teacher BERT"
    )
