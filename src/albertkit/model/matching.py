"""Pair the tensors of a file with a model's parameters: every name is accounted for, or an error lists the others."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from albertkit.errors import CheckpointError, listed

# Buffers that old files of transformers hold; they are counters, not weights.
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
HEADS = ("predictions", "sop_classifier", "classifier", "qa_outputs", "start_logits", "end_logits", "answer_class")
PREFIX = "albert."  # what classes with a head put before the encoder's names


@dataclass(frozen=True)
class Matched:
    """The outcome.

    Attributes:
        tensors: A tensor for each of the model's names.
        left_out: Names in the file of heads that the model does not have.
        fresh: Names of the model that were allowed to be missing, and are.
    """

    tensors: dict[str, Tensor]
    left_out: list[str]
    fresh: list[str]


def match(
    model: nn.Module,
    tied: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    allow_missing: Collection[str],
    source: str,
) -> Matched:
    """Pair the tensors of a file with the parameters of a model."""
    wanted = model.state_dict(keep_vars=True)
    given = _with_prefix(tensors, any(name.startswith(PREFIX) for name in wanted))
    differing = []
    for alias, name in tied.items():  # either name may carry the tensor
        copy = given.pop(alias, None)
        if copy is not None and not torch.equal(given.setdefault(name, copy), copy):
            differing.append(f"{alias} and {name}")
    missing = [name for name in wanted if name not in given]
    fresh = [name for name in missing if name.split(".")[0] in allow_missing or name in allow_missing]
    unmatched = [name for name in given if name not in wanted]
    left_out = [name for name in unmatched if _is_unused_head(name, wanted)]
    shapes = [
        f"{name} {list(given[name].shape)} in the file, {list(parameter.shape)} in the model"
        for name, parameter in wanted.items()
        if name in given and given[name].shape != parameter.shape
    ]
    problems = [
        _listed("missing", set(missing) - set(fresh)),
        _listed("not in the model", set(unmatched) - set(left_out)),
        _listed("other shapes", shapes),
    ]
    if not any(problems):
        differing += _differing_copies(wanted, given)
        problems = [_listed("shared in the model but different in the file", differing)]
    if any(problems):
        raise CheckpointError(
            "weights-mismatch",
            f"the weights in `{source}` do not fit {type(model).__name__}: {'; '.join(filter(None, problems))}",
            "load them with the class and the config.json they were saved with"
            + (
                "; what lacks a head gets one by training: albertkit finetune, albertkit pretrain --continue"
                if missing
                else ""
            ),
        )
    return Matched({name: given[name] for name in wanted if name in given}, left_out, fresh)


def without_other_heads(
    wanted: Mapping[str, Tensor], tied: Mapping[str, str], tensors: Mapping[str, Tensor], other_shapes: bool
) -> tuple[Mapping[str, Tensor], list[str]]:
    """Return the tensors to load, and the parameters of heads, or of the pooler, that the file lacks as a whole.

    A head of which only a part is there is damaged, and stays an error.
    """
    given = _with_prefix(tensors, any(name.startswith(PREFIX) for name in wanted))
    heads: dict[str, list[str]] = {}
    for name in wanted:
        first = name.removeprefix(PREFIX).split(".")[0]
        if first in (*HEADS, "pooler"):
            heads.setdefault(first, []).append(name)
    aliases = {alias.split(".")[0] for alias, name in tied.items() if alias in given}
    fresh, dropped = [], set()
    for head, names in heads.items():
        here = [name for name in names if name in given]
        misfit = other_shapes and any(given[name].shape != wanted[name].shape for name in here)
        if misfit or (not here and head not in aliases):
            fresh += names
            dropped.update(here)
    bare = {name.removeprefix(PREFIX) for name in dropped}
    return {name: tensor for name, tensor in tensors.items() if name.removeprefix(PREFIX) not in bare}, fresh


def _with_prefix(tensors: Mapping[str, Tensor], prefixed: bool) -> dict[str, Tensor]:
    """Return the tensors under the names of a class with heads ("albert.encoder…") or of the encoder alone ("encoder…")."""
    named = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix(PREFIX)
        if bare not in BUFFERS:
            named[PREFIX + bare if prefixed and bare.split(".")[0] not in HEADS else bare] = tensor
    return named


def _is_unused_head(name: str, wanted: Mapping[str, Tensor]) -> bool:
    first = name.removeprefix(PREFIX).split(".")[0]
    there = {key.removeprefix(PREFIX).split(".")[0] for key in wanted}
    return first in (*HEADS, "pooler") and first not in there


def _differing_copies(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """List names that are one parameter in the model, but whose tensors in the file differ."""
    first_name: dict[int, str] = {}
    differing = []
    for name, parameter in wanted.items():
        original = first_name.setdefault(id(parameter), name)
        if name == original or name not in given or original not in given:
            continue
        if not torch.equal(given[name], given[original]):
            differing.append(f"{name} and {original}")
    return differing


def _listed(what: str, names: Iterable[str]) -> str:
    """Return the names after a word; empty if there are none."""
    return f"{what}: {listed(names)}" if (names := sorted(names)) else ""
