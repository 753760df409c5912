"""Pipelines of fine-tuned models, against transformers' classes on the same folders."""

import json
from collections import deque

import numpy as np
import pandas as pd
import pytest
import seqeval.metrics.sequence_labeling as seqeval
import torch
import transformers

from albertkit.errors import DataError
from albertkit.model import (
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albertkit.pipelines.load import load_pipeline
from albertkit.tasks.answers import AnswerTask
from albertkit.tasks.models import save_task_model
from albertkit.tasks.tagging import TaggingTask

COLOURS = {
    "num_labels": 3,
    "id2label": {0: "red", 1: "green", 2: "blue"},
    "label2id": {"red": 0, "green": 1, "blue": 2},
}
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TAGGED = {
    "num_labels": 5,
    "id2label": dict(enumerate(TAGS)),
    "label2id": {tag: n for n, tag in enumerate(TAGS)},
}


def of_transformers(name, path, ids, types=None):
    """Logits of one of transformers' classes for one sequence, or for choices."""
    model = getattr(transformers, name).from_pretrained(path).eval()
    types = torch.zeros_like(torch.tensor(ids)) if types is None else torch.tensor(types)
    with torch.inference_mode():
        return model(input_ids=torch.tensor(ids)[None], token_type_ids=types[None])


def ids_and_types(tokenizer, *texts):
    ids = tokenizer.encode(*texts, special_tokens=True)
    return ids, tokenizer.token_type_ids(ids)


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem", ["single_label_classification", "multi_label_classification", "regression"]
)
def test_a_text_and_a_pair_have_transformers_answers(folder, tokenizer, problem):
    changes = {"num_labels": 1} if problem == "regression" else COLOURS
    path = folder(AlbertForSequenceClassification, problem_type=problem, **changes)
    ask = load_pipeline(path, precision="fp32")
    values = [
        "seven old wizards",
        ("the fox", "a lazy dog"),
        {"text": "서울 에서", "pair": "seven, rivers"},
        "x",
    ]
    texts = [
        ("seven old wizards",),
        ("the fox", "a lazy dog"),
        ("서울 에서", "seven, rivers"),
        ("x",),
    ]
    for text, answer in zip(texts, ask(values), strict=True):
        logits = of_transformers(
            "AlbertForSequenceClassification", path, *ids_and_types(tokenizer, *text)
        ).logits[0]
        if problem == "regression":
            assert answer == {"value": pytest.approx(logits.item(), abs=1e-5)}
            continue
        is_multi_label = problem.startswith("multi")
        shares = logits.sigmoid() if is_multi_label else logits.softmax(-1)
        assert list(answer["probabilities"].values()) == pytest.approx(shares.tolist(), abs=5e-6)
        assert list(answer["probabilities"]) == ["red", "green", "blue"]
        if is_multi_label:
            assert answer["labels"] == [
                name for name, share in answer["probabilities"].items() if share > 0.5
            ]
        else:
            assert answer["index"] == logits.argmax().item()
            assert answer["label"] == COLOURS["id2label"][answer["index"]]


def test_the_pipeline_of_transformers_says_the_same_where_it_reads_the_same_ids(folder, tokenizer):
    path = folder(AlbertForSequenceClassification, **COLOURS)
    theirs = transformers.pipeline("text-classification", model=str(path), top_k=None)
    ours = load_pipeline(path, precision="fp32")
    text = "seven old wizards brew strong potions"
    assert theirs.tokenizer(text)["input_ids"] == tokenizer.encode(text, special_tokens=True)
    expected = {row["label"]: row["score"] for row in theirs([text])[0]}
    assert ours(text)["probabilities"] == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("problem", ["single_label_classification", "regression"])
def test_low_precision_is_near_fp32(folder, sentences, low_precision, problem):
    changes = {"num_labels": 1} if problem == "regression" else COLOURS
    path = folder(
        AlbertForSequenceClassification, problem_type=problem, initializer_range=0.02, **changes
    )
    exact, near = (
        load_pipeline(path, precision=precision) for precision in ("fp32", low_precision)
    )
    assert near.precision == low_precision
    for exact_answer, near_answer in zip(exact(sentences), near(sentences), strict=True):
        if problem == "regression":
            assert exact_answer["value"] == pytest.approx(near_answer["value"], abs=0.05)
        else:
            assert exact_answer["probabilities"] == pytest.approx(
                near_answer["probabilities"], abs=0.02
            )


# --- words ----------------------------------------------------------------------------------------

