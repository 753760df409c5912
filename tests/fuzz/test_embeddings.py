"""Sentence-transformers' folders, vectors in files, pairs, and the state that an interrupted encoding left."""

import itertools
import json
import random
import sqlite3
from pathlib import Path

import pytest
from hostile import Reader

TEXTS = ["a lazy dog", "the fox jumps", "seven old wizards", "calm rivers", "the quick fox", "a brown dog"]


def make_encoder(folder: Path) -> None:
    """Transformer, two poolings, a projection, and vectors of length 1."""
    import torch
    from test_tokenizers import make_wordpiece

    from albertkit.config import AlbertConfig
    from albertkit.embeddings.encoder import SentenceEncoder
    from albertkit.embeddings.pooling import Projection
    from albertkit.model import AlbertModel
    from albertkit.tokenizer import AlbertTokenizer

    make_wordpiece(folder)
    tokenizer = AlbertTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(vocab_size=tokenizer.vocab_size, embedding_size=8, hidden_size=32, intermediate_size=16)
    config = AlbertConfig(**sizes, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=64)
    albert, projection = AlbertModel(config).eval(), Projection(32, 8, "tanh", True)
    SentenceEncoder(albert, tokenizer, "mean", 32, projection, True).eval().save_pretrained(folder)


def read_encoder(folder: Path):
    import sentence_transformers  # loads what is no ALBERT; it takes seconds to import

    from albertkit.embeddings.models import load_embedding_model

    assert sentence_transformers
    return load_embedding_model(folder, "fp32").encode(TEXTS).shape


def make_input(folder: Path) -> None:
    """A model, texts, and the work of a call that was interrupted."""
    from albertkit.corpus.journal import Journal
    from albertkit.embeddings.encoding import encode_file as module

    make_encoder(folder / "model")
    (folder / "in.txt").write_text("\n".join(TEXTS * 3) + "\n")
    seen = {}

    class Kept(Journal):
        def commit(self, **facts):
            seen.update(facts)
            super().commit(**facts)

    from albertkit.embeddings.encoding import work

    before, work.Journal = work.Journal, Kept
    try:
        module.encode_file(folder / "model", folder / "in.txt", folder / "out.npy", precision="fp32")
    finally:
        work.Journal = before
    left = folder / ".out.npy.encoding"
    left.mkdir()
    (folder / "out.npy").rename(left / "vectors.npy")
    (folder / "out.npy.json").unlink()
    identity = seen["identity"] | {"input": None}  # another path and time: set when it is read
    (folder / "identity.json").write_text(json.dumps(identity))


def go_on(folder: Path):
    """Take up the interrupted work, whose journal is made to fit this folder."""
    from albertkit.corpus.inputs import find_inputs
    from albertkit.corpus.journal import Journal
    from albertkit.embeddings.encoding.encode_file import encode_file
    from albertkit.embeddings.encoding.work import _PLACE

    journal = folder / ".out.npy.encoding" / "journal.sqlite"
    if not journal.exists():
        (file,) = find_inputs([folder / "in.txt"])
        identity = json.loads((folder / "identity.json").read_text())
        identity["input"] = [file.path, file.size, file.modified]
        made = Journal(journal)
        made.commit(identity=identity, place=dict.fromkeys(_PLACE, 0))
        made.close()
    report = encode_file(folder / "model", folder / "in.txt", folder / "out.npy", precision="fp32")
    return report.texts, report.resumed


def wrong_state(rng: random.Random, folder: Path) -> str:
    """A good journal that says something else."""
    import damage

    from albertkit.corpus.journal import _with_digest

    place = damage.tree(rng, {"window": 0, "runs": 1, "done": 5, "sum": 7, "truncated": 0})
    base = sqlite3.connect(folder / ".out.npy.encoding" / "journal.sqlite")
    base.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID")
    base.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT)")
    identity = json.loads((folder / "identity.json").read_text())
    status = (folder / "in.txt").stat()
    identity["input"] = [str(folder / "in.txt"), status.st_size, status.st_mtime_ns]
    facts = {"seen": 0, "identity": identity if rng.randrange(4) else damage.tree(rng, identity), "place": place}
    base.executemany("INSERT INTO facts VALUES (?, ?)", [(n, _with_digest(n, json.dumps(v))) for n, v in facts.items()])
    base.commit()
    base.close()
    return f"the journal says {place!r:.200}"


def make_pairs(folder: Path) -> None:
    import numpy as np

    header = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\n"
    rows = "".join(f"g\tf\t2012\t{n}\t{n / 2}\t{TEXTS[n]}\t{TEXTS[-n]}\n" for n in range(6))
    (folder / "korsts.tsv").write_text(header + rows)
    (folder / "pairs.tsv").write_text("".join(f"{text}\t{text}!\n" for text in TEXTS))
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    labels = ("entailment", "neutral", "contradiction")
    lines = [
        json.dumps({"a": f"{one} {n}", "b": two, "l": labels[n % 3]}) + "\n"
        for n, (one, two) in enumerate(itertools.product(TEXTS, TEXTS))
    ]
    (folder / "nli.jsonl").write_text("".join(lines))
    np.save(folder / "teacher.npy", np.ones((6, 4), np.float32))


def read_pair_files(folder: Path):
    from albertkit.embeddings.distillation.teacher import find_teacher
    from albertkit.embeddings.evaluation.files import read_pairs
    from albertkit.embeddings.learning.data import read_embedding_data
    from albertkit.errors import AlbertKitError
    from albertkit.tasks.columns import Columns
    from albertkit.tasks.faults import Faults

    problem, nli = None, Columns(text="a", pair="b", label="l")
    stop, scored = Faults("stop"), folder / "korsts.tsv"
    for read in (
        lambda: read_pairs("korsts", scored, Columns(), stop),
        lambda: read_pairs("pairs", folder / "pairs.tsv", Columns(), Faults("skip")),
        lambda: read_embedding_data("korsts", scored, held_out=0.3, faults=Faults("skip")),
        lambda: read_embedding_data("pairs", folder / "pairs.tsv", held_out=0.3, faults=stop),
        lambda: read_embedding_data(
            "nli", folder / "nli.jsonl", columns=nli, held_out=0.3, faults=stop, triplets=False
        ),
        lambda: read_embedding_data("texts", folder / "texts.txt", dev=scored, dev_kind="korsts", faults=stop),
        lambda: find_teacher(str(folder / "teacher.npy"), "cpu"),
    ):
        try:
            read()
        except AlbertKitError as error:
            problem = error
    if problem:
        raise problem
    return "read"


_MODEL = ("*.json", "1_Pooling/*", "2_Dense/*", "model.safetensors")
READERS = {
    "embedding folder": Reader(make_encoder, read_encoder, _MODEL, examples=40, memory=300 << 20),
    "interrupted encoding": Reader(
        make_input, go_on, (".out*/vectors.npy", "in.txt"), wrong_state, writes=True, streams=True
    ),
    "pairs and vectors": Reader(make_pairs, read_pair_files, streams=True),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name, fuzzing):
    fuzzing.damage(name, READERS[name])


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file(name, fuzzing):
    fuzzing.places(name, READERS[name])
