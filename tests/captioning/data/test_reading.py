"""Manifests, folders and annotations to clips, and every way they can be wrong."""

import gzip
import json
import re
import unicodedata
from pathlib import Path

import pytest
from small_clips import read_split_clips

from albertkit.captioning.clips import Clip
from albertkit.captioning.sources import read_splits
from albertkit.errors import DataError
from albertkit.tables.bad_rows import BadRows
from benchmarks.moving_shapes import write_clip_manifest


def lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.mp4", "b.mp4", "sub/c d.mp4", "f.npy", "t.img.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"bytes")
    return tmp_path


def test_manifest(folder):
    manifest = folder / "data.jsonl"
    manifest.write_text(
        "\ufeff"
        + lines(
            {"video": "a.mp4", "captions": ["eins", " zwei "]},
            {"video": "a.mp4", "start": 1, "end": 2.5, "caption": "한국어"},
            {"video": "sub/c d.mp4", "key": "my key"},
        )
        + "\n"
        + lines({"features": "f.npy", "captions": []}, {"frames": "t.img.tsv", "row": 0}),
        encoding="utf-8",
    )
    assert read_split_clips(manifest) == [
        Clip(key="a.mp4", source=folder / "a.mp4", captions=("eins", "zwei")),
        Clip(key="a.mp4_1_2.5", source=folder / "a.mp4", start=1.0, end=2.5, captions=("한국어",)),
        Clip(key="my key", source=folder / "sub/c d.mp4"),
        Clip(key="f.npy", source=folder / "f.npy"),
        Clip(key="t.img.tsv:0", source=folder / "t.img.tsv", row=0),
    ]


def test_round_trip(folder):
    clips = [
        Clip(
            key="ключ 1",
            source=folder / "a.mp4",
            start=0.1,
            end=0.30000000000000004,
            captions=('한국어 " \\', "é"),
        ),
        Clip(key="b", source=folder / "sub" / "c d.mp4"),
        Clip(key="f", source=folder / "f.npy", captions=("x",)),
        Clip(key="t", source=folder / "t.img.tsv", row=7),
    ]
    write_clip_manifest(folder / "sub" / "out.jsonl", clips)
    loaded = read_split_clips(folder / "sub" / "out.jsonl")
    assert [(c.key, c.source.resolve(), c.start, c.end, c.row, c.captions) for c in loaded] == [
        (c.key, c.source.resolve(), c.start, c.end, c.row, c.captions) for c in clips
    ]
    assert str(folder) not in (folder / "sub" / "out.jsonl").read_text()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"video": "a.mp4", "captoins": []}, "did you mean `captions`"),
        ({"video": "none.mp4"}, "no file"),
        ({"video": "b.mp4", "captions": ["ok", "  "]}, "a caption is empty"),
        ({"video": "b.mp4", "captions": "text"}, "must be a list"),
        ({"video": "b.mp4", "captions": [3]}, "it must be text"),
        ({"video": "b.mp4", "caption": "a", "captions": ["b"]}, "both"),
        ({"video": "b.mp4", "features": "f.npy"}, "it needs one"),
        ({"captions": ["a"]}, "it needs one"),
        ({"video": "f.npy"}, "named as video"),
        ({"features": "b.mp4"}, "named as features"),
        ({"features": "f.npy", "start": 1}, "are for videos"),
        ({"frames": "t.img.tsv"}, "belong together"),
        ({"frames": "t.img.tsv", "row": -1}, "row is -1"),
        ({"video": "b.mp4", "start": 2, "end": 1}, "before it begins"),
        ({"video": "b.mp4", "start": "2"}, "it must be seconds"),
        ({"video": "b.mp4", "end": True}, "it must be seconds"),
        ({"video": "b.mp4", "start": float("nan")}, "it must be seconds"),
        ({"video": "b.mp4", "key": "a\tb"}, "has a tab"),
        ({"video": "b.mp4", "key": " "}, "the key is empty"),
        ({"video": "b.mp4", "key": "a.mp4"}, "that of line 1"),
        ({"video": "b.mp4", "key": 5}, "must be text"),
        ({"video": 5}, "not the path"),
        (["a"], "a list, not an object"),
        ({"video": "b.mp4", "caption": "\ud800"}, "half a character"),
    ],
)
def test_bad_lines(folder, record, reason):
    manifest = folder / "data.jsonl"
    text = lines({"video": "a.mp4"}) + json.dumps(record) + "\n" + lines({"video": "sub/c d.mp4"})
    manifest.write_text(text)
    with pytest.raises(
        DataError,
        match=rf"\[bad-row\].*`{re.escape(str(manifest))}`, line 2: .*{re.escape(reason)}",
    ):
        read_split_clips(manifest)
    bad_rows = BadRows("skip")
    assert [clip.key for clip in read_split_clips(manifest, bad_rows=bad_rows)] == [
        "a.mp4",
        "sub/c d.mp4",
    ]
    assert len(bad_rows.rows) == 1


