"""What trainings over epochs of examples share: fine-tuning, sentence embeddings, captions. Loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from albertkit.training.settings import Settings

_ALWAYS_TOLD = ("length", "batch_size", "steps", "lr", "warmup", "dropout", "seed")


@dataclass(frozen=True, kw_only=True)
class EpochSettings(Settings):
    """Settings of a training over epochs. What is None follows from the data and the model, and is said.

    Attributes:
        epochs: Passes over the training examples.
        steps: Updates, in place of epochs.
        lr: Peak learning rate; AdamW with bias correction, linear warm-up, linear decay.
        warmup: Share of the steps with a rising rate.
        batch_size: Examples an update, over all processes.
        dropout: In the encoder. Default: the model's own, mostly 0.
        patience: Evaluations in a row without a better one that end the training; 0 for none.
        eval_every: Updates between two evaluations. Default: ten in a run.
        seed: Of the order of examples, of dropout and of fresh layers.
        precision: fp32, bf16, or auto: bf16 where the hardware multiplies it faster.
        gradient_checkpointing: Recompute activations in the backward pass: slower, far less memory.
        device: auto, cpu, cuda or cuda:N.
    """

    free: ClassVar[frozenset[str]] = frozenset({"device"})

    epochs: float | None = None
    steps: int | None = None
    lr: float | None = None
    warmup: float | None = None
    batch_size: int | None = None
    dropout: float | None = None
    patience: int = 0
    eval_every: int | None = None
    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: bool = False
    device: str = "auto"

    def problems(self, at_least: Mapping[str, float], below_one: tuple[str, ...] = ()) -> list[str]:
        """As `Settings.problems`, of the settings named here, too."""
        own = dict(steps=1, batch_size=1, patience=0, eval_every=1, seed=0)
        found = super().problems({**own, **at_least}, (*below_one, "warmup", "dropout"))
        if self.epochs is not None and not self.epochs > 0:
            found.append(f"epochs must be above 0, it is {self.epochs}")
        if self.epochs is not None and self.steps is not None:
            found.append("epochs and steps are both given; one follows from the other")
        if self.lr is not None and not 0 < self.lr < 10:
            found.append(f"lr must be above 0 and below 10, it is {self.lr}")
        return found

    @property
    def warmup_steps(self) -> int:
        """Updates with a rising rate, once `steps` is known."""
        return round((self.warmup or 0.0) * (self.steps or 0))

    def told(self) -> dict[str, Any]:
        """For a model card: those of every training, and what was set otherwise than it is by itself."""
        plain = type(self)().to_dict()
        return {
            name: value
            for name, value in self.to_dict().items()
            if name in _ALWAYS_TOLD or (name != "eval_every" and plain.get(name) != value)
        }
