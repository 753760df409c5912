"""Turn planned examples into packed batches: tokens copied out of the memory-mapped store, then segments and masks."""

from dataclasses import dataclass

import numpy as np
import torch

from albertkit.data.packing import PackedBatch
from albertkit.jit import compiled
from albertkit.pretraining.examples import LABELS, EpochPlan, Store, foreign_id, lengths_of, plain
from albertkit.pretraining.masking import MaskSettings, mask_sequences, mask_tables
from albertkit.pretraining.randomness import MASKS, make_key
from albertkit.pretraining.segments import SINGLE


@compiled
def _lay_out(
    examples: np.ndarray,
    offsets: np.ndarray,
    cls_id: int,
    sep_id: int,
    input_ids: np.ndarray,
    token_type_ids: np.ndarray,
    position_ids: np.ndarray,
) -> None:
    """Write [CLS], [SEP], segment ids (0 up to and including the first [SEP], then 1) and positions of N packed sequences."""
    for n in range(len(examples)):
        base, end = offsets[n], offsets[n + 1]
        middle = base + 2 + np.int64(examples[n].a_length)
        input_ids[base], input_ids[middle - 1], input_ids[end - 1] = cls_id, sep_id, sep_id
        token_type_ids[base:middle] = 0
        token_type_ids[middle:end] = 1
        for i in range(base, end):
            position_ids[i] = i - base


@compiled
def _copy_segments(
    tokens: np.ndarray, shard: int, examples: np.ndarray, offsets: np.ndarray, input_ids: np.ndarray
) -> None:
    """Copy the segments that lie in one shard to their places."""
    for n in range(len(examples)):
        example = examples[n]
        start, length = offsets[n] + 1, np.int64(example.a_length)
        if example.a_shard == shard:
            first = np.int64(example.a_start)
            for i in range(length):
                input_ids[start + i] = tokens[first + i]
        if example.b_shard == shard and example.kind != SINGLE:
            start += length + 1
            first = np.int64(example.b_start)
            for i in range(np.int64(example.b_length)):
                input_ids[start + i] = tokens[first + i]


@dataclass(frozen=True)
class Assembled:
    """A packed batch as it was before masking, and how it was masked; for readers and for tests.

    Attributes:
        batch: The packed batch.
        original_ids: int64 [T], before masking.
        ngrams: int32 [rows, 6], one row an n-gram drawn: sequence, drawn, accepted, units, tokens, across_sep (`masking`).
    """

    batch: PackedBatch
    original_ids: np.ndarray
    ngrams: np.ndarray


class Assembler:
    """Makes packed batches of examples of one store, masked with a seed."""

    def __init__(self, store: Store, masks: MaskSettings, seed: int) -> None:
        tokenizer = store.tokenizer()
        self.masks, self.seed = masks, seed
        self._cls_id, self._sep_id = int(tokenizer.cls_id), int(tokenizer.sep_id)
        self._vocab_size = int(tokenizer.vocab_size)
        self._tables = mask_tables(tokenizer, masks)
        self._tokens = [plain(store.tokens[k]) for k in range(store.num_shards)]

    def batch(self, plan: EpochPlan, indices: np.ndarray, epoch: int) -> PackedBatch:
        """Return the packed batch of the examples at some places in the plan, int64 [N].

        An example's masks depend on its place alone, not on its company.
        """
        return self._assemble(plan, indices, epoch, log_rows=0).batch

    def study(self, plan: EpochPlan, indices: np.ndarray, epoch: int) -> Assembled:
        """Return the same batch, with the ids before masking and every n-gram drawn."""
        return self._assemble(plan, indices, epoch, log_rows=int(plan.lengths(indices).sum()))

    def _assemble(self, plan: EpochPlan, indices: np.ndarray, epoch: int, log_rows: int) -> Assembled:
        examples = plan.examples[indices]
        lengths = lengths_of(examples, plan.num_specials)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        input_ids, token_type_ids, position_ids = (np.empty(offsets[-1], np.int64) for _ in range(3))
        _lay_out(examples, offsets, self._cls_id, self._sep_id, input_ids, token_type_ids, position_ids)
        for shard in np.unique(np.concatenate([examples["a_shard"], examples["b_shard"]])):
            _copy_segments(self._tokens[shard], int(shard), examples, offsets, input_ids)
        if (largest := int(input_ids.max(initial=0))) >= self._vocab_size:  # the masking loops look ids up unchecked
            raise foreign_id(largest, self._vocab_size)
        original_ids = input_ids.copy() if log_rows else input_ids

        budgets = self.masks.budgets(lengths)
        positions, labels = (np.empty(budgets.sum() + 1, np.int64) for _ in range(2))
        log = np.empty((log_rows, 6), np.int32)
        count, logged = mask_sequences(
            input_ids,
            offsets,
            examples,
            indices + plan.first,
            budgets,
            self._tables,
            make_key(self.seed, MASKS, epoch),
            positions,
            labels,
            log,
        )
        batch = PackedBatch(
            input_ids=torch.from_numpy(input_ids),
            token_type_ids=torch.from_numpy(token_type_ids),
            position_ids=torch.from_numpy(position_ids),
            offsets=torch.from_numpy(offsets),
            lengths=tuple(lengths.tolist()),
            masked_positions=torch.from_numpy(positions[:count]) if self.masks.masked_lm_prob else None,
            masked_labels=torch.from_numpy(labels[:count]) if self.masks.masked_lm_prob else None,
            sentence_order_labels=torch.from_numpy(LABELS[examples["kind"]]) if plan.has_pairs else None,
        )
        return Assembled(batch, original_ids, log[:logged])
