"""An ALBERT with random weights, small enough to make vectors in milliseconds."""

import numpy as np
import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.model import AlbertForPreTraining
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()


def largest_difference(a, b):
    """Of arrays of numpy or torch."""
    return float(abs(a - b).max())


def row_cosines(a, b):
    """The cosine of each row of an array with that of another one."""
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.fixture(scope="session")
def words():
    """The words that the small tokenizer knows."""
    return WORDS


@pytest.fixture(scope="session")
def sentences():
    """300 sentences of 0 to 40 of those words, from one seed."""
    rng = np.random.default_rng(5)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 41))) for _ in range(300)]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A pretraining checkpoint with a SentencePiece tokenizer of WORDS; its random weights are so large that texts differ."""
    folder = tmp_path_factory.mktemp("checkpoint")
    rng = np.random.default_rng(1)
    tokenizer = train_tokenizer(
        [" ".join(rng.choice(WORDS, 9)) for _ in range(400)], folder / "tokenizer", 56
    )
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    torch.manual_seed(3)
    AlbertForPreTraining(config).eval().save_pretrained(folder / "model", tokenizer)
    return folder / "model"


@pytest.fixture
def encoder(checkpoint):
    """That checkpoint with mean pooling, in fp32."""
    return SentenceEncoder.from_pretrained(checkpoint)


@pytest.fixture(scope="session")
def start(tmp_path_factory, checkpoint):
    """That checkpoint with smaller random weights, from which a model learns in seconds."""
    folder = tmp_path_factory.mktemp("start")
    config = AlbertConfig.from_pretrained(checkpoint).with_changes(initializer_range=0.1)
    torch.manual_seed(3)
    AlbertForPreTraining(config).save_pretrained(
        folder, AlbertTokenizer.from_pretrained(checkpoint)
    )
    return folder


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    """A sentence-transformers folder of a random BERT of 16 numbers that reads 32 tokens and has the prompt `query`."""
    import sentence_transformers as st
    import transformers

    folder = tmp_path_factory.mktemp("other")
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ":", *WORDS]) + "\n"
    )
    config = transformers.BertConfig(
        vocab_size=6 + len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    torch.manual_seed(4)
    transformers.BertModel(config).eval().save_pretrained(folder / "bert")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    model = st.SentenceTransformer(
        str(folder / "bert"), device="cpu", prompts={"query": "seven wizards : "}
    )
    model.max_seq_length = 32
    model.save(str(folder / "model"))
    return folder / "model"
