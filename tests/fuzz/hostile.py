"""Readers under attack: what every reader has to do with files that are damaged, wrong, or no files at all.

A reader may return a value or raise an `AlbertKitError` with a slug that docs/errors.md has, and a
hint. Nothing else: no other exception, no more memory than its files warrant, no waiting for ever,
nothing read or written outside of its folder, nothing run.

`make fuzz` sets ALBERTKIT_FUZZ_SECONDS: the time that all readers together are attacked for, with
fresh randomness. Without it, the quick pass tries the same few dozen variants of each every time.
"""

import multiprocessing
import os
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import damage
from child import serve
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("ALBERTKIT_FUZZ_SECONDS", 0))
# A reader that takes longer for a few kilobytes hangs
READ_SECONDS = float(os.environ.get("ALBERTKIT_FUZZ_HANG", 60))
FIRST_SECONDS = 300  # the first reading of good files: imports, compiled loops
SLUGS = frozenset(
    re.findall(
        r"^## (\S+)$",
        (Path(__file__).parents[2] / "docs/errors.md").read_text(encoding="utf-8"),
        re.M,
    )
)


@dataclass(frozen=True)
class Reader:
    """Something that reads files.

    Attributes:
        make: Writes good files into an empty folder. Runs in the child.
        read: Reads them all. Runs in the child.
        files: Globs of those that are damaged.
        twist: Damages the folder in a way of its own; says what it did. Runs here, in one of two
            cases.
        examples: Variants of the quick pass.
        writes: Whether it also writes into its folder.
        memory: Bytes that it may take however small its files are.
        tolerant: It notes what is damaged, and goes on.
        alone: Every file is read by itself, but all must be there: none is replaced by what is no
            file.
        streams: It may be given a pipe or a device, so it has to wait for the one and may read much
            of the other.
    """

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    files: tuple[str, ...] = ("**/*",)
    twist: Callable[[random.Random, Path], str] | None = None
    examples: int = 10
    writes: bool = False
    memory: int = 64 << 20
    streams: bool = False
    tolerant: bool = False
    alone: bool = False


def read_each(reads):
    """Try all; raise the last problem, or return what they returned."""
    from albertkit.errors import AlbertKitError

    problem = None
    results = []
    for read_one in reads:
        try:
            results.append(read_one())
        except AlbertKitError as error:
            problem = error
    if problem:
        raise problem
    return results


class Fuzzing:
    """Attacks readers, one after the other, in one child process.

    Args:
        folder: Folder for good and damaged files.
        readers: How many readers share the time.
    """

    def __init__(self, folder, readers):
        self.folder = folder.resolve()
        self.share = SECONDS / max(1, readers)
        self.counts = {}
        self._good_folders = {}
        self._child = None

    # --- the child --------------------------------------------------------------------------------

    def ask(self, function, folder, seconds, limited=True):
        """What a function of a test module makes of a folder: kind of outcome, details, bytes of memory it took."""
        if self._child is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            scratch = self.folder / "scratch"
            scratch.mkdir(exist_ok=True)
            self._child = context.Process(target=serve, args=(theirs, str(scratch)), daemon=True)
            self._child.start()
            theirs.close()
            seconds += FIRST_SECONDS
            print(function.__name__, folder, seconds, file=sys.__stderr__, flush=True)
        self._connection.send(
            (function.__code__.co_filename, function.__name__, str(folder), limited)
        )
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
            kind = "hang"
        except (EOFError, ConnectionResetError):
            kind = "crash"
        self.end()
        return kind, f"after {seconds:.0f} s" if kind == "hang" else "the process died", 0

    def end(self):
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._child = None

    # --- good files and bad ones ------------------------------------------------------------------

    def good(self, reader):
        """A folder of a reader's good files; a copy of it lies in `outside`, where nobody should read."""
        key = f"{reader.make.__code__.co_filename}:{reader.make.__name__}"
        if key not in self._good_folders:
            folder = self.folder / f"good-{re.sub(r'[^a-z]+', '-', key[-60:])}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            kind, details, _ = self.ask(reader.make, folder, FIRST_SECONDS, limited=False)
            assert kind == "valid", details
            self._good_folders[key] = folder
        return self._good_folders[key]

    def case(self, name, reader):
        """A folder to damage, read once undamaged."""
        case = Case(self.folder / re.sub(r"\W+", "-", name), self.good(reader), reader)
        kind, details, _ = self.ask(reader.read, case.folder, FIRST_SECONDS, limited=False)
        assert kind == "valid", (name, kind, details)
        case.restore()
        return case

    # --- attacks ----------------------------------------------------------------------------------

    def damage(self, name, reader):
        """Damage what the files hold."""
        case = self.case(name, reader)
        count = self.counts.setdefault(name, Counter())

        def attack(rng):
            case.restore()  # first: hypothesis may leave an example in the middle
            change = case.change(rng)
            note(change)
            return self._attempt(case, reader, change, count)

        if SECONDS:
            self._long(name, case, attack)
            return

        @settings(
            max_examples=reader.examples,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(st.randoms(use_true_random=False))
        def attacked(rng):
            problem = attack(rng)
            assert not problem, problem

        attacked()
        noticed = count["error"] > reader.examples / 10
        assert noticed or reader.tolerant, f"{count}: hardly anything was noticed"

    def _long(self, name, case, attack):
        """Attack until the time is up; every kind of failure once, its files kept."""
        end = time.monotonic() + self.share
        problems = {}
        while time.monotonic() < end:

            @seed(random.randrange(2**63))
            @settings(
                max_examples=25,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate,),
            )
            @given(st.randoms(use_true_random=False))
            def attacked(rng: random.Random) -> None:
                if problem := attack(rng):
                    mark = re.match(
                        r"[^:]*:( .*?(?= has no hint| took)| exception\n.*\n\w+|.*)", problem
                    )[1]
                    if mark not in problems:
                        copy = self.folder / "found" / f"{case.folder.parent.name}-{len(problems)}"
                        shutil.copytree(case.folder, copy, symlinks=True)
                        problems[mark] = f"{problem}\n  {copy}"

            attacked()
        assert not problems, f"{len(problems)} kinds of failure\n\n" + "\n\n".join(
            problems.values()
        )

    def misplace_files(self, name, reader):
        """Put what is no file, or another one, where each file is."""
        case = self.case(name, reader)
        count = self.counts.setdefault(f"{name}, no files", Counter())
        problems = []
        for file in case.files:
            for kind in PLACES[: -2 if reader.streams else None]:
                change = case.misplace(file, kind)
                if problem := self._attempt(case, reader, change, count):
                    problems.append(problem)
                case.restore()
        assert not problems, f"{len(problems)} problems\n\n" + "\n\n".join(problems)

    def _attempt(self, case, reader, change, count):
        """Read once; what is wrong with the outcome, empty if nothing is."""
        size = sum(
            file.lstat().st_size
            for file in case.folder.rglob("*")
            if file.is_file() and not file.is_symlink()
        )
        kind, details, memory = self.ask(reader.read, case.folder, READ_SECONDS)
        count["all"] += 1
        count[kind] += 1
        if kind == "error":
            slug, message, hint = details
            count[f"  {slug}"] += 1
            if slug not in SLUGS:
                return f"{change}: docs/errors.md has no {slug}"
            if not hint:
                return f"{change}: {slug} has no hint: {message[:300]}"
        elif kind != "valid":
            return f"{change}: {kind}\n{details}"
        if memory > reader.memory + 12 * size:
            return f"{change}: took {memory / 1e6:.0f} MB for files of {size / 1e6:.1f} MB"
        return case.disturbed(change)


