"""What a machine does to a command: full and read-only disks, errors of files, limits, signals, a jumping clock.

Whatever happens, the command ends with a clear error or with the right bytes, and the same command again ends with them.
"""

import contextlib
import os
import random
import signal
import subprocess

import pytest
from fault_commands import differences, final_bytes

COMMANDS = ["build", "pretrain", "finetune", "encode", "encode_parquet", "prepare"]
TIMES = int(os.environ.get("ALBERTKIT_FAULTS", "12"))
pytestmark = pytest.mark.fault
each_command = pytest.mark.parametrize("name", COMMANDS)


def judge(
    bench, fault: str, command, outcome, faults: list[str], told: str, place, codes: tuple[int, ...] = ()
) -> None:
    """Note how a disturbed attempt ended, run the command again undisturbed, and compare."""
    wanted = bench.straight(command)[0]
    if outcome.code in codes and "Traceback" not in outcome.said:
        ending = f"status {outcome.code}"
    elif outcome.is_clear:
        ending = outcome.slug
    elif outcome.code == 0:
        ending = "not noticed" if differences(wanted, final_bytes(place)) else "finished"
    else:
        ending = "unclear"
    if ending in ("unclear", "not noticed"):
        faults.append(f"{told}: {ending}, status {outcome.code}, {outcome.said[-1500:]}")
    again = bench.server.run(command.arguments(place))
    found = differences(wanted, final_bytes(place)) if again.code == 0 else [again.said[-1500:]]
    if fault.startswith("SIG"):  # a signal in the last save makes one more update and its checkpoint
        found = [name for name in found if "/checkpoints/" not in name]
    bench.table.add(fault, command.name, ending if not found else f"{ending}, then other")
    if found:
        faults.append(f"{told}, {ending}: again: status {again.code}, {found}")


@each_command
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "short"])
def test_files_that_fail(bench, name, error):
    command, rng, faults = getattr(bench.inputs, name), random.Random(name + error), []
    moments = bench.straight(command)[1]
    for _ in range(TIMES):
        place, at = bench.place(), rng.randint(1, len(moments))
        outcome = bench.server.run(command.arguments(place), root=str(place), at=at, do=error)
        judge(bench, f"files: {error}", command, outcome, faults, f"{error} at {moments[at - 1]}", place)
    assert not faults, "\n\n".join(faults)


@each_command
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signals(bench, name, number):
    command, rng, faults = getattr(bench.inputs, name), random.Random(name + number), []
    _, moments, seconds = bench.straight(command)
    for turn in range(TIMES):
        place = bench.place()
        if turn % 2:
            at = rng.randint(1, len(moments))
            told = f"{number} at {moments[at - 1]}"
            outcome = bench.server.run(command.arguments(place), root=str(place), at=at, do=number)
        else:
            told = f"{number} at a random time"
            attempt = bench.server.start(command.arguments(place))
            if not attempt.is_over(rng.uniform(0.05, seconds)):
                attempt.send(getattr(signal, number))
            outcome = attempt.wait()
        codes = ({"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}[number],)
        judge(bench, number, command, outcome, faults, told, place, codes)
    assert not faults, "\n\n".join(faults)


@each_command
def test_files_may_not_grow(bench, name):
    """The kernel's limit on the size of a file: compiled writers meet it, too."""
    command, rng, faults = getattr(bench.inputs, name), random.Random(name), []
    largest = max(len(content) for content in bench.straight(command)[0].values())
    for _ in range(TIMES):
        place, size = bench.place(), int(largest * rng.uniform(0.001, 1.1))
        outcome = bench.server.run(command.arguments(place), file_size=size)
        judge(bench, "limit of file size", command, outcome, faults, f"{size:,} bytes", place)
    assert not faults, "\n\n".join(faults)


@each_command
def test_memory_is_short(bench, name):
    """From the beginning, and from a moment in the middle."""
    command, rng, faults = getattr(bench.inputs, name), random.Random(name), []
    moments = bench.straight(command)[1]
    for turn in range(TIMES):
        place, at = bench.place(), rng.randint(1, len(moments)) * (turn % 2)
        more = 1 if at else int(1e5 * 2 ** rng.uniform(0, 8))  # in the middle there is room that was taken before
        plan = {"root": str(place), "at": at, "do": "memory"} if at else {}
        try:
            outcome = bench.server.start(command.arguments(place), memory=more, **plan).wait(limit=30)
        except AssertionError as hanging:
            # Python's own: `Thread.start` waits for ever for a thread that found no memory for its first line. It was killed.
            if "threading.py" not in str(hanging) or " in start" not in str(hanging):
                raise
            again = bench.server.run(command.arguments(place))
            if again.code or differences(bench.straight(command)[0], final_bytes(place)):
                faults.append(f"killed while Python waited for a thread: again: {again.said[-1500:]}")
            continue
        told = f"{more:,} bytes more{f', from {moments[at - 1]}' if at else ''}"
        fault = "limit of memory, in the middle" if at else "limit of memory"
        judge(bench, fault, command, outcome, faults, told, place, _aborted(outcome))
    assert not faults, "\n\n".join(faults)


def _aborted(outcome) -> tuple[int, ...]:
    """The status of a library in C++ that aborts where it gets no memory: nobody can say more than it does."""
    said = ("std::bad_alloc", "cannot allocate memory for thread-local data")
    return (
        (outcome.code,) if outcome.code in (-signal.SIGABRT, 127) and any(word in outcome.said for word in said) else ()
    )


@contextlib.contextmanager
def mounted(place, size: int):
    """A file system in memory of so many bytes."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def remount(place, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


@each_command
def test_full_disk(bench, name):
    command, rng, faults = getattr(bench.inputs, name), random.Random(name), []
    whole = sum(len(content) + 4096 for content in bench.straight(command)[0].values())
    for _ in range(TIMES // 2):
        place, size = bench.place(), int(whole * rng.uniform(0.02, 0.9)) // 4096 * 4096 + 4096
        with mounted(place, size):
            outcome = bench.server.run(command.arguments(place))
            remount(place, "size=1g")
            judge(bench, "full disk", command, outcome, faults, f"{size:,} bytes", place)
    assert not faults, "\n\n".join(faults)


@each_command
def test_read_only(bench, name):
    """From the beginning, and when half is done; nothing is changed then, and it goes on when it may be written again."""
    command, faults = getattr(bench.inputs, name), []
    moments = bench.straight(command)[1]
    for at in (0, len(moments) // 2):
        place = bench.place()
        with mounted(place, 1 << 30):
            if at:
                bench.server.run(command.arguments(place), root=str(place), at=at)
            before = final_bytes(place)
            remount(place, "ro")
            outcome = bench.server.run(command.arguments(place))
            assert not differences(before, final_bytes(place))
            remount(place, "rw")
            judge(bench, "read-only", command, outcome, faults, f"killed at {at}", place)
            assert outcome.code != 0
    assert not faults, "\n\n".join(faults)


@each_command
@pytest.mark.parametrize("jump", [-1e6, 1e9])
def test_clock_jumps(bench, name, jump):
    command, faults = getattr(bench.inputs, name), []
    moments = bench.straight(command)[1]
    for at in (0, len(moments) // 2):
        place = bench.place()
        outcome = bench.server.run(command.arguments(place), root=str(place), at=at, clock=jump)
        if outcome.code == -signal.SIGKILL:
            outcome = bench.server.run(command.arguments(place), clock=jump)
        judge(bench, "clock jumps", command, outcome, faults, f"killed at {at}", place)
    assert not faults, "\n\n".join(faults)
