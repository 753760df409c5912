"""The word-by-word engine gives SentencePiece's ids, whatever the model and the text."""

import io
import random

import numpy as np
import pytest
import sentencepiece

from albertkit.tokenizer import AlbertTokenizer, SentencePieceTokenizer, ragged, rules
from albertkit.tokenizer import sentencepiece as batch
from albertkit.tokenizer.sentencepiece_model import read_facts
from albertkit.tokenizer.unigram_engine import is_supported_by_engine, read_character_tables


@pytest.fixture(autouse=True)
def engine_at_once(monkeypatch):
    monkeypatch.setattr(batch, "CHARACTERS_BEFORE_ENGINE", 0)
    monkeypatch.setattr(ragged, "_CHARACTERS_A_CHUNK", 50_000)


def assert_engine_agrees(tokenizer, texts, num_threads=2):
    ids = [ids.tolist() for ids in tokenizer.encode_batch(texts, num_threads).texts()]
    assert tokenizer._batch._engine is not None
    assert ids == [tokenizer.encode(text) for text in texts]


def train_model(texts, **settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        minloglevel=3,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        **settings,
    )
    return model.getvalue()


@pytest.mark.parametrize("rule", rules.NAMES)
def test_golden_lines(golden_rows, data, rule):
    tokenizer = AlbertTokenizer.from_pretrained(data / "albert", rule)
    texts = [row["text"] for row in golden_rows("tokenizer/lines.jsonl")]
    assert_engine_agrees(tokenizer, texts)


@pytest.mark.parametrize("model", ["spiece", "spiece_userdef"])
def test_korean_wikipedia(golden, wiki, model):
    tokenizer = SentencePieceTokenizer(
        (golden / "korean" / f"{model}.model").read_bytes(), "multilingual"
    )
    texts = wiki("ko/wiki_07")[:700]
    assert_engine_agrees(tokenizer, texts)


def test_english_wikipedia_and_the_share_it_takes(data, wiki):
    tokenizer = AlbertTokenizer.from_pretrained(data / "albert")
    texts = wiki("en/wiki_11")[:500]
    handed_over = []
    encode = tokenizer._batch._encode_with_sentencepiece
    tokenizer._batch._encode_with_sentencepiece = lambda texts, threads: (
        handed_over.extend(texts) or encode(texts, threads)
    )
    for num_threads in (1, 2):
        assert_engine_agrees(tokenizer, texts, num_threads)
    # It would be no engine if SentencePiece did the work
    assert len(handed_over) < 0.02 * 2 * len(texts)


@pytest.mark.parametrize("seed", range(6))
def test_random_models_and_texts(seed):
    draw = random.Random(seed)
    alphabet = "abcdé한글🙂" if seed % 2 else "ab"
    corpus = [
        " ".join("".join(draw.choices(alphabet, k=draw.randint(1, 7))) for _ in range(9))
        for _ in range(300)
    ]
    rule = ("nmt_nfkc", "identity", "nmt_nfkc_cf")[seed % 3]
    model = train_model(
        corpus,
        vocab_size=60,
        hard_vocab_limit=False,
        user_defined_symbols=["ab", "c,", "."],
        normalization_rule_name=rule,
    )
    tokenizer = SentencePieceTokenizer(model, "none")
    letters = alphabet + "zZ,.  \t▁Éｱ\u0301\x00"
    texts = ["".join(draw.choices(letters, k=draw.randint(0, 60))) for _ in range(400)]
    texts += ["a" * 5000, "ab" * 3000, " ".join(["aabb"] * 3000), "z" * 1500 + " a"]
    assert_engine_agrees(tokenizer, texts)


@pytest.mark.parametrize("rule", rules.NAMES)
def test_white_space_of_every_kind(golden, rule):
    """The engine is given texts whose blanks of ASCII are not collapse_spaces yet."""
    tokenizer = SentencePieceTokenizer(
        (golden / "tokenizer/digit_comma_toy.model").read_bytes(), rule
    )
    draw = random.Random(2)
    blanks = [character for character in map(chr, range(0x3001)) if character.isspace()]
    letters = "aB1,éΣςﬁ한\u0308¨\u00ad\u200bİ'"
    texts = [
        "".join(draw.choice(letters if draw.random() < 0.6 else blanks) for _ in range(9))
        for _ in range(1000)
    ]
    assert_engine_agrees(tokenizer, texts)


