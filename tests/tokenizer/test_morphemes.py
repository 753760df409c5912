"""Morphemes, byte fallback, reserved pieces and free names in training; the rules for Korean."""

import json
import pickle
import random
import tempfile
import unicodedata
from functools import cache

import numpy as np
import pytest
import sentencepiece

from albertkit.errors import AlbertKitError, MissingExtraError
from albertkit.tokenizer import (
    AlbertTokenizer,
    SentencePieceTokenizer,
    check_tokenizer,
    morphemes,
    rules,
    train_tokenizer,
)
from albertkit.tokenizer.morphemes import ANALYSERS, find_analyser
from albertkit.tokenizer.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    add_unused_pieces,
    read_facts,
    rebuild_model,
)
from albertkit.tokenizer.train import measure_tokenizer_fit

SENTENCE = "서울에서는 2023년 3.14 iPhone을 샀다 😀문서를 읽었다(한국)"


def korean(number=500):
    draw = random.Random(0)
    nouns = "서울 학교 도서관 학생 선생님 문서 시장 아침 저녁 겨울 여름 나라 사람 언어 바다 하늘 강아지 고양이".split()
    nouns = nouns * 20 + [a + b for a in "가나도라마바사우자차" for b in "고노두로모보소수구국"] * 2
    particles = "은 는 을 를 에서 에게 으로 까지 부터 처럼 보다".split()
    verbs = "읽는다 썼다 하였다 찾았다 열었다 갔다 왔다 만들었다 배운다".split()
    return [
        " ".join(draw.choice(nouns) + draw.choice(particles) for _ in range(4))
        + f" {draw.choice(verbs)}."
        for _ in range(number)
    ]


@pytest.fixture(params=ANALYSERS)
def analyser(request):
    pytest.importorskip({"mecab": "mecab", "kiwi": "kiwipiepy"}[request.param])
    return find_analyser(request.param)


def test_only_the_surface_is_cut(analyser):
    cut = analyser.separated(SENTENCE, "|")
    assert cut.replace("|", "") == SENTENCE
    assert cut.startswith("서울|에서|는 ")
    assert "3.14 iPhone|을" in cut  # of numbers and Latin words Korean analysers know nothing
    assert "😀|문서|를 읽" in cut  # places are characters, also after one beyond 16 bits
    assert "| " not in cut
    assert " |" not in cut
    assert analyser.boundaries("An English sentence, 3.14.") == analyser.boundaries("") == []


def test_overlapping_morphemes_are_one():
    # kiwi: 예쁘 at 0 to 2, 었 at 1 to 2, 다 at 2 to 3
    assert find_analyser("kiwi").separated("예뻤다", "|") == "예뻤|다"


def test_a_missing_analyser_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mecab", None)
    with pytest.raises(MissingExtraError, match=r"python-mecab-ko|Python 3\.13"):
        morphemes.load_mecab()
    with pytest.raises(AlbertKitError, match=r"(?s)\[bad-value\].*hint: known: kiwi, mecab"):
        find_analyser("komoran")


def test_no_piece_crosses_a_boundary(analyser, tmp_path):
    texts = korean()
    mine = {f"▁{part}" for text in texts for part in analyser.separated(text, " ").split()}

    def crossing(mode):
        tokenizer = train_tokenizer(
            texts,
            tmp_path / mode,
            130,
            coverage=1.0,
            text_rules="korean",
            morphemes=mode,
            analyser=analyser.name,
        )
        assert tokenizer.unk_id not in tokenizer.encode(texts[0])
        model = (tmp_path / mode / "spiece.model").read_bytes()
        assert tempfile.gettempdir().encode() not in model
        assert b"seeds" not in model
        pieces = (piece for piece, _, kind in read_facts(model).pieces if kind == NORMAL)
        return [p for p in pieces if not any(p.removeprefix("▁") in whole for whole in mine)]

    assert crossing("boundary") == []
    assert len(crossing("none")) > 10
    assert AlbertTokenizer.from_pretrained(tmp_path / "boundary").analyser is None


def test_spaces_are_put_in_at_every_encoding(analyser, tmp_path):
    texts = korean()
    tokenizer = train_tokenizer(
        texts,
        tmp_path,
        100,
        coverage=1.0,
        text_rules="korean",
        morphemes="spaces",
        analyser=analyser.name,
    )
    assert (
        json.loads((tmp_path / "tokenizer_config.json").read_text())["morpheme_spaces"]
        == analyser.name
    )
    reloaded = pickle.loads(pickle.dumps(AlbertTokenizer.from_pretrained(tmp_path)))
    assert reloaded.fingerprint == tokenizer.fingerprint
    model = (tmp_path / "spiece.model").read_bytes()
    assert SentencePieceTokenizer(model, "korean").fingerprint != tokenizer.fingerprint
    truth = sentencepiece.SentencePieceProcessor(model_proto=model)
    expected = [truth.encode(analyser.separated(text, " ")) for text in texts[:100]]
    assert [truth.encode(text) for text in texts[:100]] != expected  # the spaces do something
    assert [reloaded.encode(text) for text in texts[:100]] == expected
    fit = measure_tokenizer_fit(reloaded, texts[:100])
    # And not the number of morphemes
    assert fit.words == sum(len(text.split()) for text in texts[:100])
    assert fit.pieces_a_word == sum(map(len, expected)) / fit.words
    assert [ids.tolist() for ids in reloaded.encode_batch(texts[:100]).texts()] == expected
    for text, ids in zip(texts[:100], expected, strict=True):
        spaced_ids, spans = reloaded.encode_with_offsets(text)
        assert spaced_ids == ids
        assert "".join(text[a:b] for a, b in spans) == text
    assert check_tokenizer(tmp_path, texts[:50]).ok


