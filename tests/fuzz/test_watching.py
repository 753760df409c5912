"""Readers that do what no reader may: each is noticed."""

import os
import pickle
import subprocess
import threading
from collections import Counter

import hostile
import pytest
from hostile import Reader

from albertkit.errors import DataError


def make(folder):
    (folder / "a.txt").write_text("text\n")


def read(folder):
    return (folder / "a.txt").read_text()


def raises(folder):
    raise KeyError("a")


def no_slug(folder):
    raise DataError("no-such-slug", "a fact", "a hint")


def no_hint(folder):
    raise DataError("not-found", "a fact")


def blames_the_machine(folder):
    raise MemoryError


def takes_memory(folder):
    return len(bytearray(b"x") * 200_000_000)


def asks_for_memory(folder):
    return len(bytearray(1 << 40))


def reads_outside(folder):
    return (folder / "../outside/a.txt").read_text()


def writes_outside(folder):
    (folder.parent / "b.txt").write_text("")


def leaves_a_file(folder):
    (folder / "half-written").write_text("")


def runs_something(folder):
    subprocess.run(["true"])


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def unpickles(folder):
    pickle.loads(pickle.dumps(_Evil()))


def hangs(folder):
    threading.Event().wait()


def crashes(folder):
    os.abort()


NOTICED = {
    raises: "exception", no_slug: "docs/errors.md has no no-such-slug", no_hint: "has no hint", blames_the_machine: "exception",
    takes_memory: "took 2", asks_for_memory: "exception", reads_outside: "escape", writes_outside: "escape",
    leaves_a_file: "the reader made", runs_something: "escape", unpickles: "the reader made",
}  # fmt: skip


def outcome(fuzzing, reader):
    case = fuzzing.case("watching", Reader(make, read))
    return fuzzing._attempt(case, Reader(make, reader), "tried", Counter())


@pytest.mark.parametrize("reader", NOTICED, ids=lambda reader: reader.__name__)
def test_what_no_reader_may_do_is_noticed(reader, fuzzing):
    assert NOTICED[reader] in outcome(fuzzing, reader)


def test_a_good_reader_is_left_alone(fuzzing):
    assert outcome(fuzzing, read) == ""


@pytest.mark.slow
@pytest.mark.parametrize("reader", [hangs, crashes])
def test_a_hang_and_a_crash_are_outlived(reader, fuzzing, monkeypatch):
    monkeypatch.setattr(hostile, "READ_SECONDS", 5)
    assert reader.__name__.removesuffix("s").removesuffix("e") in outcome(fuzzing, reader)
    assert outcome(fuzzing, read) == ""
