"""Clips of one shape that moves, and the one caption that says what it is, how fast it goes and where to.

A caption is right only if colour, shape, speed and direction are. Some combinations of the four are
never trained on; only a captioner that has learned the four apart gets those right.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from albertkit.captioning.clips import FEATURE_ENDINGS, Clip
from albertkit.errors import CheckpointError, ConfigError, MissingExtraError
from albertkit.files import atomic_folder, read_json, write_json, write_lines

COLOURS = {
    "red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 230), "yellow": (235, 215, 50), "purple": (150, 60, 200),
    "orange": (245, 140, 30), "white": (245, 245, 245), "cyan": (60, 210, 220),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross", "ring")
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
SPEEDS = {"slowly": 14.0, "quickly": 44.0}  # pixels from the first frame to the last
SIDE, FRAMES, RATE = 96, 16, 8  # pixels, frames, frames a second
HELD_OUT = 64  # of the 320 combinations
# Of all captions
WORDS = ("a", "an", "moves", "to", "the", *COLOURS, *SHAPES, *DIRECTIONS, *SPEEDS)
_SETTINGS = "combinations.json"


@dataclass(frozen=True)
class Motion:
    """Content of a clip: one of 8 colours x 5 shapes x 4 directions x 2 speeds."""

    colour: str
    shape: str
    direction: str
    speed: str

    @property
    def caption(self) -> str:
        """The right caption, for example "an orange ring moves slowly to the left"."""
        article = "an" if self.colour == "orange" else "a"
        phrase = (
            f"to the {self.direction}" if self.direction in ("left", "right") else self.direction
        )
        return f"{article} {self.colour} {self.shape} moves {self.speed} {phrase}"


def motions(seed: int) -> tuple[list[Motion], list[Motion]]:
    """The combinations that are trained on, and those that are held out, drawn from a seed."""
    every = [Motion(*values) for values in product(COLOURS, SHAPES, DIRECTIONS, SPEEDS)]
    order = np.random.default_rng(seed).permutation(len(every))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    return [every[n] for n in training], [every[n] for n in held_out]


def draw_frames(motion: Motion, generator: np.random.Generator) -> np.ndarray:
    """uint8 [16, 96, 96, 3]: the shape from a random place, of random size and shade, on a dark ground, with noise."""
    radius = generator.uniform(12, 16)
    step = (
        np.array(DIRECTIONS[motion.direction]) * SPEEDS[motion.speed] * generator.uniform(0.9, 1.1)
    )
    low = radius + 1 + np.maximum(-step, 0)
    high = SIDE - radius - 2 - np.maximum(step, 0)
    start = generator.uniform(low, high)
    # One grey: a tint of its own would tell each clip from all others
    ground = np.full(3, generator.integers(0, 40))
    colour = np.clip(np.array(COLOURS[motion.colour]) + generator.integers(-10, 11, 3), 0, 255)
    frames = np.empty((FRAMES, SIDE, SIDE, 3), np.uint8)
    for number in range(FRAMES):
        centre = start + step * number / (FRAMES - 1)
        coverage = _coverage(motion.shape, centre, radius)[..., None]
        picture = ground + (colour - ground) * coverage + generator.normal(0, 4, (SIDE, SIDE, 3))
        frames[number] = np.clip(picture, 0, 255)
    return frames


def _coverage(shape: str, centre: np.ndarray, radius: float) -> np.ndarray:
    """[96, 96], how much of each pixel the shape covers, from 0 to 1: one pixel of soft edge."""
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float64)
    x, y = x - centre[0], y - centre[1]
    distance = np.hypot(x, y)
    if shape == "circle":
        edge = radius - distance
    elif shape == "ring":
        edge = radius / 5 - np.abs(distance - radius * 0.8)
    elif shape == "square":
        edge = radius * 0.9 - np.maximum(np.abs(x), np.abs(y))
    elif shape == "triangle":
        edge = np.minimum(radius * 0.8 - y, (y + radius) / 2 - np.abs(x)) / 1.1
    else:
        arm = radius / 3
        edge = np.maximum(
            np.minimum(arm - np.abs(x), radius - np.abs(y)),
            np.minimum(arm - np.abs(y), radius - np.abs(x)),
        )
    return np.clip(edge + 0.5, 0, 1)


def make_clips(folder: str | Path, num_clips: int = 2000, seed: int = 0) -> dict[str, int]:
    """Write clips as H.264 files with manifests, as people have them: FOLDER/{train,dev,test}.jsonl and FOLDER/videos/.

    Seven tenths are for training and one for dev, of the same combinations; two tenths for the
    test, of held-out ones.
    """
    if num_clips < 20:
        raise ConfigError(
            "bad-value",
            f"num_clips is {num_clips}, it must be at least 20",
            "2000 is a good number",
        )
    if Path(folder).exists():
        raise ConfigError("exists", f"`{folder}` is there", "choose another folder, or delete it")
    trained, held_out = motions(seed)
    counts = {"dev": num_clips // 10, "test": num_clips // 5}
    counts = {"train": num_clips - sum(counts.values()), **counts}
    with atomic_folder(folder) as temporary:
        (temporary / "videos").mkdir()
        for split, count in counts.items():
            pool = held_out if split == "test" else trained
            clips = list(_split(temporary, split, count, pool, seed))
            write_clip_manifest(temporary / f"{split}.jsonl", clips)
        held_out_captions = [motion.caption for motion in held_out]
        write_json(
            temporary / _SETTINGS, {"clips": num_clips, "seed": seed, "held_out": held_out_captions}
        )
    return counts


def write_clip_manifest(path: str | Path, clips: Iterable[Clip]) -> None:
    """Write clips, each with a key of its own, as a manifest, whole or not at all."""
    target = Path(path)
    records = []
    for clip in clips:
        kind = "video" if clip.row is None else "frames"
        if clip.source.suffix.lower() in FEATURE_ENDINGS:
            kind = "features"
        values = {
            kind: Path(os.path.relpath(clip.source, target.parent)).as_posix(),
            "row": clip.row,
            "key": clip.key,
            "start": clip.start,
            "end": clip.end,
            "captions": list(clip.captions),
        }
        records.append({name: value for name, value in values.items() if value is not None})
    write_lines(target, records)


def check_clips(folder: str | Path, num_clips: int, seed: int) -> None:
    """Compare clips that exist with those that are asked for."""
    stored, requested = (
        read_json(Path(folder) / _SETTINGS, "combinations"),
        {"clips": num_clips, "seed": seed},
    )
    differing = [
        f"{name} was {stored.get(name, 'not recorded')}, now {value}"
        for name, value in requested.items()
        if stored.get(name) != value
    ]
    if differing:
        raise CheckpointError(
            "changed",
            f"`{folder}` was made with other settings: {'; '.join(differing)}",
            "name another folder, or ask for what it holds",
        )


def _split(folder: Path, split: str, count: int, pool: list[Motion], seed: int) -> Iterator[Clip]:
    number_of_split = ("train", "dev", "test").index(split)
    for number in range(count):
        generator = np.random.default_rng([seed, number_of_split, number])
        motion = pool[number % len(pool)]
        file = folder / "videos" / f"{split}-{number:04}.mp4"
        write_video(file, draw_frames(motion, generator))
        yield Clip(key=file.stem, source=file, captions=(motion.caption,))


def write_video(file: Path, frames: np.ndarray) -> None:
    """Write frames uint8 [T, height, width, 3] as H.264, 8 frames a second."""
    try:
        import av
    except ImportError:
        raise MissingExtraError.for_package("av", "caption", "making videos") from None
    with av.open(str(file), "w") as container:
        stream = container.add_stream(
            "libx264", rate=RATE, options={"crf": "18", "preset": "ultrafast"}
        )
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1  # the same bytes on every machine
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
