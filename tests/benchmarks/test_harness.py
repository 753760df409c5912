import json

import pytest

from albertkit.benchmarks.harness import Contender, Peer, compare, interleave, missing, versions
from albertkit.benchmarks.showing import show
from albertkit.errors import ConfigError


class Clock:
    """Time that passes only when a contender works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, seconds: list[float], work: float = 10.0) -> Contender:
        remaining = iter(seconds)

        def run() -> None:
            self.calls.append(name)
            self.now += next(remaining)

        return Contender(name, run, work)


def test_everybody_runs_once_a_round_in_turn() -> None:
    clock = Clock()
    contenders = [clock.contender(name, [1.0] * 3) for name in "ABC"]
    interleave(contenders, rounds=2, clock=clock)
    assert clock.calls == list("ABCABCABC")


def test_the_warm_up_is_not_counted() -> None:
    clock = Clock()
    seconds = interleave([clock.contender("A", [100.0, 1.0, 2.0])], rounds=2, clock=clock)
    assert seconds == {"A": [1.0, 2.0]}


def test_who_starts_cold_every_time_is_not_warmed_up() -> None:
    clock = Clock()
    cold = Contender("C", lambda: clock.calls.append("C"), 1.0, warm_up=False)
    interleave([clock.contender("A", [1.0] * 3), cold], rounds=2, clock=clock)
    assert clock.calls == list("AACAC")


def test_a_contender_may_time_itself() -> None:
    own = Contender("A", lambda: 0.25, 1.0)
    assert interleave([own], rounds=2, clock=Clock()) == {"A": [0.25, 0.25]}


def test_ratio_is_the_median_within_rounds() -> None:
    clock = Clock()
    # The machine slows down tenfold from round to round; within each round we are 2, 4 and 3 times as fast.
    ours = clock.contender("us", [0.0, 1.0, 10.0, 100.0])
    peer = clock.contender("them", [0.0, 2.0, 40.0, 300.0])
    row = compare("r", "MB/s", ours, [peer], interleave([ours, peer], rounds=3, clock=clock))
    assert row.ratio == {"them": pytest.approx(3.0)}
    assert row.ours == pytest.approx(1.0)  # median of 10, 1 and 0.1
    assert row.peers == {"them": pytest.approx(0.25)}
    assert row.best == {"ours": pytest.approx(10.0), "them": pytest.approx(5.0)}
    assert row.spread["ours"] == pytest.approx(9.9)


def test_ratio_counts_work_not_runs() -> None:
    clock = Clock()
    ours = clock.contender("us", [1.0, 1.0], work=30.0)
    peer = clock.contender("them", [1.0, 1.0], work=10.0)
    row = compare("r", "tokens/s", ours, [peer], interleave([ours, peer], rounds=1, clock=clock))
    assert row.ratio["them"] == pytest.approx(3.0)


def test_no_rounds_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        interleave([], rounds=0)
    assert caught.value.slug == "bad-rounds"


def test_missing_peers_are_named_with_their_install_lines() -> None:
    here = Peer("json", "json", "pip install json")
    gone = Peer("gone", "a_module_nobody_has", "pip install gone")
    assert missing([here, gone]) == {"gone": "pip install gone"}


def test_versions_leave_out_what_is_not_installed() -> None:
    found = versions("sentencepiece", "a-package-nobody-has")
    assert {"python", "machine", "cores", "sentencepiece"} <= set(found)
    assert "a-package-nobody-has" not in found


def test_json_is_one_object_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    ours, peer = clock.contender("us", [1.0, 1.0]), clock.contender("them", [3.0, 3.0])
    seconds = interleave([ours, peer], rounds=1, clock=clock)
    rows = [compare(name, "MB/s", ours, [peer], seconds, missing={"x": "pip install x"}) for name in ("one", "two")]
    show(rows, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["row"] for line in lines] == ["one", "two"]
    for line in lines:
        assert {"row", "unit", "ours", "peers", "ratio", "peak", "equal", "versions", "missing"} <= set(line)
        assert line["ours"] == 10
        assert line["peers"] == {"them": 3.333}
        assert line["ratio"] == {"them": 3}
        assert line["peak"] is None
        assert line["missing"] == {"x": "pip install x"}


def test_the_table_names_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    ours, peer = clock.contender("us", [1.0, 1.0]), clock.contender("them [fp32]", [3.0, 3.0])
    seconds = interleave([ours, peer], rounds=1, clock=clock)
    show([compare("row", "MB/s", ours, [peer], seconds, missing={"x": "pip install x"}, equal=False)], as_json=False)
    shown = capsys.readouterr().out
    for part in ("albertkit", "them [fp32]", "3.00x", "pip install x", "NO"):
        assert part in shown
