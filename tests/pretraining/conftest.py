"""A small store with settings to train on it, and the corpus of the golden masks, each made once."""

from dataclasses import replace

import pytest
from memory_store import MemoryStore, read_novels
from small_store import SETTINGS, build_small_store, write_config

from albertkit.pretraining.run import pretrain


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """The small store; not to be written to."""
    return build_small_store(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def settings(tmp_path_factory, store):
    """Twelve updates of a model with dropout."""
    dropout = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    folder = tmp_path_factory.mktemp("config")
    return replace(
        SETTINGS, config=write_config(folder, store.vocab_size, intermediate_size=128, **dropout)
    )


@pytest.fixture
def taught(settings):
    """Six updates that learn a teacher's states alone."""
    return replace(
        settings,
        config=None,
        masked_lm_prob=0.0,
        pair_task="none",
        steps=6,
        warmup_steps=0,
        log_every=1,
    )


@pytest.fixture
def train(tmp_path, store, settings):
    """Pretrain on the small store, or on other data, in a folder of `tmp_path`; further keywords change the settings."""

    def pretrained(folder="run", data=store, start=None, resume=False, **changes):
        return pretrain(
            data, tmp_path / folder, replace(settings, **changes), start=start, resume=resume
        )

    return pretrained


@pytest.fixture(scope="session")
def albert_tokenizer(data):
    from albertkit.tokenizer import AlbertTokenizer

    return AlbertTokenizer.from_pretrained(data / "albert")


@pytest.fixture(scope="session")
def novels(golden, albert_tokenizer):
    """The store of the novels, in three shards."""
    documents, _ = read_novels(golden, albert_tokenizer)
    return MemoryStore(documents, num_shards=3, model=albert_tokenizer)
