"""What a request's texts may stand for, and that work ends when nobody waits for it: in this process, without a clock."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from albertkit.serve import refusals, service
from albertkit.serve.refusals import ServiceError, check_expansion
from albertkit.serve.service import compute_features_in_parts


@given(st.text(st.sampled_from("ab \ufdfa\ufb03\u1112\u1161\u11abe\u0301①한"), max_size=60))
def test_texts_are_counted_as_at_least_what_they_stand_for(text):
    assert refusals.expanded_nfkc_length(text) >= len(unicodedata.normalize("NFKC", text))


@pytest.mark.parametrize(
    ("values", "is_refused"),
    [
        (["\ufdfa" * 16_000], False),
        (["\ufdfa" * 17_000], True),
        ({"question": "a", "choices": ["b", "\ufdfa" * 17_000]}, True),
        ([("a", "\ufdfa" * 10_000)], False),
        ([("a", "\ufdfa" * 10_000)] * 2, True),
        ([("query " * 16_000, "text")] * 11, True),  # 1 MB that a body of 100 kB asks for
        (["한국어" * 30_000] * 11, False),
    ],
)
def test_what_becomes_much_longer_is_refused(values, is_refused):
    if is_refused:
        with pytest.raises(ServiceError, match=r"too-large.* in NFKC"):
            check_expansion(values, 1_000_000)
    else:
        check_expansion(values, 1_000_000)


@pytest.mark.parametrize("kind", ["classify", "answer", "choose", "tag"])
def test_features_made_in_parts_are_those_of_the_whole(pipeline_of, kind, monkeypatch):
    monkeypatch.setattr(service, "_CHARACTERS_A_PART", 60)
    pipeline = pipeline_of(kind, kind)
    texts = ["the fox " * count for count in (1, 30, 2, 9, 40)]
    values = {
        "classify": [*texts, (texts[0], texts[1])],
        "answer": [{"question": "who jumps?", "context": text} for text in texts],
        "choose": [{"question": "who?", "choices": [text, "a dog"]} for text in texts],
        "tag": texts,
    }[kind]
    inputs = [pipeline.parse(value) for value in values]
    expected = pipeline.features(inputs)
    calls = []
    features = compute_features_in_parts(pipeline.features, inputs, values, lambda: calls.append(1))
    assert len(calls) > 2
    for name in ("input_ids", "token_type_ids", "offsets", "examples", "left_out"):
        assert_array_equal(getattr(features, name), getattr(expected, name))
    for arrays, expected_arrays in (
        (features.per_sequence, expected.per_sequence),
        (features.per_token, expected.per_token),
    ):
        assert arrays.keys() == expected_arrays.keys()
        for name, array in expected_arrays.items():
            assert_array_equal(arrays[name], array)


def test_nothing_more_is_tokenized_after_the_request_has_ended():
    tokenized = []

    def proceed():
        if len(tokenized) == 3:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        compute_features_in_parts(
            tokenized.append, ["a" * 100_000] * 9, ["a" * 100_000] * 9, proceed
        )
    assert len(tokenized) == 3
