"""Classes to fine-tune: sequences, tokens, answers in a text, one of several choices. Names, outputs and losses are
transformers' (`modeling_albert.py`); the beam head is in `beam_question_answering.py`.

B rows of S places, T tokens of N sequences, H hidden, C labels. Each class takes padded rows in
`forward`, and packed batches in `packed_logits`, which never pads.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from albertkit.batches.packed import PackedBatch
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model.heads import (
    MaskedLMHead,
    SentenceOrderHead,
    check_span,
    class_loss,
    multi_label_loss,
    regression_loss,
    span_loss,
)
from albertkit.model.layers import apply_head, linear_function, widen_to_head_dtype
from albertkit.model.padded import (
    LogitsOutput,
    PaddedPass,
    PassOptions,
    PretrainingLosses,
    PreTrainingOutput,
    QuestionAnsweringOutput,
    SummedLoss,
    Trace,
)
from albertkit.model.pretrained import AlbertModel, PretrainedAlbert, to_own_config
from albertkit.tables import IGNORED

# Files of transformers and of Google may hold the decoder as a second copy.
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
        # The encoder has initialised its own.
        self.initialize(ready=self.albert.parameters())

    def get_output_embeddings(self) -> nn.Linear:
        """Return the masked-LM decoder."""
        return self.predictions.decoder

    def packed_logits(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return logits [P, V] at the batch's masked positions, or [T, V] if it has none given; and of the order, [N, 2]."""
        hidden, pooled = self.albert.encode(batch, positions=batch.masked_positions)
        return self.predictions(hidden), self.sop_classifier(pooled)

    def pretraining_losses(
        self, batch: PackedBatch, trace: Trace | None = None
    ) -> PretrainingLosses:
        """Return both losses of a packed batch; the masked-LM head sees only the masked positions.

        Args:
            batch: With `masked_positions` and `masked_labels`; `sentence_order_labels` may be None.
            trace: Collects hidden states of all tokens; the last layer is then computed everywhere.

        Returns:
            Sums and counts. Without a masked token, or a sentence-order label, the sum is 0.
        """
        positions, labels = batch.masked_targets()
        hidden, pooled = self.albert.encode(batch, trace, positions=None if trace else positions)
        if trace:
            hidden = hidden.index_select(0, positions)
        order_labels = batch.sentence_order_labels
        if order_labels is None:
            order_labels = torch.full_like(batch.offsets[1:], IGNORED)
        order = class_loss(self.sop_classifier(pooled), order_labels)
        return PretrainingLosses(self.predictions.summed_loss(hidden, labels), order)

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

        With `num_items_in_batch`, which counts `labels` only, the sentence-order loss is weighted
        by this part's share of them.

        `input_ids` to `inputs_embeds` as in `PaddedPass`, options as `PassOptions`.

        Args:
            labels: int64 [B, S], -100 where nothing is to be predicted; labels at padding do not
                count.
            sentence_order_label: int64 [B], 0 original order, 1 swapped, -100 none.

        Raises:
            ConfigError: bad-value. DataError: empty, too-large or wrong-tokenizer.
        """
        run = PaddedPass(
            self.albert,
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            **options,
        )
        logits = self.predictions(run.hidden)
        order_logits = self.sop_classifier(run.pooled)
        loss, share = None, torch.ones((), device=logits.device)
        if labels is not None:
            masked_lm = class_loss(logits, run.flat_labels(labels))
            loss = run.mean(masked_lm)
            if run.num_items is not None:
                share = masked_lm.label_count / run.num_items
        if sentence_order_label is not None:
            if sentence_order_label.numel() != len(order_logits):
                fact = f"sentence_order_label has shape {list(sentence_order_label.shape)}, the batch {len(order_logits)} rows"
                raise ConfigError(
                    "bad-value", fact, "name the arguments: labels=…, sentence_order_label=…"
                )
            order = class_loss(order_logits, sentence_order_label.reshape(-1)).mean() * share
            loss = order if loss is None else loss + order
        return run.output(
            PreTrainingOutput,
            loss=loss,
            prediction_logits=run.rows(logits),
            sop_logits=order_logits,
        )


class LogitsModel(PretrainedAlbert):
    """Base of the classes with one head, whose logits are of every token, or of each sequence."""

    albert: AlbertModel

    def _head(self, hidden: Tensor, pooled: Tensor | None) -> Tensor:
        raise NotImplementedError

    def task_loss(self, logits: Tensor, labels: Tensor) -> SummedLoss:
        """Return the cross-entropy of logits [N, C] and labels int64 [N], -100 for none; of token classification [T]."""
        return class_loss(logits, labels)

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
        """Run padded input; arguments other than `labels` as `PaddedPass`, options as `PassOptions`.

        `labels` are as `task_loss` takes them, of token classification int64 [B, S], -100 for none.
        """
        run = PaddedPass(
            self.albert,
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            **options,
        )
        logits = self._head(run.hidden, run.pooled)
        of_tokens = run.pooled is None
        loss = None
        if labels is not None:
            loss = run.mean(
                self.task_loss(logits, run.flat_labels(labels) if of_tokens else labels)
            )
        return run.output(LogitsOutput, loss=loss, logits=run.rows(logits) if of_tokens else logits)


class AlbertForMaskedLM(LogitsModel):
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
        hidden = self.albert.encode(batch, positions=positions).hidden
        return self.predictions.summed_loss(hidden, labels)

    def _head(self, hidden: Tensor, pooled: Tensor | None) -> Tensor:
        return self.predictions(hidden)


class Classifier(LogitsModel):
    """Base of the classes with dropout and a linear layer named `classifier` on top.

    Args:
        config: What to build. The head's parameters start as all others.
        num_outputs: Width of the head.
        pooled: Whether it reads the pooled output, [N, H], or every token, [T, H].
    """

    def __init__(self, config: AlbertConfig, num_outputs: int, pooled: bool) -> None:
        super().__init__(config)
        config = self.config
        self.albert = AlbertModel(config, add_pooling_layer=pooled)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_outputs)
        self.initialize(ready=self.albert.parameters())

    def packed_logits(self, batch: PackedBatch, trace: Trace | None = None) -> Tensor:
        """Return logits of a packed batch: [N, C], of token classification [T, C], of multiple choice [N, 1].

        Args:
            batch: T tokens of N sequences.
            trace: Collects the states of all tokens, for which the last layer does compute them
                all.
        """
        # A pooled head reads the first token of each sequence alone, so the last layer computes no
        # other. At 128 tokens that makes a training step 1.06 times as fast with base's 12 layers,
        # 1.47 times with 2 of width 256.
        positions = batch.offsets[:0] if self.albert.pooler is not None and trace is None else None
        return self._head(*self.albert.encode(batch, trace, positions))

    def _head(self, hidden: Tensor, pooled: Tensor | None) -> Tensor:
        # In the dtype of the head's parameters, over a bf16 encoder, too: rounded logits gave dev
        # scores in training that `evaluate` did not reproduce.
        values = widen_to_head_dtype(hidden if pooled is None else pooled, self.classifier)
        return linear_function(values.dtype, self.classifier)(self.dropout(values))


class AlbertForSequenceClassification(Classifier):
    """A class, several labels or numbers for each sequence, from the pooled output.

    Args:
        config: What to build; `num_labels` outputs. `problem_type` is "regression",
            "single_label_classification" or "multi_label_classification". None: inferred from the
            first labels, and from then on it is in the configuration.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, to_own_config(config).num_labels, pooled=True)

    def task_loss(self, logits: Tensor, labels: Tensor) -> SummedLoss:
        """Return the loss of `config.problem_type`.

        Args:
            logits: [N, C].
            labels: int64 [N], -100 for none, or float [N, C] of several labels, or float [N] or [N,
                C] of a regression.
        """
        if self.config.problem_type is None:
            # As transformers infers it
            is_integer = labels.dtype in (torch.int64, torch.int32)
            single = "single_label_classification" if is_integer else "multi_label_classification"
            self.config.foreign["problem_type"] = "regression" if logits.shape[1] == 1 else single
        if self.config.problem_type == "regression":
            return regression_loss(logits, labels)
        if self.config.problem_type == "multi_label_classification":
            return multi_label_loss(logits, labels)
        return class_loss(logits, labels.reshape(-1).long())


