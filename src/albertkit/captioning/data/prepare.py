"""`prepare`: clips to features, or frames, on the disk, once for each content; killed anywhere, it goes on where it was."""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from albertkit.captioning.backbones import Backbone, load_backbone
from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.items import item_shape, read_notes, remove_unfinished
from albertkit.captioning.data.making import make_items, name_items
from albertkit.captioning.data.prepared import PREPARED, clips_file
from albertkit.captioning.data.reading import ReadClips, read_splits
from albertkit.captioning.data.recipe import Recipe
from albertkit.captioning.options import PreparationOptions, PrepareOptions
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.data.bad_rows import BadRow, BadRows, first_of
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, only_writer, read_json, write_json
from albertkit.frame.command import takes
from albertkit.frame.progress import Progress
from albertkit.training.distributed import join_world

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
class PrepareReport(ReadClips):
    """Result of `prepare`.

    Attributes:
        out: The folder.
        kind: "features" or "frames".
        tokens: Visual tokens of a clip; None where clips differ.
        computed: Items made by this call; clips of the same content share one.
        reused: Items that were there.
        skipped: Clips that could not be used.
    """

    out: Path
    kind: str
    tokens: int | None
    computed: int
    reused: int
    skipped: tuple[Skipped, ...]

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the notes, and the first rows and clips that could not be used."""
        clips = [f"skipped: {clip.split} `{clip.key}`: {clip.reason}" for clip in self.skipped]
        return (*super().warnings, *first_of(clips, self.listed))

    @property
    def listed(self) -> str:
        """Return where everything that was left out is listed."""
        return f"all are listed in {self.out / SKIPPED}"

    def facts(self) -> dict[str, Any]:
        """Return what a terminal shows."""
        return {**super().facts(), "skipped": len(self.skipped) or None}


@dataclass(frozen=True)
class ClipsToPrepare(PreparationOptions):
    """Arguments of `prepare`.

    Attributes:
        clips: By split, or those of train.
        out: The folder: `items/`, `clips-SPLIT.jsonl`, `skipped.jsonl` and, written last, `prepared.json`.
        backbone: On its device; one without weights of its own is always trained along. None for clips that are features.
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
    backbone, sampling = None, None
    if options.backbone != "features":
        backbone = load_backbone(options.backbone).to(join_world(options.device).device)
        size = options.size or backbone.frame_size
        sampling = FrameSampling(num_frames=options.frames, size=size, rounding=options.rounding)
    common_options = {field.name: getattr(options, field.name) for field in fields(PreparationOptions)}
    report = prepare(clips, options.out, backbone, sampling, left_out=bad_rows.found, **common_options)
    return replace(report, left_out=bad_rows.lines(), notes=tuple(bad_rows.notes))


@takes(ClipsToPrepare)
def prepare(options: ClipsToPrepare) -> PrepareReport:
    """Bring the visual side of clips to the disk.

    An item is named by the content of its file, the span, the sampling and the backbone: called again, it makes only what is
    missing or has changed; killed at any moment and called again, it ends with the same bytes. Splits that are in the folder
    already and are not among `clips` stay.
    """
    start_time, splits, folder = time.perf_counter(), options.splits, Path(options.out)
    recipe = Recipe.of(options.backbone, options.sampling, options.max_tokens, options.train_backbone)
    for split, clips in splits.items():
        if not split.replace("-", "").replace("_", "").isalnum():
            raise ConfigError("bad-value", f"`{split}` cannot name a split", "use letters, digits, - and _")
        for key, count in Counter(clip.key for clip in clips).items():
            if count > 1:
                raise DataError("bad-row", f"{count} clips of {split} have the key `{key}`", "give each its own key")
        for clip in clips:
            recipe.check(clip)
    with only_writer(folder):
        report = _prepare_splits(options, splits, folder, recipe)
    return replace(report, seconds=round(time.perf_counter() - start_time, 3))


