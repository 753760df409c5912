"""A real checkout of microsoft/SwinBERT, named by ALBERTKIT_SWINBERT: migrated, trained, brought home.

Besides albertkit's `caption` extra it needs easydict, tensorboardX, opencv-python-headless,
torchvision, einops, addict, yapf, scikit-image, progressbar2, six, future, deprecated and ete3.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from record_files import read_records
from small_clips import read_split_clips
from swinbert_writer import published_state, write_swinbert

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.layers import gate_matrix
from albertkit.captioning.video import sample_frames
from albertkit.captioning.video_swin import VideoSwinBackbone
from albertkit.swinbert.checkpoints import convert_swinbert
from albertkit.swinbert.migrate import migrate_checkout
from benchmarks.moving_shapes import WORDS, make_clips

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:head size")]
FRAMES, SIZE = 4, 96  # the clips' own size: neither side scales a pixel
SWIN = dict(
    embed_dim=16,
    depths=[1, 1, 2, 1],
    num_heads=[1, 2, 4, 8],
    window_size=[8, 7, 7],
    patch_size=[2, 4, 4],
)
_SWIN_CONFIG = f"model = dict(backbone=dict({', '.join(f'{name}={value}' for name, value in SWIN.items())}, patch_norm=True))\n"
_PACKAGES = (
    "easydict",
    "tensorboardX",
    "cv2",
    "torchvision",
    "einops",
    "addict",
    "yapf",
    "skimage",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, migrated, with a small Video Swin, small text models and a small data set."""
    source = os.environ.get("ALBERTKIT_SWINBERT")
    if not source:
        pytest.skip("ALBERTKIT_SWINBERT is not set")
    if absent := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        pytest.skip(f"SwinBERT needs {', '.join(absent)}")
    root = tmp_path_factory.mktemp("real") / "SwinBERT"
    shutil.copytree(source, root, ignore=shutil.ignore_patterns(".git", "*.mp4"))
    migrate_checkout(root, apply=True, portable=True)
    name = "swin_mini_patch244_window877_kinetics600_22k"
    (root / f"src/modeling/video_swin/{name}.py").write_text(_SWIN_CONFIG)
    weights = root / "models" / "video_swin_transformer"
    weights.mkdir(parents=True)
    torch.manual_seed(0)
    swin = VideoSwinBackbone(**SWIN)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in swin.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    torch.save({"state_dict": published_state(swin, "backbone.")}, weights / f"{name}.pth")
    sizes = dict(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=128,
        max_position_embeddings=64,
        type_vocab_size=2,
        hidden_act="gelu",
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        initializer_range=0.2,
        layer_norm_eps=1e-12,
    )
    for model, values in (
        ("bert", sizes),
        ("albert", {**sizes, "embedding_size": 32, "num_hidden_layers": 3}),
    ):
        folder = root / "models" / "captioning" / f"small-{model}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": model, **values}))
        (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    make_clips(root / "clips", 30)
    for split, name in (("train", "train"), ("dev", "val")):
        write_swinbert(read_split_clips(root / "clips", split), root / "datasets" / "TINY", name)
    return root


def run(tree: Path, *arguments: object) -> str:
    """Run `in_checkout.py` in the tree; its output."""
    script = Path(__file__).with_name("in_checkout.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    return process.stdout + process.stderr


def train(tree: Path, model: str, out: str, *flags: object) -> Path:
    """Three updates of SwinBERT's training."""
    (tree / "mini.json").write_text(json.dumps({
        **json.loads((tree / "src/configs/VidSwinBert/vatex_8frm_albert.json").read_text()),
        "model_name_or_path": f"models/captioning/small-{model}/", "output_dir": out, "vidswin_size": "mini", "num_workers": 0,
        "train_yaml": "TINY/train.yaml", "val_yaml": "TINY/val.yaml", "max_num_frames": FRAMES, "img_res": SIZE,
        "per_gpu_train_batch_size": 6, "per_gpu_eval_batch_size": 6, "evaluate_during_training": False, "logging_steps": 1,
        "learning_rate": 1e-3, "device": "cpu",
    }))  # fmt: skip
    run(tree, "train", model, "--", "--config", "mini.json", "--do_train", "true", *flags)
    return sorted(
        (tree / out).glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[-1])
    )[-1]


def predictions(tree: Path, model: str, checkpoint: Path, out: Path) -> dict[str, str]:
    """Captions of the checkout's evaluation, by the name of the clip."""
    for old in checkpoint.glob("pred.*"):
        old.unlink()
    run(
        tree, "train", model, "--", "--config", "mini.json", "--do_train", "false", "--do_eval", "true",
        "--eval_model_dir", f"{checkpoint}/", "--model_name_or_path", f"models/captioning/small-{model}/",
    )  # fmt: skip
    (file,) = checkpoint.glob("pred.*.tsv")
    rows = [line.split("\t") for line in file.read_text().splitlines()]
    return {Path(key).stem: json.loads(records)[0]["caption"] for key, records in rows}


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("albert", ()),
        (
            "albert",
            ("--learn_mask_enabled", "true", "--loss_sparse_w", "0.5", "--tie_weights", "true"),
        ),
        ("bert", ()),
        ("bert", ("--learn_mask_enabled", "true", "--loss_sparse_w", "0.5")),
    ],
    ids=["albert", "albert, learned mask, tied", "bert", "bert, learned mask"],
)
def test_trained_there_it_comes_home(tree, tmp_path, model, flags):
    begun = time.perf_counter()
    checkpoint = train(tree, model, f"output/{tmp_path.name}", *flags)
    trained = time.perf_counter()
    report = convert_swinbert(checkpoint, tmp_path / "home")
    assert report.text_model == model
    captioner = VideoCaptioner.from_pretrained(tmp_path / "home")
    assert captioner.backbone is not None
    assert captioner.sampling is not None
    manifest = read_records(tree / "clips" / "dev.jsonl")
    videos = [tree / "clips" / entry["video"] for entry in manifest]
    run(
        tree,
        "compute",
        model,
        checkpoint,
        "a red ring moves slowly to the left",
        tmp_path / "theirs.npz",
        *videos,
    )
    theirs = dict(np.load(tmp_path / "theirs.npz"))

    # The frames are the same ones. Their colours are not quite: SwinBERT's decoder takes one colour
    # for four pixels.
    pixels = np.stack([sample_frames(video, captioner.sampling).pixels for video in videos])
    normal = (pixels / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    assert np.abs(normal.transpose(0, 1, 4, 2, 3) - theirs["frames"]).mean() < 0.05
    with torch.no_grad():  # with gradients both compute the same bits, without them ours is fused
        features = captioner.backbone.features(torch.from_numpy(theirs["frames"]).transpose(1, 2))
    every = features.flatten(2).transpose(1, 2)
    # Loss and logits under the checkout's mask, with the learned block in it.
    visual = every[:1]
    mask = torch.from_numpy(theirs["attention_mask"]).float()
    if captioner.model.has_learned_gate:
        tokens = visual.shape[1]
        mask[:, -tokens:, -tokens:] = gate_matrix(
            captioner.model.albert.video_gate, captioner.model.caption.hard_gate
        )
    inputs = {
        name: torch.from_numpy(theirs[name])
        for name in ("input_ids", "masked_pos", "masked_ids", "token_type_ids")
    }
    with torch.no_grad():
        loss, logits = captioner.model(img_feats=visual, attention_mask=mask, **inputs)
    differences = {
        "loss": abs(float(loss) - float(theirs["loss"])),
        "logits": float(np.abs(logits.numpy() - theirs["logits"]).max()),
    }
    # A soft mask near 1 magnifies float32's rounding to 2e-3 (golden/captioning), here it is far
    # from 1.
    assert max(differences.values()) < 1e-4
    seconds_of = {}
    for beams in (1, 3):
        settings = replace(captioner.generation, num_beams=beams)
        started = time.perf_counter()
        (caption,) = captioner.describe(captioner.context(visual), settings)[0]
        seconds = time.perf_counter() - started
        ids = theirs[f"ids_{beams}"][0, 0].tolist()
        assert list(caption.ids) == ids[1 : ids.index(captioner.tokenizer.sep_id)]
        assert caption.text == str(theirs[f"text_{beams}"])
        differences[f"score, {beams} beams"] = abs(
            caption.score - float(theirs[f"scores_{beams}"][0, 0])
        )
        assert differences[f"score, {beams} beams"] < 1e-5
        seconds_of[beams] = (float(theirs[f"seconds_{beams}"]), seconds)

    # Evaluation there and captions here of every clip of the split are the same.
    expected = predictions(tree, model, checkpoint, tmp_path)
    captions = captioner.describe(captioner.context(every))
    assert {
        entry["key"]: of_clip[0].text for entry, of_clip in zip(manifest, captions, strict=True)
    } == expected
    from_files = captioner.caption(videos)
    num_equal = sum(
        of_features[0].text == of_file[0].text
        for of_features, of_file in zip(captions, from_files, strict=True)
    )
    table = {"loss there": float(theirs["loss"]), "loss here": float(loss), **differences}
    times = {f"decoding with {beams} beams": seconds for beams, seconds in seconds_of.items()}
    table |= {
        "updates": checkpoint.name,
        "training": trained - begun,
        "all": time.perf_counter() - begun,
        **times,
    }
    print(
        json.dumps(
            {
                "model": model,
                "flags": flags,
                "same from files": f"{num_equal} of {len(videos)}",
                **table,
            }
        )
    )
