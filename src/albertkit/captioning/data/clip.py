"""A clip: where its pictures are, and what people say of it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One example of captioning.

    Attributes:
        key: Its name, the same in every file about it.
        source: A file of video, of features (`.npy`, `.safetensors`), or a TSV of frames.
        start: Where it begins in the source, in seconds. Default: at its beginning.
        end: Where it ends, in seconds. Default: at its end.
        row: Of a TSV of frames: the number of its line.
        captions: What is said of it; none when it is only to be captioned.
    """

    key: str
    source: Path
    start: float | None = None
    end: float | None = None
    row: int | None = None
    captions: tuple[str, ...] = ()
