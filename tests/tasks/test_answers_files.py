"""Files of questions: every form gives the same questions, and what cannot be used is said."""

import gzip
import json

import pytest

from albertkit.errors import DataError
from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.questions import (
    AnnotatedAnswer,
    QuestionExample,
    find_question_files,
    read_questions,
)

CONTEXT = "Rain fell in May. More rain fell in June, and in May of the next year."
RECORDS = [
    {
        "id": "a",
        "question": "When did it rain?",
        "answers": [{"text": "in May", "answer_start": 10}],
    },
    {
        "id": "b",
        "question": "And then?",
        "answers": [
            {"text": "in June", "answer_start": 33},
            {"text": "June", "answer_start": 36},
        ],
    },
    {"id": "c", "question": "Why?", "answers": [], "is_impossible": True},
]
FLAT = [{**record, "context": CONTEXT, "title": "Weather"} for record in RECORDS]
OFFICIAL = {
    "version": "v2.0",
    "data": [{"title": "Weather", "paragraphs": [{"context": CONTEXT, "qas": RECORDS}]}],
}
COLUMNS = [
    {**r, "answers": {key: [a[key] for a in r["answers"]] for key in ("text", "answer_start")}}
    for r in FLAT
]  # as transformers and datasets have it
for record in COLUMNS:
    record.pop("is_impossible", None)


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


FORMS = {
    "official.json": json.dumps(OFFICIAL),
    "indented.json": json.dumps(OFFICIAL, indent=1),
    "records.json": json.dumps(FLAT),
    "data.json": json.dumps({"data": FLAT}),
    "lines.jsonl": lines(FLAT),
    "columns.jsonl": lines(COLUMNS),
    "one.jsonl": "\ufeff" + lines(FLAT).replace("\n", "\n\n"),
}


def read_content(folder, content, version=2, labelled=True, on_error="stop"):
    file = folder / "questions"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    bad_rows = BadRows(on_error)  # type: ignore[arg-type]
    return list(
        read_questions(file, version=version, labelled=labelled, bad_rows=bad_rows)
    ), bad_rows


@pytest.mark.parametrize("nested", [False, True])
def test_texts_of_records_that_are_not_read_are_said_at_training(tmp_path, nested):
    unread_fields = {
        "explanation": "Because the clouds over the hills were heavy with rain.",
        "level": "hard",
        "topic": 3,
    }
    flat = lines([{**record, **unread_fields} for record in FLAT])
    paragraphs = [{"context": CONTEXT, "qas": RECORDS, **unread_fields}]
    file = tmp_path / "train.json"
    file.write_text(
        json.dumps({"data": [{"title": "Weather", "paragraphs": paragraphs}]}) if nested else flat
    )
    plain, _ = read_content(tmp_path, lines(FLAT))
    for split, notes in (("train", 1), ("dev", 0)):
        bad_rows = BadRows("stop")
        assert (
            list(read_questions(file, version=2, split=split, labelled=True, bad_rows=bad_rows))
            == plain
        )
        assert len(bad_rows.notes) == notes
    note = "`train.json`: 1 field holds texts that are not read: `explanation`; rename those to read to question and context"
    bad_rows = BadRows("stop")
    list(read_questions(file, version=2, split="train", labelled=True, bad_rows=bad_rows))
    assert bad_rows.notes == [note]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same(tmp_path, form):
    expected = [
        QuestionExample(
            "a", "When did it rain?", CONTEXT, (AnnotatedAnswer("in May", 10),), article="Weather"
        ),
        QuestionExample(
            "b",
            "And then?",
            CONTEXT,
            (AnnotatedAnswer("in June", 33), AnnotatedAnswer("June", 36)),
            article="Weather",
        ),
        QuestionExample("c", "Why?", CONTEXT, (), True, "Weather"),
    ]
    assert read_content(tmp_path, FORMS[form])[0] == expected
    assert read_content(tmp_path, gzip.compress(FORMS[form].encode()))[0] == expected
    plain = read_content(tmp_path, FORMS[form], version=1, labelled=False)[0]
    assert [(e.id, e.question, e.answers, e.impossible) for e in plain] == [
        (r["id"], r["question"], (), False) for r in RECORDS
    ]


def test_official_files(data):
    counts = {"dev-v1.1.json.gz": (1, 10_570, 0), "half-dev-v2.0.json.gz": (2, 6_078, 3_168)}
    for name, (version, total, impossible) in counts.items():
        bad_rows = BadRows("skip")
        examples = list(
            read_questions(data / "squad" / name, version=version, labelled=True, bad_rows=bad_rows)
        )
        assert len(examples) == total
        assert sum(e.impossible for e in examples) == impossible
        assert not bad_rows.rows
        assert sum(e.repaired for e in examples) == 0
        for example in examples:
            for text, start, _ in example.answers:
                assert example.context[start : start + len(text)] == text


