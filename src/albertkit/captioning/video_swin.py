"""Video Swin: attention within windows of time and space, shifted by half a window in every second layer.

Liu et al., "Video Swin Transformer" (CVPR 2022). Modules are named so that the state dict has the
names of the published checkpoints, which are those of SwinBERT below `swin.backbone.`.

B clips, T frames, H height, W width (of pixels or tokens), C channels, G windows of a clip, N
tokens of a window, A heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.captioning.backbone import (
    IMAGENET,
    Backbone,
    TokenGrid,
    check_model_unchanged,
    hash_weights,
    refuse_unfit_parts,
)
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.files import read_typed
from albertkit.model.files import StateDict, read_tensor_file
from albertkit.model.pretrained import on_meta_device
from albertkit.validation import Range, Share, list_wrong_values

Sizes = tuple[int, int, int]  # of time, height and width
_PIXELS_PER_BATCH = 32 * 224 * 224  # pixels of the clips in one forward: 1.2 GB with Swin-B
# Added to the scores of tokens that are neighbours only because the shift goes round the edge
_APART = -100.0
_MLP_RATIO = 4
_Side = Annotated[int, Range(1, 4096)]


class VideoSwinBackbone(Backbone):
    """Video Swin of any size: Swin-T has depths 2-2-6-2 and 96 channels, Swin-B 2-2-18-2 and 128.

    Args:
        embed_dim: Channels of the first stage; each further stage has twice as many.
        depths: Blocks of each stage.
        num_heads: Attention heads of each stage.
        window_size: Tokens of a window in time, height and width.
        patch_size: Frames and pixels that become one token.
        patch_norm: Whether patches are normalised.
        drop_path_rate: Probability that training skips the last block; it rises linearly from 0 at
            the first.
        name: As on the command line.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        depths: list[int],
        num_heads: list[int],
        window_size: list[int],
        patch_size: list[int],
        patch_norm: bool = True,
        drop_path_rate: float = 0.2,
        name: str = "video-swin",
    ) -> None:
        super().__init__()
        settings = {
            "embed_dim": embed_dim,
            "depths": depths,
            "num_heads": num_heads,
            "window_size": window_size,
            "patch_size": patch_size,
            "patch_norm": patch_norm,
            "drop_path_rate": drop_path_rate,
        }
        errors = list_wrong_values(settings, _KINDS)  # they may come from a file
        if not errors and not (
            1 <= len(depths) <= 8 and len(depths) == len(num_heads) and sum(depths) <= 256
        ):
            errors.append(
                f"depths are {depths} and num_heads {num_heads}: one of each a stage, 1 to 8 stages, at most 256 blocks in all"
            )
        if not errors and any(
            embed_dim * 2**stage % heads for stage, heads in enumerate(num_heads)
        ):
            errors.append(
                f"embed_dim {embed_dim}, doubled with each stage, is not a multiple of num_heads {num_heads}"
            )
        if errors:
            raise ConfigError(
                "bad-value",
                "; ".join(errors),
                "correct the backbone's settings, or copy its folder again",
            )
        self._settings = {
            name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()
        }
        self.name = name
        self.window = _as_sizes(window_size)
        self.patch = _as_sizes(patch_size)
        self.out_dim = embed_dim * 2 ** (len(depths) - 1)
        # 224 for windows of 7, 384 for 12
        self.frame_size = self.patch[1] * 2 ** (len(depths) - 1) * self.window[1]
        self.patch_embed = _PatchEmbedding(embed_dim, self.patch, patch_norm)
        drops = iter(torch.linspace(0, drop_path_rate, sum(depths), device="cpu").tolist())
        self.layers = nn.ModuleList(
            _Stage(
                embed_dim * 2**number,
                heads,
                self.window,
                [next(drops) for _ in range(depth)],
                number < len(depths) - 1,
            )
            for number, (depth, heads) in enumerate(zip(depths, num_heads, strict=True))
        )
        self.norm = nn.LayerNorm(self.out_dim)

    def grid(self, num_frames: int, size: int) -> TokenGrid:
        """Return frames and pixels over the patch size, then space halved by each stage but the last, all rounded up."""
        side = -(-size // (self.patch[1] * 2 ** (len(self.layers) - 1)))
        return TokenGrid(-(-num_frames // self.patch[0]), side, side)

    def forward(self, frames: Tensor) -> Tensor:
        """Map uint8 [B, T, S, S, 3], RGB, to [B, M, D], as many clips at once as memory bears."""
        at_once = max(1, _PIXELS_PER_BATCH // prod(frames.shape[1:4]))
        tokens = [
            self.features(IMAGENET.apply(part).transpose(1, 2)) for part in frames.split(at_once)
        ]
        return torch.cat(tokens).flatten(2).transpose(1, 2)

    def features(self, pixels_BCTHW: Tensor) -> Tensor:
        """Map normalised pixels [B, 3, T, H, W] to features [B, D, T', H', W']."""
        x_BTHWC = self.patch_embed(pixels_BCTHW)
        for stage in self.layers:
            x_BTHWC = stage(x_BTHWC)
        return self.norm(x_BTHWC).movedim(-1, 1)

    def settings(self) -> dict[str, Any]:
        """Return the arguments, without the name."""
        return dict(self._settings)

    def fingerprint(self) -> str:
        """Return Sha256 over settings and weights, not over where they lie; the rate of skipping changes no feature."""
        features = {
            name: value for name, value in self._settings.items() if name != "drop_path_rate"
        }
        return hash_weights(f"video-swin {features}", self.state_dict())


class _PatchEmbedding(nn.Module):
    def __init__(self, channels: int, patch: Sizes, normed: bool) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, channels, patch, patch)
        self.norm = nn.LayerNorm(channels) if normed else None

    def forward(self, pixels_BCTHW: Tensor) -> Tensor:
        (_, _, t, h, w), (pt, ph, pw) = pixels_BCTHW.shape, self.proj.stride
        x_BTHWC = self.proj(F.pad(pixels_BCTHW, (0, -w % pw, 0, -h % ph, 0, -t % pt))).movedim(
            1,
            -1,
        )
        return x_BTHWC if self.norm is None else self.norm(x_BTHWC)


class _Stage(nn.Module):
    def __init__(
        self,
        channels: int,
        heads: int,
        window: Sizes,
        drops: list[float],
        merged: bool,
    ) -> None:
        super().__init__()
        self.window = window
        self.blocks = nn.ModuleList(_SwinBlock(channels, heads, window, drop) for drop in drops)
        self.downsample = _PatchMerging(channels) if merged else None

    def forward(self, x_BTHWC: Tensor) -> Tensor:
        sides = x_BTHWC.shape[1:4]
        # A side that one window covers is not shifted, and the window is as long as the side.
        window = _as_sizes(min(side, full) for side, full in zip(sides, self.window, strict=True))
        shift = _as_sizes(
            full // 2 if side > full else 0 for side, full in zip(sides, self.window, strict=True)
        )
        padded = _as_sizes(side + -side % part for side, part in zip(sides, window, strict=True))
        apart_GNN: Tensor | None = None
        if any(shift) and len(self.blocks) > 1:
            # Shifting brings tokens from opposite edges into one window: each edge is a region of
            # its own, and tokens of different regions do not see each other.
            region_THW = torch.zeros(1, *padded, 1)
            for axis, (side, part, step) in enumerate(zip(padded, window, shift, strict=True)):
                position = torch.arange(side)
                region = torch.zeros(side)
                if step:
                    region = (position >= side - part).int() + (position >= side - step).int()
                shape = (-1 if dim == axis else 1 for dim in range(3))
                region_THW = 3 * region_THW + region.view(*shape, 1)
            region_GN = _split_windows(region_THW, window)[0, :, :, 0]
            apart_GNN = ((region_GN[:, :, None] != region_GN[:, None]) * _APART).to(x_BTHWC)
        for number, block in enumerate(self.blocks):
            odd = number % 2 and apart_GNN is not None
            x_BTHWC = block(
                x_BTHWC,
                window,
                shift if odd else (0, 0, 0),
                apart_GNN if odd else None,
            )
        return x_BTHWC if self.downsample is None else self.downsample(x_BTHWC)


class _SwinBlock(nn.Module):
    def __init__(self, channels: int, heads: int, window: Sizes, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.norm1 = nn.LayerNorm(channels)
        self.attn = _WindowAttention(channels, heads, window)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(channels, _MLP_RATIO * channels),
                "fc2": nn.Linear(_MLP_RATIO * channels, channels),
            }
        )

    def forward(
        self,
        x_BTHWC: Tensor,
        window: Sizes,
        shift: Sizes,
        apart_GNN: Tensor | None,
    ) -> Tensor:
        _, t, h, w, _ = x_BTHWC.shape
        (wt, wh, ww), back = window, [-step for step in shift]
        # Padding is attended to: its keys and values are the biases of the projection, as in the
        # published models.
        padded = F.pad(self.norm1(x_BTHWC), (0, 0, 0, -w % ww, 0, -h % wh, 0, -t % wt))
        attention_output = self.attn(
            _split_windows(padded.roll(back, (1, 2, 3)), window),
            apart_GNN,
        )
        counts = [side // part for side, part in zip(padded.shape[1:4], window, strict=True)]
        parts = attention_output.unflatten(2, window).unflatten(1, counts)
        joined = parts.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(padded.shape)
        attention_output = joined.roll(shift, (1, 2, 3))[:, :t, :h, :w]
        x_BTHWC = x_BTHWC + self._drop_path(attention_output)
        return x_BTHWC + self._drop_path(
            self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x_BTHWC))))
        )

    def _drop_path(self, branch_BTHWC: Tensor) -> Tensor:
        """Return the branch, left out for some clips in training (stochastic depth)."""
        if not self.training or not self.drop:
            return branch_BTHWC
        keep = 1 - self.drop
        return branch_BTHWC * branch_BTHWC.new_empty(len(branch_BTHWC), 1, 1, 1, 1).bernoulli_(
            keep
        ).div_(keep)