@pytest.mark.parametrize(
    "line", [b"{", b"\xff\xfe{}", b'{"video": "\xff.mp4"}', b"[" * 100_000, b"nul"]
)
def test_lines_that_are_not_json(folder, line):
    (folder / "data.jsonl").write_bytes(line + b"\n" + lines({"video": "a.mp4"}).encode())
    bad_rows = BadRows("skip")
    assert len(read_split_clips(folder / "data.jsonl", bad_rows=bad_rows)) == 1
    assert bad_rows.rows[0].line == 1


def test_splits_of_a_folder(folder, slug_of):
    for name in ("train", "val", "test"):
        (folder / f"{name}.jsonl").write_text(lines({"video": "a.mp4", "key": name}))
    assert {split: [c.key for c in clips] for split, clips in read_splits(folder).items()} == {
        "train": ["train"],
        "dev": ["val"],
        "test": ["test"],
    }
    assert (
        read_split_clips(folder, "dev")
        == read_split_clips(folder, "val")
        == read_split_clips(folder / "val.jsonl")
    )
    assert list(read_splits(folder / "val.jsonl")) == ["dev"]
    assert slug_of(read_split_clips, folder, "extra") == "missing-file"
    (folder / "dev.yaml").write_text("img: x")
    assert slug_of(read_splits, folder) == "ambiguous"


def test_folder_of_videos(folder):
    (folder / "a.txt").write_text("ein Clip\n\n 둘 \n", encoding="utf-8")
    assert read_split_clips(folder) == [
        Clip(key="a", source=folder / "a.mp4", captions=("ein Clip", "둘")),
        Clip(key="b", source=folder / "b.mp4"),
        Clip(key="sub/c d", source=folder / "sub/c d.mp4"),
    ]
    (folder / "b.txt").write_text("\n")
    (folder / "lonely.txt").write_text("x")
    (folder / "sub/c d.webm").write_bytes(b"x")
    bad_rows = BadRows("skip")
    assert [clip.key for clip in read_split_clips(folder, bad_rows=bad_rows)] == ["a"]
    assert [row.reason.split()[0] for row in bad_rows.rows] == ["captions", "no", "c"]
    (folder / "a.txt").write_bytes(b"\xff")
    bad_rows = BadRows("skip")
    with pytest.raises(DataError, match="no clip that can be used"):
        read_split_clips(folder, bad_rows=bad_rows)
    assert "bytes that are not UTF-8" in [row.reason for row in bad_rows.rows]


def test_folder_with_a_folder_for_each_split(folder):
    for split in ("train", "dev"):
        (folder / split).mkdir()
        (folder / split / "x.mp4").write_bytes(b"x")
    assert {split: [c.key for c in clips] for split, clips in read_splits(folder).items()} == {
        "train": ["x"],
        "dev": ["x"],
    }


def test_msrvtt(folder):
    content = {
        "info": {},
        "videos": [
            {"video_id": "b", "split": "validate", "start time": 10.0, "end time": 20.0, "id": 0},
            {"video_id": "a", "split": "train"},
            {"video_id": "c d", "split": "train"},
        ],
        "sentences": [
            {"video_id": "a", "caption": "eins", "sen_id": 1},
            {"video_id": "b", "caption": "zwei", "sen_id": 0},
            {"video_id": "a", "caption": "drei", "sen_id": 2},
        ],
    }
    (folder / "videodatainfo.json").write_text(json.dumps(content))
    splits = read_splits(folder / "videodatainfo.json")
    assert splits == {
        "dev": [Clip(key="b", source=folder / "b.mp4", captions=("zwei",))],
        "train": [
            Clip(key="a", source=folder / "a.mp4", captions=("eins", "drei")),
            Clip(key="c d", source=folder / "sub/c d.mp4"),
        ],
    }
    assert read_split_clips(folder / "videodatainfo.json", "val") == splits["dev"]
    content["videos"].append({"video_id": "none", "split": "test"})
    content["sentences"].append({"video_id": "nobody", "caption": "x"})
    content["sentences"].append({"video_id": "a", "caption": " "})
    (folder / "videodatainfo.json").write_text(json.dumps(content))
    bad_rows = BadRows("skip")
    assert read_splits(folder / "videodatainfo.json", bad_rows=bad_rows) == splits
    assert [row.where for row in bad_rows.rows] == ["caption 4", "caption 5", "video 4"]


