"""What a captioner has beyond an ALBERT: the object `captioning` in its `config.json`."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, near_miss

VideoAttention = Literal["full", "diagonal", "log", "legacy"]
Objective = Literal["mlm", "causal"]


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
        video_attention: What visual tokens see of each other. full: all. diagonal: themselves. log: a learned gate g for every
            pair, added as log g. legacy: SwinBERT's, added as (1 - g) * -10000, which is diagonal in effect.
        num_visual_tokens: M, of the learned gate of log and legacy, which has M x M numbers.
        hard_gate: Round the gate to 0 or 1; it then gets no gradient (SwinBERT's `sparse_mask_soft2hard`).
        objective: mlm: words are predicted where [MASK] stands; causal: from the words before.
        tie_weights: The output matrix is that of the word embeddings.
        freeze_embedding: The word embeddings are not trained.
        label_smoothing: Probability given to all other tokens together.
        drop_worst_ratio: Share of the predictions with the highest loss that do not count.
        drop_worst_after: Updates after which that begins.
    """

    img_feature_dim: int = 512
    backbone_dim: int = 0
    visual_norm: bool = True
    grid: tuple[int, int, int] | None = None
    video_attention: VideoAttention = "full"
    num_visual_tokens: int = 0
    hard_gate: bool = False
    objective: Objective = "mlm"
    tie_weights: bool = True
    freeze_embedding: bool = False
    label_smoothing: float = 0.0
    drop_worst_ratio: float = 0.0
    drop_worst_after: int = 0

    def __post_init__(self) -> None:
        found = []
        for name, known in (("video_attention", get_args(VideoAttention)), ("objective", get_args(Objective))):
            if getattr(self, name) not in known:
                found.append(f"{name} is {getattr(self, name)!r}, known: {', '.join(known)}")
        at_least = dict(img_feature_dim=1, backbone_dim=0, num_visual_tokens=int(self.learned), drop_worst_after=0)
        for name, least in at_least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 100_000:
                found.append(f"{name} is {value!r}, it must be a whole number from {least} to 100,000")
        for name in ("label_smoothing", "drop_worst_ratio"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                found.append(f"{name} is {value!r}, it must be at least 0 and below 1")
        if self.grid is not None:
            whole = isinstance(self.grid, list | tuple) and len(self.grid) == 3
            if not whole or not all(isinstance(n, int) and 1 <= n <= 100_000 for n in self.grid):
                found.append(f"grid is {self.grid!r}, it must be frames, height and width")
            else:
                object.__setattr__(self, "grid", tuple(self.grid))
        if found:
            raise ConfigError("bad-value", "; ".join(found), "change these values of `captioning` in the configuration")

    @property
    def visual_width(self) -> int:
        """Width of the visual tokens that the model reads (D)."""
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