class _WindowAttention(nn.Module):
    def __init__(self, channels: int, heads: int, window: Sizes) -> None:
        super().__init__()
        self.heads = heads
        self.window = window
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros(prod(2 * side - 1 for side in window), heads)
        )

    def forward(self, x_BGNC: Tensor, apart_GNN: Tensor | None) -> Tensor:
        b, g, n, _ = x_BGNC.shape
        # 3, B, G, A, N, C / A
        qkv = self.qkv(x_BGNC).view(b, g, n, 3, self.heads, -1).permute(3, 0, 1, 4, 2, 5)
        # A shorter window takes the first rows and columns of the full one's table: where height or
        # width are cut, these are the biases of other offsets. The published models do so.
        index_NN = relative_position_index(self.window)[:n, :n].to(x_BGNC.device)
        bias_ANN = (
            self.relative_position_bias_table[index_NN.flatten()]
            .view(n, n, -1)
            .permute(2, 0, 1)
            .contiguous()
        )
        # With a mask for every window, windows count as heads: the mask is then the same for all
        # clips and not copied: 8.1 to 8.9 CPU seconds a clip for 12.2 to 13.4.
        parts = (0, 1) if apart_GNN is None else (1, 2)
        mask = (
            bias_ANN[None]
            if apart_GNN is None
            else (apart_GNN[:, None] + bias_ANN).flatten(0, 1)[None]
        )
        query, key, value = (part.flatten(*parts) for part in qkv)
        attention_output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.proj(
            attention_output.reshape(b, g, self.heads, n, -1).transpose(2, 3).flatten(3)
        )