def test_byte_fallback(tmp_path):
    tokenizer = train_tokenizer(
        korean(), tmp_path, 400, coverage=1.0, text_rules="multilingual", byte_fallback=True
    )
    assert sum(kind == BYTE for _, _, kind in read_facts(tokenizer.model).pieces) == 256
    for text in ("뷁 서울 쀍😀", "東京에서", "é", "<0x41> <0xEA>"):
        ids = tokenizer.encode(text)
        assert tokenizer.unk_id not in ids
        assert tokenizer.decode(ids) == text
    assert not any(
        tokenizer.encode("<0x41>").count(tokenizer.piece_to_id(f"<0x{b:02X}>")) > 6
        for b in range(256)
    )
    assert check_tokenizer(tmp_path).ok
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("뷁 서울 쀍😀", "東京에서", "é"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
        assert theirs.decode(tokenizer.encode(text)) == text


def test_reserved_pieces_and_digits(tmp_path):
    texts = [f"{text} {n} {n * 37}" for n, text in enumerate(korean())]
    tokenizer = train_tokenizer(
        texts, tmp_path, 200, coverage=1.0, text_rules="korean", reserve=6, split_digits=True
    )
    pieces = read_facts(tokenizer.model).pieces
    assert [(piece, kind) for piece, _, kind in pieces[194:]] == [
        (f"[unused{n}]", UNUSED) for n in range(6)
    ]
    assert not any(sum(c.isdigit() for c in piece) > 1 for piece, _, kind in pieces[:194])
    assert max(tokenizer.encode("[unused0] [unused5]")) < 194
    # What follows the pieces is carried over
    assert add_unused_pieces(tokenizer.model, 2).endswith(tokenizer.model[-50:])
    assert read_facts(add_unused_pieces(tokenizer.model, 2)).pieces[-1][0] == "[unused7]"
    assert check_tokenizer(tmp_path, texts[:50]).ok


def test_free_names_and_fixed_ids(tmp_path):
    names = "[PAD] [UNK] [BEGIN] [SEP] [빈칸]".split()
    tokenizer = train_tokenizer(
        korean(), tmp_path, 130, coverage=1.0, special_pieces=names, text_rules="multilingual"
    )
    reloaded = AlbertTokenizer.from_pretrained(tmp_path)
    assert [reloaded.id_to_piece(i) for i in range(5)] == names
    assert reloaded.encode("서울 [빈칸]", mask_literal=True)[-1] == 4
    assert reloaded.encode("뷁")[-1] == 1
    assert check_tokenizer(tmp_path, korean(50)).ok
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("서울 [빈칸]을")["input_ids"] == [
        2,
        *tokenizer.encode("서울 [빈칸]을", mask_literal=True),
        3,
    ]
    assert theirs.mask_token_id == 4
    assert theirs.pad_token_id == 0
    assert theirs.decode([4]) == "[빈칸]"


@pytest.mark.parametrize(
    "settings",
    [
        {"special_pieces": "[PAD] [UNK] [SEP] [CLS] [MASK]".split()},
        {"special_pieces": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]},
        {"special_pieces": "a a b c d".split()},
        {"coverage": 0.9},
    ],
)
def test_bad_settings(tmp_path, settings, slug_of):
    assert slug_of(train_tokenizer, korean(50), tmp_path / "out", 100, **settings) == "bad-value"
    assert (
        slug_of(train_tokenizer, korean(50), tmp_path / "out", 100, morphemes="boundaries")
        == "unknown-name"
    )
    assert not (tmp_path / "out").exists()


def test_special_pieces_at_other_places_are_refused(tmp_path, slug_of):
    tokenizer = train_tokenizer(korean(), tmp_path, 130, coverage=1.0)
    pieces = read_facts(tokenizer.model).pieces
    for first in (
        "[CLS] <unk> <pad> [SEP] [MASK]".split(),
        "<pad> <unk> [CLS] [SEP] x".split(),
    ):
        wrong = [
            (name, 0.0, 4 if name == "x" else kind)
            for name, (_, _, kind) in zip(first, pieces, strict=False)
        ]
        model = rebuild_model(tokenizer.model, [*wrong, *pieces[5:]])
        assert slug_of(SentencePieceTokenizer, model) == "wrong-tokenizer"
    renamed = [
        ("<s>" if n == 2 else piece, score, kind) for n, (piece, score, kind) in enumerate(pieces)
    ]
    assert SentencePieceTokenizer(rebuild_model(tokenizer.model, renamed)).id_to_piece(2) == "<s>"
    assert pieces[2][2] == CONTROL


