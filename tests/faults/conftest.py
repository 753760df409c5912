"""A warm server and small inputs for all tests of faults, and the table of what happened."""

import os
import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import ClassVar

import pytest
from fault_commands import COMMANDS, Inputs, final_bytes, fresh
from fault_server import Server


class Table:
    """Counts outcomes by kind of fault and command."""

    rows: ClassVar[dict[tuple[str, str], Counter[str]]] = defaultdict(Counter)

    def add(self, fault, command, outcome, times=1):
        self.rows[fault, command][outcome] += times


class Bench:
    """A server, inputs, and what every command leaves when nothing disturbs it.

    Attributes:
        inputs: Of the commands.
        server: Runs them.
        table: Of outcomes.
    """

    def __init__(self, server, inputs, scratch):
        self.server = server
        self.inputs = inputs
        self.table = Table()
        self._scratch = scratch
        self._straight = {}

    def new_folder(self):
        """An empty folder for an attempt, the same name every time: some outputs hold their path."""
        return fresh(self._scratch / "place")

    def straight(self, command):
        """Of an undisturbed run: what it leaves, its moments, seconds."""
        if command.name not in self._straight:
            folder = self.new_folder()
            outcome = self.server.run(command.arguments(folder), root=str(folder))
            assert outcome.code == 0, outcome.output
            self._straight[command.name] = final_bytes(folder), outcome.moments, outcome.seconds
        return self._straight[command.name]


def _scratch_root():
    """In memory where that is possible: thousands of flushes take nothing there."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None


@pytest.fixture(scope="session")
def bench(data):
    scratch = Path(tempfile.mkdtemp(prefix="albertkit-faults-", dir=_scratch_root()))
    for name in ("inputs", "logs"):
        (scratch / name).mkdir()
    inputs = Inputs(data, scratch / "inputs")
    # SentencePiece's trainer leaves a thread, which no fork has: where it was once, it never ends
    # in a fork.
    training, *other_commands = inputs.first()
    Server(scratch / "logs", [training]).close()
    server = Server(scratch / "logs", other_commands)
    try:
        yield Bench(server, inputs, scratch)
    finally:
        server.close()
        shutil.rmtree(scratch)


@pytest.fixture(params=COMMANDS)
def name(request):
    return request.param


@pytest.fixture
def command(bench, name):
    """The command of a name."""
    return getattr(bench.inputs, name)


@pytest.fixture
def faults():
    """What went wrong; the test fails at its end if anything did."""
    faults = []
    yield faults
    assert not faults, "\n\n".join(faults)


def pytest_terminal_summary(terminalreporter):
    if not Table.rows:
        return
    terminalreporter.section("faults")
    wide = max(len(command) for _, command in Table.rows)
    for (fault, command), outcomes in sorted(Table.rows.items()):
        summary = ", ".join(f"{outcome} {times}" for outcome, times in sorted(outcomes.items()))
        terminalreporter.write_line(
            f"{fault:<24} {command:<{wide}} {sum(outcomes.values()):>5}  {summary}"
        )
