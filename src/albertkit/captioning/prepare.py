"""`prepare`: clips to features, or frames, on the disk, once for each content; killed anywhere, it goes on where it was."""

import base64
import io
import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from albertkit.captioning.backbone import Backbone, TokenGrid, grid_after_pooling, pool_grid
from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.clips import FEATURE_ENDINGS, Clip
from albertkit.captioning.options import PreparationOptions, PrepareOptions
from albertkit.captioning.prepared import (
    FORMAT,
    PARSING,
    PREPARED,
    clips_file_name,
    hash_item_facts,
    is_item_intact,
    item_shape,
    read_notes,
    remove_unfinished,
    write_item,
    write_notes,
)
from albertkit.captioning.sources import read_splits
from albertkit.captioning.swinbert_files import TsvFile
from albertkit.captioning.video import Frames, FrameSampling, Squares, sample_frames
from albertkit.command import takes
from albertkit.errors import (
    ConfigError,
    DataError,
    MachineError,
    explain_os_error,
    requires_package,
)
from albertkit.files import (
    check_folder_name,
    check_regular_file,
    lock_folder,
    read_json,
    sha256_bytes,
    sha256_file,
    write_file,
    write_json,
)
from albertkit.output.progress import ProgressBar
from albertkit.output.sections import FactList, Result, Section
from albertkit.tables.bad_rows import BadRow, BadRows, shorten_list
from albertkit.training.processes import join_world


def read_features(file: Path) -> np.ndarray:
    """Read the features of a clip.

    Args:
        file: `.npy` or `.safetensors` of floats [M, D]: M visual tokens, or frames, in their order.

    Returns:
        float16 [M, D].
    """
    check_regular_file(file)
    hint = "make it again with np.save or safetensors"
    try:
        if file.suffix.lower() == ".npy":
            with open(file, "rb") as stream:
                is_npy = stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
            if not is_npy:
                raise DataError("bad-file", f"`{file}` is not a .npy file", hint)
            with PARSING:
                # Mapped first: a header may promise more than the file holds, and memory would be
                # taken for it.
                values = np.array(np.load(file, mmap_mode="r", allow_pickle=False))
        else:
            from safetensors import safe_open

            with safe_open(file, "pt") as tensors:  # "np" has no bfloat16
                names = list(tensors.keys())
                if len(names) != 1:
                    raise DataError(
                        "bad-file",
                        f"`{file}` holds {len(names)} tensors",
                        "write one tensor a file",
                    )
                values = tensors.get_tensor(names[0]).float().numpy()
    except (DataError, OSError, MemoryError):
        raise  # the machine's fault is not the file's: nothing is left out for it
    except Exception as error:  # what a damaged file raises is not declared by either library
        raise DataError("bad-file", f"`{file}` cannot be read: {error}", hint) from None
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind != "f":
        raise DataError(
            "bad-file",
            f"`{file}` holds {values.dtype} {list(values.shape)}",
            "features of a clip are floats [tokens, width]",
        )
    with np.errstate(over="ignore"):
        features = values.astype(np.float16)
    if not np.isfinite(features).all():
        raise DataError(
            "bad-file",
            f"`{file}` holds numbers that are not finite in float16, or above 65,504",
            "normalise the features, or make them again",
        )
    return features


def decode_clip_frames(clip: Clip, sampling: FrameSampling) -> Frames:
    """Decode the frames of a clip.

    Returns:
        Frames with `pixels`, uint8 [T, S, S, 3], and `times`, [T] seconds.
    """
    if clip.row is None:
        return sample_frames(clip.source, sampling, clip.start, clip.end)
    columns = TsvFile.open_cached(clip.source).row(clip.row)[1:]
    pictures = columns[1:] if columns[:1] and columns[0].startswith(b"{") else columns
    location = f"`{clip.source}`, row {clip.row:,} (`{clip.key}`)"
    if 1 < len(pictures) < sampling.num_frames or not pictures:
        raise DataError(
            "bad-row",
            f"{location} holds {len(pictures)} frames, {sampling.num_frames} are wanted",
            f"take --frames {max(len(pictures), 1)}, or the videos themselves; no frame is shown twice",
        )
    frame_indices = sampling.frame_indices(len(pictures)).tolist()
    squares = Squares(sampling.size)
    decoded_frames = {}
    for index in set(frame_indices):
        frame_location = f"{location}: frame {index} of {len(pictures)}"
        decoded_frames[index] = _decode_picture(pictures[index], squares, frame_location)
    times = np.full(len(frame_indices), np.nan)
    return Frames(np.stack([decoded_frames[index] for index in frame_indices]), times)


