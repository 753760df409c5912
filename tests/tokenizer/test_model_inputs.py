"""`tokenizer(texts)`: what transformers' call gives for the same arguments; and its faults."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.errors import AlbertKitError
from albertkit.tokenizer import AlbertTokenizer

TEXTS = ["Paris is the [MASK] of France.", "", "One, two, 2010, three.", "a [MASK][MASK] b"]
PAIRS = ["It is a city.", "Second text alone", "", "x"]


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> AlbertTokenizer:
    return AlbertTokenizer.from_pretrained(data / "albert")


def test_as_transformers(tokenizer: AlbertTokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    compared = 0
    for padding, truncation, length in itertools.product((False, True, "max_length"), (False, True), (7, 12, 40)):
        if not truncation and padding == "max_length" and length < 40:
            continue
        arguments = dict(padding=padding, truncation=truncation, max_length=length)
        for texts in (TEXTS, TEXTS[0], (TEXTS[0], PAIRS[0]), (TEXTS[:2], PAIRS[:2])):
            given = texts if isinstance(texts, tuple) else (texts,)
            assert tokenizer(*given, **arguments) == dict(theirs(*given, **arguments)), arguments
            compared += 1
    assert compared > 50


def test_tensors(tokenizer: AlbertTokenizer) -> None:
    inputs = tokenizer(TEXTS, PAIRS, return_tensors="pt")
    assert list(inputs) == ["input_ids", "token_type_ids", "attention_mask"]
    assert all(tensor.dtype == torch.int64 and tensor.shape == inputs["input_ids"].shape for tensor in inputs.values())
    lists = tokenizer(TEXTS, PAIRS)
    for row, ids in enumerate(lists["input_ids"]):
        assert inputs["input_ids"][row, : len(ids)].tolist() == ids
        assert not inputs["input_ids"][row, len(ids) :].any()
        assert inputs["attention_mask"][row].sum() == len(ids)
    arrays = tokenizer("one text", return_tensors="np")
    assert all(isinstance(array, np.ndarray) and array.shape == (1, 4) for array in arrays.values())
    assert tokenizer("one text")["input_ids"] == arrays["input_ids"][0].tolist()
    assert tokenizer([], return_tensors="np")["input_ids"].shape == (0, 0)


def test_longest_sequence(tokenizer: AlbertTokenizer) -> None:
    assert len(tokenizer("word " * 900, truncation=True)["input_ids"]) == 512
    assert len(tokenizer("word " * 900)["input_ids"]) == 902


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        (dict(text=["a"], text_pair=["b", "c"]), "bad-value"),
        (dict(text="a", padding="longets"), "bad-value"),
        (dict(text="a", truncation="first"), "bad-value"),
        (dict(text="a", return_tensors="tf"), "bad-value"),
        (dict(text=["a", "b c d e"], padding=False, return_tensors="np"), "bad-value"),
        (dict(text="a b c", text_pair="d " * 30, truncation="only_first", max_length=10), "too-large"),
        (dict(text="a b c", truncation="only_second", max_length=4), "too-large"),
        (dict(text="a", truncation=True, max_length=1), "too-large"),
    ],
)
def test_faults(tokenizer: AlbertTokenizer, arguments: dict, slug: str) -> None:
    with pytest.raises(AlbertKitError) as caught:
        tokenizer(**arguments)
    assert caught.value.slug == slug
    assert caught.value.hint


def test_no_torch_unless_asked(data: Path) -> None:
    code = (
        "import sys; from albertkit import AlbertTokenizer\n"
        "t = AlbertTokenizer.from_pretrained(sys.argv[1]); t(['a', 'b c'], padding=True); t('a', return_tensors='np')\n"
        "print({'torch', 'numba', 'tokenizers', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(data / "albert")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
