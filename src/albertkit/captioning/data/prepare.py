"""`prepare`: clips to features, or frames, on the disk, once for each content; killed anywhere, it goes on where it was."""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from albertkit.captioning.backbones import Backbone, load_backbone
from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.items import item_shape, read_notes, remove_unfinished
from albertkit.captioning.data.making import make_items, name_items
from albertkit.captioning.data.prepared import PREPARED, clips_file
from albertkit.captioning.data.reading import read_splits
from albertkit.captioning.data.recipe import Recipe
from albertkit.captioning.options import PrepareOptions
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.data.bad_rows import BadRow, BadRows, first_of
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, only_writer, read_json, write_json
from albertkit.frame.command import takes
from albertkit.frame.progress import Progress
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section
from albertkit.training.distributed import join_world

SKIPPED = "skipped.jsonl"
_SHORT = ("format", "kind", "backbone", "sampling", "grid")  # settings that a message can hold


@dataclass(frozen=True)
class Skipped:
    """A clip that could not be used.

    Attributes:
        split: Where it belongs; "" for a bad row of data with several splits.
        key: Its name, or the place of the row.
        slug: Of the error.
        reason: The error.
    """

    split: str
    key: str
    slug: str
    reason: str


@dataclass(frozen=True)
class PrepareReport(Result):
    """What `prepare` did.

    Attributes:
        out: The folder.
        kind: "features" or "frames".
        clips: Number of usable clips by split.
        captions: Number of their captions.
        tokens: Visual tokens of a clip; None where clips differ.
        computed: Items made by this call; clips of the same content share one.
        reused: Items that were there.
        skipped: Clips that could not be used.
        seconds: Time of this call.
        left_out: Rows of the data that are no clips.
        notes: What was passed over in files.
    """

    out: Path
    kind: str
    clips: dict[str, int]
    captions: int
    tokens: int | None
    computed: int
    reused: int
    skipped: tuple[Skipped, ...]
    seconds: float
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the notes, and the first rows and clips that could not be used."""
        listed = f"all are listed in {self.out / SKIPPED}"
        rows = first_of([f"left out: {row}" for row in self.left_out], listed)
        clips = first_of([f"skipped: {clip.split} `{clip.key}`: {clip.reason}" for clip in self.skipped], listed)
        return (*self.notes, *rows, *clips)

    def sections(self) -> list[Section]:
        """Return what a person is shown."""
        counts = {"skipped": len(self.skipped) or None, "left_out": len(self.left_out) or None, "notes": None}
        splits = [f"{name} {count:,}" for name, count in self.clips.items()]
        return [Facts({**vars(self), **counts, "clips": splits})]


@dataclass(frozen=True)
class ClipsToPrepare:
    """Arguments of `prepare`.

    Attributes:
        clips: By split, or those of train.
        out: The folder: `items/`, `clips-SPLIT.jsonl`, `skipped.jsonl` and, written last, `prepared.json`.
        backbone: On its device. None for clips that are files of features.
        sampling: Which frames, and how large; needed with a backbone.
        max_tokens: Visual tokens of a clip at most; more are averaged with their neighbours in space.
        train_backbone: Keep frames, so that the backbone can be trained along; one without weights of its own always is.
        batch_size: Clips that go through the backbone at once.
        workers: Threads that decode. Default: one a core, 8 at most.
        on_error: Clips that cannot be read: skip and name them, or stop at the first.
        progress: Show it on stderr.
        left_out: Rows of the data that are no clips, to be listed in `skipped.jsonl`, too.
    """

    clips: Mapping[str, Sequence[Clip]] | Sequence[Clip]
    out: str | Path
    backbone: Backbone | None
    sampling: FrameSampling | None = None
    _: KW_ONLY
    max_tokens: int = 196
    train_backbone: bool = False
    batch_size: int = 8
    workers: int | None = None
    on_error: Literal["stop", "skip"] = "skip"
    progress: bool = False
    left_out: Sequence[BadRow] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "workers", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                fact = f"{name} is {value}, it must be at least 1"
                raise ConfigError("bad-value", fact, "leave it out for the default")

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
    report = prepare(
        clips,
        options.out,
        backbone,
        sampling,
        max_tokens=options.max_tokens,
        train_backbone=options.train_backbone,
        batch_size=options.batch_size,
        workers=options.workers,
        on_error=options.on_error,
        progress=options.progress,
        left_out=bad_rows.found,
    )
    return replace(report, left_out=bad_rows.lines(), notes=tuple(bad_rows.notes))


@takes(ClipsToPrepare)
def prepare(given: ClipsToPrepare) -> PrepareReport:
    """Bring the visual side of clips to the disk.

    An item is named by the content of its file, the span, the sampling and the backbone: called again, it makes only what is
    missing or has changed; killed at any moment and called again, it ends with the same bytes. Splits that are in the folder
    already and are not among `clips` stay.
    """
    began, splits, folder = time.perf_counter(), given.splits, Path(given.out)
    recipe = Recipe.of(given.backbone, given.sampling, given.max_tokens, given.train_backbone)
    _check(splits, recipe)
    with only_writer(folder):
        report = _prepare(given, splits, folder, recipe)
    return replace(report, seconds=round(time.perf_counter() - began, 3))


def _prepare(
    given: ClipsToPrepare, splits: Mapping[str, Sequence[Clip]], folder: Path, recipe: Recipe
) -> PrepareReport:
    settings, stop = recipe.settings(), given.on_error == "stop"
    before = _splits_before(folder, settings)
    remove_unfinished(folder)
    how: dict[str, Any] = {"workers": given.workers or min(8, os.cpu_count() or 1), "stop": stop}
    each = [(part, clip) for part, clips in splits.items() for clip in clips]
    with Progress("looking at files", len(each), "clips", given.progress) as display:
        names, failed = name_items(recipe, each, settings, display, **how)
    items = {names[part, clip.key]: clip for part, clip in each if (part, clip.key) in names}
    with Progress("preparing", len(items), "clips", given.progress) as display:
        made, broken = make_items(recipe, items, folder, display, batch_size=given.batch_size, **how)
    unmade = set(broken)
    broken |= _other_widths(recipe, items, folder, broken)
    if broken and stop:
        raise next(iter(broken.values()))
    failed |= {place: broken[name] for place, name in names.items() if name in broken}
    skipped = tuple(
        Skipped(part, clip.key, error.slug, error.message)
        for part, clip in each
        if (error := failed.get((part, clip.key)))
    )
    counts = _write(folder, settings, splits, names, skipped, before, given.left_out)
    clips = {name: counts[name]["clips"] for name in splits}
    captions = sum(counts[name]["captions"] for name in splits)
    tokens = recipe.grid and recipe.grid.num_tokens
    reused = len(items) - made - len(unmade)
    return PrepareReport(folder, recipe.kind, clips, captions, tokens, made, reused, skipped, 0.0)


def _check(splits: Mapping[str, Sequence[Clip]], recipe: Recipe) -> None:
    for part, clips in splits.items():
        if not part.replace("-", "").replace("_", "").isalnum():
            raise ConfigError("bad-value", f"`{part}` cannot name a split", "use letters, digits, - and _")
        seen = Counter(clip.key for clip in clips)
        if seen and seen.most_common(1)[0][1] > 1:
            raise DataError(
                "bad-row",
                f"two clips of {part} have the key `{seen.most_common(1)[0][0]}`",
                "give each its own key",
            )
        for clip in clips:
            recipe.check(clip)


def _splits_before(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the folder holds, if it was made in the same way."""
    if not (folder / PREPARED).exists():
        return {}
    before = read_json(folder / PREPARED, "prepared clips")
    differing = [name for name in settings if before.get(name) != settings[name]]
    if settings["backbone_fingerprint"] and "backbone_fingerprint" not in differing:
        differing = [name for name in differing if name != "backbone"]  # the same one, moved
    if differing:
        shown = [f"{name} was {before.get(name)}, is {settings[name]}" for name in differing if name in _SHORT]
        shown += [name for name in differing if name not in _SHORT]
        raise DataError("changed", f"`{folder}` was prepared otherwise: {'; '.join(shown)}", "choose another --out")
    return dict(before["splits"])


