"""Features that somebody else has computed: `.npy`, or `.safetensors` with one tensor."""

from pathlib import Path

import numpy as np

from albertkit.captioning.data.items import PARSING
from albertkit.errors import DataError


def read_features(file: Path) -> np.ndarray:
    """Read the features of a clip.

    Args:
        file: `.npy` or `.safetensors` of floats [M, D]: M visual tokens, or frames, in their order.

    Returns:
        float16 [M, D].

    Raises:
        DataError: not-found, broken-features, features-not-finite. OSError: what the operating system says.
    """
    if not file.is_file():
        raise DataError("not-found", f"no such file: `{file}`", "check the path")
    values = _read(file)
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind != "f":
        raise DataError(
            "broken-features",
            f"`{file}` holds {values.dtype} {list(values.shape)}",
            "features of a clip are floats [tokens, width]",
        )
    with np.errstate(over="ignore"):
        features = values.astype(np.float16)
    if not np.isfinite(features).all():
        raise DataError(
            "features-not-finite", f"`{file}` holds numbers that are not finite in float16, or above 65,504",
            "normalise the features, or make them again",
        )  # fmt: skip
    return features


def _read(file: Path) -> np.ndarray:
    hint = "make it again with np.save or safetensors"
    try:
        if file.suffix.lower() == ".npy":
            if not _begins_with(file, np.lib.format.MAGIC_PREFIX):
                raise DataError("broken-features", f"`{file}` is no .npy file", hint)
            with PARSING:
                # Mapped first: a header may promise more than the file holds, and memory would be taken for it.
                return np.array(np.load(file, mmap_mode="r", allow_pickle=False))
        from safetensors import safe_open

        with safe_open(file, "pt") as tensors:  # "np" has no bfloat16
            names = list(tensors.keys())
            if len(names) != 1:
                raise DataError("broken-features", f"`{file}` holds {len(names)} tensors", "write one tensor a file")
            return tensors.get_tensor(names[0]).float().numpy()
    except (DataError, OSError, MemoryError):  # the machine's fault is not the file's: nothing is left out for it
        raise
    except Exception as error:  # what a damaged file raises is not declared by either library
        raise DataError("broken-features", f"`{file}` cannot be read: {error}", hint) from None


def _begins_with(file: Path, magic: bytes) -> bool:
    with open(file, "rb") as stream:
        return stream.read(len(magic)) == magic
