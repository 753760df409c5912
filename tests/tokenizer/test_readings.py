"""A saved folder is read alike by SentencePiece, albertkit and transformers, or the save says that it is not."""

import io
import random
import re
import warnings

import pytest
import sentencepiece
from tokenizers import Tokenizer

from albertkit.errors import CheckpointError
from albertkit.tokenizer import (
    AlbertTokenizer,
    SentencePieceTokenizer,
    check_tokenizer,
    rules,
    train_tokenizer,
)
from albertkit.tokenizer.check import fix_tokenizer
from albertkit.tokenizer.extend import extend_tokenizer
from albertkit.tokenizer.options import SearchSettings
from albertkit.tokenizer.sentencepiece_model import UNUSED, read_facts, rebuild_model
from albertkit.tokenizer.tokenizer_json import lines_that_json_may_misread

SPACES = ["  two  spaces ", " a", "\r\n a\r\nb", "a\u3000b\u00a0c", "▁ a ▁b ▁", "\t"]
MARKS = [
    "Ａ\u0300 ①\u0301 ｶ\u3099 X\u0301",
    "\u1112\u1161\u11ab글",
    "\u0301a",
    "e\u0323\u0302 o\u0302",
]
SYMBOLS = "the <num> … ½ heast ( 서울".split()
KINDS = [
    {},
    {"add_dummy_prefix": False},
    {"remove_extra_whitespaces": False},
    {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    {"user_defined_symbols": ["(", ")", "-"]},
    {"user_defined_symbols": SYMBOLS},
    {"byte_fallback": True},
    {"normalization_rule_name": "identity"},
    {"normalization_rule_name": "nfkc_cf"},
    {"split_by_whitespace": False},
]


@pytest.fixture(scope="session")
def lines(tiny_texts):
    """Sentences of English and Korean words, 500 of them made up, with numbers, brackets, capitals and symbols."""
    draw = random.Random(0)
    syllables = (
        [a + b for a in "bdfgklmnprst" for b in "aeiou"],
        "가나다라마바사아자차카타파하거너더러머버서어",
    )
    words = [
        "".join(draw.choices(syllables[number % 2], k=draw.randint(2, 4))) for number in range(500)
    ]
    signs = [
        "(the)",
        "½",
        "…",
        "1,",
        "2,500",
        "0.0001",
        "others",
        "theast",
        "<num>",
        "NATO",
        "Ünder",
        "x-y",
        "10 000 000",
    ]
    return [
        f"{draw.choice(signs)} {text} {' '.join(draw.choices(words, k=8))} {draw.randint(0, 9)}, {draw.randint(1900, 2030)}, "
        f"and {draw.randint(1, 99)},000 {draw.choice(signs)}"
        for text in tiny_texts
    ]


def trained(texts, **options):
    """Train by SentencePiece itself, on any kind of model."""
    model = io.BytesIO()
    settings = {"vocab_size": 400, "hard_vocab_limit": False, "minloglevel": 3} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        **settings,
    )
    return model.getvalue()


