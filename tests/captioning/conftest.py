"""Small clips of moving shapes, as frames and as features; the other fixtures are `swinbert_numbers`'."""

import json

import numpy as np
import pytest
from small_clips import read_split_clips, write_shapes
from swinbert_numbers import exact, original, shell  # noqa: F401

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.prepare import prepare_clips
from benchmarks.learn_shapes import SAMPLING
from benchmarks.moving_shapes import COLOURS


@pytest.fixture(scope="session")
def frames(tmp_path_factory):
    """Forty clips of moving shapes, their frames prepared."""
    folder = tmp_path_factory.mktemp("shapes")
    clips = write_shapes(folder / "clips", 40, ("train", "dev", "test"))
    prepare_clips(clips, folder / "prepared", load_backbone("conv3d", {"width": 64}), SAMPLING)
    return folder / "prepared"


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    """Thirty clips as features of unlike length, whose first numbers say what the caption is."""
    folder = tmp_path_factory.mktemp("features")
    generator = np.random.default_rng(0)
    lines = {"train": [], "dev": []}
    for number in range(30):
        colour = list(COLOURS)[number % 8]
        values = generator.normal(0, 0.1, (3 + number % 4, 12)).astype(np.float32)
        values[:, number % 8] += 2
        np.save(folder / f"{number}.npy", values)
        captions = [f"a {colour} circle", f"the {colour} circle moves"][: 1 + number % 2]
        split = "dev" if number >= 22 else "train"
        lines[split].append(
            json.dumps({"key": f"c{number}", "features": f"{number}.npy", "captions": captions})
        )
    for split, of_split in lines.items():
        (folder / f"{split}.jsonl").write_text("\n".join(of_split) + "\n")
    clips = {split: read_split_clips(folder, split) for split in lines}
    prepare_clips(clips, folder / "prepared", None)
    return folder / "prepared"
