"""Generation with SwinBERT's arguments and SwinBERT's results: what `is_decode=True` does."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from albertkit.captioning.generation.search import generate
from albertkit.captioning.generation.settings import CaptionIds, GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.model.layers import encode_context
from albertkit.captioning.model.masks import score_bias
from albertkit.errors import ConfigError

# What the original also takes and its evaluation always gives; constrained search is dead code there (`utils_cbs` is missing).
_WITHOUT_EFFECT = {"masked_pos", "use_hypo", "fsm", "num_constraints", "min_constraints_to_satisfy", "head_mask"}


@dataclass(frozen=True, kw_only=True)
class SwinBertGeneration:
    """The arguments of SwinBERT's `generate` beside the inputs, with its defaults.

    Attributes:
        bos_token_id, eos_token_ids, pad_token_id, mask_token_id: [CLS], [SEP], [PAD] and [MASK].
        max_length: Of a caption, [CLS] and [SEP] included; it then ends one in place of its last word.
        num_beams: 1: greedy.
        num_keep_best: K, captions returned, and finished captions that a search keeps.
        num_return_sequences: Must be 1.
        length_penalty, repetition_penalty, temperature, top_k, top_p: As `GenerationSettings`.
        do_sample: As `GenerationSettings.sample`.
        add_od_labels: Whether there is a second text.
        od_labels_start_posid: Where its positions begin, but not before max_length.
        use_cbs, decoding_constraint_flag: Must be false.
        bad_ending_ids: Tokens after which no caption ends. SwinBERT takes them and does nothing with them.
    """

    bos_token_id: int
    eos_token_ids: int | list[int]
    pad_token_id: int
    mask_token_id: int
    max_length: int = 20
    num_beams: int = 1
    num_keep_best: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    add_od_labels: bool = False
    od_labels_start_posid: int | None = None
    use_cbs: bool = False
    decoding_constraint_flag: bool | None = None
    bad_ending_ids: list[int] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "SwinBertGeneration":
        """Return the arguments that have an effect; refuse what this generation cannot do."""
        names = {field.name for field in fields(cls)}
        unknown = given.keys() - names - _WITHOUT_EFFECT
        found = cls(**{name: value for name, value in given.items() if name in names})
        refused = {"use_cbs": found.use_cbs, "decoding_constraint_flag": found.decoding_constraint_flag}
        refused |= {"num_return_sequences": found.num_return_sequences != 1, "eos_token_ids": len(found.ends) != 1}
        if wrong := [*(name for name, bad in refused.items() if bad), *sorted(unknown)]:
            raise ConfigError(
                "bad-value",
                f"{', '.join(wrong)}: not possible in this generation",
                "leave it out; `albertkit.captioning.generation.generate` has more kinds of search",
            )
        return found

    @property
    def ends(self) -> list[int]:
        """Return the tokens that end a caption."""
        return [self.eos_token_ids] if isinstance(self.eos_token_ids, int) else list(self.eos_token_ids)

    @property
    def ids(self) -> CaptionIds:
        """Return the special tokens."""
        return CaptionIds(self.bos_token_id, self.ends[0], self.mask_token_id, self.pad_token_id)

    @property
    def settings(self) -> GenerationSettings:
        """Return the settings of our generation."""
        return GenerationSettings(
            max_length=self.max_length,
            num_beams=self.num_beams,
            num_captions=self.num_keep_best,
            length_penalty=float(self.length_penalty) if self.num_beams > 1 else 1.0,
            repetition_penalty=float(self.repetition_penalty),
            sample=bool(self.do_sample),
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            swinbert=True,
        )


def generate_like_swinbert(
    model: AlbertForImageCaptioning,
    input_ids: Tensor,
    img_feats: Tensor,
    attention_mask: Tensor,
    *,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    **given: Any,
) -> tuple[Tensor, Tensor]:
    """Write captions with the arguments of SwinBERT's `generate`, computed with cached states.

    Args:
        model: The model.
        input_ids: int64 [B, max_length + S]; only the second text in it, of S places, is read, if `add_od_labels`.
        img_feats: [B, M, D].
        attention_mask: [B, N, N], N = max_length + S + M. What the second text and the video see is taken from it.
        token_type_ids: int64 [B, max_length + S].
        position_ids: Must be None: the caption's positions are 0, 1, …, as in SwinBERT's evaluation.
        **given: As `SwinBertGeneration`, and what has no effect there either.

    Returns:
        ids int64 [B, K, max_length]; scores [B, K]: mean log-probability, of a search over length to the length penalty.
    """
    arguments = SwinBertGeneration.of(given | ({"position_ids": position_ids} if position_ids is not None else {}))
    albert, visual_tokens, max_length = model.albert, img_feats.shape[1], arguments.max_length
    if attention_mask.dim() == 2:
        attention_mask = attention_mask[:, None].expand(-1, attention_mask.shape[1], -1)
    second = attention_mask.shape[1] - max_length - visual_tokens
    hidden = albert.project(img_feats)
    if arguments.add_od_labels:
        text = input_ids[:, max_length:]
        start = max(arguments.od_labels_start_posid or 0, max_length)
        positions = torch.arange(start, start + second, device=text.device)
        types = None if token_type_ids is None else token_type_ids[:, max_length:]
        hidden = torch.cat([albert.embed(text, positions, types), hidden], 1)
    among = score_bias(attention_mask[:, max_length:, max_length:], hidden.dtype)
    # Every row of a caption sees the same of the second text and the video: the row of [CLS] tells what.
    from_caption = score_bias(attention_mask[:, 0, max_length:], hidden.dtype)
    context = encode_context(albert.encoder, hidden, among, False, from_caption)
    bad = torch.tensor(arguments.bad_ending_ids, device=img_feats.device) if arguments.bad_ending_ids else None
    found = generate(model, context, arguments.settings, arguments.ids, bad)
    return found.ids, found.scores
