"""SwinBERT's files: the bytes that its prepro writes, and everything that its YAML may name.

The expected bytes are written out by hand after prepro/tsv_preproc_msrvtt.py and
src/utils/tsv_file_ops.py of microsoft/SwinBERT.
"""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from small_clips import read_split_clips
from swinbert_writer import write_swinbert, write_tsv

from albertkit.captioning.clips import Clip
from albertkit.captioning.prepare import content_hash, decode_clip_frames
from albertkit.captioning.swinbert_files import TsvFile, read_swinbert
from albertkit.captioning.video import FrameSampling
from albertkit.errors import DataError
from albertkit.tables.bad_rows import BadRows

SAMPLING = FrameSampling(num_frames=4, size=16, rounding="round")


@pytest.fixture
def clips(videos):
    return [
        Clip(key="ключ mit Raum", source=videos[0], captions=('첫 번째 "캡션"', "deux, ü")),
        Clip(key="b", source=videos[1], start=0.1, end=0.5, captions=("begin",)),
        Clip(key="c", source=videos[1], start=0.3, captions=("rest", "the rest")),
        Clip(key=str(videos[2]), source=videos[2], captions=("named as its file",)),
    ]


def test_bytes_as_swinbert_writes_them(tmp_path, videos):
    names = [str(video) for video in videos[:2]]
    first = f'{names[0]}\t[{{"caption": "a man sings"}}, {{"caption": "caf\\u00e9"}}]\n'
    files = {
        "train.img.tsv": f"{names[0]}\t{names[0]}\n{names[1]}\t{names[1]}\n",
        "train.img.lineidx": f"0\n{2 * len(names[0]) + 2}\n",
        "train.caption.tsv": first + f'{names[1]}\t[{{"caption": "a dog"}}]\n',
        "train.caption.lineidx": f"0\n{len(first)}\n",
        "train.caption.linelist.tsv": "0\t0\n0\t1\n1\t0",
        "train.yaml": "caption: train.caption.tsv\ncaption_linelist: train.caption.linelist.tsv\nimg: train.img.tsv\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
    captions = [("a man sings", "café"), ("a dog",)]
    expected = [
        Clip(key=n, source=Path(n), captions=c) for n, c in zip(names, captions, strict=True)
    ]
    assert read_swinbert(tmp_path / "train.yaml") == expected


def test_rows_of_paths(tmp_path, clips):
    """Parts of one video share a row."""
    assert read_swinbert(write_swinbert(clips, tmp_path / "out", "train")) == clips
    assert len(TsvFile(tmp_path / "out/train.img.tsv")) == 3


def test_rows_of_frames(tmp_path, clips):
    rows = read_swinbert(write_swinbert(clips, tmp_path / "out", "train", SAMPLING))
    assert [(clip.key, clip.captions) for clip in rows] == [
        (clip.key, clip.captions) for clip in clips
    ]
    for number, (original_clip, clip) in enumerate(zip(clips, rows, strict=True)):
        assert clip.source == tmp_path / "out/train.img.tsv"
        assert clip.row == number
        frames = decode_clip_frames(clip, SAMPLING)
        original_frames = decode_clip_frames(original_clip, SAMPLING)
        assert frames.pixels.shape == (4, 16, 16, 3)
        # JPEG of flat colours
        assert np.abs(frames.pixels.astype(int) - original_frames.pixels).max() <= 4
        assert np.isnan(frames.times).all()
    difference = (
        decode_clip_frames(rows[0], SAMPLING).pixels.astype(int)
        - decode_clip_frames(rows[1], SAMPLING).pixels
    )
    assert np.abs(difference).max() > 20  # the comparison can tell clips apart


def test_sampling_of_rows_is_swinberts(tmp_path):
    """get_frames_from_tsv: round(x · (N - 1) / (T - 1)), Python's round."""
    pictures = [jpeg(value) for value in range(0, 250, 10)]
    write_tsv(tmp_path / "x.img.tsv", [["k", "{}", *pictures]])
    clip = Clip(key="k", source=tmp_path / "x.img.tsv", row=0)
    for count in (2, 4, 7, 16, 25):
        expected = [round(0 + x * (24 / (count - 1))) * 10 for x in range(count)]
        pixels = decode_clip_frames(
            clip, FrameSampling(num_frames=count, size=8, rounding="round")
        ).pixels
        assert pixels.mean((1, 2, 3)).tolist() == pytest.approx(expected, abs=0.5)
    floor = decode_clip_frames(clip, FrameSampling(num_frames=16, size=8, rounding="floor")).pixels
    assert np.abs(floor.mean((1, 2, 3)) - [round(x * 24 / 15) * 10 for x in range(16)]).max() > 5


def jpeg(value):
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (value,) * 3).save(stream, "JPEG", quality=100)
    return base64.b64encode(stream.getvalue())