def _decode_picture(column: bytes, squares: Squares, location: str) -> np.ndarray:
    with requires_package("av", "caption", "reading frames"):
        import av
    with requires_package("pillow", "caption", "reading frames"):
        from PIL import Image
    try:
        with Image.open(io.BytesIO(base64.b64decode(column, validate=True))) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # What base64 refuses is a ValueError.
        reason = "it is empty" if not column else f"it is not an image: {error}"
        raise DataError(
            "bad-row",
            f"{location}: {reason}",
            "write the row again from its video, or leave it out",
        ) from None
    return squares.of(av.VideoFrame.from_ndarray(pixels, "rgb24"))


def content_hash(clip: Clip) -> str:
    """Hash what the visual side of a clip is made from: the bytes of its file, or the pictures of its row."""
    if clip.row is None:
        return sha256_file(clip.source)
    columns = TsvFile.open_cached(clip.source).row(clip.row)[1:]
    return sha256_bytes(b"\t".join(columns))


@dataclass(frozen=True)
class ItemRecipe:
    """Recipe of a stored item: frames uint8 [T, S, S, 3] to be trained on, or features float16 [M, D]."""

    kind: Literal["features", "frames"]
    sampling: FrameSampling | None  # None for features computed elsewhere, as are the next two
    backbone: Backbone | None
    grid: TokenGrid | None  # of the tokens of a clip, after pooling

    @classmethod
    def of(
        cls,
        backbone: Backbone | None,
        sampling: FrameSampling | None,
        max_tokens: int,
        train_backbone: bool = False,
    ) -> "ItemRecipe":
        """Return the recipe for a backbone; the frames themselves where it is trained along."""
        if backbone is None:
            return cls("features", None, None, None)
        if sampling is None:
            raise ConfigError(
                "bad-value",
                f"the backbone `{backbone.name}` needs frames, no sampling is given",
                "give a FrameSampling",
            )
        grid = backbone.grid(sampling.num_frames, sampling.size)
        if backbone.trained_from_scratch or train_backbone:
            return cls("frames", sampling, backbone, grid)
        return cls("features", sampling, backbone.eval(), grid_after_pooling(grid, max_tokens))

    @property
    def dtype(self) -> str:
        """Return the type of the items: uint8 frames or float16 features."""
        return "uint8" if self.kind == "frames" else "float16"

    def settings(self) -> dict[str, Any]:
        """Return what `prepared.json` says of it."""
        backbone = self.backbone
        return {
            "format": FORMAT,
            "kind": self.kind,
            "backbone": "features" if backbone is None else backbone.name,
            "backbone_fingerprint": None if backbone is None else backbone.fingerprint(),
            "backbone_settings": {} if backbone is None else backbone.settings(),
            "sampling": None if self.sampling is None else self.sampling.to_dict(),
            "grid": None if self.grid is None else list(self.grid),
        }

    def check_clip_kind(self, clip: Clip) -> None:
        """Refuse a file of features where the recipe reads videos, and a video where it reads features."""
        if (clip.source.suffix.lower() in FEATURE_ENDINGS) != (self.backbone is None):
            subject, say = (
                ("frames", "conv3d or hf:FOLDER")
                if self.backbone is None
                else ("features", "features")
            )
            name = "features" if self.backbone is None else self.backbone.name
            raise ConfigError(
                "conflicting-options",
                f"the clip `{clip.key}` is a file of {subject}, the backbone is `{name}`",
                f"--backbone {say}; clips of features and of videos are prepared into two folders",
            )

    def item_name_of_clip(self, clip: Clip, settings: dict[str, Any]) -> str:
        """Return the name of a clip's item, by the content of its file."""
        # Frames do not depend on the backbone that will see them.
        decisive = ("format", "kind", "sampling") if self.kind == "frames" else (*settings,)
        if settings["backbone_fingerprint"]:  # says which backbone it is, wherever it lies
            decisive = tuple(name for name in decisive if name != "backbone")
        facts = {"content": content_hash(clip), "start": clip.start, "end": clip.end}
        return hash_item_facts(facts | {name: settings[name] for name in decisive})

    def fits_shape(self, shape: tuple[int, ...] | None) -> bool:
        """Return whether this recipe makes items of this shape; None, of an item that is not there, never fits."""
        if shape is None or self.backbone is None or self.sampling is None or self.grid is None:
            return shape is not None and len(shape) == 2
        if self.kind == "frames":
            return shape == (self.sampling.num_frames, self.sampling.size, self.sampling.size, 3)
        return shape == (self.grid.num_tokens, self.backbone.out_dim)

    def read_visual(self, clip: Clip) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the frames uint8 [T, S, S, 3] of a clip, or its features float16 [M, D]; and what was not as its file says."""
        if self.sampling is None:
            return read_features(clip.source), ()
        frames = decode_clip_frames(clip, self.sampling)
        return frames.pixels, frames.notes

    @property
    def is_read_only(self) -> bool:
        """Return whether what is read are the items already."""
        return self.backbone is None or self.kind == "frames"

    def compute_features(self, frames: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return clips through the backbone, pooled: B times float16 [M, D] of B times uint8 [T, S, S, 3]."""
        assert self.backbone is not None
        assert self.sampling is not None
        assert self.grid is not None
        device = next(
            (parameter.device for parameter in self.backbone.parameters()), torch.device("cpu")
        )
        with torch.inference_mode():
            features = self.backbone(torch.from_numpy(np.stack(frames)).to(device)).float()
            grid = self.backbone.grid(self.sampling.num_frames, self.sampling.size)
            half = pool_grid(features, grid, self.grid.num_tokens)[0].to("cpu", torch.float16)
        if not torch.isfinite(half).all():
            raise MachineError(
                "not-finite",
                f"the backbone `{self.backbone.name}` gives numbers that are not finite in float16",
                "look at its weights; features above 65,504 need a normalisation in the backbone",
            )
        return list(half.numpy())


