"""The states of one text: every pass of the layer, and what is asked of vectors.

L passes, S tokens, H hidden, A heads.
"""

import torch
from torch import Tensor

from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.model.packing import PackedBatch
from albertkit.model.padded import Trace
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer


def encode_text(model: PretrainedAlbert, tokenizer: AlbertTokenizer, text: str, length: int) -> tuple[list[int], int]:
    """Ids with special tokens, at most `length` and what the model reads, and how many did not fit.

    Raises:
        DataError: bad-input. ConfigError: bad-argument. CheckpointError: vocab-mismatch.
    """
    if length < 3:
        raise ConfigError("bad-argument", f"a length of {length} tokens", "use at least 3: [CLS], a token, [SEP]")
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            "vocab-mismatch",
            f"the tokenizer has {tokenizer.vocab_size:,} pieces, the model {model.config.vocab_size:,}",
            "use the tokenizer in the model's folder",
        )
    ids = tokenizer.encode(text, mask_literal=True)
    if not ids:
        raise DataError("bad-input", f"there is nothing to read in {text[:60]!r}", "give a sentence")
    kept = ids[: min(length, model.config.max_position_embeddings) - 2]
    return [tokenizer.cls_id, *kept, tokenizer.sep_id], len(ids) - len(kept)


@torch.inference_mode()
def states_of(model: PretrainedAlbert, ids: list[int]) -> tuple[Tensor, Tensor]:
    """fp64 [L+1, S, H], the projected embedding and the output of every pass; and attention fp64 [L, A, S, S].

    Raises:
        CheckpointError: vectors-not-finite.
    """
    trace = Trace(hidden_states=True, attentions=True)
    training = model.training
    if training:  # a model that serves is not touched: others compute with it at the same time
        model.eval()
    try:
        model.encoder_model.encode(PackedBatch.from_sequences([ids]).to(model.device), trace)
    finally:
        if training:
            model.train()
    assert trace.hidden_states is not None
    assert trace.attentions is not None
    states = torch.stack(trace.hidden_states).double().cpu()
    attention = torch.stack([of_pass[0] for of_pass in trace.attentions]).double().cpu()
    if not (states.isfinite().all() and attention.isfinite().all()):
        raise CheckpointError(
            "vectors-not-finite", "the model's hidden states are not finite", "its weights are broken: copy them again"
        )
    return states, attention


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """[...] of vectors [..., H]."""
    return (direction(a) * direction(b)).sum(-1)


def direction(vectors: Tensor) -> Tensor:
    """Of length 1; a vector that is exactly 0 stays 0, and has the cosine 0 with every other."""
    return vectors / length_of(vectors)[..., None]


def length_of(vectors: Tensor) -> Tensor:
    """Never 0, so that one can divide by it."""
    return vectors.norm(dim=-1).clamp_min(torch.finfo(vectors.dtype).tiny)
