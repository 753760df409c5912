"""The process of inference's peers: order of results, choice of settings, and what a process uses while it waits."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from albertkit.benchmarks import inference_peers, latency_peer, latency_peer_work
from albertkit.benchmarks.inference_peers import IdleMeter, Peers


@pytest.mark.parametrize("by_length", [False, True])
def test_peers_states_are_in_the_order_given(by_length: bool) -> None:
    sequences = [[7] * 3, [8] * 9, [9], [10] * 4, [11] * 2]
    work = {"sequences": sequences, "batch": 2, "by_length": by_length, "prepared": False}
    widths = []

    def infer(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        widths.append(ids.shape[1])
        assert (mask.sum(1) == (ids != 0).sum(1)).all()
        return np.stack([ids[:, 0], mask.sum(1)], 1)

    states = latency_peer_work.doing(work, infer)()
    assert states.tolist() == [[7, 3], [8, 9], [9, 1], [10, 4], [11, 2]]
    assert widths == ([9, 3, 1] if by_length else [9, 4, 2])


def test_the_fastest_candidate_that_works_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    work = {"sequences": [[5]], "batch": 1, "by_length": False, "prepared": True}
    clock = [0.0]  # seconds pass only when a candidate runs
    monkeypatch.setattr(latency_peer.time, "perf_counter", lambda: clock[0])

    def candidate(result: str, seconds: float = 0.0, error: Exception | None = None):  # type: ignore[no-untyped-def]
        def run() -> str:
            clock[0] += seconds
            return result

        def make(work: dict):  # type: ignore[no-untyped-def]
            if error:
                raise error
            return run

        return make

    slow, quick = candidate("slow", 0.05), candidate("quick", 0.01)
    broken = candidate("", error=ValueError("no\nsuch operator"))
    runs, trials = latency_peer.choose({"slow": slow, "quick": quick, "broken": broken}, {"w": work})
    assert runs["w"]() == "quick"
    found = {"broken": "ValueError: no", "slow": pytest.approx(50), "quick": pytest.approx(10)}
    assert trials["w"] == {"chosen": "quick", "trial_ms": found}
    with pytest.raises(RuntimeError, match="ValueError: no"):
        latency_peer.choose({"broken": broken}, {"w": work})


def test_the_peers_script_needs_nothing_to_start() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(latency_peer.__file__).parent)!r}); import latency_peer"
    code += "; assert not {'numpy', 'torch', 'albertkit', 'transformers'} & sys.modules.keys()"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


def test_who_computes_while_waiting_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_peers, "SETTLE", 0.0)

    class Busy:
        """Peers that compute ten seconds during everything."""

        clock = 0.0

        def processor_seconds(self) -> float:
            self.clock += 10
            return self.clock

        def seconds(self, name: str, work: str, calls: int) -> list[float]:
            assert (name, work) == ("one", "1x8")
            return [3.0, 1.0, 2.0][:calls]

    meter = IdleMeter(Busy())  # type: ignore[arg-type]
    assert meter.theirs("one", "1x8", 3)() == 2.0  # the median, by their own clock
    assert meter.ours(lambda: None, 3)() >= 0
    shares = meter.shares()
    assert shares["peers while ours runs"] > 1  # ten seconds in much less than ten
    idle = IdleMeter(Busy())  # type: ignore[arg-type]
    Busy.processor_seconds = lambda self: 10.0  # type: ignore[method-assign]
    idle.ours(lambda: None)()
    assert idle.shares()["peers while ours runs"] == 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not say what a process uses")
def test_a_process_says_what_it_used() -> None:
    peers = object.__new__(Peers)
    busy = [sys.executable, "-c", "print(sum(range(30_000_000)), flush=True); input()"]
    with subprocess.Popen(busy, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peers.process:
        assert peers.process.stdout is not None
        peers.process.stdout.readline()  # it has computed, and waits
        used = peers.processor_seconds()
        assert used > 0
        assert peers.processor_seconds() == used
        peers.process.communicate("\n")
