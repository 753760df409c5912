"""Sentence-transformers' folders, and pairs."""

import itertools
import json

from hostile import Reader, read_each

TEXTS = [
    "a lazy dog",
    "the fox jumps",
    "seven old wizards",
    "calm rivers",
    "the quick fox",
    "a brown dog",
]


def make_encoder(folder):
    """Transformer, two poolings, a projection, and vectors of length 1."""
    import torch
    from read_tokenizers import make_wordpiece

    from albertkit.config import AlbertConfig
    from albertkit.embeddings.encoder import SentenceEncoder
    from albertkit.embeddings.folder import Projection
    from albertkit.model import AlbertModel
    from albertkit.tokenizer import AlbertTokenizer

    make_wordpiece(folder)
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=tokenizer.vocab_size, embedding_size=8, hidden_size=32, intermediate_size=16
    )
    config = AlbertConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=64
    )
    albert = AlbertModel(config).eval()
    projection = Projection(32, 8, "tanh", True)
    SentenceEncoder(albert, tokenizer, "mean", 32, projection, True).eval().save_pretrained(folder)


def read_encoder(folder):
    import sentence_transformers  # loads what is no ALBERT; it takes seconds to import

    from albertkit.embeddings.models import load_embedding_model

    assert sentence_transformers
    return load_embedding_model(folder, "fp32").encode(TEXTS).shape


def make_pairs(folder):
    import numpy as np

    header = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\n"
    rows = "".join(f"g\tf\t2012\t{n}\t{n / 2}\t{TEXTS[n]}\t{TEXTS[-n]}\n" for n in range(6))
    (folder / "korsts.tsv").write_text(header + rows)
    (folder / "pairs.tsv").write_text("".join(f"{text}\t{text}!\n" for text in TEXTS))
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    labels = ("entailment", "neutral", "contradiction")
    lines = [
        json.dumps({"a": f"{first} {n}", "b": second, "l": labels[n % 3]}) + "\n"
        for n, (first, second) in enumerate(itertools.product(TEXTS, TEXTS))
    ]
    (folder / "nli.jsonl").write_text("".join(lines))
    np.save(folder / "teacher.npy", np.ones((6, 4), np.float32))


def read_pair_files(folder):
    from albertkit.command import Columns
    from albertkit.embeddings.data import read_embedding_data
    from albertkit.embeddings.distill import find_teacher
    from albertkit.embeddings.evaluate import read_pairs
    from albertkit.embeddings.options import EmbedTrainOptions
    from albertkit.embeddings.settings import EmbedSettings
    from albertkit.tables.bad_rows import BadRows

    nli = Columns(text="a", pair="b", label="l")
    stop = BadRows("stop")
    skip = BadRows("skip")
    scored = folder / "korsts.tsv"
    pairs = folder / "pairs.tsv"
    settings = EmbedSettings(held_out=0.3)

    def learned(kind, file, bad_rows, triplets=True, **options):
        train_options = EmbedTrainOptions(kind, "model", file, "out", settings, **options)
        return read_embedding_data(train_options, triplets, bad_rows)

    read_each(
        [
            lambda: read_pairs("korsts", scored, Columns(), stop),
            lambda: read_pairs("pairs", pairs, Columns(), skip),
            lambda: learned("korsts", scored, skip),
            lambda: learned("pairs", pairs, stop),
            lambda: learned("nli", folder / "nli.jsonl", stop, False, columns=nli),
            lambda: learned("texts", folder / "texts.txt", stop, dev=scored, dev_kind="korsts"),
            lambda: find_teacher(str(folder / "teacher.npy"), "cpu"),
        ]
    )


_MODEL = ("*.json", "1_Pooling/*", "2_Dense/*", "model.safetensors")
READERS = {
    "embedding folder": Reader(make_encoder, read_encoder, _MODEL, examples=15, memory=300 << 20),
    "pairs and vectors": Reader(make_pairs, read_pair_files, streams=True),
}
