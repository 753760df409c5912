"""The encoder and the classes that are pretrained. Arguments, outputs and parameter names are transformers'.

Padded input goes through `PaddedPass`, which lets only real tokens be computed; packed batches have methods of their own.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.data import IGNORED
from albertkit.data.packing import PackedBatch
from albertkit.model.heads import MaskedLMHead, SentenceOrderHead
from albertkit.model.losses import class_loss
from albertkit.model.outputs import (
    LogitsOutput,
    PretrainingLosses,
    PreTrainingOutput,
    SummedLoss,
)
from albertkit.model.padded import PaddedPass, PassOptions
from albertkit.model.pretrained import AlbertModel, PretrainedAlbert

TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}


class AlbertForPreTraining(PretrainedAlbert):
    """ALBERT with the masked-LM and the sentence-order head.

    Args:
        config: What to build. Parameters start as the original's do.
    """

    tied = TIED

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        config = self.config
        self.albert = AlbertModel(config)
        self.predictions = MaskedLMHead(config, self.albert.embeddings.word_embeddings)
        self.sop_classifier = SentenceOrderHead(config)
        self.initialize(ready=self.albert.parameters())

    def get_output_embeddings(self) -> nn.Linear:
        """Return the masked-LM decoder."""
        return self.predictions.decoder

    def packed_logits(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return logits [P, V] at the batch's masked positions, or [T, V] if it has none given; and of the order, [N, 2]."""
        hidden, pooled = self.albert.encode(batch, positions=batch.masked_positions)
        return self.predictions(hidden), self.sop_classifier(pooled)

    def pretraining_losses(self, batch: PackedBatch) -> PretrainingLosses:
        """Return both losses of a packed batch; the masked-LM head sees only the masked positions.

        Args:
            batch: With `masked_positions` and `masked_labels`; `sentence_order_labels` may be None.

        Returns:
            Sums and counts. Without a masked token, or a sentence-order label, the sum is 0.
        """
        positions, labels = batch.masked_targets()
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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        **options: Unpack[PassOptions],
    ) -> PreTrainingOutput:
        """Run padded input; logits at every real position. For training use `pretraining_losses`.

        With `num_items_in_batch`, which counts `labels` only, the sentence-order loss is weighted by this part's share of them.

        `input_ids` to `inputs_embeds` as in `PaddedPass`, options as `PassOptions`.

        Args:
            labels: int64 [B, S], -100 where nothing is to be predicted; labels at padding do not count.
            sentence_order_label: int64 [B], 0 original order, 1 swapped, -100 none.

        Raises:
            ConfigError: bad-value. DataError: empty, too-large or wrong-tokenizer.
        """
        run = PaddedPass(self.albert, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options)
        logits, order_logits = self.predictions(run.hidden), self.sop_classifier(run.pooled)
        loss, share = None, torch.ones((), device=logits.device)
        if labels is not None:
            masked_lm = class_loss(logits, run.labels(labels))
            loss = run.mean(masked_lm)
            if run.num_items is not None:
                share = masked_lm.label_count / run.num_items
        if sentence_order_label is not None:
            order = class_loss(order_logits, sentence_order_label.reshape(-1)).mean() * share
            loss = order if loss is None else loss + order
        return run.output(PreTrainingOutput, loss=loss, prediction_logits=run.rows(logits), sop_logits=order_logits)


class AlbertForMaskedLM(PretrainedAlbert):
    """ALBERT with the masked-LM head alone, without pooler.

    Args:
        config: What to build. Parameters start as the original's do.
    """

    tied = TIED

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        config = self.config
        self.albert = AlbertModel(config, add_pooling_layer=False)
        self.predictions = MaskedLMHead(config, self.albert.embeddings.word_embeddings)
        self.initialize(ready=self.albert.parameters())

    def get_output_embeddings(self) -> nn.Linear:
        """Return the masked-LM decoder."""
        return self.predictions.decoder

    def packed_logits(self, batch: PackedBatch) -> Tensor:
        """Return logits [P, V] at the batch's masked positions, or [T, V] if it has none given."""
        return self.predictions(self.albert.encode(batch, positions=batch.masked_positions).hidden)

    def packed_loss(self, batch: PackedBatch) -> SummedLoss:
        """Return the loss at the masked positions, without ever holding all logits. Without one, the sum is 0."""
        positions, labels = batch.masked_targets()
        loss_sum, correct = self.predictions.loss(self.albert.encode(batch, positions=positions).hidden, labels)
        return SummedLoss(loss_sum, correct, torch.full_like(correct, len(labels)))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Unpack[PassOptions],
    ) -> LogitsOutput:
        """Run padded input; arguments as `AlbertForPreTraining.forward`."""
        run = PaddedPass(self.albert, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options)
        logits = self.predictions(run.hidden)
        loss = None if labels is None else run.mean(class_loss(logits, run.labels(labels)))
        return run.output(LogitsOutput, loss=loss, logits=run.rows(logits))
