"""Filled masks and sentence order, against transformers' classes and its fill-mask pipeline on the same folders."""

import json
import shutil
from itertools import pairwise

import pytest
import torch
import transformers

from albertkit.errors import DataError, MachineError
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining
from albertkit.pipelines.load import load_pipeline

MASKED = [
    "the quick [MASK] fox jumps over a lazy dog.",
    "[MASK] fox",
    "seven old [MASK]",
    "[MASK]",
    "[MASK][MASK] the [MASK] 서울 에서 [MASK] brew",
    "the lazy dog " * 4 + "[MASK]",
]


def shares_of_transformers(folder, tokenizer, text):
    """Probabilities [P, V] at the masks, from our ids."""
    model = transformers.AlbertForMaskedLM.from_pretrained(folder).eval()
    ids = torch.tensor([tokenizer.encode(text, special_tokens=True, mask_literal=True)])
    with torch.inference_mode():
        return model(input_ids=ids).logits[ids == tokenizer.mask_id].softmax(-1)


@pytest.mark.parametrize("model_class", [AlbertForPreTraining, AlbertForMaskedLM])
def test_every_mask_has_transformers_probabilities(folder, tokenizer, model_class):
    path = folder(model_class)
    records = load_pipeline(path, precision="fp32")(MASKED, top=50)
    for text, record in zip(MASKED, records, strict=True):
        expected = shares_of_transformers(path, tokenizer, text)
        assert record["text"] == text
        assert len(record["masks"]) == len(expected) == text.count("[MASK]")
        for guesses, shares in zip(record["masks"], expected, strict=True):
            best = shares.topk(50)
            assert [guess["id"] for guess in guesses] == best.indices.tolist()
            assert [guess["probability"] for guess in guesses] == pytest.approx(
                best.values.tolist(), abs=5e-6
            )
            assert [guess["piece"] for guess in guesses] == [
                tokenizer.id_to_piece(i) for i in best.indices.tolist()
            ]


def test_the_pipeline_of_transformers_says_the_same_where_it_reads_the_same_ids(folder, tokenizer):
    path = folder(AlbertForPreTraining)
    theirs = transformers.pipeline("fill-mask", model=str(path), top_k=5)
    ours = load_pipeline(path, precision="fp32")
    compared = 0
    for text in MASKED[:3]:
        if theirs.tokenizer(text)["input_ids"] != tokenizer.encode(
            text, special_tokens=True, mask_literal=True
        ):
            continue
        compared += 1
        expected = theirs(text)
        guesses = ours(text)["masks"][0]
        assert [guess["id"] for guess in guesses] == [guess["token"] for guess in expected]
        assert [guess["probability"] for guess in guesses] == pytest.approx(
            [g["score"] for g in expected], abs=5e-6
        )
        assert [guess["word"] for guess in guesses] == [
            guess["token_str"].strip() for guess in expected
        ]
    assert compared == 3


def test_sentence_order_is_transformers(folder, tokenizer, sentences):
    path = folder(AlbertForPreTraining)
    theirs = transformers.AlbertForPreTraining.from_pretrained(path).eval()
    pairs = list(zip(sentences[:8], sentences[8:16], strict=True))
    records = load_pipeline(path, "sentence-order", precision="fp32")(pairs)
    for pair, record in zip(pairs, records, strict=True):
        ids = tokenizer.encode(*pair)
        if len(ids) > 64:
            continue
        inputs = {
            "input_ids": torch.tensor([ids]),
            "token_type_ids": torch.tensor([tokenizer.token_type_ids(ids)]),
        }
        with torch.inference_mode():
            shares = theirs(**inputs).sop_logits.softmax(-1)[0].tolist()
            inputs["token_type_ids"].zero_()
            one_segment = theirs(**inputs).sop_logits.softmax(-1)[0].tolist()
        assert [record["in_order"], record["swapped"]] == pytest.approx(shares, abs=5e-6)
        assert [record["in_order"], record["swapped"]] != pytest.approx(one_segment, abs=1e-6)


def test_a_list_is_answered_as_its_values_and_in_its_order(folder, sentences):
    fill = load_pipeline(folder(AlbertForPreTraining), precision="fp32")
    texts = [f"{text} [MASK]" for text in sentences]
    together = fill(texts)
    small = fill(texts, batch_tokens=16)
    for text, of_list, of_small_batch in zip(texts, together, small, strict=True):
        alone = fill(text)
        assert of_list["text"] == text
        for record in (of_list, of_small_batch):
            shares = [guess["probability"] for guess in record["masks"][0]]
            assert shares == pytest.approx(
                [guess["probability"] for guess in alone["masks"][0]], abs=5e-6
            )
    assert fill([]) == []
    assert json.loads(json.dumps(together)) == together