def test_rebuilt_models_read_the_same(golden, golden_rows):
    model = (golden / "korean/spiece_userdef.model").read_bytes()
    facts = read_facts(model)
    assert read_facts(rebuild_model(model, facts.pieces)) == facts
    lines = golden_rows("korean/lines.jsonl")
    rebuilt = sentencepiece.SentencePieceProcessor(model_proto=rebuild_model(model, facts.pieces))
    assert all(rebuilt.encode(line["nfd"]) == line["spiece_userdef_ids"] for line in lines)
    swapped = [*facts.pieces[:500], facts.pieces[501], facts.pieces[500], *facts.pieces[502:]]
    swapped_model = sentencepiece.SentencePieceProcessor(model_proto=rebuild_model(model, swapped))
    assert any(swapped_model.encode(line["nfd"]) != line["spiece_userdef_ids"] for line in lines)


# --- Korean text as it comes ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_lines(data):
    from albertkit.corpus import read_documents

    wiki = [
        line for d in read_documents([data / "wiki-ko/wiki_05.gz"]) for line in d.text.split("\n")
    ][:500]
    reviews = (data / "korean/nsmc/test.tsv").read_text(encoding="utf-8").splitlines()[:300]
    pairs = (data / "korean/korsts/sts-dev.tsv").read_text(encoding="utf-8").splitlines()[:200]
    return [*wiki, *reviews, *(pair.split("\t")[-1] for pair in pairs)]


@pytest.fixture(scope="module")
def real_ids(golden, real_lines):
    """`real_ids(model, lower)`: SentencePiece's ids of `real_lines`, as they are or in lower case."""

    @cache
    def encode(model, lower):
        truth = sentencepiece.SentencePieceProcessor(
            model_proto=(golden / "korean" / f"{model}.model").read_bytes()
        )
        return truth.encode([line.lower() if lower else line for line in real_lines])

    return encode


@pytest.mark.parametrize("rule", ["multilingual", "korean", "none"])
@pytest.mark.parametrize("model", ["spiece", "spiece_userdef"])
def test_real_text_is_read_as_by_sentencepiece(golden, real_lines, real_ids, tmp_path, model, rule):
    """At least 99.9 % of 1,000 lines in both forms, in our tokenizer and in the file that transformers loads."""
    from tokenizers import Tokenizer

    content = (golden / "korean" / f"{model}.model").read_bytes()
    tokenizer = SentencePieceTokenizer(content, rule)
    tokenizer.save_pretrained(tmp_path)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = real_ids(model, rule == "korean")
    for form in ("NFC", "NFD"):
        texts = [unicodedata.normalize(form, line) for line in real_lines]
        ours = [ids.tolist() for ids in tokenizer.encode_batch(texts).texts()]
        json_ids = [encoded.ids for encoded in theirs.encode_batch(texts, add_special_tokens=False)]
        for our_ids in (ours, json_ids):
            num_same = np.mean([a == b for a, b in zip(our_ids, expected, strict=True)])
            assert num_same >= 0.999, (form, num_same)
    if rule == "korean":  # the lower case is the rule's: without it lines differ
        assert real_ids(model, False) != expected


def test_no_known_syllable_is_unknown_in_either_form(golden, data, tmp_path):
    from tokenizers import Tokenizer

    tokenizer = SentencePieceTokenizer((golden / "korean/spiece.model").read_bytes(), "korean")
    tokenizer.save_pretrained(tmp_path)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    known_syllables = [
        c for c in map(chr, range(0xAC00, 0xD7A4)) if tokenizer.piece_to_id(c) != tokenizer.unk_id
    ]
    assert len(known_syllables) > 900
    draw = random.Random(0)
    words = ["".join(draw.choices(known_syllables, k=draw.randint(1, 8))) for _ in range(3000)]
    for form in ("NFC", "NFD"):
        texts = [unicodedata.normalize(form, word) for word in words]
        assert not (tokenizer.encode_batch(texts).ids == tokenizer.unk_id).any()
        assert not any(
            tokenizer.unk_id in ids.ids
            for ids in theirs.encode_batch(texts, add_special_tokens=False)
        )
    assert tokenizer.unk_id in tokenizer.encode("뷁")


def test_rules_for_korean():
    text = "  Seoul은\t" + unicodedata.normalize("NFD", "대한민국 CAFÉ") + " İ "
    assert rules.apply("korean", text) == "seoul은 대한민국 café i̇"
    aligned = rules.align("korean", text)
    assert aligned.text == rules.apply("korean", text)
    assert [text[a:b] for a, b in zip(aligned.starts[8:11], aligned.ends[8:11], strict=True)] == [
        unicodedata.normalize("NFD", c) for c in "한민국"
    ]
    assert rules.do_rules_lower_case("korean")
    assert not rules.do_rules_lower_case("multilingual")
