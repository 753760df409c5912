"""Everything that decides a training of sentence embeddings, that the command line shows without loading torch."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.printable import Notes
from albertkit.tasks.settings import learning_rate_and_reason
from albertkit.training.settings import EpochSettings
from albertkit.validation import NotNegative, Range, Share

EmbeddingLoss = Literal["cosine", "cosent", "angle", "mnrl", "softmax"]
TeacherLoss = Literal["mse", "cosine"]


@dataclass(frozen=True)
class SettingsDefaults:
    """Holds defaults of the settings."""

    # That fit, the default first; those of a distillation are `TeacherLoss`
    losses: tuple[EmbeddingLoss, ...]
    epochs: float
    batch_size: int
    lr: float
    source: str  # of the numbers
    dropout: float | None = None  # None: the model's own


# On STS-B dev, H 256 after 2 epochs: CoSENT 68.9, 65.7 and 60.8 at 3e-4, 1e-4 and 3e-5; AnglE 64.4,
# cosine 62.1.
_KOREAN = "the recipe of the Korean ALBERT sentence models"
RECIPES = {
    "scores": SettingsDefaults(("cosent", "cosine", "angle"), 10, 32, 1e-4, _KOREAN),
    "nli": SettingsDefaults(("mnrl", "softmax"), 3, 64, 3e-5, _KOREAN),
    "pairs": SettingsDefaults(("mnrl",), 3, 64, 3e-5, "as for nli"),
    "texts": SettingsDefaults(("mnrl",), 1, 64, 3e-5, "SimCSE's, table A.1", dropout=0.1),
    "distil": SettingsDefaults((), 10, 128, 5e-5, _KOREAN),
}
# Poolings with CoSENT at 1e-4: mean 65.7, max 65.1, weightedmean 64.3, cls 61.2; a plain checkpoint
# gets the mean.
_WARMUP = 0.1
_SCALED = ("mnrl", "cosent", "angle")  # losses that multiply cosines
_SIMCSE_DROPOUT = "SimCSE needs dropout; the model's own is {own:g}"


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(EpochSettings):
    """Settings of training and distillation. Values of None are derived from the data and the model, and reported.

    Attributes:
        pooling: Pooling of token states: mean, cls, max, weightedmean, lasttoken or
            mean_sqrt_len_tokens. Default: the model's, mean for a plain checkpoint.
        matryoshka: Dimensions of vector prefixes to train (Matryoshka), separated by commas.
            Include the full dimension to train it, too. Default: only the full vector.
        length: Maximum text length in tokens. Default: the model's. Longer texts are truncated and
            counted.
        prompt_name: Name of the model's prompt to prepend to every text, in training and in the
            saved model. Default: the model's default prompt.
        held_out: Share of the training examples used as dev set if there is none.
        batch_size: Examples per update, summed over all processes. In-batch losses compare all
            examples of a process.
        dropout: Dropout in the encoder. Default: the model's own, mostly 0; 0.1 for single texts
            (SimCSE), which need it.
        language: Language codes for the model card, separated by commas: ko or en,ko.
        license: Licence of the model for its card, as named by the hub: apache-2.0.
    """

    pooling: (
        Literal["mean", "cls", "max", "weightedmean", "lasttoken", "mean_sqrt_len_tokens"] | None
    ) = None
    matryoshka: str | None = None
    length: Annotated[int | None, Range(3)] = None
    prompt_name: str | None = None
    held_out: Share = 0.1
    warmup: Share = _WARMUP
    language: str | None = None
    license: str | None = None

    @property
    def languages(self) -> list[str]:
        """Return the codes in `language`."""
        return _split_commas(self.language)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the numbers in `matryoshka`."""
        return tuple(map(int, _split_commas(self.matryoshka)))

    def problems(self) -> list[str]:
        """List what is impossible."""
        problems = super().problems()
        if not all(part.isdecimal() and int(part) > 0 for part in _split_commas(self.matryoshka)):
            problems.append(
                f"matryoshka must be whole numbers above 0, such as 256,128,64, it is {self.matryoshka}"
            )
        return problems

    def _resolved(
        self, recipe: SettingsDefaults, config: AlbertConfig, length: int, num_examples: int
    ) -> tuple[Self, Notes]:
        """Return the settings with every default a number, and where each is from; `length` is what the model is used with."""
        config.check_length(self.length or 0)
        batch_size = self.batch_size or recipe.batch_size
        epochs = self.epochs or recipe.epochs
        steps = max(1, math.ceil(epochs * num_examples / batch_size))
        source = "" if self.epochs else f" ({recipe.source})"
        dropout = config.hidden_dropout_prob
        of_dropout = "the model's own"
        if recipe.dropout is not None:
            dropout, of_dropout = recipe.dropout, _SIMCSE_DROPOUT.format(own=dropout)
        longest = min(length, config.max_position_embeddings)
        settings, reasons = self.with_defaults(
            {
                "batch_size": (batch_size, f"{batch_size} ({recipe.source})"),
                "steps": (
                    steps,
                    f"{steps:,} = {epochs:g} epoch{'' if epochs == 1 else 's'} of {num_examples:,} at {batch_size}{source}",
                ),
                "lr": learning_rate_and_reason(recipe.lr, recipe.source, config.hidden_size),
                "dropout": (dropout, f"{dropout:g} ({of_dropout})"),
                "length": (longest, f"{longest} (the model's; longer texts are cut)"),
            }
        )
        if batch_size > num_examples:
            large = f"batch_size: {batch_size:,} is more than the {num_examples:,} examples: an update has them all"
            reasons.insert(self.batch_size is None, large)
        return settings, reasons


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(EncoderSettings):
    """Settings of training on scores, NLI, pairs or texts.

    Attributes:
        loss: Loss: cosent, cosine or angle for scores; mnrl (in-batch negatives, plus hard ones if
            present) or softmax for NLI; mnrl for pairs and texts. Default: the first of each.
        scale: Factor of the cosines in mnrl, cosent and angle: 1 / temperature. Default: 20, as in
            sentence-transformers.
        projection: Size of a new tanh layer after pooling; 0: none, or the model's own.
        start_weights: Share of the initial weights in the averaged model that is evaluated and
            saved (WiSE-FT, Wortsman et al. 2022). 0.3 keeps more of the model's other abilities.
    """

    loss: EmbeddingLoss | None = None
    scale: Annotated[float | None, Range(above=0)] = None
    projection: NotNegative = 0
    start_weights: Share = 0.0

    def problems(self) -> list[str]:
        """List what is impossible."""
        problems = super().problems()
        if self.start_weights and self.projection:
            problems.append(
                "start_weights keeps weights of the start, and a fresh projection has none: set one of them to 0"
            )
        return problems

    def choose_loss(self, kind: str) -> EmbeddingLoss:
        """Return the loss for a kind of data; refuse one that is for another."""
        losses = RECIPES[kind].losses
        if self.loss is None or self.loss in losses:
            loss = self.loss or losses[0]
            if self.scale is not None and loss not in _SCALED:
                raise ConfigError(
                    "bad-value",
                    f"the loss {loss} has no scale",
                    f"leave --scale out, or use --loss {' or '.join(_SCALED)}",
                )
            return loss
        raise ConfigError(
            "bad-value",
            f"the loss {self.loss} cannot learn from {kind}",
            f"use --loss {' or '.join(losses)}",
        )

    def resolve(
        self, kind: str, config: AlbertConfig, length: int, num_examples: int
    ) -> tuple["EmbedSettings", Notes]:
        """Fill in what was left open; arguments as `_resolved`.

        Returns:
            The settings with every default a number, and a line for each that says where it is
            from.
        """
        settings, reasons = self._resolved(RECIPES[kind], config, length, num_examples)
        loss = self.choose_loss(kind)
        if self.loss is None:
            reasons.insert(0, f"loss: {loss} (for {kind})")
        return dataclasses.replace(settings, loss=loss), reasons


