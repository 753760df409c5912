"""Base of all dataclasses of settings: say what is impossible, be written as TOML, be compared with what a run began with."""

import dataclasses
import math
import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tomli_w
import yaml

from albertkit.errors import CheckpointError, ConfigError, suggest_name
from albertkit.files import (
    check_other_files,
    check_regular_file,
    parse_json,
    parse_yaml,
    write_file,
)
from albertkit.printable import Notes
from albertkit.validation import MAX_SEED, NotNegative, Positive, Range, Share, list_wrong_fields

_YAML = (".yaml", ".yml")
MAX_STEPS = 1_000_000_000
LearningRate = Annotated[float | None, Range(above=0, below=10)]
Updates = Annotated[int | None, Range(1, below=MAX_STEPS)]
# The paper's base model; its shortest fine-tunings, RTE and MRPC, make 800 updates, and runs of
# fewer than a quarter of that end before its rates of 1e-5 to 5e-5 move a fresh head.
PAPER_HIDDEN_SIZE, FEW_UPDATES = 768, 200
LOW_LR, HIGH_LR = 1e-4, 1e-3  # for models and runs smaller than these
_ALWAYS_ON_CARD = ("length", "batch_size", "steps", "lr", "warmup", "dropout", "seed")

# What may lie in the folder of a run before there is one: what the parts of a command wrote before
# they were killed, the runs of several seeds, and logs that a shell writes there. Any `*.txt` would
# let a run into a folder of data, such as MRPC's.
_BEFORE_A_RUN = (
    ".*",
    "start",
    "teacher",
    "seed-*",
    "retry-*",
    "*.log",
    "*.out",
    "*.err",
    "*log*.txt",
    "std*.txt",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of the settings of a run.

    Attributes:
        free: Those that may change when a run is resumed: they touch neither the weights nor their
            order.
    """

    free: ClassVar[frozenset[str]] = frozenset()

    def check(self) -> None:
        """Raise one error that lists everything impossible: values that their fields do not take, and what does not fit."""
        problems = list_wrong_fields(self)
        try:
            problems += self.problems()
        except (AttributeError, TypeError, ValueError):  # a value of another type fits nothing
            if not problems:
                raise
        if problems:
            raise ConfigError("bad-value", "; ".join(problems), "change these settings")

    def problems(self) -> list[str]:
        """List what does not fit together, of values that are each right."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, None left out."""
        values = vars(self).items()
        # TOML has no null.
        return {k: str(v) if isinstance(v, Path) else v for k, v in values if v is not None}

    def save(self, path: Path) -> None:
        """Write `run.toml`."""
        write_file(path, tomli_w.dumps(self.to_dict()))

    def continues(self, run: Path, resume: bool) -> bool:
        """Return whether a folder holds a run of these very settings, which is to be resumed; refuse any other folder."""
        recorded = run / "run.toml"
        if not recorded.exists():
            check_no_other_files(run)
            return False
        if not resume:
            hint = "add --resume to continue it, or choose another --out"
            raise CheckpointError("exists", f"`{run}` already holds a run", hint)
        self.check_same(recorded)
        return True

    def check_same(self, path: Path) -> None:
        """Compare with the settings a run was started with, and raise an error that names what differs."""
        # A run of an older version lacks the options that were added since: they had their
        # defaults.
        before, now = type(self)().to_dict() | type(self).read(path), self.to_dict()
        keys = sorted((before.keys() | now.keys()) - self.free)
        differing = [
            f"{k} was {before.get(k)}, now {now.get(k)}"
            for k in keys
            if before.get(k) != now.get(k)
        ]
        if differing:
            fact = f"`{path.parent}` was started with other settings: {'; '.join(differing)}"
            hint = f"resume it with `--config-file {path}`, or start a new run with another --out"
            raise CheckpointError("changed", fact, hint)

    @classmethod
    def read(cls, path: Path, pipe: bool = False) -> dict[str, Any]:
        """Read a flat file of settings: TOML; JSON or YAML by its suffix.

        Args:
            path: The file.
            pipe: It may be a pipe, which a user names; a run's own file may not.

        Raises:
            DataError: not-found, wrong-kind.
            ConfigError: bad-file, or unknown-name with the nearest known name.
        """
        values = _read_values(path, pipe)
        names = {f.name for f in dataclasses.fields(cls)}
        unknown = [key for key in values if key not in names]
        if unknown:
            fact = f"`{unknown[0]}` in `{path}`"
            owners = []  # trainings whose settings these may be
            for subclass in _subclasses(Settings):
                if values.keys() <= {field.name for field in dataclasses.fields(subclass)}:
                    owners.append(subclass)
            if owners:
                owner = max(owners, key=lambda subclass: len(dataclasses.fields(subclass)))
                fact += f": the file holds {owner.__name__}, `{cls.__name__}` are expected"
            raise ConfigError("unknown-name", fact, suggest_name(unknown[0], names))
        return values


def _subclasses(kind: type[Settings]) -> list[type[Settings]]:
    return [
        descendant
        for subclass in kind.__subclasses__()
        for descendant in (subclass, *_subclasses(subclass))
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeOptions(Settings):
    """Options of computing a model while it is trained.

    Attributes:
        precision: Training precision: fp32, bf16, or auto: bf16 where the hardware computes it
            faster.
        gradient_checkpointing: Recompute activations in the backward pass: slower, much less
            memory.
        device: Device: auto, cpu, cuda or cuda:N.
    """

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: bool = False
    device: str = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopOptions(Settings):
    """Options of the training loop.

    Attributes:
        steps: Number of updates.
        minutes: Train for this many minutes, including evaluations and checkpoints, in place of
            `steps`. The number of updates is re-estimated during the run, and the learning rate
            schedule follows.
        lr: Peak learning rate.
        optimizer: Optimizer: lamb or adamw, with weight decay 0.01.
        bias_correction: Correct the bias of the optimizer's moments, as Model Garden's LAMB and
            AdamW do; Google's first code does not.
        clip_norm: Maximum gradient norm; larger gradients are scaled down. 0: no clipping, as in
            Model Garden's LAMB.
        warmup_steps: Number of updates of the linear warm-up.
        schedule: Learning rate schedule: polynomial, cosine or constant.
        poly_power: Power of the polynomial schedule; 1 is linear decay.
        end_lr: Final learning rate of the polynomial and cosine schedules.
        ema_decay: Decay of an exponential moving average of the weights, which is evaluated and
            exported; 0: none.
        seed: Random seed.
        log_every: Updates between log lines.
        eval_every: Updates between evaluations; 0: only at the end.
        save_every: Updates between checkpoints; 0: only at the end. Default: same as eval_every.
        keep: Number of checkpoints to keep.
    """

    steps: Updates = None
    minutes: Annotated[float | None, Range(above=0)] = None
    lr: LearningRate = None
    optimizer: Literal["lamb", "adamw"] = "lamb"
    bias_correction: bool = False
    clip_norm: Annotated[float, Range(0)] = 1.0
    warmup_steps: NotNegative | None = None
    schedule: Literal["polynomial", "cosine", "constant"] = "polynomial"
    poly_power: Annotated[float, Range(above=0)] = 1.0
    end_lr: float = 0.0
    ema_decay: Share = 0.0
    seed: int = 0
    log_every: Positive = 10
    eval_every: NotNegative | None = None
    save_every: NotNegative | None = None
    keep: Positive = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochSettings(ComputeOptions):
    """Settings of training for epochs. Values of None are derived from the data and the model, and reported.

    Attributes:
        epochs: Number of epochs.
        steps: Number of updates, in place of epochs.
        lr: Peak learning rate. AdamW with bias correction, linear warm-up, linear decay.
        warmup: Share of the updates used for linear warm-up.
        batch_size: Examples per update, summed over all processes.
        dropout: Dropout in the encoder. Default: the model's own, mostly 0.
        patience: Stop after this many evaluations in a row without improvement; 0: never.
        eval_every: Updates between evaluations. Default: ten evaluations per run.
        seed: Random seed for the order of examples, dropout and new layers.
        seeds: Number of runs, with seeds from `seed` on. Reports the median and spread, and keeps
            the best run.
        retries: Number of restarts if a run learns nothing or its loss becomes NaN, each with a
            third of the learning rate.
    """

    free: ClassVar[frozenset[str]] = frozenset({"device"})

    epochs: Annotated[float | None, Range(above=0, below=MAX_STEPS)] = None
    steps: Updates = None
    lr: LearningRate = None
    warmup: Share | None = None
    batch_size: Positive | None = None
    dropout: Share | None = None
    patience: NotNegative = 0
    eval_every: Positive | None = None
    seed: int = 0
    seeds: Positive = 1
    retries: NotNegative = 0

    def problems(self) -> list[str]:
        """List what is impossible, of the settings named here, too."""
        problems = super().problems()
        if self.seed + self.seeds > MAX_SEED:
            problems.append(f"seed + seeds must be below 2^63, seed is {self.seed}")
        if self.epochs is not None and self.steps is not None:
            problems.append("epochs and steps are both given; one follows from the other")
        return problems

    @property
    def warmup_steps(self) -> int:
        """Updates with a rising rate, once `steps` is known."""
        return round((self.warmup or 0.0) * (self.steps or 0))

    def remedy(self, hidden_size: int) -> str:
        """Return what to try where nothing was learned, once `steps` and `lr` are known."""
        lr, steps = self.lr or 0.0, self.steps or 0
        is_small = hidden_size < PAPER_HIDDEN_SIZE or steps < FEW_UPDATES
        if is_small and lr < HIGH_LR:
            lowest = max(lr, LOW_LR)
            return f"try a higher --lr ({lowest:g} to {HIGH_LR:g}) and more --epochs, then another --seed"
        retries = "" if self.retries else "--retries 2, "
        return f"try {retries}a lower --lr, a longer --warmup or another --seed"

    def with_defaults(self, defaults: Mapping[str, tuple[Any, str]]) -> tuple[Self, Notes]:
        """Return the settings with defaults, a value and its reason each, for what is None; and a line for each of these.

        `eval_every` becomes a tenth of the steps.
        """
        missing = {
            name: default for name, default in defaults.items() if getattr(self, name) is None
        }
        changes = {name: value for name, (value, _) in missing.items()}
        if self.eval_every is None:
            changes["eval_every"] = max(1, math.ceil((self.steps or changes["steps"]) / 10))
        reasons = [f"{name}: {reason}" for name, (_, reason) in missing.items()]
        return dataclasses.replace(self, **changes, epochs=None), reasons

    def settings_for_card(self) -> dict[str, Any]:
        """Return the settings for a model card: the usual ones, and every one that is not as it is by default."""
        plain = type(self)().to_dict()
        return {
            name: value
            for name, value in self.to_dict().items()
            if name in _ALWAYS_ON_CARD or (name != "eval_every" and plain.get(name) != value)
        }


def check_no_other_files(run: Path) -> None:
    """Refuse to begin a run in a folder that holds something else: its files could be written over."""
    check_other_files(run, _BEFORE_A_RUN, "a run")


_LARGEST_FILE = 1_000_000  # bytes; the longest run.toml has under 2,000


def _read_values(path: Path, pipe: bool) -> dict[str, Any]:
    """Read the keys and values of a settings file."""
    if pipe and (path.is_fifo() or path.is_char_device()):  # `--config-file <(…)`
        with open(path, "rb") as stream:
            # A pipe may never end; the last byte tells that there is more.
            content = stream.read(_LARGEST_FILE + 1)
    else:
        content = check_regular_file(path, "settings file").read_bytes()
    suffix = path.suffix.lower()
    try:
        if len(content) > _LARGEST_FILE:
            raise ValueError(f"it is longer than {_LARGEST_FILE:,} bytes")
        text = content.decode("utf-8")
        # A pipe has no ending.
        if suffix == ".json" or (suffix not in _YAML and text.lstrip().startswith("{")):
            values = parse_json(text)
        elif suffix in _YAML:
            values = parse_yaml(text)
        else:
            values = tomllib.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it holds no keys with values")
        for key, value in values.items():
            items = value if isinstance(value, list) else [value]
            if not isinstance(key, str) or not all(
                isinstance(item, str | int | float) for item in items
            ):
                raise ValueError(
                    f"`{reprlib.repr(key)}` is neither a number, a text, true or false, nor a list of these"
                )
        return values
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            "bad-file", f"`{path}`: {reason}", "see the files in recipes/ for the form"
        ) from None
