"""A captioner with a frozen backbone works from any folder, and finds a backbone that was moved."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from small_clips import read_split_clips, save_tiny_clip, write_shapes

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.evaluate import evaluate_captioner
from albertkit.captioning.predict import predict_captions
from albertkit.captioning.prepare import prepare_clips
from albertkit.captioning.settings import CaptionSettings
from albertkit.captioning.train import train_captioner
from albertkit.captioning.video import FrameSampling
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError

SETTINGS = CaptionSettings(
    length=16, steps=1, batch_size=8, lr=1e-3, eval_every=1, precision="fp32"
)


@pytest.fixture(scope="module")
def trained_folder(shell, tmp_path_factory):
    """A folder with a CLIP (`bb/clip`), clips, prepared features and a run, made from relative paths as a user types them."""
    from albertkit.captioning.backbones import load_backbone

    folder = tmp_path_factory.mktemp("made")
    save_tiny_clip(folder / "bb/clip")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        clips = write_shapes(Path("clips"))
        prepare_clips(
            clips, "prepared", load_backbone("hf:bb/clip"), FrameSampling(num_frames=2, size=32)
        )
        train_captioner(shell, "prepared", "run", SETTINGS)
    return folder


def test_a_captioner_works_from_any_folder(trained_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    captioner = VideoCaptioner.from_pretrained(trained_folder / "run")
    assert captioner.backbone is not None
    assert captioner.backbone.name == f"hf:{(trained_folder / 'bb' / 'clip').resolve()}"
    assert evaluate_captioner(captioner, trained_folder / "prepared", split="dev").clips > 0


def test_moved_together_they_find_each_other(trained_folder, tmp_path, shell):
    moved = Path(shutil.copytree(trained_folder, tmp_path / "moved"))
    hidden = tmp_path / "gone"
    trained_folder.rename(hidden)
    try:
        captioner = VideoCaptioner.from_pretrained(moved / "run")
        assert captioner.backbone is not None
        assert captioner.backbone.name == f"hf:{(moved / 'bb' / 'clip').resolve()}"
    finally:
        hidden.rename(trained_folder)


def test_clips_stay_prepared_when_the_backbone_is_moved(trained_folder, tmp_path):
    from albertkit.captioning.backbones import load_backbone

    prepared = Path(shutil.copytree(trained_folder / "prepared", tmp_path / "prepared"))
    elsewhere = Path(shutil.copytree(trained_folder / "bb/clip", tmp_path / "elsewhere"))
    clips = {split: read_split_clips(trained_folder / "clips", split) for split in ("train", "dev")}
    report = prepare_clips(
        clips, prepared, load_backbone(f"hf:{elsewhere}"), FrameSampling(num_frames=2, size=32)
    )
    assert report.computed == 0


def test_a_moved_backbone_is_named(trained_folder, tmp_path, shell):
    alone = tmp_path / "alone"
    shutil.copytree(trained_folder / "run", alone / "run")
    shutil.copytree(trained_folder / "prepared", alone / "prepared")
    shutil.copytree(trained_folder / "bb/clip", alone / "elsewhere")
    hidden = trained_folder.with_name("gone")
    video = next((trained_folder / "clips").rglob("*.mp4"))
    shutil.copy(video, alone / "video.mp4")
    trained_folder.rename(hidden)
    try:
        with pytest.raises(CheckpointError, match="not-found") as raised:
            VideoCaptioner.from_pretrained(alone / "run")
        assert f"hf:{(trained_folder / 'bb' / 'clip').resolve()}" in str(raised.value)
        assert "--backbone hf:" in raised.value.hint
        with pytest.raises(CheckpointError, match="not-found"):
            train_captioner(shell, alone / "prepared", tmp_path / "a", SETTINGS)
        name = f"hf:{alone / 'elsewhere'}"
        report = predict_captions(
            alone / "run", [alone / "video.mp4"], no_sheets=True, backbone=name, device="cpu"
        )
        assert [clip.key for clip in report.clips] == ["video"]
        captioner = VideoCaptioner.from_pretrained(alone / "run", backbone=name)
        evaluate_captioner(captioner, alone / "prepared", split="dev")
        train_captioner(shell, alone / "prepared", tmp_path / "b", SETTINGS, backbone=name)
        assert VideoCaptioner.from_pretrained(tmp_path / "b").backbone is not None
    finally:
        hidden.rename(trained_folder)


def test_another_backbone_is_refused(trained_folder, frames, shell, tmp_path):
    from transformers import CLIPVisionModel

    changed = Path(shutil.copytree(trained_folder / "bb/clip", tmp_path / "other"))
    model = CLIPVisionModel.from_pretrained(changed)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save_pretrained(changed)
    for load in (
        lambda: VideoCaptioner.from_pretrained(trained_folder / "run", backbone=f"hf:{changed}"),
        lambda: train_captioner(
            shell, trained_folder / "prepared", tmp_path / "a", SETTINGS, backbone=f"hf:{changed}"
        ),
    ):
        with pytest.raises(CheckpointError, match=r"\[changed\]"):
            load()
    train_captioner(shell, frames, tmp_path / "own", dataclasses.replace(SETTINGS, length=12))
    with pytest.raises(ConfigError, match="keeps the weights of its backbone"):
        VideoCaptioner.from_pretrained(tmp_path / "own", backbone=f"hf:{changed}")


def test_the_hub_is_asked_for_the_weights_of_the_backbone(frames, shell, tmp_path):
    from huggingface_hub.utils import filter_repo_objects

    from albertkit import model_paths

    train_captioner(shell, frames, tmp_path / "own", SETTINGS)
    names = [file.name for file in (tmp_path / "own/best").iterdir()]
    requested = list(filter_repo_objects(names, allow_patterns=model_paths._FILES))
    assert {"backbone.safetensors", "model.safetensors", "captioner.json"} <= set(requested)


def test_frames_fit_any_backbone_and_features_their_own(trained_folder, frames, shell, tmp_path):
    train_captioner(shell, frames, tmp_path / "own", SETTINGS)
    captioner = VideoCaptioner.from_pretrained(tmp_path / "own")
    assert evaluate_captioner(captioner, frames, split="test").clips > 0
    with pytest.raises(AlbertKitError, match=r"\[changed\]"):
        evaluate_captioner(captioner, trained_folder / "prepared", split="dev")
