"""Fixtures of the tokenizer's tests: Google's tokenizer and its folder, lines of reference files and of Wikipedia."""

import gzip
import json

import pytest

from albertkit.tokenizer import AlbertTokenizer


@pytest.fixture(scope="session")
def google(data):
    """Google's English tokenizer; not to be changed."""
    return AlbertTokenizer.from_pretrained(data / "albert")


@pytest.fixture(scope="session")
def google_folder(google, tmp_path_factory):
    """The folder that albertkit writes of it, with a configuration; not to be written to."""
    folder = tmp_path_factory.mktemp("google")
    google.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "albert", "vocab_size": 30000}')
    return folder


@pytest.fixture(scope="session")
def golden_rows(golden):
    """`golden_rows("hf/tokenizer_pairs.jsonl")`: the objects of a reference file."""

    def rows(name):
        with open(golden / name, encoding="utf-8", newline="\n") as stream:
            return [json.loads(line) for line in stream]

    return rows


@pytest.fixture(scope="session")
def wiki(data):
    """`wiki("en/wiki_20")`: the lines of a file of Wikipedia that hold text."""

    def lines(name):
        with gzip.open(data / f"wiki-{name}.gz", "rt", encoding="utf-8") as stream:
            return [line for line in stream.read().split("\n") if line.strip()]

    return lines
