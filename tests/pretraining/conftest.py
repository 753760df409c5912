"""The corpus of the golden masks, tokenized once."""

import pytest
from memory_store import MemoryStore, read_novels


@pytest.fixture(scope="session")
def albert_tokenizer(data):
    from albertkit.tokenizer import AlbertTokenizer

    return AlbertTokenizer.from_pretrained(data / "albert")


@pytest.fixture(scope="session")
def novels(golden, albert_tokenizer):
    """The store of the novels, in three shards."""
    documents, _ = read_novels(golden, albert_tokenizer)
    return MemoryStore(documents, num_shards=3, model=albert_tokenizer)
