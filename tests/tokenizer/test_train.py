"""Training, and the two commands."""

import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer

from albertkit.errors import AlbertKitError, CheckpointError
from albertkit.tokenizer import AlbertTokenizer, rules, train_tokenizer
from albertkit.tokenizer.options import GOOGLE_SYMBOLS
from albertkit.tokenizer.sentencepiece_model import (
    CONTROL,
    SPECIAL_PIECES,
    UNKNOWN,
    USER_DEFINED,
    read_facts,
)
from albertkit.tokenizer.texts import read_lines


def sentences(number=400, seed=0):
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)]
    return [
        " ".join(draw.choices(words, k=12)).capitalize() + f" ({draw.randint(1, 2000)}) - £5."
        for _ in range(number)
    ]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences()), encoding="utf-8")
    return path


def test_layout_of_the_vocabulary(tmp_path):
    tokenizer = train_tokenizer(sentences(), tmp_path / "out", vocab_size=300)
    facts = read_facts((tmp_path / "out/spiece.model").read_bytes())
    assert [piece for piece, _, _ in facts.pieces[:13]] == [*SPECIAL_PIECES, *GOOGLE_SYMBOLS]
    assert [kind for _, _, kind in facts.pieces[:13]] == [
        CONTROL,
        UNKNOWN,
        *[CONTROL] * 3,
        *[USER_DEFINED] * 8,
    ]
    assert tokenizer.vocab_size == 300
    assert tokenizer.special_ids() == [0, 1, 2, 3, 4]
    assert all(piece == piece.lower() for piece, _, _ in facts.pieces[13:])  # the rules came first
    assert tokenizer.decode(tokenizer.encode("Bada (12) - £5.")) == "bada (12) - £5."


def test_same_bytes_from_the_same_seed(tmp_path, text_file):
    def model(name, texts, **settings):
        train_tokenizer(texts, tmp_path / name, vocab_size=200, **settings)
        return (tmp_path / name / "spiece.model").read_bytes()

    first = model("a", sentences())
    assert model("b", iter(sentences())) == first
    assert model("c", [text_file]) == first
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(text_file.read_bytes()))
    assert model("d", [packed]) == first
    assert b"text.txt" not in first
    sampled = model("e", sentences(), max_sentences=150, seed=1)
    assert model("f", sentences(), max_sentences=150, seed=1) == sampled
    assert model("g", sentences(), max_sentences=150, seed=2) != sampled


def test_rules_and_symbols(tmp_path):
    tokenizer = train_tokenizer(
        [f"Éa Été {text}" for text in sentences()],
        tmp_path,
        vocab_size=200,
        text_rules="multilingual",
        user_defined_symbols=["é,", '"'],
    )
    assert tokenizer.id_to_piece(5) == "é,"
    assert tokenizer.id_to_piece(6) == '"'
    assert tokenizer.unk_id not in tokenizer.encode("Éa")
    assert AlbertTokenizer.from_pretrained(tmp_path).text_rules == "multilingual"


@pytest.mark.parametrize(
    ("texts", "settings", "slug"),
    [
        ([], {}, "empty"),
        (["", "  "], {}, "empty"),
        (sentences(), {"vocab_size": 20000}, "too-little-data"),
        (sentences(), {"vocab_size": 20}, "bad-value"),
        (sentences(), {"vocab_size": 5}, "bad-value"),
        (sentences(), {"coverage": 1.5}, "bad-value"),
        (sentences(), {"max_sentences": 0}, "bad-value"),
        (sentences(), {"text_rules": "googel"}, "unknown-name"),
        ([Path("no-such-file")], {}, "not-found"),
    ],
)
def test_errors_leave_nothing(tmp_path, texts, settings, slug):
    with pytest.raises(AlbertKitError, match=rf"(?s)\[{slug}\].*\n\nhint: "):
        train_tokenizer(texts, tmp_path / "out", **{"vocab_size": 200, **settings})
    assert list(tmp_path.iterdir()) == []


def test_the_largest_vocabulary_works(tmp_path):
    with pytest.raises(AlbertKitError) as caught:
        train_tokenizer(sentences(), tmp_path, vocab_size=20000)
    largest = int(caught.value.hint.split()[2])
    assert train_tokenizer(sentences(), tmp_path, vocab_size=largest).vocab_size == largest


@pytest.mark.parametrize(
    ("content", "slug", "fact"),
    [
        (b"fine\ncaf\xe9 au lait\n", "bad-encoding", "byte 0xe9 at 8 (line 2)"),
        (b"\x7fELF\x02\x00\x00", "wrong-kind", "zero byte at 5"),
        (gzip.compress(b"words and words\n" * 1000, mtime=0)[:-20], "corrupt", "is cut off"),
    ],
)
def test_files_that_are_no_text(tmp_path, content, slug, fact):
    path = tmp_path / ("text.gz" if slug == "corrupt" else "text.txt")
    path.write_bytes(content)
    with pytest.raises(AlbertKitError, match=rf"\[{slug}\].*{re.escape(fact)}"):
        train_tokenizer([path], tmp_path / "out", vocab_size=100)
    assert not (tmp_path / "out").exists()


