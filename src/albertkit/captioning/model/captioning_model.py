"""`AlbertForImageCaptioning`: a caption from visual tokens."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from albertkit.captioning.model.config import CaptionConfig
from albertkit.captioning.model.image_model import AlbertImgModel
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model.albert import TIED
from albertkit.model.heads import MaskedLMHead
from albertkit.model.pretrained import PretrainedAlbert


def smoothed_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the divergence of each prediction from a smoothed label: the cross-entropy, less the label's entropy.

    The label has 1 - smoothing, all other tokens together the rest; with no smoothing it is the cross-entropy.

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
    other = smoothing / (logits.shape[1] - 1)
    entropy = -(1 - smoothing) * _log(1 - smoothing) - smoothing * _log(other)
    cross_entropy = -(1 - smoothing - other) * at_label - other * log_probabilities.sum(1)
    return cross_entropy - entropy


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())


def keep_easiest(losses: Tensor, drop_ratio: float) -> Tensor:
    """Return the int(P * (1 - drop_ratio)) smallest of losses [P], at least one where there is one."""
    return losses.topk(num_kept(len(losses), drop_ratio), largest=False, sorted=False).values


def num_kept(predictions: int, drop_ratio: float) -> int:
    """Return how many of P predictions count."""
    return max(int(predictions * (1 - drop_ratio)), min(predictions, 1))


class CaptionHead(MaskedLMHead):
    """The masked-LM head; its output matrix may be one of its own."""

    def __init__(self, config: AlbertConfig, word_embeddings: nn.Embedding, tied: bool) -> None:
        super().__init__(config, word_embeddings)
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

    @property
    def encoder_model(self) -> AlbertImgModel:  # type: ignore[override]
        """Return the encoder."""
        return self.albert

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
            losses = keep_easiest(losses, self.caption.drop_worst_ratio)
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
            masked_pos: [B, T], 1 where a token is to be predicted; T is the length of the caption's part.
            masked_ids: [B, P], the tokens to predict in order, then -1.
            token_type_ids: int64 [B, S].
            position_ids: int64 [S] or [B, S].
            is_training: Whether the loss is wanted.

        Returns:
            Training: loss 0-d, logits [predictions, V], and attentions if asked for. Not training: logits [B, S, V].
        """
        hidden, _, *rest = self.albert(input_ids, img_feats, attention_mask, token_type_ids, position_ids)
        if not is_training:
            return (self.predictions(hidden[:, : input_ids.shape[1]]), *rest)
        if masked_pos is None or masked_ids is None:
            raise ConfigError(
                "bad-value", "masked_pos and masked_ids are not both given", "give both, or is_training=False"
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
        return (total / count, logits, *rest)
