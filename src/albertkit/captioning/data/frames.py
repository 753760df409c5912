"""The frames of a clip, whatever it is a part of, and the hash of what they are made from."""

import base64
import binascii
import hashlib
import io

import numpy as np

from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.tsv import TsvFile
from albertkit.captioning.video.decode import Frames, sample_frames
from albertkit.captioning.video.sampling import FrameSampling
from albertkit.captioning.video.square import Squares
from albertkit.errors import DataError, MissingExtraError
from albertkit.files import sha256_file


def frames_of(clip: Clip, sampling: FrameSampling) -> Frames:
    """Decode the frames of a clip.

    Args:
        clip: A part of a video, or a row of a TSV of frames: key, JSON, one base64 JPEG a column. A row of one picture is a
            still: it is every frame. The times of a row are not known: NaN.
        sampling: Which frames, and how large.

    Returns:
        Frames with `pixels`, uint8 [T, S, S, 3], and `times`, [T] seconds.

    Raises:
        DataError: too-few-frames, broken-frame, no-row, wrong-index; what `sample_frames` raises.
        MissingExtraError: missing-extra.
    """
    if clip.row is None:
        return sample_frames(clip.source, sampling, clip.start, clip.end)
    columns = TsvFile.opened(clip.source).row(clip.row)[1:]
    pictures = columns[1:] if columns[:1] and columns[0].startswith(b"{") else columns
    where = f"`{clip.source}`, row {clip.row:,} (`{clip.key}`)"
    if 1 < len(pictures) < sampling.num_frames or not pictures:
        raise DataError(
            "too-few-frames", f"{where} holds {len(pictures)} frames, {sampling.num_frames} are wanted",
            f"take --frames {max(len(pictures), 1)}, or the videos themselves; no frame is shown twice",
        )  # fmt: skip
    places = sampling.places(len(pictures)).tolist()
    squares = Squares(sampling.size)
    shown = {
        place: _picture(pictures[place], squares, f"{where}: frame {place} of {len(pictures)}") for place in set(places)
    }
    times = np.full(len(places), np.nan)
    return Frames(np.stack([shown[place] for place in places]), times)


def _picture(column: bytes, squares: Squares, where: str) -> np.ndarray:
    try:
        import av
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError.of(error.name or "pillow", "caption", "reading frames") from None
    try:
        with Image.open(io.BytesIO(base64.b64decode(column, validate=True))) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "it is empty" if not column else f"it is no picture: {error}"
        raise DataError(
            "broken-frame", f"{where}: {reason}", "write the row again from its video, or leave it out"
        ) from None
    return squares.of(av.VideoFrame.from_ndarray(pixels, "rgb24"))


def content_hash(clip: Clip) -> str:
    """Sha256 over what the visual side of a clip is made from: the bytes of its file, or the pictures of its row.

    Raises:
        DataError: no-row, wrong-index. OSError: what opening a file raises.
    """
    if clip.row is None:
        return sha256_file(clip.source)
    columns = TsvFile.opened(clip.source).row(clip.row)[1:]
    return hashlib.sha256(b"\t".join(columns)).hexdigest()