def record_json(**changes):
    return json.dumps({**FLAT[0], **changes})


@pytest.mark.parametrize(
    ("start", "nearest_start", "repaired"),
    [
        (10, 10, False),
        (12, 10, True),
        (44, 46, True),
        (0, 10, True),
        (9_999, 46, True),
        (-3, 10, True),
        (None, 10, True),
    ],
)
def test_an_answer_elsewhere_is_moved_to_the_nearest_place_and_counted(
    tmp_path, start, nearest_start, repaired
):
    examples, bad_rows = read_content(
        tmp_path, record_json(answers=[{"text": "in May", "answer_start": start}])
    )
    example = examples[0]
    assert [": 1 question with" in note for note in bad_rows.notes] == [True] * repaired
    assert example.answers == (AnnotatedAnswer("in May", nearest_start),)
    assert example.repaired is repaired
    assert example.target == AnnotatedAnswer("in May", nearest_start)


def test_of_several_answers_the_first_that_the_text_holds_is_learned(tmp_path):
    answers = [
        {"text": "in May, perhaps", "answer_start": 10},
        {"text": "June", "answer_start": 36},
    ]
    example = read_content(tmp_path, record_json(answers=answers))[0][0]
    assert example.answers == (AnnotatedAnswer("in May, perhaps", -1), AnnotatedAnswer("June", 36))
    assert example.target == AnnotatedAnswer("June", 36)
    assert not example.repaired


@pytest.mark.parametrize(
    ("text", "start", "learned"),
    [
        ("in  May", 10, "in May"),
        ("in\u00a0May", 10, "in May"),
        (" in\tMay\n", 9, "in May"),
        ("inMay", 46, "in May"),
        ("in May . More", 10, "in May. More"),
        ("in May,perhaps", 10, None),
    ],
)
def test_an_answer_may_have_other_white_space_than_its_text(tmp_path, text, start, learned):
    """What is learned is cut out by hand; Google's script learns these places without comparing."""
    examples, bad_rows = read_content(
        tmp_path, record_json(answers=[{"text": text, "answer_start": start}]), on_error="skip"
    )
    if learned is None:
        assert bad_rows.rows[0].reason == f"the context does not hold the answer `{text}`"
        return
    target = examples[0].target
    assert target is not None
    assert target.text == text
    assert target.text_in_context == learned
    assert CONTEXT[target.start : target.start + len(learned)] == learned
    assert abs(target.start - start) <= 1
    assert [
        ": 1 question with an answer that has other white space" in note for note in bad_rows.notes
    ] == [True]


