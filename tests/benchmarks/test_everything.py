"""All benchmarks in one go: what is run, what is kept, and the page."""

import json
import subprocess

import pytest

from albertkit.benchmarks.everything import MEASUREMENTS, measure_everything
from albertkit.benchmarks.harness import Contender, compare, interleave
from albertkit.cli import bench
from albertkit.errors import ConfigError


def row():
    """A row as the benchmarks make them, of times that are given."""
    ours, theirs = Contender("ours", lambda: 1.0, 10.0), Contender("the | peer", lambda: 4.0, 10.0)
    made = compare("pieces", "tokens/s", ours, [theirs], interleave([ours, theirs], 3))
    made.peak, made.equal, made.compared, made.missing = 20.0, True, "the sums", {"another": "pip install another"}
    made.versions = {"machine": "a processor", "cores": "2", "torch": "2"}
    return made.to_json()


class Runs:
    """Stands for the processes: prints a row, fails where it is told to."""

    def __init__(self, failing=()):
        self.commands, self.failing = [], failing

    def __call__(self, command):
        self.commands.append(command)
        name = command[command.index("bench") + 1]
        code = 1 if name in self.failing else 0
        return subprocess.CompletedProcess(command, code, "" if code else f"a word\n{json.dumps(row())}\n", None)


def test_rows_are_kept_and_shown(tmp_path):
    runs = Runs()
    measured = measure_everything(tmp_path, {"tokenizer": ["folder"]}, ["latency", "tokenize"], run=runs)
    assert [one.name for one in measured] == ["tokenize", "latency"]
    assert "--tokenizer" in runs.commands[0]
    assert "--tokenizer" not in runs.commands[1]  # has no such flag
    page = (tmp_path / "measured.md").read_text()
    assert "| albertkit | 10 | 10 | 0% | |" in page
    assert "| the \\| peer | 2.5 | 2.5 | 0% | **4.00x** |" in page
    assert "| machine's measured peak | 20 | | | 50% reached |" in page
    assert "| another | took no part: pip install another | | | |" in page
    assert "2 cores of a processor; torch 2." in page
    assert json.loads((tmp_path / "latency.json").read_text())["rows"] == [row()]


def test_what_failed_is_said_and_measured_again(tmp_path):
    first = measure_everything(tmp_path, {}, ["latency", "caption"], run=Runs(failing=["caption"]))
    assert [(one.name, one.failed) for one in first] == [("caption", "exit status 1"), ("latency", "")]
    assert "**Failed**: exit status 1." in (tmp_path / "measured.md").read_text()
    runs = Runs()
    second = measure_everything(tmp_path, {}, ["latency", "caption"], run=runs)
    assert [command[command.index("bench") + 1] for command in runs.commands] == ["caption"]
    assert not any(one.failed for one in second)
    assert "Failed" not in (tmp_path / "measured.md").read_text()
    (tmp_path / "measured.md").unlink()  # as a run that is killed before it writes the page leaves it
    measure_everything(tmp_path, {}, ["latency", "caption"], run=Runs())
    assert "## latency" in (tmp_path / "measured.md").read_text()
    runs = Runs()
    measure_everything(tmp_path, {}, ["latency", "caption"], again=True, run=runs)
    assert len(runs.commands) == 2


def test_what_lacks_its_inputs_is_left_out(tmp_path):
    runs = Runs()
    assert measure_everything(tmp_path, {"text": ["a.txt"]}, ["quality"], run=runs) == []
    assert runs.commands == []
    (one,) = measure_everything(tmp_path, {"text": ["a.txt"], "tokenizer": ["folder"]}, ["quality"], run=runs)
    assert "--text a.txt --tokenizer folder" in one.command


def test_the_race_is_run_only_where_it_is_named(tmp_path):
    runs = Runs()
    measure_everything(tmp_path, {"text": ["a.txt"], "tokenizer": ["folder"]}, run=runs)
    names = [command[command.index("bench") + 1] for command in runs.commands]
    assert names == [measurement.name for measurement in MEASUREMENTS if measurement.name != "quality"]


def test_an_unknown_name(tmp_path):
    with pytest.raises(ConfigError, match="no benchmark `latencies`") as caught:
        measure_everything(tmp_path, {}, ["latencies"])
    assert caught.value.slug == "bad-benchmark"
    assert "latency" in caught.value.hint


def test_every_command_is_there_with_its_flags():
    for measurement in MEASUREMENTS:
        for flag in measurement.takes + tuple(option.removeprefix("--") for option in measurement.options[::2]):
            names = {
                name for argument in bench[measurement.name].assemble_argument_collection() for name in argument.names
            }
            assert f"--{flag.replace('_', '-')}" in names, (measurement.name, flag)


def test_all_that_can_be_measured_is(tmp_path):
    names = {name for name in bench if not name.startswith("-")} - {
        "all",
        "bert",
    }  # bert compares architectures, not programs
    assert names == {measurement.name for measurement in MEASUREMENTS}
