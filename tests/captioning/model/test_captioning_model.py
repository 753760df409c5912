"""Ours beyond SwinBERT: the two ways to compute agree, kinds of video attention, any number of frames, settings."""

import pytest
import torch
from small_models import tiny_config
from torch.testing import assert_close

from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.layers import CaptionConfig, gate_matrix
from albertkit.captioning.model import (
    AlbertForImageCaptioning,
    keep_smallest_losses,
    smoothed_losses,
)
from albertkit.errors import ConfigError
from albertkit.model import AlbertForMaskedLM
from benchmarks.captioning import caption_mask

CONFIG = tiny_config(vocab_size=60, max_position_embeddings=32, initializer_range=0.1)


def captioner(**caption):
    torch.manual_seed(0)
    config = CaptionConfig(**{"img_feature_dim": 12, **caption}).stored_in(CONFIG)
    return AlbertForImageCaptioning(config).eval()


def _inputs(model, tokens=6):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (2, 7), generator=generator)
    visual = torch.randn(2, tokens, model.caption.img_feature_dim, generator=generator)
    return ids, visual


def _caption_states(model, ids, visual, mask=None):
    """States of a caption that reads its context."""
    return model.albert.read_caption(
        model.albert.embed(ids), model.albert.encode_context(model.albert.project(visual), mask)
    )[0]


@pytest.mark.parametrize("attention", ["full", "diagonal", "log", "legacy"])
def test_context_and_caption_apart_equal_all_in_one(attention):
    model = captioner(video_attention=attention, num_visual_tokens=6)
    if model.caption.has_learned_gate:
        mean = 9.0 if attention == "legacy" else -2.0  # where each shows
        torch.nn.init.normal_(model.albert.video_gate, mean=mean)
    ids, visual = _inputs(model)
    visual_mask = torch.ones(2, 6, dtype=torch.bool)
    mask = caption_mask(torch.ones_like(ids, dtype=torch.bool), visual_mask).float()
    if attention == "diagonal":
        mask[:, :, 7:, 7:] = torch.eye(6)
    if attention == "legacy":
        mask[:, :, 7:, 7:] = gate_matrix(model.albert.video_gate, False)
    hidden = _caption_states(model, ids, visual)
    if attention != "log":  # no share of 1 times -10,000 is a logarithm
        # All in one, as SwinBERT computes
        together = model.albert(ids, visual, mask)[0][:, : ids.shape[1]]
        assert_close(hidden, together, atol=1e-5, rtol=0)
    full = captioner(num_visual_tokens=6)
    full.load_state_dict(model.state_dict(), strict=False)
    full_attention = _caption_states(full, ids, visual)
    # The kind of attention shows
    assert attention == "full" or (full_attention - hidden).abs().max() > 1e-3


@pytest.mark.parametrize("attention", ["full", "diagonal"])
def test_padding_of_visual_tokens_changes_nothing(attention):
    model = captioner(video_attention=attention)
    ids, visual = _inputs(model)
    alone = _caption_states(model, ids, visual)
    padded = torch.cat([visual, torch.randn(2, 3, 12)], 1)
    mask = torch.arange(9).expand(2, 9) < 6
    assert_close(_caption_states(model, ids, padded, mask), alone, atol=1e-5, rtol=0)
    assert (_caption_states(model, ids, padded) - alone).abs().max() > 1e-3


def test_log_gate_has_a_gradient_where_legacy_has_none():
    gradients = {}
    for attention in ("log", "legacy"):
        model = captioner(video_attention=attention, num_visual_tokens=6)
        ids, visual = _inputs(model)
        _caption_states(model, ids, visual)[..., 0].sum().backward()
        gradients[attention] = float(model.albert.video_gate.grad.abs().max())
    assert gradients["log"] > 1e-3
    assert gradients["legacy"] == 0


def test_places_begin_at_zero_and_times_are_interpolated():
    model = captioner(grid=(4, 2, 2))
    projector = model.albert.img_embedding
    assert not projector.time_embeddings.any()
    assert not projector.space_embeddings.any()
    with torch.no_grad():
        projector.time_embeddings.copy_(torch.arange(4.0)[:, None].expand(4, 64))
        projector.space_embeddings.copy_(torch.arange(4.0)[:, None].expand(4, 64) * 100)
    assert projector.position_embeddings(TokenGrid(4, 2, 2))[:, 0].tolist() == [
        t + 100 * s for t in range(4) for s in range(4)
    ]
    assert projector.position_embeddings(TokenGrid(2, 2, 2))[::4, 0].tolist() == [
        0.5,
        2.5,
    ]  # between the times of four frames
    with pytest.raises(ConfigError, match="3 x 2 visual tokens"):
        projector.position_embeddings(TokenGrid(4, 3, 2))
    with pytest.raises(ConfigError, match="15 visual tokens for a grid"):
        projector(torch.randn(1, 15, 12))
    projected = projector(torch.zeros(2, 16, 12), [TokenGrid(4, 2, 2), TokenGrid(2, 2, 2)])
    assert projected.shape == (2, 16, 64)


