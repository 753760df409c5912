"""Rows, batches, the objective and whole trainings: resumed to the same bits, loaded from the folder, scored."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from record_files import read_records, write_lines
from small_clips import save_tiny_clip, write_shapes

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.evaluate import evaluate_captioner
from albertkit.captioning.prepare import prepare_clips
from albertkit.captioning.prepared import PreparedClips
from albertkit.captioning.settings import CaptionSettings, GenerationSettings
from albertkit.captioning.train import (
    CaptionObjective,
    CaptionRows,
    CaptionStream,
    shift_frames,
    start_captioner,
    train_captioner,
)
from albertkit.captioning.video import FrameSampling
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.model.files import read_tensors
from albertkit.tokenizer import AlbertTokenizer

SMALL = CaptionSettings(
    length=16, steps=4, batch_size=8, micro_batch=5, lr=1e-3, eval_every=2, precision="fp32"
)


def rows_of(folder, shell, settings):
    return CaptionRows(
        PreparedClips.open(folder), "train", AlbertTokenizer.from_pretrained(shell), settings
    )


def test_rows_of_both_objectives(features, shell):
    tokenizer = AlbertTokenizer.from_pretrained(shell)
    causal = rows_of(features, shell, dataclasses.replace(SMALL, objective="causal"))
    assert len(causal) == 33  # 22 clips, every second with two captions
    batch = causal.batch(np.array([0, 2]), 0, 7)
    assert tokenizer.decode(batch.input_ids[0, 1:4].tolist()) == "a red circle"
    assert batch.input_ids[0, 0] == tokenizer.cls_id
    flat = batch.input_ids.flatten()
    # Each place predicts the piece after it
    assert flat[batch.positions[1:4]].tolist() == batch.labels[:3].tolist()
    assert batch.labels[3] == tokenizer.sep_id
    assert batch.update == 7
    assert batch.visual_mask.sum(1).tolist() == [3, 4]
    masked = rows_of(features, shell, SMALL).batch(np.arange(33), 0, 0)
    changed = rows_of(features, shell, SMALL).batch(np.arange(33), 1, 0)
    assert torch.equal(masked.visual, changed.visual)
    # Masks are drawn anew in each epoch
    assert not torch.equal(masked.positions, changed.positions)
    repeated = rows_of(features, shell, SMALL).batch(np.arange(33), 0, 5)
    assert torch.equal(masked.input_ids, repeated.input_ids)


def test_long_captions_are_cut_and_counted(features, shell):
    rows = rows_of(features, shell, dataclasses.replace(SMALL, length=5))
    assert max(map(len, rows.ids)) == 5
    assert rows.num_cut == 11


def test_objective_equals_the_models_own_loss(features, shell):
    """One batch through the context and the chunked loss, and the same all in one through `forward` as SwinBERT has it."""
    clips = PreparedClips.open(features)
    captioner, _ = start_captioner(shell, clips, SMALL, 6)
    batch = rows_of(features, shell, SMALL).batch(np.arange(8), 0, 0)
    objective = CaptionObjective(captioner.model.train(), None, 0.0)
    parts = objective.losses(batch)
    part = parts["caption"]
    assert objective.count_targets(batch) == {"caption": part.count}
    albert = captioner.model.albert
    context = albert.encode_context(albert.project(batch.visual, batch.grid), batch.visual_mask)
    hidden, _ = albert.read_caption(albert.embed(batch.input_ids), context)
    logits = captioner.model.predictions(hidden.flatten(0, 1)[batch.positions])
    expected = torch.nn.functional.cross_entropy(logits, batch.labels)
    assert (part.total / part.count).item() == pytest.approx(expected.item(), abs=1e-5)
    assert int(part.correct) == int((logits.argmax(-1) == batch.labels).sum())


def test_worst_predictions_are_dropped_after_some_updates(features, shell):
    settings = dataclasses.replace(
        SMALL, drop_worst_ratio=0.5, drop_worst_after=3, label_smoothing=0.1
    )
    captioner, _ = start_captioner(shell, PreparedClips.open(features), settings, 6)
    objective = CaptionObjective(captioner.model, None, 0.0)
    rows = rows_of(features, shell, settings)
    before, after = (rows.batch(np.arange(8), 0, update) for update in (2, 3))
    assert objective.count_targets(before)["caption"] == len(before.labels)
    assert objective.count_targets(after)["caption"] == len(after.labels) // 2
    means = [
        objective.losses(batch)["caption"].total.item() / objective.count_targets(batch)["caption"]
        for batch in (before, after)
    ]
    assert means[1] < means[0]


def test_learned_gate_gets_its_sparsity_loss(frames, shell):
    settings = dataclasses.replace(SMALL, video_attention="log", sparsity_weight=2.0)
    captioner, _ = start_captioner(shell, PreparedClips.open(frames), settings, 64)
    objective = CaptionObjective(captioner.model, captioner.backbone, 2.0)
    parts = objective.losses(rows_of(frames, shell, settings).batch(np.arange(2), 0, 0))
    # The gate begins at one half
    assert parts["sparsity"].total.item() == pytest.approx(2 * 0.5 * 64 * 63 / 64**2)
    parts["sparsity"].total.backward()
    assert captioner.model.albert.video_gate.grad.abs().max() > 0


def test_shifted_frames_are_moved_alike():
    frames = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), dtype=np.uint8)
    shifted = {
        shift_frames(frames, 1, np.random.default_rng(seed))[:, 3:5, 3:5].tobytes()
        for seed in range(60)
    }
    assert len(shifted) == 9
    assert frames[:, 2:4, 4:6].tobytes() in shifted


def test_stream_resumes_anywhere_and_processes_share_an_update(features, shell):
    rows = rows_of(features, shell, SMALL)
    stream = CaptionStream(rows, 8, 5, seed=3)
    updates = [next(stream) for _ in range(7)]
    assert [len(batch.input_ids) for batch in updates[0]] == [5, 3]
    assert [sum(len(batch.input_ids) for batch in update) for update in updates] == [
        8,
        8,
        8,
        8,
        1,
        8,
        8,
    ]
    stopped = CaptionStream(rows, 8, 5, seed=3)
    for _ in range(3):
        next(stopped)
    resumed = CaptionStream(rows, 8, 5, seed=3)
    resumed.restore(stopped.state())
    assert torch.equal(next(resumed)[0].input_ids, updates[3][0].input_ids)
    shares = [next(CaptionStream(rows, 8, 8, 3, rank, 2))[0].input_ids for rank in (0, 1)]
    assert sorted(map(len, shares)) == [4, 4]
    with pytest.raises(ConfigError, match="seed of the saved stream"):
        CaptionStream(rows, 8, 5, seed=4).restore(stopped.state())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("features", {"objective": "causal"}),
        ("frames", {"video_attention": "diagonal", "shift": 2}),
    ],
)
def test_training_resumes_to_the_same_bits(kind, changes, shell, tmp_path, request):
    data = request.getfixturevalue(kind)
    settings = dataclasses.replace(SMALL, **changes)
    undisturbed = train_captioner(shell, data, tmp_path / "whole", settings)
    assert undisturbed.steps == 4
    # A run that was killed after its second update: its folder as that update left it.
    halves = tmp_path / "halves"
    with pytest.MonkeyPatch.context() as patch:
        from albertkit.training import loop

        patch.setattr(loop.StopRequest, "requested", True, raising=False)
        original = loop.StopRequest.__init__
        patch.setattr(
            loop.StopRequest,
            "__init__",
            lambda self: (original(self), setattr(self, "requested", True))[0],
        )
        stopped = train_captioner(shell, data, halves, settings)
    assert stopped.model is None
    assert stopped.steps < 4
    train_captioner(shell, data, halves, settings, resume=True)
    first = read_tensors(tmp_path / "whole/best")
    second = read_tensors(halves / "best")
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(CheckpointError, match="other settings"):
        train_captioner(shell, data, halves, dataclasses.replace(settings, seed=9), resume=True)


def test_features_teach_what_they_say(features, shell, tmp_path):
    """Colour stands in the features: after some updates every dev caption names it."""
    settings = dataclasses.replace(
        SMALL,
        objective="causal",
        steps=45,
        batch_size=16,
        lr=4e-3,
        eval_every=45,
        metric="exact_match",
    )
    result = train_captioner(shell, features, tmp_path / "run", settings)
    assert result.value >= 0.9
    assert result.scores["cider"] > 1
    captioner = VideoCaptioner.from_pretrained(tmp_path / "run")
    assert captioner.backbone is None
    report = evaluate_captioner(
        captioner,
        features,
        split="dev",
        out=tmp_path / "dev.jsonl",
        generation=GenerationSettings(max_length=16, num_beams=1),
    )
    assert report.scores["exact_match"] == result.value
    lines = read_records(tmp_path / "dev.jsonl")
    assert {line["key"] for line in lines} == {f"c{n}" for n in range(22, 30)}
    card = (tmp_path / "run/best/README.md").read_text()
    assert "exact match" in card
    with pytest.raises(ConfigError, match="features of another backbone"):
        captioner.caption("clip.mp4")


def test_a_dev_clip_without_a_caption_is_refused_before_the_training(features, shell, tmp_path):
    data = Path(shutil.copytree(features, tmp_path / "data"))
    lines = (data / "clips-dev.jsonl").read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), "captions": []})
    write_lines(data / "clips-dev.jsonl", lines)
    with pytest.raises(DataError, match=r"`c23` of dev .* has no caption to compare with"):
        train_captioner(shell, data, tmp_path / "run", SMALL)
    assert not (tmp_path / "run/run.toml").exists()


def test_captioner_of_frames_from_its_folder(frames, shell, tmp_path):
    train_captioner(shell, frames, tmp_path / "run", dataclasses.replace(SMALL, steps=2))
    captioner = VideoCaptioner.from_pretrained(tmp_path / "run")
    clip = PreparedClips.open(frames).clips("test")[0]
    video = frames / clip.origin["source"]
    assert video.exists()
    (captions,) = captioner.caption(video, num_captions=3)
    assert len(captions) == 3
    assert captions[0].score >= captions[1].score >= captions[2].score
    pixels = torch.from_numpy(PreparedClips.open(frames).visual("test", 0)[None])
    context = captioner.context(pixels)
    assert captioner.describe(context)[0][0].text == captions[0].text
    # Trained on from there: the visual side and the backbone go on, and the frozen parts do not.
    further = train_captioner(
        tmp_path / "run/best", frames, tmp_path / "further", dataclasses.replace(SMALL, steps=1)
    )
    assert further.steps == 1


def test_a_captioner_goes_on_as_it_was_trained(features, shell, tmp_path):
    """Without --objective a causal captioner continues causally, at its loss; another objective is reported."""
    settings = dataclasses.replace(
        SMALL, objective="causal", video_attention="diagonal", steps=20, eval_every=20, lr=3e-3
    )
    train_captioner(shell, features, tmp_path / "run", settings)
    clips = PreparedClips.open(features)

    def loss_of(captioner, settings):
        batch = rows_of(features, shell, settings).batch(np.arange(22), 0, 0)
        part = CaptionObjective(captioner.model.eval(), None, 0.0).losses(batch)["caption"]
        return part.total.item() / part.count

    trained = VideoCaptioner.from_pretrained(tmp_path / "run")
    goes_on, notes = start_captioner(tmp_path / "run/best", clips, SMALL, 6)
    assert goes_on.model.caption.objective == "causal"
    assert goes_on.model.caption.video_attention == "diagonal"
    assert loss_of(goes_on, settings) == pytest.approx(loss_of(trained, settings), abs=1e-6)
    assert any(line.startswith("objective: causal, as the captioner in") for line in notes)
    train_captioner(
        tmp_path / "run", features, tmp_path / "further", dataclasses.replace(SMALL, steps=1)
    )
    assert 'objective = "causal"' in (tmp_path / "further/run.toml").read_text()
    mlm = dataclasses.replace(SMALL, objective="mlm")
    switched, notes = start_captioner(tmp_path / "run/best", clips, mlm, 6)
    assert switched.model.caption.objective == "mlm"
    assert any(line.startswith("objective: mlm as asked") for line in notes)
    fresh, notes = start_captioner(shell, clips, SMALL, 6)
    assert fresh.model.caption.objective == "mlm"
    assert fresh.model.caption.video_attention == "full"
    assert not any(line.startswith("objective") for line in notes)


def test_a_learned_gate_goes_on_with_more_frames(shell, tmp_path):
    """Gate and times are interpolated: where they do not change with time, nothing changes; the rest is kept to the bit."""
    clips = write_shapes(tmp_path / "clips")
    prepared = []
    for frames in (4, 8):
        folder = tmp_path / f"{frames} frames"
        prepare_clips(
            clips,
            folder,
            load_backbone("conv3d", {"width": 64}),
            FrameSampling(num_frames=frames, size=32),
        )
        prepared.append(PreparedClips.open(folder))
    short_grid, long_grid = (dataset.grid for dataset in prepared)
    settings = dataclasses.replace(SMALL, video_attention="log")
    captioner, _ = start_captioner(shell, prepared[0], settings, short_grid.num_tokens)
    albert = captioner.model.albert
    folder = short_grid.height * short_grid.width
    with torch.no_grad():
        of_places = torch.randn(folder, folder)
        gate = of_places[None, :, None, :].expand(
            short_grid.frames, folder, short_grid.frames, folder
        )
        albert.video_gate.copy_(gate.reshape(-1, 1))
        albert.img_embedding.time_embeddings.copy_(torch.arange(short_grid.frames)[:, None])
    captioner.save_pretrained(tmp_path / "few")
    further, notes = start_captioner(tmp_path / "few", prepared[1], SMALL, long_grid.num_tokens)
    extended = further.model.albert
    extended_gate = extended.video_gate.view(long_grid.frames, folder, long_grid.frames, folder)
    assert torch.allclose(
        extended_gate, of_places[None, :, None, :].expand_as(extended_gate), atol=1e-6
    )
    times = extended.img_embedding.time_embeddings[:, 0].detach()
    assert times.tolist() == sorted(times.tolist())
    assert len(times) == long_grid.frames
    assert float(times[0]) == 0
    assert float(times[-1]) == short_grid.frames - 1
    assert torch.equal(
        extended.img_embedding.projection.weight, albert.img_embedding.projection.weight
    )
    assert f"learned gate: {short_grid.frames} frames interpolated to {long_grid.frames}" in notes
    assert f"places in time: {short_grid.frames} interpolated to {long_grid.frames}" in notes
    assert not any(
        "fresh" in line for line in notes if line.startswith(("visual side", "learned gate"))
    )


def test_what_cannot_be_trained_is_said(features, shell, tmp_path):
    with pytest.raises(DataError, match="has no test"):
        train_captioner(shell, features, tmp_path / "a", SMALL, dev_split="test")
    with pytest.raises(ConfigError, match="length 99 exceeds the 64 positions"):
        train_captioner(shell, features, tmp_path / "b", dataclasses.replace(SMALL, length=99))
    with pytest.raises(ConfigError, match="mask_prob"):
        train_captioner(shell, features, tmp_path / "c", dataclasses.replace(SMALL, mask_prob=1.5))
    with pytest.raises(ConfigError, match="objective is 'clm', it must be one of mlm, causal"):
        train_captioner(
            shell, features, tmp_path / "d", dataclasses.replace(SMALL, objective="clm")
        )
    assert not list(tmp_path.iterdir())


def test_a_backbone_of_transformers_is_trained_along(shell, tmp_path):
    """Frames are kept for it, its rate is a twentieth, and its new weights go into the captioner's folder."""
    save_tiny_clip(tmp_path / "clip")
    clips = write_shapes(tmp_path / "clips")
    backbone = load_backbone(f"hf:{tmp_path / 'clip'}")
    prepare_clips(
        clips,
        tmp_path / "prepared",
        backbone,
        FrameSampling(num_frames=2, size=32),
        train_backbone=True,
    )
    settings = dataclasses.replace(SMALL, steps=2)
    train_captioner(shell, tmp_path / "prepared", tmp_path / "run", settings)
    captioner = VideoCaptioner.from_pretrained(tmp_path / "run")
    before = backbone.state_dict()
    after = captioner.backbone.state_dict()
    moved = max(float((before[name] - after[name]).abs().max()) for name in before)
    # Two updates of AdamW move a weight by at most the sum of their rates, here 1e-3 and 5e-4 times
    # 0.05 (and decay).
    assert 0 < moved < 1e-4
    assert captioner.caption(clips["dev"][0].source)
