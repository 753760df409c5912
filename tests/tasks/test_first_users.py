"""What the first users of fine-tuning met: data that say what is odd about them, results that say what they are of."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from record_files import read_records, write_json
from sklearn.metrics import f1_score
from transformers import AutoTokenizer

from albertkit.errors import ConfigError, DataError
from albertkit.files import read_json
from albertkit.output.render import print_sections
from albertkit.pipelines.predict import predict
from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.check import check_task
from albertkit.tasks.data import apply_task_settings, read_data_from_anywhere
from albertkit.tasks.evaluate import describe_truncation, evaluate_task, score_file
from albertkit.tasks.finetune import finetune
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings
from albertkit.training.results import result_sections

from .conftest import COLUMNS, read_examples, text_examples

learn = partial(finetune, "classify", columns=COLUMNS)
check = partial(check_task, "classify", columns=COLUMNS)
SETTINGS = FinetuneSettings(
    lr=3e-3, steps=6, eval_every=3, batch_size=8, length=16, precision="fp32", dropout=0.0
)


def rows_of(labels):
    return [
        {"sentence": f"the fox number {n} jumps", "label": label} for n, label in enumerate(labels)
    ]


def test_a_result_says_file_examples_and_step_and_what_was_wrong(start, table, tmp_path, capsys):
    run = tmp_path / "my_run (2)"
    result = learn(start, table, run, SETTINGS)
    assert "\nalbertkit predict 'my_run (2)' INPUT" in (run / "best/README.md").read_text()
    evaluations = read_records(run / "metrics.jsonl")
    values = {
        record["step"]: record["accuracy"] for record in evaluations if record["event"] == "eval"
    }
    best = max(values, key=lambda step: (values[step], -step))
    results = read_json(run / "results.json")
    assert results["data"] == "dev.tsv"
    assert results["examples"] == 100
    assert results["best_step"] == best
    print_sections(result_sections(result.scores_and_notes(), result.metric))
    printed = capsys.readouterr().out
    assert f"classify, 100 examples of dev.tsv, the model of step {best}" in printed
    assert "f1 (plain)" in printed
    assert results["positive_class"] == "plain"  # both have 150 training examples
    assert "| f1 (plain) |" in (run / "best/README.md").read_text()
    wrong = read_records(run / "dev/errors.jsonl")
    assert len(wrong) == min(50, round(100 * (1 - result.scores["accuracy"])))
    assert all(record["label"] != record["gold"] for record in wrong)
    assert [record["error"] for record in wrong] == sorted(
        (record["error"] for record in wrong), reverse=True
    )


def test_the_class_of_f1_can_be_chosen_and_only_one_of_two(start, table, tmp_path, slug_of, capfd):
    settings = replace(SETTINGS, positive_class="magic", steps=2, eval_every=2)
    result = learn(start, table, tmp_path / "run", settings)
    assert "f1, precision, recall: those of `magic`, see --positive-class" in capfd.readouterr().err
    rows = {row["name"]: row for row in result.details["classes"]}
    assert result.scores["f1"] == rows["magic"]["f1"]
    assert evaluate_task(tmp_path / "run", table).details["positive_class"] == "magic"
    regression = {"train": rows_of([1.0, 2.0] * 8), "dev": rows_of([1.0, 2.0])}
    assert (
        slug_of(finetune, "regress", start, regression, tmp_path / "r", settings, columns=COLUMNS)
        == "bad-value"
    )


@pytest.mark.parametrize(
    ("task", "values"),
    [
        ("ner", {"long_texts": "windows"}),
        ("choice", {"stride": 8}),
        ("classify", {"stride": 8}),
        ("classify", {"qa_head": "beam"}),
        ("regress", {"threshold_from": "dev"}),
        ("squad1", {"threshold_from": "dev"}),
        ("squad2", {"long_texts": "windows"}),
    ],
)
def test_settings_that_a_task_has_no_use_for_are_refused(task, values, slug_of):
    assert slug_of(apply_task_settings, find_task(task), FinetuneSettings(**values)) == "bad-value"


def test_settings_that_a_task_has_a_use_for_are_its_own(untrained, table, slug_of):
    windows = find_task("classify").with_changes(long_texts="windows")
    assert apply_task_settings(windows, FinetuneSettings(stride=8)) == replace(windows, stride=8)
    chosen = apply_task_settings(find_task("squad2"), FinetuneSettings(threshold_from="dev"))
    assert chosen.threshold_from == "dev"
    assert slug_of(evaluate_task, untrained, table, threshold_from="dev") == "bad-value"


@pytest.mark.parametrize("name", ["classify", "regress", "multilabel", "mrpc", "stsb", "ner"])
def test_windows_are_named_to_those_who_can_have_them(name, slug_of):
    """A task of pairs refuses them."""
    task = find_task(name)
    has_windows = "long-texts windows" in describe_truncation(1, 2, task)
    assert has_windows == (name in ("classify", "regress", "multilabel"))
    if not has_windows:
        windows = FinetuneSettings(long_texts="windows")
        assert slug_of(apply_task_settings, task, windows) == "bad-value"


def test_texts_that_the_tokenizer_cannot_read_are_noted(start, tmp_path, capfd):
    """Counted beside transformers' tokenizer of the same folder."""
    rows = [
        {"sentence": f"{word} ☃ ☂", "label": label}
        for word in ("a", "fox", "dog", "river")
        for label in ("magic", "plain")
    ]
    settings = replace(SETTINGS, steps=1, eval_every=1)
    readable = [{"sentence": "the fox", "label": "magic"}, {"sentence": "a dog", "label": "plain"}]
    data = {"train": rows, "dev": readable}
    learn(start, data, tmp_path / "run", settings)
    theirs = AutoTokenizer.from_pretrained(start)
    ids = [i for row in rows for i in theirs(row["sentence"])["input_ids"]]
    unknown = ids.count(theirs.unk_token_id)
    line = f"{unknown / len(ids):.1%} of the tokens of"
    question = "are unknown: is the tokenizer of another language?"
    printed = capfd.readouterr().err
    assert f"{line} train {question}\n" in printed
    assert "tokens of dev" not in printed
    evaluated = evaluate_task(tmp_path / "run", rows)
    assert f"{line} the data {question}" in evaluated.scores_and_notes()["notes"]
    predicted = predict(tmp_path / "run", rows)
    unread = f"{unknown:,} of {len(ids):,} tokens are unknown: what they stand for is not read"
    assert predicted.notes == (unread,)
    assert predict(tmp_path / "run", readable).notes == ()


