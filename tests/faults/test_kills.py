"""kill -9 at every kind of moment, and at random times: the same command again ends with the bytes of an undisturbed run."""

import os
import random
import re
import signal

import pytest
from fault_commands import COMMANDS, differences, final_bytes

KILLS = int(os.environ.get("ALBERTKIT_KILLS", "100"))
_AGAIN = 0.5  # of the attempts after a kill are killed, too


def _kinds_of_moments(moments):
    """Where to kill: the first and the last moment of each kind, before it and, of a write, in its middle."""
    indices = {}
    for number, moment in enumerate(moments, 1):
        kind = re.sub(r"-[0-9a-f]{8}\b|[0-9a-f]{64}|\d+", "#", moment)
        indices.setdefault(kind, []).append(number)
    chosen = []
    for kind, numbers in indices.items():
        for number in {numbers[0], numbers[-1]}:
            chosen.append((number, "kill"))
            if kind.startswith("write"):
                chosen.append((number, "half"))
    return chosen


def kill_again_and_again(bench, command, kills, seed):
    """Kill a command so often, let it end after each few kills, and say where it ended otherwise than undisturbed."""
    expected, moments, seconds = bench.straight(command)
    rng = random.Random(seed)
    systematic = _kinds_of_moments(moments)
    rng.shuffle(systematic)
    faults = []
    num_kills = 0
    while num_kills < kills:
        folder = bench.new_folder()
        events = []
        while True:
            arguments = command.arguments(folder)
            if events and (num_kills >= kills or rng.random() > _AGAIN):
                plan = {}
                after = None
                name = "undisturbed"
            elif rng.random() < 0.5:
                plan = {}
                after = rng.uniform(0, 1.1 * seconds)
                name = "random time"
            else:
                at, do = (
                    systematic.pop()
                    if systematic
                    else (rng.randint(1, len(moments)), rng.choice(["kill", "half"]))
                )
                plan = {"root": str(folder), "at": at, "do": do}
                after = None
                name = f"{do} {moments[at - 1]}"
            outcome = bench.server.run(arguments, kill_after=after, **plan)
            events.append(name)
            if outcome.code == -signal.SIGKILL:
                num_kills += 1
                bench.table.add(
                    "kill -9, random times" if after else "kill -9, at moments",
                    command.name,
                    "killed",
                )
                continue
            problems = differences(expected, final_bytes(folder))
            # That all is there already may be said
            if outcome.code and (problems or not outcome.is_clear):
                problems = [outcome.output[-1500:], *problems]
            bench.table.add("kill -9, end", command.name, "other" if problems else "same bytes")
            if problems:
                faults.append(f"{' | '.join(events)}: status {outcome.code}, {problems}")
            break
    return faults


OTHERS = "tokenizer_train tokenizer_extend convert export predict embed_train caption_train".split()


@pytest.mark.fault
def test_kill_9_a_hundred_times(bench, name, command, faults):
    faults += kill_again_and_again(bench, command, KILLS, seed=COMMANDS.index(name))


@pytest.mark.fault
@pytest.mark.parametrize("name", OTHERS)
def test_kill_9_others(bench, name, command, faults):
    faults += kill_again_and_again(bench, command, max(1, KILLS // 5), seed=OTHERS.index(name))
