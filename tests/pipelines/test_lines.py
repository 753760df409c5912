"""Files with a value a line, values named one by one, and the command over both."""

import gzip
import io
import json
import lzma
import shlex

import pytest
from numpy.testing import assert_allclose
from record_files import read_records, write_lines

import albertkit.pipelines.predict as predict_module
from albertkit.errors import DataError
from albertkit.model import (
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.output.render import print_sections
from albertkit.pipelines.load import load_pipeline
from albertkit.pipelines.predict import (
    answer_sections,
    ask,
    format_command_line_flags,
    make_pipeline_inputs,
    predict,
)
from albertkit.tasks.models import save_task_model
from albertkit.tasks.texts import TextClassification

SINGLE = TextClassification(
    name="classify", text_column="text", label_column="label", labels=("0", "1"), length=32
)
TAGS = {0: "O", 1: "B-PER", 2: "I-PER"}
TEXTS = ["seven [MASK] wizards", "the fox [MASK]", "강을 [MASK] 건너 [MASK]", "a [MASK]"]


@pytest.fixture
def pretrained(folder):
    return folder(AlbertForPreTraining)


def near(record):
    """Numbers to six digits: a text's neighbours in a batch change the last bits."""
    return json.loads(json.dumps(record), parse_float=lambda text: round(float(text), 5))


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
def test_lines_of_text_are_answered_in_order(pretrained, tmp_path, packing, monkeypatch):
    monkeypatch.setattr(predict_module, "CHUNK", 3)
    content = ("\ufeff" + "\r\n".join(TEXTS * 3) + "\r\n").encode()
    packed = {"": content, ".gz": gzip.compress(content), ".xz": lzma.compress(content)}[packing]
    (tmp_path / f"in.txt{packing}").write_bytes(packed)
    report = predict(
        pretrained, tmp_path / f"in.txt{packing}", tmp_path / "out.jsonl", precision="fp32"
    )
    assert report.examples == 12
    assert report.left_out == ()
    assert report.written == (tmp_path / "out.jsonl",)
    records = read_records(tmp_path / "out.jsonl")
    assert [record["line"] for record in records] == list(range(1, 13))
    expected = load_pipeline(pretrained, precision="fp32")(TEXTS * 3)
    assert [near({"line": n, **record}) for n, record in enumerate(expected, start=1)] == list(
        map(near, records)
    )


def test_lines_of_json_hold_what_the_kind_takes(folder, tmp_path):
    path = folder(AlbertForSequenceClassification, num_labels=3)
    values = [
        "the fox",
        ["the fox", "a dog"],
        {"text": "강을", "pair": "the fox"},
        {"text": "calm", "id": 3},
    ]
    lines = [json.dumps(value) for value in values]
    write_lines(tmp_path / "in.jsonl", [lines[0], "", *lines[1:], "  "])
    predict(path, tmp_path / "in.jsonl", tmp_path / "out.jsonl", precision="fp32")
    records = read_records(tmp_path / "out.jsonl")
    assert [record.pop("line") for record in records] == [1, 3, 4, 5]
    assert list(map(near, records)) == list(
        map(near, load_pipeline(path, precision="fp32")(values))
    )


def test_vectors_are_lists_and_an_empty_line_has_one(pretrained, tmp_path):
    (tmp_path / "in.txt").write_text("the fox\n\na dog\n")
    predict(pretrained, tmp_path / "in.txt", tmp_path / "out.jsonl", kind="embed", precision="fp32")
    records = read_records(tmp_path / "out.jsonl")
    assert [(len(record["embedding"]), record["tokens"] > 1) for record in records] == [
        (64, True)
    ] * 3
    expected = load_pipeline(pretrained, "embed", precision="fp32")(["the fox", "", "a dog"])
    for record, answer in zip(records, expected, strict=True):
        assert_allclose(record["embedding"], answer["embedding"], atol=1e-5)


BAD = [b"seven [MASK]", b"no mask", b"[MASK] \xff", b"[MASK] " * 80, b"", b"the [MASK]"]


def test_lines_that_cannot_be_used_are_named_or_left_out(pretrained, tmp_path, error_of):
    (tmp_path / "in.txt").write_bytes(b"\n".join(BAD))
    error = error_of(predict, pretrained, tmp_path / "in.txt", tmp_path / "out.jsonl")
    assert error.slug == "bad-row"
    assert "line 2: there is no [MASK] in 'no mask'" in error.message
    assert "--on-error skip" in error.hint
    assert list(tmp_path.glob("out*")) == []
    report = predict(pretrained, tmp_path / "in.txt", tmp_path / "out.jsonl", on_error="skip")
    assert report.examples == 2
    assert sorted(fault.line for fault in report.left_out) == [2, 3, 4, 5]
    reasons = {fault.line: fault.reason for fault in report.left_out}
    assert "UTF-8" in reasons[3]
    assert "the model reads 64" in reasons[4]
    assert [record["line"] for record in read_records(tmp_path / "out.jsonl")] == [1, 6]


def test_lines_that_only_look_like_values_are_bad_rows(pretrained, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"a \0 [MASK]\na [MASK]\n")
    (tmp_path / "in.jsonl").write_text('{"text": "a [MASK]", "text": "b [MASK]"}\n"a [MASK]"\n')
    for name, reason in (
        ("in.txt", "a zero byte, which no text has"),
        ("in.jsonl", "the key `text` occurs twice"),
    ):
        report = predict(
            pretrained, tmp_path / name, tmp_path / f"out-{name}.jsonl", on_error="skip"
        )
        assert report.examples == 1
        assert [bad_row.line for bad_row in report.left_out] == [1]
        assert reason in report.left_out[0].reason


def test_a_long_line_among_many_is_found_and_stops(pretrained, tmp_path):
    texts = [f"the fox {'a ' * (n % 7)} [MASK]" for n in range(50)]
    texts[37] = "[MASK] " * 80
    (tmp_path / "in.txt").write_text("\n".join(texts))
    with pytest.raises(DataError, match="line 38"):
        predict(pretrained, tmp_path / "in.txt", tmp_path / "out.jsonl")
    predict(pretrained, tmp_path / "in.txt", tmp_path / "out.jsonl", on_error="skip")
    assert [r["line"] for r in read_records(tmp_path / "out.jsonl")] == [
        n for n in range(1, 51) if n != 38
    ]


def test_a_file_without_lines_has_nothing_to_predict(pretrained, tmp_path):
    (tmp_path / "in.txt").write_text("")
    with pytest.raises(DataError, match="has nothing to predict"):
        predict(pretrained, tmp_path / "in.txt", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_lines_of_json_that_hold_no_value(pretrained, tmp_path):
    lines = ['"[MASK]"', "{", "3", '"\\ud800 [MASK]"', "[" * 100_000, '{"text": "[MASK]"}', "NaN"]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    report = predict(pretrained, tmp_path / "in.jsonl", tmp_path / "out.jsonl", on_error="skip")
    assert sorted(fault.line for fault in report.left_out) == [2, 3, 4, 5, 7]
    assert [record["line"] for record in read_records(tmp_path / "out.jsonl")] == [1, 6]


@pytest.mark.parametrize(
    ("input", "options", "slug"),
    [
        ("in.tsv", {}, "wrong-model"),
        ("in.parquet", {}, "wrong-model"),
        ("nowhere.txt", {}, "not-found"),
        (".", {}, "wrong-kind"),
        ("*.t*", {}, "ambiguous"),
        ("in.txt", {"out": "folder"}, "bad-value"),
        ("in.txt", {"kind": "tag"}, "wrong-model"),
        ("in.txt", {"kind": "caption"}, "bad-value"),
        ("in.txt", {"precision": "fp8"}, "unknown-name"),
    ],
)
def test_files_and_options_that_cannot_work(pretrained, tmp_path, input, options, slug, error_of):
    for name in ("in.tsv", "in.txt", "in.parquet"):
        (tmp_path / name).write_text("[MASK]\n")
    error = error_of(predict, pretrained, tmp_path / input, **options)
    assert error.slug == slug
    assert error.hint


# --- values named one by one ----------------------------------------------------------------------

CLASSES = {
    "fill-mask": (AlbertForPreTraining, {}),
    "sentence-order": (AlbertForPreTraining, {}),
    "embed": (AlbertForPreTraining, {}),
    "classify": (AlbertForSequenceClassification, {"num_labels": 12}),
    "score": (AlbertForSequenceClassification, {"num_labels": 1}),
    "tag": (AlbertForTokenClassification, {"num_labels": 3, "id2label": TAGS}),
    "answer": (AlbertForQuestionAnswering, {}),
    "choose": (AlbertForMultipleChoice, {}),
}
ASKED = {
    "fill-mask": ((["the [MASK] fox", "[MASK] [bold] [MASK]"],), ["[MASK] 2", "[bold]", "%", "█"]),
    "sentence-order": ((["the fox"], ["a dog"]), ["the fox", "a dog", "in order", "swapped", "%"]),
    "embed": ((["the fox", "a dog"],), ["64 numbers", "cosines", "1.000"]),
    "classify": ((["the fox", "강을"],), ["the fox", "강을", "LABEL_3", "and 2 more"]),
    "score": ((["the fox"], ["a dog"]), ["the fox", "a dog"]),
    "tag": ((["the fox  jumps over a lazy dog"],), ["PER", " to ", "%"]),
    "answer": ((["the quick brown fox " * 40], [], ["fox?", "강?"]), ["fox?", "강?", "%", " …"]),
    "choose": (
        (["it was calm"], [], ["who?"], ["a fox", "a dog"]),
        ["A  a fox", "B  a dog", "it was calm", "who?"],
    ),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_kind_is_answered_and_shown(folder, kind):
    path = folder(CLASSES[kind][0], **CLASSES[kind][1])
    parts, expected_output = ASKED[kind]
    answers = ask(path, *parts, kind=kind, precision="fp32")
    assert answers.kind == kind
    pipeline = load_pipeline(path, kind, precision="fp32")
    expected = [
        {**record, "embedding": record["embedding"].tolist()} if kind == "embed" else record
        for record in pipeline(answers.values)
    ]
    assert answers.results == expected
    assert json.loads(json.dumps(answers.to_dict()))["results"] == expected
    out = io.StringIO()
    print_sections(answer_sections(answers), out)
    for part in expected_output:
        assert part in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_cosines_are_those_of_the_pipeline(pretrained):
    texts = ["the fox", "a dog", "강을"]
    answers = ask(pretrained, texts, kind="embed", precision="fp32")
    expected = load_pipeline(pretrained, "embed", precision="fp32").similarity(texts)
    assert_allclose(answers.similarity, expected, atol=1e-5)
    assert "similarity" not in ask(pretrained, texts[:1], kind="embed").to_dict()


@pytest.mark.parametrize("kind", CLASSES)
def test_flags_are_what_a_person_would_type(folder, kind):
    """The flags that an error names make the example that the pipeline takes."""
    pipeline = load_pipeline(folder(CLASSES[kind][0], **CLASSES[kind][1]), kind)
    words = shlex.split(format_command_line_flags(pipeline.example))
    parts = {
        name: [words[n + 1] for n in range(0, len(words), 2) if words[n] == f"--{name}"]
        for name in ("text", "pair", "question", "choice")
    }
    (value,) = make_pipeline_inputs(*parts.values())
    assert pipeline.parse(value) == pipeline.parse(pipeline.example)


@pytest.mark.parametrize(
    "parts",
    [
        (["a"], ["b", "c"], [], []),
        (["a"], ["b"], ["c"], []),
        (["a", "b"], [], ["c"], []),
        ([], [], ["c"], []),
        (["a", "b"], [], ["c"], ["d", "e"]),
        (["a"], [], ["b", "c"], ["d", "e"]),
    ],
)
def test_parts_that_do_not_belong_together(parts, slug_of):
    assert slug_of(make_pipeline_inputs, *parts) == "bad-value"


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["The soup was superb."], "a text is given with --text; if a file is meant: `"),
        (["the " * 200], "a text is given with --text; if a file is meant: "),
        (["superb"], "a text is given with --text; if a file is meant: `"),
        (["reviews.jsonl.gz"], "`"),
        (
            ["in.txt", "--text", "Review text"],
            "--text is a text itself; a column of a file is named with --text-column",
        ),
        (
            ["in.txt", "--pair", "Reply"],
            "--pair is a text itself; a column of a file is named with --pair-column",
        ),
        (["--text", "a fox", "--out", "x.jsonl"], "leave one of them out"),
    ],
)
@pytest.mark.parametrize("kind", ["pretrained", "task"])
def test_texts_in_the_place_of_files_and_names_of_columns_in_that_of_texts_are_told_apart(
    pretrained, tmp_path, monkeypatch, make_model, tokenizer, run_command, kind, arguments, hint
):
    model = pretrained
    if kind == "task":
        model = tmp_path / "model"
        classifier = make_model(AlbertForSequenceClassification, num_labels=2)
        save_task_model(model, classifier, tokenizer, SINGLE)
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    (tmp_path / "data/in.txt").write_text("a fox\n")
    process = run_command("predict", model, *arguments)
    assert process.status == 2
    assert " ".join(process.err.split()).partition("hint: ")[2].startswith(hint)


