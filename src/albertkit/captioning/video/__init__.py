"""Files of video to frames, by PyAV."""

from albertkit.captioning.video.decode import Frames, sample_frames
from albertkit.captioning.video.sampling import FrameSampling

__all__ = ["FrameSampling", "Frames", "sample_frames"]
