"""Preparing: every clip once, the same bytes whatever happens, and nothing silent."""

import ast
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from record_files import read_records
from safetensors.numpy import save_file
from swinbert_writer import write_swinbert

from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.clips import Clip
from albertkit.captioning.prepare import prepare_clips, prepare_data
from albertkit.captioning.prepared import PreparedClips, item_file
from albertkit.captioning.swinbert_files import read_swinbert
from albertkit.captioning.video import FrameSampling, sample_frames
from albertkit.errors import DataError
from benchmarks.moving_shapes import write_clip_manifest

SAMPLING = FrameSampling(num_frames=4, size=16)


@pytest.fixture
def clips(videos):
    return [
        Clip(key=f"clip {n}", source=video, captions=(f"캡션 {n}\u2028\x85", "x"))
        for n, video in enumerate(videos)
    ]


def everything(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_features(tmp_path, clips, quarters):
    report = prepare_clips(
        {"train": clips[:3], "dev": clips[3:]}, tmp_path / "out", quarters, SAMPLING, batch_size=2
    )
    assert report.kind == "features"
    assert report.clips == {"train": 3, "dev": 2}
    assert report.captions == 10
    assert report.tokens == 16
    assert report.computed == 5
    assert report.reused == 0
    assert report.skipped == ()
    assert quarters.batches == [2, 2, 1]
    prepared = PreparedClips.open(tmp_path / "out")
    assert prepared.kind == "features"
    assert prepared.backbone == "quarters"
    assert prepared.sampling == SAMPLING
    assert prepared.grid == TokenGrid(4, 2, 2)
    assert prepared.grid_of("dev", 1) == TokenGrid(4, 2, 2)
    assert prepared.width == 3
    assert prepared.backbone_fingerprint == quarters.fingerprint()
    for split, part in (("train", clips[:3]), ("dev", clips[3:])):
        for number, clip in enumerate(part):
            prepared_clip = prepared.clips(split)[number]
            assert prepared_clip.key == clip.key
            assert prepared_clip.captions == clip.captions
            assert prepared_clip.origin == {"source": str(clip.source)}
            frames = torch.from_numpy(sample_frames(clip.source, SAMPLING).pixels)
            expected = quarters(frames[None])[0].half().numpy()
            visual = prepared.visual(split, number)
            assert visual.dtype == np.float16
            assert np.array_equal(visual, expected)
            assert not np.array_equal(visual, np.roll(expected, 1, axis=0))


def test_pooled(tmp_path, clips, quarters):
    prepare_clips(clips, tmp_path / "whole", quarters, SAMPLING)
    report = prepare_clips(clips, tmp_path / "pooled", quarters, SAMPLING, max_tokens=8)
    full, pooled = (PreparedClips.open(tmp_path / name) for name in ("whole", "pooled"))
    assert report.tokens == 8
    assert pooled.grid == TokenGrid(4, 1, 2)
    expected = full.visual("train", 1).astype(np.float32).reshape(4, 2, 2, 3).mean(1).reshape(8, 3)
    # float16 near 255
    assert np.abs(pooled.visual("train", 1).astype(np.float32) - expected).max() <= 0.13


def test_frames_for_a_backbone_that_is_trained(tmp_path, clips, trained):
    prepare_clips(clips, tmp_path / "out", trained, SAMPLING, max_tokens=1)
    prepared = PreparedClips.open(tmp_path / "out")
    assert prepared.kind == "frames"
    assert prepared.grid == TokenGrid(4, 2, 2)
    assert prepared.backbone == "quarters"
    assert trained.batches == []
    visual = prepared.visual("train", 2)
    assert visual.dtype == np.uint8
    assert np.array_equal(visual, sample_frames(clips[2].source, SAMPLING).pixels)


def test_a_second_run_does_nothing(tmp_path, clips, quarters):
    prepare_clips(clips, tmp_path / "out", quarters, SAMPLING)
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")}
    calls = len(quarters.batches)
    report = prepare_clips(clips, tmp_path / "out", quarters, SAMPLING)
    assert report.computed == 0
    assert report.reused == 5
    assert len(quarters.batches) == calls
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")} == times


def test_by_content(tmp_path, clips, quarters):
    copy = tmp_path / "videos/copy.mp4"
    copy.write_bytes(clips[0].source.read_bytes())
    with_copies = [*clips, Clip(key="copy", source=copy), Clip(key="part", source=copy, end=0.5)]
    report = prepare_clips(with_copies, tmp_path / "out", quarters, SAMPLING)
    assert report.computed == 6  # the copy is clip 0, the part of it is not
    before = PreparedClips.open(tmp_path / "out").clips("train")
    assert before[0].item == before[5].item != before[6].item
    clips[1].source.write_bytes(clips[2].source.read_bytes())
    copy.write_bytes(clips[3].source.read_bytes())
    report = prepare_clips(with_copies, tmp_path / "out", quarters, SAMPLING)
    after = PreparedClips.open(tmp_path / "out").clips("train")
    # The part of a file that has changed; the other changed files are clips 2 and 3
    assert report.computed == 1
    assert after[1].item == after[2].item
    assert after[5].item == after[3].item
    assert after[0].item == before[0].item


def test_rows_of_frames(tmp_path, clips, quarters):
    rows = read_swinbert(
        write_swinbert(clips, tmp_path / "rows", "train", replace(SAMPLING, rounding="round"))
    )
    prepare_clips(rows, tmp_path / "a", quarters, replace(SAMPLING, rounding="round"))
    prepare_clips(clips, tmp_path / "b", quarters, replace(SAMPLING, rounding="round"))
    a, b = (PreparedClips.open(tmp_path / name) for name in "ab")
    assert a.clips("train")[2].origin["row"] == 2
    for number in range(len(clips)):
        distances = [
            np.abs(a.visual("train", number).astype(float) - b.visual("train", n)).max()
            for n in range(5)
        ]
        assert np.argmin(distances) == number
        assert distances[number] <= 4


def test_skipped_clips(tmp_path, clips, quarters, slug_of):
    clips[1].source.write_bytes(b"no video at all")
    clips[2].source.write_bytes(b"")
    clips[3].source.unlink()
    report = prepare_clips(
        {"train": clips, "dev": clips[:1]}, tmp_path / "out", quarters, SAMPLING, batch_size=4
    )
    assert [(clip.key, clip.slug) for clip in report.skipped] == [
        ("clip 1", "bad-file"),
        ("clip 2", "bad-file"),
        ("clip 3", "not-found"),
    ]
    assert report.clips == {"train": 2, "dev": 1}
    skipped = read_records(tmp_path / "out/skipped.jsonl")
    assert [set(line) for line in skipped] == [{"split", "key", "slug", "reason"}] * 3
    assert [clip.key for clip in PreparedClips.open(tmp_path / "out").clips("train")] == [
        "clip 0",
        "clip 4",
    ]
    files = everything(tmp_path / "out")
    calls = len(quarters.batches)
    prepare_clips({"train": clips}, tmp_path / "out", quarters, SAMPLING, batch_size=4)
    assert len(quarters.batches) == calls  # what cannot be read does not make its neighbours new
    assert everything(tmp_path / "out") == files  # the other split stays
    assert (
        slug_of(prepare_clips, clips, tmp_path / "stop", quarters, SAMPLING, on_error="stop")
        == "not-found"
    )
    with pytest.raises(DataError, match=r"\[too-little-data\].*none of the 3 clips of train"):
        prepare_clips(clips[1:4], tmp_path / "none", quarters, SAMPLING)
    assert len((tmp_path / "none/skipped.jsonl").read_text().splitlines()) == 3
    assert slug_of(PreparedClips.open, tmp_path / "none") == "wrong-kind"


def test_what_was_wrong_with_a_file_is_kept(tmp_path, make_video, quarters):
    colours = np.random.default_rng(2).integers(0, 256, (20, 3)).tolist()
    intact = make_video(tmp_path / "whole.avi", colours)
    cut = tmp_path / "cut.avi"
    cut.write_bytes(intact.read_bytes()[: intact.stat().st_size * 17 // 20])
    clips = [Clip(key=file.stem, source=file) for file in (intact, cut)]
    expected = sample_frames(cut, SAMPLING).notes
    assert expected
    for _ in range(2):  # computed, and found
        prepare_clips(clips, tmp_path / "out", quarters, SAMPLING)
        assert [clip.notes for clip in PreparedClips.open(tmp_path / "out").clips("train")] == [
            (),
            expected,
        ]
        (tmp_path / "out/clips-train.jsonl").unlink()


def test_splits_one_after_the_other(tmp_path, clips, quarters):
    prepare_clips(
        {"train": clips[:3], "dev": clips[3:]}, tmp_path / "a", quarters, SAMPLING, batch_size=3
    )
    prepare_clips({"train": clips[:3]}, tmp_path / "b", quarters, SAMPLING, batch_size=3)
    prepare_clips({"dev": clips[3:]}, tmp_path / "b", quarters, SAMPLING, batch_size=3)
    assert everything(tmp_path / "a") == everything(tmp_path / "b")


def test_another_backbone_or_sampling_is_another_folder(tmp_path, clips, quarters):
    prepare_clips(clips, tmp_path / "out", quarters, SAMPLING)
    files = everything(tmp_path / "out")
    doubled = type(quarters)(scale=2.0)
    for backbone, sampling, tokens in (
        (doubled, SAMPLING, 196),
        (quarters, replace(SAMPLING, num_frames=5), 196),
        (quarters, SAMPLING, 4),
    ):
        with pytest.raises(DataError, match=r"\[changed\].*was prepared otherwise"):
            prepare_clips(clips, tmp_path / "out", backbone, sampling, max_tokens=tokens)
    assert everything(tmp_path / "out") == files


def test_broken_items(tmp_path, clips, quarters, slug_of):
    prepare_clips(clips, tmp_path / "out", quarters, SAMPLING)
    original = everything(tmp_path / "out")
    prepared = PreparedClips.open(tmp_path / "out")
    files = [item_file(tmp_path / "out", clip.item) for clip in prepared.clips("train")]
    content = files[0].read_bytes()
    files[0].unlink()
    files[1].write_bytes(content[:-1])
    files[2].write_bytes(b"\x00" * len(content))
    np.save(files[3], np.zeros((16, 3), np.float32))
    files[4].write_bytes(content + b"more")
    slugs = [slug_of(prepared.visual, "train", number) for number in range(5)]
    assert slugs == ["missing-file", *["corrupt"] * 4]
    assert prepare_clips(clips, tmp_path / "out", quarters, SAMPLING).computed == 5
    assert everything(tmp_path / "out") == original


def test_folders_that_are_not_prepared(tmp_path, clips, quarters, slug_of):
    prepare_clips(clips, tmp_path / "out", quarters, SAMPLING)
    facts = (tmp_path / "out/prepared.json").read_text()

    def slug(text):
        (tmp_path / "out/prepared.json").unlink(missing_ok=True)
        if text is not None:
            (tmp_path / "out/prepared.json").write_text(text)
        return slug_of(PreparedClips.open, tmp_path / "out")

    assert slug(None) == "unfinished"
    assert slug(facts.replace('"clips": 5', '"clips": 6')) == "unfinished"
    assert slug(facts.replace('"format": 1', '"format": 2')) == "changed"
    assert slug("{}") == slug("[]") == slug("{") == "bad-file"
    (tmp_path / "out/prepared.json").write_text(facts)
    assert slug_of(PreparedClips.open(tmp_path / "out").clips, "test") == "missing-file"


def test_features_of_somebody_else(tmp_path):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(m, 6)).astype(np.float32) for m in (3, 5, 4)]
    np.save(tmp_path / "a.npy", arrays[0])
    save_file({"anything": arrays[1]}, tmp_path / "b.safetensors")
    np.save(tmp_path / "c.npy", arrays[2].astype(np.float64))
    bad = {
        "wide": rng.normal(size=(3, 7)),
        "nan": np.full((3, 6), np.nan),
        "large": np.full((3, 6), 1e5),
        "int": np.ones((3, 6), int),
        "flat": np.ones(6),
        "none": np.ones((0, 6)),
    }
    for name, array in bad.items():
        np.save(tmp_path / f"{name}.npy", array)
    save_file({"x": arrays[0], "y": arrays[1]}, tmp_path / "two.safetensors")
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "pickle.npy", np.array([{}], object), allow_pickle=True)
    names = [
        "a.npy",
        "b.safetensors",
        "c.npy",
        *(f"{name}.npy" for name in bad),
        "two.safetensors",
        "text.npy",
        "pickle.npy",
    ]
    clips = [Clip(key=name, source=tmp_path / name, captions=("x",)) for name in names]
    write_clip_manifest(tmp_path / "train.jsonl", clips)
    report = prepare_data(tmp_path / "train.jsonl", tmp_path / "out", backbone="features")
    slugs = [clip.slug for clip in report.skipped]
    assert slugs == ["bad-row", *["bad-file"] * 8], [clip.reason for clip in report.skipped]
    prepared = PreparedClips.open(tmp_path / "out")
    assert prepared.backbone == "features"
    assert prepared.sampling is None
    assert prepared.grid is None
    assert prepared.width == 6
    for number, array in enumerate(arrays):
        assert np.array_equal(prepared.visual("train", number), array.astype(np.float16))
        assert prepared.grid_of("train", number) == TokenGrid(len(array), 1, 1)
    assert prepare_clips(clips, tmp_path / "out", None).computed == 0


