"""Multiple choice: RACE's layouts and rule, SocialIQA and ARC as they are, losses against Google's and transformers'."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from record_files import read_records, write_json, write_records
from scipy.stats import binomtest
from torch.testing import assert_close

from albertkit.batches.features import Features
from albertkit.conversion.convert import convert
from albertkit.errors import ConfigError, DataError
from albertkit.model import AlbertForMultipleChoice
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tasks.choices import ChoiceExample, choice_loss, choice_task
from albertkit.tasks.models import run_model
from albertkit.tasks.registry import find_task

from .conftest import read_examples, reread

ABC = ("A", "B", "C")
CHOICE = choice_task("choice")


def read_file(task, file, labelled=True):
    bad_rows = BadRows("skip")
    return read_examples(task, file, labelled=labelled, bad_rows=bad_rows), bad_rows


# --- RACE -----------------------------------------------------------------------------------------


def passage(name, questions=2):
    return {
        "answers": ["A", "D", "C"][:questions],
        "options": [[f"{letter}{number}" for letter in "wxyz"] for number in range(questions)],
        "questions": ["What is  it?", "The _ is not a _ .", "Why"][:questions],
        "article": f"The text of {name}.\nIt has 2,000 words.",
        "id": name,
    }


def race(folder, merged=False):
    names = {"middle": ["middle9.txt", "middle10.txt"], "high": ["high3.txt"]}
    for split in ("train", "dev", "test"):
        for level, files in names.items():
            (folder / split / level).mkdir(parents=True)
            for name in files:
                target = (
                    folder / split / level / ("all.txt" if merged else name.removeprefix(level))
                )
                with open(target, "a", encoding="utf-8") as stream:
                    stream.write(json.dumps(passage(name)) + "\n")
    return folder


@pytest.mark.parametrize("merged", [False, True])
def test_race_raw_and_merged(tmp_path, merged):
    task = choice_task("race")
    folder = race(tmp_path / "RACE", merged)
    assert (
        task.files(tmp_path)
        == task.files(folder)
        == {s: folder / s for s in ("train", "dev", "test")}
    )
    examples, bad_rows = read_file(task, folder / "dev")
    ids = "middle9.txt-0 middle9.txt-1 middle10.txt-0 middle10.txt-1 high3.txt-0 high3.txt-1"
    assert [example.id for example in examples] == ids.split()
    assert [example.level for example in examples] == ["middle"] * 4 + ["high"] * 2
    assert examples[1] == ChoiceExample(
        "middle9.txt-1", "The text of middle9.txt.\nIt has 2,000 words.", "The _ is not a _ .", ("w1", "x1", "y1", "z1"),
        3, ("A", "B", "C", "D"), "middle",
    )  # fmt: skip
    assert bad_rows.rows == []
    only_high = task.with_changes(levels=("high",))
    assert [example.id for example in read_file(only_high, folder / "dev")[0]] == [
        "high3.txt-0",
        "high3.txt-1",
    ]
    assert task.files(folder / "dev/high") == {"train": folder / "dev/high"}
    assert len(read_file(task, folder / "dev/high")[0]) == 2
    file = folder / "dev/high" / ("all.txt" if merged else "3.txt")
    assert read_file(task, file)[0][0].level == "high"
    assert task.files(file) == {"train": file}


def test_race_without_answers_and_with_another_number_of_choices(tmp_path):
    record = passage("high1.txt")
    del record["answers"]
    record["options"] = [["a", "b"], "a b c d e".split()]
    write_json(tmp_path / "1.txt", record)
    examples, _ = read_file(choice_task("race"), tmp_path, labelled=False)
    assert [
        (len(example.choices), example.names[-1], example.label, example.level)
        for example in examples
    ] == [
        (2, "B", None, "high"),
        (5, "E", None, "high"),
    ]
    assert read_file(choice_task("race"), tmp_path)[1].rows[0].reason == "no field `answers`"


@pytest.mark.parametrize(
    ("change", "reason", "num_examples"),
    [
        ({"answers": ["A"]}, "not as many of each: 2 questions, 2 options, 1 answers", 0),
        ({"answers": "AB"}, "`answers` is not a list: not JSON: Expecting value, column 1", 0),
        (
            {"answers": ["A", "E"]},
            "question 1 of x: label `E` is none of A, B, C, D, and no number from 0 to 3",
            1,
        ),
        (
            {"options": [["a"], ["a", "b", "c", "d"]]},
            "question 0 of x: 1 choices that are not empty",
            1,
        ),
        ({"options": [["a", " ", "c"], list("abcd")]}, "question 0 of x: choice B is empty", 1),
        ({"options": [["a", 1], list("abcd")]}, "question 0 of x: 1 is not a text", 1),
        (
            {"options": ["ab", list("abcd")]},
            "question 0 of x: `options` is not a list: not JSON: Expecting value, column 1",
            1,
        ),
        ({"article": ["a"]}, "question 0 of x: ['a'] is not a text", 0),
        ({"article": "\ud800"}, "question 0 of x: bytes that are not UTF-8", 0),
        (
            {"article": " ", "questions": ["", "b"]},
            "question 0 of x: no context and no question",
            1,
        ),
    ],
)
def test_race_with_bad_rows(tmp_path, change, reason, num_examples):
    write_json(tmp_path / "1.txt", {**passage("x"), **change})
    examples, bad_rows = read_file(choice_task("race"), tmp_path)
    assert len(examples) == num_examples
    assert bad_rows.rows[0].line == 1
    assert bad_rows.rows[0].reason == reason


def test_race_that_is_none(tmp_path):
    task = choice_task("race")
    (tmp_path / "a/high").mkdir(parents=True)
    with pytest.raises(DataError, match=r"has no passage \(\*\.txt\) of middle or high"):
        read_file(task, tmp_path / "a")
    with pytest.raises(
        DataError,
        match=r"\[missing-file\].*none of the folders train, dev, test of RACE; it holds a",
    ):
        task.files(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        task.files(tmp_path / "none")
    for name in ("all.txt", "1.txt"):
        write_json(tmp_path / "a/high" / name, passage("x"))
    with pytest.raises(DataError, match=r"has all\.txt and 1 single passages"):
        read_file(task, tmp_path / "a")
    for text, reason in (
        ("{\n}", "not JSON: Expecting property name"),
        ("[]", "not an object of JSON"),
    ):
        (tmp_path / "b.txt").write_text(text)
        assert read_file(task, tmp_path / "b.txt")[1].rows[0].reason.startswith(reason)


# --- SocialIQA, ARC, tables of one's own ----------------------------------------------------------


def test_real_files(data):
    folder = data / "multiple-choice"
    siqa = choice_task("siqa")
    arc = choice_task("arc")
    assert {split: path.name for split, path in siqa.files(folder).items()} == {
        "dev": "siqa-dev.jsonl"
    }
    assert {split: path.name for split, path in arc.files(folder).items()} == {
        "dev": "arc_challenge_dev.csv",
        "test": "arc_challenge_test.csv",
        "dev_easy": "arc_easy_dev.csv",
        "test_easy": "arc_easy_test.csv",
    }
    examples, bad_rows = read_file(siqa, siqa.files(folder)["dev"])
    assert len(examples) == 1954
    assert bad_rows.rows == []
    assert sorted(Counter(example.label for example in examples).items()) == [
        (0, 643),
        (1, 654),
        (2, 657),
    ]
    records = read_records(folder / "siqa-dev.jsonl")
    answers = [
        {record[f"answer{letter}"].strip().casefold() for letter in ABC} for record in records
    ]
    num_doubtful = sum(len(choices) < 3 for choices in answers)
    fact = f"{num_doubtful} questions with two choices that are equal, or differ only in case"
    assert [note.partition("`: ")[2] for note in bad_rows.notes] == [fact]
    counts = {}
    for split, path in arc.files(folder).items():
        examples, bad_rows = read_file(arc, path)
        reasons = Counter(row.reason.split(" is none")[0] for row in bad_rows.rows)
        counts[split] = (
            len(examples),
            dict(Counter(len(example.choices) for example in examples)),
            dict(reasons),
        )
    # Rows whose choices were lost, or the fifth one
    nothing = "0 choices that are not empty"
    fifth = "label `E`"
    assert counts == {
        "dev": (1096, {4: 1095, 3: 1}, {nothing: 23}),
        "test": (294, {4: 291, 3: 3}, {nothing: 4, fifth: 1}),
        "dev_easy": (2147, {4: 2142, 3: 5}, {nothing: 102, fifth: 2}),
        "test_easy": (549, {4: 548, 3: 1}, {nothing: 21}),
    }


def test_every_form_of_a_table(tmp_path):
    choices = ("red", "blue, light", "green")
    expected = ChoiceExample("0", "", "Which?", choices, 1, ABC)
    listed = {"question": "Which?", "choices": list(choices)}
    files = {
        "a.csv": 'Which?,red,"blue, light",green,B\n',
        "b.csv": 'question,choice2,choice1,choice 10,label\nWhich?,"blue, light",red,green,1\n',
        "c.tsv": "question\tchoice1\tchoice2\tchoice3\tchoice4\tlabel\nWhich?\tred\tblue, light\tgreen\t\tB\n",
        "d.jsonl": json.dumps({**listed, "label": 1}) + "\n",
        "e.json": json.dumps([{**listed, "label": "B"}]),
        "f.jsonl": json.dumps(
            {
                "question": {
                    "stem": "Which?",
                    "choices": [{"text": t, "label": n} for t, n in zip(choices, ABC, strict=True)],
                },
                "answerKey": "B",
            }
        ),
        "g.jsonl": json.dumps(
            {"question": "Which?", "choices": {"text": choices, "label": ABC}, "answerKey": "B"}
        ),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_file(CHOICE, tmp_path / name) == ([expected], BadRows("skip")), name
    record = {"id": "Q1", "context": "Look!", **listed, "label": "C"}
    write_records(tmp_path / "h.jsonl", [record])
    assert read_file(CHOICE, tmp_path / "h.jsonl")[0] == [
        ChoiceExample("Q1", "Look!", "Which?", choices, 2, ABC)
    ]
    write_records(tmp_path / "i.jsonl", [listed])
    assert read_file(CHOICE, tmp_path / "i.jsonl", labelled=False)[0][0].label is None


def test_numbers_as_names_of_choices(tmp_path):
    choices = [{"text": text, "label": name} for text, name in zip("abcd", "1234", strict=True)]
    write_records(
        tmp_path / "a.jsonl", [{"question": {"stem": "?", "choices": choices}, "answerKey": "1"}]
    )
    [example] = read_file(choice_task("arc"), tmp_path / "a.jsonl")[0]
    assert example.label == 0
    assert example.names == ("1", "2", "3", "4")


def test_labels_of_socialiqa_beside_the_questions(tmp_path):
    rows = [
        {"context": "a", "question": "b", "answerA": "c", "answerB": "d", "answerC": "e"}
        for _ in range(3)
    ]
    write_records(tmp_path / "dev.jsonl", rows)
    task = choice_task("siqa")
    with pytest.raises(DataError, match="no column `correct`"):
        read_file(task, tmp_path / "dev.jsonl")
    (tmp_path / "dev-labels.lst").write_text("3\n1\n")
    examples, bad_rows = read_file(task, tmp_path / "dev.jsonl")
    assert [example.label for example in examples] == [2, 0]
    assert bad_rows.rows[0].reason == "label `` is none of A, B, C, and no number from 1 to 3"
    write_records(tmp_path / "test.jsonl", [{**rows[0], "label": "2"}])
    assert read_file(task, tmp_path / "test.jsonl")[0][0].label == 1


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            [{"choices": "[1"}],
            "`choices` is not a list: not JSON: Expecting ',' delimiter, column 3",
        ),
        ([{"choices": ["a", None]}], "None is not a text"),
        ([{"label": 3}], "label `3` is none of A, B, and no number from 0 to 1"),
        ([{}, {"label": 2}], "label `2` is none of A, B, and no number from 0 to 1"),
        ([{"label": None}], "label `` is none of A, B, and no number from 0 to 1"),
        ([{"label": "a"}], "label `a` is none of A, B, and no number from 0 to 1"),
        ([{"id": "x"}, {"id": "x"}], "id `x` again, as in line 1"),
    ],
)
def test_tables_with_bad_rows(tmp_path, rows, reason):
    good = {"question": "?", "choices": ["a", "b"], "label": 0}
    write_records(tmp_path / "a.jsonl", [{**good, **row} for row in rows])
    examples, bad_rows = read_file(CHOICE, tmp_path / "a.jsonl")
    assert len(examples) == len(rows) - 1
    assert [row.reason for row in bad_rows.rows] == [reason]


@pytest.mark.parametrize(
    ("choices", "labels", "fact"),
    [
        ({"choices": ["a", "b", "c"]}, (1, 2, 3), "begin with 1, not with 0"),
        ({"option1": "a", "option2": "b"}, (1, 2), "begin with 1, not with 0"),
        ({"A": "a", "B": "b", "C": "c", "D": "d"}, (0, 1, 2), "begin with 0, not with 1"),
    ],
)
def test_numbers_that_begin_with_another_one_are_refused(tmp_path, choices, labels, fact):
    rows = [{"question": "?", **choices, "answer": label} for label in labels]
    write_records(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=f"labels that are numbers {fact}"):
        read_file(CHOICE, tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="write the names of the choices"):
        [*CHOICE.examples(tmp_path / "a.jsonl", split="train", labelled=True, bad_rows=BadRows())]


def test_choices_that_are_equal_are_said(tmp_path):
    choices = [["a", "b"], ["a", "a"], ["Yes", "yes ", "no"]]
    write_records(
        tmp_path / "a.jsonl", [{"question": "?", "choices": texts, "label": 0} for texts in choices]
    )
    examples, bad_rows = read_file(CHOICE, tmp_path / "a.jsonl")
    assert [list(example.choices) for example in examples] == choices
    assert [note.partition("`: ")[2].partition(" with")[0] for note in bad_rows.notes] == [
        "2 questions"
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sentence": "Ann paid Eve."}, "no `_` in `sentence`, where the choices belong"),
        ({"option2": ""}, "1 choices that are not empty"),
        ({"answer": "3"}, "label `3` is none of A, B, and no number from 1 to 2"),
        ({"answer": ""}, "label `` is none of A, B, and no number from 1 to 2"),
    ],
)
def test_bad_rows_of_winogrande(tmp_path, change, reason):
    write_records(tmp_path / "a.jsonl", [{**PUBLISHED["WinoGrande"]["row"], **change}])
    examples, bad_rows = read_file(CHOICE, tmp_path / "a.jsonl")
    assert examples == []
    assert [row.reason for row in bad_rows.rows] == [reason]


def test_tables_that_are_none(tmp_path):
    (tmp_path / "a.csv").write_text("question,option1,label\nWhy?,a,0\n")
    with pytest.raises(
        DataError,
        match=r"\[missing-column\].*no column `choices`, only `question`, `option1`, `label`",
    ):
        read_file(CHOICE, tmp_path / "a.csv")


# Rows with the columns of published sets, and what is read: context, question, choices, place of the
# right one.
PUBLISHED = {
    published["set"]: published
    for published in read_records(Path(__file__).with_name("published_choices.jsonl"))
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_are_read_whole(tmp_path, name):
    write_records(tmp_path / "train.jsonl", [PUBLISHED[name]["row"]])
    bad_rows = BadRows("stop")
    [example] = read_examples(CHOICE, tmp_path / "train.jsonl", "train", True, bad_rows)
    content = [example.context, example.question, list(example.choices), example.label]
    assert content == PUBLISHED[name]["read"]
    assert bad_rows.notes == []


def test_race_and_piqa_of_the_hub(tmp_path):
    """Three questions on two passages, numbered as the original files number them; labels in a file beside the questions."""
    row = PUBLISHED["RACE"]["row"]
    rows = [row, {**row, "question": "Why?", "answer": "A"}, {**row, "example_id": "middle20.txt"}]
    for split in ("train", "validation"):
        write_records(tmp_path / f"{split}.jsonl", rows)
    task = choice_task("race")
    assert task.files(tmp_path) == {
        "train": tmp_path / "train.jsonl",
        "dev": tmp_path / "validation.jsonl",
    }
    examples, bad_rows = read_file(task, tmp_path / "train.jsonl")
    assert [(e.id, e.level, e.label) for e in examples] == [
        ("high1.txt-0", "high", 2),
        ("high1.txt-1", "high", 0),
        ("middle20.txt-0", "middle", 2),
    ]
    assert bad_rows.rows == []
    question = {name: text for name, text in PUBLISHED["PIQA"]["row"].items() if name != "label"}
    write_records(tmp_path / "valid.jsonl", [question])
    (tmp_path / "valid-labels.lst").write_text("1\n")
    assert read_file(CHOICE, tmp_path / "valid.jsonl")[0][0].label == 1


def test_a_context_of_an_unknown_name_is_said_in_prediction_too(tmp_path):
    rows = [
        {
            "story": f"It rained on day {n}.",
            "question": "Why?",
            "choice1": "Dry.",
            "choice2": "Wet.",
        }
        for n in range(9)
    ]
    write_records(tmp_path / "test.jsonl", rows)
    examples, bad_rows = read_file(CHOICE, tmp_path / "test.jsonl", labelled=False)
    assert [example.context for example in examples] == [""] * 9
    assert "`story`" in bad_rows.notes[0]
    with_story = read_file(
        find_task("choice", Columns(text="story")), tmp_path / "test.jsonl", labelled=False
    )
    assert with_story[0][3].context == "It rained on day 3."
    assert with_story[1].notes == []


def test_columns_of_choices_can_be_named(tmp_path):
    row = {
        "text": "x",
        "story": "It rained.",
        "ask": "Why?",
        "choice1": "Dry.",
        "choice2": "Wet.",
        "gold": "B",
        "key": "k1",
    }
    write_records(tmp_path / "a.jsonl", [row])
    task = find_task("choice", Columns(text="story", pair="ask", label="gold", id="key"))
    [example] = read_examples(task, tmp_path / "a.jsonl")
    assert example == ChoiceExample("k1", "It rained.", "Why?", ("Dry.", "Wet."), 1, ("A", "B"))
    assert reread(task) == task
    (tmp_path / "b.csv").write_text("Why?,Dry.,Wet.,It rained.,1\n")
    task = find_task("choice", Columns(text="c", columns="question,choice1,choice2,c,label"))
    [example] = read_examples(task, tmp_path / "b.csv")
    assert example.context == "It rained."
    assert example.label == 1
    with pytest.raises(DataError, match="no column `stroy`"):
        read_examples(find_task("choice", Columns(text="stroy")), tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match="conflicting-options"):
        find_task("race", Columns(text="story"))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_texts_that_are_not_read_are_said_once_at_training(tmp_path, kind):
    import pandas

    rows = [
        {"story": f"It rained on day {n}.", "question": f"Why {n}?", "choice1": "Dry.", "choice2": "Wet.", "label": n % 2,
         "when": f"2020-01-{n + 1:02} 10:00:00", "topic": "the weather report", "by": f"user{n}", "note": f"비가 {n}번 왔다 또"}
        for n in range(20)
    ]  # fmt: skip
    frame = pandas.DataFrame(rows)
    file = tmp_path / f"train.{kind}"
    if kind == "jsonl":
        frame.to_json(file, orient="records", lines=True, force_ascii=False)
    else:
        frame.to_csv(file, index=False) if kind == "csv" else frame.to_parquet(file)

    def notes_on(task, split="train", **columns):
        bad_rows = BadRows("stop")
        examples = read_examples(find_task(task, Columns(**columns)), file, split, True, bad_rows)
        assert len(examples) == 20
        return bad_rows.notes

    note = f"`train.{kind}`: {{}} not read: {{}}; name those to read with --text-column and --pair-column"
    one_left = note.format("1 column holds texts that are", "`note`")
    two_left = note.format("2 columns hold texts that are", "`story`, `note`")
    assert notes_on("choice", text="story") == [one_left]
    assert notes_on("choice", "dev", text="story") == []
    assert notes_on("choice") == [two_left]
    assert notes_on("classify", text="story", label="topic") == [one_left]


# --- features -------------------------------------------------------------------------------------


def google(tokenizer, example, length, max_qa_length):
    """`convert_single_example` of race_utils.py, written down again."""
    rows = []
    for choice in example.choices:
        cloze = "_" in example.question
        qa = tokenizer.encode(
            example.question.replace("_", choice) if cloze else example.question + " " + choice
        )[-max_qa_length:]
        context = tokenizer.encode(example.context)
        if len(context) + len(qa) > length - 3:
            context = context[: length - 3 - len(qa)]
        ids = [tokenizer.cls_id, *context, tokenizer.sep_id, *qa, tokenizer.sep_id]
        rows.append((ids, [0] * (len(context) + 2) + [1] * (len(qa) + 1)))
    return rows


@pytest.mark.parametrize(
    ("length", "max_qa_length"),
    [
        (512, 128),
        (40, 128),
        (40, 7),
        (24, 12),
    ],
)
def test_features_are_googles(tokenizer, length, max_qa_length):
    text = "In 2,000 BC the _ inhabitants of Mesopotamia, it is said, were fond of beer. " * 3
    examples = [
        ChoiceExample("0", text, "What were they fond of, as those who say so think?", ("Beer", "2,000 BC", "I see"), 0, ABC),
        ChoiceExample("1", text, "They drank _ , and _ again.", ("the beer of Mesopotamia", "milk"), 1, ABC[:2]),
        ChoiceExample("2", "Short.", "Is it?", ("yes, it is", "no"), 1, ABC[:2]),
    ]  # fmt: skip
    task = choice_task("race", length=length, max_qa_length=max_qa_length)
    features = task.features(examples, tokenizer, labelled=True)
    expected = [
        row
        for example in examples
        for row in google(tokenizer, example, length, min(max_qa_length, length - 3))
    ]
    sequences = [
        (features.input_ids[a:b].tolist(), features.token_type_ids[a:b].tolist())
        for a, b in zip(features.offsets[:-1], features.offsets[1:], strict=True)
    ]
    assert sequences == expected
    assert features.examples.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert features.per_sequence["labels"].tolist() == [1, 0, 0, 0, 1, 0, 1]
    without_cloze = task.with_changes(cloze=False).features(examples, tokenizer, labelled=False)
    assert without_cloze.input_ids.tolist() != features.input_ids.tolist()


def test_features_without_a_text_to_read(tokenizer):
    example = ChoiceExample(
        "0", "", "It is hot. Which one is asked for?", ("this one", "that"), 0, ABC[:2]
    )
    task = choice_task("arc")
    features = task.features([example], tokenizer, labelled=False)
    first = tokenizer.decode(features.input_ids[: features.offsets[1]])
    assert first == "[CLS] it is hot. which one is asked for?[SEP] this one[SEP]"
    short = task.with_changes(length=10).features([example], tokenizer, labelled=False)
    assert (
        tokenizer.decode(short.input_ids[: short.offsets[1]])
        == "[CLS] one is asked for?[SEP] this one[SEP]"
    )
    num_tokens = len(tokenizer.encode(example.question)) + len(tokenizer.encode("this one"))
    assert features.left_out.tolist() == [0]
    assert short.left_out.tolist() == [num_tokens - 7]  # of length 10, three are special
    with pytest.raises(ConfigError, match="no room"):
        task.with_changes(length=3).features([example], tokenizer, labelled=False)
    with pytest.raises(DataError, match=r"\[bad-label\].*1 of 1 examples have no label"):
        task.features(
            [ChoiceExample("7", "", "?", ("a", "b"), None, ABC[:2])], tokenizer, labelled=True
        )
    assert task.features([], tokenizer, labelled=True).num_sequences == 0


# --- the loss -------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    ties=st.booleans(),
    unlabelled=st.booleans(),
)
def test_a_ragged_softmax_is_that_of_each_example(sizes, seed, ties, unlabelled):
    random = torch.Generator().manual_seed(seed)
    rows = [20 * torch.randn(size, generator=random) for size in sizes]
    if ties:
        rows = [row.round(decimals=-1) for row in rows]
    labels = [int(torch.randint(size, (1,), generator=random)) for size in sizes]
    groups = torch.repeat_interleave(torch.arange(len(sizes)) * 3 + 5, torch.tensor(sizes))
    right = torch.cat(
        [torch.arange(size) == label for size, label in zip(sizes, labels, strict=True)]
    )
    if unlabelled:
        right[: sizes[0]] = False
    labelled_rows = list(zip(rows, labels, strict=True))[int(unlabelled) :]
    logits = torch.cat(rows).requires_grad_()
    ours = choice_loss(logits, groups, right)
    expected_loss = sum(
        (F.cross_entropy(row, torch.tensor(label)) for row, label in labelled_rows),
        torch.tensor(0.0),
    )
    assert ours.loss_sum.item() == pytest.approx(expected_loss.item(), rel=1e-5, abs=1e-5)
    assert int(ours.correct) == sum(int(row.argmax()) == label for row, label in labelled_rows)
    assert int(ours.label_count) == len(labelled_rows)
    gradient = torch.autograd.grad(ours.loss_sum, logits)[0]
    expected = torch.cat([row.softmax(0) for row in rows]) - right.float()
    if unlabelled:
        expected[: sizes[0]] = 0
    assert_close(gradient, expected, atol=1e-5, rtol=1e-5)


def from_padded(ids, mask, types, labels):
    """Features of padded [E, choices, S] arrays."""
    num_examples, choices, _ = ids.shape
    ids, mask, types = (array.reshape(num_examples * choices, -1) for array in (ids, mask, types))
    rows = [
        (i[m != 0], int((t[m != 0] == 0).sum())) for i, m, t in zip(ids, mask, types, strict=True)
    ]
    right = (np.arange(choices) == np.asarray(labels)[:, None]).astype(np.int64).reshape(-1)
    return Features.from_sequences(
        rows, np.repeat(np.arange(num_examples), choices), {"labels": right}
    )


def test_googles_race_model(golden, tmp_path):
    folder = tmp_path / "race"
    shutil.copytree(golden / "tf1/race", folder, copy_function=shutil.copy)
    convert(folder / "model.ckpt-3", tmp_path / "model", head="multiple-choice")
    model = AlbertForMultipleChoice.from_pretrained(tmp_path / "model").eval()
    inputs, outputs = (
        np.load(golden / "tf1/race" / f"{name}.npz") for name in ("inputs", "outputs")
    )
    arrays = [inputs[name].reshape(2, 4, -1) for name in ("input_ids", "input_mask", "segment_ids")]
    features = from_padded(*arrays, inputs["label_ids"])
    assert features.lengths.min() < features.lengths.max()
    task = choice_task("race")
    with torch.inference_mode():
        loss = task.losses(model, features.batch(np.arange(8)))["choice"]
    assert loss.mean().item() == pytest.approx(float(outputs["loss"]), abs=1e-5)
    examples = [
        ChoiceExample(str(n), "a", "b", ("c",) * 4, int(inputs["label_ids"][n]), tuple("ABCD"))
        for n in range(2)
    ]
    records = task.predictions(examples, features, run_model(model, task, features, 50))
    assert [record["index"] for record in records] == outputs["predictions"].tolist()
    np.testing.assert_allclose(
        [list(r["probabilities"].values()) for r in records], outputs["probabilities"], atol=1e-5
    )
    other_labels = from_padded(*arrays, (inputs["label_ids"] + 1) % 4)
    with torch.inference_mode():
        noticed = task.losses(model, other_labels.batch(np.arange(8)))["choice"]
    assert abs(noticed.mean().item() - float(outputs["loss"])) > 1e-3


def test_transformers_with_padding(tiny_model, tmp_path):
    from transformers import AlbertForMultipleChoice as Theirs

    model = tiny_model(AlbertForMultipleChoice, vocab_size=50)
    model.save_pretrained(tmp_path)
    theirs = Theirs.from_pretrained(tmp_path).eval()
    random = np.random.default_rng(0)
    ids = random.integers(5, 50, (5, 3, 20))
    lengths = random.integers(4, 20, (5, 3, 1))
    labels = random.integers(0, 3, 5)
    mask = (np.arange(20) < lengths).astype(np.int64)
    types = (np.arange(20) >= lengths // 2).astype(np.int64) * mask
    tensors = [torch.from_numpy(array) for array in (ids * mask, mask, types, labels)]
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    output = theirs(**dict(zip(names, tensors, strict=True)))
    task = CHOICE
    features = from_padded(ids, mask, types, labels)
    batch = features.batch(np.arange(15))
    ours = task.losses(model, batch)["choice"]
    assert ours.mean().item() == pytest.approx(output.loss.item(), abs=1e-5)
    assert int(ours.correct) == int((output.logits.argmax(1) == tensors[3]).sum())
    assert task.count_targets(batch) == {"choice": 5}
    ours.mean().backward()
    output.loss.backward()
    for (name, parameter), (_, their_parameter) in zip(
        model.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert_close(parameter.grad, their_parameter.grad, atol=1e-5, rtol=1e-4, msg=name)
    # Padding that is seen
    unmasked = theirs(input_ids=tensors[0], token_type_ids=tensors[2], labels=tensors[3])
    assert abs(unmasked.loss.item() - ours.mean().item()) > 1e-3


# --- predictions and files ------------------------------------------------------------------------


def test_predictions_scores_and_files(tmp_path):
    levels = ("middle", "middle", "high", "high")
    examples = [
        ChoiceExample(
            f"{level}1.txt-{n % 2}", "a", "b", ("c",) * (2 + n % 2), n % 2, ABC[: 2 + n % 2], level
        )
        for n, level in enumerate(levels)
    ]
    task = choice_task("race")
    sizes = [len(example.choices) for example in examples]
    features = Features.from_sequences([([1], 1)] * sum(sizes), np.repeat(np.arange(4), sizes))
    records = task.predictions(
        examples, features, [1.0, 0.0, 0.0, 0.0, 3.0, 2.0, 2.0, 0.0, 1.0, 0.0]
    )
    assert [(record["id"], record["label"], record["index"]) for record in records] == [
        ("middle1.txt-0", "A", 0),
        ("middle1.txt-1", "C", 2),
        ("high1.txt-0", "A", 0),
        ("high1.txt-1", "B", 1),
    ]
    assert list(records[1]["probabilities"]) == ["A", "B", "C"]
    assert records[1]["probabilities"]["C"] == pytest.approx(np.e**3 / (2 + np.e**3))
    assert task.score(examples, records) == {"accuracy": 0.75}
    details = task.details(examples, records)
    assert details["accuracy_middle"] == 0.5
    assert details["accuracy_high"] == 1.0
    assert details["intervals"]["accuracy_high"] == pytest.approx(
        binomtest(2, 2).proportion_ci(method="wilson")
    )
    assert details["intervals"]["accuracy"][0] < 0.75 <= details["intervals"]["accuracy"][1]
    assert [path.name for path in task.write(tmp_path, records, split="test")] == [
        "predictions.jsonl",
        "answers.json",
    ]
    assert json.loads((tmp_path / "answers.json").read_text()) == {
        "middle1.txt": ["A", "C"],
        "high1.txt": ["A", "B"],
    }
    assert read_records(tmp_path / "predictions.jsonl") == records
    for name, file, text in (
        ("siqa", "predictions.lst", "1\n3\n1\n2\n"),
        (
            "arc",
            "predictions.csv",
            "middle1.txt-0,A\nmiddle1.txt-1,C\nhigh1.txt-0,A\nhigh1.txt-1,B\n",
        ),
    ):
        assert choice_task(name).write(tmp_path / name, records, split="test")[1].name == file
        assert (tmp_path / name / file).read_text() == text
    assert len(CHOICE.write(tmp_path / "choice", records, split="test")) == 1


def test_collapse_is_said():
    task = choice_task("siqa")
    examples = [ChoiceExample("0", "a", "b", ("c",) * 3, label, ABC) for label in (0, 1, 2)]
    assert task.collapsed(examples, [{"index": 1}] * 3) == "all 3 answers are choice 2"
    assert task.collapsed(examples, [{"index": 1}] * 2 + [{"index": 0}]) is None
    assert task.collapsed(examples[:1] * 3, [{"index": 1}] * 3) is None


def test_task_as_a_file_keeps_it():
    task = choice_task("race", length=256, levels=("high",))
    assert reread(task) == task
    assert task.cloze
    assert not choice_task("siqa").cloze


@pytest.mark.parametrize(
    "name", "premise passage article document paragraph text Context support".split()
)
def test_the_text_to_read_first_has_many_names(tmp_path, name):
    row = {
        name: "It rained.",
        "question": "effect",
        "choice1": "Dry.",
        "choice2": "Wet.",
        "label": 1,
    }
    file = tmp_path / "train.jsonl"
    write_records(file, [row])
    task = CHOICE
    (example,) = read_examples(task, file, "train")
    assert (example.context, example.question, example.label) == ("It rained.", "effect", 1)
    write_records(file, [{"context": "", **row}])
    if name != "Context":
        named = CHOICE.with_columns(Columns(text=name))
        assert read_examples(named, file)[0].context == "It rained."
        with pytest.raises(DataError, match="several texts to read first"):
            read_examples(task, file, "train")
