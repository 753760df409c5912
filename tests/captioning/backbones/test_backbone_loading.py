"""Folders that load, errors of those that do not, and when two backbones are the same."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from record_files import write_json
from safetensors.torch import load_file, save_file

from albertkit.captioning.backbone import PixelValues, read_pixel_values_and_size
from albertkit.captioning.backbones import load_backbone
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, MissingExtraError

STANDARD = PixelValues((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture
def clip(tiny, tmp_path):
    """A copy of a tiny CLIP that a test may spoil."""
    return Path(shutil.copytree(tiny("clip").folder, tmp_path / "clip"))


def _slug(name, *arguments):
    with pytest.raises(AlbertKitError) as raised:
        load_backbone(name if isinstance(name, str) else f"hf:{name}", *arguments)
    assert raised.value.hint
    return raised.value.slug


def _change(file, **changes):
    write_json(file, {**json.loads(file.read_text()), **changes})


def test_importing_the_package_imports_no_transformers():
    code = "import sys, albertkit.captioning.backbones; print('transformers' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "False"


def test_faults_are_named(clip, tmp_path, tiny):
    assert _slug("resnet") == _slug("hf:") == "unknown-name"
    with pytest.raises(ConfigError, match=r"write `hf:org/model`"):
        load_backbone("org/model")
    assert _slug(tmp_path / "nowhere") == "not-found"
    assert _slug(tmp_path) == "missing-file"
    text = tmp_path / "text"
    text.mkdir()
    (text / "config.json").write_text('{"model_type": "albert"}')
    with pytest.raises(CheckpointError, match="of type 'albert'") as raised:
        load_backbone(f"hf:{text}")
    assert raised.value.slug == "wrong-model"
    assert all(
        name in raised.value.hint for name in ("videomae", "vjepa2", "siglip", "dinov3_vit", "swin")
    )
    for broken in ("[1]", "{}"):
        (text / "config.json").write_text(broken)
        assert _slug(text) == "wrong-model"
    (text / "config.json").write_text("{")
    assert _slug(text) == "bad-file"
    weights = clip / "model.safetensors"
    weight_bytes = weights.read_bytes()
    weights.write_bytes(weight_bytes[: len(weight_bytes) // 2])
    assert _slug(clip) == "corrupt"
    weights.unlink()
    assert _slug(clip) == "missing-file"
    weights.write_bytes(weight_bytes)
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("vision_model.pre_layrnorm.weight"))
    save_file(
        {key: tensor for key, tensor in tensors.items() if key != name}, weights, {"format": "pt"}
    )
    with pytest.raises(
        CheckpointError, match=r"lacks 1 of its weights, the first is `.*pre_layrnorm.weight`"
    ):
        load_backbone(f"hf:{clip}")
    save_file({**tensors, name: torch.ones(25)}, weights, {"format": "pt"})
    assert _slug(clip) == "corrupt"
    weights.write_bytes(weight_bytes)
    oblong = Path(shutil.copytree(tiny("videomae").folder, tmp_path / "oblong"))
    _change(oblong / "config.json", image_size=[32, 64])
    assert _slug(oblong) == "bad-value"
    _change(oblong / "config.json", image_size="large")
    assert _slug(oblong) == "bad-value"
    assert load_backbone(f"hf:{clip}").frame_size == 32


def test_conv3d_by_name():
    backbone = load_backbone("conv3d", {"width": 64})
    frames = torch.randint(0, 256, (2, 5, 40, 40, 3), dtype=torch.uint8)
    reloaded = load_backbone("conv3d", backbone.settings(), backbone.state_dict())
    assert torch.equal(reloaded(frames), backbone(frames))
    assert backbone(frames).shape == (2, backbone.grid(5, 40).num_tokens, 64)
    assert backbone(frames).requires_grad
    assert _slug("conv3d", {"depth": 3}) == _slug("conv3d", {"width": 33}) == "bad-value"
    assert _slug("conv3d", {"width": 128}, backbone.state_dict()) == "corrupt"


def test_without_transformers_the_extra_is_named(clip, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="needs the package `transformers`") as raised:
        load_backbone(f"hf:{clip}")
    assert "albertkit[caption]" in raised.value.hint


def test_a_transformers_too_old_for_a_model_is_named(clip, monkeypatch):
    older = SimpleNamespace(__version__="5.0.0")
    monkeypatch.setitem(sys.modules, "transformers", older)
    with pytest.raises(
        CheckpointError, match=r"needs CLIPVisionModel, which transformers 5\.0\.0 lacks"
    ):
        load_backbone(f"hf:{clip}")


def test_weights_in_several_files(tiny, tmp_path):
    saved = tiny("videomae")
    saved.model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert (
        load_backbone(f"hf:{tmp_path}").fingerprint()
        == load_backbone(f"hf:{saved.folder}").fingerprint()
    )
    shards[1].unlink()
    assert _slug(tmp_path) == "corrupt"


def test_pickled_weights_load_only_as_weights(clip):
    expected = load_backbone(f"hf:{clip}").fingerprint()
    state = load_file(clip / "model.safetensors")
    (clip / "model.safetensors").unlink()
    torch.save(state, clip / "pytorch_model.bin")
    assert load_backbone(f"hf:{clip}").fingerprint() == expected
    # An object is no weight
    torch.save({**state, "code": Path("anything")}, clip / "pytorch_model.bin")
    assert _slug(clip) == "corrupt"


def test_code_of_a_folder_is_never_run(clip, tmp_path):
    ran = tmp_path / "ran"
    (clip / "evil.py").write_text(
        f"open({str(ran)!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    )
    _change(clip / "config.json", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    expected = load_backbone(f"hf:{clip}").fingerprint()
    assert not ran.exists()
    assert len(expected) == 64


@pytest.mark.parametrize(
    ("model_type", "frames", "size", "fact", "hint"),
    [
        ("videomae", 8, 32, "cannot take 8 frames", "give it 4"),
        ("videomae", 4, 40, "cannot take frames of 40 pixels", "give it 32"),
        ("vivit", 3, 32, "cannot take 3 frames", "give it 4"),
        ("vivit", 4, 40, "cannot take frames of 40 pixels", "give it 32"),
        ("vjepa2", 5, 32, "cannot take 5 frames", "give it a multiple of 2 frames"),
        ("vjepa2", 4, 64, "cannot take frames of 64 pixels", "give it 32"),
        ("timesformer", 0, 32, "cannot take 0 frames", "give it at least 1 frame"),
        ("clip", 4, 33, "cannot take frames of 33 pixels", "give it 32, or a multiple of 8"),
        ("swin", 4, 36, "cannot take frames of 36 pixels", "give it 32, or a multiple of 8"),
    ],
)
def test_frames_that_cannot_work_are_refused_with_those_that_do(
    model_type, frames, size, fact, hint, tiny
):
    backbone = load_backbone(f"hf:{tiny(model_type).folder}")
    with pytest.raises(ConfigError, match=fact) as raised:
        backbone.grid(frames, size)
    assert raised.value.slug == "bad-value"
    assert hint in raised.value.hint
    with pytest.raises(ConfigError, match=fact):
        backbone(torch.zeros(1, frames, size, size, 3, dtype=torch.uint8))


def test_frames_of_another_form_are_refused(tiny):
    backbone = load_backbone(f"hf:{tiny('clip').folder}")
    frames = torch.zeros(1, 4, 32, 32, 3, dtype=torch.uint8)
    for wrong in (frames.float(), frames[0], frames[:, :, :16], frames.movedim(-1, 2)):
        with pytest.raises(ConfigError, match=r"\[bad-value\].*frames are torch\."):
            backbone(wrong)


def test_fingerprint_is_of_weights_settings_and_pixels(clip, tmp_path):
    backbone = load_backbone(f"hf:{clip}")
    fingerprint = backbone.fingerprint()
    moved = Path(shutil.copytree(clip, tmp_path / "elsewhere"))
    assert load_backbone(f"hf:{moved}").fingerprint() == fingerprint  # the place does not matter
    _change(clip / "config.json", architectures=["Anything"], transformers_version="1")
    tensors = load_file(clip / "model.safetensors")
    text = next(name for name in tensors if name.startswith("text_model"))
    save_file({**tensors, text: tensors[text] + 1}, clip / "model.safetensors", {"format": "pt"})
    assert load_backbone(f"hf:{clip}").fingerprint() == fingerprint  # nor what makes no token
    with torch.no_grad():
        next(backbone.parameters()).view(-1)[3] += 1e-3
    changed = backbone.fingerprint()
    assert changed != fingerprint
    assert backbone.fingerprint() == changed
    (moved / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    rescaled = load_backbone(f"hf:{moved}")
    assert rescaled.fingerprint() not in (fingerprint, changed)
    assert _slug(moved, backbone.settings()) == "changed"
    assert load_backbone(f"hf:{moved}", rescaled.settings()).fingerprint() == rescaled.fingerprint()


def test_weights_need_their_settings(clip, tiny):
    backbone = load_backbone(f"hf:{clip}")
    for broken in (
        None,
        {},
        {**backbone.settings(), "pixels": {}},
        {**backbone.settings(), "config": 3},
    ):
        assert _slug("hf:x", broken, backbone.state_dict()) == "bad-value"
    dinov2 = load_backbone(f"hf:{tiny('dinov2').folder}")
    assert _slug("hf:x", backbone.settings(), dinov2.state_dict()) == "corrupt"


def test_half_precision_checkpoints_compute_in_fp32(clip):
    halves = {name: tensor.half() for name, tensor in load_file(clip / "model.safetensors").items()}
    save_file(halves, clip / "model.safetensors", {"format": "pt"})
    _change(clip / "config.json", dtype="float16")
    backbone = load_backbone(f"hf:{clip}")
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}
    assert backbone(torch.zeros(1, 2, 32, 32, 3, dtype=torch.uint8)).dtype == torch.float32


@pytest.mark.parametrize(
    ("file", "content", "values", "size"),
    [
        ("", {}, STANDARD, None),
        (
            "preprocessor_config.json",  # as feature extractors of transformers 4.20 wrote it
            {
                "do_resize": True,
                "image_mean": [0.1, 0.2, 0.3],
                "image_std": [0.4, 0.5, 0.6],
                "size": 224,
            },
            PixelValues((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
            224,
        ),
        (
            "preprocessor_config.json",
            {
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
                "size": {"shortest_edge": 256},
                "offset": True,
                "rescale_factor": 1 / 127.5,
            },
            PixelValues(STANDARD.mean, STANDARD.std, 1 / 127.5, -1.0),
            224,
        ),
        (
            "preprocessor_config.json",
            {
                "do_center_crop": False,
                "crop_size": {"height": 224, "width": 224},
                "size": {"height": 384, "width": 384},
                "do_normalize": False,
            },
            PixelValues((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
            384,
        ),
        (
            "video_preprocessor_config.json",
            {"crop_size": 256, "do_rescale": False},
            PixelValues(STANDARD.mean, STANDARD.std, 1.0),
            256,
        ),
        (
            "processor_config.json",
            {"image_processor": {"image_mean": 0.25, "size": {"height": 64, "width": 64}}},
            PixelValues((0.25, 0.25, 0.25), STANDARD.std),
            64,
        ),
    ],
)
def test_processors_files_of_every_age(file, content, values, size, tmp_path):
    if file:
        write_json(tmp_path / file, content)
    assert read_pixel_values_and_size(tmp_path, STANDARD) == (values, size)


@pytest.mark.parametrize(
    "content",
    ['{"image_mean": [1, 2]}', '{"image_std": [0, 1, 1]}', '{"size": {"height": 2, "width": 3}}', "[1]", '{"size": "big"}',
     '{"rescale_factor": null}'],
)  # fmt: skip
def test_broken_processors_files_are_named(content, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(
        ConfigError,
        match=r"\[bad-value\].*preprocessor_config\.json` is not a supported image processor",
    ):
        read_pixel_values_and_size(tmp_path, STANDARD)


def test_a_broken_processors_file_of_several_parts_is_named(tmp_path):
    (tmp_path / "processor_config.json").write_text("[1]")
    with pytest.raises(
        ConfigError, match=r"processor_config\.json` is not a supported image processor"
    ):
        read_pixel_values_and_size(tmp_path, STANDARD)


def test_a_folders_size_counts_where_the_model_can_take_it(clip):
    (clip / "preprocessor_config.json").write_text('{"size": 48}')
    assert load_backbone(f"hf:{clip}").frame_size == 48
    (clip / "preprocessor_config.json").write_text('{"size": 50}')  # no multiple of 8
    assert load_backbone(f"hf:{clip}").frame_size == 32