def test_low_precision_is_near_fp32(folder, sentences, low_precision):
    path = folder(AlbertForPreTraining, initializer_range=0.02)
    texts = [f"{text} [MASK]" for text in sentences]
    exact, near = (
        load_pipeline(path, precision=precision) for precision in ("fp32", low_precision)
    )
    assert near.precision == low_precision
    assert near.notes == ()
    shares = [np_shares(pipeline(texts, top=50)) for pipeline in (exact, near)]
    for exact_answer, near_answer in zip(*shares, strict=True):
        assert sum(abs(exact_answer[i] - near_answer.get(i, 0)) for i in exact_answer) < 0.05
    order = [load_pipeline(path, "sentence-order", precision=p) for p in ("fp32", low_precision)]
    pairs = list(pairwise(texts))
    for exact_answer, near_answer in zip(order[0](pairs), order[1](pairs), strict=True):
        assert exact_answer == pytest.approx(near_answer, abs=0.02)


def np_shares(records):
    return [
        {guess["id"]: guess["probability"] for guess in record["masks"][0]} for record in records
    ]


def test_rows_that_only_fill_up_the_table_are_never_guessed(folder, tokenizer):
    path = folder(AlbertForPreTraining, vocab_size=tokenizer.vocab_size + 60)
    guesses = load_pipeline(path, precision="fp32")("the [MASK]", top=50)["masks"][0]
    assert max(guess["id"] for guess in guesses) < tokenizer.vocab_size
    table_shares = shares_of_transformers(path, tokenizer, "the [MASK]")[0]
    assert guesses[0]["probability"] == pytest.approx(
        table_shares[: tokenizer.vocab_size].max().item(), abs=5e-6
    )
    assert table_shares.topk(50).indices.max() >= tokenizer.vocab_size


@pytest.mark.parametrize(
    ("kind", "value", "slug"),
    [
        ("fill-mask", "no mask", "bad-input"),
        ("fill-mask", "[MASK] " * 63, "too-large"),
        ("fill-mask", 3, "bad-input"),
        ("fill-mask", {"texts": "[MASK]"}, "bad-input"),
        ("sentence-order", "one text", "bad-input"),
        ("sentence-order", ("one", " "), "bad-input"),
        ("sentence-order", {"text": "one"}, "bad-input"),
        ("embed", ["one", "two"], "bad-input"),
    ],
)
def test_what_is_no_input_is_refused_with_one_that_works(folder, kind, value, slug):
    pipeline = load_pipeline(folder(AlbertForPreTraining), kind)
    with pytest.raises(DataError) as caught:
        pipeline.answer([pipeline.parse(value)])
    assert caught.value.slug == slug
    assert caught.value.hint
    assert pipeline(pipeline.example)


def test_objects_with_a_text_are_texts(folder):
    path = folder(AlbertForPreTraining)
    fill = load_pipeline(path)
    order = load_pipeline(path, "sentence-order")
    assert fill({"text": MASKED[0], "id": 7}) == fill(MASKED[0])
    assert (
        order({"text": "the fox", "pair": "a dog"})
        == order(("the fox", "a dog"))
        == order([["the fox", "a dog"]])[0]
    )


def test_options_are_checked(folder, slug_of):
    fill = load_pipeline(folder(AlbertForPreTraining))
    assert len(fill("[MASK]", top=3)["masks"][0]) == 3
    for options in (
        {"top": 0},
        {"top": 51},
        {"tops": 3},
        {"top": "3"},
        {"top": 1.5},
        {"batch_tokens": None},
    ):
        assert slug_of(fill, "[MASK]", **options) == "bad-value"


def test_a_model_without_the_head_cannot_say_the_order(folder, slug_of):
    assert slug_of(load_pipeline, folder(AlbertForMaskedLM), "sentence-order") == "wrong-model"


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_that_are_no_numbers_are_refused(folder, tmp_path, precision):
    model = AlbertForMaskedLM.from_pretrained(folder(AlbertForMaskedLM))
    with torch.no_grad():
        model.albert.embeddings.word_embeddings.weight[5] = float("nan")
    model.save_pretrained(tmp_path)
    shutil.copytree(folder(AlbertForMaskedLM), tmp_path / "whole")
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "whole")
    with pytest.raises(MachineError, match=r"\[not-finite\]"):
        load_pipeline(tmp_path / "whole", precision=precision)("the quick [MASK]")