def _other_widths(
    recipe: Recipe, items: Mapping[str, Clip], folder: Path, broken: Mapping[str, DataError]
) -> dict[str, DataError]:
    """Files of features that are not as wide as most of them."""
    if recipe.backbone is not None:
        return {}
    shapes = {name: item_shape(folder, name, recipe.dtype) or (0, 0) for name in items if name not in broken}
    widths = Counter(shape[1] for shape in shapes.values())
    usual = widths.most_common(1)[0][0] if widths else 0
    return {
        name: DataError(
            "bad-row",
            f"`{items[name].source}` is {shape[1]} wide, most are {usual}",
            "features of one model have one width",
        )
        for name, shape in shapes.items()
        if shape[1] != usual
    }


def _write(
    folder: Path,
    settings: dict[str, Any],
    splits: Mapping[str, Sequence[Clip]],
    names: Mapping[tuple[str, str], str],
    skipped: Sequence[Skipped],
    before: dict[str, Any],
    left_out: Sequence[BadRow],
) -> dict[str, Any]:
    """Return the lists of clips and, last, `prepared.json`; the counts of all splits."""
    unusable = {(clip.split, clip.key) for clip in skipped}
    of_rows = next(iter(splits)) if len(splits) == 1 else ""  # the data does not say which split a bad row is of
    rows = [Skipped(of_rows, bad_row.where, "bad-row", f"`{bad_row.file}`: {bad_row.reason}") for bad_row in left_out]
    listed = [json.dumps(asdict(clip), ensure_ascii=False) for clip in (*rows, *skipped)]
    try:
        kept = [line for line in _lines(folder / SKIPPED) if json.loads(line)["split"] not in (*splits, of_rows)]
    except (ValueError, KeyError, TypeError) as error:  # bytes that are not UTF-8 are a ValueError, too
        raise DataError(
            "bad-file",
            f"`{folder / SKIPPED}` is not what `prepare` writes: {error!r}",
            "delete that file; it only lists the clips that were left out",
        ) from None
    _write_lines(folder / SKIPPED, kept + listed)
    counts = dict(before)
    for part, clips in splits.items():
        usable = [clip for clip in clips if (part, clip.key) not in unusable]
        if not usable:
            slugs = Counter(clip.slug for clip in skipped if clip.split == part)
            reasons = ", ".join(f"{count:,} {slug}" for slug, count in slugs.most_common()) or "there are none"
            first = next((f"; the first: {clip.reason}" for clip in skipped if clip.split == part), "")
            raise DataError(
                "too-little-data",
                f"none of the {len(clips):,} clips of {part} can be used: {reasons}{first}",
                f"`{folder / SKIPPED}` says what is wrong with each",
            )
        _write_lines(folder / clips_file(part), [_line(clip, names[part, clip.key], folder) for clip in usable])
        captions = sum(len(clip.captions) for clip in usable)
        counts[part] = {"clips": len(usable), "captions": captions, "skipped": len(clips) - len(usable)}
    if settings | {"splits": counts} != settings | {"splits": before}:
        write_json(folder / PREPARED, settings | {"splits": counts})
    return counts


def _line(clip: Clip, item: str, folder: Path) -> str:
    origin = {"source": str(clip.source), "start": clip.start, "end": clip.end, "row": clip.row}
    notes = read_notes(folder, item)
    values = {
        "key": clip.key,
        "captions": list(clip.captions),
        "item": item,
        "origin": {name: value for name, value in origin.items() if value is not None},
    }
    return json.dumps(values | ({"notes": notes} if notes else {}), ensure_ascii=False)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []


def _write_lines(file: Path, lines: Sequence[str]) -> None:
    text = "".join(line + "\n" for line in lines)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        with atomic_file(file, "w") as stream:
            stream.write(text)
