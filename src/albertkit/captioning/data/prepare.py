"""`prepare`: clips to features, or frames, on the disk, once for each content; killed anywhere, it goes on where it was."""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from albertkit.captioning.backbones.backbone import Backbone
from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.items import item_shape, read_notes, remove_unfinished
from albertkit.captioning.data.making import make_items, name_items
from albertkit.captioning.data.prepared import PREPARED, clips_file
from albertkit.captioning.data.progress import PrepareProgress
from albertkit.captioning.data.recipe import Recipe
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.errors import ConfigError, DataError
from albertkit.files import atomic_file, only_writer, read_json, write_json
from albertkit.tasks.faults import Fault

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
class PrepareReport:
    """What `prepare` did.

    Attributes:
        out: The folder.
        kind: "features" or "frames".
        clips: Usable ones, by split.
        captions: Of these.
        tokens: Visual tokens of a clip; None where clips differ.
        computed: Items made by this call; clips of the same content share one.
        reused: Items that were there.
        skipped: Clips that could not be used.
        seconds: Of this call.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"out": str(self.out)}


def prepare(
    clips: Mapping[str, Sequence[Clip]] | Sequence[Clip],
    out: str | Path,
    backbone: Backbone | None,
    sampling: FrameSampling | None = None,
    *,
    max_tokens: int = 196,
    train_backbone: bool = False,
    batch_size: int = 8,
    workers: int | None = None,
    on_error: Literal["stop", "skip"] = "skip",
    progress: bool = False,
    left_out: Sequence[Fault] = (),
) -> PrepareReport:
    """Bring the visual side of clips to the disk.

    An item is named by the content of its file, the span, the sampling and the backbone: called again, it makes only what is
    missing or has changed; killed at any moment and called again, it ends with the same bytes. Splits that are in the folder
    already and are not among `clips` stay.

    Args:
        clips: By split, or those of train.
        out: The folder: `items/`, `clips-SPLIT.jsonl`, `skipped.jsonl` and, written last, `prepared.json`.
        backbone: On its device. None for clips that are files of features.
        sampling: Which frames, and how large; needed with a backbone.
        max_tokens: Visual tokens of a clip at most; more are averaged with their neighbours (`pool_grid`).
        train_backbone: Keep the frames, so that the backbone can be trained along; one without weights of its own always is.
        batch_size: Clips that go through the backbone at once.
        workers: Threads that decode. Default: one a core, 8 at most.
        on_error: Clips that cannot be read: skip and name them, or stop at the first.
        progress: Show it on stderr.
        left_out: Rows of the data that are no clips, to be listed in `skipped.jsonl`, too.

    Raises:
        ConfigError: bad-value, conflicting-options.
        DataError: duplicate-clip, other-preparation, no-usable-clips; with on_error "stop" what reading a clip raises.
        MachineError: features-not-finite, disk-full, in-use.
    """
    began = time.perf_counter()
    for name, value in (("batch_size", batch_size), ("workers", workers), ("max_tokens", max_tokens)):
        if value is not None and value < 1:
            raise ConfigError("bad-value", f"{name} is {value}, it must be at least 1", "leave it out for the default")
    splits = {name: list(part) for name, part in (clips if isinstance(clips, Mapping) else {"train": clips}).items()}
    folder, recipe = Path(out), Recipe.of(backbone, sampling, max_tokens, train_backbone)
    _check(splits, recipe)
    with only_writer(folder):
        return _prepare(splits, folder, recipe, batch_size, workers, on_error == "stop", progress, began, left_out)


def _prepare(
    splits: Mapping[str, Sequence[Clip]],
    folder: Path,
    recipe: Recipe,
    batch_size: int,
    workers: int | None,
    stop: bool,
    progress: bool,
    began: float,
    left_out: Sequence[Fault],
) -> PrepareReport:
    settings = recipe.settings()
    before = _splits_before(folder, settings)
    remove_unfinished(folder)
    threads = workers or min(8, os.cpu_count() or 1)
    each = [(part, clip) for part, clips in splits.items() for clip in clips]
    with PrepareProgress("looking at files", len(each), progress) as display:
        names, failed = name_items(recipe, each, settings, display, workers=threads, stop=stop)
    items = {names[part, clip.key]: clip for part, clip in each if (part, clip.key) in names}
    with PrepareProgress("preparing", len(items), progress) as display:
        made, broken = make_items(recipe, items, folder, display, batch_size=batch_size, workers=threads, stop=stop)
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
    counts = _write(folder, settings, splits, names, skipped, before, left_out)
    return PrepareReport(
        folder, recipe.kind, {name: counts[name]["clips"] for name in splits},
        sum(counts[name]["captions"] for name in splits), recipe.grid and recipe.grid.num_tokens,
        made, len(items) - made - len(unmade), skipped, round(time.perf_counter() - began, 3),
    )  # fmt: skip


def _check(splits: Mapping[str, Sequence[Clip]], recipe: Recipe) -> None:
    for part, clips in splits.items():
        if not part.replace("-", "").replace("_", "").isalnum():
            raise ConfigError("bad-value", f"`{part}` cannot name a split", "use letters, digits, - and _")
        seen = Counter(clip.key for clip in clips)
        if seen and seen.most_common(1)[0][1] > 1:
            raise DataError(
                "duplicate-clip",
                f"two clips of {part} have the key `{seen.most_common(1)[0][0]}`",
                "give each its own key",
            )
        for clip in clips:
            recipe.check(clip)


def _splits_before(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What the folder holds, if it was made in the same way."""
    if not (folder / PREPARED).exists():
        return {}
    before = read_json(folder / PREPARED, "prepared clips")
    differing = [name for name in settings if before.get(name) != settings[name]]
    if settings["backbone_fingerprint"] and "backbone_fingerprint" not in differing:
        differing = [name for name in differing if name != "backbone"]  # the same one, moved
    if differing:
        shown = [f"{name} was {before.get(name)}, is {settings[name]}" for name in differing if name in _SHORT]
        shown += [name for name in differing if name not in _SHORT]
        raise DataError(
            "other-preparation", f"`{folder}` was prepared otherwise: {'; '.join(shown)}", "choose another --out"
        )
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
            "wrong-width", f"`{items[name].source}` is {shape[1]} wide, most are {usual}",
            "features of one model have one width",
        )
        for name, shape in shapes.items()
        if shape[1] != usual
    }  # fmt: skip


