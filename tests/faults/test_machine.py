"""What a machine does to a command: full and read-only disks, errors of files, limits, signals, a jumping clock.

Whatever happens, the command ends with a clear error or with the right bytes, and the same command
again ends with them.
"""

import contextlib
import os
import random
import signal
import subprocess

import pytest
from fault_commands import TIMES, differences, final_bytes

pytestmark = pytest.mark.fault


def judge(bench, fault, command, outcome, faults, event, folder, codes=()):
    """Note how a disturbed attempt ended, run the command again undisturbed, and compare."""
    expected = bench.straight(command)[0]
    if outcome.code in codes and "Traceback" not in outcome.output:
        ending = f"status {outcome.code}"
    elif outcome.is_clear:
        ending = outcome.slug
    elif outcome.code == 0:
        ending = "not noticed" if differences(expected, final_bytes(folder)) else "finished"
    else:
        ending = "unclear"
    if ending in ("unclear", "not noticed"):
        faults.append(f"{event}: {ending}, status {outcome.code}, {outcome.output[-1500:]}")
    second_outcome = bench.server.run(command.arguments(folder))
    problems = (
        differences(expected, final_bytes(folder))
        if second_outcome.code == 0
        else [second_outcome.output[-1500:]]
    )
    # A signal in the last save makes one more update and its checkpoint
    if fault.startswith("SIG"):
        problems = [name for name in problems if "/checkpoints/" not in name]
    bench.table.add(fault, command.name, ending if not problems else f"{ending}, then other")
    if problems:
        faults.append(f"{event}, {ending}: again: status {second_outcome.code}, {problems}")


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "short"])
def test_files_that_fail(bench, command, faults, error):
    rng = random.Random(command.name + error)
    moments = bench.straight(command)[1]
    for _ in range(TIMES):
        folder = bench.new_folder()
        at = rng.randint(1, len(moments))
        outcome = bench.server.run(command.arguments(folder), root=str(folder), at=at, do=error)
        judge(
            bench,
            f"files: {error}",
            command,
            outcome,
            faults,
            f"{error} at {moments[at - 1]}",
            folder,
        )


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signals(bench, command, faults, number):
    rng = random.Random(command.name + number)
    _, moments, seconds = bench.straight(command)
    for turn in range(TIMES):
        folder = bench.new_folder()
        if turn % 2:
            at = rng.randint(1, len(moments))
            event = f"{number} at {moments[at - 1]}"
            outcome = bench.server.run(
                command.arguments(folder), root=str(folder), at=at, do=number
            )
        else:
            event = f"{number} at a random time"
            attempt = bench.server.start(command.arguments(folder))
            if not attempt.is_over(rng.uniform(0.05, seconds)):
                attempt.send(getattr(signal, number))
            outcome = attempt.wait()
        codes = ({"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}[number],)
        judge(bench, number, command, outcome, faults, event, folder, codes)


def test_files_may_not_grow(bench, command, faults):
    """The kernel's limit on the size of a file: compiled writers meet it, too."""
    rng = random.Random(command.name)
    largest = max(len(content) for content in bench.straight(command)[0].values())
    for _ in range(TIMES):
        folder = bench.new_folder()
        size = int(largest * rng.uniform(0.001, 1.1))
        outcome = bench.server.run(command.arguments(folder), file_size=size)
        judge(bench, "limit of file size", command, outcome, faults, f"{size:,} bytes", folder)


def test_memory_is_short(bench, command, faults):
    """From the beginning, and from a moment in the middle."""
    rng = random.Random(command.name)
    moments = bench.straight(command)[1]
    for turn in range(TIMES):
        folder = bench.new_folder()
        at = rng.randint(1, len(moments)) * (turn % 2)
        # In the middle there is room that was taken before
        extra_bytes = 1 if at else int(1e5 * 2 ** rng.uniform(0, 8))
        plan = {"root": str(folder), "at": at, "do": "memory"} if at else {}
        try:
            outcome = bench.server.start(
                command.arguments(folder), memory=extra_bytes, **plan
            ).wait(limit=30)
        except AssertionError as hanging:
            # Python's own: `Thread.start` waits for ever for a thread that found no memory for its
            # first line. It was killed.
            if "threading.py" not in str(hanging) or " in start" not in str(hanging):
                raise
            second_outcome = bench.server.run(command.arguments(folder))
            if second_outcome.code or differences(bench.straight(command)[0], final_bytes(folder)):
                faults.append(
                    f"killed while Python waited for a thread: again: {second_outcome.output[-1500:]}"
                )
            continue
        event = f"{extra_bytes:,} bytes more{f', from {moments[at - 1]}' if at else ''}"
        fault = "limit of memory, in the middle" if at else "limit of memory"
        judge(bench, fault, command, outcome, faults, event, folder, _aborted(outcome))


def _aborted(outcome):
    """The status of a library in C++ that aborts where it gets no memory: nobody can say more than it does."""
    messages = ("std::bad_alloc", "cannot allocate memory for thread-local data")
    return (
        (outcome.code,)
        if outcome.code in (-signal.SIGABRT, 127)
        and any(word in outcome.output for word in messages)
        else ()
    )


@contextlib.contextmanager
def mounted(folder, size):
    """A file system in memory of so many bytes."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    process = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder],
        capture_output=True,
        check=False,
    )
    if process.returncode:
        pytest.skip(f"cannot mount: {process.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def test_full_disk(bench, command, faults):
    rng = random.Random(command.name)
    total_bytes = sum(len(content) + 4096 for content in bench.straight(command)[0].values())
    for _ in range(TIMES // 2):
        folder = bench.new_folder()
        size = int(total_bytes * rng.uniform(0.02, 0.9)) // 4096 * 4096 + 4096
        with mounted(folder, size):
            outcome = bench.server.run(command.arguments(folder))
            remount(folder, "size=1g")
            judge(bench, "full disk", command, outcome, faults, f"{size:,} bytes", folder)


def test_read_only(bench, command, faults):
    """From the beginning, and when half is done; nothing is changed then, and it goes on when it may be written again."""
    moments = bench.straight(command)[1]
    for at in (0, len(moments) // 2):
        folder = bench.new_folder()
        with mounted(folder, 1 << 30):
            if at:
                bench.server.run(command.arguments(folder), root=str(folder), at=at)
            before = final_bytes(folder)
            remount(folder, "ro")
            outcome = bench.server.run(command.arguments(folder))
            assert not differences(before, final_bytes(folder))
            remount(folder, "rw")
            judge(bench, "read-only", command, outcome, faults, f"killed at {at}", folder)
            assert outcome.code != 0


@pytest.mark.parametrize("jump", [-1e6, 1e9])
def test_clock_jumps(bench, command, faults, jump):
    moments = bench.straight(command)[1]
    for at in (0, len(moments) // 2):
        folder = bench.new_folder()
        outcome = bench.server.run(command.arguments(folder), root=str(folder), at=at, clock=jump)
        if outcome.code == -signal.SIGKILL:
            outcome = bench.server.run(command.arguments(folder), clock=jump)
        judge(bench, "clock jumps", command, outcome, faults, f"killed at {at}", folder)
