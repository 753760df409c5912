"""Small videos made here, and a backbone whose features can be computed by hand."""

import hashlib

import numpy as np
import pytest
import torch

from albertkit.captioning.backbone import Backbone, TokenGrid


def write_video(path, colours, repeat=2, size=32):
    """A video of flat colours, each shown for `repeat` frames, ten frames a second."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.gop_size = 1
        for colour in colours:
            for _ in range(repeat):
                picture = np.broadcast_to(np.array(colour, np.uint8), (size, size, 3))
                file.mux(
                    stream.encode(
                        av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")
                    )
                )
        file.mux(stream.encode())
    return path


@pytest.fixture
def make_video():
    return write_video


@pytest.fixture
def videos(tmp_path):
    """Five videos of four colours each, eight frames."""
    colours = np.random.default_rng(3).integers(0, 256, (5, 4, 3)).tolist()
    return [write_video(tmp_path / "videos" / f"clip {n}.mp4", colours[n]) for n in range(5)]


class QuarterBackbone(Backbone):
    """Frozen; a token is the mean colour of a quarter of a frame, times `scale`."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.name = "quarters"
        self.out_dim = 3
        self.frame_size = 16
        self.scale = scale
        self.batches = []

    def grid(self, num_frames, size):
        return TokenGrid(num_frames, 2, 2)

    def forward(self, frames):
        self.batches.append(len(frames))
        quarters = frames.float().unflatten(3, (2, -1)).unflatten(2, (2, -1)).mean((3, 5))
        return quarters.flatten(1, 3) * self.scale

    def fingerprint(self):
        return hashlib.sha256(str(self.scale).encode()).hexdigest()


class TrainedBackbone(QuarterBackbone):
    """One without weights of its own."""

    trained_from_scratch = True


@pytest.fixture
def quarters():
    torch.set_num_threads(1)
    return QuarterBackbone()


@pytest.fixture
def trained():
    return TrainedBackbone()
