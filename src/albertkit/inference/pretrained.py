"""Fill masks and order two texts with the pretraining heads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.data.features import Features, LabelledBatch
from albertkit.errors import CheckpointError, DataError
from albertkit.inference.pipeline import Pipeline, Result, check_top, is_pair, is_text, text_of
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining
from albertkit.tasks.texts.features import text_features

MASK = "[MASK]"
MAX_GUESSES = 50  # for a mask


class FillMask(Pipeline[str]):
    """Guess the likeliest tokens for each `[MASK]` of a text as if the others stayed hidden."""

    kind = "fill-mask"
    options = ("top",)
    example_name = "masked"

    def parse(self, value: Any) -> str:
        """Read a text with at least one `[MASK]`, or the tokenizer's own mask; or an object with such a `text`."""
        value = text_of(value)
        if not is_text(value):
            raise self.bad_input(value, "a text")
        value = value.replace(self.tokenizer.mask_token, MASK)
        if MASK not in value:
            raise DataError("bad-input", f"there is no {MASK} in {value[:80]!r}", f"for example {self.example!r}")
        return value

    def features(self, inputs: Sequence[str]) -> Features:
        """Tokenize each text into a sequence; `masked` says at which tokens the masks are."""
        texts = [text.replace(MASK, self.tokenizer.mask_token) for text in inputs]
        rows = [self.tokenizer.encode(text, special_tokens=True, mask_literal=True) for text in texts]
        max_tokens = self.model.config.max_position_embeddings
        for row, text in zip(rows, inputs, strict=True):
            if len(row) > max_tokens:
                raise DataError(
                    "too-large",
                    f"{text[:60]!r} … has {len(row):,} tokens, the model reads {max_tokens}",
                    "cut the text",
                )
        features = Features.of([(row, len(row)) for row in rows], range(len(rows)))
        return replace(features, per_token={"masked": features.input_ids == self.tokenizer.mask_id})

    def outputs(self, batch: LabelledBatch) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return ids int64 [P, K] and probabilities fp32 [P, K] of the P masks of each sequence."""
        assert isinstance(self.model, AlbertForPreTraining | AlbertForMaskedLM)
        masked = batch.per_token["masked"]
        positions = masked.nonzero().squeeze(1)
        heads = self.model.packed_logits(replace(batch.packed, masked_positions=positions))
        logits: Tensor = heads[0] if isinstance(heads, tuple) else heads
        # Rows that only fill up the table are no tokens.
        shares = logits.float().softmax(-1)[:, : self.tokenizer.vocab_size]
        best = shares.topk(min(MAX_GUESSES, shares.shape[1]))
        ends = torch.searchsorted(positions, batch.packed.offsets[1:-1]).cpu().numpy()
        ids, probabilities = (np.split(part.cpu().numpy(), ends) for part in (best.indices, best.values))
        return list(zip(ids, probabilities, strict=True))

    def results(
        self, inputs: Sequence[str], features: Features, outputs: Sequence[Any], *, top: int = 5, **_: Any
    ) -> list[Result]:
        """Return `text` and `masks`: guesses, best first, with `piece`, `word` (as read in a text), `id`, `probability`."""
        check_top(top, MAX_GUESSES)
        return [
            {"text": text, "masks": [self._guesses(row, shares, top) for row, shares in zip(*masks, strict=True)]}
            for text, masks in zip(inputs, outputs, strict=True)
        ]

    def _guesses(self, ids: np.ndarray, probabilities: np.ndarray, top: int) -> list[Result]:
        return [
            {
                "piece": self.tokenizer.id_to_piece(i),
                "word": self.tokenizer.decode([i]).strip(),
                "id": i,
                "probability": p,
            }
            for i, p in zip(ids[:top].tolist(), probabilities[:top].tolist(), strict=True)
        ]


class SentenceOrder(Pipeline[tuple[str, str]]):
    """Tell whether two texts stand in their order, as ALBERT was pretrained to do."""

    kind = "sentence-order"
    example_name = "ordered"

    def parse(self, value: Any) -> tuple[str, str]:
        """Read two texts in a tuple or a list, or an object with `text` and `pair`."""
        if isinstance(value, Mapping):
            value = (value.get("text"), value.get("pair"))
        if not is_pair(value) or not all(text.strip() for text in value):
            raise self.bad_input(value, "two texts, the first and the second")
        return value[0], value[1]

    def features(self, inputs: Sequence[tuple[str, str]]) -> Features:
        """Tokenize each pair into a sequence, cut to what the model reads."""
        firsts, seconds = zip(*inputs, strict=True)
        return text_features(firsts, seconds, self.tokenizer, self.model.config.max_position_embeddings)

    def outputs(self, batch: LabelledBatch) -> list[np.ndarray]:
        """Return probabilities fp32 [2] of each sequence: in order, swapped."""
        if not isinstance(self.model, AlbertForPreTraining):
            raise CheckpointError(
                "wrong-model", "the model has no sentence-order head", "use one that was pretrained with sentence order"
            )
        nowhere = batch.packed.offsets[:0]
        _, logits = self.model.packed_logits(replace(batch.packed, masked_positions=nowhere))
        return list(logits.float().softmax(-1).cpu().numpy())

    def results(
        self, inputs: Sequence[tuple[str, str]], features: Features, outputs: Sequence[Any], **_: Any
    ) -> list[Result]:
        """Return the probabilities `in_order` and `swapped`."""
        return [{"in_order": float(shares[0]), "swapped": float(shares[1])} for shares in outputs]