def test_missing_and_broken_frames(tmp_path):
    good = jpeg(7)
    file = tmp_path / "x.img.tsv"
    rows = {
        "empty": [good, b"", good, good],
        "cut": [good, good[:40], good, good],
        "text": [good, b"???", good, good],
        "few": [good] * 3,
        "none": [],
        "still": [good],
        "whole": [good] * 4,
    }
    write_tsv(file, [[key, "{}", *pictures] for key, pictures in rows.items()])
    for row, key in enumerate(list(rows)[:5]):
        with pytest.raises(DataError, match=rf"\[bad-row\].*row {row}"):
            decode_clip_frames(Clip(key=key, source=file, row=row), SAMPLING)
    for row, key in ((5, "still"), (6, "whole")):
        assert decode_clip_frames(Clip(key=key, source=file, row=row), SAMPLING).pixels.shape == (
            4,
            16,
            16,
            3,
        )


def write_composite(folder, videos):
    for shard in range(2):
        names = [str(video) for video in videos[2 * shard : 2 * shard + 2]]
        write_tsv(folder / f"{shard}.img.tsv", [[name, name] for name in names])
        captions = [[{"caption": f"{shard} {n} {c}"} for c in range(2)] for n in range(2)]
        write_tsv(
            folder / f"{shard}.caption.tsv",
            [[n, json.dumps(c)] for n, c in zip(names, captions, strict=True)],
        )
    (folder / "linelist.tsv").write_text("1\t0\t1\n0\t1\t0\n1\t0\t0\n")
    settings = {
        "composite": True,
        "img": ["0.img.tsv", "1.img.tsv"],
        "caption": ["0.caption.tsv", "1.caption.tsv"],
    }
    (folder / "train.yaml").write_text(
        yaml.dump(settings | {"caption_linelist": "linelist.tsv", "hw": "x.tsv"})
    )


def test_composite(tmp_path, videos):
    """Keys are `_`.join([file of the shard, key]), as CompositeTSVFile.get_key has them."""
    write_composite(tmp_path, videos)
    bad_rows = BadRows()
    assert read_swinbert(tmp_path / "train.yaml", bad_rows) == [
        Clip(key=f"1.caption.tsv_{videos[2]}", source=videos[2], captions=("1 0 1", "1 0 0")),
        Clip(key=f"0.caption.tsv_{videos[1]}", source=videos[1], captions=("0 1 0",)),
    ]
    assert bad_rows.notes == [f"`{tmp_path / 'train.yaml'}`: `hw` is not used"]


def test_paths_from_above_and_tvc(tmp_path, videos):
    """Paths begin where SwinBERT's code lies; TVC's have the span behind them, and the captions may repeat it."""
    folder = tmp_path / "datasets/TVC"
    names = ["videos/clip 0.mp4", "videos/clip 1.mp4_0.1_0.5", "videos/clip 2.mp4_0_1"]
    write_tsv(folder / "train.img.tsv", [[name, name] for name in names])
    records = [{"caption": "a", "start": 0.25, "end": 0.5, "asr": "words"}]
    write_tsv(
        folder / "train.caption.tsv",
        [[n, json.dumps(r)] for n, r in zip(names, [records, [], records], strict=True)],
    )
    (folder / "train.yaml").write_text("img: train.img.tsv\ncaption: train.caption.tsv\n")
    clips = [
        (c.key, c.source, c.start, c.end, c.captions)
        for c in read_split_clips(tmp_path / "datasets/TVC")
    ]
    assert clips == [
        (names[0], videos[0], 0.25, 0.5, ("a",)),
        (names[1], videos[1], 0.1, 0.5, ()),
        (names[2], videos[2], 0.25, 0.5, ("a",)),
    ]


