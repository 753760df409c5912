"""The promises of the harness: everybody runs in turn, ratios are those within rounds, results are kept and shown."""

import json
import subprocess

import pytest

from benchmarks import results
from benchmarks.harness import Contender, compare, interleave
from benchmarks.results import MEASUREMENTS, measure_all


class Clock:
    """Time that passes only when a contender works."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def contender(self, name, seconds, work=10.0, **options):
        remaining = iter(seconds)

        def run():
            self.calls.append(name)
            self.now += next(remaining)

        return Contender(name, run, work, **options)


def test_everybody_runs_once_a_round_in_turn_after_a_warm_up_that_is_not_counted():
    clock = Clock()
    contenders = [clock.contender(name, [100.0, 1.0, 2.0]) for name in "AB"]
    cold = clock.contender("C", [3.0, 4.0], warm_up=False)
    by_itself = Contender("D", lambda: 0.25, 1.0)
    seconds = interleave([*contenders, cold, by_itself], rounds=2, clock=clock)
    assert clock.calls == list("ABABCABC")
    assert seconds == {"A": [1.0, 2.0], "B": [1.0, 2.0], "C": [3.0, 4.0], "D": [0.25, 0.25]}
    with pytest.raises(SystemExit, match="--rounds is 0"):
        interleave(contenders, rounds=0)


def test_the_ratio_is_the_median_within_rounds_of_work_done():
    clock = Clock()
    # The machine slows down tenfold from round to round; within each round we are 2, 4 and 3 times
    # as fast.
    ours = clock.contender("us", [0.0, 1.0, 10.0, 100.0])
    peer = clock.contender("them", [0.0, 2.0, 40.0, 300.0])
    half = clock.contender("half", [0.0, 2.0, 40.0, 300.0], work=5.0)
    row = compare(
        "r", "MB/s", ours, [peer, half], interleave([ours, peer, half], rounds=3, clock=clock)
    )
    assert row.ratio == {"them": pytest.approx(3.0), "half": pytest.approx(6.0)}
    assert row.ours == pytest.approx(1.0)  # median of 10, 1 and 0.1
    assert row.peers == {"them": pytest.approx(0.25), "half": pytest.approx(0.125)}
    assert row.best == {
        "ours": pytest.approx(10.0),
        "them": pytest.approx(5.0),
        "half": pytest.approx(2.5),
    }
    assert row.spread["ours"] == pytest.approx(9.9)


def made_row():
    ours = Contender("ours", lambda: 1.0, 10.0)
    theirs = Contender("the | peer [fp32]", lambda: 4.0, 10.0)
    row = compare(
        "tokens", "tokens/s", ours, [theirs], interleave([ours, theirs], 3), peak=20.0, equal=False
    )
    row.compared = "the sums"
    row.missing = {"another": "pip install another"}
    row.note = "a note"
    row.versions = {"machine": "a processor", "cores": "2", "torch": "2"}
    return row


def test_a_row_is_shown(capsys):
    made_row().print()
    output = capsys.readouterr().out
    for part in (
        "albertkit",
        "the | peer [fp32]",
        "4.00x",
        "pip install another",
        "equal: NO",
        "50% reached",
        "a note",
    ):
        assert part in output


@pytest.fixture
def runs(monkeypatch):
    """Commands that were run; those whose row is in `failing` fail."""
    commands = []
    failing = set()

    def run(command):
        commands.append(command[3:])
        code = int(command[3] in failing)
        printed = "" if code else f"a word\n{json.dumps(made_row().to_json())}\n"
        return subprocess.CompletedProcess(command, code, printed, None)

    monkeypatch.setattr(results, "run", run)
    return commands, failing


def test_results_are_kept_shown_and_measured_again_only_where_they_failed(tmp_path, runs):
    commands, failing = runs
    failing.add("caption")
    with pytest.raises(SystemExit):
        measure_all(
            out=tmp_path, only=("latency", "tokenize", "caption"), tokenizer=tmp_path / "folder"
        )
    assert [command[0] for command in commands] == ["tokenize", "caption", "latency"]
    # Who takes it
    assert ["--tokenizer" in command for command in commands] == [True, False, False]
    page = (tmp_path / "measured.md").read_text()
    for line in (
        "| albertkit | 10 | 10 | 0% |  |",
        "| the \\| peer [fp32] | 2.5 | 2.5 | 0% | 4.00x |",
        "| machine's measured peak | 20 |  |  | 50% reached |",
        "| another | took no part: pip install another |  |  |  |",
        "Equal: **NO**. the sums",
        "**Failed**: exit status 1.",
    ):
        assert line in page.splitlines()
    assert "2 cores of a processor; torch 2." in page
    assert json.loads((tmp_path / "latency.json").read_text())["rows"] == [made_row().to_json()]
    failing.clear()
    # As a run that is killed before it writes the page leaves it
    (tmp_path / "measured.md").unlink()
    measure_all(out=tmp_path, only=("latency", "tokenize", "caption"))
    assert [command[0] for command in commands[3:]] == ["caption"]
    page = (tmp_path / "measured.md").read_text()
    assert "Failed" not in page
    assert "## latency" in page
    measure_all(out=tmp_path, only=("latency",), again=True)
    assert commands[-1][0] == "latency"


def test_the_race_is_run_only_where_it_is_named_with_its_inputs(tmp_path, runs):
    commands, _ = runs
    measure_all(out=tmp_path, text=("a.txt",), tokenizer=tmp_path)
    assert [command[0] for command in commands] == [
        name for name in MEASUREMENTS if name != "quality"
    ]
    measure_all(out=tmp_path, only=("quality",), text=("a.txt",))
    assert len(commands) == len(MEASUREMENTS) - 1
    with pytest.raises(SystemExit, match="no such rows: latencies"):
        measure_all(out=tmp_path, only=("latencies",))
