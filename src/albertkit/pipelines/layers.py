"""Movement of a text through the layers: how far the states move, whether they settle, where the heads look.

L layers (blocks run, so num_hidden_layers · inner_group_num), S tokens of a text, H hidden, A
heads. State 0 is the projected embedding, state l the output of layer l. The paper draws the same
movement in figure 1: with shared weights the states keep moving from layer to layer, they do not
reach a fixed point.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.batches.packed import PackedBatch
from albertkit.conversion.classes import check_vocabulary
from albertkit.engines.engine import evaluation_mode
from albertkit.errors import ConfigError, DataError, MachineError
from albertkit.model.padded import Trace
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer

DIGITS = 4  # that a page draws
MAX_GUESSES = 5  # of a mask


def trace_layers(
    model: PretrainedAlbert, tokenizer: AlbertTokenizer, text: str, max_tokens: int = 64
) -> dict[str, Any]:
    """Return one text, token by token and layer by layer, as plain JSON values.

    The text may hold `[MASK]`; of S at most `max_tokens` are read. The model computes in its
    `compute_dtype`, without dropout.

    Returns:
        - tokens: S tokens; left_out: how many more the text has; passes: L.
        - attention: [L][A][S][S], what the token of a row attends to; rounded to 4 digits.
        - similarity: [S][L], cosine of a token's state after layer l with its last state; the last is 1.
        - step: [S][L], length of what layer l adds, as a multiple of the length of the state it is added to.
        - states_2d: [S][L+1][2], all states in the plane of their two main axes (PCA); variance: [2], the shares that these
          axes show.
        - predictions: of each `[MASK]` its `position`, and `passes`: [L] lists of five {piece, probability}, best first, the
          masked-LM head read after every layer. It was trained on layer L alone: what it says of earlier states is an
          approximation (the "logit lens"). None for a model without that head.
    """
    from sklearn.decomposition import PCA

    ids, left_out = encode_text(model, tokenizer, text, max_tokens)
    states, attention = compute_states(model, ids)
    change = states.diff(dim=0).norm(dim=-1) / nonzero_lengths(states[:-1])
    count, tokens, width = states.shape
    pca = PCA(n_components=2, svd_solver="full")
    with np.errstate(invalid="ignore"):  # where nothing moves the shares are 0 / 0
        points = pca.fit_transform(states.reshape(-1, width).numpy())
    plane = points.reshape(count, tokens, 2).swapaxes(0, 1)
    variance = np.nan_to_num(pca.explained_variance_ratio_)
    return {
        "tokens": [tokenizer.id_to_piece(i) for i in ids],
        "left_out": left_out,
        "passes": len(attention),
        "attention": _rounded_list(attention),
        "similarity": _rounded_list(cosine(states[1:], states[-1:]).T),
        "step": _rounded_list(change.T),
        "states_2d": _rounded_list(plane),
        "variance": _rounded_list(variance),
        "predictions": _predictions_of_layers(model, tokenizer, ids, states),
    }


def _predictions_of_layers(
    model: PretrainedAlbert, tokenizer: AlbertTokenizer, ids: list[int], states: Tensor
) -> list[dict[str, Any]] | None:
    head = getattr(model, "predictions", None)
    if head is None:
        return None
    positions = [position for position, token_id in enumerate(ids) if token_id == tokenizer.mask_id]
    if not positions:
        return []
    with torch.inference_mode():
        logits = head(states[1:, positions].to(model.device, model.dtype)).double().cpu()
    shares = logits[..., : tokenizer.vocab_size].softmax(-1)
    best = shares.topk(min(MAX_GUESSES, tokenizer.vocab_size))
    predictions = []
    for n, position in enumerate(positions):
        passes = []
        for layer_ids, layer_shares in zip(best.indices[:, n], best.values[:, n], strict=True):
            guesses = zip(
                map(tokenizer.id_to_piece, layer_ids.tolist()), layer_shares.tolist(), strict=True
            )
            passes.append(
                [{"piece": piece, "probability": round(share, DIGITS)} for piece, share in guesses]
            )
        predictions.append({"position": position, "passes": passes})
    return predictions


def _rounded_list(values: Tensor | np.ndarray) -> Any:
    return np.round(np.asarray(values, np.float64), DIGITS).tolist()


# --- states of one text ---------------------------------------------------------------------------


def encode_text(
    model: PretrainedAlbert, tokenizer: AlbertTokenizer, text: str, length: int
) -> tuple[list[int], int]:
    """Return ids with special tokens, at most `length` and what the model reads, and how many did not fit."""
    if length < 3:
        raise ConfigError(
            "bad-value", f"a length of {length} tokens", "use at least 3: [CLS], a token, [SEP]"
        )
    check_vocabulary(tokenizer.vocab_size, model.config.vocab_size)
    ids = tokenizer.encode(text, mask_literal=True)
    if not ids:
        raise DataError(
            "bad-input", f"there is nothing to read in {text[:60]!r}", "give a sentence"
        )
    text_ids = ids[: min(length, model.config.max_position_embeddings) - 2]
    return [tokenizer.cls_id, *text_ids, tokenizer.sep_id], len(ids) - len(text_ids)


@torch.inference_mode()
def compute_states(model: PretrainedAlbert, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return fp64 [L+1, S, H], the projected embedding and the output of every layer; and attention fp64 [L, A, S, S]."""
    trace = Trace(hidden_states=True, attentions=True)
    with evaluation_mode(model):
        model.encoder_model.encode(PackedBatch.from_sequences([ids]).to(model.device), trace)
    assert trace.hidden_states is not None
    assert trace.attentions is not None
    states = torch.stack(trace.hidden_states).double().cpu()
    attention = torch.stack([of_layer[0] for of_layer in trace.attentions]).double().cpu()
    if not (states.isfinite().all() and attention.isfinite().all()):
        raise MachineError(
            "not-finite",
            "the model's hidden states are not finite",
            "its weights are broken: copy them again",
        )
    return states, attention


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosines [...] of vectors [..., H]."""
    return (normalize_direction(a) * normalize_direction(b)).sum(-1).clamp(-1, 1)  # rounding


def normalize_direction(vectors: Tensor) -> Tensor:
    """Scale vectors to length 1; a vector that is exactly 0 stays 0, and has the cosine 0 with every other."""
    return vectors / nonzero_lengths(vectors)[..., None]


def nonzero_lengths(vectors: Tensor) -> Tensor:
    """Return lengths that are never 0, so that one can divide by them."""
    return vectors.norm(dim=-1).clamp_min(torch.finfo(vectors.dtype).tiny)
