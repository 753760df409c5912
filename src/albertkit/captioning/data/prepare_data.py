"""`prepare_data`: what `albertkit caption prepare` does, from the names of files and backbones."""

from pathlib import Path
from typing import Literal

from albertkit.captioning.backbones.registry import load_backbone
from albertkit.captioning.data.prepare import PrepareReport, prepare
from albertkit.captioning.data.reading import read_splits
from albertkit.captioning.video.sampling import FrameSampling, Rounding
from albertkit.tasks.faults import Faults
from albertkit.training.distributed import join_world


def prepare_data(
    data: str | Path,
    out: str | Path,
    backbone: str = "conv3d",
    *,
    split: str | None = None,
    num_frames: int = 8,
    size: int | None = None,
    rounding: Rounding = "middle",
    max_tokens: int = 196,
    train_backbone: bool = False,
    batch_size: int = 8,
    workers: int | None = None,
    on_error: Literal["stop", "skip"] = "skip",
    device: str = "auto",
    progress: bool = False,
) -> tuple[PrepareReport, Faults]:
    """Read data, load a backbone, and prepare every split.

    Args:
        data: As `read_clips`.
        backbone: `conv3d` (frames are kept, the network is trained with the captioner), `hf:FOLDER` or `hf:org/name`,
            `video-swin:FILE`, or `features`: the data names files of features.
        split: Prepare this one. Default: all there are.
        num_frames, rounding: As `FrameSampling`.
        size: Of the frames. Default: what the backbone wants.
        device: auto, cpu, cuda or cuda:N.
        out, max_tokens, train_backbone, batch_size, workers, on_error, progress: As `prepare`.

    Returns:
        What `prepare` did, and what of the data was no clip.

    Raises:
        ConfigError, DataError, CheckpointError, MachineError: what these raise.
    """
    faults = Faults(on_error)
    clips = read_splits(data, split, faults)
    model, sampling = None, None
    if backbone != "features":
        model = load_backbone(backbone).to(join_world(device).device)
        sampling = FrameSampling(num_frames=num_frames, size=size or model.frame_size, rounding=rounding)
    report = prepare(
        clips, out, model, sampling, max_tokens=max_tokens, train_backbone=train_backbone, batch_size=batch_size,
        workers=workers, on_error=on_error, progress=progress, left_out=faults.found,
    )  # fmt: skip
    return report, faults
