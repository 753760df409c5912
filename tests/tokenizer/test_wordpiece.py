"""`vocab.txt` folders against transformers' BertTokenizer, and against BERT's rules written down once more in plain Python."""

import pickle
import random
import unicodedata
from collections import Counter

import numpy as np
import pytest
from record_files import write_json

from albertkit.errors import AlbertKitError
from albertkit.tokenizer import (
    AlbertTokenizer,
    JsonTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from albertkit.tokenizer.readings import HARD_SENTENCES
from albertkit.tokenizer.wordpiece import BertRules, bert_rules, read_vocabulary

HARD = list(HARD_SENTENCES)
# As the files of public folders have them; see `albertkit.tokenizer.folder_files`.
SETTINGS = {
    "google": None,  # Google's archives have no such file
    "voidful": {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
    "ckiplab": {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True},
    "kykim": {"do_lower_case": True, "strip_accents": False, "model_max_length": 256},
    "lots-o": {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": True},
    "unsplit": {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
}


def vocabulary(texts):
    """A vocabulary with Google's ids (21128 pieces: [PAD] 0, [UNK] 100 … [MASK] 103), of the characters and words of texts."""
    words = Counter(
        word
        for text in texts
        for form in (text, unicodedata.normalize("NFD", text.lower()))
        for word in form.split()
    )
    characters = Counter(c for word in words for c in word)
    common = [c for c, count in sorted(characters.items()) if count > 1]
    endings = ["##ing", "##s", "##는", "##다"]
    pieces = [
        *common,
        *("##" + c for c in common),
        *(w for w, _ in words.most_common(3000)),
        *endings,
    ]
    special = [
        "[PAD]",
        *(f"[unused{n}]" for n in range(1, 100)),
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    # a line of its own that `str.splitlines` would break; bert-base-chinese has one, too
    return [
        *special,
        *dict.fromkeys(piece for piece in pieces if piece not in special and piece.strip()),
        "\u2028",
    ]


@pytest.fixture(scope="module")
def texts(wiki):
    return wiki("ko/wiki_07")[:120] + wiki("en/wiki_20")[:120] + HARD


@pytest.fixture(scope="module")
def pieces(texts):
    return vocabulary(texts)


def write(folder, pieces, settings, name="vocab.txt"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes("".join(piece + "\n" for piece in pieces).encode())
    if settings is not None:
        write_json(folder / "tokenizer_config.json", settings)
    return folder


@pytest.mark.parametrize("name", SETTINGS)
def test_transformers(name, texts, pieces, tmp_path):
    import transformers

    folder = write(tmp_path / name, pieces, SETTINGS[name])
    ours = AlbertTokenizer.from_pretrained(folder)
    theirs = transformers.BertTokenizer.from_pretrained(folder)
    assert isinstance(ours, WordPieceTokenizer)
    assert ours.pad_id == 0
    assert ours.unk_id == 100
    assert ours.cls_id == 101
    assert ours.sep_id == 102
    assert ours.mask_id == 103
    assert ours.vocab_size == len(pieces) == len(theirs)
    plain = [
        text for text in texts if not any(t in text for t in ("[CLS]", "[SEP]", "[PAD]", "[UNK]"))
    ]
    assert len(plain) > 240
    expected = theirs(plain)["input_ids"]
    assert [ours.encode(text, special_tokens=True, mask_literal=True) for text in plain] == expected
    assert ours(plain)["input_ids"] == expected
    for text, ids in zip(plain[::7], expected[::7], strict=True):
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True
        )
        if "[MASK]" not in text:
            spans = theirs(text, return_offsets_mapping=True)["offset_mapping"][1:-1]
            assert ours.encode_with_offsets(text) == (ids[1:-1], spans)
    pair = ("한국어 text one", "我们 two")
    encoded = theirs(*pair, padding="max_length", truncation=True, max_length=9)
    assert ours(*pair, padding="max_length", truncation=True, max_length=9) == dict(encoded)
    assert ours.model_max_length == (256 if name == "kykim" else 512)


def plain_python(text, pieces, rules):
    """BERT's rules as Devlin's tokenization.py has them, with the length limit of transformers."""
    characters = ""
    for c in text:
        category = unicodedata.category(c)
        if c in "\t\n\r" or category == "Zs":
            characters += " "
        elif c in "\0\ufffd" or category in ("Cc", "Cf"):
            continue
        elif rules.split_chinese and is_chinese(ord(c)):
            characters += f" {c} "
        else:
            characters += c
    ids = []
    for word in characters.split():
        if rules.lower:
            word = "".join(c.lower() for c in word)
        if rules.strip_accents:
            word = "".join(
                c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn"
            )
        for part in "".join(f" {c} " if is_punctuation(c) else c for c in word).split():
            ids += longest_match(part, pieces)
    return ids


def is_chinese(code):
    blocks = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
              (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))  # fmt: skip
    return any(first <= code <= last for first, last in blocks)


def is_punctuation(c):
    return (33 <= ord(c) <= 126 and not c.isalnum()) or unicodedata.category(c)[0] == "P"


def longest_match(word, pieces):
    match = []
    start = 0
    while start < len(word) <= 100:
        end = next(
            (
                e
                for e in range(len(word), start, -1)
                if "##" * (start > 0) + word[start:e] in pieces
            ),
            None,
        )
        if end is None:
            return [pieces["[UNK]"]]
        match.append(pieces["##" * (start > 0) + word[start:end]])
        start = end
    return match if len(word) <= 100 else [pieces["[UNK]"]]


# Where the `tokenizers` library goes another way than Devlin's code, and transformers with it:
# U+2028 and U+2029 are white space to it; characters for private use and unassigned ones are
# control characters to it.
_LIBRARY = ("\u2028", "\ue000", "\U0010fffe")


@pytest.mark.parametrize("name", ["google", "ckiplab", "kykim", "unsplit"])
def test_plain_python(name, texts, pieces):
    rules = bert_rules(SETTINGS[name] or {})
    tokenizer = WordPieceTokenizer(pieces, rules)
    ids = {piece: number for number, piece in enumerate(pieces)}
    texts = texts[: -len(HARD) : 3] + HARD
    plain = [text for text in texts if not any(c in text for c in _LIBRARY)]
    assert len(plain) >= len(texts) - 3
    wrong = [text for text in plain if tokenizer.encode(text) != plain_python(text, ids, rules)]
    assert wrong == []
    expected = rules._replace(strip_accents=not rules.strip_accents)
    # It can fail
    assert any(tokenizer.encode(text) != plain_python(text, ids, expected) for text in plain)
    del ids["##s"]
    assert any(tokenizer.encode(text) != plain_python(text, ids, rules) for text in plain)


def test_batches(texts, pieces, monkeypatch):
    """The compiled engine gives the library's ids; so does the library before it."""
    monkeypatch.setattr("albertkit.tokenizer.ragged._CHARACTERS_A_CHUNK", 20_000)
    draw = random.Random(0)
    letters = "aB1 ,中文한\u1112\u1161\u11abé\u0301\t\x0b\x1c\x85\u2028\u3000\u200b[]😀İΣ\u037e\ud800\x00豈\u302e\u302f\U0001d165"
    mixed = ["".join(draw.choices(letters, k=draw.randint(0, 30))) for _ in range(1000)]
    mixed += ["".join(map(chr, draw.choices(range(0x3000), k=30))) for _ in range(500)]
    for flags in (
        (True, True, True),
        (True, False, True),
        (False, True, True),
        (False, False, False),
    ):
        rules = BertRules(*flags)
        tokenizer = WordPieceTokenizer(pieces, rules)
        without = WordPieceTokenizer(pieces, rules)
        tokenizer.start_engine()
        for sample in (texts, mixed, ["x" * 100, "x" * 101, "x" * 5000, "", "中" * 3000], []):
            expected = [tokenizer.encode(text) for text in sample]
            for encoded in (tokenizer.encode_batch(sample, 2), without.encode_batch(sample[:300])):
                assert encoded.ids.dtype == np.int32
                assert encoded.offsets.dtype == np.int64
                assert [ids.tolist() for ids in encoded.texts()] == expected[: encoded.num_texts]
        assert without._engine is None
        # not much may be left to the library
        _, refused = tokenizer._engine.encode(texts)  # type: ignore[union-attr]
        assert refused.sum() < 5


@pytest.mark.parametrize(
    "rules",
    [
        BertRules(),
        BertRules(strip_accents=False),
    ],
)
def test_every_character(rules):
    """What a character becomes, for all of Unicode, against the library on the same texts."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    plain = [chr(code) for code in codes if unicodedata.category(chr(code)) not in ("Cn", "Co")][
        ::19
    ]
    letters = sorted({*unicodedata.normalize("NFD", "".join(plain).lower()), *plain, "a", "b"})
    special = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
    pieces = [*special, *(prefix + c for prefix in ("", "##") for c in letters)]
    tokenizer = WordPieceTokenizer(pieces, rules)
    samples = [f"a{c}b {c}" for c in plain]
    expected = [
        encoded.ids
        for encoded in tokenizer._backend.encode_batch_fast(samples, add_special_tokens=False)
    ]
    tokenizer.start_engine()
    our_ids = [ids.tolist() for ids in tokenizer.encode_batch(samples).texts()]
    assert [sample for sample, a, b in zip(samples, our_ids, expected, strict=True) if a != b] == []


def test_hangul_as_transformers_treats_it(pieces):
    """Stripping accents takes Hangul apart; without it, decomposed Hangul stays decomposed, and is unknown."""
    text = "한국어"
    jamo = unicodedata.normalize("NFD", text)
    with_accents = WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", text], BertRules(strip_accents=False)
    )
    assert with_accents.encode(text) == [5]
    assert with_accents.encode(jamo) == [1]
    stripped = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", text, jamo])
    assert stripped.encode(text) == [6]
    assert stripped.encode(jamo) == [6]


def test_pieces_words_and_special_ids(pieces):
    tokenizer = WordPieceTokenizer(pieces)
    starts = tokenizer.word_starts()
    assert starts.dtype == np.bool_
    assert [bool(start) for start in starts] == [not piece.startswith("##") for piece in pieces]
    assert tokenizer.special_ids() == [0, 100, 101, 102, 103]
    assert tokenizer.id_to_piece(len(pieces) - 1) == "\u2028"
    tokens = tokenizer.pieces("the \U0001f9ff sings [MASK]")
    assert tokens[0] == "the"
    assert "\U0001f9ff" in tokens
    assert tokens[-2:] != ["[MASK]"]
    assert 103 not in tokenizer.encode("[MASK]")
    assert tokenizer.encode("[MASK]", mask_literal=True) == [103]
    reloaded = pickle.loads(pickle.dumps(tokenizer))
    assert reloaded.fingerprint == tokenizer.fingerprint
    assert reloaded.encode("the 한국어") == tokenizer.encode("the 한국어")
    assert WordPieceTokenizer(pieces, BertRules(lower=False)).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize("name", SETTINGS)
def test_saved_folder_comes_back(name, texts, pieces, tmp_path):
    ours = AlbertTokenizer.from_pretrained(write(tmp_path / "old", pieces, SETTINGS[name]))
    ours.save_pretrained(tmp_path / "new")
    (tmp_path / "new/config.json").write_text('{"model_type": "albert"}')
    reloaded = AlbertTokenizer.from_pretrained(tmp_path / "new")
    assert reloaded.fingerprint == ours.fingerprint
    assert reloaded.text_rules == ours.text_rules
    assert reloaded.model_max_length == ours.model_max_length
    (tmp_path / "new/vocab.txt").unlink()  # as transformers 5 leaves it
    from_json = AlbertTokenizer.from_pretrained(tmp_path / "new")
    assert isinstance(from_json, WordPieceTokenizer)
    assert from_json.fingerprint == ours.fingerprint
    import transformers

    sample = texts[::3]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    for text in sample:
        assert "[" in text or theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(
            text
        )


def test_which_file_is_read(data, pieces, tmp_path):
    folder = write(tmp_path / "zh", pieces, None, "vocab_chinese.txt")
    assert isinstance(AlbertTokenizer.from_pretrained(folder), WordPieceTokenizer)
    assert (
        AlbertTokenizer.from_pretrained(folder).text_rules
        == "bert lower strip_accents split_chinese"
    )
    both_files = write(tmp_path / "both", pieces, None)
    (both_files / "spiece.model").write_bytes((data / "albert/30k-clean.model").read_bytes())
    assert isinstance(AlbertTokenizer.from_pretrained(both_files), SentencePieceTokenizer)
    for flags, rules in (
        ({"do_lower_case": True, "keep_accents": False}, "google"),
        ({"do_lower_case": False}, "google-cased"),
        (
            {"do_lower_case": True, "keep_accents": True},
            "google-accents",
        ),  # bongsoo/albert-small-kor
        ({"do_lower_case": False, "keep_accents": True}, "google-cased-accents"),
        ({"do_lower_case": False, "text_rules": "multilingual"}, "multilingual"),
    ):
        write_json(both_files / "tokenizer_config.json", flags)
        assert AlbertTokenizer.from_pretrained(both_files).text_rules == rules


def test_errors(pieces, data, tmp_path, slug_of):
    good = write(tmp_path / "good", pieces, None)
    assert slug_of(AlbertTokenizer.from_pretrained, good, text_rules="google") == "unknown-name"
    for number, wrong in enumerate((["a", "b"], [piece for piece in pieces if piece != "[MASK]"])):
        with pytest.raises(AlbertKitError, match=r"(?s)\[wrong-tokenizer\].*\[MASK\].*hint: "):
            AlbertTokenizer.from_pretrained(write(tmp_path / str(number), wrong, None))
    (good / "vocab.txt").write_bytes(b"[PAD]\n\xff\xfe")
    assert slug_of(AlbertTokenizer.from_pretrained, good) == "bad-encoding"
    write(tmp_path / "taken", pieces, None)
    (tmp_path / "taken/spiece.model").write_bytes((data / "albert/30k-clean.model").read_bytes())
    assert slug_of(WordPieceTokenizer(pieces).save_pretrained, tmp_path / "taken") == "ambiguous"


def test_lines_of_a_vocabulary(tmp_path):
    for content in (
        b"[PAD]\na\n\xe2\x80\xa8\n\xc2\x85\nb\n",
        b"[PAD]\r\na\r\n\xe2\x80\xa8\r\n\xc2\x85\r\nb",
    ):
        (tmp_path / "vocab.txt").write_bytes(content)
        assert read_vocabulary(tmp_path / "vocab.txt") == ["[PAD]", "a", "\u2028", "\x85", "b"]
    twice = "[PAD] [UNK] [CLS] [SEP] [MASK] a b a".split()
    tokenizer = WordPieceTokenizer(twice)
    # The last counts, as in transformers
    assert tokenizer.encode("a b") == [7, 6]
    assert tokenizer.vocab_size == 8


def test_tokens_added_beyond_the_vocabulary(pieces, tmp_path):
    folder = write(tmp_path / "more", pieces, None)
    write_json(folder / "added_tokens.json", {"<e1>": len(pieces), "[PAD]": 0})
    import transformers

    theirs = transformers.BertTokenizer.from_pretrained(folder)
    ours = AlbertTokenizer.from_pretrained(folder)
    assert ours.encode("the<e1>the", special_tokens=True) == theirs("the<e1>the")["input_ids"]
    theirs.add_tokens(["<e1>"])
    theirs.save_pretrained(folder)
    ours = AlbertTokenizer.from_pretrained(folder)
    assert isinstance(ours, JsonTokenizer)
    assert ours.vocab_size == len(pieces) + 1
    assert ours.encode("the<e1>the", special_tokens=True) == theirs("the<e1>the")["input_ids"]
    assert len(pieces) in ours.encode("the<e1>the")