@dataclass(frozen=True, kw_only=True)
class DistillSettings(EncoderSettings):
    """Settings of a distillation.

    Attributes:
        loss: Loss: mse (squared distance from the teacher's vectors: mean squared difference times
            dimension), or cosine (1 - cosine).
        select: Metric that selects the best model: mse or retrieval on dev texts, or spearman on
            scored pairs. Default: spearman if --sts is given, else retrieval for parallel texts,
            else mse.
        center_teacher: Subtract the mean of the teacher's vectors and normalise them again, for a
            teacher whose vectors all point in similar directions.
        teacher_pca: Reduce the teacher's vectors to the student's dimension by PCA, if dimensions
            differ. Default: add a linear layer from the student's to the teacher's dimension.
    """

    loss: TeacherLoss = "mse"
    select: Literal["mse", "retrieval", "spearman"] | None = None
    center_teacher: bool = False
    teacher_pca: bool = False

    def resolve(
        self,
        config: AlbertConfig,
        length: int,
        num_examples: int,
    ) -> tuple["DistillSettings", Notes]:
        """Fill in what was left open, as `EmbedSettings.resolve`."""
        return self._resolved(RECIPES["distil"], config, length, num_examples)


def _split_commas(text: str | None) -> list[str]:
    """Return the parts of a list with commas between."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
