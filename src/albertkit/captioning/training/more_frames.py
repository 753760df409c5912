"""A captioner's weights for another number of frames: times and the learned gate are interpolated along time."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.captioning.backbones.backbone import Grid

_TIMES, _GATE = "albert.img_embedding.time_embeddings", "albert.video_gate"


def for_frames(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, torch.Size], grid: Grid
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors with those that depend on the number of frames fitted to a grid.

    Args:
        tensors: Of a captioner.
        wanted: Shapes by name.
        grid: Of the visual tokens to come. The gate [M * M, 1] is fitted where its captioner had as many tokens a frame.
    """
    fitted, notes = dict(tensors), list[str]()
    times = tensors.get(_TIMES)
    if times is not None and _TIMES in wanted and times.shape != wanted[_TIMES] and times.shape[1] == wanted[_TIMES][1]:
        frames = wanted[_TIMES][0]
        fitted[_TIMES] = F.interpolate(times.t()[None], size=frames, mode="linear", align_corners=False)[0].t()
        notes.append(f"places in time: {len(times)} interpolated to {frames}")
    gate, place = tensors.get(_GATE), grid.height * grid.width
    if gate is not None and _GATE in wanted and gate.shape != wanted[_GATE]:
        before, rest = divmod(round(len(gate) ** 0.5), place)
        if not rest and before:
            pairs = (
                gate.view(before, place, before, place).permute(1, 3, 0, 2).reshape(place * place, 1, before, before)
            )
            more = F.interpolate(pairs, size=(grid.frames, grid.frames), mode="bilinear", align_corners=False)
            more = more.view(place, place, grid.frames, grid.frames).permute(2, 0, 3, 1)
            fitted[_GATE] = more.reshape(-1, 1).contiguous()
            notes.append(f"learned gate: {before} frames interpolated to {grid.frames}")
    return fitted, notes
