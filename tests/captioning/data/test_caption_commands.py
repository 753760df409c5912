"""`albertkit caption prepare` and `convert`, as functions of the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.manifest import write_manifest
from albertkit.captioning.data.prepared import PreparedClips
from albertkit.cli.caption_convert import convert
from albertkit.cli.caption_prepare import prepare
from albertkit.errors import ConfigError, DataError


def test_prepare(tmp_path: Path, videos: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(tmp_path / "train.jsonl", [Clip(key=file.stem, source=file, captions=("x",)) for file in videos])
    with open(tmp_path / "train.jsonl", "a") as stream:
        stream.write('{"video": "none.mp4"}\n')
    videos[1].write_bytes(b"broken")
    prepare(tmp_path / "train.jsonl", out=tmp_path / "out", frames=4, size=32, json=True)
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert (result["clips"], result["computed"], len(result["skipped"]), len(result["left_out"])) == (
        {"train": 4},
        4,
        1,
        1,
    )
    assert "train.jsonl, line 6: no file" in printed.err
    assert "skipped: train `clip 1`: " in printed.err
    prepare(tmp_path / "train.jsonl", out=tmp_path / "out", frames=4, size=32)
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (shown["clips"], shown["reused"], shown["skipped"]) == ("train 4", "4", "1")
    prepared = PreparedClips.open(tmp_path / "out")
    assert (prepared.backbone, prepared.kind, prepared.backbone_settings) == ("conv3d", "frames", {"width": 192})
    with pytest.raises(DataError, match=r"sampling was .*; grid was ") as caught:
        prepare(tmp_path / "train.jsonl", out=tmp_path / "out", frames=5, size=48, json=True)
    assert caught.value.slug == "other-preparation"
    with pytest.raises(DataError) as caught:
        prepare(tmp_path / "train.jsonl", out=tmp_path / "stop", on_error="stop", json=True)
    assert caught.value.slug == "bad-row"


def test_many_missing_videos_are_summarised_and_listed(
    tmp_path: Path, videos: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [video.stem for video in videos]
    content = {
        "videos": [{"video_id": name, "split": "train"} for name in [*names, *(f"video{n}" for n in range(40))]],
        "sentences": [{"video_id": name, "caption": "x"} for name in names],
    }
    (tmp_path / "MSRVTT.json").write_text(json.dumps(content))
    prepare(tmp_path / "MSRVTT.json", out=tmp_path / "out", frames=2, size=32)
    printed = capsys.readouterr()
    assert [line.split(":")[0] for line in printed.err.splitlines()] == ["left out"] * 5 + [
        f"and 35 more; all are listed in {tmp_path / 'out' / 'skipped.jsonl'}"
    ]
    assert "left out  40" in printed.out
    rows = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [row["key"] for row in rows] == [f"video {n}" for n in range(6, 46)]
    assert "no video `video39`" in rows[-1]["reason"]
    content["videos"] = content["videos"][:5]
    (tmp_path / "MSRVTT.json").write_text(json.dumps(content))
    prepare(tmp_path / "MSRVTT.json", out=tmp_path / "out", frames=2, size=32)
    assert (tmp_path / "out" / "skipped.jsonl").read_text() == ""
    with pytest.raises(ConfigError, match="size is 1, it must be a whole number from 8"):
        prepare(tmp_path / "MSRVTT.json", out=tmp_path / "small", size=1)
    with pytest.raises(ConfigError, match="size is 1"):
        convert(tmp_path / "MSRVTT.json", tmp_path / "small", frames=2, size=1)
    assert not (tmp_path / "small").exists()


def test_prepare_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 5), np.float32))
    (tmp_path / "dev.jsonl").write_text('{"features": "a.npy", "caption": "x"}\n')
    prepare(tmp_path / "dev.jsonl", out=tmp_path / "out", backbone="features", json=True)
    result = json.loads(capsys.readouterr().out)
    assert (result["clips"], result["tokens"], result["kind"]) == ({"dev": 1}, None, "features")


def test_convert(tmp_path: Path, videos: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(tmp_path / "train.jsonl", [Clip(key=file.stem, source=file, captions=("x", "é")) for file in videos])
    convert(tmp_path / "train.jsonl", tmp_path / "rows", frames=2, size=16, json=True)
    result = json.loads(capsys.readouterr().out)
    assert (result["files"], result["captions"]) == ([str(tmp_path / "rows" / "train.yaml")], 10)
    convert(tmp_path / "rows" / "train.yaml", tmp_path / "back.jsonl")
    assert f"files     {tmp_path / 'back.jsonl'}\nclips     train 5\n" in capsys.readouterr().out