PLACES = ("missing", "empty", "folder", "loop", "dangling", "fifo", "zeros")


class Case:
    """A folder of good files, of which some are damaged for a while.

    Args:
        place: Its parent; `outside` in it holds the same good files.
        good: Where they come from.
        reader: Says which may be damaged.
    """

    def __init__(self, parent, good, reader):
        self.folder = parent / "folder"
        self._outside = parent / "outside"
        self._good = good
        self._reader = reader
        shutil.rmtree(parent, ignore_errors=True)
        shutil.copytree(good, self.folder)
        shutil.copytree(good, self._outside)
        self.names = sorted(path.relative_to(good).as_posix() for path in good.rglob("*"))
        paths = {path for glob in reader.files for path in good.glob(glob) if path.is_file()}
        self.files = sorted(path.relative_to(good).as_posix() for path in paths)
        assert self.files
        self._around = self._listing()
        self._touched = False
        outside = ("../outside", str(self._outside))
        self.baits = (
            *outside,
            *(f"{parent}/{file}" for file in self.files[:20] for parent in outside),
        )

    def change(self, rng):
        """Damage the contents of one or two files; what was done."""
        self._touched = True
        if self._reader.twist is not None and rng.randrange(2):
            return self._reader.twist(rng, self.folder)
        changed = rng.sample(self.files, min(len(self.files), rng.choice((1, 1, 1, 2))))
        for name in changed:
            file = self.folder / name
            new = damage.content(rng, name, file.read_bytes(), self.baits)
            file.unlink()  # not truncated: the child may still have it mapped
            file.write_bytes(new)
        return f"damaged {', '.join(changed)}"

    def misplace(self, name, kind):
        """Put something else in a file's place; what was done."""
        self._touched = True
        file = self.folder / name
        file.unlink()
        if kind == "empty":
            file.write_bytes(b"")
        elif kind == "folder":
            file.mkdir()
        elif kind == "fifo":
            os.mkfifo(file)
        elif kind == "zeros":
            file.symlink_to("/dev/zero")
        elif kind == "loop":
            file.symlink_to(file.name)
        elif kind == "dangling":
            file.symlink_to("nowhere")
        return f"{name} is {kind}"

    def restore(self):
        """Put the good files back."""
        if self._touched or self._reader.writes:
            shutil.rmtree(self.folder)
            shutil.copytree(self._good, self.folder)
            self._touched = False

    def disturbed(self, change):
        """What a reader has changed that it should not have; empty if nothing."""
        if self._listing() != self._around:
            return f"{change}: something was written beside the folder"
        if not self._reader.writes and (new_names := self._new_names()):
            return f"{change}: the reader made {new_names}"
        return ""

    def _new_names(self):
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*")} - set(
            self.names
        )

    def _listing(self):
        """Names, sizes and times of everything beside the folder."""
        paths = [*self._outside.rglob("*"), *self.folder.parent.iterdir()]
        files = [
            (str(path), path.lstat().st_size, path.lstat().st_mtime_ns)
            for path in paths
            if path.is_file()
        ]
        return [*sorted(files), *sorted((str(path), 0, 0) for path in paths if not path.is_file())]


def report(counts):
    """A line for each reader: how often it was attacked, what it said."""
    lines = []
    for name, count in counts.items():
        slugs = ", ".join(
            f"{slug.strip()} {n:,}" for slug, n in count.most_common() if slug.startswith("  ")
        )
        lines.append(f"{name}: {count['all']:,}, valid {count['valid']:,}; {slugs}")
    return [*lines, f"in all {sum(count['all'] for count in counts.values()):,}"]


if sys.platform != "linux":  # /proc, address space limits
    import pytest

    pytest.skip("the fuzzing needs Linux", allow_module_level=True)
