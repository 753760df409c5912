"""Verify a conversion: every tensor is read again, and outputs are compared with transformers' where it is installed."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from albertkit.conversion.sources import open_source
from albertkit.errors import MachineError
from albertkit.frame.quiet import quiet_transformers
from albertkit.model import AlbertForMultipleChoice
from albertkit.model.matching import PREFIX
from albertkit.model.pretrained import PretrainedAlbert

_ROWS, _LENGTH = 2, 16
_TOLERANCE = 1e-4  # of the largest output, or of 1: fp32 rounding of deep models; a wrong tensor changes far more

_REPORT = "please report this with the model's configuration"


def reread(folder: Path, tensors: Mapping[str, Tensor], model_class: type[PretrainedAlbert]) -> PretrainedAlbert | None:
    """Read a target again, as a source, and if it is a checkpoint folder also as its class, strictly."""
    with open_source(folder) as written:
        if written.tensors.keys() != tensors.keys():
            differing = sorted(written.tensors.keys() ^ tensors.keys())
            fact = f"written and read again, these are not on both sides: {', '.join(differing)}"
            raise MachineError("internal-error", fact, _REPORT)
        for name, tensor in tensors.items():
            _compare(name, written.tensors[name], tensor)
    if not (folder / "config.json").exists():
        return None
    model = model_class.from_pretrained(folder, strict=True)
    for name, tensor in model.state_dict().items():
        _compare(name, tensor, tensors[name] if name in tensors else tensors[PREFIX + name])
    return model


def compare_outputs(ours: PretrainedAlbert, folder: Path) -> tuple[float | None, str]:
    """Run our model and transformers' on the same random ids, if it is installed and has such a class."""
    name = type(ours).__name__
    try:
        import transformers
    except ImportError:
        return None, "transformers is not installed: tensors were compared, outputs were not"
    their_class = getattr(transformers, name, None)
    if their_class is None:
        return None, f"transformers has no {name}: tensors were compared, outputs were not"
    who = f"transformers {transformers.__version__}"
    try:
        with quiet_transformers(), warnings.catch_warnings(action="ignore"):
            theirs = their_class.from_pretrained(folder, dtype=torch.float32).eval()
    except Exception as error:  # whatever another program's loader raises; the tensors are compared already
        return None, f"{who} does not load the folder, outputs were not compared: {type(error).__name__}: {error}"
    inputs = _random_inputs(ours)
    with torch.no_grad():
        here, there = ours(**inputs), theirs(**inputs)
    pairs = [(here[name], there[name]) for name in here if isinstance(there.get(name), Tensor)]
    difference = max(float((a - b).abs().max()) for a, b in pairs)
    largest = max(1.0, *(float(b.abs().max()) for _, b in pairs))
    if not difference <= _TOLERANCE * largest:
        fact = (
            f"the same weights give outputs that differ by {difference:.2g} from those of {who} (largest {largest:.2g})"
        )
        raise MachineError("internal-error", fact, _REPORT)
    return difference, f"outputs equal to those of {who} to {difference:.1e}, on random ids"


def _compare(name: str, written: Tensor, tensor: Tensor) -> None:
    if written.shape != tensor.shape or not torch.equal(written.view(torch.int32), tensor.view(torch.int32)):
        same = written.shape == tensor.shape
        difference = f"{float((written - tensor).abs().max()):.2g}" if same else f"its shape, {list(written.shape)}"
        raise MachineError("internal-error", f"{name}, written and read again, differs by {difference}", _REPORT)


def _random_inputs(model: PretrainedAlbert) -> dict[str, Tensor]:
    config = model.config
    rows = (_ROWS, 2) if isinstance(model, AlbertForMultipleChoice) else (_ROWS,)
    shape = (*rows, min(_LENGTH, config.max_position_embeddings))
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(config.vocab_size, shape, generator=generator),
        "token_type_ids": torch.randint(config.type_vocab_size, shape, generator=generator),
    }