SKIPPED = "skipped.jsonl"
_SHORT = ("format", "kind", "backbone", "sampling", "grid")  # settings that a message can hold


@dataclass(frozen=True)
class Skipped:
    """A line of `skipped.jsonl`: a clip, or a row of the data, that could not be used."""

    split: str  # "" for a bad row of data with several splits
    key: str  # of the clip, or the place of the row
    slug: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PrepareReport(Result):
    """Result of `prepare`.

    Attributes:
        clips: Number of usable clips by split.
        captions: Number of their captions.
        left_out: Rows of the data that are no clips.
        notes: What was passed over in files.
        seconds: It took.
        out: The folder.
        kind: "features" or "frames".
        tokens: Visual tokens of a clip; None where clips differ.
        computed: Items made by this call; clips of the same content share one.
        reused: Items that were there.
        skipped: Clips that could not be used.
    """

    clips: dict[str, int]
    captions: int
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    out: Path
    kind: str
    tokens: int | None
    computed: int
    reused: int
    skipped: tuple[Skipped, ...]

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the notes, and the first rows and clips that could not be used."""
        listed = f"all are listed in {self.out / SKIPPED}"
        rows = [f"left out: {row}" for row in self.left_out]
        clips = [f"skipped: {clip.split} `{clip.key}`: {clip.reason}" for clip in self.skipped]
        return (*self.notes, *shorten_list(rows, listed), *shorten_list(clips, listed))

    def sections(self) -> list[Section]:
        """Return the counts."""
        facts = {
            **vars(self),
            "clips": [f"{name} {count:,}" for name, count in self.clips.items()],
            "left_out": len(self.left_out) or None,
            "notes": None,
            "skipped": len(self.skipped) or None,
        }
        return [FactList(facts)]


@dataclass(frozen=True)
class ClipsToPrepare(PreparationOptions):
    """Arguments of `prepare`.

    Attributes:
        clips: By split, or those of train.
        out: The folder: `items/`, `clips-SPLIT.jsonl`, `skipped.jsonl` and, written last,
            `prepared.json`.
        backbone: On its device; one without weights of its own is always trained along. None for
            clips that are features.
        sampling: Which frames, and how large; needed with a backbone.
        left_out: Rows of the data that are no clips, to be listed in `skipped.jsonl`, too.
    """

    clips: Mapping[str, Sequence[Clip]] | Sequence[Clip]
    out: str | Path
    backbone: Backbone | None
    sampling: FrameSampling | None = None
    _: KW_ONLY
    left_out: Sequence[BadRow] = ()

    @property
    def splits(self) -> dict[str, list[Clip]]:
        """Return the clips by split."""
        splits = self.clips if isinstance(self.clips, Mapping) else {"train": self.clips}
        return {name: list(part) for name, part in splits.items()}


@takes(PrepareOptions)
def prepare_data(options: PrepareOptions) -> PrepareReport:
    """Read data, load a backbone, and prepare every split."""
    bad_rows = BadRows(options.on_error)
    clips = read_splits(options.data, options.split, bad_rows)
    backbone = None
    sampling = None
    if options.backbone != "features":
        backbone = load_backbone(options.backbone).to(join_world(options.device).device)
        size = options.size or backbone.frame_size
        sampling = FrameSampling(num_frames=options.frames, size=size, rounding=options.rounding)
    common_options = {
        field.name: getattr(options, field.name) for field in fields(PreparationOptions)
    }
    report = prepare_clips(
        clips,
        options.out,
        backbone,
        sampling,
        left_out=bad_rows.rows,
        **common_options,
    )
    return replace(report, left_out=bad_rows.lines(), notes=tuple(bad_rows.notes))


@takes(ClipsToPrepare)
def prepare_clips(options: ClipsToPrepare) -> PrepareReport:
    """Bring the visual side of clips to the disk.

    An item is named by the content of its file, the span, the sampling and the backbone: called
    again, it makes only what is missing or has changed; killed at any moment and called again, it
    ends with the same bytes. Splits that are in the folder already and are not among `clips` stay.
    """
    start_time = time.perf_counter()
    splits = options.splits
    folder = check_folder_name(options.out)
    recipe = ItemRecipe.of(
        options.backbone,
        options.sampling,
        options.max_tokens,
        options.train_backbone,
    )
    for split, clips in splits.items():
        if not split.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(
                "bad-value",
                f"`{split}` cannot name a split",
                "use letters, digits, - and _",
            )
        for key, count in Counter(clip.key for clip in clips).items():
            if count > 1:
                raise DataError(
                    "bad-row",
                    f"{count} clips of {split} have the key `{key}`",
                    "give each its own key",
                )
        for clip in clips:
            recipe.check_clip_kind(clip)
    # No `Job`: items are a store by content that several calls share, and a job's folder ends with
    # `publish`.
    workers = options.workers or min(8, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="clips")
    with lock_folder(folder):
        try:
            report = PreparationRun(options, folder, recipe, workers, pool).prepare(splits)
        finally:
            pool.shutdown(cancel_futures=True)
    return replace(report, seconds=round(time.perf_counter() - start_time, 3))


ClipId = tuple[str, str]  # split and key
Read = tuple[np.ndarray, tuple[str, ...]]  # what a model sees of a clip, and notes
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class PreparationRun:
    """One call of `prepare_clips`; the threads of `pool` read files."""

    options: ClipsToPrepare
    folder: Path
    recipe: ItemRecipe
    workers: int
    pool: ThreadPoolExecutor

    def prepare(self, splits: Mapping[str, Sequence[Clip]]) -> PrepareReport:
        """Name and make all items, then write the lists of clips."""
        folder = self.folder
        recipe = self.recipe
        settings = recipe.settings()
        existing_splits = _read_existing_splits(folder, settings)
        remove_unfinished(folder)

        pairs = [(split, clip) for split, clips in splits.items() for clip in clips]
        names, errors = self.hash_item_names(pairs, settings)
        items = {
            names[split, clip.key]: clip for split, clip in pairs if (split, clip.key) in names
        }
        num_made, item_errors = self.make_missing_items(items)
        num_reused = len(items) - num_made - len(item_errors)
        if recipe.backbone is None:
            readable_items = [name for name in items if name not in item_errors]
            widths = {
                name: (item_shape(folder, name, recipe.dtype) or (0, 0))[1]
                for name in readable_items
            }
            usual = Counter(widths.values()).most_common(1)[0][0] if widths else 0
            for name, width in widths.items():
                if width != usual:
                    fact = f"`{items[name].source}` is {width} wide, most are {usual}"
                    item_errors[name] = DataError(
                        "bad-row",
                        fact,
                        "features of one model have one width",
                    )
        if item_errors and self.options.on_error == "stop":
            raise next(iter(item_errors.values()))
        errors |= {
            clip_id: item_errors[name] for clip_id, name in names.items() if name in item_errors
        }

        skipped = tuple(
            Skipped(split, clip.key, error.slug, error.message)
            for split, clip in pairs
            if (error := errors.get((split, clip.key)))
        )
        _write_skipped(folder, list(splits), skipped, self.options.left_out)
        counts = dict(existing_splits)
        for split, clips in splits.items():
            usable = [clip for clip in clips if (split, clip.key) not in errors]
            if not usable:
                raise _none_usable_error(
                    folder,
                    split,
                    len(clips),
                    [clip for clip in skipped if clip.split == split],
                )
            lines = [_manifest_line(clip, names[split, clip.key], folder) for clip in usable]
            _write_lines(folder / clips_file_name(split), lines)
            num_captions = sum(len(clip.captions) for clip in usable)
            counts[split] = {
                "clips": len(usable),
                "captions": num_captions,
                "skipped": len(clips) - len(usable),
            }
        # Last: only a folder whose lists are all there has it.
        if counts != existing_splits:
            write_json(folder / PREPARED, settings | {"splits": counts})
        return PrepareReport(
            clips={split: counts[split]["clips"] for split in splits},
            captions=sum(counts[split]["captions"] for split in splits),
            out=folder,
            kind=recipe.kind,
            tokens=recipe.grid and recipe.grid.num_tokens,
            computed=num_made,
            reused=num_reused,
            skipped=skipped,
        )

    def hash_item_names(
        self, pairs: Sequence[tuple[str, Clip]], settings: dict[str, Any]
    ) -> tuple[dict[ClipId, str], dict[ClipId, DataError]]:
        """Read every file and name its item."""
        names: dict[ClipId, str] = {}
        errors: dict[ClipId, DataError] = {}
        futures = {
            (split, clip.key): self.pool.submit(self.recipe.item_name_of_clip, clip, settings)
            for split, clip in pairs
        }
        with ProgressBar("looking at files", len(pairs), "clips", self.options.progress) as display:
            for clip_id, future in futures.items():
                names |= self.collect_results({clip_id: future}, errors)
                display.update(display.completed + 1, _format_num_skipped(errors))
        return names, errors

    def make_missing_items(self, items: Mapping[str, Clip]) -> tuple[int, dict[str, DataError]]:
        """Make every item that is not there."""
        num_made = 0
        errors: dict[str, DataError] = {}
        with ProgressBar("preparing", len(items), "clips", self.options.progress) as display:
            for group, readings in self._read_ahead(items):
                frames = self.collect_results(readings, errors)
                new_names = set(frames)
                # A batch is computed whole, also what is there of it: in another company the last
                # bits of a clip could be others, and a preparation that was killed would end in
                # other bytes.
                if new_names and len(readings) < len(group):
                    existing = {name: clip for name, clip in group.items() if name not in readings}
                    frames |= self.collect_results(self.start_reading(existing), errors)
                names = [name for name in group if name in frames]
                arrays = [frames[name][0] for name in names]
                if names and not self.recipe.is_read_only:
                    arrays = self.recipe.compute_features(arrays)
                for name, array in zip(names, arrays, strict=True):
                    if name in new_names:
                        write_notes(self.folder, name, frames[name][1])
                        write_item(self.folder, name, array)
                num_made += len(new_names)
                display.update(display.completed + len(group), _format_num_skipped(errors))
        return num_made, errors

    def _read_ahead(
        self, items: Mapping[str, Clip]
    ) -> Iterator[tuple[dict[str, Clip], dict[str, Future[Read]]]]:
        """Yield items that are computed together, and the reading of those that are missing, a few clips ahead."""
        recipe = self.recipe
        folder = self.folder
        size = 1 if recipe.is_read_only else self.options.batch_size
        pairs = iter(items.items())
        queue: deque[tuple[dict[str, Clip], dict[str, Future[Read]]]] = deque()
        for group in iter(lambda: dict(islice(pairs, size)), {}):
            missing = {}
            for name, clip in group.items():
                if not (
                    recipe.fits_shape(item_shape(folder, name, recipe.dtype))
                    and is_item_intact(folder, name, recipe.dtype)
                ):
                    missing[name] = clip
            queue.append((group, self.start_reading(missing)))
            # Bounds memory: as many clips as there are threads to read them, and a batch that
            # waits.
            num_ahead = sum(len(readings) for _, readings in queue)
            while queue and (
                num_ahead >= self.workers + self.options.batch_size or not queue[0][1]
            ):
                num_ahead -= len(queue[0][1])
                yield queue.popleft()
        yield from queue

    def start_reading(self, items: Mapping[str, Clip]) -> dict[str, Future[Read]]:
        """Return what the recipe reads of clips, by item."""
        return {
            name: self.pool.submit(self.recipe.read_visual, clip) for name, clip in items.items()
        }

    def collect_results(
        self,
        futures: Mapping[Key, Future[Value]],
        errors: dict[Key, DataError],
    ) -> dict[Key, Value]:
        """Collect the values that were read.

        A DataError goes to `errors` under its key, any other error, or any with `on_error` stop, is
        raised.
        """
        results = {}
        for key, future in futures.items():
            try:
                results[key] = future.result()
            except (DataError, OSError) as error:
                explained = explain_os_error(error)
                if self.options.on_error == "stop" or not isinstance(explained, DataError):
                    raise explained or error from None
                errors[key] = explained
        return results


def _format_num_skipped(errors: Mapping[Any, Any]) -> str:
    return f"{len(errors):,} skipped" if errors else ""


def _read_existing_splits(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the splits that the folder holds, if it was prepared with the same settings."""
    if not (folder / PREPARED).exists():
        return {}
    prepared = read_json(folder / PREPARED, "prepared clips")
    differing = [name for name in settings if prepared.get(name) != settings[name]]
    if settings["backbone_fingerprint"] and "backbone_fingerprint" not in differing:
        differing = [name for name in differing if name != "backbone"]  # the same one, moved
    if differing:
        changes = [
            f"{name} was {prepared.get(name)}, is {settings[name]}"
            for name in differing
            if name in _SHORT
        ]
        changes += [name for name in differing if name not in _SHORT]
        raise DataError(
            "changed",
            f"`{folder}` was prepared otherwise: {'; '.join(changes)}",
            "choose another --out",
        )
    return dict(prepared["splits"])


