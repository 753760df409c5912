"""The folder we write, read by transformers' AutoTokenizer."""

import io
import pickle
import random
import sys
import unicodedata

import pytest
import sentencepiece
import transformers
from record_files import write_json

from albertkit.files import read_json
from albertkit.tokenizer import (
    AlbertTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    rules,
    tokenizer_json,
)
from albertkit.tokenizer.inputs import NamedSpecials
from albertkit.tokenizer.sentencepiece_model import SPECIAL_PIECES


def save_for_transformers(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    # as in a checkpoint folder, where transformers could choose its own AlbertTokenizer
    (folder / "config.json").write_text('{"model_type": "albert"}')
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_all_combining_marks_are_where_they_are_looked_for():
    assert not any(
        map(
            unicodedata.combining,
            map(chr, range(tokenizer_json._AFTER_THE_MARKS, sys.maxunicode + 1)),
        )
    )
    assert "\u0300-" in tokenizer_json.combining_class_regex()


def differing_texts(ours, theirs, texts):
    their_inputs = theirs(texts)
    expected = [
        [ours.cls_id, *ids.tolist(), ours.sep_id] for ids in ours.encode_batch(texts).texts()
    ]
    rows = zip(
        texts, their_inputs["input_ids"], their_inputs["token_type_ids"], expected, strict=True
    )
    return [text for text, ids, types, right in rows if ids != right or sum(types)]


def without_specials(texts):
    return [text for text in texts if not any(name in text for name in SPECIAL_PIECES)]


# `do_lower_case` and `keep_accents` of a saved folder
RULE_FLAGS = {
    "google": (True, False),
    "google-cased": (False, False),
    "multilingual": (False, True),
}


@pytest.mark.parametrize("rule", rules.NAMES)
def test_english(golden_rows, data, wiki, tmp_path, rule):
    ours = AlbertTokenizer.from_pretrained(data / "albert", rule)
    theirs = save_for_transformers(ours, tmp_path)
    settings = read_json(tmp_path / "tokenizer_config.json")
    flags = (settings["do_lower_case"], settings["keep_accents"])
    assert flags == RULE_FLAGS.get(rule, flags)
    assert differing_texts(ours, theirs, wiki("en/wiki_20")[:200]) == []
    hard = without_specials([row["text"] for row in golden_rows("tokenizer/lines.jsonl")])
    # Rules that leave decomposed accents to the normaliser, which `tokenizers` applies by grapheme:
    # stacked marks differ
    assert len(differing_texts(ours, theirs, hard)) <= (
        24 if rule == "none" or rule.endswith("accents") else 0
    )


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        *(("spiece", rule) for rule in rules.NAMES),
        ("spiece_userdef", "korean"),
        ("spiece_userdef", "google-accents"),
    ],
)
def test_korean(golden, golden_rows, tmp_path, model, rule):
    ours = SentencePieceTokenizer((golden / "korean" / f"{model}.model").read_bytes(), rule)
    texts = without_specials(
        [row[form] for form in ("nfc", "nfd") for row in golden_rows("korean/lines.jsonl")[::2]]
    )
    assert len(texts) == 2 * 199
    assert differing_texts(ours, save_for_transformers(ours, tmp_path), texts) == []


def test_pairs_special_tokens_and_mask(golden_rows, google, google_folder):
    ours = google
    theirs = transformers.AutoTokenizer.from_pretrained(google_folder)
    pairs = [(row["text_a"], row["text_b"]) for row in golden_rows("hf/tokenizer_pairs.jsonl")]
    # transformers 5.23 takes an empty second text for none (4.57.6 did not)
    pairs = [pair for pair in pairs if without_specials([pair[0] + pair[1]]) and pair[1]]
    assert len(pairs) > 50
    for first, second in pairs:
        encoded = theirs(first, second)
        assert encoded["input_ids"] == ours.encode(first, second)
        assert encoded["token_type_ids"] == ours.token_type_ids(encoded["input_ids"])
    # nothing but the five is special: the MLM collator must be able to mask `.` and `(`
    assert sorted(theirs.all_special_ids) == ours.special_ids() == [0, 1, 2, 3, 4]
    assert theirs.pad_token_id == 0
    assert theirs.mask_token_id == 4
    assert theirs.unk_token_id == 1
    text = "Paris is the [MASK] of France."
    assert theirs(text)["input_ids"] == ours.encode(text, special_tokens=True, mask_literal=True)
    assert theirs.decode(ours.encode("A (small) house.")) == "a (small) house."


MASK_LISTS = {  # where a folder sets the flags of its mask, and which tokenizer's files lie beside
    "tokenizer.json of SentencePiece": ("tokenizer.json", "spiece.model"),
    "tokenizer.json alone": ("tokenizer.json", ""),
    "added_tokens_decoder of SentencePiece": ("decoder", "spiece.model"),
    "tokenizer.json of WordPiece": ("tokenizer.json", "vocab.txt"),
    "added_tokens_decoder of WordPiece": ("decoder", "vocab.txt"),
    "mask_token of WordPiece": ("mask_token", "vocab.txt"),
}


