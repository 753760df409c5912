"""Row `caption`: captions a second from cached states, compared with encoding everything again for each word.

With --train updates a second, compared with BERT: an ALBERT that shares nothing and whose
embeddings are as wide as the network, so both run through the same code; what differs is the
architecture. Memory is counted, not read from the system: parameters, gradients and the two moments
of AdamW, and the bytes that autograd keeps for the backward pass.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from albertkit.captioning.generate import generate
from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.settings import CaptionIds, GenerationSettings
from albertkit.config import AlbertConfig
from benchmarks.harness import (
    TIMING,
    Contender,
    Peer,
    Row,
    Timing,
    measure,
    precisions,
    using_threads,
    versions,
)

IDS = CaptionIds(start=2, end=3, mask=4, padding=0)
SWINBERT = "everything again each word (SwinBERT's scheme)"
TRANSFORMERS = Peer(
    "transformers BertModel again each word", "transformers", "pip install 'albertkit[caption]'"
)
WIDTH = 512  # of SwinBERT's visual tokens after `fc`
NOTE = (
    "random weights; greedy, the end forbidden, so that all write as many words. From visual tokens on: a backbone "
    "runs once in any scheme. SwinBERT's scheme runs on our ALBERT, whose layers cost what BERT's cost; transformers' "
    "BertModel computes the same lengths without a prediction head"
)
BERT_VOCABULARY = 30_522
LENGTH, MASKED = 50, 25  # tokens of SwinBERT's caption, and how many of them are predicted
ALBERT, BERT = "albertkit", "BERT in the same code"
TRAIN_NOTE = (
    "from visual tokens to the update of AdamW, fp32, dropout off, random weights and captions, output matrix tied; the "
    "backbone is the same in both and left out"
)


def caption(
    *,
    visual_tokens: int = 784,
    words: int = 20,
    train: bool = False,
    batch_size: int = 1,
    timing: Timing = TIMING,
) -> Iterator[Row]:
    """Captions a second, decoded from cached states, compared with encoding text and video again for every word.

    Args:
        visual_tokens: Of the clip; 784 are SwinBERT's 32 frames.
        words: Tokens of the caption.
        train: Updates a second instead: ALBERT and BERT as SwinBERT's text model, with parameters
            and memory of both.
        batch_size: With --train: clips in an update.
    """
    if min(visual_tokens, words, batch_size) < 1:
        raise SystemExit("--visual-tokens, --words and --batch-size must be at least 1")
    config = timing.model_config()
    with using_threads(timing.threads):
        if train:
            yield _training_row(config, visual_tokens, batch_size, timing.rounds or 3)
            return
        yield from _rows(config, visual_tokens, words, timing.rounds or 3)


# --- captions -------------------------------------------------------------------------------------


@torch.inference_mode()
def _rows(config: AlbertConfig, visual_tokens: int, words: int, rounds: int) -> Iterator[Row]:
    torch.manual_seed(0)
    model = AlbertForImageCaptioning(CaptionConfig(img_feature_dim=WIDTH).stored_in(config)).eval()
    model.predictions.bias.data[IDS.end] = -1e4
    visual = torch.randn(1, visual_tokens, WIDTH)
    recompute = partial(from_everything, model, visual, words)
    peers = [Contender(SWINBERT, recompute, 1.0)]
    if TRANSFORMERS.installed:
        peers.append(
            Contender(TRANSFORMERS.name, _transformers_again(config, visual_tokens, words), 1.0)
        )
    dtypes = dict(reversed(precisions().items()))
    runs = {
        name: partial(from_cache, model, visual, words, dtype) for name, dtype in dtypes.items()
    }
    contenders = {name: Contender(f"albertkit {name}", run, 1.0) for name, run in runs.items()}
    title = f"caption of {words} words, {visual_tokens} visual tokens, ours in {{}}"
    fields: dict[str, Any] = dict(
        note=NOTE, missing=TRANSFORMERS.missing, versions=versions("torch", "transformers")
    )
    rows, _ = measure(title, "captions/s", contenders, peers, rounds, **fields)
    expected = recompute()
    for name, row in rows.items():
        caption = runs[name]()
        row.equal = torch.equal(caption, expected) if name == "fp32" else None
        share_equal = float((caption == expected).float().mean())
        row.compared = f"the words of SwinBERT's scheme in fp32: {share_equal:.0%} the same"
        yield row


def from_cache(
    model: AlbertForImageCaptioning, visual: Tensor, words: int, dtype: torch.dtype
) -> Tensor:
    """Return the words of a caption, computed from cached states."""
    model.compute_dtype = None if dtype is torch.float32 else dtype
    context = model.albert.encode_context(model.albert.project(visual))
    ids = generate(model, context, GenerationSettings(max_length=words + 2, num_beams=1), IDS).ids[
        0, 0
    ]
    model.compute_dtype = None
    return ids[1 : words + 1]


def from_everything(model: AlbertForImageCaptioning, visual: Tensor, words: int) -> Tensor:
    """Return the same words as SwinBERT finds them: text so far, [MASK] and all visual tokens, encoded again for each word."""
    ids = torch.full((1, 1), IDS.start)
    visible = torch.ones(1, visual.shape[1], dtype=torch.bool)
    for _ in range(words + 1):  # one more finds the end
        masked_ids = torch.cat([ids, torch.full((1, 1), IDS.mask)], 1)
        mask = caption_mask(torch.ones_like(masked_ids, dtype=torch.bool), visible)
        hidden = model.albert(masked_ids, visual, mask)[0][:, masked_ids.shape[1] - 1]
        logits = model.predictions(hidden)
        logits[:, [IDS.start, IDS.mask, IDS.padding]] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids[0, 1 : words + 1]


def caption_mask(caption: Tensor, visual: Tensor) -> Tensor:
    """Return SwinBERT's whole table for padded rows, the caption before the video; `captioning/layers.py` shows it.

    Args:
        caption: bool [B, T], False at padding.
        visual: bool [B, M], False at padding.

    Returns:
        bool [B, 1, N, N] with N = T + M, True where a row may look; rows and columns of padding are
        False.
    """
    real, words = torch.cat([caption, visual], 1), caption.shape[1]
    table = torch.ones(real.shape[1], real.shape[1], dtype=torch.bool)
    table[:words, :words] = table[:words, :words].tril()
    table[words:, :words] = False
    return (table & real[:, :, None] & real[:, None, :])[:, None]


def _transformers_again(config: AlbertConfig, visual_tokens: int, words: int) -> partial[None]:
    from transformers import BertConfig, BertModel

    shared = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    )
    sizes = {name: getattr(config, name) for name in shared}
    theirs = BertConfig(**sizes, max_position_embeddings=visual_tokens + words + 2)
    bert = BertModel(theirs, add_pooling_layer=False).eval()
    inputs = torch.randn(1, visual_tokens + words + 2, config.hidden_size)
    return partial(_encode_again, bert, inputs, visual_tokens, words)


def _encode_again(bert: torch.nn.Module, inputs: Tensor, visual_tokens: int, words: int) -> None:
    visible = torch.ones(1, visual_tokens, dtype=torch.bool)
    for length in range(2, words + 3):
        mask = caption_mask(torch.ones(1, length, dtype=torch.bool), visible)
        bert(inputs_embeds=inputs[:, : length + visual_tokens], attention_mask=mask)


# --- updates --------------------------------------------------------------------------------------


def _training_row(albert: AlbertConfig, visual_tokens: int, batch_size: int, rounds: int) -> Row:
    """Measure updates a second in SwinBERT's shapes: a caption of 50 tokens, half of them masked, and the visual tokens."""
    layers = {
        "num_hidden_groups": albert.num_hidden_layers,
        "parameter_sharing": "none",
        "hidden_act": "gelu",
    }
    bert = albert.replace(vocab_size=BERT_VOCABULARY, embedding_size=albert.hidden_size, **layers)
    updates = {
        name: Update(config, visual_tokens, batch_size)
        for name, config in ((ALBERT, albert), (BERT, bert))
    }
    contenders = {name: Contender(name, update, 1.0) for name, update in updates.items()}
    title = f"an update with {batch_size} of SwinBERT's examples, {visual_tokens} visual tokens"
    rows, _ = measure(title, "updates/s", {ALBERT: contenders[ALBERT]}, [contenders[BERT]], rounds)
    details = {name: update.sizes() for name, update in updates.items()}
    descriptions = [
        f"{name}: {sizes['parameters'] / 1e6:.1f} M parameters, {sizes['state_mb']:,.0f} MB with gradients and moments, "
        f"{sizes['activations_mb']:,.0f} MB kept for the backward pass"
        for name, sizes in details.items()
    ]
    row = rows[ALBERT]
    row.versions, row.note, row.details = (
        versions("torch"),
        f"{'; '.join(descriptions)}. {TRAIN_NOTE}",
        details,
    )
    return row


