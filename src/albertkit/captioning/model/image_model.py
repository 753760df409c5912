"""`AlbertImgModel`: embeddings of a caption and projected visual tokens, run together through ALBERT's one layer."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.captioning.backbones.backbone import Grid
from albertkit.captioning.model.config import CaptionConfig
from albertkit.captioning.model.layers import (
    CaptionState,
    Context,
    Layers,
    encode_context,
    masked_layers,
    read_caption,
)
from albertkit.captioning.model.masks import NEVER, gate_values, score_bias, sparsity
from albertkit.captioning.model.visual import VisualProjector
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model.encoder import AlbertEmbeddings, AlbertEncoder
from albertkit.model.padded import PaddedBatch
from albertkit.model.pretrained import PretrainedAlbert, SkipInitialization
from albertkit.model.projections import linear


class ImageEncoder(AlbertEncoder):
    """The layers, with the switch that SwinBERT's VideoTransformer sets."""

    output_attentions = False  # returned by `AlbertImgModel.forward`

    def set_output_attentions(self, on: bool) -> None:
        """Return attentions from now on, or no more."""
        self.output_attentions = on


class AlbertImgModel(PretrainedAlbert):
    """ALBERT over text and visual tokens.

    Visual tokens join at the hidden size, after the projection from E to H, and get neither positions of the text nor its
    normalisation.

    Args:
        config: Shape and settings; its `captioning` is a `CaptionConfig`.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.caption = CaptionConfig.of(config)
        self.embeddings = AlbertEmbeddings(config)
        self.img_embedding = VisualProjector(config, self.caption)
        self.encoder = ImageEncoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        if self.caption.learned:
            self.video_gate = nn.Parameter(torch.zeros(self.caption.num_visual_tokens**2, 1))
        self._compute_dtype: torch.dtype | None = None
        self.initialize()

    def initialize(self, ready: Iterable[nn.Parameter] = ()) -> None:
        """Initialise as every ALBERT; places begin at 0, SwinBERT's gate at normal(0, 1), the gate of `log` at one half."""
        done = set(ready)
        super().initialize(done)
        if SkipInitialization.active:
            return
        if self.img_embedding.grid is not None:
            for table in (self.img_embedding.time_embeddings, self.img_embedding.space_embeddings):
                if table not in done:
                    nn.init.zeros_(table)
        if self.caption.learned and self.video_gate not in done:
            nn.init.normal_(self.video_gate, std=float(self.caption.video_attention == "legacy"))

    @property
    def encoder_model(self) -> "AlbertImgModel":  # type: ignore[override]
        """This model itself."""
        return self

    def embed(
        self, input_ids: Tensor, position_ids: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Embed text [B, S] as [B, S, H]; positions 0 to S - 1 and type 0 by default."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids.long()
        positions = position_ids.expand_as(input_ids)
        rows = PaddedBatch(
            input_ids.flatten(), types.flatten(), positions.flatten(), torch.ones_like(input_ids, dtype=torch.bool)
        )
        embedded = self.embeddings(rows)
        embedded = embedded.to(self.compute_dtype or embedded.dtype)
        return linear(embedded.dtype, self.encoder.embedding_hidden_mapping_in)(embedded).view(*input_ids.shape, -1)

    def project(self, img_feats: Tensor, grid: Grid | Sequence[Grid] | None = None) -> Tensor:
        """Project visual tokens [B, M, D] to [B, M, H]."""
        return self.img_embedding(img_feats.to(self.compute_dtype or self.dtype), grid)

    def encode_context(self, visual: Tensor, visual_mask: Tensor | None = None) -> Context:
        """Run projected visual tokens through all layers: once for all words of all captions.

        Args:
            visual: [B, M, H], from `project`.
            visual_mask: bool [B, M], False at padding.
        """
        padding = None if visual_mask is None else score_bias(visual_mask, visual.dtype)
        if self.caption.video_attention == "diagonal":
            return encode_context(self.encoder, visual, None, True, padding)
        gate = self.video_bias(visual.shape[1], visual.dtype)
        bias = padding if gate is None else gate if padding is None else gate + padding
        return encode_context(self.encoder, visual, bias, False, padding)

    def video_bias(self, tokens: int, dtype: torch.dtype) -> Tensor | None:
        """Return what the learned gate adds to the scores between visual tokens, [1, 1, M, M]; None without one."""
        if not self.caption.learned:
            return None
        if tokens != self.caption.num_visual_tokens:
            raise ConfigError(
                "bad-value",
                f"{tokens} visual tokens, the learned gate has {self.caption.num_visual_tokens}",
                "use as many frames as the model was trained with, or video_attention full or diagonal",
            )
        gate = gate_values(self.video_gate, self.caption.hard_gate)
        # Not below 1e-4 for `log`: a gate that is shut must keep a gradient.
        added = gate.clamp(min=1e-4).log() if self.caption.video_attention == "log" else (1 - gate) * NEVER
        return added.to(dtype)[None, None]

    def sparsity_loss(self) -> Tensor:
        """Return how much the learned gate lets through between different tokens, 0-d."""
        return sparsity(self.video_gate)

    def read(
        self,
        hidden: Tensor,
        context: Context,
        before: CaptionState | None = None,
        ready: Layers | None = None,
    ) -> tuple[Tensor, CaptionState]:
        """Read places of captions, [R, S, H] from `embed`, against a context; see `read_caption`."""
        return read_caption(self.encoder, hidden, context, before, ready)

    def forward(
        self,
        input_ids: Tensor,
        img_feats: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Run text and video together under any mask, with the arguments and outputs of BERT's `BertImgModel`.

        Args:
            input_ids: int64 [B, S].
            img_feats: [B, M, D]. Default: no video.
            attention_mask: [B, N], [B, N, N] or [B, 1, N, N] with N = S + M, text first; 1 where a row may look at a column,
                0 where not, in between as SwinBERT counts it; `video_attention` is ignored. Default: all see all.
            token_type_ids: int64 [B, S]. Default: 0.
            position_ids: int64 [S] or [B, S]. Default: 0 to S - 1.

        Returns:
            Last states [B, N, H]; pooled [B, H]; if `encoder.output_attentions` a tuple of probabilities [B, A, N, N].
        """
        hidden = self.embed(input_ids, position_ids, token_type_ids)
        if img_feats is not None:
            hidden = torch.cat([hidden, self.project(img_feats)], 1)
        if attention_mask is not None and attention_mask.shape[-1] != hidden.shape[1]:
            raise ConfigError(
                "bad-value",
                f"attention_mask has shape {list(attention_mask.shape)}, text and video {hidden.shape[1]} places",
            )
        bias = None if attention_mask is None else score_bias(attention_mask, hidden.dtype)
        attentions: list[Tensor] | None = [] if self.encoder.output_attentions else None
        hidden = masked_layers(self.encoder, hidden, bias, attentions)
        pooled = torch.tanh(linear(hidden.dtype, self.pooler)(hidden[:, 0]))
        return (hidden, pooled) if attentions is None else (hidden, pooled, tuple(attentions))