def _write(
    folder: Path,
    settings: dict[str, Any],
    splits: Mapping[str, Sequence[Clip]],
    names: Mapping[tuple[str, str], str],
    skipped: Sequence[Skipped],
    before: dict[str, Any],
    left_out: Sequence[Fault],
) -> dict[str, Any]:
    """The lists of clips and, last, `prepared.json`; the counts of all splits."""
    unusable = {(clip.split, clip.key) for clip in skipped}
    of_rows = next(iter(splits)) if len(splits) == 1 else ""  # the data does not say which split a bad row is of
    rows = [Skipped(of_rows, fault.where, "bad-row", f"`{fault.file}`: {fault.reason}") for fault in left_out]
    listed = [json.dumps(asdict(clip), ensure_ascii=False) for clip in (*rows, *skipped)]
    try:
        kept = [line for line in _lines(folder / SKIPPED) if json.loads(line)["split"] not in (*splits, of_rows)]
    except (ValueError, KeyError, TypeError) as error:  # bytes that are not UTF-8 are a ValueError, too
        raise DataError(
            "broken-json", f"`{folder / SKIPPED}` is not what `prepare` writes: {error!r}",
            "delete that file; it only lists the clips that were left out",
        ) from None  # fmt: skip
    _write_lines(folder / SKIPPED, kept + listed)
    counts = dict(before)
    for part, clips in splits.items():
        usable = [clip for clip in clips if (part, clip.key) not in unusable]
        if not usable:
            slugs = Counter(clip.slug for clip in skipped if clip.split == part)
            reasons = ", ".join(f"{count:,} {slug}" for slug, count in slugs.most_common()) or "there are none"
            first = next((f"; the first: {clip.reason}" for clip in skipped if clip.split == part), "")
            raise DataError(
                "no-usable-clips", f"none of the {len(clips):,} clips of {part} can be used: {reasons}{first}",
                f"`{folder / SKIPPED}` says what is wrong with each",
            )  # fmt: skip
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
