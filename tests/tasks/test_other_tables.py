"""A fine-tuned model on files laid out otherwise than its training data: other columns, quotes, lines, rows in memory."""

import csv
import io
import json
import re
import sys
from typing import ClassVar

import datasets
import pandas
import polars
import pytest
from record_files import read_records, write_json, write_lines, write_records

from albertkit.errors import AlbertKitError, ConfigError, DataError
from albertkit.pipelines.predict import ask, predict
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tables.records import as_files, list_rows, with_added_columns
from albertkit.tasks.check import check_task
from albertkit.tasks.evaluate import evaluate_task
from albertkit.tasks.finetune import finetune
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tokenizer import AlbertTokenizer

from .conftest import COLUMNS, save_untrained

TEXTS = ["seven old wizards, brewing", 'a "quick" fox', "calm rivers"]


@pytest.fixture(scope="module")
def sst2(start, tmp_path_factory):
    """A model of single texts in GLUE's layout, with random weights."""
    return save_untrained(start, tmp_path_factory.mktemp("sst2") / "model", "sst2", length=16)


@pytest.fixture(scope="module")
def expected(sst2, tmp_path_factory):
    """What it says of TEXTS, as a plain table of its own layout has them."""
    folder = tmp_path_factory.mktemp("expected")
    write_lines(folder / "plain.tsv", ["sentence", *TEXTS])
    predict(sst2, folder / "plain.tsv", folder / "out.jsonl", precision="fp32")
    return read_records(folder / "out.jsonl")


@pytest.fixture(scope="module")
def labels(expected):
    """The labels that it has for TEXTS."""
    return [record["label"] for record in expected]


def write_csv(file, header, rows):
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


def answers(records):
    return [
        (
            record["label"],
            {name: round(share, 5) for name, share in record["probabilities"].items()},
        )
        for record in records
    ]


def test_a_quoted_csv_is_read_whatever_the_training_data_were(
    sst2, expected, tmp_path, run_command, labels
):
    file = write_csv(tmp_path / "q.csv", ["sentence", "label"], [[text, "1"] for text in TEXTS])
    assert '"seven old wizards, brewing"' in file.read_text()
    assert (
        run_command(
            "predict", sst2, file, "--out", tmp_path / "out.jsonl", "--precision", "fp32"
        ).status
        == 0
    )
    assert answers(read_records(tmp_path / "out.jsonl")) == answers(expected)
    assert evaluate_task(sst2, file).scores["accuracy"] == labels.count("1") / 3


def test_columns_of_other_names_and_rows_left_out(sst2, expected, tmp_path, run_command, labels):
    rows = [[number, text, "1"] for number, text in zip("xyz", TEXTS, strict=True)]
    file = write_csv(tmp_path / "own.csv", ["name", "review", "stars"], [*rows, ["w", "", "1"]])
    options = "--text-column review --id-column name --on-error skip".split()
    assert (
        run_command(
            "predict", sst2, file, *options, "--out", tmp_path / "out.jsonl", "--precision", "fp32"
        ).status
        == 0
    )
    records = read_records(tmp_path / "out.jsonl")
    assert [record["id"] for record in records] == ["x", "y", "z"]
    assert answers(records) == answers(expected)
    scored = run_command("evaluate", sst2, file, *options, "--label-column", "stars", "--json").json
    assert scored["accuracy"] == pytest.approx(labels.count("1") / 3)
    assert scored["examples"] == 3
    assert any(note.startswith("rows left out: 1 ") for note in scored["notes"])


def test_a_text_a_line_is_read_by_a_model_of_single_texts_and_said(sst2, expected, tmp_path):
    write_lines(tmp_path / "lines.txt", TEXTS)
    report = predict(sst2, tmp_path / "lines.txt", tmp_path / "out.jsonl", precision="fp32")
    assert answers(read_records(tmp_path / "out.jsonl")) == answers(expected)
    assert any("every line is read as a text" in note for note in report.notes)


def test_a_text_a_line_is_refused_by_a_model_of_pairs_with_options_it_has(start, tmp_path):
    model = save_untrained(start, tmp_path / "pairs", "rte", length=16)
    write_lines(tmp_path / "lines.txt", TEXTS)
    with pytest.raises(DataError) as caught:
        predict(model, tmp_path / "lines.txt", tmp_path / "out.jsonl")
    assert caught.value.hint == "name its columns: --text-column COLUMN --pair-column COLUMN"


