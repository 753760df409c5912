"""`tokenizer(texts)`: the inputs that transformers' call gives for the same arguments; and its errors."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from albertkit.errors import AlbertKitError

TEXTS = ["Paris is the [MASK] of France.", "", "One, two, 2010, three.", "a [MASK][MASK] b"]
PAIRS = ["It is a city.", "Second text alone", "", "x"]


WINDOWS = dict(truncation=True, max_length=9, return_overflowing_tokens=True)


def test_as_transformers(google, google_folder):
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(google_folder)
    compared = 0
    for padding, truncation, length in itertools.product(
        (False, True, "max_length"), (False, True), (7, 12, 40)
    ):
        if not truncation and padding == "max_length" and length < 40:
            continue
        arguments = dict(padding=padding, truncation=truncation, max_length=length)
        for texts in (TEXTS, TEXTS[0], (TEXTS[0], PAIRS[0]), (TEXTS[:2], PAIRS[:2])):
            inputs = texts if isinstance(texts, tuple) else (texts,)
            assert google(*inputs, **arguments) == dict(theirs(*inputs, **arguments)), arguments
            compared += 1
    assert compared > 50


def test_tensors(google):
    inputs = google(TEXTS, PAIRS, return_tensors="pt")
    assert list(inputs) == ["input_ids", "token_type_ids", "attention_mask"]
    assert all(
        tensor.dtype == torch.int64 and tensor.shape == inputs["input_ids"].shape
        for tensor in inputs.values()
    )
    lists = google(TEXTS, PAIRS)
    for row, ids in enumerate(lists["input_ids"]):
        assert inputs["input_ids"][row, : len(ids)].tolist() == ids
        assert not inputs["input_ids"][row, len(ids) :].any()
        assert inputs["attention_mask"][row].sum() == len(ids)
    arrays = google("one text", return_tensors="np")
    assert all(isinstance(array, np.ndarray) and array.shape == (1, 4) for array in arrays.values())
    assert google("one text")["input_ids"] == arrays["input_ids"][0].tolist()
    assert google([], return_tensors="np")["input_ids"].shape == (0, 0)


def test_longest_sequence(google):
    assert len(google("word " * 900, truncation=True)["input_ids"]) == 512
    assert len(google("word " * 900)["input_ids"]) == 902


@pytest.mark.parametrize(
    ("arguments", "slug", "message"),
    [
        (dict(text=["a"], text_pair=["b", "c"]), "bad-value", "2 second ones"),
        (dict(text="a", padding="longets"), "bad-value", "padding is 'longets'"),
        (dict(text="a", truncation="first"), "bad-value", "truncation is 'first'"),
        (dict(text="a", return_tensors="tf"), "bad-value", "return_tensors is 'tf'"),
        (
            dict(text=["a", "b c d e"], padding=False, return_tensors="np"),
            "bad-value",
            "no tensor without padding",
        ),
        (
            dict(text="a b c", text_pair="d " * 30, truncation="only_first", max_length=10),
            "too-large",
            "`only_first`",
        ),
        (dict(text="a b c", truncation="only_second", max_length=4), "too-large", "`only_second`"),
        (dict(text="a", truncation=True, max_length=1), "too-large", "`longest_first`"),
        (dict(text="a", text_pair="b " * 50, **WINDOWS), "bad-value", "windows of a pair"),
        (dict(text="a " * 50, stride=7, **WINDOWS), "bad-value", "stride is 7"),
        (
            dict(text=["a b"], text_pair=["c"], is_split_into_words=True, stride=-1),
            "bad-value",
            "stride is -1",
        ),
        (dict(text=[["a"], "b c"], is_split_into_words=True), "bad-value", "not a list of words"),
    ],
)
def test_errors(google, arguments, slug, message):
    with pytest.raises(AlbertKitError, match=rf"(?s)\[{slug}\].*{message}.*\n\nhint: "):
        google(**arguments)


def test_no_torch_unless_asked(data):
    code = (
        "import sys; from albertkit import AlbertTokenizer\n"
        "t = AlbertTokenizer.from_pretrained(sys.argv[1]); t(['a', 'b c'], padding=True); t('a', return_tensors='np')\n"
        "print({'torch', 'numba', 'tokenizers', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(data / "albert")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "set()"
