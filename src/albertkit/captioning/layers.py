"""ALBERT's layers over a context that is computed once and a caption that reads it.

B clips, R = B * K rows of captions (K beams a clip), C tokens of context, S places read at once, P
places read before, A heads of width D, H = A * D.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.settings import Objective, VideoAttention
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, suggest_name
from albertkit.model.layers import (
    AlbertEncoder,
    AlbertLayer,
    BlockWeights,
    layer_norm_function,
    linear_function,
)
from albertkit.validation import Range, Share, check_fields

_Width = Annotated[int, Range(1, 100_000)]
_Count = Annotated[int, Range(0, 100_000)]


@dataclass(frozen=True, kw_only=True)
class CaptionConfig:
    """The visual side, the objective and the loss.

    Attributes:
        img_feature_dim: Width of a visual token where it is projected to the hidden size.
        backbone_dim: Width of a visual token as the backbone gives it (D), where a linear map
            brings it to `img_feature_dim` first, as SwinBERT's `fc` does; 0: there is no such map,
            and D is `img_feature_dim`.
        visual_norm: Whether visual tokens are normalised before they are projected to the hidden
            size; SwinBERT's are not.
        grid: Frames, height and width of the grid of visual tokens that the position tables are
            made for; None for no tables, as SwinBERT. With another number of frames the times are
            interpolated.
        video_attention: Sight of visual tokens among each other. full: all. diagonal: themselves.
            log: a learned gate g for every pair, added as log g. legacy: SwinBERT's, added as (1 -
            g) * -10000, which is diagonal in effect.
        num_visual_tokens: M, for the learned gate of log and legacy, which has M x M numbers.
        hard_gate: Round the gate to 0 or 1; it then gets no gradient (SwinBERT's
            `sparse_mask_soft2hard`).
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
        if self.has_learned_gate and not self.num_visual_tokens:
            raise ConfigError(
                "bad-value",
                f"num_visual_tokens is 0, the gate of video_attention {self.video_attention!r} needs the number",
                "give the number of visual tokens of a clip",
            )
        # A list, where it is read from JSON
        object.__setattr__(self, "grid", self.grid and tuple(self.grid))

    @property
    def visual_width(self) -> int:
        """Return the width of the visual tokens that the model reads (D)."""
        return self.backbone_dim or self.img_feature_dim

    @property
    def has_learned_gate(self) -> bool:
        """Return whether visual tokens see each other through a learned gate."""
        return self.video_attention in ("log", "legacy")

    @classmethod
    def of(cls, config: AlbertConfig) -> "CaptionConfig":
        """Return the settings of a model; the defaults where the configuration says nothing."""
        values = config.foreign.get("captioning") or {}
        if not isinstance(values, dict):
            raise ConfigError(
                "bad-value",
                f"captioning is {values!r}, it must be an object of settings",
                "copy config.json again",
            )
        field_names = {field.name for field in dataclasses.fields(cls)}
        unknown = [key for key in values if key not in field_names]
        if unknown:
            raise ConfigError(
                "unknown-name",
                f"`{unknown[0]}` in `captioning` of the configuration",
                suggest_name(unknown[0], field_names),
            )
        return cls(**values)

    def stored_in(self, config: AlbertConfig) -> AlbertConfig:
        """Return a copy of a model's configuration that holds this one."""
        return config.replace(foreign={**config.foreign, "captioning": self.to_dict()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = dataclasses.asdict(self)
        return {**values, "grid": None if self.grid is None else list(self.grid)}


# A gate of 0.5 adds half of it: above 0.999 alone can a gate be seen, so SwinBERT's attention is
# diagonal, and the loss of captions gives its gate a gradient of exactly 0.
# Added to a score that must not count, in SwinBERT's arithmetic. In float32 its exponential is 0.
NEVER = -10_000.0


def attention_bias_of_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a mask adds to attention scores: (1 - mask) * -10000, as SwinBERT and the first BERTs.

    Args:
        mask: [B, N] of keys, [B, N, N] or [B, 1, N, N]; bool, integers, or shares between 0 and 1.
        dtype: Of the scores.

    Returns:
        [B, 1, 1, N] or [B, 1, N, N].
    """
    if mask.dim() not in (2, 3, 4):
        raise ConfigError(
            "bad-value",
            f"attention_mask has shape {list(mask.shape)}, expected 2, 3 or 4 dimensions",
        )
    while mask.dim() < 4:
        mask = mask[:, None]
    return (1.0 - mask.to(dtype)) * NEVER


def gate_matrix(weight: Tensor, hard: bool) -> Tensor:
    """Return the learned gate: [M * M, 1] to [M, M] between 0 and 1; a visual token always sees itself.

    Source: microsoft/SwinBERT `video_captioning_e2e_vid_swin_bert.py`, `VideoTransformer.forward`.
    """
    gate = _square_matrix(torch.sigmoid(weight))
    itself = torch.eye(len(gate), dtype=weight.dtype, device=weight.device)
    gate = (gate >= 0.5).to(weight.dtype) if hard else gate
    return gate * (1 - itself) + itself


def sparsity(weight: Tensor) -> Tensor:
    """Return the sparsity loss, 0-d: how much the gate [M * M, 1] lets through between tokens, over M * M as SwinBERT."""
    gate = _square_matrix(torch.sigmoid(weight))
    return (gate.sum() - gate.diagonal().sum()) / gate.numel()


def _square_matrix(weight: Tensor) -> Tensor:
    tokens = round(len(weight) ** 0.5)
    return weight.view(tokens, tokens)


KeyValue = tuple[Tensor, Tensor]
Layers = list[tuple[AlbertLayer, BlockWeights]]


@dataclass
class Context:
    """Keys and values of visual tokens (and of a second text): all that a caption needs of them.

    Attributes:
        states: A pair of keys and values [B, A, C, D] for each layer.
        bias: [B, 1, 1, C], added to the scores: `NEVER` at padding. None without padding.
    """

    states: list[KeyValue]
    bias: Tensor | None = None

    @property
    def num_clips(self) -> int:
        """Return B."""
        return len(self.states[0][0])

    def select(self, rows: Tensor) -> "Context":
        """Return the context of some of the clips."""
        bias = None if self.bias is None else self.bias[rows]
        return Context([(key[rows], value[rows]) for key, value in self.states], bias)


@dataclass
class CaptionState:
    """Cache of a caption: keys and values [R, A, P, D] of each layer; empty at the beginning."""

    states: list[KeyValue] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Return P."""
        return self.states[0][0].shape[2] if self.states else 0

    def reorder(self, rows: Tensor) -> "CaptionState":
        """Return the state whose row i is row `rows[i]` of this one: what a beam search keeps."""
        return CaptionState([(key[rows], value[rows]) for key, value in self.states])

    def cut(self, length: int) -> "CaptionState":
        """Return the first places only."""
        return CaptionState(
            [(key[:, :, :length], value[:, :, :length]) for key, value in self.states]
        )


def split_query_key_value_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, S, 3H] into queries, keys and values [B, A, S, D]."""
    query, key, value = qkv.view(*qkv.shape[:2], 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    return query, key, value


def encode_context(
    encoder: AlbertEncoder,
    hidden: Tensor,
    bias: Tensor | None,
    diagonal: bool,
    padding: Tensor | None,
) -> Context:
    """Run all layers over a context [B, C, H]; of the last only keys and values are needed.

    `bias`, [B or 1, 1, C, C], is added to the scores, and holds `padding`, [B, 1, 1, C], too.
    `diagonal`: a token sees itself alone, so attention gives its own value, at O(C).
    """
    states: list[KeyValue] = []
    layers = encoder.layers(hidden.dtype)
    for number, (layer, weights) in enumerate(layers, start=1):
        last = number == len(layers)
        hidden, key, value = _run_layer_with_checkpointing(
            encoder,
            _context_layer_with_keys_and_values,
            layer,
            weights,
            hidden,
            bias,
            diagonal,
            last,
        )
        states.append((key, value))
    return Context(states, padding)


def _run_layer_with_checkpointing(
    encoder: AlbertEncoder, compute: Callable[..., Any], *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, keys and values of a layer, computed again in the backward pass where memory is to be saved."""
    if encoder.gradient_checkpointing and torch.is_grad_enabled():
        return checkpoint(compute, *arguments, use_reentrant=False)
    return compute(*arguments)


def _context_layer_with_keys_and_values(
    layer: AlbertLayer,
    weights: BlockWeights,
    hidden: Tensor,
    bias: Tensor | None,
    diagonal: bool,
    last: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = split_query_key_value_heads(weights.qkv(hidden), layer.num_heads)
    # Of the last layer a caption reads keys and values alone.
    if not last:
        if diagonal:
            # The softmax of a single score is 1.
            attention_output = value
        else:
            dropout = layer.attention_dropout if layer.training else 0.0
            attention_output = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=bias,
                dropout_p=dropout,
            )
        hidden = layer.after_attention(attention_output.transpose(1, 2).flatten(2), hidden, weights)
    return hidden, key, value


def read_caption(
    encoder: AlbertEncoder,
    hidden: Tensor,
    context: Context,
    before: CaptionState | None = None,
    layers: Layers | None = None,
) -> tuple[Tensor, CaptionState]:
    """Run all layers over further places of captions, [R, S, H], embedded and projected; row r is of clip r // (R / B).

    Each place sees the context, the places read `before`, itself and those between. `layers` is
    `encoder.layers`, computed once for many words.
    """
    states: list[KeyValue] = []
    causal = torch.full(
        (hidden.shape[1],) * 2, -torch.inf, dtype=hidden.dtype, device=hidden.device
    ).triu(1)
    for number, (layer, weights) in enumerate(layers or encoder.layers(hidden.dtype)):
        read_before = before.states[number] if before and before.states else None
        hidden, key, value = _run_layer_with_checkpointing(
            encoder,
            _caption_layer_with_keys_and_values,
            layer,
            weights,
            hidden,
            context.states[number],
            context.bias,
            read_before,
            causal,
        )
        states.append((key, value))
    return hidden, CaptionState(states)


def _caption_layer_with_keys_and_values(
    layer: AlbertLayer,
    weights: BlockWeights,
    hidden: Tensor,
    context: KeyValue,
    context_bias: Tensor | None,
    before: KeyValue | None,
    causal: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = split_query_key_value_heads(weights.qkv(hidden), layer.num_heads)
    if before is not None:
        key = torch.cat([before[0], key], 2)
        value = torch.cat([before[1], value], 2)
    (rows, heads, length, width), (clips, _, tokens, _) = query.shape, context[0].shape
    beams = rows // clips
    # Scaled once, for the product with the context and for that with the caption.
    query = query * width**-0.5
    # The beams of a clip are queries of one product: the clip's keys, which are long, are neither
    # copied nor read twice.
    context_query = query.view(clips, beams, heads, length, width).transpose(1, 2).flatten(2, 3)
    to_context = context_query @ context[0].transpose(-1, -2)
    if context_bias is not None:
        to_context = to_context + context_bias
    to_context = to_context.view(clips, heads, beams, length, tokens).transpose(1, 2).flatten(0, 1)
    to_caption = query @ key.transpose(-1, -2)
    # What was read before is seen by all of these places; of these each sees those up to itself.
    to_caption[..., -length:] += causal
    # One softmax over context and caption, as over the single sequence that SwinBERT makes of them.
    probabilities = torch.cat([to_context, to_caption], -1).softmax(-1)
    probabilities = F.dropout(probabilities, layer.attention_dropout, layer.training)
    of_context, of_caption = probabilities.split([tokens, key.shape[2]], -1)
    attention_output = (
        of_context.reshape(clips, beams, heads, length, tokens).transpose(1, 2).flatten(2, 3)
        @ context[1]
    )
    attention_output = (
        attention_output.view(clips, heads, beams, length, width).transpose(1, 2).flatten(0, 1)
        + of_caption @ value
    )
    hidden = layer.after_attention(attention_output.transpose(1, 2).flatten(2), hidden, weights)
    return hidden, key, value


def masked_layers(
    encoder: AlbertEncoder, hidden: Tensor, bias: Tensor | None, attentions: list[Tensor] | None
) -> Tensor:
    """Run all layers over text and video in one, [B, N, H], as SwinBERT does, under any mask.

    `bias`, [B, 1, N or 1, N], is added to the scores; `attentions` receives the probabilities [B,
    A, N, N] of every layer.
    """
    for layer, weights in encoder.layers(hidden.dtype):
        query, key, value = split_query_key_value_heads(weights.qkv(hidden), layer.num_heads)
        dropout = layer.attention_dropout if layer.training else 0.0
        # The fused call keeps no probabilities.
        if attentions is None:
            attention_output = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=bias,
                dropout_p=dropout,
            )
        else:
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            probabilities = (scores if bias is None else scores + bias).softmax(-1)
            attentions.append(probabilities)
            attention_output = F.dropout(probabilities, dropout, layer.training) @ value
        hidden = layer.after_attention(attention_output.transpose(1, 2).flatten(2), hidden, weights)
    return hidden


def interpolate_times(times: Tensor, frames: int) -> Tensor:
    """Stretch an embedding of times, [T, H], to another number of frames."""
    return F.interpolate(times.t()[None], size=frames, mode="linear", align_corners=False)[0].t()


class VisualProjector(nn.Module):
    """Layer norm, linear D to H, plus an embedding of the frame and one of the place in it; then dropout.

    The tables begin at zero, so a captioner begins as one that knows no places. Without norm and
    tables it is SwinBERT's `img_embedding`, and with `backbone_dim` it begins with SwinBERT's `fc`.
    """

    def __init__(self, config: AlbertConfig, caption: CaptionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.grid = None if caption.grid is None else TokenGrid(*caption.grid)
        # Not folded into the map that follows: in a migrated ALBERT a LayerNorm stands between
        # them.
        self.fc = (
            nn.Linear(caption.backbone_dim, caption.img_feature_dim)
            if caption.backbone_dim
            else None
        )
        self.width = caption.visual_width
        self.LayerNorm = (
            nn.LayerNorm(caption.img_feature_dim, eps=1e-6) if caption.visual_norm else None
        )
        self.projection = nn.Linear(caption.img_feature_dim, width)
        if self.grid is not None:
            self.time_embeddings = nn.Parameter(torch.zeros(self.grid.frames, width))
            self.space_embeddings = nn.Parameter(
                torch.zeros(self.grid.height * self.grid.width, width)
            )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, visual: Tensor, grid: TokenGrid | Sequence[TokenGrid] | None = None
    ) -> Tensor:
        """Map [B, M, D] to [B, M, H], in the dtype of `visual`."""
        if visual.shape[-1] != self.width:
            raise ConfigError(
                "bad-value",
                f"visual tokens have width {visual.shape[-1]}, the model reads {self.width}",
                "use the backbone that the model was trained with",
            )
        if self.fc is not None:
            visual = linear_function(visual.dtype, self.fc)(visual)
        if self.LayerNorm is not None:
            visual = layer_norm_function(visual.dtype, self.LayerNorm)(visual)
        hidden = linear_function(visual.dtype, self.projection)(visual)
        if self.grid is not None:
            tokens = visual.shape[1]
            grid = grid or self.grid
            if not isinstance(grid, TokenGrid):  # zeros where a clip has fewer tokens than M
                embeddings = {
                    of_clip: self.position_embeddings(of_clip) for of_clip in dict.fromkeys(grid)
                }
                rows = [
                    F.pad(embeddings[of_clip], (0, 0, 0, tokens - of_clip.num_tokens))
                    for of_clip in grid
                ]
                positions = torch.stack(rows)
            elif grid.num_tokens == tokens:
                positions = self.position_embeddings(grid)
            else:
                raise ConfigError(
                    "bad-value",
                    f"{tokens} visual tokens for a grid of {' x '.join(map(str, grid))}",
                )
            hidden = hidden + positions.to(hidden.dtype)
        return self.dropout(hidden)

    def position_embeddings(self, grid: TokenGrid) -> Tensor:
        """Return what is added to the tokens of a grid, [M, H]. Times are interpolated to another number of frames."""
        assert self.grid is not None
        if grid[1:] != self.grid[1:]:
            raise ConfigError(
                "bad-value",
                f"frames have {grid.height} x {grid.width} visual tokens, the model has places for "
                f"{self.grid.height} x {self.grid.width}",
                "prepare the clips with the frame size and pooling that the model was trained with",
            )
        times: Tensor = self.time_embeddings
        if grid.frames != len(times):
            times = interpolate_times(times, grid.frames)
        return (times[:, None] + self.space_embeddings).flatten(0, 1)
