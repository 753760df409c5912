"""Filled-in masks: what a person looks at first to see whether a model has learned anything."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from albertkit.corpus import TokenStore
from albertkit.errors import DataError
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.tokenizer import AlbertTokenizer

MASK = "[MASK]"


@dataclass(frozen=True)
class FilledMask:
    """A sentence with one word hidden, and what a model would put there.

    Attributes:
        text: The sentence with `[MASK]` in it.
        answer: The hidden word; empty if unknown.
        predictions: Pairs of piece and probability, best first.
    """

    text: str
    answer: str
    predictions: list[tuple[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@torch.inference_mode()
def fill_mask(
    model: AlbertForPreTraining, tokenizer: AlbertTokenizer, text: str, answer: str = "", top: int = 5
) -> FilledMask:
    """The likeliest pieces for the first `[MASK]` in a text.

    Raises:
        DataError: no-mask.
    """
    ids = tokenizer.encode(text, special_tokens=True, mask_literal=True)
    if tokenizer.mask_id not in ids:
        raise DataError("no-mask", f"there is no {MASK} in {text!r}", f"put {MASK} where a word is to be guessed")
    model.eval()
    batch = PackedBatch.from_sequences([ids]).to(model.predictions.bias.device)
    hidden = model.albert.encode(batch).hidden
    logits = model.predictions(hidden[ids.index(tokenizer.mask_id)]).float()
    best = logits.softmax(-1).topk(top)
    pieces = [tokenizer.id_to_piece(i) for i in best.indices.tolist()]
    return FilledMask(text, answer, list(zip(pieces, best.values.tolist(), strict=True)))


def masked_sentences(
    store: TokenStore, tokenizer: AlbertTokenizer, held_out: list[np.ndarray], count: int, seed: int
) -> list[tuple[str, str]]:
    """Sentences of held-out documents with one whole word hidden, drawn evenly: not chosen for the model to shine.

    Only sentences of 8 to 30 pieces and words of one piece and at least three letters are taken.

    Returns:
        Pairs of text and hidden word.
    """
    starts = tokenizer.word_starts()
    rng = np.random.default_rng(seed)
    documents = np.flatnonzero(np.concatenate(held_out))
    found = []
    for number in rng.permutation(documents):
        sentences = [s for s in store.document(int(number)) if 8 <= len(s) <= 30]
        if not sentences:
            continue
        sentence = sentences[rng.integers(len(sentences))]
        alone = starts[sentence] & np.append(starts[sentence[1:]], True)
        words = [p for p in np.flatnonzero(alone) if len(tokenizer.decode([int(sentence[p])]).strip()) >= 3]
        if not words:
            continue
        place = words[rng.integers(len(words))]
        ids = sentence.tolist()
        before, after = tokenizer.decode(ids[:place]), tokenizer.decode(ids[place + 1 :])
        found.append((f"{before} {MASK} {after}".strip(), tokenizer.decode([ids[place]]).strip()))
        if len(found) == count:
            break
    return found