def test_klue_mrc(tmp_path):
    """Its ids are called guid, and questions without an answer may come with plausible ones."""
    questions = [{**record, "guid": f"klue-mrc-{record['id']}"} for record in RECORDS]
    questions[2]["answers"] = RECORDS[0]["answers"]
    for question in questions:
        del question["id"]
    document = {"data": [{"title": "", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}
    for content in (
        json.dumps(document),
        lines([{**question, "context": CONTEXT} for question in questions]),
    ):
        examples, bad_rows = read_content(tmp_path, content)
        assert [example.id for example in examples] == ["klue-mrc-a", "klue-mrc-b", "klue-mrc-c"]
        assert examples[2].answers == ()
        assert examples[2].impossible is True
        assert [
            ": 1 question marked as `is_impossible` in spite of answers" in note
            for note in bad_rows.notes
        ] == [True]


BAD_ROWS = {
    "the context does not hold the answer `in July`": record_json(
        answers=[{"text": "in July", "answer_start": 3}]
    ),
    "`question` is empty": record_json(question=" \t"),
    "`question` is missing": json.dumps({"context": CONTEXT}),
    "`context` is empty": record_json(context=""),
    "`context` is not a text": record_json(context=["Rain"]),
    "is not marked as `is_impossible`": record_json(answers=[], is_impossible=False),
    "`answers` is not a list of objects": record_json(answers=[{"text": 5, "answer_start": 3}]),
    "`answers` is not a list": record_json(answers=5),
    "`answers` is null": record_json(answers=None),
    "`is_impossible` is neither": record_json(is_impossible="no"),
    "a second question with the id `a`": record_json(),
    "not JSON: Unterminated string starting at, column 25": '{"id": "x", "question": "Why',
    "this is not a question": "[1, 2]",
}


def test_the_first_line_of_a_file_of_lines_may_be_bad(tmp_path):
    examples, bad_rows = read_content(tmp_path, f"{{broken\n{record_json()}\n", on_error="skip")
    assert [e.id for e in examples] == ["a"]
    assert [f.line for f in bad_rows.rows] == [1]


@pytest.mark.parametrize("name", ["answer", "answer_text"])
def test_answers_of_another_name_are_named(tmp_path, name):
    record = json.dumps({"question": "When?", "context": "In July.", name: "July"})
    with pytest.raises(DataError, match="has no answer") as caught:
        read_content(tmp_path, record)
    assert caught.value.hint == f"call `{name}` answers"
    (example,) = read_content(tmp_path, record.replace(name, "answers"))[0]
    assert example.target is not None
    assert example.target[:2] == ("July", 3)


@pytest.mark.parametrize("reason", BAD_ROWS)
def test_a_bad_question_is_said_or_skipped(tmp_path, reason):
    content = f"{record_json()}\n{BAD_ROWS[reason]}\n{record_json(id='z')}\n"
    with pytest.raises(DataError, match="bad-row") as caught:
        read_content(tmp_path, content)
    assert reason in caught.value.message
    assert "line 2" in caught.value.message
    examples, bad_rows = read_content(tmp_path, content, on_error="skip")
    assert [e.id for e in examples] == ["a", "z"]
    assert [(f.line, reason in f.reason) for f in bad_rows.rows] == [(2, True)]


def test_a_question_without_an_answer_is_none_of_version_1(tmp_path):
    with pytest.raises(DataError, match="has no answer") as caught:
        read_content(tmp_path, lines(FLAT), version=1)
    assert "squad2" in caught.value.hint


def test_without_ids_and_titles(tmp_path):
    """Ids are the numbers of the records, and a text is its own article."""
    records = [
        {"question": "Why?", "context": CONTEXT},
        {"question": "When?", "context": "In May."},
    ]
    examples, _ = read_content(tmp_path, lines(records), labelled=False)
    assert [(e.id, e.article) for e in examples] == [("0", CONTEXT), ("1", "In May.")]


def test_half_characters_do_not_stop_the_writing(tmp_path):
    example = read_content(
        tmp_path, '{"question": "Wh\\ud800y?", "context": "Rain \\udfff"}', labelled=False
    )[0][0]
    assert example.question == "Wh\ufffdy?"
    assert example.context == "Rain \ufffd"


@pytest.mark.parametrize(
    ("content", "slug", "hint"),
    [
        ("", "bad-file", ""),
        ('{"data": [{"title": "x", "para', "bad-file", ""),
        (
            "question,context,answer\nWhy?,x,y\n",
            "bad-file",
            "SQuAD is JSON, or JSONL records of question, context and answers",
        ),
        ('{"data": 5}', "missing-file", ""),
        ("[" * 100_000, "bad-file", ""),
        (b"\x1f\x8b\x08\x00broken", "corrupt", ""),
        ('{"question": "Où?"}'.encode("latin-1"), "bad-file", "iconv -f LATIN1 -t UTF-8"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, slug, hint):
    with pytest.raises(DataError, match=rf"\[{slug}\]") as caught:
        read_content(tmp_path, content)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("names", "version", "name_indices"),
    [
        (["train-v1.1.json.gz", "dev-v1.1.json", "train-v2.0.json"], 1, {"train": 0, "dev": 1}),
        (["train-v1.1.json.gz", "dev-v1.1.json", "train-v2.0.json"], 2, {"train": 2}),
        (
            ["train.jsonl", "validation.jsonl", "test.jsonl", "notes.txt"],
            1,
            {"train": 0, "dev": 1, "test": 2},
        ),
        (
            ["KorQuAD_v1.0_train.json", "KorQuAD_v1.0_dev.json", "dev_predictions.json"],
            1,
            {"train": 0, "dev": 1},
        ),
    ],
)
def test_files_of_a_folder(tmp_path, names, version, name_indices):
    for name in names:
        (tmp_path / name).touch()
    assert find_question_files(tmp_path, version) == {
        split: tmp_path / names[index] for split, index in name_indices.items()
    }


def test_a_folder_that_leaves_it_open_is_refused(tmp_path):
    with pytest.raises(DataError, match="not-found"):
        find_question_files(tmp_path / "nowhere", 1)
    with pytest.raises(DataError, match="missing-file"):
        find_question_files(tmp_path, 1)
    for name in ("train-a.json", "train-b.json"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="has `train-a"):
        find_question_files(tmp_path, 1)
    assert find_question_files(tmp_path / "train-a.json", 1) == {"train": tmp_path / "train-a.json"}


def test_a_question_of_a_document_is_named_by_its_id(tmp_path):
    paragraph = {
        "context": CONTEXT,
        "qas": [{"id": "a7", "question": "Why?", "answers": []}, {"question": ""}],
    }
    content = json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}, indent=1)
    with pytest.raises(DataError, match="question `a7`: the question has no answer") as caught:
        read_content(tmp_path, content, version=1)
    assert "line" not in caught.value.message
    _, bad_rows = read_content(tmp_path, content, on_error="skip")
    assert [(f.line, f.where) for f in bad_rows.rows] == [(2, "question 2")]
