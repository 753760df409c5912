"""The public classes. Arguments, outputs and parameter names are transformers'; inside, only real tokens are computed.

Padded input is packed on entry and laid out again on exit, with zeros at padding. A mask may have holes: the tokens
around a hole keep their positions. The sentence is pooled from its first real token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.encoder import AlbertEmbeddings, AlbertEncoder
from albertkit.model.heads import MaskedLMHead, SentenceOrderHead, class_loss
from albertkit.model.outputs import BaseModelOutput, MaskedLMOutput, PackedOutput, PretrainingLosses, PreTrainingOutput
from albertkit.model.packing import IGNORED, PackedBatch, unpack
from albertkit.model.pretrained import PretrainedAlbert, Trace, pack

TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}


class AlbertModel(PretrainedAlbert):
    """Embeddings, encoder and pooler.

    Args:
        config: What to build. Parameters start as the original's do.
        add_pooling_layer: Whether to have the pooler, a tanh layer on the first token.
    """

    def __init__(self, config: AlbertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertEncoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self._compute_dtype: torch.dtype | None = None
        self.initialize()

    @property
    def encoder_model(self) -> "AlbertModel":
        """This model itself."""
        return self

    def encode(self, batch: PackedBatch, trace: Trace | None = None, positions: Tensor | None = None) -> PackedOutput:
        """Run a packed batch.

        Args:
            batch: T tokens of N sequences, on the model's device.
            trace: Collects hidden states and attentions.
            positions: int64 [Q] into the T tokens, when only these states are wanted; the last pass computes no others.

        Returns:
            hidden [T, H], or [Q, H], and pooled [N, H], in `compute_dtype`.
        """
        starts = batch.offsets[:-1]
        rows = None if positions is None else torch.cat([starts, positions])
        embedded = self.embeddings(batch)
        embedded = embedded.to(self.compute_dtype or embedded.dtype)
        lists = (trace.hidden_states, trace.attentions) if trace else ()
        hidden = self.encoder(embedded, batch, rows, *lists)
        first = hidden.index_select(0, starts) if rows is None else hidden[: len(starts)]
        hidden = hidden if rows is None else hidden[len(starts) :]
        if self.pooler is None:
            return PackedOutput(hidden, None)
        weight, bias = self.pooler.weight.to(hidden.dtype), self.pooler.bias.to(hidden.dtype)
        return PackedOutput(hidden, torch.tanh(F.linear(first, weight, bias)))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> BaseModelOutput:
        """Run padded input.

        Args:
            input_ids: int64 [B, S].
            attention_mask: [B, S], 0 at padding. Default: no padding.
            token_type_ids: int64 [B, S]. Default: 0.
            position_ids: int64 [S] or [B, S]. Default: 0 to S-1.
            output_hidden_states: Return the output of every pass.
            output_attentions: Return the attention probabilities of every pass.

        Raises:
            ConfigError: bad-shape. DataError: empty-sequence or too-long.
        """
        batch, mask = pack(input_ids, attention_mask, token_type_ids, position_ids)
        trace = Trace(output_hidden_states, output_attentions)
        hidden, pooled = self.encode(batch, trace)
        return BaseModelOutput(unpack(hidden, mask), pooled, **trace.padded(mask))


class AlbertForPreTraining(PretrainedAlbert):
    """ALBERT with the masked-LM and the sentence-order head.

    Args:
        config: What to build. Parameters start as the original's do.
    """

    tied = TIED

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.albert = AlbertModel(config)
        self.predictions = MaskedLMHead(config, self.albert.embeddings.word_embeddings)
        self.sop_classifier = SentenceOrderHead(config)
        self.initialize(ready=self.albert.parameters())

    def pretraining_losses(self, batch: PackedBatch) -> PretrainingLosses:
        """Both losses of a packed batch; the masked-LM head sees only the masked positions.

        Args:
            batch: With `masked_positions` and `masked_labels`; `sentence_order_labels` may be None.

        Returns:
            Sums and counts. Without a masked token, or a sentence-order label, the sum is 0.
        """
        positions, labels = batch.masked_positions, batch.masked_labels
        if positions is None or labels is None:
            positions = labels = batch.offsets[:0]
        hidden, pooled = self.albert.encode(batch, positions=positions)
        masked_sum, masked_correct = self.predictions.loss(hidden, labels)
        order_labels = batch.sentence_order_labels
        if order_labels is None:
            order_labels = torch.full_like(batch.offsets[1:], IGNORED)
        order = class_loss(self.sop_classifier(pooled), order_labels)
        masked_count = torch.full_like(masked_correct, len(labels))
        return PretrainingLosses(
            masked_sum, order.loss_sum, masked_correct, order.correct, masked_count, order.label_count
        )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> PreTrainingOutput:
        """Run padded input; logits at every real position. For training use `pretraining_losses`.

        Args:
            input_ids: int64 [B, S].
            attention_mask: [B, S], 0 at padding. Default: no padding.
            token_type_ids: int64 [B, S]. Default: 0.
            position_ids: int64 [S] or [B, S]. Default: 0 to S-1.
            labels: int64 [B, S], -100 where nothing is to be predicted; labels at padding do not count.
            sentence_order_label: int64 [B], 0 original order, 1 swapped, -100 none.
            output_hidden_states: Return the output of every pass.
            output_attentions: Return the attention probabilities of every pass.

        Raises:
            ConfigError: bad-shape. DataError: empty-sequence or too-long.
        """
        batch, mask = pack(input_ids, attention_mask, token_type_ids, position_ids)
        trace = Trace(output_hidden_states, output_attentions)
        hidden, pooled = self.albert.encode(batch, trace)
        logits, order_logits = self.predictions(hidden), self.sop_classifier(pooled)
        losses = []
        if labels is not None:
            losses.append(class_loss(logits, labels[mask != 0]).mean())
        if sentence_order_label is not None:
            losses.append(class_loss(order_logits, sentence_order_label.reshape(-1)).mean())
        loss = torch.stack(losses).sum() if losses else None
        return PreTrainingOutput(loss, unpack(logits, mask), order_logits, **trace.padded(mask))


class AlbertForMaskedLM(PretrainedAlbert):
    """ALBERT with the masked-LM head alone, without pooler.

    Args:
        config: What to build. Parameters start as the original's do.
    """

    tied = TIED

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.albert = AlbertModel(config, add_pooling_layer=False)
        self.predictions = MaskedLMHead(config, self.albert.embeddings.word_embeddings)
        self.initialize(ready=self.albert.parameters())

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> MaskedLMOutput:
        """Run padded input; arguments as `AlbertForPreTraining.forward`."""
        batch, mask = pack(input_ids, attention_mask, token_type_ids, position_ids)
        trace = Trace(output_hidden_states, output_attentions)
        logits = self.predictions(self.albert.encode(batch, trace).hidden)
        loss = None if labels is None else class_loss(logits, labels[mask != 0]).mean()
        return MaskedLMOutput(loss, unpack(logits, mask), **trace.padded(mask))
