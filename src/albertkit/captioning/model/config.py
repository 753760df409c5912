"""The settings of a captioner beyond those of an ALBERT: the object `captioning` in its `config.json`."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, near_miss
from albertkit.validation import Range, Share, check_fields

VideoAttention = Literal["full", "diagonal", "log", "legacy"]
Objective = Literal["mlm", "causal"]
_Width = Annotated[int, Range(1, 100_000)]
_Count = Annotated[int, Range(0, 100_000)]


@dataclass(frozen=True, kw_only=True)
class CaptionConfig:
    """The visual side, the objective and the loss.

    Attributes:
        img_feature_dim: Width of a visual token where it is projected to the hidden size.
        backbone_dim: Width of a visual token as the backbone gives it (D), where a linear map brings it to `img_feature_dim`
            first, as SwinBERT's `fc` does; 0: there is no such map, and D is `img_feature_dim`.
        visual_norm: Whether visual tokens are normalised before they are projected to the hidden size; SwinBERT's are not.
        grid: Frames, height and width of the grid of visual tokens that the position tables are made for; None for no
            tables, as SwinBERT. With another number of frames the times are interpolated.
        video_attention: Sight of visual tokens among each other. full: all. diagonal: themselves. log: a learned gate g for every
            pair, added as log g. legacy: SwinBERT's, added as (1 - g) * -10000, which is diagonal in effect.
        num_visual_tokens: M, for the learned gate of log and legacy, which has M x M numbers.
        hard_gate: Round the gate to 0 or 1; it then gets no gradient (SwinBERT's `sparse_mask_soft2hard`).
        objective: mlm: words are predicted where [MASK] stands; causal: from the words before.
        tie_weights: The output matrix is that of the word embeddings.
        freeze_embedding: The word embeddings are not trained.
        label_smoothing: Probability given to all other tokens together.
        drop_worst_ratio: Share of the predictions with the highest loss that do not count.
        drop_worst_after: Updates after which that begins.
    """

    img_feature_dim: _Width = 512
    backbone_dim: _Count = 0
    visual_norm: bool = True
    grid: tuple[_Width, _Width, _Width] | None = None
    video_attention: VideoAttention = "full"
    num_visual_tokens: _Count = 0
    hard_gate: bool = False
    objective: Objective = "mlm"
    tie_weights: bool = True
    freeze_embedding: bool = False
    label_smoothing: Share = 0.0
    drop_worst_ratio: Share = 0.0
    drop_worst_after: _Count = 0

    def __post_init__(self) -> None:
        check_fields(self, "change these values of `captioning` in the configuration")
        if self.learned and not self.num_visual_tokens:
            fact = f"num_visual_tokens is 0, the gate of video_attention {self.video_attention!r} needs the number"
            raise ConfigError("bad-value", fact, "give the number of visual tokens of a clip")
        object.__setattr__(self, "grid", self.grid and tuple(self.grid))  # a list, where it is read from JSON

    @property
    def visual_width(self) -> int:
        """Return the width of the visual tokens that the model reads (D)."""
        return self.backbone_dim or self.img_feature_dim

    @property
    def learned(self) -> bool:
        """Return whether visual tokens see each other through a learned gate."""
        return self.video_attention in ("log", "legacy")

    @classmethod
    def of(cls, config: AlbertConfig) -> "CaptionConfig":
        """Return the settings of a model; the defaults where the configuration says nothing."""
        values = config.foreign.get("captioning") or {}
        if not isinstance(values, dict):
            raise ConfigError(
                "bad-value", f"captioning is {values!r}, it must be an object of settings", "copy config.json again"
            )
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ConfigError(
                "unknown-name", f"`{unknown[0]}` in `captioning` of the configuration", near_miss(unknown[0], known)
            )
        return cls(**values)

    def put_into(self, config: AlbertConfig) -> AlbertConfig:
        """Return a copy of a model's configuration that holds this one."""
        return config.replace(foreign={**config.foreign, "captioning": self.to_dict()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = dataclasses.asdict(self)
        return {**values, "grid": None if self.grid is None else list(self.grid)}