def test_the_command_answers_on_the_spot(pretrained, run_command):
    process = run_command(
        "predict", pretrained, "--text", "the [MASK]", "--text", "[MASK] fox", "--json"
    )
    assert process.status == 0
    assert process.err == ""
    assert process.out.count("\n") == 1
    assert [record["text"] for record in process.json["results"]] == ["the [MASK]", "[MASK] fox"]
    pair = ("--text", "the fox", "--pair", "a dog", "--kind", "sentence-order")
    assert "in order" in run_command("predict", pretrained, *pair).out


def test_the_command_answers_a_file(pretrained, tmp_path, run_command):
    (tmp_path / "in.txt").write_text("[MASK] fox\nno mask\na [MASK]\n")
    arguments = ("predict", pretrained, tmp_path / "in.txt", "--on-error", "skip")
    process = run_command(*arguments)
    assert process.status == 0
    assert [json.loads(line)["line"] for line in process.out.splitlines()] == [1, 3]
    assert "left out" in process.err
    assert "line 2" in process.err
    printed = run_command(*arguments, "--out", tmp_path / "out.jsonl", "--json").json
    assert printed["examples"] == 2
    assert len(printed["left_out"]) == 1
    assert (tmp_path / "out.jsonl").read_text() == process.out


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        (["{model}"], "bad-value"),
        (["{model}", "in.txt", "--text", "[MASK]"], "conflicting-options"),
        ("{model} --text [MASK] --out x.jsonl".split(), "conflicting-options"),
        (["{model}", "--text", "no mask"], "bad-input"),
        ("{model} --kind embeds --text a".split(), "unknown-name"),
        (["{model}", "--pair", "a"], "bad-value"),
        (["nowhere/at/all", "--text", "a"], "not-found"),
    ],
)
def test_mistakes_are_named_with_a_hint(pretrained, run_command, arguments, slug):
    process = run_command("predict", *(argument.format(model=pretrained) for argument in arguments))
    assert process.status == 2
    assert process.out == ""
    assert f"error[{slug}]" in process.err
    assert "hint: " in process.err
