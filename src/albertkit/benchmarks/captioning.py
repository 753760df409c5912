"""`albertkit bench caption`: captions a second from cached states, beside encoding everything again for each word."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from albertkit.benchmarks.harness import (
    Contender,
    Peer,
    Row,
    compare,
    interleave,
    missing,
    progress,
    using_threads,
    versions,
)
from albertkit.captioning.generation import CaptionIds, GenerationSettings, generate
from albertkit.captioning.model import AlbertForImageCaptioning, CaptionConfig
from albertkit.captioning.model.masks import caption_mask
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.training.hardware import choose_precision

IDS = CaptionIds(start=2, end=3, mask=4, padding=0)
SWINBERT = "everything again each word (SwinBERT's scheme)"
TRANSFORMERS = Peer("transformers BertModel again each word", "transformers", "pip install 'albertkit[caption]'")
WIDTH = 512  # of SwinBERT's visual tokens after `fc`
NOTE = (
    "random weights; greedy, the end forbidden, so that all write as many words. From visual tokens on: a backbone "
    "runs once in any scheme. SwinBERT's scheme runs on our ALBERT, whose passes cost what BERT's cost; transformers' "
    "BertModel computes the same lengths without a prediction head"
)


def caption_rows(
    visual_tokens: int = 784, words: int = 20, rounds: int = 3, threads: int = 0, config: AlbertConfig | None = None
) -> Iterator[Row]:
    """Measure decoding one caption of one clip.

    Args:
        visual_tokens: M; 784 are SwinBERT's 32 frames of 224 pixels.
        words: Pieces of the caption between [CLS] and [SEP].
        rounds: Timed rounds.
        threads: Threads for everybody; 0 for all cores.
        config: Of the model. Default: base.

    Yields:
        A row with us in fp32, and one in bf16 where this machine multiplies it faster; in captions/s.

    Raises:
        ConfigError: bad-value.
    """
    if visual_tokens < 1 or words < 1:
        raise ConfigError("bad-value", f"{visual_tokens} visual tokens and {words} words", "both must be at least 1")
    with using_threads(threads), torch.inference_mode():
        torch.manual_seed(0)
        config = config or AlbertConfig.from_size("base")
        model = AlbertForImageCaptioning(CaptionConfig(img_feature_dim=WIDTH).put_into(config)).eval()
        model.predictions.bias.data[IDS.end] = -1e4
        visual = torch.randn(1, visual_tokens, WIDTH)
        settings = GenerationSettings(max_length=words + 2, num_beams=1)
        cached = partial(_cached, model, visual, settings)
        again = _again(model, visual, words)
        peers = [Contender(SWINBERT, partial(_run, partial(_again, model, visual, words)), 1.0)]
        if TRANSFORMERS.installed:
            peers.append(Contender(TRANSFORMERS.name, _transformers_again(config, visual_tokens, words), 1.0))
        faster_bf16 = choose_precision("auto", torch.device("cpu")) is torch.bfloat16
        ours = {"fp32": None} | ({"bf16": torch.bfloat16} if faster_bf16 else {})
        contenders = {
            name: Contender(f"albertkit {name}", partial(_run, partial(cached, dtype)), 1.0)
            for name, dtype in ours.items()
        }
        progress(f"caption: {visual_tokens} visual tokens, {words} words, {torch.get_num_threads()} threads")
        seconds = interleave([*contenders.values(), *peers], rounds, say=progress)
        for name, contender in contenders.items():
            written = cached(ours[name])[0, 1 : words + 1]
            same = float((written == again).float().mean())
            yield compare(
                f"caption of {words} words, {visual_tokens} visual tokens, ours in {name}", "captions/s", contender, peers,
                seconds, equal=bool(torch.equal(written, again)) if name == "fp32" else None,
                compared=f"the words of SwinBERT's scheme in fp32: {same:.0%} the same", missing=missing([TRANSFORMERS]),
                versions=versions("torch", "transformers"), note=NOTE,
            )  # fmt: skip


def _cached(
    model: AlbertForImageCaptioning, visual: Tensor, settings: GenerationSettings, dtype: torch.dtype | None
) -> Tensor:
    model.compute_dtype = dtype
    context = model.albert.encode_context(model.albert.project(visual))
    ids = generate(model, context, settings, IDS).ids[:, 0]
    model.compute_dtype = None
    return ids


def _again(model: AlbertForImageCaptioning, visual: Tensor, words: int) -> Tensor:
    """The same words as SwinBERT finds them: text so far, [MASK] and all visual tokens, encoded anew for each word."""
    ids = torch.full((1, 1), IDS.start)
    seen = torch.ones(1, visual.shape[1], dtype=torch.bool)
    for _ in range(words + 1):  # one more finds the end
        read = torch.cat([ids, torch.full((1, 1), IDS.mask)], 1)
        mask = caption_mask(torch.ones_like(read, dtype=torch.bool), seen)
        hidden = model.albert(read, visual, mask)[0][:, read.shape[1] - 1]
        logits = model.predictions(hidden)
        logits[:, [IDS.start, IDS.mask, IDS.padding]] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids[0, 1 : words + 1]


def _run(work: partial[Tensor]) -> None:
    work()


def _transformers_again(config: AlbertConfig, visual_tokens: int, words: int) -> partial[None]:
    from transformers import BertConfig, BertModel

    theirs = BertConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads, intermediate_size=config.intermediate_size,
        max_position_embeddings=visual_tokens + words + 2,
    )  # fmt: skip
    bert = BertModel(theirs, add_pooling_layer=False).eval()
    inputs = torch.randn(1, visual_tokens + words + 2, config.hidden_size)
    return partial(_encode_again, bert, inputs, visual_tokens, words)


def _encode_again(bert: torch.nn.Module, inputs: Tensor, visual_tokens: int, words: int) -> None:
    seen = torch.ones(1, visual_tokens, dtype=torch.bool)
    for length in range(2, words + 3):
        mask = caption_mask(torch.ones(1, length, dtype=torch.bool), seen)
        bert(inputs_embeds=inputs[:, : length + visual_tokens], attention_mask=mask)
