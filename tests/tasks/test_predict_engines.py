"""`predict` and `evaluate_task` on engines: fp32 to the bit, bf16 and int8 near it, and no fall back without a word."""

import json

import numpy as np
import pytest
import torch
from record_files import read_records, write_lines

from albertkit import engines
from albertkit.engines.cpu.engine import precision_problem
from albertkit.errors import ConfigError
from albertkit.pipelines.predict import predict
from albertkit.tables.columns import Columns
from albertkit.tasks.evaluate import evaluate_task
from albertkit.tasks.finetune import finetune
from albertkit.tasks.models import load_task_model, run_model
from albertkit.tasks.settings import FinetuneSettings

from .conftest import WORDS, read_examples


def predicted(model, table, out, precision):
    predict(model, table / "dev.tsv", out / f"{precision}.jsonl", precision=precision)
    return read_records(out / f"{precision}.jsonl")


def test_fp32_is_the_model_itself(untrained, table, tmp_path):
    task, classifier, tokenizer = load_task_model(untrained)
    examples = read_examples(task, table / "dev.tsv", "test", labelled=False)
    features = task.features(examples, tokenizer, labelled=False)
    expected = task.predictions(examples, features, run_model(classifier, task, features, 8192))
    records = predicted(untrained, table, tmp_path, "fp32")
    assert [record["label"] for record in records] == [record["label"] for record in expected]
    assert max_probability_difference(records, expected) < 2e-6
    with torch.no_grad():
        classifier.classifier.bias[0] += 1e-3
    assert (
        max_probability_difference(
            records,
            task.predictions(examples, features, run_model(classifier, task, features, 8192)),
        )
        > 1e-5
    )


def max_probability_difference(predictions, expected):
    """The largest difference of a probability."""
    shares = (
        np.array([list(record["probabilities"].values()) for record in records])
        for records in (predictions, expected)
    )
    return np.abs(np.subtract(*shares)).max()


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_packed_weights_are_near_fp32_and_used_for_scores_too(
    untrained, table, tmp_path, precision
):
    if reason := precision_problem("bf16") or precision_problem(precision):
        pytest.skip(reason)
    exact, near = (predicted(untrained, table, tmp_path, name) for name in ("fp32", precision))
    assert 0 < max_probability_difference(near, exact) < 0.02
    scored = evaluate_task(untrained, table, precision=precision)
    assert scored.scores["accuracy"] == pytest.approx(
        evaluate_task(untrained, table, precision="fp32").value, abs=0.05
    )
    # No fall back
    assert not any(note.startswith("not ") for note in scored.details.get("notes", ()))


def test_dev_scores_of_a_bf16_training_are_those_of_an_evaluation(start, tmp_path):
    """As many different predictions as dev texts, in the dev files and in `evaluate`, near the same numbers."""
    rng = np.random.default_rng(4)
    for name, rows in (("train", 32), ("dev", 60)):
        lines = [
            f"{' '.join(rng.choice(WORDS, rng.integers(3, 9)))}\t{rng.uniform(0, 5):.2f}"
            for _ in range(rows)
        ]
        write_lines(tmp_path / f"{name}.tsv", ["text\tscore", *lines])
    settings = FinetuneSettings(
        lr=1e-3, steps=2, batch_size=16, length=32, precision="bf16", dropout=0.0
    )
    columns = Columns(text="text", label="score")
    finetune("regress", start, tmp_path, tmp_path / "run", settings, columns=columns)
    precision = "fp32" if precision_problem("bf16") else "bf16"
    evaluated = evaluate_task(tmp_path / "run", tmp_path, tmp_path / "scored", precision=precision)
    values = []
    for table in (
        tmp_path / "run/dev/predictions.tsv",
        tmp_path / "scored/predictions.tsv",
    ):
        values.append([float(line.split("\t")[1]) for line in table.read_text().splitlines()[1:]])
    assert [len(set(column)) for column in values] == [60, 60]
    np.testing.assert_allclose(*values, atol=0.02)
    saved = json.loads((tmp_path / "run/results.json").read_text())
    assert saved["pearson"] == pytest.approx(evaluated.scores["pearson"], abs=0.05)


def test_what_the_engine_fell_back_from_is_said(untrained, table, tmp_path, monkeypatch):
    monkeypatch.setattr(
        engines,
        "_make_fused_engine",
        lambda model, precision, notes=(): (None, f"no {precision} here"),
    )
    report = predict(untrained, table / "dev.tsv", tmp_path / "out.jsonl", precision="int8")
    assert report.notes[0] == "not int8: no int8 here"
    assert report.to_dict()["notes"] == report.notes
    assert (
        "not int8: no int8 here"
        in evaluate_task(untrained, table, precision="int8").scores_and_notes()["notes"]
    )


def test_another_precision_is_refused(untrained, table):
    with pytest.raises(ConfigError, match=r"\[unknown-name\]"):
        predict(untrained, table / "dev.tsv", precision="fp8")
