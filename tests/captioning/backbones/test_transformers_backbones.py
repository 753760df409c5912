"""Visual tokens against transformers' own models, fed by its own processors, or by pixels normalised by hand."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.backbones import load_backbone

TYPES = (
    "videomae timesformer vivit vjepa2 videoprism_vision_model "
    "siglip clip dinov2 dinov2_with_registers dinov3_vit swin vit beit"
).split()
VIDEO = TYPES[:5]
TUBELET = {"videomae": 2, "vivit": 2, "vjepa2": 2}
LEADING = {
    "timesformer": 1,
    "vivit": 1,
    "clip": 1,
    "dinov2": 1,
    "dinov2_with_registers": 5,
    "dinov3_vit": 4,
    "vit": 1,
    "beit": 1,
}
PROCESSORS = {
    "videomae": "VideoMAEImageProcessorPil",
    "timesformer": "VideoMAEImageProcessorPil",
    "vivit": "VivitImageProcessor",
    "siglip": "SiglipImageProcessorPil",
    "clip": "CLIPImageProcessorPil",
    "dinov2": "BitImageProcessorPil",
    "dinov2_with_registers": "BitImageProcessorPil",
    "swin": "ViTImageProcessorPil",
    "vit": "ViTImageProcessorPil",
    "beit": "BeitImageProcessorPil",
}
# What the published models of a type do to pixels; none of these is a class's default everywhere.
BY_HAND = {
    "vjepa2": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "videoprism_vision_model": ([0.0] * 3, [1.0] * 3),
    "dinov3_vit": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}
MEAN, STD = [0.41, 0.52, 0.33], [0.21, 0.32, 0.27]  # nobody's


def _frames(batch, frames, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (batch, frames, size, size, 3), dtype=torch.uint8, generator=generator
    )


def _pixels(model_type, frames, processor):
    """fp32 [B, T, 3, S, S], by transformers' processor or by hand in float64."""
    if processor is None:
        mean, std = (np.asarray(values) for values in BY_HAND[model_type])
        values = (frames.numpy() / 255.0 - mean) / std
        return torch.from_numpy(values).permute(0, 1, 4, 2, 3).float()
    clips = [list(clip.numpy()) for clip in frames]
    if model_type in ("videomae", "timesformer", "vivit"):
        return torch.as_tensor(
            np.asarray(processor(clips, return_tensors="np")["pixel_values"])
        ).float()
    pixels = [np.asarray(processor(clip, return_tensors="np")["pixel_values"]) for clip in clips]
    return torch.from_numpy(np.stack(pixels)).float()


def _core(model_type, model):
    """The part of a saved model that makes tokens."""
    if model_type == "dinov3_vit":
        return model  # whose base_model_prefix is a part of it
    return getattr(model, "vision_model", None) or getattr(model, model.base_model_prefix, model)


def _by_transformers(model_type, model, pixels):
    """[B, T', H, W, D] of the model as it was before it was saved, laid out by loops over its documented order."""
    core = _core(model_type, model)
    with torch.no_grad():
        if model_type in VIDEO:
            hidden = core(pixels).last_hidden_state[:, LEADING.get(model_type, 0) :]
            frames = pixels.shape[1] // TUBELET.get(model_type, 1)
            # Its embeddings are "(patches frames)" behind the class token
            if model_type == "timesformer":
                return torch.stack([hidden[:, t::frames] for t in range(frames)], 1).unflatten(
                    2, (4, 4)
                )
            return hidden.unflatten(1, (frames, 4, 4))
        of_frames = [
            core(pixels[:, t]).last_hidden_state[:, LEADING.get(model_type, 0) :]
            for t in range(pixels.shape[1])
        ]
        return torch.stack(of_frames, 1).unflatten(2, (4, 4))


