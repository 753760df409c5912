"""Any value gives a result or a DataError: never another exception, and never something that JSON cannot spell."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albertkit.errors import DataError
from albertkit.model import (
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)
from albertkit.pipelines.load import load_pipeline
from albertkit.tasks.models import save_task_model
from albertkit.tasks.tagging import TaggingTask

CLASSES = {
    "fill-mask": AlbertForPreTraining,
    "sentence-order": AlbertForPreTraining,
    "classify": AlbertForSequenceClassification,
    "tag": AlbertForTokenClassification,
    "answer": AlbertForQuestionAnswering,
    "choose": AlbertForMultipleChoice,
    "embed": AlbertModel,
    "characters": AlbertForTokenClassification,
}
NAMES = ("text", "pair", "question", "context", "choices", "tokens")
SIGNS = "the fox [MASK] \0\t\n\r\x1f\x7f\u200b\u200d\ufeff\u0301\u00ad\u2028'’.,-@#강을ᄀ\ud800\udfff\U0001f98a\U000e0001"

texts = st.one_of(
    st.text(),
    st.text(st.sampled_from(SIGNS), max_size=30),
    st.sampled_from(["[MASK]", "the fox", "강을 [MASK]"]),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)


def nested(inner):
    """Lists and objects, mostly under names that some kind knows."""
    return st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(NAMES) | texts, inner, max_size=4
    )


values = st.recursive(plain, nested, max_leaves=8)
ANY = settings(max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory, tokenizer, make_model):
    by_kind = {}
    for kind, model_class in CLASSES.items():
        path = tmp_path_factory.mktemp(kind)
        tags = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
        changes = (
            {"num_labels": 4, "id2label": tags}
            if model_class is AlbertForTokenClassification
            else {}
        )
        model = make_model(model_class, **changes)
        if kind == "characters":
            save_task_model(
                path,
                model,
                tokenizer,
                TaggingTask(name="klue-ner", layout=kind, labels=tuple(tags.values()), length=64),
            )
        else:
            model.save_pretrained(path, tokenizer)
        by_kind[kind] = load_pipeline(
            path, None if kind == "characters" else kind, precision="fp32"
        )
    return by_kind


def of_kind(kind, text):
    """A value of that kind with the text wherever a text may stand."""
    return {
        "fill-mask": f"{text}[MASK]",
        "sentence-order": (text, text),
        "classify": {"text": text, "pair": text},
        "answer": {"question": text, "context": text},
        "choose": {"context": text, "question": text, "choices": [text, "b", text]},
    }.get(kind, text)


def checked(pipeline, value):
    """The result, of plain values without NaN; None for a DataError with a hint."""
    refused = None
    try:
        (result,) = pipeline([value])
    except DataError as error:
        refused = error
    if refused:
        assert refused.slug in ("bad-input", "too-large")
        assert refused.hint
        assert str(refused).encode()
        return None
    assert all(math.isfinite(number) for number in np.ravel(result.pop("embedding", 0)))
    json.dumps(result, allow_nan=False)
    return result


@pytest.mark.parametrize("kind", CLASSES)
@given(value=values)
@ANY
def test_any_json_value_is_an_input_or_a_data_error(pipelines, kind, value):
    checked(pipelines[kind], value)


@pytest.mark.parametrize("kind", CLASSES)
@given(text=texts)
@ANY
def test_any_text_has_a_result_or_a_data_error(pipelines, kind, text):
    result = checked(pipelines[kind], of_kind(kind, text))
    for entity in (result or {}).get("entities", ()):
        assert entity["text"] == text[entity["start"] : entity["end"]] != ""
        assert not (entity["text"][0].isspace() and kind == "tag")
    if kind == "answer" and result and result["answer"]:
        assert result["answer"] == text[result["start"] : result["end"]]


ODD = [
    "", " ", "\0", "\n\t", "\x01\x02\x03", "\ud83d", "\u200b", "\ufeff", "漢字假名" * 5, "\U0001f98a" * 3, "\u0301" * 1000,
]  # fmt: skip
LONG = ["x" * 100_000, "the fox " * 12_500, "강을 " * 33_333, ". " * 20_000, "\u200b" * 50_000]


def parameter_id(text):
    """The id of a parameter."""
    return f"{text[:2]!a} {len(text)}"


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "text",
    [
        *ODD,
        *(text[:5000] for text in LONG),
        *(pytest.param(text, marks=pytest.mark.slow) for text in LONG),
    ],
    ids=parameter_id,
)
def test_odd_and_long_texts(pipelines, kind, text):
    result = checked(pipelines[kind], of_kind(kind, text))
    if text == "\ud83d":
        assert result is None  # half a character, which no UTF-8 can spell
    if len(text) > 10_000 and text.startswith(("the", "강")):
        assert (result is None) == (kind == "fill-mask")  # which would have to leave masks out