class Update:
    """An update on one batch; called, it makes one."""

    def __init__(self, config: AlbertConfig, visual_tokens: int, batch_size: int) -> None:
        torch.manual_seed(0)
        caption = CaptionConfig(img_feature_dim=WIDTH, visual_norm=False)
        self.model = AlbertForImageCaptioning(caption.stored_in(config)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        text = torch.ones(batch_size, LENGTH, dtype=torch.bool)
        masked = torch.zeros(batch_size, LENGTH, dtype=torch.long)
        masked[:, :MASKED] = 1
        self.inputs: dict[str, Tensor] = {
            "input_ids": torch.randint(5, config.vocab_size, (batch_size, LENGTH)),
            "img_feats": torch.randn(batch_size, visual_tokens, WIDTH),
            "attention_mask": caption_mask(
                text, torch.ones(batch_size, visual_tokens, dtype=torch.bool)
            )[:, 0].long(),
            "masked_pos": masked,
            "masked_ids": torch.randint(5, config.vocab_size, (batch_size, MASKED)),
        }

    def __call__(self) -> None:
        self.model(**self.inputs)[0].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def sizes(self) -> dict[str, float]:
        """Return parameters; MB of 10^6 bytes of them with gradients and moments; MB kept for the backward pass."""
        saved: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        parameter_pointers = {
            parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()
        }
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = self.model(**self.inputs)[0]
        del loss
        activations = sum(
            size for pointer, size in saved.items() if pointer not in parameter_pointers
        )
        count = self.model.num_parameters()
        return {
            "parameters": count,
            "state_mb": count * 4 * 4 / 1e6,
            "activations_mb": activations / 1e6,
        }