def test_nothing_left_of_annotations_is_an_error(folder):
    content = {
        "videos": [{"video_id": f"video{n}", "split": "train"} for n in range(3)],
        "sentences": [{"video_id": "video1", "caption": "x"}],
    }
    file = folder / "MSRVTT.json"
    file.write_text(json.dumps(content))
    for split in (None, "train"):
        with pytest.raises(
            DataError, match=r"for any split \(3 bad rows\); the first: video 1: no video `video0`"
        ) as caught:
            read_splits(file, split, BadRows("skip"))
        assert caught.value.slug == "empty"
    content["videos"].append({"video_id": "a", "split": "validate"})
    file.write_text(json.dumps(content))
    bad_rows = BadRows("skip")
    assert list(read_splits(file, bad_rows=bad_rows)) == ["dev"]
    assert bad_rows.notes == [
        f"`{file}`: none of the 3 clips of train can be used, the split is left out"
    ]


def video(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"bytes")
    return path


def test_vatex(tmp_path):
    """Its files name a clip by video and seconds; the clip is cut out, or lies in the whole video."""
    cut = video(tmp_path / "raw_videos/val_all/Ptf_2VRj-V0_000122_000132.mp4")
    full = video(tmp_path / "raw_videos/wholes/Kq3-PKqMCRk.mkv")
    rows = [
        {"videoID": "Ptf_2VRj-V0_000122_000132", "enCap": ["one", "two "], "chCap": ["\u4e00"]},
        {"videoID": "Kq3-PKqMCRk_000004_000014", "enCap": ["three"], "chCap": []},
        {"videoID": "gone_000000_000010", "enCap": ["four"]},
        {"videoID": "bad_000000_000010", "enCap": [5]},
    ]
    (tmp_path / "vatex_validation_v1.0.json").write_text(json.dumps(rows))
    private = [{"videoID": "Ptf_2VRj-V0_000122_000132"}]
    (tmp_path / "vatex_private_test_without_annotations.json").write_text(json.dumps(private))
    bad_rows = BadRows("skip")
    expected = [
        Clip(key="Ptf_2VRj-V0_000122_000132", source=cut, captions=("one", "two")),
        Clip(
            key="Kq3-PKqMCRk_000004_000014", source=full, start=4.0, end=14.0, captions=("three",)
        ),
    ]
    # The folder of the annotations and their videos
    splits = read_splits(tmp_path, bad_rows=bad_rows)
    assert splits == {"dev": expected, "test": [Clip(key=expected[0].key, source=cut)]}
    reasons = ["no video `gone_000000_000010` or `gone` below", "a caption is 5"]
    assert [
        reason in bad_row.reason for reason, bad_row in zip(reasons, bad_rows.rows, strict=True)
    ] == [True, True]
    assert bad_rows.notes == ["`chCap`, VATEX's Chinese captions, is not used"]
    assert read_splits(tmp_path / "vatex_validation_v1.0.json", bad_rows=BadRows("skip")) == {
        "dev": expected
    }
    (tmp_path / "vatex_public_test_english_v1.1.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="both hold clips of test") as caught:
        read_splits(tmp_path, bad_rows=BadRows("skip"))
    assert caught.value.slug == "ambiguous"


def test_msvd(folder):
    """The JSON that SwinBERT's prepro reads: splits, in them a row a caption."""
    content = {
        "train": [
            {"video": "a", "caption": "x"},
            {"video": "b", "caption": "y"},
            {"video": "a", "caption": "z"},
        ],
        "val": [{"video": "c d", "caption": "w"}],
        "test": [{"video": "b", "caption": " "}, {"video": "gone", "caption": "v"}],
    }
    (folder / "msvd.json").write_text(json.dumps(content))
    bad_rows = BadRows("skip")
    assert read_splits(folder / "msvd.json", bad_rows=bad_rows) == {
        "train": [
            Clip(key="a", source=folder / "a.mp4", captions=("x", "z")),
            Clip(key="b", source=folder / "b.mp4", captions=("y",)),
        ],
        "dev": [Clip(key="c d", source=folder / "sub/c d.mp4", captions=("w",))],
    }
    assert [row.where for row in bad_rows.rows] == ["caption of test 1", "caption of test 2"]


MSVD_TEXT = """\
# MSVD has comments before its lines.

-4wsuPCjDBc_5_15 a squirrel eats
-4wsuPCjDBc_5_15 a chipmunk eats a nut
04Gt01vatkk_248_265 a man pours
zzit5b_-ukg_5_20
zzit5b_-ukg_5_20 a woman cooks
"""
MSVD_TABLE = """\
VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description
-4wsuPCjDBc,5,15,1,clean,34,English,a squirrel eats
-4wsuPCjDBc,5,15,2,unverified,12,German,ein Eichhorn frisst
-4wsuPCjDBc,5,15,3,clean,40,English,a chipmunk eats a nut
04Gt01vatkk,248,265,1,clean,20,English,a man pours
zzit5b_-ukg,5,20,1,clean,9,English,
zzit5b_-ukg,5,20,1,unverified,9,English,"a woman cooks"
"""


@pytest.mark.parametrize(
    ("name", "text", "notes"),
    [
        ("AllVideoDescriptions.txt", MSVD_TEXT, []),
        (
            "MSR Video Description Corpus.csv",
            MSVD_TABLE,
            ["MSVD's descriptions that are not English are not used"],
        ),
    ],
)
def test_msvd_as_published(tmp_path, name, text, notes):
    """Its authors' text and table; the splits are those of the mapping that papers use."""
    cut = video(tmp_path / "YouTubeClips/-4wsuPCjDBc_5_15.avi")
    full = video(tmp_path / "whole/04Gt01vatkk.mp4")
    second_cut = video(tmp_path / "YouTubeClips/zzit5b_-ukg_5_20.avi")
    clips = [
        Clip(
            key="-4wsuPCjDBc_5_15",
            source=cut,
            captions=("a squirrel eats", "a chipmunk eats a nut"),
        ),
        Clip(
            key="04Gt01vatkk_248_265",
            source=full,
            start=248.0,
            end=265.0,
            captions=("a man pours",),
        ),
        Clip(key="zzit5b_-ukg_5_20", source=second_cut, captions=("a woman cooks",)),
    ]
    (tmp_path / name).write_text(text)
    bad_rows = BadRows("skip")
    assert read_splits(tmp_path / name, bad_rows=bad_rows) == {"train": clips}
    assert [(row.line, row.reason) for row in bad_rows.rows] == [(6, "a caption is empty")]
    assert bad_rows.notes == notes
    (tmp_path / "youtube_mapping.txt").write_text(
        "-4wsuPCjDBc_5_15 vid1200\n04Gt01vatkk_248_265 vid1201\n"
    )
    bad_rows = BadRows("skip")
    assert read_splits(tmp_path, bad_rows=bad_rows) == {"train": clips[:1], "dev": clips[1:2]}
    assert bad_rows.notes[-1] == "clips that `youtube_mapping.txt` does not name are not used"
    with open(tmp_path / "youtube_mapping.txt", "a") as stream:
        stream.write("zzit5b_-ukg_5_20 vid1301\n")
    assert read_split_clips(tmp_path, "test", BadRows("skip")) == clips[2:]


def test_msrvtt_as_published(folder):
    """Two files in one folder, with the fields that are not used."""
    for file, name, split in (("train_val", "a", "train"), ("test", "b", "test")):
        clip = {
            "category": 9,
            "url": "https://x",
            "video_id": name,
            "start time": 1.5,
            "end time": 9.5,
            "split": split,
        }
        content = {"info": {"year": "2016"}, "videos": [{**clip, "id": 0}]}
        content["sentences"] = [{"caption": f"{name} sings", "video_id": name, "sen_id": 0}]
        (folder / f"{file}_videodatainfo.json").write_text(json.dumps(content))
    assert read_splits(folder) == {
        "test": [Clip(key="b", source=folder / "b.mp4", captions=("b sings",))],
        "train": [Clip(key="a", source=folder / "a.mp4", captions=("a sings",))],
    }


def test_msrvtt_of_jsfusion(folder):
    """The test of 1,000 clips, a caption each."""
    table = 'key,vid_key,video_id,sentence\nret0,msra,a,a person sings\nret1,msrb,b,"a man, a dog"\nret2,msrc,gone,x\n'
    (folder / "MSRVTT_JSFUSION_test.csv").write_text(table)
    bad_rows = BadRows("skip")
    assert read_splits(folder, bad_rows=bad_rows) == {
        "test": [
            Clip(key="a", source=folder / "a.mp4", captions=("a person sings",)),
            Clip(key="b", source=folder / "b.mp4", captions=("a man, a dog",)),
        ]
    }
    assert [row.reason for row in bad_rows.rows] == [f"no video `gone` below `{folder}`"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MSRVTT_train.9k.csv", "video_id\na\n"),
        ("names.txt", "a\nb\n"),
        ("empty.txt", "# only this\n"),
    ],
)
def test_other_tables_and_texts(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=r"is not captions of MSR-VTT, .* or TVC") as caught:
        read_split_clips(folder / name)
    assert caught.value.slug == "missing-file"
    assert caught.value.hint.partition(":")[0] == "write a manifest instead"


