"""The frames or features of a clip, whatever it is a part of, and the hash of what they are made from."""

import base64
import binascii
import io
from pathlib import Path

import numpy as np

from albertkit.captioning.data.clip import Clip
from albertkit.captioning.data.items import PARSING
from albertkit.captioning.data.tsv import TsvFile
from albertkit.captioning.video.decode import Frames, sample_frames
from albertkit.captioning.video.sampling import FrameSampling, Squares
from albertkit.errors import DataError, MissingExtraError
from albertkit.files import plain_file, sha256_bytes, sha256_file


def read_features(file: Path) -> np.ndarray:
    """Read the features of a clip.

    Args:
        file: `.npy` or `.safetensors` of floats [M, D]: M visual tokens, or frames, in their order.

    Returns:
        float16 [M, D].
    """
    values = _read(plain_file(file))
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind != "f":
        fact = f"`{file}` holds {values.dtype} {list(values.shape)}"
        raise DataError("bad-file", fact, "features of a clip are floats [tokens, width]")
    with np.errstate(over="ignore"):
        features = values.astype(np.float16)
    if not np.isfinite(features).all():
        fact = f"`{file}` holds numbers that are not finite in float16, or above 65,504"
        raise DataError("bad-file", fact, "normalise the features, or make them again")
    return features


def _read(file: Path) -> np.ndarray:
    hint = "make it again with np.save or safetensors"
    try:
        if file.suffix.lower() == ".npy":
            if not _begins_with(file, np.lib.format.MAGIC_PREFIX):
                raise DataError("bad-file", f"`{file}` is not a .npy file", hint)
            with PARSING:
                # Mapped first: a header may promise more than the file holds, and memory would be taken for it.
                return np.array(np.load(file, mmap_mode="r", allow_pickle=False))
        from safetensors import safe_open

        with safe_open(file, "pt") as tensors:  # "np" has no bfloat16
            names = list(tensors.keys())
            if len(names) != 1:
                raise DataError("bad-file", f"`{file}` holds {len(names)} tensors", "write one tensor a file")
            return tensors.get_tensor(names[0]).float().numpy()
    except (DataError, OSError, MemoryError):  # the machine's fault is not the file's: nothing is left out for it
        raise
    except Exception as error:  # what a damaged file raises is not declared by either library
        raise DataError("bad-file", f"`{file}` cannot be read: {error}", hint) from None


def _begins_with(file: Path, magic: bytes) -> bool:
    with open(file, "rb") as stream:
        return stream.read(len(magic)) == magic


def frames_of(clip: Clip, sampling: FrameSampling) -> Frames:
    """Decode the frames of a clip.

    Returns:
        Frames with `pixels`, uint8 [T, S, S, 3], and `times`, [T] seconds.
    """
    if clip.row is None:
        return sample_frames(clip.source, sampling, clip.start, clip.end)
    columns = TsvFile.opened(clip.source).row(clip.row)[1:]
    pictures = columns[1:] if columns[:1] and columns[0].startswith(b"{") else columns
    where = f"`{clip.source}`, row {clip.row:,} (`{clip.key}`)"
    if 1 < len(pictures) < sampling.num_frames or not pictures:
        fact = f"{where} holds {len(pictures)} frames, {sampling.num_frames} are wanted"
        hint = f"take --frames {max(len(pictures), 1)}, or the videos themselves; no frame is shown twice"
        raise DataError("bad-row", fact, hint)
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
        reason = "it is empty" if not column else f"it is not an image: {error}"
        raise DataError(
            "bad-row", f"{where}: {reason}", "write the row again from its video, or leave it out"
        ) from None
    return squares.of(av.VideoFrame.from_ndarray(pixels, "rgb24"))


def content_hash(clip: Clip) -> str:
    """Hash what the visual side of a clip is made from: the bytes of its file, or the pictures of its row."""
    if clip.row is None:
        return sha256_file(clip.source)
    columns = TsvFile.opened(clip.source).row(clip.row)[1:]
    return sha256_bytes(b"\t".join(columns))
