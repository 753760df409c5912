import json
from pathlib import Path

import numpy as np
import pytest

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.data import prepare, read_clips
from albertkit.captioning.synthetic.learn import SAMPLING, SHELL
from albertkit.captioning.synthetic.shapes import COLOURS, DIRECTIONS, SHAPES, SPEEDS, make_clips
from albertkit.checkpoints.initial import init_model


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty narrow ALBERT whose vocabulary is the words of the moving shapes."""
    folder = tmp_path_factory.mktemp("shell")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "moves", "to", "the"]
    words += [*COLOURS, *SHAPES, *DIRECTIONS, *SPEEDS]
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("\n".join(words) + "\n")
    init_model(folder / "model", folder / "tokenizer", size="tiny", **SHELL)
    return folder / "model"


@pytest.fixture(scope="session")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty clips of moving shapes, their frames prepared."""
    place = tmp_path_factory.mktemp("shapes")
    make_clips(place / "clips", 40)
    clips = {split: read_clips(place / "clips", split) for split in ("train", "dev", "test")}
    prepare(clips, place / "prepared", load_backbone("conv3d", {"width": 64}), SAMPLING)
    return place / "prepared"


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty clips as features of unlike length, whose first numbers say what the caption is."""
    place = tmp_path_factory.mktemp("features")
    generator = np.random.default_rng(0)
    lines: dict[str, list[str]] = {"train": [], "dev": []}
    for number in range(30):
        colour = list(COLOURS)[number % 8]
        values = generator.normal(0, 0.1, (3 + number % 4, 12)).astype(np.float32)
        values[:, number % 8] += 2
        np.save(place / f"{number}.npy", values)
        captions = [f"a {colour} circle", f"the {colour} circle moves"][: 1 + number % 2]
        split = "dev" if number >= 22 else "train"
        lines[split].append(json.dumps({"key": f"c{number}", "features": f"{number}.npy", "captions": captions}))
    for split, of_split in lines.items():
        (place / f"{split}.jsonl").write_text("\n".join(of_split) + "\n")
    clips = {split: read_clips(place, split) for split in lines}
    prepare(clips, place / "prepared", None)
    return place / "prepared"