def test_gradient_checkpointing_gives_the_same_gradients():
    gradients = []
    for checkpointing in (False, True):
        model = captioner().train()
        model.gradient_checkpointing = checkpointing
        ids, visual = _inputs(model)
        _caption_states(model, ids, visual).square().sum().backward()
        gradients.append(model.albert.img_embedding.projection.weight.grad)
    assert_close(*gradients)


def test_untied_decoder_and_folder(tmp_path):
    model = captioner(tie_weights=False, grid=(2, 1, 3), video_attention="log", num_visual_tokens=6)
    model.save_pretrained(tmp_path)
    loaded = AlbertForImageCaptioning.from_pretrained(tmp_path)
    assert loaded.caption == model.caption
    ids, visual = _inputs(model)
    arguments = {"masked_pos": torch.ones_like(ids), "masked_ids": ids}
    assert loaded(ids, visual, **arguments)[0].item() == model(ids, visual, **arguments)[0].item()
    assert loaded.predictions.decoder.weight is not loaded.albert.embeddings.word_embeddings.weight


def test_a_pretrained_checkpoint_gives_all_but_the_visual_side(tmp_path):
    torch.manual_seed(2)
    pretrained = AlbertForMaskedLM(CONFIG)
    pretrained.save_pretrained(tmp_path)
    allowed = ("albert.pooler.weight", "albert.pooler.bias")
    visual = [name for name, _ in captioner().named_parameters() if "img_embedding" in name]
    config = {"captioning": {"img_feature_dim": 12}}
    model = AlbertForImageCaptioning.from_pretrained(
        tmp_path, allow_missing=(*allowed, *visual), **config
    )
    assert torch.equal(model.predictions.dense.weight, pretrained.predictions.dense.weight)
    assert torch.equal(
        model.get_input_embeddings().weight, pretrained.get_input_embeddings().weight
    )


def test_frozen_embeddings_and_names_of_swinbert():
    model = captioner(freeze_embedding=True)
    assert not model.get_input_embeddings().weight.requires_grad
    model.albert.encoder.set_output_attentions(True)
    ids, visual = _inputs(model)
    *_, attentions = model.albert(ids, visual)
    assert [tuple(of_layer.shape) for of_layer in attentions] == [(2, 2, 13, 13)] * 3
    assert_close(attentions[0].sum(-1), torch.ones(2, 2, 13))


def test_losses():
    logits = torch.randn(5, 9, dtype=torch.float64)
    labels = torch.tensor([0, 3, 8, 2, 2])
    plain = smoothed_losses(logits, labels, 0.0)
    assert_close(plain, torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    target = torch.full((5, 9), 0.1 / 8, dtype=torch.float64).scatter(1, labels[:, None], 0.9)
    expected = torch.nn.functional.kl_div(logits.log_softmax(-1), target, reduction="none").sum(1)
    assert_close(smoothed_losses(logits, labels, 0.1), expected)
    assert sorted(keep_smallest_losses(plain, 0.3).tolist()) == sorted(plain.tolist())[:3]
    assert len(keep_smallest_losses(plain[:1], 0.9)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"video_attention": "sparse"}, "it must be one of full, diagonal, log, legacy"),
        ({"video_attention": "log"}, "num_visual_tokens is 0"),
        (
            {"label_smoothing": 1.0},
            "label_smoothing is 1.0, it must be a number, at least 0 and below 1",
        ),
        ({"grid": (1, 2)}, r"grid is \(1, 2\), it must be a tuple of 3"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(ConfigError, match=message):
        CaptionConfig(**changes)


def test_unknown_setting_names_the_nearest():
    config = CONFIG.replace(foreign={"captioning": {"img_features_dim": 3}})
    with pytest.raises(ConfigError, match="img_features_dim") as raised:
        AlbertForImageCaptioning(config)
    assert "img_feature_dim" in raised.value.hint


def test_wrong_arguments():
    model = captioner()
    ids, visual = _inputs(model)
    with pytest.raises(ConfigError, match="width 5"):
        model.albert.project(visual[..., :5])
    masked_pos = torch.zeros_like(ids)
    masked_pos[0, 1:4] = 1
    with pytest.raises(ConfigError, match="3 places, masked_ids has 1"):
        model(ids, visual, masked_pos=masked_pos, masked_ids=torch.tensor([[4], [-1]]))
    with pytest.raises(ConfigError, match="attention_mask has shape"):
        model.albert(ids, visual, torch.ones(2, 9))