class _PatchMerging(nn.Module):
    """Four neighbours in space become one token of twice the width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * channels)
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x_BTHWC: Tensor) -> Tensor:
        h, w = x_BTHWC.shape[2:4]
        x_BTHWC = F.pad(x_BTHWC, (0, 0, 0, w % 2, 0, h % 2))
        four = x_BTHWC.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # B, T, H / 2, 2, W / 2, 2, C
        return self.reduction(self.norm(four.permute(0, 1, 2, 4, 5, 3, 6).flatten(4)))


@cache
def relative_position_index(window: Sizes) -> Tensor:
    """Return the rows, int64 [N, N], of the bias table for two tokens of a window, by their offset in time, height and width."""
    positions = torch.cartesian_prod(*(torch.arange(side) for side in window)).view(-1, 3)
    offset_NN3 = positions[:, None] - positions + torch.tensor(window) - 1
    _, height, width = (2 * side - 1 for side in window)
    return offset_NN3 @ torch.tensor([height * width, width, 1])


def _split_windows(x_BTHWC: Tensor, window: Sizes) -> Tensor:
    """Split [B, T, H, W, C] into windows [B, G, N, C]."""
    parts = (
        x_BTHWC.unflatten(3, (-1, window[2]))
        .unflatten(2, (-1, window[1]))
        .unflatten(
            1,
            (-1, window[0]),
        )
    )
    return parts.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4, 6).flatten(1, 3)


def _as_sizes(values: Any) -> Sizes:
    time, height, width = values
    return time, height, width


_KINDS: dict[str, Any] = {
    "embed_dim": _Side,
    "depths": list[_Side],
    "num_heads": list[_Side],
    "window_size": tuple[_Side, _Side, _Side],
    "patch_size": tuple[_Side, _Side, _Side],
    "drop_path_rate": Share,
}


PREFIX = "swin.backbone."  # in a checkpoint of SwinBERT
KIND = "video-swin:"
_FIRST = "patch_embed.proj.weight"
_TABLE, _INDEX = ".attn.relative_position_bias_table", ".attn.relative_position_index"
_FILES = ("backbone.safetensors", "model.bin", "model.safetensors", "*.pth")
_HEADS = ("cls_head.", "head.")  # of classifiers, where nothing stands before the backbone's names


def load_video_swin(
    name: str, settings: Mapping[str, Any] | None, weights: StateDict | None
) -> VideoSwinBackbone:
    """Load from a file, or make again from settings and weights, which needs no file. Frozen until `requires_grad_()`."""
    if weights is not None:
        return _build_backbone(dict(settings or {}), weights, name)
    file = find_checkpoint_file(Path(name.removeprefix(KIND)))
    tensors = read_tensor_file(file, key="state_dict")
    captioner = file.parent / "captioner.json"
    if file.name == _FILES[0] and captioner.is_file():  # the weights that a captioner keeps
        entry = read_typed(
            captioner, _CaptionerBackbone, "captioner", "copy the folder again"
        ).backbone
        file_settings = entry.settings
    else:
        file_settings, tensors = settings_and_tensors_of_video_swin(tensors, file)
    if settings is not None:
        check_model_unchanged(
            name,
            settings,
            file_settings | {"drop_path_rate": settings.get("drop_path_rate")},
        )
        file_settings = dict(settings)
    return _build_backbone(file_settings, tensors, name).requires_grad_(False)


def read_video_swin(state: StateDict, file: Path, name: str) -> VideoSwinBackbone:
    """Make the Video Swin of a state dict, frozen; arguments and errors as `settings_and_tensors_of_video_swin`."""
    settings, tensors = settings_and_tensors_of_video_swin(state, file)
    return _build_backbone(settings, tensors, name).requires_grad_(False)


def find_checkpoint_file(path: Path) -> Path:
    """Return the file itself, or that of a folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(
            "not-found",
            f"no Video Swin checkpoint at `{path}`",
            "name its file or its folder",
        )
    for pattern in _FILES:
        files = sorted(path.glob(pattern))
        if len(files) == 1:
            return files[0]
    raise CheckpointError(
        "missing-file",
        f"`{path}` holds none of {', '.join(_FILES[:-1])}, and not one .pth",
        "name the file itself",
    )


