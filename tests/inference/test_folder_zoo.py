"""Folders as they lie on hubs, of every era: read as their own library reads them, or refused by one named error."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albertkit.errors import AlbertKitError
from albertkit.tokenizer import AlbertTokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")

CHINESE = list("我爱北京天安门今天气很好的小語言臺灣")
JAPANESE = list("日本語のテキストですカタカナひらがな")
KOREAN = ["대한민국", "##의", "##은", "서울", "##이다", "수도"]
LATIN = "the quick brown fox jumps over lazy dog cafe naive covid ##s ##ing a b c e s".split()
CAPITALS = ["The", "Fox", "A", "É", "é", "Caf", "##é"]
VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[unused1]",
    "[unused2]",
    "[",
    "]",
    "unused",
    "##1",
    ",",
    ".",
]
VOCABULARY += list(dict.fromkeys([*LATIN, *CAPITALS, *CHINESE, *JAPANESE, *KOREAN]))
TEXTS = [
    "the quick brown fox jumps over a lazy dog.",
    "The [unused1] Fox [unused2]the<e1>the, newwords and <e1> covid19",
    "Café naïve É é THE",
    "我爱北京the天安门，今天天气很好。臺灣",
    "日本語のテキストです。ガ カタカナ",
    "대한민국의 수도는 서울이다.",
    "",
    "a  b\tc\n",
]
SHAPE = dict(
    vocab_size=120, embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=64, initializer_range=0.2,
)  # fmt: skip


def change(file: Path, **values: Any) -> None:
    """Set keys of a JSON file; None takes a key away."""
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({key: value for key, value in {**content, **values}.items() if value is not None}))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any) -> dict[str, Path]:
    """A folder of a WordPiece vocabulary and one that albertkit wrote."""
    folder = tmp_path_factory.mktemp("bases")
    for name in ("words", "ours"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"model_type": "albert", **SHAPE}))
    (folder / "words" / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    (folder / "words" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    tiny_tokenizer.save_pretrained(folder / "ours")
    return {path.name: path for path in folder.iterdir()}


def settings(**values: Any) -> Callable[[Path], None]:
    """Set keys of `tokenizer_config.json`."""
    return lambda folder: change(folder / "tokenizer_config.json", **values)


def added(**values: Any) -> Callable[[Path], None]:
    """Add tokens as users of transformers 5 do, and save."""

    def add(folder: Path) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for token, special in values["tokens"]:
            tokenizer.add_tokens([token], special_tokens=special)
        tokenizer.save_pretrained(folder)

    return add


def era_4(tokens: list[tuple[str, bool]], **flags: bool) -> Callable[[Path], None]:
    """List added tokens as transformers 4 does: by number, with their flags; no tokenizer.json."""

    def add(folder: Path) -> None:
        (folder / "tokenizer.json").unlink(missing_ok=True)
        decoder, number = {}, len(VOCABULARY)
        for token, special in tokens:
            known = token in VOCABULARY
            usual = dict(lstrip=False, normalized=not special, rstrip=False, single_word=False)
            decoder[str(VOCABULARY.index(token) if known else number)] = {
                "content": token, "special": special, **usual, **flags,
            }  # fmt: skip
            number += not known
        names = [token for token, special in tokens if special]
        change(folder / "tokenizer_config.json", added_tokens_decoder=decoder, additional_special_tokens=names)

    return add


def era_3(folder: Path) -> None:
    """List added tokens as transformers 2 and 3 do."""
    change(folder / "added_tokens.json", **{"<e1>": len(VOCABULARY), "newword": len(VOCABULARY) + 1})
    change(folder / "special_tokens_map.json", additional_special_tokens=["<e1>", "[unused1]"])


def own_json(folder: Path) -> None:
    """Put another tokenizer's tokenizer.json beside the leftover files."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {token: n for n, token in enumerate([*VOCABULARY[:5], *reversed(VOCABULARY[5:])])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), VOCABULARY[:5], strict=True))
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{role}_token": name for role, name in names.items()}
    )
    (folder / "tokenizer_config.json").unlink()
    theirs.save_pretrained(folder)


def class_in_config(folder: Path) -> None:
    """Name the tokenizer's class in config.json alone, as transformers 3.4 to 4.0 do."""
    settings(tokenizer_class=None)(folder)
    change(folder / "config.json", tokenizer_class="BertTokenizer")


def blanks(folder: Path) -> None:
    """Put blanks around the tokens, as editors and spreadsheets leave them."""
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (folder / "vocab.txt").write_text("".join(f"{line} \t\n" for line in lines), encoding="utf-8")