def _prepare_splits(
    options: ClipsToPrepare, splits: Mapping[str, Sequence[Clip]], folder: Path, recipe: Recipe
) -> PrepareReport:
    settings = recipe.settings()
    stop = options.on_error == "stop"
    workers = options.workers or min(8, os.cpu_count() or 1)
    existing_splits = _read_existing_splits(folder, settings)
    remove_unfinished(folder)

    pairs = [(split, clip) for split, clips in splits.items() for clip in clips]
    with Progress("looking at files", len(pairs), "clips", options.progress) as display:
        names, errors = name_items(recipe, pairs, settings, display, workers=workers, stop=stop)
    items = {names[split, clip.key]: clip for split, clip in pairs if (split, clip.key) in names}
    with Progress("preparing", len(items), "clips", options.progress) as display:
        num_made, item_errors = make_items(
            recipe, items, folder, display, batch_size=options.batch_size, workers=workers, stop=stop
        )
    num_reused = len(items) - num_made - len(item_errors)
    if recipe.backbone is None:
        readable_items = {name: clip for name, clip in items.items() if name not in item_errors}
        item_errors |= _other_widths(readable_items, folder, recipe.dtype)
    if item_errors and stop:
        raise next(iter(item_errors.values()))
    errors |= {clip_id: item_errors[name] for clip_id, name in names.items() if name in item_errors}

    skipped = tuple(
        Skipped(split, clip.key, error.slug, error.message)
        for split, clip in pairs
        if (error := errors.get((split, clip.key)))
    )
    _write_skipped(folder, list(splits), skipped, options.left_out)
    counts = dict(existing_splits)
    for split, clips in splits.items():
        usable = [clip for clip in clips if (split, clip.key) not in errors]
        if not usable:
            raise _none_usable_error(folder, split, len(clips), [clip for clip in skipped if clip.split == split])
        lines = [_clip_line(clip, names[split, clip.key], folder) for clip in usable]
        _write_lines(folder / clips_file(split), lines)
        num_captions = sum(len(clip.captions) for clip in usable)
        counts[split] = {"clips": len(usable), "captions": num_captions, "skipped": len(clips) - len(usable)}
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


def _read_existing_splits(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the splits that the folder holds, if it was prepared with the same settings."""
    if not (folder / PREPARED).exists():
        return {}
    prepared = read_json(folder / PREPARED, "prepared clips")
    differing = [name for name in settings if prepared.get(name) != settings[name]]
    if settings["backbone_fingerprint"] and "backbone_fingerprint" not in differing:
        differing = [name for name in differing if name != "backbone"]  # the same one, moved
    if differing:
        changes = [f"{name} was {prepared.get(name)}, is {settings[name]}" for name in differing if name in _SHORT]
        changes += [name for name in differing if name not in _SHORT]
        raise DataError("changed", f"`{folder}` was prepared otherwise: {'; '.join(changes)}", "choose another --out")
    return dict(prepared["splits"])


def _other_widths(items: Mapping[str, Clip], folder: Path, dtype: str) -> dict[str, DataError]:
    """Return an error for each file of features that is not as wide as most of them."""
    widths = {name: (item_shape(folder, name, dtype) or (0, 0))[1] for name in items}
    usual = Counter(widths.values()).most_common(1)[0][0] if widths else 0
    hint = "features of one model have one width"
    return {
        name: DataError("bad-row", f"`{items[name].source}` is {width} wide, most are {usual}", hint)
        for name, width in widths.items()
        if width != usual
    }


def _write_skipped(folder: Path, splits: list[str], skipped: Sequence[Skipped], left_out: Sequence[BadRow]) -> None:
    """Replace the lines of these splits in `skipped.jsonl`."""
    row_split = splits[0] if len(splits) == 1 else ""  # the data does not say which split a bad row is of
    bad_rows = [Skipped(row_split, row.where, "bad-row", f"`{row.file}`: {row.reason}") for row in left_out]
    new_lines = [json.dumps(asdict(clip), ensure_ascii=False) for clip in (*bad_rows, *skipped)]
    try:
        text = (folder / SKIPPED).read_text(encoding="utf-8") if (folder / SKIPPED).exists() else ""
        lines = text.split("\n")[:-1]  # texts may hold what `splitlines` takes for a line end, too
        kept_lines = [line for line in lines if json.loads(line)["split"] not in (*splits, row_split)]
    except (ValueError, KeyError, TypeError) as error:  # bytes that are not UTF-8 are a ValueError, too
        fact = f"`{folder / SKIPPED}` is not what `prepare` writes: {error!r}"
        raise DataError("bad-file", fact, "delete that file; it only lists the clips that were left out") from None
    _write_lines(folder / SKIPPED, kept_lines + new_lines)


def _none_usable_error(folder: Path, split: str, count: int, skipped: Sequence[Skipped]) -> DataError:
    reasons = ", ".join(f"{n:,} {slug}" for slug, n in Counter(clip.slug for clip in skipped).most_common())
    first = f"; the first: {skipped[0].reason}" if skipped else ""
    fact = f"none of the {count:,} clips of {split} can be used: {reasons or 'there are none'}{first}"
    return DataError("too-little-data", fact, f"`{folder / SKIPPED}` says what is wrong with each")


def _clip_line(clip: Clip, item: str, folder: Path) -> str:
    """Return a line of `clips-SPLIT.jsonl`."""
    origin = {"source": str(clip.source), "start": clip.start, "end": clip.end, "row": clip.row}
    origin = {name: value for name, value in origin.items() if value is not None}
    values: dict[str, Any] = {"key": clip.key, "captions": list(clip.captions), "item": item, "origin": origin}
    notes = read_notes(folder, item)
    if notes:
        values["notes"] = notes
    return json.dumps(values, ensure_ascii=False)


def _write_lines(file: Path, lines: Sequence[str]) -> None:
    text = "".join(line + "\n" for line in lines)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        with atomic_file(file, "w") as stream:
            stream.write(text)
