"""Moving shapes: what is drawn is what is said, held-out combinations are held out, and they can be learned."""

import json

import av
import numpy as np
import pytest
from record_files import read_records

from albertkit.captioning.video import FrameSampling, sample_frames
from albertkit.errors import CheckpointError, ConfigError
from benchmarks.__main__ import main
from benchmarks.learn_shapes import learn_shapes
from benchmarks.moving_shapes import (
    COLOURS,
    DIRECTIONS,
    SHAPES,
    SPEEDS,
    WORDS,
    Motion,
    draw_frames,
    make_clips,
    motions,
)


def _centre(frame, colour):
    """Of the pixels near a colour: x, y."""
    near = np.abs(frame.astype(int) - COLOURS[colour]).sum(-1) < 90
    y, x = np.nonzero(near)
    return np.array([x.mean(), y.mean()])


def test_shapes_move_as_their_caption_says():
    generator = np.random.default_rng(0)
    for direction, unit_vector in DIRECTIONS.items():
        for speed, pixels in SPEEDS.items():
            frames = draw_frames(Motion("yellow", "square", direction, speed), generator)
            moved = _centre(frames[-1], "yellow") - _centre(frames[0], "yellow")
            np.testing.assert_allclose(
                moved, np.array(unit_vector) * pixels, atol=0.15 * pixels + 1
            )


def test_captions_are_english():
    assert (
        Motion("orange", "ring", "left", "slowly").caption
        == "an orange ring moves slowly to the left"
    )
    assert Motion("red", "cross", "up", "quickly").caption == "a red cross moves quickly up"
    words = {word for part in motions(0) for motion in part for word in motion.caption.split()}
    assert words == set(WORDS)


def test_shapes_differ_and_stay_in_the_picture():
    for shape in SHAPES:
        for seed in range(5):
            frames = draw_frames(
                Motion("white", shape, "left", "quickly"), np.random.default_rng(seed)
            )
            bright = (frames.astype(int).sum(-1) > 500).sum((1, 2))
            assert bright.min() > 60
            assert bright.max() < 1.2 * bright.min() + 20  # nothing of it leaves the picture


def test_held_out_combinations_are_never_trained_on(tmp_path):
    trained, held_out = motions(0)
    assert len(trained) == 256
    assert len(held_out) == 64
    assert not set(trained) & set(held_out)
    for part in ("colour", "shape", "direction", "speed"):  # every word is known
        assert {getattr(m, part) for m in trained} == {getattr(m, part) for m in held_out}
    counts = make_clips(tmp_path / "clips", 30)
    assert counts == {"train": 21, "dev": 3, "test": 6}
    captions = {}
    for split in counts:
        lines = read_records(tmp_path / "clips" / f"{split}.jsonl")
        captions[split] = {line["captions"][0] for line in lines}
        with av.open(str(tmp_path / "clips" / lines[0]["video"])) as container:
            stream = container.streams.video[0]
            assert stream.width == 96
            assert stream.height == 96
            assert stream.frames == 16
    assert captions["test"] <= {motion.caption for motion in held_out}
    assert captions["train"] | captions["dev"] <= {motion.caption for motion in trained}


def test_videos_hold_what_was_drawn(tmp_path):
    make_clips(tmp_path / "clips", 20)
    generator = np.random.default_rng([0, 0, 3])
    frames = draw_frames(motions(0)[0][3], generator)
    decoded = sample_frames(
        tmp_path / "clips/videos/train-0003.mp4", FrameSampling(num_frames=16, size=96)
    )
    # H.264, and a colour for every four pixels
    assert np.abs(decoded.pixels.astype(int) - frames).mean() < 6


def test_few_clips_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="num_clips is 5"):
        make_clips(tmp_path / "clips", 5)


def test_a_stopped_comparison_goes_on(tmp_path, capsys):
    first = learn_shapes(
        tmp_path, num_clips=20, objectives=("causal",), attentions=("diagonal",), steps=2
    )
    results = learn_shapes(
        tmp_path, num_clips=20, objectives=("causal",), attentions=("diagonal", "full"), steps=2
    )
    assert results[0] == first[0]
    assert [result.video_attention for result in results] == ["diagonal", "full"]
    assert all((result.model / "captioner.json").exists() for result in results)
    main(["shapes", str(tmp_path), *"--clips 20 --objective causal --steps 2 --json".split()])
    printed = [
        json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")
    ]
    assert printed == [
        json.loads(json.dumps(result.to_dict(), default=str)) for result in (results[1], results[0])
    ]
    # Other settings are never answered with the results of these.
    for changes in ({"num_clips": 30}, {"seed": 3}, {"steps": 3}):
        options = {"num_clips": 20, "steps": 2, **changes}
        with pytest.raises(CheckpointError, match=r"other settings: .*now 3"):
            learn_shapes(tmp_path, objectives=("causal",), attentions=("diagonal",), **options)