@pytest.fixture(params=MASK_LISTS)
def mask_folder(request, tiny_tokenizer, tmp_path):
    """`mask_folder(flags)`: the folder of a tokenizer whose mask has these flags."""
    list_name, vocabulary = MASK_LISTS[request.param]

    def write(flags):
        tokenizer = tiny_tokenizer
        if vocabulary == "vocab.txt":
            pieces = [
                "[PAD]",
                "[UNK]",
                "[CLS]",
                "[SEP]",
                "[MASK]",
                "fox",
                "##x",
                "a",
                "[",
                "]",
                "mask",
                ".",
                "가",
                "_",
            ]
            tokenizer = WordPieceTokenizer(pieces)
        tokenizer.save_pretrained(tmp_path)
        settings_file = tmp_path / "tokenizer_config.json"
        json_file = tmp_path / "tokenizer.json"
        settings = read_json(settings_file)
        content = read_json(json_file)
        mask = next(token for token in content["added_tokens"] if token["content"] == "[MASK]")
        mask.update(flags)
        if list_name == "decoder":
            settings["added_tokens_decoder"] = {str(mask.pop("id")): mask}
        if list_name == "mask_token":
            settings["mask_token"] = {"__type": "AddedToken", **mask}
            json_file.unlink()
        elif list_name == "tokenizer.json":
            write_json(json_file, content)
        if vocabulary == "":
            (tmp_path / "spiece.model").unlink()
        write_json(settings_file, settings)
        (tmp_path / "config.json").write_text('{"model_type": "albert"}')
        return tmp_path

    return write


@pytest.mark.parametrize(
    "flags",
    [
        {"single_word": True},
        {"normalized": True},
        {"single_word": True, "normalized": True},
    ],
)
def test_flags_of_the_mask_are_those_of_transformers(mask_folder, tmp_path, flags):
    folder = mask_folder(flags)
    ours = AlbertTokenizer.from_pretrained(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.mask_token == "[MASK]"
    assert ours.mask_flags == tuple(flags)
    choose = random.Random(1).choices
    parts = [
        "[MASK]",
        "[mask]",
        "［MASK］",
        " ",
        "fox",
        "a",
        "x",
        ".",
        "가",
        "_",
        "²",
        "e\u0301",
        "\u200d",
        "\n",
    ]
    texts = ["".join(choose(parts, k=length)) for length in range(1, 8) for _ in range(25)]
    expected = theirs(texts)["input_ids"]
    ours.save_pretrained(tmp_path / "saved")
    saved = AlbertTokenizer.from_pretrained(tmp_path / "saved")
    for tokenizer in (ours, saved, pickle.loads(pickle.dumps(ours))):
        differing = [
            text
            for text, ids in zip(texts, expected, strict=True)
            if tokenizer(text).input_ids != ids
        ]
        assert differing == []
    with_offsets = ours(texts, return_offsets_mapping=True)
    assert with_offsets.input_ids == expected
    as_sentence_transformers = NamedSpecials(ours).encode_batch(texts).texts()
    assert [
        [ours.cls_id, *ids.tolist(), ours.sep_id] for ids in as_sentence_transformers
    ] == expected
    if "single_word" in flags:
        assert ours.mask_id not in ours.encode("a[MASK]", mask_literal=True)
        assert "[MASK]" not in ours.tokenize("a[MASK]")


# Lines of 398 that the class reads otherwise: `` and '', a capital sigma, and for rules that remove
# accents the accents.
CLASS_DIFFERS = {"korean": 4, "multilingual": 3, "none": 3, "google-accents": 3, "google": 6}


@pytest.mark.parametrize("rule", CLASS_DIFFERS)
def test_the_class_of_transformers_keeps_hangul(golden, golden_rows, tmp_path, rule):
    ours = SentencePieceTokenizer((golden / "korean/spiece.model").read_bytes(), rule)
    ours.save_pretrained(tmp_path)
    texts = without_specials([row["nfc"] for row in golden_rows("korean/lines.jsonl")])
    for name in ("AlbertTokenizer", "AlbertTokenizerFast"):
        theirs = getattr(transformers, name).from_pretrained(tmp_path)
        assert len(differing_texts(ours, theirs, texts)) <= CLASS_DIFFERS[rule]
        assert theirs.unk_token_id not in theirs("대한민국의 수도는 서울이다.")["input_ids"]


def test_offsets_are_those_of_the_class(google_folder):
    theirs = transformers.AutoTokenizer.from_pretrained(google_folder)
    offsets = theirs("Anna Smith works", return_offsets_mapping=True)["offset_mapping"]
    by_class = transformers.AlbertTokenizer.from_pretrained(google_folder)
    assert offsets == by_class("Anna Smith works", return_offsets_mapping=True)["offset_mapping"]
    assert offsets[2] == (5, 10)


def test_a_vocabulary_with_tokens_across_words_is_not_cut_at_spaces(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["new york is new york and of the of the town"] * 30),
        model_writer=model,
        vocab_size=60,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["new\u2581york"],
        hard_vocab_limit=False,
        minloglevel=3,
    )
    ours = SentencePieceTokenizer(model.getvalue())
    texts = ["new york is of the town", "and of the new york"]
    assert any("▁" in piece[1:] for text in texts for piece in ours.pieces(text))
    assert differing_texts(ours, save_for_transformers(ours, tmp_path), texts) == []