def saved(tokenizer, folder):
    """Save and return the warnings, but for those of runs of a character alone, which come last in a comparison."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer.save_pretrained(folder)
    messages = [str(warning.message) for warning in caught]
    return [
        message for message in messages if not re.search(r"the first of them '(.+?)\1+';", message)
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char"])
def test_every_kind_that_tokenizer_json_expresses(lines, tmp_path, model_type, kind):
    model = trained(lines, model_type=model_type, **kind)
    tokenizer = SentencePieceTokenizer(model, "none")
    assert saved(tokenizer, tmp_path) == []
    truth = sentencepiece.SentencePieceProcessor(model_proto=model)
    reader = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.start_engine()
    texts = [*lines, *SPACES, *MARKS, *lines_that_json_may_misread(model, "none")]
    ids = truth.encode(texts)
    assert [reader.encode(text, add_special_tokens=False).ids for text in texts] == ids
    assert [tokenizer.encode(text) for text in texts] == ids
    assert [row.tolist() for row in tokenizer.encode_batch(texts).texts()] == ids


OWN = [
    {},
    {"text_rules": "korean", "user_defined_symbols": ["<num>", "the"]},
    {"text_rules": "multilingual", "byte_fallback": True, "reserve": 8},
    {"text_rules": "google-accents", "split_digits": True},
]


@pytest.fixture(scope="module", params=OWN, ids=str)
def own_folder(request, lines, tmp_path_factory):
    """The folder of a vocabulary that albertkit trained."""
    folder = tmp_path_factory.mktemp("own")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no hard line may differ
        train_tokenizer(
            lines, folder, 700 if "byte_fallback" in request.param else 400, **request.param
        )
    return folder


def read_by_all(folder, texts):
    """Compare SentencePiece, and transformers' `AutoTokenizer` and `AlbertTokenizer`, with `encode`."""
    import transformers

    tokenizer = AlbertTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    ids = [tokenizer.encode(text) for text in texts]
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    assert processor.encode([tokenizer.prepared(text) for text in texts]) == ids
    tokenizer.start_engine()
    assert [row.tolist() for row in tokenizer.encode_batch(texts).texts()] == ids
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    assert reader(texts, add_special_tokens=False)["input_ids"] == ids
    if (
        tokenizer.text_rules != "google-accents" and processor.piece_to_id("<0x41>") == 1
    ):  # "é" is another matter for the class
        plain = [
            number for number, text in enumerate(texts) if not re.search("[^ -~가-힣]|``|''", text)
        ]
        reader = transformers.AlbertTokenizer.from_pretrained(folder)
        assert len(plain) > 300
        assert [
            reader(texts[number], add_special_tokens=False)["input_ids"] for number in plain
        ] == [ids[n] for n in plain]


def test_own_vocabularies_are_read_alike(own_folder, lines):
    draw = random.Random(1)
    # Ties: 0 00 and 00 0
    numbers = ["".join(draw.choices("0011,.", k=draw.randint(3, 40))) for _ in range(200)]
    model = (own_folder / "spiece.model").read_bytes()
    assert not [piece for piece, _, _ in read_facts(model).pieces if re.search(r"\d,$", piece)]
    read_by_all(
        own_folder, [*lines, *numbers, *SPACES, *lines_that_json_may_misread(model, "google")]
    )


def test_extended_vocabularies_are_read_alike(own_folder, lines, tmp_path):
    texts = [line.replace("quick", "zebra").replace("마법사", "고래") for line in lines]
    tokenizer = AlbertTokenizer.from_pretrained(own_folder)
    extension = extend_tokenizer(
        tokenizer, texts, SearchSettings(max_new=60, recut=True), ["whales", "2,", "12"]
    )
    assert saved(extension.tokenizer, tmp_path) == []
    read_by_all(tmp_path, [*lines, *texts, *SPACES])


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_transformers_reads_the_folder(lines, tmp_path, model_type):
    import transformers

    tokenizer = SentencePieceTokenizer(trained(lines, model_type=model_type), "multilingual")
    assert saved(tokenizer, tmp_path) == []
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [tokenizer.encode(line, special_tokens=True) for line in lines]
    assert reader(lines)["input_ids"] == ids
    assert fix_tokenizer(tmp_path)(lines)["input_ids"] == ids
    assert reader.decode(tokenizer.encode(lines[0])) == tokenizer.decode(tokenizer.encode(lines[0]))
    assert check_tokenizer(tmp_path, lines[:50]).ok


def unordered(model):
    """Give two tokens of a BPE model one score."""
    pieces = [*read_facts(model).pieces]
    numbers = [number for number, (piece, _, _) in enumerate(pieces) if len(piece) == 2]
    pieces[numbers[1]] = (*pieces[numbers[1]][:1], pieces[numbers[0]][1], 1)
    return rebuild_model(model, pieces)


def with_unused_merge(model):
    """Make a token of a BPE model unused: SentencePiece takes it apart again."""
    pieces = [
        (piece, score, UNUSED if len(piece) == 2 and number > 30 else kind)
        for number, (piece, score, kind) in enumerate(read_facts(model).pieces)
    ]
    return rebuild_model(model, pieces)


