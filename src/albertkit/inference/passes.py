"""What the passes of the shared layer do to a text: how far the states move, whether they settle, where the heads look.

L passes of one layer (blocks run, so L · inner_group_num), S tokens of a text, H hidden, A heads. State 0 is the projected
embedding, state l the output of pass l. The paper draws the same movement in figure 1: with shared weights the states
keep moving from pass to pass, they do not reach a fixed point.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.corpus import builtin_documents
from albertkit.errors import DataError
from albertkit.inference.states import cosine, direction, encode_text, length_of, states_of
from albertkit.model.pretrained import PretrainedAlbert
from albertkit.tokenizer import AlbertTokenizer

SAMPLE_TEXTS = 16  # of the built-in documents: 2,000 tokens, where the second decimal no longer moves
SAMPLE_LENGTH = 128
DIGITS = 4  # that a page draws
TOP = 5  # predictions of a mask


@dataclass(frozen=True)
class Passes:
    """Movement through L passes: means over all tokens of all texts, special ones included. Plain lists, ready for JSON.

    Attributes:
        texts: How many.
        tokens: In all of them.
        unknown: Share of them that the tokenizer does not know.
        cut: Texts that were longer than the length.
        similarity: [L+1][L+1], cosine of a token's state i with its state j.
        norm: [L+1], length of the state.
        step: [L], length of what pass l adds, as a multiple of the length of the state it is added to.
        turn: [L-1], cosine of the step of pass l with that of pass l + 1: 1 goes straight on, -1 goes back.
        anisotropy: [L+1], cosine of two different tokens' states, over all pairs of tokens; 0 where directions are spread
            evenly (Ethayarajh 2019).
        entropy: [L][A], of what a token looks at, in nats.
        uniform: Entropy of looking at every token alike, in nats.
    """

    texts: int
    tokens: int
    unknown: float
    cut: int
    similarity: list[list[float]]
    norm: list[float]
    step: list[float]
    turn: list[float]
    anisotropy: list[float]
    entropy: list[list[float]]
    uniform: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def sample_texts(count: int = SAMPLE_TEXTS) -> list[str]:
    """The first of the built-in documents: English that every Python carries.

    Raises:
        MachineError: no-builtin-text.
    """
    return [" ".join(sentences) for sentences in islice(builtin_documents(), count)]


def trace_passes(
    model: PretrainedAlbert, tokenizer: AlbertTokenizer, texts: Sequence[str], length: int = SAMPLE_LENGTH
) -> Passes:
    """Run texts through a model and measure what each pass does.

    Args:
        model: Any class over an encoder; computed in its `compute_dtype`, without dropout.
        tokenizer: The model's.
        texts: At least one; each is computed alone.
        length: Tokens of a text at most, special ones included.

    Raises:
        DataError: bad-input. ConfigError: bad-argument. CheckpointError: vocab-mismatch, vectors-not-finite.
    """
    if not texts:
        raise DataError("bad-input", "there is no text to look at", "name one: --text 'One layer, run twelve times.'")
    encoded = [encode_text(model, tokenizer, text, length) for text in texts]
    found = [_moved(*states_of(model, ids)) for ids, _ in encoded]
    total = {name: torch.stack([one[name] for one in found]).sum(0) for name in found[0]}
    tokens = sum(len(ids) for ids, _ in encoded)
    pairs = total["directions"].square().sum(-1) - total["with_itself"]  # |a + b|² is a·a + b·b and every pair, twice
    return Passes(
        texts=len(encoded),
        tokens=tokens,
        unknown=sum(ids.count(tokenizer.unk_id) for ids, _ in encoded) / tokens,
        cut=sum(left > 0 for _, left in encoded),
        similarity=(total["similarity"] / tokens).tolist(),
        norm=(total["norm"] / tokens).tolist(),
        step=(total["step"] / tokens).tolist(),
        turn=(total["turn"] / tokens).tolist(),
        anisotropy=(pairs / (tokens * (tokens - 1))).tolist(),
        entropy=(total["entropy"] / tokens).tolist(),
        uniform=float(total["uniform"] / tokens),
    )


def look_inside(model: PretrainedAlbert, tokenizer: AlbertTokenizer, text: str, max_tokens: int = 64) -> dict[str, Any]:
    """One text, token by token and pass by pass, as plain JSON values.

    Args:
        model: Any class over an encoder; computed in its `compute_dtype`, without dropout.
        tokenizer: The model's.
        text: May hold `[MASK]`.
        max_tokens: S at most, special ones included.

    Returns:
        - tokens: S pieces; left_out: how many more the text has; passes: L.
        - attention: [L][A][S][S], what the token of a row looks at; rounded to 4 digits.
        - similarity: [S][L], cosine of a token's state after pass l with its last state; the last is 1.
        - step: [S][L], length of what pass l adds, as a multiple of the length of the state it is added to.
        - states_2d: [S][L+1][2], all states in the plane of their two main axes (PCA); variance: [2], the shares that these
          axes show.
        - predictions: of each `[MASK]` its `position`, and `passes`: [L] lists of five {piece, probability}, best first, the
          masked-LM head read after every pass. It was trained on pass L alone: what it says of earlier states is an
          approximation (the "logit lens"). None for a model without that head.

    Raises:
        DataError: bad-input. ConfigError: bad-argument. CheckpointError: vocab-mismatch, vectors-not-finite.
    """
    ids, left_out = encode_text(model, tokenizer, text, max_tokens)
    states, attention = states_of(model, ids)
    change = states.diff(dim=0).norm(dim=-1) / length_of(states[:-1])
    plane, variance = _plane(states)
    return {
        "tokens": [tokenizer.id_to_piece(i) for i in ids],
        "left_out": left_out,
        "passes": len(attention),
        "attention": _rounded(attention),
        "similarity": _rounded(cosine(states[1:], states[-1:]).T),
        "step": _rounded(change.T),
        "states_2d": _rounded(plane),
        "variance": _rounded(variance),
        "predictions": _predictions(model, tokenizer, ids, states),
    }


def _moved(states: Tensor, attention: Tensor) -> dict[str, Tensor]:
    """What `Passes` holds, summed over the S tokens of one text."""
    change = states.diff(dim=0)
    directions = direction(states)
    return {
        "similarity": torch.einsum("ish,jsh->ij", directions, directions),
        "norm": states.norm(dim=-1).sum(1),
        "step": (change.norm(dim=-1) / length_of(states[:-1])).sum(1),
        "turn": cosine(change[1:], change[:-1]).sum(1),
        "directions": directions.sum(1),
        "with_itself": directions.square().sum((1, 2)),
        "entropy": torch.special.entr(attention).sum((-1, -2)),
        "uniform": torch.tensor(states.shape[1]).double().log() * states.shape[1],
    }


def _predictions(
    model: PretrainedAlbert, tokenizer: AlbertTokenizer, ids: list[int], states: Tensor
) -> list[dict[str, Any]] | None:
    head = getattr(model, "predictions", None)
    if head is None:
        return None
    places = [place for place, number in enumerate(ids) if number == tokenizer.mask_id]
    if not places:
        return []
    with torch.inference_mode():
        logits = head(states[1:, places].to(model.device, model.dtype)).double().cpu()
    best = logits[..., : tokenizer.vocab_size].softmax(-1).topk(min(TOP, tokenizer.vocab_size))
    return [
        {
            "position": place,
            "passes": [
                [
                    {"piece": tokenizer.id_to_piece(i), "probability": round(p, DIGITS)}
                    for i, p in zip(*of_pass, strict=True)
                ]
                for of_pass in zip(best.indices[:, n].tolist(), best.values[:, n].tolist(), strict=True)
            ],
        }
        for n, place in enumerate(places)
    ]


def _plane(states: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """[S, L+1, 2] and the shares of the variance, 0 where nothing moves."""
    from sklearn.decomposition import PCA

    passes, tokens, width = states.shape
    pca = PCA(n_components=2, svd_solver="full")
    with np.errstate(invalid="ignore"):
        points = pca.fit_transform(states.reshape(-1, width).numpy())
    return points.reshape(passes, tokens, 2).swapaxes(0, 1), np.nan_to_num(pca.explained_variance_ratio_)


def _rounded(values: Tensor | np.ndarray) -> Any:
    return np.round(np.asarray(values, np.float64), DIGITS).tolist()
