"""google-research/albert's own tests of its WordPiece tokenizer, run on ours; ALBERTKIT_ALBERT names a checkout."""

import importlib.util
import json
import os
import sys
import types
import unittest
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from albertkit.tokenizer import AlbertTokenizer

pytestmark = pytest.mark.peer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_of(vocabulary: Iterable[str], lower: bool) -> AlbertTokenizer:
    """Return our tokenizer of a vocabulary, to which special tokens that it lacks are added at the end."""
    tokens = list(dict.fromkeys([*vocabulary, *SPECIAL]))
    with TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        settings = {"do_lower_case": lower, "tokenizer_class": "BertTokenizer"}
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(settings))
        return AlbertTokenizer.from_pretrained(folder)


def pieces(tokenizer: AlbertTokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_piece(token) for token in tokenizer.encode(text)]


class FullTokenizer:
    def __init__(self, vocab_file: str, do_lower_case: bool = True) -> None:
        self.vocabulary = Path(vocab_file).read_text(encoding="utf-8").split("\n")[:-1]
        self.tokenizer = tokenizer_of(self.vocabulary, do_lower_case)

    def tokenize(self, text: str) -> list[str]:
        return pieces(self.tokenizer, text)

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return self.tokenizer.convert_tokens_to_ids(tokens)


class WordpieceTokenizer:
    def __init__(self, vocab: Mapping[str, int]) -> None:
        self.tokenizer = tokenizer_of(vocab, lower=False)

    def tokenize(self, text: str) -> list[str]:
        return pieces(self.tokenizer, text)


class BasicTokenizer:
    """Words are what begins without ##, with a vocabulary of single characters."""

    def __init__(self, do_lower_case: bool = True) -> None:
        self.lower = do_lower_case

    def tokenize(self, text: str) -> list[str]:
        characters = sorted(set(text + text.lower() + "e") - set(" \t\r\n\u00a0"))
        tokenizer = tokenizer_of([*characters, *(f"##{character}" for character in characters)], self.lower)
        words: list[str] = []
        for piece in pieces(tokenizer, text):
            if piece.startswith("##") and words:
                words[-1] += piece[2:]
            else:
                words.append(piece)
        return words


def words_around(character: str) -> list[str]:
    return BasicTokenizer(do_lower_case=False).tokenize(f"a{character}b")


def ours() -> types.ModuleType:
    """Return a module with the names of theirs, made of our tokenizer."""
    module = types.ModuleType("albert.tokenization")
    module.FullTokenizer, module.BasicTokenizer = FullTokenizer, BasicTokenizer
    module.WordpieceTokenizer = WordpieceTokenizer
    module.convert_tokens_to_ids = lambda vocab, tokens: [
        {token: number for number, token in enumerate(vocab)}[token] for token in tokens
    ]
    module._is_whitespace = lambda character: words_around(character) == ["a", "b"]
    module._is_control = lambda character: words_around(character) == ["ab"]
    module._is_punctuation = lambda character: words_around(character) == ["a", character, "b"]
    return module


class TestCase(unittest.TestCase):
    def assertAllEqual(self, left: list[object], right: list[object]) -> None:
        assert list(left) == list(right)


@pytest.fixture
def their_tests(monkeypatch):
    if not (folder := os.environ.get("ALBERTKIT_ALBERT")):
        pytest.skip("ALBERTKIT_ALBERT is not set")
    package, tensorflow = types.ModuleType("albert"), types.ModuleType("tensorflow.compat.v1")
    package.tokenization = ours()
    tensorflow.test = types.SimpleNamespace(TestCase=TestCase)
    six = types.ModuleType("six")
    six.PY2, six.ensure_str, six.ensure_binary = False, str, str.encode
    modules = {"albert": package, "six": six, "tensorflow": types.ModuleType("tensorflow")}
    modules |= {"tensorflow.compat": types.ModuleType("tensorflow.compat"), "tensorflow.compat.v1": tensorflow}
    modules["tensorflow.compat"].v1 = tensorflow
    modules["tensorflow"].compat = modules["tensorflow.compat"]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("tokenization_test", Path(folder) / "tokenization_test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TokenizationTest


def test_their_tests_of_the_tokenizer_pass(their_tests):
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(their_tests)
    result = unittest.TestResult()
    suite.run(result)
    assert [text for _, text in (*result.failures, *result.errors)] == []
    assert result.testsRun == 9
