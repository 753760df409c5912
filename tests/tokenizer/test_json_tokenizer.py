"""Folders whose only tokenizer file is `tokenizer.json`, as transformers 5 saves them."""

import json
import pickle
import shutil

import numpy as np
import pytest
import tokenizers
import transformers

from albertkit.errors import AlbertKitError
from albertkit.tokenizer import AlbertTokenizer, JsonTokenizer
from albertkit.tokenizer.readings import HARD_SENTENCES

NAMES = ("[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>")
HARD = list(HARD_SENTENCES)


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    """Google's model through transformers: its conversion, with all its faults, is what a fine-tuned model has seen."""
    folder = tmp_path_factory.mktemp("google")
    out = tmp_path_factory.mktemp("saved")
    shutil.copyfile(data / "albert/30k-clean.model", folder / "spiece.model")
    (folder / "config.json").write_text('{"model_type": "albert"}')
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    assert not (out / "spiece.model").exists()
    return out


@pytest.fixture(scope="module")
def tokenizer(saved):
    return AlbertTokenizer.from_pretrained(saved)


def test_ids_are_those_of_the_file(saved, tokenizer, google, golden_rows):
    assert isinstance(tokenizer, JsonTokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(saved)
    texts = [row["text"] for row in golden_rows("tokenizer/lines.jsonl")] + HARD
    texts = [text for text in texts if not any(name in text for name in NAMES)]
    expected = [ids[1:-1] for ids in theirs(texts)["input_ids"]]
    assert [tokenizer.encode(text) for text in texts] == expected
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts).texts()] == expected
    assert [tokenizer.encode_with_offsets(text)[0] for text in texts] == expected
    # Their faults
    assert sum(google.encode(text) != ids for text, ids in zip(texts, expected, strict=True)) > 400
    assert tokenizer.decode(expected[0]) == theirs.decode(expected[0])


def test_names_of_special_tokens_are_text(tokenizer):
    for name in NAMES:
        assert not set(tokenizer.encode(f"a {name} b", special_tokens=False)) & {0, 2, 3, 4}
    assert tokenizer.encode("Paris is the [MASK].", mask_literal=True).count(4) == 1
    assert tokenizer("Paris is the [MASK].")["input_ids"].count(4) == 1
    assert tokenizer.decode([2, 14, 4, 3]) == "[CLS] the[MASK][SEP]"
    assert "(" in tokenizer.decode(tokenizer.encode("a (b)"))


def test_saved_again(tokenizer, saved, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == (saved / "tokenizer.json").read_text()
    reloaded = AlbertTokenizer.from_pretrained(tmp_path)
    assert reloaded.fingerprint == tokenizer.fingerprint
    for other_reader in (reloaded, pickle.loads(pickle.dumps(tokenizer))):
        assert other_reader.fingerprint == tokenizer.fingerprint
        assert [other_reader.encode(text) for text in HARD] == [
            tokenizer.encode(text) for text in HARD
        ]
    assert tokenizer.special_ids() == [0, 1, 2, 3, 4]
    starts = tokenizer.word_starts()
    assert starts.dtype == np.bool_
    assert starts.shape == (30000,)
    assert starts[14]
    assert (
        not starts[tokenizer.encode("s", special_tokens=False)[0]]
        or tokenizer.id_to_piece(18) == "s"
    )


def test_padding_and_truncation_in_the_file_are_left_out(saved, tmp_path, tokenizer):
    content = json.loads((saved / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    reloaded = AlbertTokenizer.from_pretrained(tmp_path)
    assert [reloaded.encode(text) for text in HARD] == [tokenizer.encode(text) for text in HARD]


@pytest.mark.parametrize(
    ("content", "slug"),
    [
        ("{", "bad-file"),
        ("{}", "bad-file"),
        ('{"model": {"type": "Unigram", "vocab": 3}}', "bad-file"),
        ('{"model": {"type": "BPE"}}', "unsupported"),
        (
            '{"version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1]]}}',
            "wrong-tokenizer",
        ),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path, content, slug):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(AlbertKitError, match=rf"(?s)\[{slug}\].*\n\nhint: "):
        AlbertTokenizer.from_pretrained(tmp_path)


def test_a_regular_expression_that_fails_is_an_error_and_no_panic():
    """A panic of the library is no Exception: it ended threads, workers and answers that handle those."""
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")
    library = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"
        )
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex("(a|aa)+$b"), "isolated"
    )
    tokenizer = JsonTokenizer(library.to_str())
    text = "a" * 40 + "!"
    with pytest.raises(BaseException, match="retry-limit") as panic:
        library.encode(text)
    assert not isinstance(panic.value, Exception)
    assert tokenizer.encode("a", special_tokens=False) == [5]
    for call in (
        tokenizer.encode,
        tokenizer.encode_with_offsets,
        lambda text: tokenizer.encode_batch([text]),
    ):
        with pytest.raises(AlbertKitError, match=r"\[bad-file\].*retry-limit"):
            call(text)


def test_a_token_of_which_nothing_is_left_is_an_error_and_no_panic():
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    model = tokenizers.models.WordPiece(
        {name: number for number, name in enumerate(names)}, unk_token="[UNK]"
    )
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.Strip()
    library.add_tokens([tokenizers.AddedToken(" ", normalized=True)])
    with pytest.raises(AlbertKitError, match=r"\[bad-file\].*bad split"):
        JsonTokenizer(library.to_str())