class AlbertForTokenClassification(Classifier):
    """A class for each token.

    Args:
        config: What to build; `num_labels` classes.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, to_own_config(config).num_labels, pooled=False)


class AlbertForMultipleChoice(Classifier):
    """One of several choices, each a sequence of its own.

    Args:
        config: What to build.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, 1, pooled=True)

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
        """Run padded input [B, choices, S]: `labels` int64 [B], the right choice; other arguments as `PaddedPass`.

        Returns:
            Logits [B, choices]; hidden states and attentions with B·choices rows.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        choices = next(
            # Without either, `PaddedPass` says so.
            (values.shape[1] for values in (input_ids, inputs_embeds) if values is not None),
            1,
        )
        ids, mask, types, positions, embeds = (
            None if values is None else values.reshape(-1, *values.shape[2:]) for values in inputs
        )
        run = PaddedPass(self.albert, ids, mask, types, positions, embeds, **options)
        logits = self._head(run.hidden, run.pooled).view(-1, choices)
        loss = None if labels is None else run.mean(class_loss(logits, labels))
        return run.output(LogitsOutput, loss=loss, logits=logits)


class AlbertForQuestionAnswering(PretrainedAlbert):
    """Start and end of an answer. Also Google's SQuAD 1 model.

    In transformers and at Google padding takes part in the softmax over the places of a row, so
    that the loss of a question depends on how far it is padded. `forward` computes padding to give
    the same logits and loss; `packed_logits` has no padding.

    Args:
        config: What to build.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        config = self.config
        self.albert = AlbertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.initialize(ready=self.albert.parameters())

    def packed_logits(
        self, batch: PackedBatch, trace: Trace | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return start and end logits of a packed batch for `span_loss`, softmax or argmax over the places of each sequence.

        Args:
            batch: T tokens of N sequences.
            trace: Collects hidden states.

        Returns:
            Two tensors [N, longest]; the lowest finite number after a sequence's end.
        """
        logits = batch.unpack(apply_head(self.qa_outputs, self.albert.encode(batch, trace).hidden))
        start, end = logits.masked_fill(
            ~batch.padding_mask()[..., None], torch.finfo(logits.dtype).min
        ).unbind(-1)
        return start, end

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **options: Unpack[PassOptions],
    ) -> QuestionAnsweringOutput:
        """Run padded input.

        `input_ids` to `inputs_embeds` as in `PaddedPass`, options as `PassOptions`.

        Args:
            start_positions: int64 [B], the place of the answer's first token. S and above do not
                count.
            end_positions: int64 [B], of its last token, likewise.
        """
        run = PaddedPass(
            self.albert,
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            True,
            **options,
        )
        logits = apply_head(self.qa_outputs, run.hidden)
        start_logits, end_logits = logits.view(*run.mask.shape, 2).unbind(-1)
        loss = None
        check_span(start_positions, end_positions)
        if start_positions is not None and end_positions is not None:
            losses = span_loss(start_logits, start_positions), span_loss(end_logits, end_positions)
            loss = (run.mean(losses[0]) + run.mean(losses[1])) / 2
        return run.output(
            QuestionAnsweringOutput, loss=loss, start_logits=start_logits, end_logits=end_logits
        )
