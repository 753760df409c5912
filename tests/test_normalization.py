"""Normal forms beside those of the standard library, on texts that it takes long for, too."""

import random
import unicodedata
from itertools import pairwise

import pytest

from albertkit.encodings import normalize
from albertkit.tokenizer import rules

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
# Marks of several classes, a class of 0 that decomposes to marks, half-width voiced marks, letters
# that decompose.
MARKS = "\u0301\u0327\u0323\u0302\u0344\u0f73\u0f75\u0f81\u0345\uff9e\uff9f\u3099\u0334\u05b0\u064b\U0001d165\u0340\u0341"
LETTERS = "e\u1ec7\u0b47\u0b3e\u1100\u1161\u11a8\uac00\uff76\u30ab\ufdfa\u212b\ufb2c "


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_standard_library(form):
    draw = random.Random(form)
    for _ in range(400):
        text = "".join(
            "".join(draw.choices(LETTERS, k=draw.randint(0, 3)))
            + "".join(draw.choices(MARKS, k=draw.randint(0, 120)))
            for _ in range(draw.randint(1, 4))
        )
        assert normalize(form, text) == unicodedata.normalize(form, text)


def test_equals_the_standard_library_for_every_mark():
    marks = [
        chr(code)
        for code in range(0x20000)
        if unicodedata.combining(unicodedata.normalize("NFKD", chr(code))[0])
    ]
    random.Random(0).shuffle(marks)
    for form in FORMS:
        assert normalize(form, "a" + "".join(marks)) == unicodedata.normalize(
            form, "a" + "".join(marks)
        )


@pytest.mark.parametrize("name", rules.NAMES)
def test_runs_of_marks_reach_the_standard_library_in_order(name, monkeypatch):
    """Marks in canonical order are not sorted again, so the quadratic step is never taken."""
    normalize("NFC", "e" + "\u0301" * 40)
    normalize("NFKD", "e" + "\u0301" * 40)  # the patterns are made
    disorder = []
    plain = unicodedata.normalize

    def watched(form, text):
        classes = [unicodedata.combining(character) for character in text]
        inversions = sum(0 < after < before for before, after in pairwise(classes))
        disorder.append(inversions)
        return plain(form, text)

    monkeypatch.setattr(unicodedata, "normalize", watched)
    text = "e" + "\u0301\u0327" * 25000
    rules.apply(name, text)
    rules.align(name, text[:2001])
    assert sum(disorder) == 0


def test_marks_without_a_class_are_aligned_in_few_steps(monkeypatch):
    """The text handed to the standard library is a small multiple of the text's length."""
    lengths = []
    plain = unicodedata.normalize

    def watched(form, text):
        lengths.append(len(text))
        return plain(form, text)

    monkeypatch.setattr(unicodedata, "normalize", watched)
    rules.align("multilingual", "e" + "\u0f73" * 3000)
    assert sum(lengths) < 60_000