def test_commands(tmp_path, text_file, run_command):
    out = tmp_path / "out"
    result = run_command(
        "tokenizer", "train", text_file, "--out", out, "--vocab-size", 200, "--json"
    )
    assert result.status == 0
    assert result.json["vocab_size"] == 200
    assert result.json["text_rules"] == "google"
    result = run_command("tokenizer", "encode", "--tokenizer", out, text_file, "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    truth = sentencepiece.SentencePieceProcessor(model_file=f"{out}/spiece.model")
    texts = [text.lower() for text in sentences()]
    assert [line["ids"] for line in lines] == truth.encode(texts)
    assert [line["pieces"] for line in lines] == truth.encode(texts, out_type=str)
    assert {tuple(line) for line in lines} == {("ids", "pieces")}
    result = run_command(
        "tokenizer", "train", text_file, "--out", tmp_path / "no", "--vocab-size", 99999
    )
    assert result.status == 2
    assert "error[too-little-data]" in result.err
    assert not (tmp_path / "no").exists()


def test_nothing_of_the_trainers_log_is_seen(tmp_path, text_file):
    command = [
        sys.executable,
        "-m",
        "albertkit",
        "tokenizer",
        "train",
        text_file,
        "--out",
        tmp_path / "o",
    ]
    result = subprocess.run(
        [*command, "--vocab-size", "200"], capture_output=True, text=True, check=True
    )
    assert result.stderr.splitlines() == [
        f"read 400 lines, {text_file.stat().st_size - 799:,} characters; training"
    ]
    assert result.stdout.startswith("200 tokens in ")


def test_a_tokenizer_is_replaced_only_when_asked(tmp_path):
    before = train_tokenizer(sentences(), tmp_path, vocab_size=300).fingerprint
    with pytest.raises(CheckpointError, match=r"\[exists\].*holds a tokenizer"):
        train_tokenizer(sentences(), tmp_path, vocab_size=200)
    assert AlbertTokenizer.from_pretrained(tmp_path).fingerprint == before
    assert train_tokenizer(sentences(), tmp_path, vocab_size=200, overwrite=True).vocab_size == 200
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="exists already"):
        train_tokenizer(sentences(), tmp_path / "file", vocab_size=200)


def test_the_listing_is_sentencepieces_own(data, google, tmp_path):
    google.write_piece_listing(tmp_path)
    theirs = (data / "albert/30k-clean.vocab").read_text(encoding="utf-8")
    assert (tmp_path / "spiece.vocab").read_text(encoding="utf-8") == theirs


def test_the_folder_is_tried_before_anything_is_read(tmp_path):
    def read():
        raise AssertionError("text was read")
        yield ""

    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        train_tokenizer(read(), tmp_path / "file/out", vocab_size=300)
    assert not list(tmp_path.glob(".partial*"))


def test_command_with_symbols_and_progress(text_file, tmp_path, run_command):
    command = ("tokenizer", "train", text_file, "--out", tmp_path / "t", "--vocab-size", 200)
    result = run_command(*command, "--user-defined-symbols", "<num>", "@user")
    assert result.status == 0
    assert "read 400 lines" in result.err
    lines = (tmp_path / "t/spiece.vocab").read_text(encoding="utf-8").split("\n")
    assert [line.split("\t")[0] for line in lines[5:7]] == ["<num>", "@user"]
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path / "t")
    assert {"<num>", "@user"} <= set(tokenizer.pieces("bada <num>@user"))


def test_encode_reads_the_standard_input_by_its_name(tmp_path):
    tokenizer = train_tokenizer(sentences(), tmp_path / "t", vocab_size=200)
    for arguments in ([], ["-"]):
        command = [sys.executable, "-m", "albertkit", "tokenizer", "encode", *arguments]
        result = subprocess.run(
            [*command, "--tokenizer", tmp_path / "t", "--json"],
            input=b"bada\n",
            capture_output=True,
            check=True,
        )
        assert json.loads(result.stdout)["ids"] == tokenizer.encode("bada")


def test_an_address_is_refused_as_one():
    with pytest.raises(
        AlbertKitError, match=r"(?s)not-found.*copy `gs://bucket/words.txt` here first"
    ):
        list(read_lines(Path("gs://bucket/words.txt")))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"reserve": 3},
        {"text_rules": "multilingual"},
        {"byte_fallback": True},
    ],
    ids=str,
)
def test_no_token_ends_in_a_digit_and_a_comma(tmp_path, settings):
    """transformers' fast tokenizers cannot express Google's rule for such tokens, and its slow one has it under any rules."""
    draw = random.Random(0)
    texts = [
        f"range({draw.randint(1, 9)}) yields 0, 1, and then {draw.randint(1900, 2030)}, {draw.randint(1, 9)},500 1,,2 ²，③,"
        for _ in range(800)
    ]
    size = 50 + 256 * bool(settings.get("byte_fallback"))
    tokenizer = train_tokenizer(texts, tmp_path / "out", vocab_size=size, **settings)
    pieces = [piece for piece, _, _ in read_facts(tokenizer.model).pieces]
    assert len(pieces) == tokenizer.vocab_size == size
    assert not [piece for piece in pieces if re.search(r"\d,$", piece)]
    assert set("0123456789,()adeghilnrsty") <= set(pieces)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    reader = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    for text in texts[:200]:
        ids = tokenizer.encode(text)
        assert ids == processor.encode(rules.apply(tokenizer.text_rules, text))
        assert ids == reader.encode(text, add_special_tokens=False).ids


def test_text_for_too_few_tokens_without_digit_commas(tmp_path):
    """The number in the hint is one that works."""
    texts = [f"{number}, {number}, {number * 7}," for number in range(60)]
    with pytest.raises(AlbertKitError, match="too-little-data") as caught:
        train_tokenizer(texts, tmp_path / "a", vocab_size=120)
    largest = int(caught.value.hint.split()[2])
    while True:
        try:
            assert train_tokenizer(texts, tmp_path / "b", vocab_size=largest).vocab_size == largest
            break
        except AlbertKitError as error:
            smaller = int(error.hint.split()[2])
            assert smaller < largest
            largest = smaller
