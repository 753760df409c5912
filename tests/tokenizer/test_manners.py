"""What people know from transformers' tokenizers works here, with the same results."""

import re

import pytest
import torch
import transformers

from albertkit.errors import AlbertKitError
from albertkit.tokenizer import AlbertTokenizer, WordPieceTokenizer, train_tokenizer

DETAILS = dict(return_offsets_mapping=True, return_special_tokens_mask=True, return_length=True)


@pytest.fixture(scope="module")
def tokenizers(google_folder):
    return AlbertTokenizer.from_pretrained(
        google_folder
    ), transformers.AutoTokenizer.from_pretrained(google_folder)


@pytest.fixture(scope="module")
def lines(wiki):
    text = [line.strip() for line in wiki("en/wiki_20") if "<" not in line and "[" not in line]
    return [*text[:60], "a [MASK] b", "[MASK]", ""]


def test_columns_words_and_windows_are_those_of_transformers(tokenizers, lines):
    ours, theirs = tokenizers
    for line in lines:
        mine = ours(line, **DETAILS)
        their_inputs = theirs(line, **DETAILS)
        assert dict(mine) == dict(their_inputs)
        assert mine.sequence_ids() == their_inputs.sequence_ids(0)
        assert mine.word_ids() == their_inputs.word_ids(0)
        words = line.split()
        mine, their_inputs = (
            t(words, is_split_into_words=True, return_offsets_mapping=True) for t in tokenizers
        )
        assert dict(mine) == dict(their_inputs)
        assert mine.word_ids() == their_inputs.word_ids(0)
        for length, stride in ((20, 5), (32, 0)):
            window = dict(
                truncation=True, max_length=length, stride=stride, return_overflowing_tokens=True
            )
            assert dict(ours(line, **window)) == dict(theirs(line, **window))
            if not line:  # transformers 5.23 takes an empty second text for none
                continue
            window |= dict(
                truncation="only_second", padding="max_length", return_offsets_mapping=True
            )
            assert dict(ours("a question", line, **window)) == dict(
                theirs("a question", line, **window)
            )
    texts = dict(truncation=True, max_length=16, return_overflowing_tokens=True, padding=True)
    assert dict(ours(lines, **texts)) == dict(theirs(lines, **texts))
    eights = dict(pad_to_multiple_of=8, padding=True)
    assert dict(ours(lines[:5], **eights)) == dict(theirs(lines[:5], **eights))


def test_methods_and_names(tokenizers, lines):
    ours, theirs = tokenizers
    assert len(ours) == len(theirs) == 30000
    assert ours.get_vocab() == theirs.get_vocab()
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
    ids = theirs(lines)["input_ids"]
    assert ours.batch_decode(ids, skip_special_tokens=True) == theirs.batch_decode(
        ids, skip_special_tokens=True
    )
    for line, row in zip(lines, ids, strict=True):
        assert ours.encode(line, add_special_tokens=True) == theirs.encode(line) == row
        assert ours.encode(line, add_special_tokens=False) == theirs.encode(
            line, add_special_tokens=False
        )
        # They: ' [MASK]'
        assert [t.strip(" ") for t in theirs.tokenize(line)] == ours.tokenize(line)
        tokens = ours.convert_ids_to_tokens(row)
        assert tokens == theirs.convert_ids_to_tokens(row)
        assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens) == row
    assert ours.convert_tokens_to_ids("▁the") == theirs.convert_tokens_to_ids("▁the")
    assert ours.convert_ids_to_tokens(2) == "[CLS]"


def test_results_have_attributes(tokenizers):
    inputs = tokenizers[0](["one text", "another one"], return_tensors="pt")
    assert torch.equal(inputs.input_ids, inputs["input_ids"])
    assert inputs.to("cpu").attention_mask.shape == (2, 4)
    assert inputs.tokens(0) == ["[CLS]", "▁one", "▁text", "[SEP]"]
    with pytest.raises(AlbertKitError, match="words of these tokens were not kept"):
        inputs.word_ids()
    with pytest.raises(AttributeError, match="no column `labels`"):
        _ = inputs.labels


@pytest.fixture(scope="module")
def bert_names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named") / "t"
    texts = ["some words and some more words for a vocabulary"] * 20
    train_tokenizer(
        texts,
        folder,
        vocab_size=33,
        special_pieces="[PAD] [UNK] [CLS] [SEP] [MASK]".split(),
        text_rules="korean",
    )
    return folder


def test_arguments_of_from_pretrained(bert_names):
    tokenizer = AlbertTokenizer.from_pretrained(
        bert_names, unk_token="[UNK]", pad_token="[PAD]", max_len=64
    )
    assert tokenizer.model_max_length == 64
    assert len(tokenizer("words " * 100, truncation=True).input_ids) == 64
    assert AlbertTokenizer.from_pretrained(bert_names, model_max_length=128).model_max_length == 128
    assert (
        AlbertTokenizer.from_pretrained(bert_names, do_lower_case=False).text_rules
        == "multilingual"
    )
    assert (
        AlbertTokenizer.from_pretrained(
            bert_names, do_lower_case=True, keep_accents=True
        ).text_rules
        == "korean"
    )
    assert AlbertTokenizer.from_pretrained(bert_names, "google").text_rules == "google"


@pytest.mark.parametrize(
    ("arguments", "slug", "message"),
    [
        (dict(unk_token="<unk>"), "bad-value", "calls it `[UNK]`"),
        (dict(keep_accents=False), "unknown-name", "no rules like `korean`"),
        (dict(max_len=2), "bad-value", "model_max_length is 2"),
        (dict(text_rules="google", do_lower_case=False), "bad-value", "both given"),
    ],
)
def test_arguments_that_cannot_be(bert_names, arguments, slug, message):
    with pytest.raises(AlbertKitError, match=rf"\[{slug}\].*{re.escape(message)}"):
        AlbertTokenizer.from_pretrained(bert_names, **arguments)


def test_flags_of_wordpiece(tmp_path):
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] a A".split()
    WordPieceTokenizer(vocabulary).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert AlbertTokenizer.from_pretrained(tmp_path).encode("A a") == [5, 5]
    assert AlbertTokenizer.from_pretrained(tmp_path, do_lower_case=False).encode("A a") == [6, 5]