TEXTS = {
    "the quick fox's jumps,  over Jean-Pierre   lazy!!": "the quick fox 's jumps , over Jean-Pierre lazy !!".split(),
    "  O’Brien said: U.S. wizards brew 3.5 potions. ": "O’Brien said : U.S. wizards brew 3.5 potions .".split(),
    "서울에서 온 마법사가,\n강을 건너다": "서울에서 온 마법사가 , 강을 건너다".split(),
    "fox \U0001f98a jumps\tcafe\u0301 #tag (a)": "fox \U0001f98a jumps cafe\u0301 #tag ( a )".split(),
    "हिन्दी fox": "हिन्दी fox".split(),
}


@pytest.fixture
def tag(folder):
    """A tagger of TAGS."""
    return load_pipeline(folder(AlbertForTokenClassification, **TAGGED), precision="fp32")


@pytest.mark.parametrize("text", TEXTS)
def test_tags_are_transformers_and_entities_stand_in_the_text_itself(folder, tokenizer, text):
    path = folder(AlbertForTokenClassification, **TAGGED)
    words = TEXTS[text]
    result = load_pipeline(path, precision="fp32")(text)
    assert result["words"] == words
    joined = " ".join(words)
    ids, spans = tokenizer.encode_with_offsets(joined)
    logits = of_transformers(
        "AlbertForTokenClassification", path, [tokenizer.cls_id, *ids, tokenizer.sep_id]
    ).logits[0]
    best = logits.argmax(-1)[1:-1].tolist()
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    expected = []  # the tag at the first piece that shows a character of the word
    for word, start in zip(words, starts, strict=False):
        index = next(i for i, (a, b) in enumerate(spans) if b > start and joined[a:b].strip())
        assert spans[index][0] < start + len(word)
        expected.append(TAGS[best[index]])
    assert result["tags"] == expected
    entities = seqeval.get_entities(expected)
    assert [entity["type"] for entity in result["entities"]] == [kind for kind, _, _ in entities]
    end = 0
    word_spans = []
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        word_spans.append((start, end))
    for entity, (_, first, last) in zip(result["entities"], entities, strict=True):
        assert entity["start"] == word_spans[first][0]
        assert entity["end"] == word_spans[last][1]
        assert entity["text"] == text[entity["start"] : entity["end"]]


def test_the_texts_have_entities_of_several_words(tag):
    entities = [entity for record in tag(list(TEXTS)) for entity in record["entities"]]
    assert len(entities) > 5
    assert any(
        "  " in entity["text"] or "\n" in entity["text"] or "\t" in entity["text"]
        for entity in entities
    )


def test_a_list_of_words_is_tagged_as_the_text_of_them(tag):
    words = "the fox , 서울에서 jumps".split()
    (result,) = tag([words])
    assert result["words"] == words
    assert result["tags"] == tag(" ".join(words))["tags"]
    assert result["entities"] == tag(" ".join(words))["entities"]


def test_a_tagger_of_characters_keeps_the_places_of_the_text(tmp_path, tokenizer, make_model):
    task = TaggingTask(name="klue-ner", layout="characters", labels=TAGS, length=64)
    save_task_model(
        tmp_path, make_model(AlbertForTokenClassification, **task.head()), tokenizer, task
    )
    text = "  서울에서   온 마법사가\n 강을 건너다 "
    result = load_pipeline(tmp_path, precision="fp32")(text)
    assert result["words"] == list("서울에서 온 마법사가 강을 건너다")
    assert result["entities"]
    for entity in result["entities"]:
        assert entity["text"] == text[entity["start"] : entity["end"]]
        assert entity["text"].split() == [part for part in entity["text"].split() if part in text]


def test_a_text_longer_than_the_model_is_tagged_to_its_end(sentences, tag):
    text = " ".join(sentences)
    result = tag(text)
    assert len(result["tags"]) == len(result["words"]) > 200
    assert result["entities"][-1]["start"] > 0.9 * len(text)
    alone = tag(sentences[0])
    assert result["words"][: len(alone["words"])] == alone["words"]


# --- answers --------------------------------------------------------------------------------------

CONTEXT = "the quick brown fox,  jumps over a lazy dog; 서울 에서 wizards brew"