def test_standard_output(sst2, expected, tmp_path, run_command):
    write_records(tmp_path / "in.jsonl", [{"sentence": text} for text in TEXTS])
    completed = run_command(
        "predict", sst2, tmp_path / "in.jsonl", "--out", "-", "--precision", "fp32"
    )
    assert answers([json.loads(line) for line in completed.out.splitlines()]) == answers(expected)


def test_a_table_out_has_the_columns_of_the_input(sst2, expected, tmp_path, labels):
    rows = [[number, text] for number, text in zip("xyz", TEXTS, strict=True)]
    file = write_csv(tmp_path / "in.csv", ["idx", "sentence"], rows)
    predict(sst2, file, tmp_path / "out.csv", precision="fp32")
    with (tmp_path / "out.csv").open(newline="") as stream:
        rows_of_output = list(csv.DictReader(stream))
    assert [[row["idx"], row["sentence"]] for row in rows_of_output] == rows
    assert [row["prediction"] for row in rows_of_output] == labels
    best = [max(record["probabilities"].values()) for record in expected]
    assert [float(row["probability"]) for row in rows_of_output] == pytest.approx(best, abs=1e-6)
    with pytest.raises(DataError, match="has a column `prediction`"):
        predict(sst2, tmp_path / "out.csv", tmp_path / "again.csv")
    assert not (tmp_path / "again.csv").exists()


def test_the_largest_probabilities_first(sst2, tmp_path, labels):
    write_lines(tmp_path / "lines.txt", TEXTS)
    predict(sst2, tmp_path / "lines.txt", tmp_path / "out.jsonl", top=1, precision="fp32")
    records = read_records(tmp_path / "out.jsonl")
    assert [list(record["probabilities"]) for record in records] == [[label] for label in labels]