def settings_and_tensors_of_video_swin(
    state: StateDict, file: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings that the shapes of a state dict say, and the backbone's tensors under our names, in float32."""
    starts = [key.removesuffix(_FIRST) for key in state if key.endswith(_FIRST)]
    if len(starts) != 1 or state[starts[0] + _FIRST].dim() != 5:
        reason = (
            f"has {len(starts)} tensors"
            if len(starts) != 1
            else "is a Swin for images: it has no 3-D"
        )
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` {reason} `{_FIRST}`",
            "name a Video Swin checkpoint, for example swin_base_patch244_window877_kinetics600_22k.pth",
        )
    start = starts[0]
    tensors = {
        key.removeprefix(start): tensor for key, tensor in state.items() if key.startswith(start)
    }
    if not start:
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(_HEADS)}
    indices = {key: tensors.pop(key) for key in [*tensors] if key.endswith(_INDEX)}
    try:
        settings = _settings_from_shapes(tensors, indices)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise CheckpointError(
            "weights-mismatch",
            f"`{file}` holds no whole Video Swin: {error!r}",
            "copy or download it again",
        ) from None
    time, height, width = settings["window_size"]
    index = relative_position_index((time, height, width))
    if wrong := [key for key, tensor in indices.items() if not torch.equal(tensor.long(), index)]:
        raise CheckpointError(
            "weights-mismatch",
            f"`{wrong[0]}` in `{file}` is not that of windows of {settings['window_size']}",
            "copy or download it again",
        )
    return settings, {key: tensor.float() for key, tensor in tensors.items()}


@dataclass
class _BackboneEntry:
    settings: dict[str, Any]


@dataclass
class _CaptionerBackbone:
    """Backbone of a captioner, as `captioner.json` has it."""

    backbone: _BackboneEntry


def _settings_from_shapes(tensors: StateDict, indices: StateDict) -> dict[str, Any]:
    first = tensors[_FIRST]
    table_paths = [key.split(".") for key in tensors if key.endswith(_TABLE)]
    blocks = sorted((int(stage), int(block)) for _, stage, _, block, *_ in table_paths)
    depths = [0] * (blocks[-1][0] + 1)
    for stage, _ in blocks:
        depths[stage] += 1
    heads = [tensors[f"layers.{stage}.blocks.0{_TABLE}"].shape[1] for stage in range(len(depths))]
    index = indices[f"layers.0.blocks.0{_INDEX}"].long()
    tokens = len(index)
    rows = len(tensors[f"layers.0.blocks.0{_TABLE}"])
    # The sides of a window whose product is the number of tokens, and whose offsets are as many as
    # the table's rows, in the order of the index: other sides can have the same two numbers.
    sides = [side for side in range(1, tokens + 1) if tokens % side == 0]
    for height, width in product(sides, sides):
        time = tokens // (height * width)
        fits = (
            time * height * width == tokens
            and (2 * time - 1) * (2 * height - 1) * (2 * width - 1) == rows
        )
        if fits and torch.equal(relative_position_index((time, height, width)), index):
            break
    else:
        raise ValueError(f"no window has {tokens} tokens and {rows} offsets in this order")
    return {
        "embed_dim": first.shape[0],
        "depths": depths,
        "num_heads": heads,
        "window_size": [time, height, width],
        "patch_size": list(first.shape[2:]),
        "patch_norm": "patch_embed.norm.weight" in tensors,
        "drop_path_rate": 0.2,
    }


def _build_backbone(settings: dict[str, Any], tensors: StateDict, name: str) -> VideoSwinBackbone:
    """Make a backbone without memory and give it the tensors: sizes that only the settings name reserve nothing."""
    with refuse_unfit_parts(name):
        with on_meta_device():
            backbone = VideoSwinBackbone(**settings, name=name)
        backbone.load_state_dict(
            {key: tensor.to(torch.float32, copy=True) for key, tensor in tensors.items()},
            assign=True,
        )
    return backbone.eval()