def test_youcook2(tmp_path):
    """Steps of recipes: cut out as SwinBERT's data has them, or spans of the whole video."""
    full = video(tmp_path / "videos/GLd3aX16zBg.mp4")
    cut = video(tmp_path / "raw_videos/validation/fn9anlEL4FI_1.mp4")
    steps = [
        {"segment": [90, 102.5], "id": 0, "sentence": "spread margarine on bread"},
        {"segment": [114, 127], "id": 1, "sentence": "place cheese on the bread"},
    ]
    database = {
        "GLd3aX16zBg": {
            "duration": 241.62,
            "subset": "training",
            "recipe_type": "113",
            "annotations": steps,
        },
        "fn9anlEL4FI": {
            "subset": "validation",
            "annotations": [steps[1], {"segment": [5], "id": 2, "sentence": "x"}],
        },
    }
    (tmp_path / "youcookii_annotations_trainval.json").write_text(
        json.dumps({"database": database})
    )
    bad_rows = BadRows("skip")
    assert read_splits(tmp_path, bad_rows=bad_rows) == {
        "train": [
            Clip(
                key="GLd3aX16zBg_0",
                source=full,
                start=90.0,
                end=102.5,
                captions=("spread margarine on bread",),
            ),
            Clip(
                key="GLd3aX16zBg_1",
                source=full,
                start=114.0,
                end=127.0,
                captions=("place cheese on the bread",),
            ),
        ],
        "dev": [Clip(key="fn9anlEL4FI_1", source=cut, captions=("place cheese on the bread",))],
    }
    assert [row.reason for row in bad_rows.rows] == [
        "segment is [5], it must be two numbers of seconds"
    ]
    test = {
        "GLd3aX16zBg": {
            "duration": 241.62,
            "subset": "testing",
            "annotations": [{"segment": [90, 102], "id": 0}],
        }
    }
    (tmp_path / "youcookii_annotations_test_segments_only.json").write_text(
        json.dumps({"database": test})
    )
    assert read_split_clips(tmp_path, "test", BadRows("skip")) == [
        Clip(key="GLd3aX16zBg_0", source=full, start=90.0, end=102.0)
    ]