def test_texts_that_are_too_long_are_counted(sst2, tmp_path):
    texts = ["a fox", "the quick brown fox " * 30, "lazy dog"]
    write_records(tmp_path / "in.jsonl", [{"sentence": text, "label": "1"} for text in texts])
    report = predict(sst2, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert report.truncated == 1
    tokenizer = AlbertTokenizer.from_pretrained(sst2)
    cut = len(tokenizer.encode(texts[1])) - 14
    assert [record.get("truncated", 0) for record in read_records(tmp_path / "out.jsonl")] == [
        0,
        cut,
        0,
    ]
    answers = ask(sst2, texts)
    assert answers.results[1]["truncated"] == cut
    assert answers.notes[-1].endswith(f"not read: text 2: {cut}")
    write_lines(tmp_path / "lines.txt", texts)
    assert (
        predict(sst2, tmp_path / "lines.txt", tmp_path / "lines.jsonl", kind="classify").truncated
        == 1
    )
    truncation_note = "1 of 3 examples is longer than the 16 tokens that the model was trained to read; the end was not read"
    assert report.notes[-1].startswith(truncation_note)
    assert any(
        note.startswith(truncation_note)
        for note in evaluate_task(sst2, tmp_path / "in.jsonl").details["notes"]
    )


class Dataset(list):
    """A list of rows with features, as `datasets.Dataset`."""

    features: ClassVar = {"label": datasets.ClassLabel(names=["plain", "magic"]), "sentence": None}


def test_rows_in_memory_are_trained_on_scored_and_predicted_like_a_file(start, table, tmp_path):
    lines = [line.split("\t") for line in (table / "train.tsv").read_text().splitlines()[1:41]]
    rows = [{"sentence": text, "label": label} for text, label in lines]
    numbered = [{**row, "label": int(row["label"] == "magic")} for row in rows]
    settings = FinetuneSettings(
        lr=1e-3, steps=2, batch_size=8, length=16, precision="fp32", dropout=0.0
    )
    file = tmp_path / "rows.tsv"
    write_lines(file, ["sentence\tlabel", *("\t".join(line) for line in lines)])
    sources = {
        "file": (file, file),
        "rows": (rows, rows),
        "set": ({"train": Dataset(numbered), "validation": rows}, None),
    }
    runs = {
        name: finetune("classify", start, data, tmp_path / name, settings, columns=COLUMNS, dev=dev)
        for name, (data, dev) in sources.items()
    }
    assert runs["rows"].scores == runs["file"].scores == runs["set"].scores
    scored = [
        evaluate_task(tmp_path / "file", data, precision="fp32").scores
        for data in (file, rows, pandas.DataFrame(rows))
    ]
    assert scored[0] == scored[1] == scored[2]
    assert predict(tmp_path / "file", pandas.DataFrame(rows), tmp_path / "out.jsonl").examples == 40
    report = check_task("classify", start, rows, settings, columns=COLUMNS)
    assert report.splits["train"].examples == 36
    with pytest.raises(ConfigError, match="row 0 of the data is a str, not a dictionary"):
        finetune("classify", start, ["a text"], tmp_path / "wrong", settings, columns=COLUMNS)
    empty = [*rows, {**rows[0], "sentence": None}]
    for data, source_name in (
        (empty, "the data"),
        ({"train": empty, "dev": rows}, "the split `train`"),
    ):
        with pytest.raises(DataError, match=f"{source_name}, row 40: `sentence` is empty"):
            finetune("classify", start, data, tmp_path / "wrong", settings, columns=COLUMNS)


@pytest.mark.parametrize(
    ("library", "make_table"),
    [
        (None, lambda rows: rows),
        ("pandas", lambda rows: pandas.DataFrame(rows, index=["a", "b", "c"])),
        ("polars", polars.DataFrame),
        ("datasets", datasets.Dataset.from_list),
    ],
)
def test_predictions_of_rows_in_memory_come_back_as_what_was_given(
    sst2, expected, capsys, library, make_table, labels
):
    inputs = make_table([{"sentence": text, "stars": n} for n, text in enumerate(TEXTS)])
    predictions = predict(sst2, inputs, precision="fp32").predictions
    assert type(predictions) is type(inputs)
    assert library != "pandas" or list(predictions.index) == ["a", "b", "c"]
    rows = list_rows(predictions)
    assert [list(row) for row in rows] == [["sentence", "stars", "prediction", "probability"]] * 3
    assert [(row["sentence"], row["stars"]) for row in rows] == list(
        zip(TEXTS, range(3), strict=True)
    )
    assert [row["prediction"] for row in rows] == labels
    of_label = [record["probabilities"][record["label"]] for record in expected]
    assert [row["probability"] for row in rows] == pytest.approx(of_label, abs=1e-6)
    assert evaluate_task(
        sst2, make_table([{"sentence": t, "label": "1"} for t in TEXTS]), precision="fp32"
    ).scores
    assert not capsys.readouterr().out


def test_probabilities_of_different_labels_fit_into_one_column_of_polars():
    inputs = polars.DataFrame({"sentence": TEXTS})
    added = [{"probabilities": {"good": 0.6}}, {"probabilities": {"bad": 0.7}}]
    column = with_added_columns(inputs, inputs.rows(named=True), [0, 2], added)[
        "probabilities"
    ].to_list()
    assert column == [{"good": 0.6, "bad": None}, {"good": None, "bad": 0.7}]


def test_of_splits_in_memory_the_one_that_is_named_is_returned(sst2, capsys, labels):
    splits = {
        "train": [{"sentence": TEXTS[0]}],
        "validation": [{"sentence": text} for text in TEXTS],
    }
    for name in ("dev", "validation"):
        predictions = predict(sst2, splits, precision="fp32", split=name).predictions
        assert [row["prediction"] for row in predictions] == labels
    with pytest.raises(DataError, match=r"no split `test` \(there: train, validation\)"):
        predict(sst2, splits, precision="fp32")
    assert not capsys.readouterr().out


def test_rows_in_memory_that_cannot_be_used_are_left_out_of_the_predictions(sst2):
    rows = [{"sentence": TEXTS[0]}, {"text": "a column too few"}, {"sentence": TEXTS[2]}]
    report = predict(sst2, rows, precision="fp32", on_error="skip")
    assert [row["sentence"] for row in report.predictions] == [TEXTS[0], TEXTS[2]]
    assert report.left_out_lines == ["the data, row 1: no `sentence`"]
    (prediction,) = predict(sst2, rows[:1], precision="fp32", top=1).predictions
    assert list(prediction["probabilities"]) == [prediction["prediction"]]
    with pytest.raises(DataError, match="has a column `prediction`, which the output adds"):
        predict(sst2, [{"sentence": TEXTS[0], "prediction": "mine"}], precision="fp32")


def test_rows_lack_columns_that_are_not_read(sst2, tmp_path, run_command, labels):
    rows = [
        {"sentence": TEXTS[0], "note": 1},
        {"sentence": TEXTS[1]},
        {"sentence": TEXTS[2], "note": 3},
    ]
    predictions = predict(sst2, rows, precision="fp32").predictions
    assert [row["prediction"] for row in predictions] == labels
    assert [row.get("note") for row in predictions] == [1, None, 3]
    write_records(tmp_path / "in.jsonl", rows)
    predict(sst2, tmp_path / "in.jsonl", tmp_path / "out.csv", precision="fp32")
    with (tmp_path / "out.csv").open(newline="") as stream:
        assert [(row["sentence"], row["note"]) for row in csv.DictReader(stream)] == list(
            zip(TEXTS, ["1", "", "3"], strict=True)
        )
    error = run_command(
        "predict", sst2, tmp_path / "in.jsonl", "--id-column", "key", "--out", tmp_path / "no.csv"
    ).err
    assert "error[missing-column]" in error
    assert "has no column `key`" in error


def test_rows_that_can_be_read_only_once_come_back_as_a_list(sst2):
    rows = [{"sentence": text} for text in TEXTS]
    expected = predict(sst2, rows, precision="fp32").predictions
    assert predict(sst2, (row for row in rows), precision="fp32").predictions == expected
    stream = datasets.Dataset.from_list(rows).to_iterable_dataset()
    assert predict(sst2, stream, precision="fp32").predictions == expected


def test_missing_values_and_labels_in_memory_are_empty():

    def read_written(data):
        with as_files(data) as records:
            return [json.loads(line) for line in records.content.splitlines()]

    frame = pandas.DataFrame(
        {"day": [pandas.NaT], "label": pandas.Series([pandas.NA], dtype=object)}
    )
    assert read_written(frame) == [{"day": None, "label": None}]
    names = datasets.ClassLabel(names=["O", "B-X"])
    features = datasets.Features(label=names, tags=datasets.Sequence(names))
    rows = [{"label": -1, "tags": [0, 1]}, {"label": None, "tags": [1]}, {"label": 1, "tags": []}]
    dataset = datasets.Dataset.from_list(rows, features=features)
    expected = [
        {"label": None, "tags": ["O", "B-X"]},
        {"label": None, "tags": ["B-X"]},
        {"label": "B-X", "tags": []},
    ]
    assert read_written(dataset) == read_written(dataset.with_format("numpy")) == expected


def test_frames_keep_their_index_and_their_types(sst2):
    rows = [{"sentence": TEXTS[n % 3], "stars": n, "note": None} for n in range(149)]
    rows += [
        {"sentence": None, "stars": None, "note": "late"},
        {"sentence": TEXTS[0], "stars": 7, "note": "last"},
    ]
    frame = pandas.DataFrame(rows, index=[f"r{n}" for n in range(151)]).astype(
        {"stars": "Int64", "note": "category"}
    )
    predictions = predict(sst2, frame, precision="fp32", on_error="skip").predictions
    assert list(predictions.index) == [name for name in frame.index if name != "r149"]
    assert predictions[list(frame)].equals(frame.drop("r149"))
    narrow = polars.DataFrame(
        rows, schema_overrides={"stars": polars.Int16}, infer_schema_length=None
    )
    predictions = predict(sst2, narrow, precision="fp32", on_error="skip").predictions
    assert predictions.select(narrow.columns).equals(narrow[[*range(149), 150]])
    assert predictions.schema["stars"] == polars.Int16
    labels = datasets.Features(
        sentence=datasets.Value("string"), label=datasets.ClassLabel(names=["plain", "magic"])
    )
    dataset = datasets.Dataset.from_list(
        [{"sentence": text, "label": 1} for text in TEXTS], features=labels
    )
    assert (
        predict(sst2, dataset, precision="fp32", top=1).predictions.features["label"]
        == labels["label"]
    )


def test_rows_in_memory_are_never_called_by_the_file_that_is_made_of_them(sst2, tmp_path):
    rows = [
        {"sentence": TEXTS[0], "label": "1"},
        {"sentence": "half \ud800", "label": "1"},
        {"sentence": "", "label": "0"},
    ]
    report = predict(sst2, rows, tmp_path / "out.jsonl", precision="fp32", on_error="skip")
    assert [line.partition(":")[0] for line in report.left_out_lines] == [
        "the data, row 1",
        "the data, row 2",
    ]
    assert "albertkit-" not in "".join(row.hint for row in report.left_out)
    with pytest.raises(DataError, match="the data, row 1: bytes that are not UTF-8") as raised:
        predict(sst2, rows, precision="fp32")
    assert "albertkit-" not in str(raised.value)
    notes = evaluate_task(sst2, rows, precision="fp32", on_error="skip").details["notes"]
    assert notes[-1].startswith("rows left out: 2 (the first: row 1, ")
    report = predict(
        sst2, {"test": rows}, tmp_path / "of-splits.jsonl", precision="fp32", on_error="skip"
    )
    assert report.left_out_lines[1] == "the split `test`, row 2: `sentence` is empty"
    with_ids = [{"sentence": text, "label": "1", "id": "a"} for text in TEXTS[:2]]
    with pytest.raises(DataError, match="the data, row 1: id `a` again, as in row 0"):
        evaluate_task(
            sst2,
            with_ids,
            columns=Columns(text="sentence", label="label", id="id"),
            precision="fp32",
        )
    with pytest.raises(DataError, match="only `text`\n"):
        predict(sst2, [{"text": "another column"}], precision="fp32")


@pytest.mark.parametrize(
    ("name", "good", "bad", "reason"),
    [
        ("squad1", {"question": "who?", "context": "He did.", "answers": ["He"]}, {"question": "who?"}, "`context` is missing"),
        ("ner", {"tokens": ["Oz"], "tags": ["B-LOC"]}, {"tokens": ["a", "b"], "tags": ["O"]}, "2 tokens"),
        ("choice", {"question": "a?", "choices": ["x", "y"], "label": 1}, {"question": "", "choices": ["x", "y"]}, "no"),
        ("race", {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["B"]}, {"article": "a"}, "no field"),
    ],
)  # fmt: skip
def test_bad_rows_in_memory_are_counted_from_0_by_every_kind_of_task(
    tmp_path, name, good, bad, reason
):
    task = find_task(name)
    results = {}
    (tmp_path / "rows.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad))
    with as_files([good, bad]) as rows, as_files(tmp_path / "rows.jsonl") as file:
        for source in (rows, file):
            bad_rows = BadRows("skip")
            train_file = task.files(source)["train"]
            results[source] = (
                list(task.examples(train_file, split="train", labelled=True, bad_rows=bad_rows)),
                bad_rows.lines(),
            )
    in_memory = results[rows]
    of_file = results[file]
    assert len(in_memory[0]) == len(of_file[0]) == 1
    assert in_memory[0][0].id == of_file[0][0].id or name == "race"
    assert in_memory[1] == (
        of_file[1][0].replace(f"{tmp_path / 'rows.jsonl'}, line 2", "the data, row 1"),
    )
    assert in_memory[1][0].startswith("the data, row 1: ")
    assert reason in in_memory[1][0]


def test_dev_rows_in_memory_are_called_so(start, capfd, tmp_path):
    rows = [{"sentence": text, "label": str(n % 2)} for n, text in enumerate(TEXTS * 2)]
    settings = FinetuneSettings(steps=1, batch_size=2, length=16)
    result = finetune(
        "classify", start, rows, tmp_path / "run", settings, columns=COLUMNS, dev=rows
    )
    assert "dev: 6, `rows in memory`" in capfd.readouterr().err
    assert result.data.file == "rows in memory"
    assert evaluate_task(tmp_path / "run", rows).data.file == "rows in memory"


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (3, "the data are a int, and hold no rows"),
        (
            [{"sentence": "a"}, {"sentence": "a", "more": {(1, 2): 3}}],
            "row 1 of the data cannot be written as JSON",
        ),
        (b"abc", "the data are a bytes, and hold no rows"),
        ([], "the data have no rows"),
        ([{"sentence": b"abc"}], "`b'abc'` in the data is bytes, not text"),
        ({"train/a": [{"sentence": "a"}]}, "the data have no split `test` (there: train/a)"),
    ],
)
def test_what_is_no_rows_is_refused(sst2, data, fact):
    with pytest.raises(AlbertKitError, match=re.escape(fact)):
        predict(sst2, data, precision="fp32")


