"""The commands of fine-tuning as a person types them: results on stdout, everything else on stderr, exit statuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from albertkit.cli import main


def albertkit(*arguments: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "80"}
    command = [sys.executable, "-m", "albertkit.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def one_object(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(start: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A run that the command made, and what it printed."""
    folder = tmp_path_factory.mktemp("commands") / "run"
    done = albertkit(
        "finetune", "classify", start, table, "--text", "sentence", "--label", "label", "--out", folder, "--lr", "3e-3",
        "--epochs", 3, "--batch-size", 16, "--length", 32, "--json",
    )  # fmt: skip
    assert "lr" in done.stderr
    return folder, one_object(done)


def test_evaluate_predict_and_score_agree_with_the_run(run, table, tmp_path):
    folder, printed = run
    assert printed["accuracy"] == printed["value"] > 0.9
    evaluated = one_object(albertkit("evaluate", folder, table, "--json"))
    assert {k: evaluated[k] for k in ("accuracy", "f1")} == {k: printed[k] for k in ("accuracy", "f1")}
    predicted = one_object(albertkit("predict", folder, table / "dev.tsv", "--out", tmp_path / "out", "--json"))
    assert [Path(p).name for p in predicted["written"]] == ["predictions.jsonl", "predictions.tsv"]
    for predictions in predicted["written"]:
        scored = one_object(
            albertkit("score", "classify", predictions, table / "dev.tsv", "--label", "label", "--json")
        )
        assert scored["accuracy"] == printed["accuracy"]
    streamed = albertkit("predict", folder, table / "dev.tsv")
    records = [json.loads(line) for line in streamed.stdout.splitlines()]
    assert records == [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]


def test_the_check_fits_into_a_terminal_and_trains_nothing(start, table, tmp_path):
    arguments = [
        "finetune",
        "classify",
        start,
        table,
        "--text",
        "sentence",
        "--label",
        "label",
        "--length",
        32,
        "--check",
    ]
    shown = albertkit(*arguments)
    assert shown.returncode == 0, shown.stderr
    tables = shown.stdout.split("!")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert "magic" in tables
    assert one_object(albertkit(*arguments, "--json"))["splits"]["train"]["examples"] == 300


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        (["evaluate", "{start}", "{table}/dev.tsv"], "no-task"),
        (["predict", "{start}", "{table}/dev.tsv"], "no-task"),
        (["predict", "{run}", "{table}/dev.tsv", "--out", "own.parquet"], "bad-argument"),
        (["evaluate", "{run}", "{table}", "--length", "8"], "conflicting-options"),
        (["finetune", "clasify", "{start}", "{table}", "--out", "x"], "unknown-task"),
        (["finetune", "classify", "{start}", "{table}", "--text", "sentence", "--label", "lab", "--out", "x"], "unknown-column"),
        (["finetune", "classify", "{start}", "{table}", "--text", "sentence", "--label", "label"], "bad-argument"),
        (["score", "mrpc", "{table}/dev.tsv", "{table}/nowhere.tsv"], "not-found"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_a_hint(run, start, table, tmp_path, capfd, arguments, slug):
    places = {"run": run[0], "start": start, "table": table}
    with pytest.raises(SystemExit) as ended:
        main([argument.format(**places) for argument in arguments])
    printed = capfd.readouterr()
    assert ended.value.code == 2, printed.err
    assert f"error[{slug}]" in printed.err
    assert "hint:" in printed.err
    assert not printed.out