def test_tvc(tmp_path):
    """Lines of moments; the public test has no captions."""
    episode = video(tmp_path / "videos/friends_s01e03_seg02_clip_19.mp4")
    descriptions = [
        {"desc": "Phoebe smiles.", "type": "v", "from_retrieval": True, "desc_id": 9},
        {"desc": "She sits."},
    ]
    moment = {
        "vid_name": "friends_s01e03_seg02_clip_19",
        "duration": 61.46,
        "ts": [16.48, 33.87],
        "clip_id": 4,
    }
    (tmp_path / "tvc_val_release.jsonl").write_text(lines({**moment, "descs": descriptions}))
    (tmp_path / "tvc_test_public_release.jsonl").write_text(lines(moment, {**moment, "ts": [9, 3]}))
    key = "friends_s01e03_seg02_clip_19_16.48_33.87"
    clip = Clip(
        key=key, source=episode, start=16.48, end=33.87, captions=("Phoebe smiles.", "She sits.")
    )
    bad_rows = BadRows("skip")
    assert read_splits(tmp_path, bad_rows=bad_rows) == {
        "dev": [clip],
        "test": [Clip(key=key, source=episode, start=16.48, end=33.87)],
    }
    assert [row.where for row in bad_rows.rows] == ["line 2"]
    assert read_split_clips(tmp_path / "tvc_val_release.jsonl") == [clip]