E1, WORD, UNUSED = ("<e1>", True), ("newword", False), ("[unused1]", True)
READ: dict[str, tuple[str, Callable[[Path], None]]] = {
    "no tokenizer_config": ("words", lambda folder: (folder / "tokenizer_config.json").unlink()),
    "cased": ("words", settings(do_lower_case=False)),
    "cased, accents stripped": ("words", settings(do_lower_case=False, strip_accents=True)),
    "accents kept": ("words", settings(strip_accents=False)),
    "no Chinese characters alone": ("words", settings(tokenize_chinese_chars=False)),
    "fast class of transformers 3": ("words", settings(tokenizer_class="BertTokenizerFast")),
    "max_len of transformers 2": ("words", settings(tokenizer_class=None, do_lower_case=True, max_len=512)),
    "class in config.json": ("words", class_in_config),
    "saved by transformers 5": ("words", added(tokens=[])),
    "added by transformers 5": ("words", added(tokens=[E1, WORD])),
    "vocabulary's token made special by transformers 5": ("words", added(tokens=[UNUSED])),
    "added by transformers 4": ("words", era_4([E1, WORD])),
    "vocabulary's token made special by transformers 4": ("words", era_4([UNUSED, E1])),
    "added, whole words alone": ("words", era_4([E1, WORD], single_word=True)),
    "added, spaces taken along": ("words", era_4([E1, WORD], lstrip=True, rstrip=True)),
    "added, before the text is normalised": ("words", era_4([("NewWord", False)], normalized=False)),
    "added by transformers 3": ("words", era_3),
    "own tokenizer.json, vocab.txt left over": ("words", own_json),
    "ours": ("ours", lambda folder: None),
    "ours, added by transformers 5": ("ours", added(tokens=[E1, WORD])),
    "own tokenizer.json, spiece.model left over": ("ours", own_json),
}  # fmt: skip


def variant(bases: dict[str, Path], base: str, tmp_path: Path, alter: Callable[[Path], Any]) -> Path:
    folder = tmp_path / "folder"
    shutil.copytree(bases[base], folder)
    alter(folder)
    return folder


@pytest.mark.parametrize("name", READ)
def test_ids_are_those_of_transformers(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = variant(bases, READ[name][0], tmp_path, READ[name][1])
    ours, theirs = AlbertTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    if name in ("no tokenizer_config", "max_len of transformers 2"):  # as the cards of such models on the hub say
        theirs = transformers.BertTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text, special_tokens=True) == theirs(text)["input_ids"], text
    assert [row.tolist() for row in ours.encode_batch(TEXTS).texts()] == [
        theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS
    ]


def test_blanks_in_a_vocabulary_are_no_part_of_its_tokens(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = variant(bases, "words", tmp_path, blanks)
    plain = AlbertTokenizer.from_pretrained(bases["words"])
    assert AlbertTokenizer.from_pretrained(folder).encode(TEXTS[0]) == plain.encode(TEXTS[0])


REFUSED: dict[str, tuple[str, Callable[[Path], None], str, str]] = {
    "Japanese words": (
        "words", settings(tokenizer_class="BertJapaneseTokenizer", word_tokenizer_type="mecab"),
        "unsupported", "BertJapaneseTokenizer",
    ),
    "Japanese words without a class": (
        "words", settings(tokenizer_class=None, word_tokenizer_type="mecab"), "unsupported", "word_tokenizer_type",
    ),
    "another library's pieces": ("ours", settings(tokenizer_class="XLNetTokenizer"), "unsupported", "XLNetTokenizer"),
    "a class of its own": (
        "words", settings(tokenizer_class="MyTokenizer", auto_map={"AutoTokenizer": ["t.MyTokenizer", None]}),
        "unsupported", "MyTokenizer",
    ),
    "code of its own under a known name": (
        "ours", settings(auto_map={"AutoTokenizer": ["t.Mine", None]}), "unsupported", "t.Mine",
    ),
    "words that are not divided": ("words", settings(do_basic_tokenize=False), "unsupported", "do_basic_tokenize"),
    "an added token at another's id": (
        "words", lambda folder: change(folder / "added_tokens.json", **{"<e1>": 999}), "wrong-tokenizer", "<e1>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_tokenizers_are_refused_by_name(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    base, alter, slug, words = REFUSED[name]
    with pytest.raises(AlbertKitError) as raised:
        AlbertTokenizer.from_pretrained(variant(bases, base, tmp_path, alter))
    assert raised.value.slug == slug
    assert words in str(raised.value)


def test_files_that_read_differently_are_reported(
    bases: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = variant(bases, "words", tmp_path, added(tokens=[]))
    with caplog.at_level(logging.WARNING, "albertkit"):
        AlbertTokenizer.from_pretrained(folder)
    assert not caplog.records
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    settings(tokenizer_class="BertTokenizer")(folder)
    with caplog.at_level(logging.WARNING, "albertkit"):
        AlbertTokenizer.from_pretrained(folder)
    assert "reads a text otherwise" in caplog.text
    assert str(folder / "tokenizer.json") in caplog.text