def test_near_ties_are_left_to_sentencepiece(golden):
    """Without the bound on rounding the engine would get some of these wrong; with it, it declines."""
    tokenizer = SentencePieceTokenizer((golden / "tokenizer/digit_comma_toy.model").read_bytes())
    draw = random.Random(1)
    texts = [" ".join(str(draw.randrange(10**9)) for _ in range(40)) + "," for _ in range(300)]
    assert_engine_agrees(tokenizer, texts)


def test_more_words_than_the_table_holds(data, monkeypatch):
    tokenizer = AlbertTokenizer.from_pretrained(data / "albert")
    words = [f"w{number}x{number % 7}" for number in range(400_000)]
    texts = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    small = texts[::20]
    monkeypatch.setattr(ragged, "_CHARACTERS_A_CHUNK", 10**6)
    tokenizer.encode_batch(texts, 1)  # 400,000 words into 262,144 slots
    assert_engine_agrees(tokenizer, small, num_threads=1)


def test_models_it_is_not_for(golden, data):
    facts = read_facts((data / "albert/30k-clean.model").read_bytes())
    assert is_supported_by_engine(facts)
    for change in (
        {"whitespace_as_suffix": True},
        {"model_type": 2},
        {"dummy_prefix": False},
        {"one_space": False},
    ):
        assert not is_supported_by_engine(type(facts)(**{**vars(facts), **change}))
    assert not is_supported_by_engine(
        type(facts)(**{**vars(facts), "pieces": [*facts.pieces, ("of▁the", -5.0, 1)]})
    )


def test_bpe_models_work_without_it():
    model = train_model(
        ["a small text of words", "and some more words"], model_type="bpe", vocab_size=40
    )
    tokenizer = SentencePieceTokenizer(model)
    assert [ids.tolist() for ids in tokenizer.encode_batch(["Some words"]).texts()] == [
        tokenizer.encode("Some words")
    ]
    assert tokenizer._batch._engine is None


def test_characters_left_alone(golden, data):
    """The rules as read from the model file are those that sentencepiece lists."""
    for model in (
        (data / "albert/30k-clean.model"),
        golden / "tokenizer/digit_comma_toy.model",
    ):
        proto = model.read_bytes()
        changed = {0, ord(" "), ord("▁")}
        for key, value in sentencepiece.SentencePieceNormalizer(model_proto=proto).Decompile():
            if len(key) == 1 and key != value:
                changed.add(ord(key))
            changed.update(map(ord, key[1:]))
        assert 1000 < len(changed) < 100_000
        unchanged = np.ones(0x110000, dtype=bool)
        unchanged[list(changed)] = False
        np.testing.assert_array_equal(
            read_character_tables(read_facts(proto).charsmap, b" ").unchanged, unchanged
        )
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    alone = [chr(code) for code in np.flatnonzero(unchanged) if not 0xD800 <= code < 0xE000]
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(alone, k=200))
        assert processor.normalize(text) == "▁" + text


@pytest.mark.parametrize("rule", ["google", "none", "korean"])
def test_a_character_that_stands_between_texts(data, rule):
    tokenizer = AlbertTokenizer.from_pretrained(data / "albert", rule)
    texts = ["Plain Text", "with \0 inside", "", "\0", "Ünd \0 MORE", " \t ", "the End"]
    for all_texts in (texts, texts[:1], texts[3:4], [""], ["", ""]):
        assert_engine_agrees(tokenizer, all_texts)


def test_it_stands_back_from_text_it_refuses(data):
    """Under the rules `google` Hangul comes apart, and the normaliser must put it together again: work for SentencePiece."""
    tokenizer = AlbertTokenizer.from_pretrained(data / "albert")
    texts = ["한국어 위키백과의 문장"] * 20_000
    expected = tokenizer.encode(texts[0])
    tried = []
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts[:10], 1).texts()] == [
        expected
    ] * 10
    engine = tokenizer._batch._engine
    assert engine is not None
    encode = engine.encode
    engine.encode = lambda texts, lower: tried.append(len(texts)) or encode(texts, lower)  # type: ignore[method-assign]
    assert all(ids.tolist() == expected for ids in tokenizer.encode_batch(texts, 1).texts())
    assert sum(tried) < 0.1 * len(texts)
