"""Example texts follow the language of a vocabulary."""

import pytest

from albertkit.tokenizer import train_tokenizer
from albertkit.tokenizer.texts import ENGLISH, KOREAN, choose_example_texts

EN = [
    "the quick brown fox jumps over a lazy dog while seven wizards brew strong potions near calm rivers"
] * 20
KO = [
    *KOREAN.ordered,
    KOREAN.with_names,
    KOREAN.opinion,
    *KOREAN.choice["choices"],
    "빠른 여우가 게으른 개를 뛰어넘는다",
] * 20


@pytest.mark.parametrize(
    ("texts", "size", "expected"),
    [
        (EN, 45, ENGLISH),
        (KO, 62, KOREAN),
        (EN + KO, 96, KOREAN),
        ([*EN, "서울"] * 20, 48, ENGLISH),
    ],
    ids=["English", "Korean", "both", "two syllables"],
)
def test_texts_are_those_of_the_vocabulary(tmp_path, texts, size, expected):
    actual_texts = choose_example_texts(train_tokenizer(texts, tmp_path / "tokenizer", size))
    assert actual_texts == expected
    assert actual_texts.masked.count("[MASK]") == 1