def test_the_name_of_a_split_is_no_path(sst2):
    with pytest.raises(DataError, match=r"the data has no `dev` of sst2 \(there: train/a\)"):
        evaluate_task(sst2, {"train/a": [{"sentence": "a"}]}, precision="fp32")
    with pytest.raises(DataError, match="dev twice, as the split `dev` and the split `validation`"):
        evaluate_task(
            sst2, {"dev": [{"sentence": "a"}], "validation": [{"sentence": "b"}]}, precision="fp32"
        )


def test_what_is_no_rows_of_other_libraries_is_refused(sst2):
    frame = pandas.DataFrame([["a", "b"]], columns=["sentence", "sentence"])
    for data, fact in (
        (polars.LazyFrame({"sentence": ["a"]}), "not computed yet"),
        (pandas.Series(["a"]), "are a Series, and hold no rows"),
        (frame, "have the column `sentence` twice"),
    ):
        with pytest.raises(AlbertKitError, match=fact):
            predict(sst2, data, precision="fp32")
    with pytest.raises(DataError, match="has a column `probabilities`, which the output adds"):
        predict(sst2, [{"sentence": "a", "probabilities": "mine"}], precision="fp32", top=1)


def test_data_at_an_address_are_read_and_model_and_data_may_not_be_swapped(
    sst2, tmp_path, run_command, labels
):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe(
        "/bucket/SST-2/dev.tsv",
        ("\n".join(["sentence\tlabel", *(f"{t}\t1" for t in TEXTS)]) + "\n").encode(),
    )
    scored = evaluate_task(sst2, "memory://bucket/SST-2", precision="fp32")
    assert scored.scores["accuracy"] == labels.count("1") / 3
    printed = run_command(
        "evaluate", sst2, "memory://bucket/SST-2", "--precision", "fp32", "--json"
    ).json
    assert printed["accuracy"] == pytest.approx(scored.scores["accuracy"])
    (tmp_path / "lines.txt").write_text("a fox\n")
    for command in (["predict"], ["evaluate"], ["finetune", "sst2"]):
        error = run_command(
            *command, tmp_path / "lines.txt", sst2, *(["--out", "x"] * (len(command) > 1))
        ).err
        assert "error[doubtful]" in error
        assert f"{sst2} {tmp_path / 'lines.txt'}" in error


