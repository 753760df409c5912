"""What others do to a command: a second one on the same folder, inputs that change or go, bits that flip."""

import os
import random
import shutil
import signal

import pytest
from fault_commands import TIMES, differences, final_bytes


def two_at_once(bench, command, at):
    """Stop one in its middle, run another on the same folder, let the first go on: the other's slug, and what differs."""
    expected, moments, _ = bench.straight(command)
    folder = bench.new_folder()
    first = bench.server.start(command.arguments(folder), root=str(folder), at=at, do="stop")
    first.wait_until_stopped()
    second = bench.server.run(command.arguments(folder))
    first.send(signal.SIGCONT)
    ended = first.wait()
    event = f"two at once, the first at {moments[at - 1]}: "
    faults = []
    if not second.is_clear and second.code:
        faults.append(f"{event}the other ended with status {second.code}: {second.output[-1500:]}")
    if (ended.code and not ended.is_clear) or ended.code == second.code != 0:
        faults.append(f"{event}the first ended with status {ended.code}: {ended.output[-1500:]}")
    if problems := differences(expected, final_bytes(folder)):
        faults.append(f"{event}{second.slug}, {ended.slug}: {problems}")
    return second.slug or "finished", faults


@pytest.mark.fault
def test_two_at_once(bench, name, command, faults):
    rng = random.Random(name)
    for _ in range(TIMES):
        slug, problems = two_at_once(
            bench, command, rng.randint(1, len(bench.straight(command)[1]))
        )
        bench.table.add("two at once", command.name, "other" if problems else slug)
        faults += problems


def flip(file, rng):
    """Flip a bit of a file; where."""
    content = bytearray(file.read_bytes())
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    status = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return f"{file.name}, bit {bit}"


@pytest.mark.fault
def test_a_bit_flips_in_what_a_killed_one_left(bench, name, command, faults):
    """The same command again says so, or ends with the right bytes: because it makes anew, or does not use, what it was."""
    rng = random.Random(name)
    expected, moments, _ = bench.straight(command)
    for _ in range(3 * TIMES):
        folder = bench.new_folder()
        at = rng.randint(len(moments) // 3, len(moments))
        bench.server.run(command.arguments(folder), root=str(folder), at=at)
        files = [
            file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size
        ]
        # A finished file of vectors has no checksum
        files = [file for file in files if file.parent != folder]
        if not files:
            continue
        event = f"killed at {moments[at - 1]}, {flip(rng.choice(files), rng)}"
        outcome = bench.server.run(command.arguments(folder))
        problems = differences(expected, final_bytes(folder)) if outcome.code == 0 else []
        ending = "same bytes" if outcome.code == 0 else outcome.slug
        if problems and bench.server.run(["doctor", folder]).slug == "corrupt":
            problems = []
            ending = "said by doctor"
        if problems or (outcome.code and not outcome.is_clear):
            faults.append(f"{event}: status {outcome.code}, {problems or outcome.output[-1500:]}")
            ending = "not noticed" if problems else "unclear"
        bench.table.add("a flipped bit", command.name, ending)


@pytest.mark.fault
@pytest.mark.parametrize("change", ["other", "same size", "gone"])
def test_inputs_change_between_kill_and_resume(bench, name, command, faults, change):
    expected, moments, _ = bench.straight(command)
    inputs = {
        "build": bench.inputs.texts / "wiki_00",
        "pretrain": bench.inputs.store / "manifest.json",
        "finetune": bench.inputs.pairs / "train.tsv",
        "encode": bench.inputs.lines,
        "encode_parquet": bench.inputs.lines,
        "prepare": bench.inputs.clips,
    }
    file = inputs[name]
    backup = file.with_name(f".kept-{file.name}")
    for part in (0.5, 0.8):
        folder = bench.new_folder()
        at = int(part * len(moments))
        bench.server.run(command.arguments(folder), root=str(folder), at=at)
        shutil.copy2(file, backup)
        try:
            content = backup.read_bytes()
            if change == "gone":
                file.unlink()
            elif change == "other":
                lines = content.splitlines(keepends=True)
                file.write_bytes(b"".join(lines[:-1] if name != "pretrain" else [*lines, b"\n"]))
            else:
                for before, now in (
                    (b" the ", b" teh "),
                    (b"part ", b"trap "),
                    (b'"sha256": "', b'"sha265": "'),
                ):
                    content = content.replace(before, now)
                file.write_bytes(content)
            outcome = bench.server.run(command.arguments(folder))
        finally:
            os.replace(backup, file)
        ending = (
            outcome.slug if outcome.is_clear else "finished" if outcome.code == 0 else "unclear"
        )
        bench.table.add(f"input {change}", command.name, ending)
        if ending == "unclear":
            faults.append(
                f"killed at {moments[at - 1]}: status {outcome.code}, {outcome.output[-1500:]}"
            )
        if (
            ending == "finished"
            and name != "prepare"
            and not differences(expected, final_bytes(folder))
        ):
            faults.append(f"killed at {moments[at - 1]}: the change was not noticed")
        if ending == "finished" and name not in ("prepare",):
            faults.append(f"killed at {moments[at - 1]}: went on with another input")
