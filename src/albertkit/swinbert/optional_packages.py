"""Packages that SwinBERT imports first and mostly does without: apex, deepspeed, fairscale, azureml, the COCO scorer.

`albertkit migrate swinbert --portable` writes `name = optional(…)` in place of their imports.
Nothing is imported until the name is used.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from albertkit.captioning.metrics import score_captions
from albertkit.errors import ConfigError, MissingExtraError
from albertkit.printable import print_note


class Coco:
    """Captions of a file: `COCO(labels)`, `.loadRes(results)`, `.getImgIds()`."""

    def __init__(self, annotation_file: str) -> None:
        with open(annotation_file, encoding="utf-8") as stream:
            content = json.load(stream)
        self.captions: dict[Any, list[str]] = defaultdict(list)
        for record in content["annotations"] if isinstance(content, dict) else content:
            self.captions[record["image_id"]].append(record["caption"])

    def loadRes(self, results_file: str) -> "Coco":
        """Read results."""
        return Coco(results_file)

    def getImgIds(self) -> list[Any]:
        """Return the ids of the clips."""
        return list(self.captions)


class CocoEvaluation:
    """`COCOEvalCap(coco, results, df)`: `.params["image_id"]` are the clips to score, `.eval` the scores after `.evaluate()`.

    METEOR and SPICE, which are Java programs, are left out, and that is printed.
    """

    def __init__(self, coco: Coco, results: Coco, df: str = "corpus") -> None:
        self.coco = coco
        self.results = results
        self.params = {"image_id": coco.getImgIds()}
        self.eval: dict[str, float] = {}

    def evaluate(self) -> None:
        """Compute the scores."""
        keys = self.params["image_id"]
        references = {str(key): self.coco.captions[key] for key in keys}
        candidates = {str(key): self.results.captions[key][0] for key in keys}
        self.eval = dict(score_captions(references, candidates))
        print_note("METEOR and SPICE are left out: they need the scorer of SwinBERT's container")


_EVALCAP = "src.evalcap"


def available_device(name: str) -> torch.device:
    """Return the device of a name; the CPU, after a warning, where CUDA is asked for and this machine has none."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        print_note(f"warning: the arguments ask for the device {name}, this machine has none: cpu")
        return torch.device("cpu")
    return torch.device(name)


def optional(module: str, name: str = "") -> "ImportedWhenUsed":
    """Return what `import module` or `from module import name` would give, imported when it is used."""
    return ImportedWhenUsed(module, name)


class ImportedWhenUsed:
    """Stand-in for a module, or an attribute of one, which may be missing until it is used."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def _import_attribute_or_none(self) -> Any:
        try:
            module = import_module(self._module)
        except ImportError as error:
            package = self._module.split(".")[0]
            # What the package itself misses is no reason to do without it.
            if error.name is None or error.name.split(".")[0] != package:
                raise
            stand_in = _STAND_INS.get((self._module, self._name))
            if stand_in is not None:
                return stand_in
            hint = (
                "train with --mixed_precision_method apex --amp_opt_level 0 --use_checkpoint false, which needs neither "
                f"apex nor deepspeed nor fairscale; or install {package}"
            )
            if self._module.startswith(_EVALCAP):
                hint = "use SwinBERT's container, where src/evalcap is complete"
            fact = f"this part of SwinBERT needs `{self._module}`, which is not installed"
            raise MissingExtraError("not-installed", fact, hint) from None
        return getattr(module, self._name) if self._name else module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the machinery of Python, not by a user
            raise AttributeError(name)
        return getattr(self._import_attribute_or_none(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._import_attribute_or_none()(*args, **kwargs)


class _PlainFloat32:
    """`apex.amp` at level O0, "FP32 training": everything stays as it is."""

    @staticmethod
    def initialize(
        model: Any,
        optimizer: Any,
        enabled: bool = True,
        opt_level: str = "O1",
        **options: Any,
    ) -> tuple:
        if enabled and opt_level != "O0":
            raise ConfigError(
                "bad-value",
                f"amp level {opt_level} needs apex, which is not installed; without it there is O0, float32",
                "--amp_opt_level 0",
            )
        return model, optimizer

    @staticmethod
    @contextmanager
    def scale_loss(loss: Any, optimizer: Any, **options: Any) -> Iterator[Any]:
        yield loss

    @staticmethod
    def master_params(optimizer: Any) -> Iterator[Any]:
        return (parameter for group in optimizer.param_groups for parameter in group["params"])

    @staticmethod
    def state_dict() -> dict:
        return {}

    @staticmethod
    def load_state_dict(state: dict) -> None:
        """Ignore saved state: there is none."""


class _NoRun:
    """azureml's `Run`, which there is none of."""

    @classmethod
    def get_context(cls) -> "_NoRun":
        return cls()

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Discard the record."""


# Where a package is missing when it is used: `apex.amp` at level O0 is plain float32; azureml's run
# only reports scores to a service; the COCO caption scorer is ours.
_STAND_INS = {
    ("apex", "amp"): _PlainFloat32,
    ("azureml.core.run", "Run"): _NoRun,
    (f"{_EVALCAP}.coco_caption.pycocotools.coco", "COCO"): Coco,
    (f"{_EVALCAP}.coco_caption.pycocoevalcap.eval", "COCOEvalCap"): CocoEvaluation,
}
