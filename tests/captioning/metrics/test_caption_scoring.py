"""Files of captions in every layout, their errors, and the command."""

import gzip
import json
import re
from pathlib import Path

import pytest
from record_files import read_records, write_json

from albertkit.captioning.metrics import score_captions
from albertkit.captioning.score import read_caption_file, score_caption_files
from albertkit.errors import DataError

CANDIDATES = {"7": "a red ball moves left", "clip 2": "ein größerer Kreis – 한국어"}
REFERENCES = {"7": ["a red ball moves left", "the ball goes left"], "clip 2": ["a larger circle"]}


def published(data):
    return json.loads((data / "captions/caption_metrics_reference.json").read_text())


def test_published_scores_of_nlg_eval(data):
    folder = data / "captions/nlg-eval"
    scores = score_caption_files(folder / "hyp.txt", [folder / "ref1.txt", folder / "ref2.txt"])
    expected = {
        name: value for name, value in published(data)["expected"].items() if name != "METEOR"
    }
    assert len(expected) == 6
    assert dict(scores) == pytest.approx(expected, abs=1e-6)
    assert scores.num_captions == 2
    assert scores.num_references == 4
    swapped = score_caption_files(folder / "ref1.txt", [folder / "hyp.txt", folder / "ref2.txt"])
    assert abs(swapped["CIDEr"] - expected["CIDEr"]) > 1e-3


@pytest.mark.parametrize("example", ["single", "single_fr"])
def test_published_scores_of_one_caption(data, example):
    case = published(data)[example]
    scores = score_captions({"x": case["refs"]}, {"x": case["hyp"]})
    expected = {name: value for name, value in case.items() if name in scores}
    assert len(expected) >= 5
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def tsv(captions):
    records = {
        key: [{"caption": text} for text in ([value] if isinstance(value, str) else value)]
        for key, value in captions.items()
    }
    return "".join(f"{key}\t{json.dumps(value)}\n" for key, value in records.items())


def swinbert_predictions(captions):
    guesses = {
        key: [{"caption": text, "conf": 0.5}, {"caption": "worse", "conf": 0.1}]
        for key, text in captions.items()
    }
    return "".join(f"{key}\t{json.dumps(value)}\n" for key, value in guesses.items())


def json_lines(name, text):
    return lambda captions: "\n".join(
        json.dumps({name: key, text: value}) for key, value in captions.items()
    )


def coco_results(captions):
    rows = [
        {"image_id": int(key) if key.isdigit() else key, "caption": text}
        for key, text in captions.items()
    ]
    return json.dumps(rows, indent=2)


def coco_annotations(captions):
    images = [{"id": int(key) if key.isdigit() else key, "file_name": key} for key in captions]
    pairs = [(image["id"], text) for image in images for text in captions[str(image["id"])]]
    annotations = [
        {"id": index, "image_id": image, "caption": text}
        for index, (image, text) in enumerate(pairs)
    ]
    return json.dumps({"images": images, "annotations": annotations}, ensure_ascii=False)


PREDICTIONS = [
    swinbert_predictions,
    tsv,
    json_lines("key", "caption"),
    json_lines("video", "caption"),
    coco_results,
    json.dumps,
]
TRUTHS = [
    tsv,
    json_lines("key", "captions"),
    json_lines("video", "captions"),
    coco_annotations,
    json.dumps,
]


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_layouts(tmp_path, prediction, truth):
    (tmp_path / "given").write_text(prediction(CANDIDATES), encoding="utf-8-sig")
    (tmp_path / "truth.gz").write_bytes(gzip.compress(truth(REFERENCES).encode()))
    out = tmp_path / "details.jsonl"
    scores = score_caption_files(tmp_path / "given", [tmp_path / "truth.gz"], details=out)
    expected = score_captions(REFERENCES, CANDIDATES)
    assert scores.corpus == expected.corpus
    assert scores.per_clip == expected.per_clip
    details = read_records(out)
    assert [(row["key"], row["caption"], row["references"]) for row in details] == [
        (key, text, REFERENCES[key]) for key, text in CANDIDATES.items()
    ]
    assert [row["CIDEr"] for row in details] == [
        clip["CIDEr"] for clip in expected.per_clip.values()
    ]


def test_keys_of_a_manifest(tmp_path):
    rows = [
        {"video": "a.mp4", "start": 1, "end": 2.5, "captions": ["x"]},
        {"video": "a.mp4", "captions": ["y"]},
        {"frames": "b.tsv", "row": 3, "captions": ["z"]},
        {"key": 5, "video": "c.mp4", "captions": ["w"]},
    ]
    file = tmp_path / "test.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert [row.key for row in read_caption_file(file).rows] == [
        "a.mp4_1_2.5",
        "a.mp4",
        "b.tsv:3",
        "5",
    ]


def test_captions_that_look_like_json_are_captions(tmp_path):
    (tmp_path / "given.txt").write_text("[UNK] man\n{a} man\n\n")
    (tmp_path / "truth.txt").write_text("a man\na man\na dog\n")
    assert [row.captions for row in read_caption_file(tmp_path / "given.txt").rows] == [
        ["[UNK] man"],
        ["{a} man"],
        [""],
    ]
    scores = score_caption_files(tmp_path / "given.txt", [tmp_path / "truth.txt"])
    assert scores.diversity["empty_captions"] == pytest.approx(1 / 3)
    assert scores.per_clip["3"]["ROUGE_L"] == 0