@pytest.mark.parametrize("model_type", TYPES)
def test_tokens_are_transformers_own(model_type, tiny, tmp_path):
    saved = tiny(model_type)
    folder = shutil.copytree(saved.folder, tmp_path / "model")  # other tests share that one
    processor = None
    if model_type in PROCESSORS:
        import transformers

        processor_class = getattr(transformers, PROCESSORS[model_type])
        size = {"size": {"height": 32, "width": 32}}
        if "crop_size" in processor_class().to_dict():
            size = {"size": {"shortest_edge": 32}, "crop_size": size["size"]}
        processor = processor_class(image_mean=MEAN, image_std=STD, **size)
        processor.save_pretrained(folder)
    backbone = load_backbone(f"hf:{folder}")
    frames = _frames(2, 4)
    tokens = backbone(frames)
    grid = backbone.grid(4, 32)
    assert grid == TokenGrid(4 // TUBELET.get(model_type, 1), 4, 4)
    assert tokens.shape == (2, grid.num_tokens, backbone.out_dim)
    assert backbone.frame_size == 32
    expected = _by_transformers(model_type, saved.model, _pixels(model_type, frames, processor))
    assert_close(tokens.unflatten(1, tuple(grid)), expected, atol=1e-5, rtol=1e-5)
    # it would be noticed: one level of one pixel, and rows for columns
    frames[1, 2, 5, 6, 0] ^= 1
    assert (backbone(frames).unflatten(1, tuple(grid)) - expected).abs().max() > 1e-5
    assert (tokens.unflatten(1, tuple(grid)).transpose(2, 3) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("model_type", TYPES)
def test_a_changed_patch_moves_the_token_at_its_place(model_type, tiny):
    backbone = load_backbone(f"hf:{tiny(model_type).folder}")
    grid = backbone.grid(4, 32)
    tubelet = TUBELET.get(model_type, 1)
    for frame, row, column in ((0, 0, 3), (1, 2, 0), (2, 3, 1), (3, 1, 2)):
        frames = _frames(1, 4)
        before = backbone(frames)
        frames[0, frame, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 255
        moved = (backbone(frames) - before).norm(dim=-1)[0].unflatten(0, tuple(grid))
        assert np.unravel_index(int(moved.argmax()), tuple(grid)) == (frame // tubelet, row, column)
        if model_type not in VIDEO:  # a frame by itself: nothing else moves
            assert [t for t in range(4) if moved[t].max() > 0] == [frame]


@pytest.mark.parametrize("model_type", TYPES)
def test_frozen_at_first_and_trained_when_asked(model_type, tiny):
    saved = tiny(model_type)
    backbone = load_backbone(f"hf:{saved.folder}")
    frames = _frames(1, 4)
    assert not backbone(frames).requires_grad
    assert not any(module.training for module in backbone.train().modules())
    backbone.requires_grad_(True).train()
    assert all(module.training for module in backbone.modules())
    backbone.eval()
    fingerprint = backbone.fingerprint()
    before = backbone(frames).detach()
    backbone(frames).square().sum().backward()
    assert [name for name, parameter in backbone.named_parameters() if parameter.grad is None] == []
    torch.optim.SGD(backbone.parameters(), lr=1e-3).step()
    assert (backbone(frames) - before).abs().max() > 1e-4
    assert backbone.fingerprint() != fingerprint
    # settings and weights alone make it again, wherever its folder has gone, through JSON
    backbone.requires_grad_(False)  # with a gradient attention is another kernel: 1e-7
    settings = json.loads(json.dumps(backbone.settings()))
    reloaded = load_backbone(
        "hf:gone/away",
        settings,
        {name: tensor.clone() for name, tensor in backbone.state_dict().items()},
    )
    assert torch.equal(reloaded(frames), backbone(frames))
    assert reloaded.fingerprint() == backbone.fingerprint()
    assert reloaded.settings() == backbone.settings()
    assert reloaded.frame_size == backbone.frame_size


@pytest.mark.parametrize(
    "model_type", [name for name in TYPES if name not in ("videomae", "vivit", "vjepa2")]
)
def test_another_size_is_interpolated_as_transformers_does_it(model_type, tiny):
    saved = tiny(model_type)
    backbone = load_backbone(f"hf:{saved.folder}")
    frames = _frames(1, 4, size=48)
    assert backbone.grid(4, 48) == (4, 6, 6)
    tokens = backbone(frames)
    core = _core(model_type, saved.model)
    arguments = (
        {}
        if model_type in ("timesformer", "dinov2", "dinov2_with_registers", "dinov3_vit")
        else dict(interpolate_pos_encoding=True)
    )
    pixels = backbone.pixels.apply(frames)
    with torch.no_grad():
        hidden = core(pixels if model_type in VIDEO else pixels[0], **arguments).last_hidden_state[
            :, LEADING.get(model_type, 0) :
        ]
    if model_type == "timesformer":
        hidden = hidden.unflatten(1, (36, 4)).transpose(1, 2)
    assert_close(tokens, hidden.reshape(1, 144, -1), atol=1e-5, rtol=1e-5)


def test_other_numbers_of_frames_where_the_positions_in_time_stretch(tiny):
    for model_type, numbers in {
        "timesformer": (1, 6),
        "videoprism_vision_model": (1, 6),
        "vjepa2": (2, 8),
        "clip": (1, 7),
    }.items():
        saved = tiny(model_type)
        backbone = load_backbone(f"hf:{saved.folder}")
        for number in numbers:
            frames = _frames(1, number)
            tokens = backbone(frames)
            assert (
                tokens.shape[1]
                == backbone.grid(number, 32).num_tokens
                == number * 16 // TUBELET.get(model_type, 1)
            )
            if model_type == "vjepa2":
                with torch.no_grad():
                    expected = saved.model.get_vision_features(backbone.pixels.apply(frames))
                assert_close(tokens, expected, atol=1e-5, rtol=1e-5)


def test_timesformer_of_space_only_is_in_the_same_order(tiny):
    backbone = load_backbone(f"hf:{tiny('timesformer', attention_type='space_only').folder}")
    frames = _frames(2, 4)
    before = backbone(frames)
    frames[1, 2, 24:, :8] = 255
    moved = (backbone(frames) - before).norm(dim=-1).unflatten(1, (4, 4, 4))
    assert np.unravel_index(int(moved.argmax()), moved.shape) == (1, 2, 3, 0)


def test_a_size_that_is_no_multiple_of_a_patch_loses_its_rim(tiny):
    """As SigLIP so400m: 384 pixels in patches of 14 are 27 places."""
    towers = {
        "image_size": 30,
        "patch_size": 8,
        "hidden_size": 24,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    saved = tiny("siglip", vision_config=towers)
    backbone = load_backbone(f"hf:{saved.folder}")
    assert backbone.grid(2, 30) == (2, 3, 3)
    frames = _frames(1, 2, size=30)
    with torch.no_grad():
        expected = saved.model.vision_model(backbone.pixels.apply(frames)[0]).last_hidden_state
    assert_close(backbone(frames)[0], expected.flatten(0, 1), atol=1e-5, rtol=1e-5)


def test_many_frames_in_parts_are_the_same(tiny, monkeypatch):
    for model_type in ("clip", "videomae"):
        backbone = load_backbone(f"hf:{tiny(model_type).folder}")
        frames = _frames(3, 4)
        tokens = backbone(frames)
        calls = []
        backbone.model.register_forward_pre_hook(
            lambda _, pixels, calls=calls: calls.append(len(pixels[0]))
        )
        monkeypatch.setattr("albertkit.captioning.backbones._PIXELS_PER_BATCH", 5 * 32 * 32)
        assert_close(backbone(frames), tokens, atol=1e-6, rtol=0)
        assert calls == ([5, 5, 2] if model_type == "clip" else [1, 1, 1])
        monkeypatch.undo()