def test_clips_of_the_wrong_kind(tmp_path, clips, quarters, slug_of):
    np.save(tmp_path / "a.npy", np.ones((3, 6), np.float32))
    features = Clip(key="f", source=tmp_path / "a.npy")
    for wrong, backbone in (([features], quarters), (clips, None)):
        assert (
            slug_of(prepare_clips, wrong, tmp_path / "out", backbone, SAMPLING)
            == "conflicting-options"
        )
    assert (
        slug_of(prepare_clips, [clips[0], clips[0]], tmp_path / "out", quarters, SAMPLING)
        == "bad-row"
    )
    assert (
        slug_of(prepare_clips, clips, tmp_path / "out", type(quarters)(scale=1e6), SAMPLING)
        == "not-finite"
    )
    for option in ("batch_size", "workers", "max_tokens"):
        assert (
            slug_of(prepare_clips, clips, tmp_path / "out", quarters, SAMPLING, **{option: 0})
            == "bad-value"
        )
    assert (
        slug_of(prepare_clips, {"../x": clips}, tmp_path / "out", quarters, SAMPLING) == "bad-value"
    )
    assert not (tmp_path / "out/prepared.json").exists()


_KILLED = """
import os, signal, sys, time
from pathlib import Path
import torch
from albertkit.captioning.backbone import Backbone, TokenGrid
from albertkit.captioning import prepared as items, prepare as making
from albertkit.captioning.prepare import prepare_clips
from albertkit.captioning.sources import read_splits
from albertkit.captioning.video import FrameSampling

class Mixing(Backbone):
    # what a clip gets depends on its batch, much more than the last bits of a real one do
    name, out_dim, frame_size = "mixing", 3, 16
    def grid(self, num_frames, size):
        return TokenGrid(num_frames, 1, 1)
    def fingerprint(self):
        return "0" * 64
    def forward(self, frames):
        time.sleep(0.008)
        means = frames.float().mean((2, 3))
        return means + means.mean(0)

write = making.write_item
def slowly(*arguments):
    time.sleep(0.008)
    write(*arguments)
making.write_item = slowly
torch.set_num_threads(1)
sampling = FrameSampling(num_frames=2, size=16)
manifest, whole, killed = map(Path, sys.argv[1:])

def made():
    return len(list(killed.glob("items/*/*.npy")))

def run(out, kill_at=None):
    process = os.fork()  # imported once, no thread was started yet
    if process == 0:
        prepare_clips(read_splits(manifest), out, Mixing(), sampling, batch_size=4, workers=2)
        os._exit(0)
    while kill_at is not None and made() < kill_at:
        time.sleep(0.002)
    if kill_at is not None:
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), made()

print([run(whole), run(killed, 1), run(killed, 10), run(killed)])
"""


def test_killed_and_run_again(tmp_path, make_video):
    rng = np.random.default_rng(1)
    sources = [
        make_video(tmp_path / f"{n}.mp4", rng.integers(0, 256, (2, 3)).tolist(), repeat=1)
        for n in range(18)
    ]
    sources[7].write_bytes(b"broken")
    write_clip_manifest(
        tmp_path / "train.jsonl",
        [Clip(key=str(n), source=s, captions=("x",)) for n, s in enumerate(sources)],
    )
    arguments = [
        sys.executable,
        "-c",
        _KILLED,
        *(str(tmp_path / name) for name in ("train.jsonl", "whole", "killed")),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, check=True
    ).stdout
    runs = ast.literal_eval(printed)
    assert [code for code, _ in runs] == [0, -9, -9, 0]
    counts = [count for _, count in runs]
    assert 0 == counts[0] < counts[1] < counts[2] < counts[3] == 17
    assert len(PreparedClips.open(tmp_path / "killed").clips("train")) == 17
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")
