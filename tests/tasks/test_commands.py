"""The commands of fine-tuning as a person types them: results on stdout, everything else on stderr, exit statuses."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from record_files import read_records

from albertkit.cli import main
from albertkit.conversion.tensorflow.records import encode_example, frame_record
from albertkit.errors import AlbertKitError
from albertkit.output.render import print_sections
from albertkit.tables.columns import Columns
from albertkit.tasks.check import check_task
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings

COLUMNS = ("--text", "sentence", "--label", "label")


@pytest.fixture(scope="module")
def run(start, table, tmp_path_factory):
    """A run that the command made, and what it printed."""
    folder = tmp_path_factory.mktemp("commands") / "run"
    settings = ("--lr", "1e-3", "--epochs", "8", "--batch-size", "16", "--length", "32", "--json")
    out = io.StringIO()
    err = io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(
            [
                *map(
                    str,
                    ("finetune", "classify", start, table, *COLUMNS, "--out", folder, *settings),
                )
            ]
        )
    assert not ended.value.code, err.getvalue()
    assert "lr" in err.getvalue()
    assert out.getvalue().count("\n") == 1
    return folder, json.loads(out.getvalue())


def test_evaluate_predict_and_score_agree_with_the_run(
    run, table, tmp_path, run_command, monkeypatch
):
    folder, printed = run
    assert printed["accuracy"] == printed["value"] > 0.9
    monkeypatch.setattr("albertkit.output.progress._LINE_SECONDS", 0)
    progress = run_command("evaluate", folder, table).err
    assert re.search(r"^evaluating: (\d+) of \1 sequences, ", progress, re.MULTILINE)
    progress = run_command(
        "predict", folder, table / "dev.tsv", "--out", tmp_path / "shown.jsonl"
    ).err
    rows = len((tmp_path / "shown.jsonl").read_text().splitlines())
    assert re.search(rf"^predicting: {rows} examples, ", progress, re.MULTILINE)
    assert "predicting" not in run_command("predict", folder, table / "dev.tsv").err
    completed = run_command("evaluate", folder, table, "--json")
    assert "evaluating" not in completed.err
    evaluated = completed.json
    assert {k: evaluated[k] for k in ("accuracy", "f1")} == {
        k: printed[k] for k in ("accuracy", "f1")
    }
    predicted = run_command(
        "predict", folder, table / "dev.tsv", "--out", tmp_path / "out", "--json"
    ).json
    assert [Path(p).name for p in predicted["written"]] == ["predictions.jsonl", "predictions.tsv"]
    for predictions in predicted["written"]:
        scored = run_command(
            "score", "classify", predictions, table / "dev.tsv", *COLUMNS[2:], "--json"
        ).json
        assert scored["accuracy"] == printed["accuracy"]
    records = [
        json.loads(line)
        for line in run_command("predict", folder, table / "dev.tsv").out.splitlines()
    ]
    assert records == read_records(tmp_path / "out/predictions.jsonl")


def test_the_check_fits_into_a_terminal_and_trains_nothing(start, table, run_command):
    columns = Columns(text="sentence", label="label")
    printed = io.StringIO()
    checked = check_task("classify", start, table, FinetuneSettings(length=32), columns=columns)
    print_sections(checked.sections(), printed, width=80)
    tables = printed.getvalue().split("!")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert "magic" in tables
    report = run_command(
        "finetune", "classify", start, table, *COLUMNS, "--length", 32, "--check", "--json"
    ).json
    assert report["splits"]["train"]["examples"] == 300


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        ("evaluate {start} {table}/dev.tsv", "wrong-model"),
        ("predict {start} {table}/dev.tsv", "wrong-model"),
        ("predict {run} {table}/dev.tsv --out own.parquet", "bad-value"),
        ("evaluate {run} {table} --length 8", "conflicting-options"),
        ("finetune clasify {start} {table} --out x", "unknown-name"),
        ("finetune classify {start} {table} --text sentence --label lab --out x", "missing-column"),
        ("finetune classify {start} {table} --text sentence --label label", "bad-value"),
        ("score mrpc {table}/dev.tsv {table}/nowhere.tsv", "not-found"),
    ],
)
def test_mistakes_are_named_with_a_hint(run, start, table, run_command, command, slug):
    completed = run_command(*command.format(run=run[0], start=start, table=table).split())
    assert completed.status == 2, completed.err
    assert f"error[{slug}]" in completed.err
    assert "hint:" in completed.err
    assert not completed.out


@pytest.mark.parametrize("task", "mrpc classify squad2 ner race".split())
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_records_for_fine_tuning_are_refused_with_what_to_give(tmp_path, task, kind):
    """As the Model Garden's create_finetuning_data.py writes them."""
    for name in ("train.tf_record", "eval.tf_record"):
        (tmp_path / name).write_bytes(
            frame_record(encode_example({"input_ids": [2, 5, 3], "label_ids": [1]}))
        )
    (tmp_path / "meta_data.json").write_text(
        '{"task_type": "bert_classification", "num_labels": 2}'
    )
    data = tmp_path if kind == "folder" else tmp_path / "train.tf_record"
    columns = Columns(text="text", label="label") if task == "classify" else Columns()
    with pytest.raises(AlbertKitError, match="TFRecords for fine-tuning") as raised:
        find_task(task, columns).files(data)
    assert "input_data_dir" in raised.value.hint
