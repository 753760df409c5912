"""`albertkit bench caption --train`: an update of SwinBERT's text model with ALBERT, and with BERT in its place.

BERT is an ALBERT that shares nothing and whose embeddings are as wide as the network, so both run through the same code: what
differs is the architecture. Memory is counted, not read from the system: parameters, gradients and the two moments of
AdamW, and the bytes that autograd keeps for the backward pass.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from albertkit.benchmarks.captioning import WIDTH
from albertkit.benchmarks.harness import Contender, Row, compare, interleave, progress, using_threads, versions
from albertkit.captioning.model import AlbertForImageCaptioning, CaptionConfig
from albertkit.captioning.model.masks import caption_mask
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError

BERT_VOCABULARY = 30_522
LENGTH, MASKED = 50, 0.5  # SwinBERT's caption, and the share of it that is predicted
ALBERT, BERT = "albertkit", "BERT in the same code"
NOTE = (
    "from visual tokens to the update of AdamW, fp32, dropout off, random weights and captions, output matrix tied; the "
    "backbone is the same in both and left out"
)


def caption_training_rows(
    visual_tokens: int = 784, batch_size: int = 1, rounds: int = 3, threads: int = 0, config: AlbertConfig | None = None
) -> Iterator[Row]:
    """Measure updates a second in SwinBERT's shapes: a caption of 50 tokens, half of them masked, and the visual tokens.

    Args:
        visual_tokens: Of a clip; 784 are SwinBERT's 32 frames of 224 pixels, 196 its 8 frames.
        batch_size: Clips in an update.
        rounds: Timed rounds.
        threads: Threads for both; 0 for all cores.
        config: ALBERT's. Default: base. BERT has the same width, layers and heads, and 30,522 tokens.

    Yields:
        One row; `details` has the parameters and the MB of both.

    Raises:
        ConfigError: bad-value.
    """
    if visual_tokens < 1 or batch_size < 1:
        raise ConfigError("bad-value", f"{visual_tokens} visual tokens, {batch_size} clips", "both must be at least 1")
    albert = config or AlbertConfig.from_size("base")
    bert = albert.replace(
        vocab_size=BERT_VOCABULARY, embedding_size=albert.hidden_size, num_hidden_groups=albert.num_hidden_layers,
        hidden_act="gelu", parameter_sharing="none",
    )  # fmt: skip
    with using_threads(threads):
        updates = {name: _Update(one, visual_tokens, batch_size) for name, one in ((ALBERT, albert), (BERT, bert))}
        contenders = {name: Contender(name, update, 1.0) for name, update in updates.items()}
        progress(
            f"caption --train: {visual_tokens} visual tokens, {batch_size} clips, {torch.get_num_threads()} threads"
        )
        seconds = interleave([*contenders.values()], rounds, say=progress)
        details = {name: update.sizes() for name, update in updates.items()}
    said = "; ".join(
        f"{name}: {sizes['parameters'] / 1e6:.1f} M parameters, {sizes['state_mb']:,.0f} MB with gradients and moments, "
        f"{sizes['activations_mb']:,.0f} MB kept for the backward pass"
        for name, sizes in details.items()
    )
    yield compare(
        f"an update with {batch_size} of SwinBERT's examples, {visual_tokens} visual tokens", "updates/s",
        contenders[ALBERT], [contenders[BERT]], seconds,
        versions=versions("torch"), note=f"{said}. {NOTE}", details=details,
    )  # fmt: skip


class _Update:
    """An update on one batch; called, it makes one."""

    def __init__(self, config: AlbertConfig, visual_tokens: int, batch_size: int) -> None:
        torch.manual_seed(0)
        caption = CaptionConfig(img_feature_dim=WIDTH, visual_norm=False)
        self.model = AlbertForImageCaptioning(caption.put_into(config)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        text = torch.ones(batch_size, LENGTH, dtype=torch.bool)
        masked = round(LENGTH * MASKED)
        places = torch.zeros(batch_size, LENGTH, dtype=torch.long)
        places[:, :masked] = 1
        self.inputs: dict[str, Tensor] = {
            "input_ids": torch.randint(5, config.vocab_size, (batch_size, LENGTH)),
            "img_feats": torch.randn(batch_size, visual_tokens, WIDTH),
            "attention_mask": caption_mask(text, torch.ones(batch_size, visual_tokens, dtype=torch.bool))[:, 0].long(),
            "masked_pos": places,
            "masked_ids": torch.randint(5, config.vocab_size, (batch_size, masked)),
        }

    def __call__(self) -> None:
        self.model(**self.inputs)[0].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def sizes(self) -> dict[str, float]:
        """Return parameters; MB of 10^6 bytes of them with gradients and moments; MB kept for the backward pass."""
        kept: dict[int, int] = {}
        own = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(_noting(kept), lambda tensor: tensor):
            loss = self.model(**self.inputs)[0]
        del loss
        activations = sum(size for place, size in kept.items() if place not in own)
        count = self.model.num_parameters()
        return {"parameters": count, "state_mb": count * 4 * 4 / 1e6, "activations_mb": activations / 1e6}


def _noting(kept: dict[int, int]) -> Callable[[Tensor], Tensor]:
    """Return a hook that notes the bytes of each storage that is kept for the backward pass."""

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    return note
