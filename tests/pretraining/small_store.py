"""A real store of 120 short documents of a small language, and the settings of runs on it, for tests that need files."""

import json

import numpy as np
import torch
from safetensors.torch import load_file

from albertkit.corpus import TokenStore, build_store
from albertkit.pretraining.settings import PretrainSettings
from albertkit.tokenizer import train_tokenizer
from albertkit.training.processes import World

ALONE = World(0, 1, torch.device("cpu"))
WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
SHAPE = dict(
    embedding_size=16,
    hidden_size=64,
    num_attention_heads=2,
    num_hidden_layers=2,
    intermediate_size=64,
    max_position_embeddings=64,
)
SETTINGS = PretrainSettings(
    length=32,
    batch_tokens=128,
    steps=12,
    lr=2e-3,
    optimizer="adamw",
    warmup_steps=2,
    held_out=0.2,
    eval_every=6,
    save_every=3,
    log_every=3,
    precision="fp32",
)


def build_small_store(folder):
    """Build the store in a folder, with a tokenizer of 48 tokens."""
    rng = np.random.default_rng(5)
    documents = [
        "\n".join(
            " ".join(rng.choice(WORDS, rng.integers(4, 12))) + "."
            for _ in range(rng.integers(2, 12))
        )
        for _ in range(120)
    ]
    text = folder / "corpus.txt"
    text.write_text("\n\n".join(documents), encoding="utf-8")
    train_tokenizer([text], folder / "tokenizer", vocab_size=48)
    build_store([text], folder / "store", folder / "tokenizer", workers=0)
    return TokenStore.open(folder / "store")


def store_of(folder, text, tokenizer):
    """Build a store of a text, which is kept beside it, and return its folder."""
    file = folder / "corpus.txt"
    file.write_text(text, encoding="utf-8")
    build_store([file], folder / "store", tokenizer, workers=0)
    return folder / "store"


def write_config(folder, vocab_size, **changes):
    """Write the `config.json` of a model of two layers."""
    path = folder / "config.json"
    path.write_text(json.dumps(SHAPE | {"vocab_size": vocab_size} | changes))
    return path


def weights(folder):
    """Read the weights of a checkpoint folder."""
    return load_file(folder / "model.safetensors")


def differing(first, second):
    """Return the names of the tensors that differ, at least in a bit."""
    assert first.keys() == second.keys()
    return {name for name in first if not torch.equal(first[name], second[name])}
