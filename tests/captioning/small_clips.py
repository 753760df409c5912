"""Clips of moving shapes as a data set, and a tiny CLIP."""

from collections.abc import Sequence
from pathlib import Path

import torch

from albertkit.captioning.clips import Clip
from albertkit.captioning.sources import read_splits
from albertkit.tables.bad_rows import BadRows
from benchmarks.moving_shapes import make_clips


def read_split_clips(
    path: Path, split: str | None = None, bad_rows: BadRows | None = None
) -> list[Clip]:
    """Return the clips of a split, or of the only one."""
    [clips] = read_splits(path, split, bad_rows).values()
    return clips


def write_shapes(
    folder: Path, count: int = 20, splits: Sequence[str] = ("train", "dev")
) -> dict[str, list[Clip]]:
    """Write clips, and return those of some splits."""
    make_clips(folder, count)
    return {split: read_split_clips(folder, split) for split in splits}


def save_tiny_clip(folder: Path) -> None:
    """Save a vision model of CLIP with random weights."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
    )
    CLIPVisionModel(config).save_pretrained(folder)
