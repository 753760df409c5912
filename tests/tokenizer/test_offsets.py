"""Offsets and text rules, for any text."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from albertkit.errors import ConfigError
from albertkit.tokenizer import SentencePieceTokenizer, rules

# Characters that rules and normalisers treat in every way there is: spaces, marks that compose and
# that do not, Hangul whole and in jamo, ligatures, compatibility forms, final sigma, characters
# that SentencePiece removes, unknown ones, a lone surrogate.
DIFFICULT = (
    "aB1, .[](-£ \t\n\u00a0\u0085\u2028\u3000éÉßİıΣΑς\u0300\u0301\u0323\u0327"
    "ﬁ½①ＡｶﾞガKÅ한글\u1112\u1161\u11ab\u200b\ufeff\x00\x07😀👍🏽\ud800\u2581`"
)
texts = st.one_of(
    st.text(st.sampled_from(DIFFICULT), max_size=30),
    st.text(max_size=30),
    st.lists(
        st.sampled_from(["12,", "1,000,000,", "£5,", "٣,", "the ", "CAFE\u0301 ", "  "]), max_size=8
    ).map("".join),
)
MODELS = ("albert", "toy", "korean")


@pytest.fixture(scope="module")
def models(golden, data):
    return {
        "albert": (data / "albert/30k-clean.model").read_bytes(),
        "toy": (golden / "tokenizer/digit_comma_toy.model").read_bytes(),
        "korean": (golden / "korean/spiece_userdef.model").read_bytes(),
    }


@pytest.fixture(scope="module")
def tokenizers(models):
    return [SentencePieceTokenizer(models[name], rule) for name in MODELS for rule in rules.NAMES]


@given(texts)
@example("ＡΣ Σ\u0301 ﬁ\u0301")
@example("\u0301a")
@settings(max_examples=300)
def test_alignment_names_the_origin(text):
    for name in rules.NAMES:
        aligned = rules.align(name, text)
        assert aligned.text == rules.apply(name, text)
        assert len(aligned.starts) == len(aligned.ends) == len(aligned.text)
        last = 0
        for character, start, end in zip(*aligned, strict=True):
            assert last <= start < end <= len(text)
            last = start
            origin = rules.apply(name, text[start:end])
            assert character == " " or character.replace("ς", "σ") in origin.replace("ς", "σ")


@given(texts)
@settings(max_examples=150)
def test_spans_stand_for_their_pieces(tokenizers, text):
    for tokenizer in tokenizers:
        ids, spans = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text)
        assert len(ids) == len(spans)
        last = 0
        for start, end in spans:
            assert last <= start <= end <= len(text)
            last = start
        # What no span covers has no piece of its own: white space, and what rules or SentencePiece
        # remove.
        covered = {position for start, end in spans for position in range(start, end)}
        remaining_text = "".join(c for i, c in enumerate(text) if i not in covered)
        assert all(
            not tokenizer.pieces(c) or set(tokenizer.pieces(c)) == {"▁"} for c in remaining_text
        ), remaining_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ünïted  Zürich,", ["Ünïted", "  Zürich", ","]),
        (
            unicodedata.normalize("NFD", "Ünïted Zürich,"),
            ["U\u0308ni\u0308ted", " Zu\u0308rich", ","],
        ),
        ("in 2010, and", ["in", " 2010", ",", " and"]),
        ("\tthe  \n the ", ["the", "  \n the"]),
    ],
)
def test_spans_by_hand(google, text, words):
    assert [text[a:b] for a, b in google.encode_with_offsets(text)[1]] == words


def test_decomposed_hangul_keeps_its_characters(golden):
    tokenizer = SentencePieceTokenizer(
        (golden / "korean/spiece.model").read_bytes(), "multilingual"
    )
    text = "대한민국의 수도는 서울이다."
    composed, spans = tokenizer.encode_with_offsets(text)
    decomposed = unicodedata.normalize("NFD", text)
    ids, wider = tokenizer.encode_with_offsets(decomposed)
    assert ids == composed
    assert [unicodedata.normalize("NFC", decomposed[a:b]) for a, b in wider] == [
        text[a:b] for a, b in spans
    ]


def test_unknown_rules_are_named():
    with pytest.raises(ConfigError, match=r"(?s)unknown-name.*googel.*did you mean `google`"):
        rules.check_rules_name("googel")