def test_what_is_wrong_is_named(tmp_path, clips, slug_of):
    path = write_swinbert(clips, tmp_path / "out", "train")

    def slug(name, text):
        write_swinbert(clips, tmp_path / "out", "train")
        (tmp_path / "out" / name).write_text(text)
        return slug_of(read_swinbert, path)

    assert slug("train.yaml", "img: [") == "bad-file"
    assert slug("train.yaml", "img: train.img.tsv\nimg: other.tsv\n") == "bad-file"
    assert slug("train.yaml", "caption: train.caption.tsv") == "missing-file"
    assert slug("train.yaml", "- img") == "missing-file"
    assert slug("train.yaml", "img: none.tsv") == "not-found"
    assert slug("train.yaml", "img: [train.img.tsv, train.img.tsv]") == "missing-file"
    assert slug("train.img.lineidx", "0\n3\n9\n") == "bad-file"
    assert slug("train.caption.linelist.tsv", "0\t9") == "bad-row"
    assert slug("train.caption.linelist.tsv", "9\t0") == "bad-row"
    assert slug("train.caption.linelist.tsv", "0 0") == "bad-row"
    write_swinbert(clips, tmp_path / "out", "train")
    rows = [TsvFile(tmp_path / "out/train.caption.tsv").row(n) for n in range(3)]
    write_tsv(tmp_path / "out/train.caption.tsv", [rows[1], rows[0], rows[2]])
    bad_rows = BadRows("skip")
    assert len(read_swinbert(path, bad_rows)) == 1
    assert ["its key is" in row.reason for row in bad_rows.rows] == [True, True]
    write_tsv(
        tmp_path / "out/train.caption.tsv",
        [[rows[0][0], "[{]"], [rows[1][0], '{"caption": "x"}'], rows[2]],
    )
    bad_rows = BadRows("skip")
    assert len(read_swinbert(path, bad_rows)) == 1
    assert len(bad_rows.rows) == 2
    for odd in ({"start": [1]}, {"end": {}}, {"key": ["x"]}):
        records = json.dumps([{"caption": "x", **odd}])
        write_tsv(
            tmp_path / "out/train.caption.tsv",
            [[rows[0][0], records], [rows[1][0], records], rows[2]],
        )
        (tmp_path / "out/train.caption.linelist.tsv").write_text("0\t0\n1\t0\n2\t0\n")
        bad_rows = BadRows("skip")
        assert [clip.captions for clip in read_swinbert(path, bad_rows)] == [clips[3].captions]
        assert len(bad_rows.rows) == 2
    Path(clips[3].source).unlink()
    with pytest.raises(DataError, match="no file"):
        read_swinbert(write_swinbert(clips, tmp_path / "out", "train"))


def test_content(tmp_path, clips):
    row = read_swinbert(write_swinbert(clips, tmp_path / "a", "train", SAMPLING))
    renamed = read_swinbert(
        write_swinbert([replace(clips[0], key="x")], tmp_path / "b", "train", SAMPLING)
    )
    assert content_hash(row[0]) == content_hash(renamed[0])  # the same pictures under another key
    # Two clips of one file
    assert len({content_hash(clip) for clip in (*row, *clips)}) == len(row) + 3


def test_real_videos_as_frames(tmp_path, data):
    """Frames through JPEG and back stay what they were, and are told from those of the other video."""
    sampling = FrameSampling(num_frames=6, size=96, rounding="round")
    names = ("demo.mp4", "part_0.mp4")
    clips = [Clip(key=name, source=data / "videos" / name, captions=("x",)) for name in names]
    rows = read_swinbert(write_swinbert(clips, tmp_path, "train", sampling))
    video_frames = [decode_clip_frames(clip, sampling).pixels.astype(float) for clip in clips]
    row_frames = [decode_clip_frames(clip, sampling).pixels for clip in rows]
    errors = [
        [np.square(frames - pixels).mean() for frames in row_frames] for pixels in video_frames
    ]
    assert max(errors[0][0], errors[1][1]) < 40  # 32 dB
    assert min(errors[0][1], errors[1][0]) > 1000
