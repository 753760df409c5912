"""Video Swin: features of SwinBERT's own class, and checkpoints read and written back to the bit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from swinbert_writer import published_state
from torch.testing import assert_close

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.video_swin import PREFIX, VideoSwinBackbone
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError

FOLDERS = ("a_small_window", "b_published_window", "c_uneven_no_patch_norm")
TINY = dict(
    embed_dim=8,
    depths=[2, 2],
    num_heads=[2, 4],
    window_size=[2, 3, 3],
    patch_size=[2, 4, 4],
    patch_norm=True,
)


def tiny_swin(**changes):
    """A small one with every number random."""
    backbone = VideoSwinBackbone(**{**TINY, **changes})
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator) * 0.1 + ("norm" in name)
            )
    return backbone.eval()


@pytest.mark.parametrize("name", FOLDERS)
def test_features_are_those_of_swinberts_class(golden, name):
    folder = golden / "swin" / name
    backbone = load_backbone(f"video-swin:{folder / 'state_dict.safetensors'}")
    assert isinstance(backbone, VideoSwinBackbone)
    config = json.loads((folder / "config.json").read_text())
    assert {key: backbone.settings()[key] for key in config} == config
    arrays = np.load(folder / "inputs_outputs.npz")
    for number in range(len(arrays) // 2):
        features = backbone.features(torch.from_numpy(arrays[f"input_{number}"]))
        expected = torch.from_numpy(arrays[f"output_{number}"])
        assert features.shape == expected.shape
        assert (features - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", FOLDERS)
def test_swinberts_names_are_read_to_the_bit(golden, name, tmp_path):
    stored = load_file(golden / "swin" / name / "state_dict.safetensors")
    state = {f"{PREFIX}{key}": tensor for key, tensor in stored.items()}
    other_modules = {
        "fc.weight": torch.ones(2, 2),
        "trans_encoder.bert.embeddings.word_embeddings.weight": torch.ones(3, 2),
    }
    torch.save({**state, **other_modules}, tmp_path / "model.bin")
    backbone = load_backbone(f"video-swin:{tmp_path}")
    assert isinstance(backbone, VideoSwinBackbone)
    published = published_state(backbone)
    assert published.keys() == state.keys()
    assert all(
        torch.equal(published[key], tensor) and published[key].dtype == tensor.dtype
        for key, tensor in state.items()
    )


def test_a_classifiers_checkpoint_of_kinetics_is_read(tmp_path):
    """As mmaction writes it: a dictionary of several, the classifier beside the backbone, a score of NumPy among the notes."""
    backbone = tiny_swin()
    state = {**published_state(backbone, "backbone."), "cls_head.fc_cls.weight": torch.ones(4, 16)}
    file = tmp_path / "swin_tiny.pth"
    torch.save(
        {"meta": {"epoch": 30, "hook_msgs": {"best_score": np.float64(0.5)}}, "state_dict": state},
        file,
    )
    loaded = load_backbone(f"video-swin:{tmp_path}")
    assert loaded.name == f"video-swin:{tmp_path.resolve()}"
    assert loaded.settings() == backbone.settings()
    assert loaded.fingerprint() == backbone.fingerprint()
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert not loaded.train().training  # frozen: no block is skipped
    reloaded = load_backbone("video-swin:gone", loaded.settings(), loaded.state_dict())
    frames = torch.randint(0, 256, (1, 4, 24, 24, 3), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(reloaded(frames), loaded(frames))
    assert reloaded.train().training  # trained along


def test_tokens_lie_in_the_order_of_the_grid():
    backbone = tiny_swin()
    frames = torch.randint(0, 256, (2, 5, 34, 34, 3), dtype=torch.uint8)
    grid = backbone.grid(5, 34)
    assert tuple(grid) == (3, 5, 5)
    mean = torch.tensor([0.485, 0.456, 0.406])
    std = torch.tensor([0.229, 0.224, 0.225])
    pixels = ((frames / 255 - mean) / std).permute(0, 4, 1, 2, 3)
    with torch.no_grad():
        tokens = backbone(frames)
        expected = backbone.features(pixels).permute(0, 2, 3, 4, 1).reshape(2, -1, 16)
    assert tokens.shape == (2, grid.num_tokens, backbone.out_dim)
    assert_close(tokens, expected, atol=1e-5, rtol=0)


def test_published_sizes_want_their_frames():
    sizes = {
        96: ([2, 2, 6, 2], [3, 6, 12, 24], 768, 27_850_470),
        128: ([2, 2, 18, 2], [4, 8, 16, 32], 1024, 87_638_984),
    }
    for embed_dim, (depths, heads, width, parameters) in sizes.items():  # Swin-T and Swin-B
        with torch.device("meta"):
            backbone = VideoSwinBackbone(
                embed_dim=embed_dim,
                depths=depths,
                num_heads=heads,
                window_size=[8, 7, 7],
                patch_size=[2, 4, 4],
            )
        assert backbone.out_dim == width
        assert backbone.frame_size == 224
        assert tuple(backbone.grid(32, 224)) == (16, 7, 7)
        assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters


def test_training_skips_blocks_and_evaluation_does_not():
    backbone = tiny_swin(drop_path_rate=0.9)
    pixels = torch.randn(2, 3, 4, 24, 24)
    with torch.no_grad():
        assert_close(backbone.features(pixels), tiny_swin().features(pixels))
        backbone.train()
        first = backbone.features(pixels)
        second = backbone.features(pixels)
    assert not torch.equal(first, second)
    backbone.features(pixels).sum().backward()
    assert backbone.layers[0].blocks[0].attn.relative_position_bias_table.grad.abs().max() > 0


def test_what_is_no_video_swin_is_refused(tmp_path):
    backbone = tiny_swin()
    state = published_state(backbone, "")
    file = tmp_path / "swin.pth"
    index = "layers.0.blocks.1.attn.relative_position_index"

    def refused(changed, slug, fact, settings=None):
        torch.save(changed, file)
        with pytest.raises(AlbertKitError, match=fact) as raised:
            load_backbone(f"video-swin:{file}", settings)
        assert raised.value.slug == slug
        assert raised.value.hint

    refused({"a": torch.ones(2)}, "weights-mismatch", "has 0 tensors")
    refused(
        {"patch_embed.proj.weight": torch.ones(8, 3, 4, 4)},
        "weights-mismatch",
        "is a Swin for images",
    )
    refused({**state, "norm.weight": torch.ones(3)}, "corrupt", "size mismatch for norm.weight")
    refused({**state, "extra.weight": torch.ones(3)}, "corrupt", "extra.weight")
    refused(
        {key: value for key, value in state.items() if key != "norm.bias"}, "corrupt", "norm.bias"
    )
    refused({**state, index: state[index].flip(0)}, "weights-mismatch", f"`{index}`")
    no_index = {key: value for key, value in state.items() if not key.endswith("index")}
    refused(no_index, "weights-mismatch", "relative_position_index")
    # An object is no weight
    refused({**state, "code": Path("anything")}, "corrupt", "cannot be read")
    refused(state, "changed", "differing: num_heads", {**backbone.settings(), "num_heads": [4, 4]})
    file.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(CheckpointError, match=r"\[corrupt\]"):
        load_backbone(f"video-swin:{file}")
    (tmp_path / "empty").mkdir()
    for path, slug in ((tmp_path / "empty", "missing-file"), (tmp_path / "gone", "not-found")):
        with pytest.raises(AlbertKitError, match=slug):
            load_backbone(f"video-swin:{path}")
    with pytest.raises(ConfigError, match="unknown-name"):
        load_backbone("video-swin")


def test_settings_of_a_stranger_reserve_no_memory():
    backbone = tiny_swin()
    weights = backbone.state_dict()
    for changes, slug in (
        ({"embed_dim": 4096, "depths": [64] * 4, "num_heads": [1] * 4}, "corrupt"),
        ({"window_size": [4096, 4096, 4096]}, "corrupt"),
        ({"depths": [10**9, 1]}, "bad-value"),
        ({"depths": "22"}, "bad-value"),
        ({"num_heads": [3, 4]}, "bad-value"),
        ({"patch_size": [2, 4]}, "bad-value"),
        ({"drop_path_rate": None}, "bad-value"),
        ({"speed": 3}, "bad-value"),
    ):
        with pytest.raises(AlbertKitError, match=slug):
            load_backbone("video-swin:x", {**backbone.settings(), **changes}, weights)
    with pytest.raises(ConfigError, match="bad-value"):
        load_backbone("video-swin:x", None, weights)