@pytest.mark.parametrize(
    ("options", "change", "reason"),
    [
        ({"model_type": "word"}, None, "a model of words"),
        ({"treat_whitespace_as_suffix": True}, None, "treat_whitespace_as_suffix"),
        (
            {"model_type": "bpe", "treat_whitespace_as_suffix": True},
            None,
            "treat_whitespace_as_suffix",
        ),
        ({"model_type": "bpe"}, unordered, "no order"),
        ({"model_type": "bpe"}, with_unused_merge, "no order"),
    ],
    ids=["words", "suffix", "BPE and suffix", "merges without order", "unused merge"],
)
def test_other_kinds_are_saved_without_it(lines, tmp_path, slug_of, options, change, reason):
    import transformers

    # Whose `tokenizer.json` must not stay
    SentencePieceTokenizer(trained(lines)).save_pretrained(tmp_path)
    model = trained(lines, **options)
    tokenizer = SentencePieceTokenizer(change(model) if change else model, "none")
    (warning,) = saved(tokenizer, tmp_path)
    assert "transformers cannot open the folder" in warning
    assert reason in warning
    reloaded = AlbertTokenizer.from_pretrained(tmp_path)
    assert [reloaded.encode(line) for line in lines[:20]] == [
        tokenizer.encode(line) for line in lines[:20]
    ]
    with pytest.raises((ValueError, OSError)):
        transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert slug_of(fix_tokenizer, tmp_path) == "not-expressible"
    comparison = next(
        text
        for text in check_tokenizer(tmp_path, lines[:5]).comparisons
        if text.name == "tokenizer.json"
    )
    assert reason in comparison.skipped


def test_digit_commas_that_it_cannot_express_are_a_warning(tmp_path, lines):
    """SentencePiece takes "1," and the rule makes "1" and "," of it; `tokenizer.json` takes "▁1" and ","."""
    model = trained(lines)
    pieces = [row for row in read_facts(model).pieces if not re.search(r"\d", row[0])]
    tokenizer = SentencePieceTokenizer(
        rebuild_model(model, [*pieces, ("1,", -1, 1), ("1", -5, 1), ("▁1", -5, 1)])
    )
    (warning,) = saved(tokenizer, tmp_path)
    assert "transformers reads other ids from tokenizer.json" in warning
    reader = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    first = re.search(r"first of them (['\"])(.*)\1;", warning)
    assert first
    assert reader.encode(first[2], add_special_tokens=False).ids != tokenizer.encode(first[2])


@pytest.mark.parametrize("rule", rules.NAMES)
def test_googles_vocabulary_is_saved_without_a_warning(data, tmp_path, rule):
    assert saved(AlbertTokenizer.from_pretrained(data / "albert", rule), tmp_path) == []


def test_own_normalisation_is_compared(tmp_path, lines):
    """`tokenizers` cannot replace two characters by one; NFC belongs to no rules but those that compose."""
    table = tmp_path / "rules.tsv"
    table.write_text("71 6a\t63\n", encoding="utf-8")  # qj: c
    tokenizer = SentencePieceTokenizer(trained(lines, normalization_rule_tsv=str(table)), "none")
    (warning,) = saved(tokenizer, tmp_path)
    assert "'aqjb qj'" in warning
    reader = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ["e\u0301", "\u1112\u1161\u11ab", *lines[:50]]:
        assert reader.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)


@pytest.mark.parametrize(
    "flags",
    [
        {"do_lower_case": False},
        {"keep_accents": True},
    ],
)
def test_flags_of_a_loaded_tokenizer_stay(tmp_path, lines, flags):
    import transformers

    tokenizer = SentencePieceTokenizer(trained(lines))
    (tmp_path / "spiece.model").write_bytes(tokenizer.model)
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    loaded = transformers.AlbertTokenizer.from_pretrained(tmp_path, **flags)
    expected = AlbertTokenizer.from_pretrained(tmp_path, **flags)
    text = "Ünder NATO été"
    assert expected.encode(text) != tokenizer.encode(text)
    assert fix_tokenizer(loaded)(text)["input_ids"] == expected.encode(text, special_tokens=True)


def test_names_of_special_tokens_need_tokenizer_json(lines):
    from albertkit.tokenizer.inputs import NamedSpecials

    reader = NamedSpecials(SentencePieceTokenizer(trained(lines, model_type="word"), "none"))
    with pytest.raises(CheckpointError, match="not-expressible"):
        reader.encode_batch(["a [SEP] b"])
