"""Generation with SwinBERT's arguments and SwinBERT's results: what `is_decode=True` does."""

from typing import Any

import torch
from torch import Tensor

from albertkit.captioning.generation.search import generate
from albertkit.captioning.generation.settings import CaptionIds, GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.model.masks import score_bias
from albertkit.captioning.model.passes import encode_context
from albertkit.errors import ConfigError

# What the original also takes and its evaluation always gives; constrained search is dead code there (`utils_cbs` is missing).
_WITHOUT_EFFECT = {"masked_pos", "use_hypo", "fsm", "num_constraints", "min_constraints_to_satisfy", "head_mask"}


def generate_like_swinbert(
    model: AlbertForImageCaptioning,
    input_ids: Tensor,
    img_feats: Tensor,
    attention_mask: Tensor,
    *,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    max_length: int = 20,
    num_beams: int = 1,
    num_keep_best: int = 1,
    num_return_sequences: int = 1,
    length_penalty: float = 1.0,
    repetition_penalty: float = 1.0,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    bos_token_id: int,
    eos_token_ids: int | list[int],
    pad_token_id: int,
    mask_token_id: int,
    add_od_labels: bool = False,
    od_labels_start_posid: int | None = None,
    use_cbs: bool = False,
    decoding_constraint_flag: bool | None = None,
    bad_ending_ids: list[int] | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor]:
    """Captions with the arguments of SwinBERT's `generate`, computed with cached states.

    Args:
        model: The model.
        input_ids: int64 [B, max_length + S]; only the second text in it, of S places, is read, if `add_od_labels`.
        img_feats: [B, M, D].
        attention_mask: [B, N, N], N = max_length + S + M. What the second text and the video see is taken from it.
        token_type_ids: int64 [B, max_length + S].
        position_ids: Must be None: the caption's positions are 0, 1, …, as in SwinBERT's evaluation.
        max_length: Of a caption, [CLS] and [SEP] included; it then ends one in place of its last word.
        num_beams: 1: greedy.
        num_keep_best: K, captions returned, and finished captions that a search keeps.
        num_return_sequences: Must be 1.
        length_penalty: As `GenerationSettings`, of a search.
        repetition_penalty: As `GenerationSettings`.
        do_sample: As `GenerationSettings.sample`.
        temperature: As `GenerationSettings`.
        top_k: As `GenerationSettings`.
        top_p: As `GenerationSettings`.
        bos_token_id: [CLS].
        eos_token_ids: [SEP].
        pad_token_id: [PAD].
        mask_token_id: [MASK].
        add_od_labels: Whether there is a second text.
        od_labels_start_posid: Where its positions begin, but not before max_length.
        use_cbs: Must be false.
        decoding_constraint_flag: Must be false.
        bad_ending_ids: Pieces after which no caption ends. SwinBERT takes them and does nothing with them.
        **rest: Arguments that have no effect there either.

    Returns:
        ids int64 [B, K, max_length]; scores [B, K]: mean log-probability, of a search over length to the length penalty.

    Raises:
        ConfigError: bad-argument.
    """
    ends = [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids)
    refused = {
        "use_cbs": use_cbs, "decoding_constraint_flag": decoding_constraint_flag, "position_ids": position_ids is not None,
        "num_return_sequences": num_return_sequences != 1, "eos_token_ids": len(ends) != 1,
        "input_ids": add_od_labels and input_ids is None,
        **dict.fromkeys(rest.keys() - _WITHOUT_EFFECT, True),
    }  # fmt: skip
    if wrong := [name for name, bad in refused.items() if bad]:
        raise ConfigError(
            "bad-argument", f"{', '.join(wrong)}: not possible in this generation",
            "leave it out; `albertkit.captioning.generation.generate` has more kinds of search",
        )  # fmt: skip
    albert, visual_tokens = model.albert, img_feats.shape[1]
    if attention_mask.dim() == 2:
        attention_mask = attention_mask[:, None].expand(-1, attention_mask.shape[1], -1)
    second = attention_mask.shape[1] - max_length - visual_tokens
    hidden = albert.project(img_feats)
    if add_od_labels:
        text = input_ids[:, max_length:]
        start = max(od_labels_start_posid or 0, max_length)
        positions = torch.arange(start, start + second, device=text.device)
        types = None if token_type_ids is None else token_type_ids[:, max_length:]
        hidden = torch.cat([albert.embed(text, positions, types), hidden], 1)
    among = score_bias(attention_mask[:, max_length:, max_length:], hidden.dtype)
    # Every row of a caption sees the same of the second text and the video: the row of [CLS] tells what.
    from_caption = score_bias(attention_mask[:, 0, max_length:], hidden.dtype)
    context = encode_context(albert.encoder, hidden, among, False, from_caption)
    settings = GenerationSettings(
        max_length=max_length, num_beams=num_beams, num_captions=num_keep_best,
        length_penalty=float(length_penalty) if num_beams > 1 else 1.0, repetition_penalty=float(repetition_penalty),
        sample=bool(do_sample), temperature=temperature, top_k=top_k, top_p=top_p, swinbert=True,
    )  # fmt: skip
    ids = CaptionIds(bos_token_id, ends[0], mask_token_id, pad_token_id)
    bad = None if not bad_ending_ids else torch.tensor(bad_ending_ids, device=img_feats.device)
    found = generate(model, context, settings, ids, bad)
    return found.ids, found.scores