def test_the_answer_is_the_best_span_of_transformers_logits(folder, tokenizer):
    path = folder(AlbertForQuestionAnswering)
    answer = load_pipeline(path, precision="fp32")
    result = answer({"question": "seven old wizards?", "context": CONTEXT}, top=20)
    question = tokenizer.encode("seven old wizards?")
    ids, spans = tokenizer.encode_with_offsets(CONTEXT)
    row = [tokenizer.cls_id, *question, tokenizer.sep_id, *ids, tokenizer.sep_id]
    first = len(question) + 2
    types = [0] * first + [1] * (len(ids) + 1)
    output = of_transformers("AlbertForQuestionAnswering", path, row, types)
    start, end = (
        part[0, first : first + len(ids)].double()
        for part in (output.start_logits, output.end_logits)
    )
    scores = start[:, None] + end[None, :]
    allowed = torch.ones(len(ids), len(ids)).triu().tril(answer.task.max_answer_length - 1).bool()
    best_spans = (
        scores.masked_fill(~allowed, -torch.inf).flatten().argsort(descending=True).tolist()
    )
    texts = list(
        dict.fromkeys(
            CONTEXT[spans[p // len(ids)][0] : spans[p % len(ids)][1]].strip() for p in best_spans
        )
    )
    assert result["answer"] == texts[0] == CONTEXT[result["start"] : result["end"]]
    assert [guess["text"] for guess in result["nbest"][:5]] == [text for text in texts if text][:5]
    best = best_spans[0]
    assert result["nbest"][0]["start_score"] == pytest.approx(
        start[best // len(ids)].item(), abs=1e-5
    )
    assert result["nbest"][0]["end_score"] == pytest.approx(end[best % len(ids)].item(), abs=1e-5)
    assert result["score"] == pytest.approx(result["nbest"][0]["probability"])


def test_of_a_long_context_the_answer_may_be_in_its_last_window(folder, tokenizer):
    """A head that looks for one piece alone finds it wherever it stands."""
    path = folder(AlbertForQuestionAnswering)
    model = AlbertForQuestionAnswering.from_pretrained(path)
    piece = tokenizer.encode("wizards")
    with torch.no_grad():  # no pass changes a state, so that a token's state is its piece's
        for name, parameter in model.albert.encoder.named_parameters():
            if "attention.dense" in name or "ffn_output" in name:
                parameter.zero_()
        model.albert.embeddings.position_embeddings.weight.zero_()
        model.albert.embeddings.token_type_embeddings.weight.zero_()
        ids = torch.tensor([piece])
        state = model.albert(input_ids=ids).last_hidden_state[0]
        model.qa_outputs.weight[0], model.qa_outputs.weight[1] = state[0], state[-1]
    model.save_pretrained(path, tokenizer)
    answer = load_pipeline(path, precision="fp32")
    for before, after in ((300, 0), (0, 300), (150, 150)):
        context = "the lazy fox " * before + "wizards" + " a calm dog" * after
        result = answer({"question": "who?", "context": context})
        assert result["answer"] == "wizards"
        assert result["start"] == context.index("wizards")


def test_several_questions_are_answered_as_one_by_one(folder):
    answer = load_pipeline(folder(AlbertForQuestionAnswering), precision="fp32")
    values = [
        {"question": q, "context": c}
        for q in ("the fox?", "강?")
        for c in (CONTEXT, CONTEXT * 20, "dog")
    ]
    for value, result in zip(values, answer(values), strict=True):
        alone = answer(value)
        assert result["answer"] == alone["answer"]
        assert result["start"] == alone["start"]
        assert result["score"] == pytest.approx(alone["score"], abs=1e-5)
    assert len(answer(values[0], top=2)["nbest"]) == 2


def test_no_answer_is_one_of_squad_2(tmp_path, tokenizer, make_model):
    task = AnswerTask(name="squad2", version=2, length=64, threshold=-1e9)
    save_task_model(tmp_path, make_model(AlbertForQuestionAnswering), tokenizer, task)
    result = load_pipeline(tmp_path)({"question": "the fox?", "context": CONTEXT})
    assert result["answer"] == ""
    assert result["start"] is None
    assert result["end"] is None
    assert result["null_odds"] > -1e9
    assert any(guess["text"] for guess in result["nbest"])


# --- choices --------------------------------------------------------------------------------------


def test_the_choice_is_transformers(folder, tokenizer):
    path = folder(AlbertForMultipleChoice)
    value = {
        "context": "it was the fox",
        "question": "who jumps?",
        "choices": ["a dog", "a fox", "서울"],
    }
    result = load_pipeline(path, precision="fp32")(value)
    rows = [
        tokenizer.encode(value["context"], f"{value['question']} {choice}")
        for choice in value["choices"]
    ]
    width = max(map(len, rows))
    ids = [row + [0] * (width - len(row)) for row in rows]
    types = [tokenizer.token_type_ids(row) + [0] * (width - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    model = transformers.AlbertForMultipleChoice.from_pretrained(path).eval()
    inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    with torch.inference_mode():
        logits = model(**{name: torch.tensor([part]) for name, part in inputs.items()}).logits[0]
    assert result["index"] == logits.argmax().item()
    assert result["label"] == "ABC"[result["index"]]
    assert list(result["probabilities"].values()) == pytest.approx(
        logits.softmax(-1).tolist(), abs=1e-5
    )


# --- all of them ----------------------------------------------------------------------------------

CLASSES = {
    "classify": AlbertForSequenceClassification,
    "tag": AlbertForTokenClassification,
    "answer": AlbertForQuestionAnswering,
    "choose": AlbertForMultipleChoice,
}
NO_INPUTS = {
    "classify": [3, None, [], ["a"], ["a", 3], {"pair": "a"}, ["a", "b", "c"]],
    "tag": [3, None, [], ["two words"], ["", "a"], {"words": ["a"]}],
    "answer": [
        "a",
        None,
        {"question": "a"},
        {"question": "a", "context": ""},
        {"question": 3, "context": "a"},
    ],
    "choose": [
        "a",
        {"choices": ["a"]},
        {"choices": ["a", "b"]},
        {"question": "q", "choices": "ab"},
        {"question": "q", "choices": ["a", 3]},
        {"question": "q", "context": 0, "choices": ["a", "b"]},
        {"question": "q", "choices": ["a", "", "b"]},
        {"question": "q", "choices": [str(n) for n in range(27)]},
    ],
}


@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_no_input_is_refused_and_results_are_plain_values(folder, kind, error_of):
    pipeline = load_pipeline(folder(CLASSES[kind]))
    assert pipeline.kind == kind
    for value in NO_INPUTS[kind]:
        error = error_of(pipeline.parse, value)
        assert error.slug == "bad-input"
        assert error.hint
    result = pipeline(pipeline.example)
    assert json.loads(json.dumps(result)) == result
    assert "id" not in result


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ("the fox", ""),
        ("", "the fox"),
    ],
)
def test_empty_texts_are_classified_as_in_transformers(folder, text):
    path = folder(AlbertForSequenceClassification)
    first, second = text if isinstance(text, tuple) else (text, None)
    probabilities = load_pipeline(path, precision="fp32")(["the fox", text])[1]["probabilities"]
    inputs = transformers.AutoTokenizer.from_pretrained(path)(
        first, second or None, return_tensors="pt"
    )
    model = transformers.AlbertForSequenceClassification.from_pretrained(path).eval()
    with torch.inference_mode():
        expected = model(**inputs).logits.softmax(-1)[0].tolist()
    assert list(probabilities.values()) == pytest.approx(expected, abs=1e-5)


def test_an_empty_text_has_no_entities_as_in_transformers(folder):
    path = folder(AlbertForTokenClassification)
    assert transformers.pipeline("token-classification", str(path))("") == []
    assert load_pipeline(path)(["the fox", ""])[1] == {"words": [], "tags": [], "entities": []}


@pytest.mark.parametrize(
    "collect",
    [
        np.array,
        pd.Series,
        iter,
        lambda texts: (text for text in texts),
        deque,
    ],
)
def test_several_texts_may_be_of_any_kind_that_has_an_order(folder, collect):
    pipeline = load_pipeline(folder(AlbertForSequenceClassification))
    texts = ["the fox", "", "a dog"]
    assert pipeline(collect(texts)) == pipeline(texts)
    # The names of columns; without an order
    for value in (pd.DataFrame({"text": texts}), set(texts)):
        with pytest.raises(DataError):
            pipeline(value)


def test_an_error_names_the_position_of_the_wrong_input(folder):
    pipeline = load_pipeline(folder(AlbertForSequenceClassification))
    with pytest.raises(DataError, match="input 2: None is not a text"):
        pipeline(["the fox", "", None])


def test_an_error_shows_the_value_however_large_or_deep(folder, error_of):
    pipeline = load_pipeline(folder(AlbertForSequenceClassification))
    deep = []
    for _ in range(50_000):
        deep = [deep]
    for value in (deep, {"text": deep}, list(range(10_000_000)), "\ud800" * 1_000_000):
        error = error_of(pipeline.parse, value)
        assert len(error.message) < 200
