"""`AlbertForImageCaptioning`: a caption from visual tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.layers import (
    NEVER,
    CaptionConfig,
    CaptionState,
    Context,
    Layers,
    VisualProjector,
    attention_bias_of_mask,
    encode_context,
    gate_matrix,
    masked_layers,
    read_caption,
    sparsity,
)
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model.classes import TIED
from albertkit.model.heads import MaskedLMHead
from albertkit.model.layers import AlbertEmbeddings, AlbertEncoder, linear_function
from albertkit.model.padded import PaddedBatch
from albertkit.model.pretrained import PretrainedAlbert, SkipInitialization


class ImageEncoder(AlbertEncoder):
    """The layers, with the switch that SwinBERT's VideoTransformer sets."""

    output_attentions = False  # returned by `AlbertImgModel.forward`

    def set_output_attentions(self, on: bool) -> None:
        """Return attentions from now on, or no more."""
        self.output_attentions = on


class AlbertImgModel(PretrainedAlbert):
    """ALBERT over text and visual tokens.

    Visual tokens join at the hidden size, after the projection from E to H, and get neither
    positions of the text nor its normalisation.

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
        if self.caption.has_learned_gate:
            self.video_gate = nn.Parameter(torch.zeros(self.caption.num_visual_tokens**2, 1))
        self._compute_dtype: torch.dtype | None = None
        self.initialize()

    def initialize(self, ready: Iterable[nn.Parameter] = ()) -> None:
        """Initialise as every ALBERT; places begin at 0, SwinBERT's gate at normal(0, 1), the gate of `log` at one half."""
        initialized = set(ready)
        super().initialize(initialized)
        if SkipInitialization.active:
            return
        if self.img_embedding.grid is not None:
            for table in (self.img_embedding.time_embeddings, self.img_embedding.space_embeddings):
                if table not in initialized:
                    nn.init.zeros_(table)
        if self.caption.has_learned_gate and self.video_gate not in initialized:
            nn.init.normal_(self.video_gate, std=float(self.caption.video_attention == "legacy"))

    @property
    def encoder_model(self) -> "AlbertImgModel":  # type: ignore[override]
        """This model itself."""
        return self

    def embed(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Embed text [B, S] as [B, S, H]; positions 0 to S - 1 and type 0 by default."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids.long()
        positions = position_ids.expand_as(input_ids)
        rows = PaddedBatch(
            input_ids.flatten(),
            types.flatten(),
            positions.flatten(),
            torch.ones_like(input_ids, dtype=torch.bool),
        )
        embedded = self.embeddings(rows)
        embedded = embedded.to(self.compute_dtype or embedded.dtype)
        return linear_function(embedded.dtype, self.encoder.embedding_hidden_mapping_in)(
            embedded
        ).view(
            *input_ids.shape,
            -1,
        )

    def project(
        self, img_feats: Tensor, grid: TokenGrid | Sequence[TokenGrid] | None = None
    ) -> Tensor:
        """Project visual tokens [B, M, D] to [B, M, H]."""
        return self.img_embedding(img_feats.to(self.compute_dtype or self.dtype), grid)

    def encode_context(self, visual: Tensor, visual_mask: Tensor | None = None) -> Context:
        """Run projected visual tokens through all layers: once for all words of all captions.

        Args:
            visual: [B, M, H], from `project`.
            visual_mask: bool [B, M], False at padding.
        """
        padding = None if visual_mask is None else attention_bias_of_mask(visual_mask, visual.dtype)
        if self.caption.video_attention == "diagonal":
            return encode_context(self.encoder, visual, None, True, padding)
        gate = self.gate_bias(visual.shape[1], visual.dtype)
        bias = padding if gate is None else gate
        if gate is not None and padding is not None:
            bias = gate + padding
        return encode_context(self.encoder, visual, bias, False, padding)

    def gate_bias(self, tokens: int, dtype: torch.dtype) -> Tensor | None:
        """Return what the learned gate adds to the scores between visual tokens, [1, 1, M, M]; None without one."""
        if not self.caption.has_learned_gate:
            return None
        if tokens != self.caption.num_visual_tokens:
            raise ConfigError(
                "bad-value",
                f"{tokens} visual tokens, the learned gate has {self.caption.num_visual_tokens}",
                "use as many frames as the model was trained with, or video_attention full or diagonal",
            )
        gate = gate_matrix(self.video_gate, self.caption.hard_gate)
        # Not below 1e-4 for `log`: a gate that is shut must keep a gradient.
        added = (
            gate.clamp(min=1e-4).log()
            if self.caption.video_attention == "log"
            else (1 - gate) * NEVER
        )
        return added.to(dtype)[None, None]

    def sparsity_loss(self) -> Tensor:
        """Return how much the learned gate lets through between different tokens, 0-d."""
        return sparsity(self.video_gate)

    def read_caption(
        self,
        hidden: Tensor,
        context: Context,
        before: CaptionState | None = None,
        layers: Layers | None = None,
    ) -> tuple[Tensor, CaptionState]:
        """Read places of captions, [R, S, H] from `embed`, against a context; see `read_caption`."""
        return read_caption(self.encoder, hidden, context, before, layers)

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
            attention_mask: [B, N], [B, N, N] or [B, 1, N, N] with N = S + M, text first; 1 where a
                row may look at a column, 0 where not, in between as SwinBERT counts it;
                `video_attention` is ignored. Default: all see all.
            token_type_ids: int64 [B, S]. Default: 0.
            position_ids: int64 [S] or [B, S]. Default: 0 to S - 1.

        Returns:
            Last states [B, N, H]; pooled [B, H]; if `encoder.output_attentions` a tuple of
            probabilities [B, A, N, N].
        """
        hidden = self.embed(input_ids, position_ids, token_type_ids)
        if img_feats is not None:
            hidden = torch.cat([hidden, self.project(img_feats)], 1)
        if attention_mask is not None and attention_mask.shape[-1] != hidden.shape[1]:
            raise ConfigError(
                "bad-value",
                f"attention_mask has shape {list(attention_mask.shape)}, text and video {hidden.shape[1]} places",
            )
        bias = (
            None if attention_mask is None else attention_bias_of_mask(attention_mask, hidden.dtype)
        )
        attentions: list[Tensor] | None = [] if self.encoder.output_attentions else None
        hidden = masked_layers(self.encoder, hidden, bias, attentions)
        pooled = torch.tanh(linear_function(hidden.dtype, self.pooler)(hidden[:, 0]))
        return (hidden, pooled) if attentions is None else (hidden, pooled, tuple(attentions))


def smoothed_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the divergence of each prediction from a smoothed label: the cross-entropy, less the label's entropy.

    The label has 1 - smoothing, all other tokens together the rest; with no smoothing it is the
    cross-entropy.

    Args:
        logits: [P, V].
        labels: int64 [P].
        smoothing: At least 0 and below 1.

    Returns:
        fp32 or fp64 [P].

    Source: microsoft/SwinBERT `modeling_bert.py`, `BertCaptioningLoss`.
    """
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    at_label = log_probabilities.gather(1, labels[:, None]).squeeze(1)
    if not smoothing:
        return -at_label
    other_probability = smoothing / (logits.shape[1] - 1)
    entropy = -(1 - smoothing) * _log_in_fp64(1 - smoothing) - smoothing * _log_in_fp64(
        other_probability
    )
    cross_entropy = -(
        1 - smoothing - other_probability
    ) * at_label - other_probability * log_probabilities.sum(1)
    return cross_entropy - entropy


def _log_in_fp64(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())


def keep_smallest_losses(losses: Tensor, drop_ratio: float) -> Tensor:
    """Return the int(P * (1 - drop_ratio)) smallest of losses [P], at least one where there is one."""
    return losses.topk(
        num_kept_predictions(len(losses), drop_ratio), largest=False, sorted=False
    ).values


def num_kept_predictions(predictions: int, drop_ratio: float) -> int:
    """Return how many of P predictions count."""
    return max(int(predictions * (1 - drop_ratio)), min(predictions, 1))


class CaptionHead(MaskedLMHead):
    """The masked-LM head; its output matrix may be one of its own."""

    def __init__(self, config: AlbertConfig, word_embeddings: nn.Embedding, tied: bool) -> None:
        super().__init__(config, word_embeddings)
        # SwinBERT's output matrix is one of its own.
        self.tied = tied
        if not tied:
            self.decoder = nn.Linear(config.embedding_size, config.vocab_size, bias=False)  # type: ignore[assignment]

    def tie(self, word_embeddings: nn.Embedding) -> None:
        """Use the word embeddings; an output matrix of its own stays."""
        if getattr(self, "tied", True):
            super().tie(word_embeddings)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] for hidden states [..., H]."""
        logits = super().forward(hidden)
        return logits if self.tied else logits + self.bias.to(logits.dtype)


class AlbertForImageCaptioning(PretrainedAlbert):
    """ALBERT that writes captions of visual tokens.

    Args:
        config: Shape and settings; its `captioning` is a `CaptionConfig`.

    Attributes:
        caption: The `CaptionConfig`.
        updates: Losses computed in training so far, which `drop_worst_after` counts.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.caption = CaptionConfig.of(config)
        self.albert = AlbertImgModel(config)
        words = self.albert.embeddings.word_embeddings
        self.predictions = CaptionHead(config, words, self.caption.tie_weights)
        words.weight.requires_grad = not self.caption.freeze_embedding
        if self.caption.tie_weights:
            self.tied = TIED  # type: ignore[misc]
        self.updates = 0
        self.initialize(ready=self.albert.parameters())

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output matrix."""
        return self.predictions.decoder

    def initialize(self, ready: Iterable[nn.Parameter] = ()) -> None:
        """Initialise as every ALBERT; the encoder initialises its own parts."""
        ready = list(ready)
        inner = set(self.albert.parameters())
        if not inner <= set(ready):
            self.albert.initialize([parameter for parameter in ready if parameter in inner])
        super().initialize([*ready, *inner])

    def caption_loss(self, logits: Tensor, labels: Tensor, update: int) -> tuple[Tensor, int]:
        """Return the sum of the losses that count, and their number.

        Args:
            logits: [P, V].
            labels: int64 [P].
            update: Updates before this one.
        """
        losses = smoothed_losses(logits, labels, self.caption.label_smoothing)
        if self.caption.drop_worst_ratio and update >= self.caption.drop_worst_after:
            losses = keep_smallest_losses(losses, self.caption.drop_worst_ratio)
        return losses.sum(), len(losses)

    def forward(
        self,
        input_ids: Tensor,
        img_feats: Tensor | None = None,
        attention_mask: Tensor | None = None,
        masked_pos: Tensor | None = None,
        masked_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        is_training: bool = True,
    ) -> tuple[Tensor, ...]:
        """Return the loss or the logits.

        Args:
            input_ids: int64 [B, S]: the caption, and after it a second text.
            img_feats: [B, M, D].
            attention_mask: As `AlbertImgModel.forward`.
            masked_pos: [B, T], 1 where a token is to be predicted; T is the length of the caption's
                part.
            masked_ids: [B, P], the tokens to predict in order, then -1.
            token_type_ids: int64 [B, S].
            position_ids: int64 [S] or [B, S].
            is_training: Whether the loss is wanted.

        Returns:
            Training: loss 0-d, logits [predictions, V], and attentions if asked for. Not training:
                logits [B, S, V].
        """
        hidden, _, *attentions = self.albert(
            input_ids,
            img_feats,
            attention_mask,
            token_type_ids,
            position_ids,
        )
        if not is_training:
            return (self.predictions(hidden[:, : input_ids.shape[1]]), *attentions)
        if masked_pos is None or masked_ids is None:
            raise ConfigError(
                "bad-value",
                "masked_pos and masked_ids are not both given",
                "give both, or is_training=False",
            )
        logits = self.predictions(hidden[:, : masked_pos.shape[1]][masked_pos == 1])
        labels = masked_ids[masked_ids >= 0].long()
        if len(logits) != len(labels):
            raise ConfigError(
                "bad-value",
                f"masked_pos marks {len(logits)} places, masked_ids has {len(labels)} tokens",
                "give one token for each marked place, then -1",
            )
        total, count = self.caption_loss(logits, labels, self.updates)
        self.updates += torch.is_grad_enabled()
        return (total / count, logits, *attentions)
