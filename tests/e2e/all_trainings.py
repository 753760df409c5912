"""Every training command on data that a model learns in seconds: by itself in one process, or as torchrun starts it in several.

    python all_trainings.py DATA OUT NAME...

Leaves OUT/<name>/ for each, and OUT/collectives-<rank>.json: how often all gradients went over the
network, an update.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import distributed as dist

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
STEPS = {
    "pretrain": 12,
    "teacher": 12,
    "finetune": 12,
    "embed-cosent": 8,
    "embed-mnrl": 8,
    "distill": 8,
    "caption": 10,
}


def make_data(folder: Path) -> None:
    """A model with random weights, a store, tables, vectors of a teacher and features of clips."""
    from albertkit.captioning.prepare import prepare_clips
    from albertkit.captioning.sources import read_splits
    from albertkit.config import AlbertConfig
    from albertkit.corpus import build_store
    from albertkit.model import AlbertForPreTraining
    from albertkit.tokenizer import AlbertTokenizer, train_tokenizer

    rng = np.random.default_rng(5)

    def sentence(low: int = 3, high: int = 10) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(low, high)))

    documents = ["\n".join(sentence() + "." for _ in range(rng.integers(2, 9))) for _ in range(60)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    train_tokenizer([folder / "corpus.txt"], folder / "tokenizer", vocab_size=48)
    build_store([folder / "corpus.txt"], folder / "store", folder / "tokenizer", workers=0)
    tokenizer = AlbertTokenizer.from_pretrained(folder / "tokenizer")
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.1,
        classifier_dropout_prob=0.0,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    torch.manual_seed(3)
    AlbertForPreTraining(config).save_pretrained(folder / "model", tokenizer)

    # Updates of 6: the last of an epoch has one example
    for split, count in (("train", 25), ("dev", 21)):
        lines = [f"{sentence()}\t{sentence()}\t{rng.integers(6)}" for _ in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["first\tsecond\tscore", *lines]) + "\n")
        lines = [f"{sentence()}\t{'magic' if n % 2 else 'plain'}" for n in range(count)]
        (folder / f"classes-{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    pairs = [(sentence(), sentence()) for _ in range(61)]
    (folder / "pairs.tsv").write_text("".join(f"{first}\t{second}\n" for first, second in pairs))
    (folder / "texts.txt").write_text("".join(f"{first}\n" for first, _ in pairs))
    np.save(folder / "vectors.npy", rng.normal(size=(61, 24)).astype(np.float32))

    clips: dict[str, list[str]] = {"train": [], "dev": []}
    for number in range(20):
        values = rng.normal(0, 1, (3 + number % 3, 12)).astype(np.float32)
        np.save(folder / f"{number}.npy", values)
        clip = {"key": f"c{number}", "features": f"{number}.npy", "captions": [sentence(3, 6)]}
        clips["train" if number < 13 else "dev"].append(json.dumps(clip))
    for split, lines in clips.items():
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    prepare_clips(read_splits(folder), folder / "clips", None)


def pretraining(data: Path, **changes: object) -> dict[str, object]:
    """Settings of the pretraining, with dropout: it is drawn by micro-batch, of which an update has two in any case."""
    settings = dict(
        config=data / "config.json",
        length=32,
        batch_tokens=64,
        processes=2,
        steps=STEPS["pretrain"],
        lr=3e-3,
        optimizer="adamw",
        warmup_steps=2,
        held_out=0.2,
        eval_every=6,
        save_every=6,
        log_every=3,
        precision="fp32",
        device="cpu",
        seed=1,
        initial_weights="text",
    )
    return settings | changes


def training(name: str, data: Path, out: Path) -> Callable[[], object]:
    """A training by name; without dropout, whose draws depend on the number of processes, but for pretraining."""
    if name in ("pretrain", "teacher"):
        from albertkit.pretraining.run import pretrain
        from albertkit.pretraining.settings import PretrainSettings

        taught = (
            dict(teacher=data / "model", initial_weights="teacher") if name == "teacher" else {}
        )
        return lambda: pretrain(
            data / "store", out / name, PretrainSettings(**pretraining(data, **taught))
        )

    from albertkit.tables.columns import Columns

    model = data / "model"
    columns = Columns(text="first", pair="second", label="score")
    common = dict(precision="fp32", device="cpu", seed=1, steps=STEPS[name])
    options = dict(lr=3e-3, dropout=0.0, batch_size=6, eval_every=4, **common)
    if name == "finetune":
        from albertkit.tasks.finetune import finetune
        from albertkit.tasks.settings import FinetuneSettings

        return lambda: finetune(
            "classify",
            model,
            data / "classes-train.tsv",
            out / name,
            FinetuneSettings(**options, length=32, batch_tokens=40),
            columns=Columns(text="sentence", label="label"),
            dev=data / "classes-dev.tsv",
        )
    if name == "caption":
        from albertkit.captioning.settings import CaptionSettings
        from albertkit.captioning.train import train_captioner

        settings = CaptionSettings(**options, length=12, micro_batch=2)
        return lambda: train_captioner(model, data / "clips", out / name, settings)

    from albertkit.embeddings.distill import distill_embeddings
    from albertkit.embeddings.settings import DistillSettings, EmbedSettings
    from albertkit.embeddings.train import train_embeddings

    if name == "distill":
        return lambda: distill_embeddings(
            model,
            data / "texts.txt",
            out / name,
            DistillSettings(**options),
            teacher=data / "vectors.npy",
            force=True,
        )
    loss = name.removeprefix("embed-")
    kind, file, dev = (
        ("scores", "train.tsv", data / "dev.tsv")
        if loss == "cosent"
        else ("pairs", "pairs.tsv", None)
    )
    return lambda: train_embeddings(
        kind,
        model,
        data / file,
        out / name,
        EmbedSettings(**options, loss=loss),
        dev=dev,
        columns=columns if loss == "cosent" else Columns(),
    )


def main(data: Path, out: Path, names: Iterable[str]) -> None:
    """Run some, one after the other, without their pictures, and count what goes over the network."""
    from albertkit.output import plots
    from albertkit.training import monitor

    reduced: list[int] = []
    all_reduce = dist.all_reduce

    def counting(tensor: torch.Tensor, *arguments: object, **options: object) -> object:
        reduced.append(tensor.numel())
        return all_reduce(tensor, *arguments, **options)

    torch.set_num_threads(1)
    rounds = {}
    undrawn = [
        patch.object(module, "save_png", lambda look, draw, path: path)
        for module in (plots, monitor)
    ]
    with patch.object(dist, "all_reduce", counting), undrawn[0], undrawn[1]:
        for name in names:
            reduced.clear()
            training(name, data, out)()
            # The model has more parameters, nothing else has
            rounds[name] = sum(numel > 10_000 for numel in reduced)
    out.mkdir(exist_ok=True)
    (out / f"collectives-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(rounds))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
