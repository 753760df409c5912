"""`fix_tokenizer`: transformers' tokenizer with our ids, from folders and tokenizers that are wrong."""

import shutil

import pytest
import transformers

import albertkit
from albertkit.errors import CheckpointError
from albertkit.tokenizer import AlbertTokenizer

TEXTS = ("서울에서 1,000 문서를 읽는다.", "the garden, 12,5 and 3,", "Ａ café Σας")


@pytest.fixture
def alone(tiny_tokenizer, tmp_path):
    """A folder with `spiece.model` and the name of the class, as old checkpoints are."""
    tiny_tokenizer.save_pretrained(tmp_path / "whole")
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "whole/spiece.model", tmp_path / "alone")
    (tmp_path / "alone/config.json").write_text('{"model_type": "albert"}')
    return tmp_path / "alone"


def test_ids_and_segments_are_ours(alone):
    expected = AlbertTokenizer.from_pretrained(alone)
    wrong = transformers.AutoTokenizer.from_pretrained(alone)
    wrong.padding_side = "left"
    for inputs in (alone, str(alone), wrong):
        fixed = albertkit.fix_tokenizer(inputs)
        assert [fixed(text)["input_ids"] for text in TEXTS] == [
            expected.encode(text, special_tokens=True) for text in TEXTS
        ]
        assert fixed("one", "two")["token_type_ids"] == expected("one", "two")["token_type_ids"]
    assert fixed.padding_side == "left"
    assert albertkit.fix_tokenizer(alone).padding_side == "right"
    assert any(
        wrong(text)["input_ids"] != expected.encode(text, special_tokens=True) for text in TEXTS
    )


def test_saved_it_stays_right(alone, tmp_path):
    albertkit.fix_tokenizer(alone).save_pretrained(tmp_path / "saved")
    reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    expected = AlbertTokenizer.from_pretrained(alone)
    assert [reloaded(text)["input_ids"] for text in TEXTS] == [
        expected.encode(text, special_tokens=True) for text in TEXTS
    ]


def test_tokens_of_the_user_stay(alone):
    source = transformers.AutoTokenizer.from_pretrained(alone)
    source.add_tokens(["zzz"])
    source.add_tokens(["<ent>"], special_tokens=True)
    fixed = albertkit.fix_tokenizer(source)
    assert len(fixed) == len(source)
    assert fixed("a zzz <ent>")["input_ids"][-3:-1] == source.convert_tokens_to_ids(
        ["zzz", "<ent>"]
    )


def test_one_that_came_from_nowhere_is_refused():
    with pytest.raises(CheckpointError, match=r"does not say where its spiece\.model is"):
        albertkit.fix_tokenizer(transformers.AlbertTokenizer())