def _write_skipped(
    folder: Path,
    splits: list[str],
    skipped: Sequence[Skipped],
    left_out: Sequence[BadRow],
) -> None:
    """Replace the lines of these splits in `skipped.jsonl`."""
    # The data does not say which split a bad row is of
    row_split = splits[0] if len(splits) == 1 else ""
    bad_rows = [
        Skipped(row_split, row.where, "bad-row", f"`{row.file}`: {row.reason}") for row in left_out
    ]
    new_lines = [json.dumps(asdict(clip), ensure_ascii=False) for clip in (*bad_rows, *skipped)]
    try:
        text = (folder / SKIPPED).read_text(encoding="utf-8") if (folder / SKIPPED).exists() else ""
        lines = text.split("\n")[:-1]  # texts may hold what `splitlines` takes for a line end, too
        kept_lines = [
            line for line in lines if json.loads(line)["split"] not in (*splits, row_split)
        ]
    except (ValueError, KeyError, TypeError) as error:
        # Bytes that are not UTF-8 are a ValueError, too.
        raise DataError(
            "bad-file",
            f"`{folder / SKIPPED}` is not what `prepare` writes: {error!r}",
            "delete that file; it only lists the clips that were left out",
        ) from None
    _write_lines(folder / SKIPPED, kept_lines + new_lines)