def test_all_captions_empty(tmp_path):
    (tmp_path / "given.txt").write_text("\n\n")
    (tmp_path / "truth.txt").write_text("a man\na dog\n")
    scores = score_caption_files(tmp_path / "given.txt", [tmp_path / "truth.txt"])
    assert scores.diversity == {"distinct_captions": 0.5, "empty_captions": 1.0, "mean_length": 0.0}
    assert max(scores.values()) == 0


def test_diversity_of_a_collapsed_captioner():
    candidates = dict.fromkeys("abcd", "A man.")
    scores = score_captions(
        {key: [f"scene {key}", ""] for key in candidates}, {**candidates, "d": "."}
    )
    assert scores.diversity == {
        "distinct_captions": 0.5,
        "empty_captions": 0.25,
        "mean_length": 1.5,
    }
    assert scores.to_dict()["empty_references"] == 4
    assert scores.to_dict()["captions"] == 4


GOOD = "1\t" + json.dumps([{"caption": "a"}]) + "\n2\t" + json.dumps([{"caption": "b"}])


@pytest.mark.parametrize(
    ("predictions", "truth", "slug", "message"),
    [
        (
            '{"1": "a"}',
            '{"1": ["a"], "2": ["b"]}',
            "predictions-mismatch",
            "1 clip without a caption, for example `2`",
        ),
        (
            '{"1": "a", "3": "b"}',
            '{"1": ["a"]}',
            "predictions-mismatch",
            "1 caption without a reference, for example `3`",
        ),
        (
            '{"01": "a"}',
            '{"1": ["a"]}',
            "predictions-mismatch",
            "the references have, for example, `1`",
        ),
        ("a\nb", GOOD, "predictions-mismatch", "`given` is plain lines"),
        (GOOD, "a\nb", "predictions-mismatch", "`truth` is plain lines"),
        ("a\nb", "a\nb\nc", "predictions-mismatch", "`given` has 2 lines, `truth` has 3"),
        ("", "a", "empty", "`given` is empty"),
        ("{}", "{}", "bad-label", "there are no captions"),
        ('{"1": ["a", "b"]}', '{"1": ["a"]}', "bad-row", "2 captions of clip `1`"),
        ('{"1": "a"}', '{"1": []}', "bad-row", "`truth`, `1`: it has no caption"),
        ('{"1": 5}', '{"1": ["a"]}', "bad-row", "a caption is 5"),
        ('1\t[{"caption": "a"}]\n2\t[{"caption"', GOOD, "bad-row", "`given`, line 2: not JSON"),
        ('1\t[{"text": "a"}]', GOOD, "bad-row", "a caption is None"),
        (
            '{"key": "1", "caption": "a"}\n{"caption": "b"}',
            GOOD,
            "bad-row",
            "line 2: it has none of key",
        ),
        (
            '{"key": "1", "caption": "a"}\n{"key": "1", "caption": "b"}',
            GOOD,
            "bad-row",
            "line 2: clip `1` again",
        ),
        ('[{"image_id": 1, "caption": "a"}, 3]', GOOD, "bad-row", "record 2: a int, not an object"),
        ('[{"image_id": 1, "caption": "a"}', GOOD, "bad-file", "`given` begins as JSON"),
    ],
)
def test_errors(tmp_path, monkeypatch, predictions, truth, slug, message):
    monkeypatch.chdir(tmp_path)
    Path("given").write_text(predictions)
    Path("truth").write_text(truth)
    with pytest.raises(DataError, match=rf"(?s)\[{slug}\].*{re.escape(message)}"):
        score_caption_files("given", ["truth"])


def test_the_same_caption_twice_counts_once(tmp_path):
    (tmp_path / "given").write_text(GOOD + "\n" + GOOD.split("\n")[0])
    (tmp_path / "truth").write_text('{"1": ["a"], "2": ["b"]}')
    assert score_caption_files(tmp_path / "given", [tmp_path / "truth"]).num_captions == 2


def test_other_encodings_and_folders_are_named(tmp_path):
    (tmp_path / "latin").write_bytes("café".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8, at byte 3"):
        read_caption_file(tmp_path / "latin")
    with pytest.raises(DataError, match="this is a folder"):
        read_caption_file(tmp_path)


@pytest.mark.parametrize(
    ("references", "candidates"),
    [
        ({"a": "one text"}, {"a": "x"}),
        ({"a": ["x"]}, {"a": ["x"]}),
        ({"a": [None]}, {"a": "x"}),
    ],
)
def test_texts_and_lists_are_told_apart(references, candidates, slug_of):
    assert slug_of(score_captions, references, candidates) == "bad-row"


def test_a_clip_without_references_is_named():
    with pytest.raises(DataError, match=r"\[bad-label\].*clip `b` has no reference"):
        score_captions({"a": ["x"], "b": []}, {"a": "x", "b": "y"})


def test_command(tmp_path, run_command):
    write_json(tmp_path / "given", CANDIDATES)
    write_json(tmp_path / "truth", REFERENCES)
    files = ("caption", "score", tmp_path / "given", tmp_path / "truth")
    printed = run_command(*files, "--json").json
    expected = score_captions(REFERENCES, CANDIDATES)
    assert printed == expected.to_dict()
    assert (
        f"CIDEr              {expected['CIDEr']:.4f}"
        in run_command(*files, "--details", tmp_path / "out.jsonl").out
    )
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
