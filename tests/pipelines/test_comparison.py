"""Comparison of an engine with fp32: what it counts, against numpy, and that a damaged engine is refused."""

import copy
import dataclasses
from itertools import chain, islice

import fsspec
import numpy as np
import pytest
import torch

import albertkit
from albertkit.config import AlbertConfig
from albertkit.corpus.builtin import builtin_documents
from albertkit.engines import load_engine, model_on_engine
from albertkit.errors import AlbertKitError
from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification
from albertkit.pipelines import compare_precision as comparison
from albertkit.pipelines.compare_precision import (
    PrecisionComparison,
    compare_precision,
    sample_batches_and_source,
)
from albertkit.tasks.models import save_task_model
from albertkit.tokenizer import AlbertTokenizer

SIZES = dict(
    embedding_size=32,
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=256,
    max_position_embeddings=64,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    text = list(chain.from_iterable(islice(builtin_documents(), 40)))
    return albertkit.train_tokenizer(text, tmp_path_factory.mktemp("tokenizer"), vocab_size=300)


@pytest.fixture
def pretrained(tmp_path, tokenizer):
    torch.manual_seed(0)
    AlbertForPreTraining(AlbertConfig(vocab_size=tokenizer.vocab_size, **SIZES)).save_pretrained(
        tmp_path / "model", tokenizer
    )
    return tmp_path / "model"


@pytest.fixture
def classifier(tmp_path, tokenizer):
    """A random classifier and examples labelled as it would: all right in fp32."""
    columns = albertkit.Columns(text="text", label="label")
    task = albertkit.find_task("classify", columns).with_changes(labels=("a", "b", "c"), length=32)
    torch.manual_seed(1)
    config = AlbertConfig(vocab_size=tokenizer.vocab_size, **SIZES, foreign={"num_labels": 3})
    model = AlbertForSequenceClassification(config).eval()
    save_task_model(tmp_path / "model", model, tokenizer, task)
    pipeline = albertkit.load_pipeline(tmp_path / "model", precision="fp32")
    texts = list(islice(chain.from_iterable(builtin_documents()), 60))
    rows = [
        f"{text}\t{pipeline(text)['label']}"
        for text in texts
        if "\t" not in text and '"' not in text
    ]
    (tmp_path / "dev.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    return tmp_path / "model", tmp_path / "dev.tsv"


def damage(monkeypatch, amount):
    """From now on engines are those of a model with noise in its weights."""

    def damaged(model, precision="auto"):
        model = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.encoder_model.parameters():
                parameter += amount * parameter.std() * torch.randn_like(parameter)
        return load_engine(model, precision)

    monkeypatch.setattr(comparison, "load_engine", damaged)


def test_cosines_and_choices_are_those_of_numpy(pretrained):
    report = compare_precision(pretrained)
    model = AlbertForPreTraining.from_pretrained(pretrained)
    batches, _ = sample_batches_and_source(
        AlbertTokenizer.from_pretrained(pretrained), model.config
    )
    int8_model = model_on_engine(model, load_engine(model, "int8"))
    cosines = []
    same_choice = []
    with torch.no_grad():
        for batch in batches:
            for exact, near in zip(
                model.packed_logits(batch), int8_model.packed_logits(batch), strict=True
            ):
                a, b = exact.double().numpy(), near.double().numpy()
                cosines += (
                    (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
                ).tolist()
                same_choice += (a.argmax(1) == b.argmax(1)).tolist()
    assert report.cosine_mean == pytest.approx(np.mean(cosines), abs=1e-5)
    assert report.cosine_min == pytest.approx(np.min(cosines), abs=1e-5)
    assert report.top1 == pytest.approx(np.mean(same_choice))
    assert report.texts == 64
    assert not report.problems


def test_a_damaged_engine_is_refused(pretrained, monkeypatch):
    damage(monkeypatch, 0.7)
    report = compare_precision(pretrained)
    assert report.problems
    with pytest.raises(AlbertKitError, match=r"\[doubtful\]"):
        report.require_closeness(False, "use bf16")
    report.require_closeness(True, "")


def test_labels_decide(classifier, monkeypatch):
    report = compare_precision(*classifier)
    assert report.reference == 100
    assert report.loss == pytest.approx(100 * (1 - report.top1))
    damage(monkeypatch, 1.5)
    broken = compare_precision(*classifier)
    assert broken.reference == 100
    assert broken.loss > 0.5
    assert "points" in broken.problems[0]


def test_labels_at_an_address_decide_as_here(classifier):
    model, file = classifier
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/dev.tsv", file.read_bytes())
    try:
        remote = compare_precision(model, "memory://bucket/dev.tsv")
    finally:
        memory.rm("/bucket", recursive=True)
    assert remote == dataclasses.replace(
        compare_precision(model, file), source="memory://bucket/dev.tsv"
    )


@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        (0.5, False),
        (0.51, True),
        (-3.0, False),
    ],
)
def test_half_a_point(loss, refused):
    report = PrecisionComparison(
        "int8", "dev.tsv", 100, 0.5, 0.1, 0.5, "accuracy", 90.0, 90.0 - loss
    )
    assert bool(report.problems) is refused  # states do not count where labels do


def test_the_command(pretrained, run_command, monkeypatch):
    process = run_command("compare-precision", pretrained, "--json")
    assert process.status == 0
    assert process.json["problems"] == []
    damage(monkeypatch, 0.7)
    process = run_command("compare-precision", pretrained)
    assert process.status == 1
    assert "same as fp32  no" in process.out