@pytest.mark.parametrize(
    ("label", "header", "hint"),
    [
        ("lable", ["sentence", "label"], "did you mean `label`?"),
        ("scor", ["sentence", "score"], "did you mean `score`?"),
        ("label", ["sentence"], "is it a file without labels?"),
    ],
)
def test_a_label_column_that_is_not_there(start, tmp_path, label, header, hint):
    file = write_csv(tmp_path / "in.csv", header, [["a fox", "1"][: len(header)]])
    with pytest.raises(DataError) as caught:
        check_task("classify", start, file, columns=Columns(text="sentence", label=label))
    assert caught.value.slug == "missing-column"
    assert hint in caught.value.hint


def test_a_file_of_another_task_is_told_by_its_columns(start, tmp_path):
    row = {
        "guid": "a",
        "sentence1": "a fox",
        "sentence2": "a dog",
        "labels": {"label": 3.0, "binary-label": 1},
    }
    write_json(tmp_path / "klue.json", [row])
    with pytest.raises(DataError) as caught:
        check_task("korsts", start, tmp_path / "klue.json")
    assert "these are the columns of klue-sts" in caught.value.hint


def test_lines_from_standard_input(sst2, expected, tmp_path, monkeypatch, capfd):
    write_lines(tmp_path / "lines.txt", TEXTS)
    monkeypatch.setattr("albertkit.tables.records.STANDARD_INPUT", tmp_path / "lines.txt")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    predict(sst2, "-", precision="fp32")
    assert answers([json.loads(line) for line in capfd.readouterr().out.splitlines()]) == answers(
        expected
    )


def test_a_model_of_pairs_does_not_read_single_texts_unasked(start, tmp_path):
    model = save_untrained(start, tmp_path / "pairs", "rte", length=16)
    file = write_csv(tmp_path / "in.csv", ["review"], [["a fox"]])
    with pytest.raises(ConfigError, match="only the column of the first is named") as caught:
        predict(model, file, columns=Columns(text="review"))
    assert "--pair-column" in caught.value.hint
