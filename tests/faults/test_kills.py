"""kill -9 at every kind of moment, and at random times: the same command again ends with the bytes of an undisturbed run."""

import os
import random
import re
import signal

import pytest
from fault_commands import differences, final_bytes

KILLS = int(os.environ.get("ALBERTKIT_KILLS", "100"))
_AGAIN = 0.5  # of the attempts after a kill are killed, too


def _kinds_of_moments(moments: list[str]) -> list[tuple[int, str]]:
    """Where to kill: the first and the last moment of each kind, before it and, of a write, in its middle."""
    places: dict[str, list[int]] = {}
    for number, moment in enumerate(moments, 1):
        kind = re.sub(r"-[0-9a-f]{8}\b|[0-9a-f]{64}|\d+", "#", moment)
        places.setdefault(kind, []).append(number)
    chosen = []
    for kind, numbers in places.items():
        for number in {numbers[0], numbers[-1]}:
            chosen.append((number, "kill"))
            if kind.startswith("write"):
                chosen.append((number, "half"))
    return chosen


def kill_again_and_again(bench, command, kills: int, seed: int) -> list[str]:
    """Kill a command so often, let it end after each few kills, and say where it ended otherwise than undisturbed."""
    wanted, moments, seconds = bench.straight(command)
    rng = random.Random(seed)
    systematic = _kinds_of_moments(moments)
    rng.shuffle(systematic)
    faults, done = [], 0
    while done < kills:
        place, told = bench.place(), []
        while True:
            arguments = command.arguments(place)
            if told and (done >= kills or rng.random() > _AGAIN):
                plan, after, name = {}, None, "undisturbed"
            elif rng.random() < 0.5:
                plan, after, name = {}, rng.uniform(0, 1.1 * seconds), "random time"
            else:
                at, do = (
                    systematic.pop() if systematic else (rng.randint(1, len(moments)), rng.choice(["kill", "half"]))
                )
                plan, after, name = {"root": str(place), "at": at, "do": do}, None, f"{do} {moments[at - 1]}"
            outcome = bench.server.run(arguments, kill_after=after, **plan)
            told.append(name)
            if outcome.code == -signal.SIGKILL:
                done += 1
                bench.table.add("kill -9, random times" if after else "kill -9, at moments", command.name, "killed")
                continue
            found = differences(wanted, final_bytes(place))
            if outcome.code and (found or not outcome.is_clear):  # that all is there already may be said
                found = [outcome.said[-1500:], *found]
            bench.table.add("kill -9, end", command.name, "other" if found else "same bytes")
            if found:
                faults.append(f"{' | '.join(told)}: status {outcome.code}, {found}")
            break
    return faults


OTHERS = ["tokenizer_train", "tokenizer_extend", "convert", "export", "predict", "embed_train", "caption_train"]
COMMANDS = ["build", "pretrain", "finetune", "encode", "encode_parquet", "prepare"]


@pytest.mark.fault
@pytest.mark.parametrize("name", COMMANDS)
def test_kill_9_a_hundred_times(bench, name):
    faults = kill_again_and_again(bench, getattr(bench.inputs, name), KILLS, seed=COMMANDS.index(name))
    assert not faults, "\n\n".join(faults)


@pytest.mark.fault
@pytest.mark.parametrize("name", OTHERS)
def test_kill_9_others(bench, name):
    faults = kill_again_and_again(bench, getattr(bench.inputs, name), max(1, KILLS // 5), seed=OTHERS.index(name))
    assert not faults, "\n\n".join(faults)
