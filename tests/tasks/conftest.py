"""A start to fine-tune from and a table to learn, both small enough to train in seconds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.model import AlbertForPreTraining
from albertkit.tokenizer import AlbertTokenizer, train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()


def write_table(path: Path, rows: int, seed: int) -> Path:
    """Sentences of WORDS; the label says whether a wizard is in it."""
    rng = np.random.default_rng(seed)
    lines = ["sentence\tlabel"]
    for number in range(rows):
        words = list(rng.choice([w for w in WORDS if w != "wizards"], rng.integers(4, 12)))
        if number % 2:
            words.insert(int(rng.integers(len(words))), "wizards")
        lines.append(f"{' '.join(words)}\t{'magic' if number % 2 else 'plain'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining checkpoint with random weights, H 32, two passes, 56 pieces."""
    folder = tmp_path_factory.mktemp("start")
    text = folder / "text.txt"
    rng = np.random.default_rng(1)
    text.write_text("\n".join(" ".join(rng.choice(WORDS, 9)) for _ in range(400)), encoding="utf-8")
    train_tokenizer([text], folder / "tokenizer", vocab_size=56)
    tokenizer = AlbertTokenizer.from_pretrained(folder / "tokenizer")
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=1,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.1, classifier_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(3)
    AlbertForPreTraining(config).save_pretrained(folder / "model", tokenizer)
    return folder / "model"


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv (300 rows) and dev.tsv (100)."""
    folder = tmp_path_factory.mktemp("table")
    write_table(folder / "train.tsv", 300, 1)
    write_table(folder / "dev.tsv", 100, 2)
    return folder
