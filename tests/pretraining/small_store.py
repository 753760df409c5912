"""A real store of 120 short documents of a small language, for tests that need files."""

from pathlib import Path

import numpy as np

from albertkit.corpus import TokenStore, build_store
from albertkit.tokenizer import train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()


def build_small_store(folder: Path) -> TokenStore:
    """Build the store in a folder, with a tokenizer of 48 pieces."""
    rng = np.random.default_rng(5)
    documents = [
        "\n".join(" ".join(rng.choice(WORDS, rng.integers(4, 12))) + "." for _ in range(rng.integers(2, 12)))
        for _ in range(120)
    ]
    text = folder / "corpus.txt"
    text.write_text("\n\n".join(documents), encoding="utf-8")
    train_tokenizer([text], folder / "tokenizer", vocab_size=48)
    build_store([text], folder / "store", folder / "tokenizer", workers=0)
    return TokenStore.open(folder / "store")