@pytest.mark.parametrize("seeds", [1, 2])
def test_an_evaluation_on_the_training_file_says_so(start, table, tmp_path, seeds):
    run = tmp_path / "run"
    file = table / "train.tsv"
    settings = replace(SETTINGS, steps=1, eval_every=1, seeds=seeds)
    learn(start, file, run, settings)
    words = "is what the model was trained on"
    for model in (run, run / "best"):
        assert words in str(evaluate_task(model, file).details["notes"])
    assert words not in str(evaluate_task(run, table / "dev.tsv").scores_and_notes())
    (tmp_path / "train.tsv").write_bytes((table / "dev.tsv").read_bytes())  # of the same name
    assert words not in str(evaluate_task(run, tmp_path / "train.tsv").scores_and_notes())


def test_an_evaluation_gives_no_advice_on_training(start, tmp_path):
    rows = rows_of(["magic", "plain"])
    learn(start, {"train": rows * 8, "dev": rows}, tmp_path / "run", SETTINGS)
    result = evaluate_task(
        tmp_path / "run", [{"sentence": "a fox", "label": name} for name in ("magic", "plain")]
    )
    assert result.collapsed
    assert not any("--lr" in note for note in result.scores_and_notes()["notes"])


def test_numbers_that_hardly_differ_are_said_to_be_constant():
    task = find_task("regress", COLUMNS)
    labels = np.linspace(0, 5, 50)
    examples = text_examples(["a fox"] * 50, labels.tolist())
    for spread_word_tags, note in (
        (0.0, "all 50 predictions are 2.700"),
        (0.01, "all 50 predictions are between 2.700 and 2.750"),
    ):
        values = [{"id": "", "value": 2.7 + spread_word_tags * label} for label in labels]
        assert task.collapsed(examples, values) == note
    assert (
        task.collapsed(examples, [{"id": "", "value": 2.7 + 0.3 * label} for label in labels])
        is None
    )


@pytest.mark.parametrize(
    ("labels", "finding"),
    [
        (
            ["good", "bad", "NaN"] * 6,
            "labels `NaN`: the label of 6 training examples; or is it missing there?",
        ),
        (
            ["good", "bad", "-"] * 6,
            "labels `-`: the label of 6 training examples; or is it missing there?",
        ),
        (
            ["0", "1", "-1"] * 6,
            "labels `-1`: the label of 6 training examples; or is it missing there?",
        ),
        (["+", "-"] * 6, None),
        (["good", "bad"] * 6, None),
    ],
)
def test_a_label_that_means_none_is_pointed_at(start, labels, finding):
    rows = rows_of(labels)
    report = check(start, {"train": rows, "dev": rows})
    findings = [line for line in report.findings if "missing" in line]
    assert findings == ([finding] if finding else [])
    data = read_data_from_anywhere(
        find_task("classify", COLUMNS),
        {"train": rows, "dev": rows},
        None,
        FinetuneSettings(),
        False,
        BadRows(),
    )
    assert [line for line in data.notes if "missing" in line] == findings


