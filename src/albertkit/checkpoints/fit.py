"""Do the weights found and the model that they are for fit together, name by name and shape by shape?"""

from collections.abc import Collection

import torch

from albertkit.checkpoints import names
from albertkit.checkpoints.found import FoundModel
from albertkit.checkpoints.matching import PREFIX, match
from albertkit.errors import CheckpointError
from albertkit.model.pretrained import PretrainedAlbert


def fit(
    found: FoundModel,
    model_class: type[PretrainedAlbert],
    allow_missing: Collection[str],
    path: str,
) -> list[str]:
    """Account for every name, on both sides, and for every shape; add parameters that may be missing to the source's.

    Args:
        found: Its shapes are checked against its configuration. Its tensors get the parameters initialised afresh, with the
            seed 0.
        model_class: The class that the weights are for.
        allow_missing: Names or first parts of names, of parameters to initialise or of variables to leave out.
        path: The source, for messages.

    Returns:
        The parameters initialised afresh.

    Raises:
        CheckpointError: weights-mismatch.
    """
    with torch.device("meta"):
        model = model_class(found.config)
    base = not any(name.startswith(PREFIX) for name in model.state_dict())
    wanted = {name if not base else PREFIX + name for name in model.state_dict()}
    absent = sorted(wanted - found.tensors.keys())
    missing = [name for name in absent if not _allowed(name, allow_missing)]
    unknown = [name for name in found.unknown if not _allowed(name, allow_missing)]
    if unknown or missing:
        raise CheckpointError(
            "weights-mismatch",
            f"`{path}` does not fit {model_class.__name__}"
            + _listed("names that ALBERT does not have", unknown)
            + _listed("missing", [_both_names(name) for name in missing]),
            "if that is right, name what may be left out or initialised afresh with --allow-missing NAME; "
            "if it is another model, say which with --head",
        )
    match(model, found.tensors, [name.removeprefix(PREFIX) if base else name for name in absent], path)  # the shapes
    if absent:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            fresh = model_class(found.config).state_dict()
        found.tensors.update((name, fresh[name.removeprefix(PREFIX) if base else name].clone()) for name in absent)
    return absent


def _allowed(name: str, allow_missing: Collection[str]) -> bool:
    """Whether a name, with or without "albert.", is one of those given or begins with one of them."""
    parts = [name, name.removeprefix(PREFIX)]
    return any(
        part == start or part.startswith((f"{start}.", f"{start}/")) for part in parts for start in allow_missing
    )


def _both_names(name: str) -> str:
    found = names.tf1_variable(name)
    return f"{name} ({found[0]})" if found else name


def _listed(what: str, listed: list[str]) -> str:
    rest = f" and {len(listed) - 20} more" if len(listed) > 20 else ""
    return f"; {what}: {', '.join(listed[:20])}{rest}" if listed else ""
