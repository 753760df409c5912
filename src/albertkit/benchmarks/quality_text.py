"""What both sides of `bench quality` are scored on: full blocks of held-out text, masked once as BERT's collator does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.config import AlbertConfig
from albertkit.corpus import TokenStore
from albertkit.model import AlbertForMaskedLM, PackedBatch
from albertkit.pretraining.evaluation import Unigram

MASKED = 0.15
MOST_BLOCKS = 800  # to score on: 100,000 tokens of length 128, 15,000 masked
AT_ONCE = 32  # blocks


def blocks(store: TokenStore, included: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Documents one after the other, each as [CLS] tokens [SEP], cut into full blocks, as transformers' run_mlm.py does.

    Args:
        store: The token store.
        included: Per shard, the documents to use.
        length: Tokens of a block.

    Returns:
        int64 [blocks, length]; what is left over at the end is dropped, as there.
    """
    tokenizer = store.tokenizer()
    parts = []
    for shard in range(store.num_shards):
        starts = store.sentence_offsets[shard][store.document_offsets[shard]]
        for document in np.flatnonzero(included[shard]):
            tokens = store.tokens[shard][starts[document] : starts[document + 1]]
            parts += [[tokenizer.cls_id], tokens, [tokenizer.sep_id]]
    stream = np.concatenate(parts, dtype=np.int64)
    return stream[: len(stream) // length * length].reshape(-1, length)


def masked_batches(text: np.ndarray, tokenizer: Any, seed: int = 0) -> list[PackedBatch]:
    """Blocks with 15 % of their ordinary tokens drawn one by one: 80 % become [MASK], 10 % a random piece, 10 % stay.

    Args:
        text: int64 [blocks, length].
        tokenizer: Whose special pieces are left alone.
        seed: The same masks for everybody.
    """
    draws = np.random.default_rng(seed)
    chosen = (draws.random(text.shape) < MASKED) & ~np.isin(text, tokenizer.special_ids())
    fate, pieces = draws.random(text.shape), draws.integers(0, tokenizer.vocab_size, text.shape)
    shown = np.where(chosen & (fate < 0.8), tokenizer.mask_id, np.where(chosen & (fate >= 0.9), pieces, text))
    return [
        _packed(text[n : n + AT_ONCE], shown[n : n + AT_ONCE], chosen[n : n + AT_ONCE])
        for n in range(0, len(text), AT_ONCE)
    ]


def _packed(text: np.ndarray, shown: np.ndarray, chosen: np.ndarray) -> PackedBatch:
    count, length = text.shape
    positions = np.flatnonzero(chosen)
    return PackedBatch(
        input_ids=torch.from_numpy(shown.ravel()),
        token_type_ids=torch.zeros(count * length, dtype=torch.int64),
        position_ids=torch.arange(length).repeat(count),
        offsets=torch.arange(count + 1) * length,
        lengths=(length,) * count,
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(text.ravel()[positions]),
    )


class Judge:
    """Scores saved weights of either side on the held-out documents.

    Args:
        store: The token store.
        held_out: Per shard, the documents neither side has seen.
        config: Of both models.
        length: Tokens of a block.

    Attributes:
        config: Of both models.
        unigram_loss: Of the same masked pieces under the frequencies of the training documents, in nats.
        predictions: Masked pieces scored.
    """

    def __init__(self, store: TokenStore, held_out: list[np.ndarray], config: AlbertConfig, length: int) -> None:
        text = blocks(store, held_out, length)
        text = text[np.linspace(0, len(text) - 1, min(len(text), MOST_BLOCKS)).astype(int)]  # evenly from all documents
        self.config = config
        self._batches = masked_batches(text, store.tokenizer())
        self._model = AlbertForMaskedLM(config).eval()
        unigram = Unigram(store, held_out)
        self.predictions = sum(len(batch.masked_targets()[1]) for batch in self._batches)
        self.unigram_loss = (
            sum(unigram.score(batch.masked_targets()[1])[0] for batch in self._batches) / self.predictions
        )

    @torch.inference_mode()
    def loss(self, weights: dict[str, Tensor]) -> float:
        """Mean cross-entropy in nats, in fp32, all passes; names that a masked-LM model lacks are ignored."""
        wanted = self._model.state_dict().keys()
        self._model.load_state_dict({name: tensor for name, tensor in weights.items() if name in wanted})
        return sum(float(self._model.packed_loss(batch).loss_sum) for batch in self._batches) / self.predictions

    def curve(self, files: Sequence[Path]) -> list[float]:
        """The losses of files of weights."""
        from safetensors.torch import load_file

        return [self.loss(load_file(file)) for file in files]
