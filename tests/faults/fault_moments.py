"""Moments of a process: everything that it is about to do to the files below a folder. At one of them something happens to it.

Python's audit events tell of opening, renaming, removing; `os.fsync` and what files opened for
writing write are replaced. What compiled libraries write (safetensors, SQLite, Arrow) is a moment
only where it begins; kills at random times and limits of the kernel reach the rest.
"""

import builtins
import errno
import io
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

# Audit event -> places of the paths among its arguments.
_EVENTS = {
    "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.truncate": (0,),
    "os.link": (0, 1), "os.symlink": (0, 1), "os.chmod": (0,), "sqlite3.connect": (0,), "shutil.rmtree": (0,),
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def limit_memory(extra_bytes):
    """This process gets so many bytes more than it has, and no others."""
    size = extra_bytes + resource.getpagesize() * int(
        Path("/proc/self/statm").read_text().split()[0]
    )
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


class Moments:
    """Counts moments, and makes the one happen that was asked for.

    Args:
        root: Only files below it count.
        at: Number of the moment, from 1; 0 for none.
        do: What happens there: "kill" (before it), "half" (a write is cut in half, then the kill),
            the name of an error ("EIO", "ENOSPC", …), "short" (every write from there on takes a
            part of its bytes only), a signal ("SIGTERM", …), "stop" (SIGSTOP), or "memory" (from
            there on `memory` bytes more and no others).
        reads: Whether opening for reading counts, too.
        memory: Bytes for "memory".
    """

    def __init__(self, root, at=0, do="kill", reads=False, memory=0):
        self.root = os.path.abspath(root)
        self.at = at
        self.do = do
        self.reads = reads
        self.memory = memory
        self.moments = []
        self._is_busy = False
        self._short = False
        self.failing = 0  # number of the error of every write from now on

    def install(self):
        """From here on this process is watched; there is no way back."""
        sys.addaudithook(self._audit)
        fsync = os.fsync
        plain_open = builtins.open
        plain_io_open = io.open

        def watched_fsync(descriptor):
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            self.moment("fsync", os.readlink(f"/proc/self/fd/{number}"))
            fsync(descriptor)

        def watched_open(file, mode="r", buffering=-1, *arguments, **options):
            plain = (
                isinstance(file, str | os.PathLike)
                and any(sign in mode for sign in "wxa+")
                and not arguments
            )
            if not plain or not self._counts(file) or buffering == 0 or "opener" in options:
                return plain_open(file, mode, buffering, *arguments, **options)
            raw = _WatchedFile(self, file, mode.replace("b", "").replace("t", ""))
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return buffered
            text = io.TextIOWrapper(buffered, **options)
            text.mode = mode  # type: ignore[misc]
            return text

        os.fsync = watched_fsync
        builtins.open = watched_open  # type: ignore[assignment]
        io.open = watched_open if io.open is plain_io_open else io.open  # type: ignore[assignment]

    def moment(self, kind, *paths, partly=None):
        """Something is about to happen to files.

        Args:
            kind: What.
            paths: To which.
            partly: Does half of it.
        """
        if self._is_busy or not any(self._counts(path) for path in paths):
            return
        self.moments.append(f"{kind} {' '.join(self._name(path) for path in paths)}")
        if len(self.moments) != self.at:
            return
        self._is_busy = True
        try:
            self._happen(kind, paths, partly)
        finally:
            self._is_busy = False

    def _happen(self, kind, paths, partly):
        if self.do in ("kill", "half"):
            if self.do == "half" and partly is not None:
                partly()
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.do == "memory":
            limit_memory(self.memory)
        elif self.do == "short":
            self._short = True
        elif self.do.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, self.do))
        elif kind == "write":
            self.failing = getattr(errno, self.do)
        else:
            number = getattr(errno, self.do)
            raise OSError(
                number,
                os.strerror(number),
                None if kind in ("write", "fsync") else os.fspath(paths[0]),
            )

    def shortened(self, size):
        """How many of so many bytes a write takes."""
        return max(1, size // 3) if self._short else size

    def _audit(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and (
                self.reads or (flags or 0) & _WRITING
            ):
                self.moment("open", path)
        elif event in _EVENTS:
            self.moment(event.removeprefix("os."), *(arguments[index] for index in _EVENTS[event]))

    def _counts(self, path):
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        text = os.fsdecode(path)
        # rmtree names what it removes by descriptor
        return not text.startswith("/") or text.startswith(self.root)

    def _name(self, path):
        return os.fsdecode(path).removeprefix(self.root).lstrip("/")


class _WatchedFile(io.FileIO):
    def __init__(self, moments, file, mode):
        super().__init__(os.fspath(file), mode)
        self._moments = moments
        self._path = os.path.abspath(os.fsdecode(file))

    def write(self, data):  # type: ignore[override]
        view = memoryview(data).cast("B")
        before = FileWrite(super().write, view)
        moments = self._moments
        if moments.failing:
            raise OSError(moments.failing, os.strerror(moments.failing), self._path)
        moments.moment("write", self._path, partly=before.half)
        if moments.failing:  # as the kernel does: a part is written, and the next call fails
            return super().write(view[: max(1, len(view) // 2)])
        return super().write(view[: moments.shortened(len(view))])


class FileWrite:
    """A write that can be done by half."""

    def __init__(self, write, view):
        self._write = write
        self._view = view

    def half(self):
        """The first half."""
        self._write(self._view[: len(self._view) // 2])


def bytes_below(folder):
    """Every file below a folder, by its path in it."""
    return {
        str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()
    }


def in_a_fork(root, work, at=0, do="kill"):
    """Do work in a process of its own, disturbed at a moment.

    Args:
        root: As `Moments`.
        work: What is done.
        at, do: As `Moments`.

    Returns:
        Its status, below 0 the signal that ended it, and its moments, if it was not disturbed.
    """
    moments_file = root.with_name(f"{root.name}.moments")
    process = os.fork()
    if not process:
        moments = Moments(str(root), at, do)
        moments.install()
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            moments.root = "\0"
            moments_file.write_text(json.dumps(moments.moments))
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return status, json.loads(moments_file.read_text()) if not at else []


def ends_the_same_when_killed(folder, work, kills):
    """Kill work at moments from the first to the last, each time in a new folder, do it again, and compare the bytes.

    Args:
        folder: Where the folders of the attempts come to lie.
        work: Does the work in a folder.
        kills: How often.

    Returns:
        What undisturbed work leaves.
    """
    status, moments = in_a_fork(folder / "whole", lambda: work(folder / "whole"))
    expected = bytes_below(folder / "whole")
    assert status == 0
    assert len(moments) >= kills
    for turn in range(kills):
        at = 1 + turn * (len(moments) - 1) // (kills - 1)
        copy = folder / f"killed-{turn}"
        assert in_a_fork(copy, lambda copy=copy: work(copy), at)[0] == -signal.SIGKILL, moments[
            at - 1
        ]
        work(copy)
        assert bytes_below(copy) == expected, moments[at - 1]
    return expected