def test_bad_steps_and_captions_cost_only_themselves(tmp_path):
    """Those before and behind them stay, and each is reported."""
    video(tmp_path / "a.mp4")
    steps = [{"segment": [n, n + 1], "id": n, "sentence": f"step {n}"} for n in range(5)]
    steps[1]["segment"], steps[3]["sentence"] = [7], " "
    moments = [{"desc": "one"}, {"desc": ""}, {}, {"desc": "two"}]
    contents = {
        "youcook2.json": json.dumps(
            {"database": {"a": {"subset": "training", "annotations": steps}}}
        ),
        "vatex.json": json.dumps([{"videoID": "a", "enCap": ["one", "", "two", None]}]),
        "tvc.jsonl": lines({"vid_name": "a", "ts": [0, 1], "descs": moments}),
    }
    results = {}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        bad_rows = BadRows("skip")
        clips = [
            clip
            for split in read_splits(tmp_path / name, bad_rows=bad_rows).values()
            for clip in split
        ]
        results[name] = [clip.captions for clip in clips], [row.where for row in bad_rows.rows]
    assert results == {
        "youcook2.json": (
            [("step 0",), ("step 2",), ("step 4",)],
            ["video 1 (`a`), step 2", "video 1 (`a`), step 4"],
        ),
        "vatex.json": ([("one", "two")], ["video 1, caption 2", "video 1, caption 4"]),
        "tvc.jsonl": ([("one", "two")], ["line 1, caption 2", "line 1, caption 3"]),
    }


def test_a_repeated_moment_has_the_captions_of_all_its_lines(tmp_path):
    video(tmp_path / "a.mp4")
    moments = [
        {"vid_name": "a", "ts": [0, 1], "descs": [{"desc": text}]} for text in ("one", "two", "one")
    ]
    (tmp_path / "tvc.jsonl").write_text(lines(*moments))
    bad_rows = BadRows("stop")
    [clip] = read_split_clips(tmp_path / "tvc.jsonl", bad_rows=bad_rows)
    assert clip.captions == ("one", "two")
    assert (
        "clips that are named several times have the captions of all their rows"
        in bad_rows.notes[0]
    )


@pytest.mark.parametrize(
    ("on_disk", "annotated"),
    [
        ("NFD", "NFC"),
        ("NFC", "NFD"),
    ],
)
def test_a_video_is_matched_in_either_normal_form(tmp_path, on_disk, annotated):
    """A Mac writes file names in NFD."""
    file = video(tmp_path / (unicodedata.normalize(on_disk, "영상é") + ".mp4"))
    rows = [{"videoID": unicodedata.normalize(annotated, "영상é"), "enCap": ["one"]}]
    (tmp_path / "vatex.json").write_text(json.dumps(rows))
    assert [clip.source for clip in read_split_clips(tmp_path / "vatex.json")] == [file]


def test_a_folder_of_videos_without_texts_is_reported(folder):
    bad_rows = BadRows()
    assert len(read_split_clips(folder, bad_rows=bad_rows)) == 3
    assert bad_rows.notes == [
        f"`{folder}`: no text lies beside a video, so none of the 3 clips has a caption"
    ]


def test_coco(folder):
    content = {
        "images": [{"id": 7, "file_name": "sub/c d.mp4"}, {"id": 8, "file_name": "a.mp4"}],
        "annotations": [
            {"image_id": 8, "caption": "x", "id": 0},
            {"image_id": 7, "caption": "y", "id": 1},
        ],
    }
    (folder / "test.json").write_text(json.dumps(content))
    assert read_splits(folder / "test.json") == {
        "test": [
            Clip(key="7", source=folder / "sub/c d.mp4", captions=("y",)),
            Clip(key="8", source=folder / "a.mp4", captions=("x",)),
        ]
    }


@pytest.mark.parametrize("text", ["{}", "[]", '{"videos": 3, "sentences": []}', "null"])
def test_other_json(folder, text, slug_of):
    (folder / "x.json").write_text(text)
    assert slug_of(read_split_clips, folder / "x.json") == "missing-file"


def test_nothing_there(folder, slug_of):
    (folder / "empty").mkdir()
    (folder / "empty.jsonl").write_text("\n")
    (folder / "x.gz").write_bytes(gzip.compress(b"x"))
    for path, slug in (
        ("none", "not-found"),
        ("empty", "empty"),
        ("empty.jsonl", "empty"),
        ("x.gz", "missing-file"),
    ):
        assert slug_of(read_split_clips, folder / path) == slug
