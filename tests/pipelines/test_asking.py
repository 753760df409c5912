"""`ask`: what a person is told besides the answer."""

import pytest

from albertkit.conversion.classes import load_model
from albertkit.errors import CheckpointError, ConfigError
from albertkit.model import AlbertForSequenceClassification
from albertkit.pipelines.predict import ask
from albertkit.tasks.models import save_task_model
from albertkit.tasks.texts import TextClassification

PAIRS = TextClassification(name="mrpc", layout="mrpc", labels=("0", "1"), length=32)
SINGLE = TextClassification(
    name="classify", text_column="text", label_column="label", labels=("0", "1"), length=32
)


@pytest.mark.parametrize(
    ("task", "fitting", "unlike", "notes"),
    [
        (
            PAIRS,
            [["a fox"], ["the dog"]],
            [["a fox"], []],
            ("trained on pairs of texts, asked about one alone",),
        ),
        (
            SINGLE,
            [["a fox", "x"], []],
            [["a"], ["b"]],
            ("trained on single texts, asked about a pair",),
        ),
    ],
)
def test_a_note_tells_texts_of_another_form_than_the_model_was_trained_on(
    tmp_path, make_model, tokenizer, task, fitting, unlike, notes
):
    save_task_model(
        tmp_path, make_model(AlbertForSequenceClassification, num_labels=2), tokenizer, task
    )
    assert ask(tmp_path, *fitting, precision="fp32").notes == ()
    assert ask(tmp_path, *unlike, precision="fp32").notes == notes


def test_a_folder_that_says_nothing_of_pairs_gets_no_note(folder):
    path = folder(AlbertForSequenceClassification, num_labels=2)
    assert ask(path, ["a fox"], precision="fp32").notes == ()
    assert ask(path, ["a fox"], ["the dog"], precision="fp32").notes == ()
    assert ask(path, "a fox", "the dog", precision="fp32").values == [("a fox", "the dog")]
    with pytest.raises(ConfigError, match="top is '1', it must be at least 1"):
        ask(path, "a fox", top="1")


def test_tokens_that_are_not_read_are_counted(folder):
    path = folder(AlbertForSequenceClassification, num_labels=2)
    # [CLS], the word, a space, the snowman, [SEP]: one of five
    answers = ask(path, ["fox ☃"], precision="fp32")
    assert answers.notes == ("1 of 5 tokens are unknown: what they stand for is not read",)
    assert answers.results == ask(path, ["fox ☂"], precision="fp32").results
    assert ask(path, ["fox fox fox fox fox fox fox fox ☃"], precision="fp32").notes == ()


def test_a_captioner_and_a_folder_around_a_model_are_told_apart(folder, tmp_path):
    path = folder(AlbertForSequenceClassification, num_labels=2)
    config = path / "config.json"
    config.write_text(
        config.read_text().replace("AlbertForSequenceClassification", "AlbertForImageCaptioning")
    )
    with pytest.raises(CheckpointError, match=r"is a captioner(.|\n)*albertkit caption predict"):
        load_model(path)
    (tmp_path / "config.json").write_text(config.read_text())
    with pytest.raises(CheckpointError, match=rf"missing-file(.|\n)*inside it: {path}"):
        AlbertForSequenceClassification.from_pretrained(tmp_path)
