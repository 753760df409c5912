"""Errors that a user can act on.

Every error that reaches a user carries a slug (a heading in `docs/errors.md`), the fact with the
value and where it came from, and one hint with something that works. The command line prints them
without a traceback.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from albertkit.printable import escape_control_characters

OnError = Literal["stop", "skip"]  # what is done at a row that cannot be used
_MAX_COMPARED_NAMES = 1000  # names of a folder that a misspelt one is compared with
# Two letters at least: `C:/` is a drive of Windows
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
# Words in a hint: a table may have a thousand columns, a folder a thousand files
_MAX_LISTED_NAMES = 40


class AlbertKitError(Exception):
    """A problem stated as fact and hint.

    Args:
        slug: Short stable name, lower-case with dashes; a heading in `docs/errors.md`.
        message: The fact, with the offending value and its source. No full stop.
        hint: One thing to do that works, usually a command. Empty if there is none.
    """

    exit_code = 2  # the user's mistake

    def __init__(self, slug: str, message: str, hint: str = "") -> None:
        self.slug = slug
        self.message = escape_control_characters(message)
        self.hint = escape_control_characters(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        # Further lines are set in: they may be of a file, and look like another error or its hint.
        message, hint = (text.replace("\n", "\n    ") for text in (self.message, self.hint))
        text = f"error[{self.slug}]: {message}"
        return f"{text}\n\nhint: {hint}" if hint else text

    def __reduce__(self) -> tuple:  # worker processes hand errors to their parent by pickle
        return type(self), (self.slug, self.message, self.hint)


class ConfigError(AlbertKitError, ValueError):
    """A configuration or an argument that cannot work."""


class DataError(AlbertKitError, ValueError):
    """Input that cannot be read, or is not what it should be."""


class CheckpointError(AlbertKitError, ValueError):
    """A model, tokenizer or run folder that does not fit, or an output that exists already."""


class MachineError(AlbertKitError, RuntimeError):
    """The machine's fault or ours: disk full, a worker that died, a loss that became NaN."""

    exit_code = 1


class MissingExtraError(AlbertKitError, ImportError):
    """A package, compiler or program that is not installed."""

    @classmethod
    def for_package(cls, package: str, extra: str, purpose: str) -> "MissingExtraError":
        """Return the error for `package`, which `pip install 'albertkit[extra]'` would bring."""
        # The tested versions: of the current folder, else of the clone that this is.
        file_of_clone = Path(__file__).parents[2] / "constraints.txt"
        constraints = ""
        if Path("constraints.txt").exists():
            constraints = "-c constraints.txt "
        elif file_of_clone.exists():
            constraints = f"-c '{file_of_clone}' "
        return cls(
            "not-installed",
            f"{purpose} needs the package `{package}`, which is not installed",
            f"pip install {constraints}'albertkit[{extra}]'",
        )


@contextmanager
def requires_package(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Say of a package that is imported in this block and is not installed which extra brings it.

    Raises:
        MissingExtraError: not-installed.
    """
    try:
        yield
    except ImportError:
        raise MissingExtraError.for_package(package, extra, purpose) from None


def first_line(error: Exception) -> str:
    """Return the first line of what another library says of an error, or the kind of the error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def suggest_name(word: str, names: Iterable[str]) -> str:
    """Return the known word closest to a misspelt one, as a hint, or the list of them, at most `_MAX_LISTED_NAMES`."""
    names = sorted(names)
    if close := closest_name(word, names):
        return f"did you mean `{close}`?"
    return f"known: {format_list(names, _MAX_LISTED_NAMES)}"


def closest_name(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word closest to a misspelt one; None if all are less alike than `cutoff`, of 1."""
    return next(iter(get_close_matches(str(word), list(names), n=1, cutoff=cutoff)), None)


def format_list(names: Sequence[str], max_names: int = 8) -> str:
    """Return names as a list in a sentence, at most `max_names` of them, and how many more there are: "a, b and 3 more"."""
    remainder = f" and {len(names) - max_names:,} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + remainder


def restore_url(path: str | os.PathLike[str]) -> str | None:
    """Return the address that a path is (`gs://bucket/run`, of which pathlib makes `gs:/bucket/run`); None for a path."""
    address = _ADDRESS.fullmatch(os.fspath(path))
    return f"{address[1]}://{address[2]}" if address else None


def suggest_existing_path(path: str | os.PathLike[str], default_hint: str) -> str:
    """Return a hint for a path where nothing is: the existing one that is probably meant; `default_hint` if no name is near."""
    missing_path = Path(path)
    if address := restore_url(path):
        return f"this is read from this machine only: copy `{address}` here first"
    try:
        if missing_path.exists():
            return default_hint
        parent = next(
            (ancestor for ancestor in missing_path.parents if ancestor.is_dir()), Path(".")
        )
        wrong, *remaining_parts = missing_path.relative_to(parent).parts
        close = closest_name(wrong, sorted(os.listdir(parent))[:_MAX_COMPARED_NAMES], 0.7)
    except (OSError, ValueError):  # a folder that cannot be read; a zero byte in the name
        return default_hint
    if close is None:
        return default_hint
    suggested_path = parent.joinpath(close, *remaining_parts)
    return f"did you mean `{suggested_path if suggested_path.exists() else parent / close}`?"


def explain_os_error(error: BaseException) -> AlbertKitError | None:
    """State an error of the operating system, or want of memory, as one of ours; None if we cannot explain it."""
    if isinstance(error, AlbertKitError):
        return error
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and is_out_of_memory(error)
    ):
        fact = str(error).strip().partition("\n")[0] or "there is not enough memory"
        hint = (
            "compute less at once: a smaller --batch-tokens (and a larger --accumulation), --micro-batch or --batch-size, or "
            "--gradient-checkpointing"
        )
        return MachineError("out-of-memory", fact, hint)
    if isinstance(error, OSError):
        quoted_path = f" `{error.filename}`" if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            output_path = error.filename2 or error.filename  # of a copy the second
            fact = "no space left on the device" + (
                f" while writing `{output_path}`" if output_path else ""
            )
            hint = "free some space and run the same command again, a training with --resume; what was finished is kept"
            return MachineError("disk-full", fact, hint)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return DataError(
                "no-permission",
                f"no permission to use{quoted_path}",
                "choose a folder you own, or change its permissions",
            )
        if error.errno == errno.ENOENT:
            hint = "check the path; globs need quotes"
            hint = (
                suggest_existing_path(error.filename, hint)
                if isinstance(error.filename, str)
                else hint
            )
            return DataError("not-found", f"no such file or folder:{quoted_path}", hint)
        if error.errno == errno.EISDIR:
            return DataError(
                "wrong-kind",
                f"a file was expected, this is a folder:{quoted_path}",
                "name the file",
            )
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            return DataError(
                "wrong-kind",
                f"a folder was expected, this is a file:{quoted_path}",
                "name a folder",
            )
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return DataError(
                "not-found",
                f"no file or folder can be called{quoted_path[:300]}: {error.strerror}",
                "check the path",
            )
        # The words of numpy's `tofile`
        if error.errno is not None or "requested and" in str(error):
            fact = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
            if quoted_path:
                fact += f":{quoted_path}"
            hint = "look at the disk and its limits (dmesg, ulimit -a); the same command then goes on, a training with --resume"
            return MachineError("input-output", fact, hint)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch, the interpreter or safetensors says that memory is short."""
    message = str(error)
    return type(error).__name__ == "OutOfMemoryError" or any(
        words in message
        for words in (
            "can't allocate memory",
            "Cannot allocate memory",
            "not enough memory",
            "can't start new thread",
        )
    )