def _none_usable_error(
    folder: Path,
    split: str,
    num_clips: int,
    skipped: Sequence[Skipped],
) -> DataError:
    counts = Counter(clip.slug for clip in skipped)
    reasons = ", ".join(f"{count:,} {slug}" for slug, count in counts.most_common())
    first = f"; the first: {skipped[0].reason}" if skipped else ""
    return DataError(
        "too-little-data",
        f"none of the {num_clips:,} clips of {split} can be used: {reasons or 'there are none'}{first}",
        f"`{folder / SKIPPED}` says what is wrong with each",
    )


def _manifest_line(clip: Clip, item: str, folder: Path) -> str:
    """Return a line of `clips-SPLIT.jsonl`."""
    origin = {"source": str(clip.source), "start": clip.start, "end": clip.end, "row": clip.row}
    origin = {name: value for name, value in origin.items() if value is not None}
    values: dict[str, Any] = {
        "key": clip.key,
        "captions": list(clip.captions),
        "item": item,
        "origin": origin,
    }
    notes = read_notes(folder, item)
    if notes:
        values["notes"] = notes
    return json.dumps(values, ensure_ascii=False)


def _write_lines(file: Path, lines: Sequence[str]) -> None:
    text = "".join(line + "\n" for line in lines)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_file(file, text)