def test_a_number_that_is_none_is_a_missing_label(start):
    rows = rows_of(["1", "0", float("nan"), None])
    with pytest.raises(DataError, match="the data, row 2: `label` is empty"):
        learn(start, rows, "unused", SETTINGS)
    assert not Path("unused").exists()


def test_a_bad_row_is_a_stop_or_skipped_and_nothing_else(start):
    with pytest.raises(ConfigError, match="on_error cannot be `raise`"):
        learn(start, rows_of(["1", "0"] * 4), "unused", SETTINGS, on_error="raise")


def test_one_text_that_is_a_whole_book_is_pointed_at(start):
    rows = rows_of(["good", "bad"] * 20)
    rows[7]["sentence"] = "the quick brown fox " * 3000
    settings = FinetuneSettings(length=64)
    findings = check(start, {"train": rows, "dev": rows[:4]}, settings).findings
    length_findings = [
        line for line in findings if line.startswith("the longest of 40 train examples has ")
    ]
    assert len(length_findings) == 1
    assert length_findings[0].endswith("; 64 are read")


def test_a_label_for_every_row_is_the_wrong_column(start):
    with pytest.raises(DataError) as caught:
        check(start, rows_of([f"number {n}" for n in range(60)]), SETTINGS)
    assert "has a label of its own" in caught.value.message
    assert "is it the right column?" in caught.value.hint


def test_rows_that_cannot_be_read_are_named_before_there_being_no_dev(start, tmp_path):
    (tmp_path / "small.tsv").write_bytes(b"sentence\tlabel\ngood\t1\nb\xe4d\t0\n")
    with pytest.raises(DataError, match=r"rows left out: 1 (.*): line 3, bytes that are not UTF-8"):
        check(start, tmp_path / "small.tsv", SETTINGS)


def test_squad_2_without_an_unanswerable_question_is_pointed_at(start, tmp_path):
    answer = {"text": "fox", "answer_start": 4}
    questions = [
        {"id": str(n), "question": "who?", "answers": [answer], "is_impossible": False}
        for n in range(2)
    ]
    document = {"title": "a", "paragraphs": [{"context": "the fox jumps", "qas": questions}]}
    for name in ("train", "dev"):
        write_json(tmp_path / f"{name}-v2.0.json", {"version": "v2.0", "data": [document]})
    findings = check_task("squad2", start, tmp_path, FinetuneSettings(length=32)).findings
    assert any("no training question is unanswerable" in line for line in findings)


def test_korsts_has_dev_and_test_files_of_either_name(tmp_path):
    for name in ("sts-train", "tune_dev", "tune_test"):
        (tmp_path / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\n")
    assert {split: file.stem for split, file in find_task("korsts").files(tmp_path).items()} == {
        "train": "sts-train",
        "dev": "tune_dev",
        "test": "tune_test",
    }


def test_klue_sts_is_scored_as_similar_or_not_too(data):
    task = find_task("klue-sts")
    file = data / "korean/klue/klue-sts-v1.1_dev.json"
    examples = read_examples(task, file)
    random = np.random.default_rng(0)
    values = [example.label + random.normal() for example in examples]
    scores = task.score(examples, [{"id": "", "value": value} for value in values])
    official = [record["labels"]["binary-label"] for record in read_json(file)]
    assert scores["f1"] == pytest.approx(f1_score(official, np.array(values) >= 3))
    intervals = task.details(examples, [{"id": "", "value": value} for value in values])[
        "intervals"
    ]
    assert intervals["f1"][0] < scores["f1"] < intervals["f1"][1]


def test_squads_f1_of_korean_answers_is_refused_and_noted(tmp_path):
    answer = {"text": "1843년에", "answer_start": 0}
    questions = [{"id": "a", "question": "언제?", "answers": [answer]}]
    document = {"title": "a", "paragraphs": [{"context": "1843년에 썼다", "qas": questions}]}
    write_json(tmp_path / "gold.json", {"version": "KorQuAD_v1.0", "data": [document]})
    write_json(tmp_path / "predictions.json", {"a": "1843년"})
    with pytest.raises(ConfigError, match=r"\[doubtful\]"):
        score_file("squad", tmp_path / "predictions.json", tmp_path / "gold.json")
    scores = score_file(
        "squad", tmp_path / "predictions.json", tmp_path / "gold.json", f1_of="words"
    )
    assert scores["f1"] == 0
    task = find_task("squad1")
    examples = read_examples(task, tmp_path / "gold.json")
    record = {"id": "a", "answer": "1843년에", "start": 0, "end": 6}
    assert "KorQuAD's own counts characters" in task.details(examples, [record])["notes"][0]
