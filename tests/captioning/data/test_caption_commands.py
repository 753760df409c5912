"""`albertkit caption prepare`, as a function of the command line."""

import numpy as np
import pytest
from record_files import read_records, write_json

from albertkit.captioning.clips import Clip
from albertkit.captioning.prepared import PreparedClips
from benchmarks.moving_shapes import write_clip_manifest


@pytest.fixture
def prepare(run_command):
    """`prepare(data, out, *flags)`: run the command."""
    return lambda data, out, *flags: run_command("caption", "prepare", data, "--out", out, *flags)


def test_prepare(tmp_path, videos, prepare):
    data = tmp_path / "train.jsonl"
    out = tmp_path / "out"
    write_clip_manifest(
        data, [Clip(key=file.stem, source=file, captions=("x",)) for file in videos]
    )
    with open(data, "a") as stream:
        stream.write('{"video": "none.mp4"}\n')
    videos[1].write_bytes(b"broken")
    printed = prepare(data, out, "--frames", 4, "--size", 32, "--json")
    result = printed.json
    counts = (result["clips"], result["computed"], len(result["skipped"]), len(result["left_out"]))
    assert counts == ({"train": 4}, 4, 1, 1)
    assert "train.jsonl, line 6: no file" in result["left_out"][0]
    assert result["skipped"][0]["key"] == "clip 1"
    printed = prepare(data, out, "--frames", 4, "--size", 32)
    assert "warning: skipped: train `clip 1`: " in printed.err
    table = dict(line.split(maxsplit=1) for line in printed.out.splitlines() if "  " in line)
    assert table["clips"] == "train 4"
    assert table["reused"] == "4"
    assert table["skipped"] == "1"
    prepared = PreparedClips.open(out)
    assert prepared.backbone == "conv3d"
    assert prepared.kind == "frames"
    assert prepared.backbone_settings == {"width": 192}
    refused = prepare(data, out, "--frames", 5, "--size", 48, "--json")
    assert "error[changed]" in refused.err
    assert "sampling was" in refused.err
    assert "error[bad-row]" in prepare(data, tmp_path / "stop", "--on-error", "stop", "--json").err


def test_many_missing_videos_are_summarised_and_listed(tmp_path, videos, prepare):
    names = [video.stem for video in videos]
    content = {
        "videos": [
            {"video_id": name, "split": "train"}
            for name in [*names, *(f"video{n}" for n in range(40))]
        ],
        "sentences": [{"video_id": name, "caption": "x"} for name in names],
    }
    data = tmp_path / "MSRVTT.json"
    out = tmp_path / "out"
    write_json(data, content)
    printed = prepare(data, out, "--frames", 2, "--size", 32)
    lines = [
        line.removeprefix("warning: ")
        for line in printed.err.splitlines()
        if line.startswith("warning: ")
    ]
    assert [line.split(":")[0] for line in lines] == ["left out"] * 5 + [
        f"and 35 more; all are listed in {out / 'skipped.jsonl'}"
    ]
    assert "left out  40" in printed.out
    rows = read_records(out / "skipped.jsonl")
    assert [row["key"] for row in rows] == [f"video {n}" for n in range(6, 46)]
    assert "no video `video39`" in rows[-1]["reason"]
    content["videos"] = content["videos"][:5]
    write_json(data, content)
    prepare(data, out, "--frames", 2, "--size", 32)
    assert (out / "skipped.jsonl").read_text() == ""
    assert (
        "size is 1, it must be a whole number, at least 8"
        in prepare(data, tmp_path / "small", "--size", 1).err
    )
    assert not (tmp_path / "small").exists()


def test_prepare_features(tmp_path, prepare):
    np.save(tmp_path / "a.npy", np.ones((3, 5), np.float32))
    (tmp_path / "dev.jsonl").write_text('{"features": "a.npy", "caption": "x"}\n')
    result = prepare(
        tmp_path / "dev.jsonl", tmp_path / "out", "--backbone", "features", "--json"
    ).json
    assert result["clips"] == {"dev": 1}
    assert result["tokens"] is None
    assert result["kind"] == "features"
