"""Fine-tuning beside transformers: what the peer is given, a tiny run of the rows, and that both learn the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.benchmarks.finetuning import examples_of, finetune_rows, pad
from albertkit.benchmarks.inputs import Inputs, open_inputs
from albertkit.benchmarks.same_metric import TRAINER, same_metric_rows
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import AlbertForPreTraining, PackedBatch
from albertkit.tasks.features import Features
from albertkit.tokenizer import AlbertTokenizer

TINY = dict(embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    from albertkit.corpus import builtin_documents
    from albertkit.tokenizer import train_tokenizer

    documents = [document for _, document in zip(range(40), builtin_documents(), strict=False)]
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([line for document in documents for line in document], folder, vocab_size=500)
    return Inputs(documents, "built-in text", folder)


def test_the_peer_gets_our_ids_and_segments() -> None:
    labels = {"labels": np.array([1, 0])}
    features = Features.of([([2, 7, 3, 8, 3], 3), ([2, 9, 3], 3)], [0, 1], labels)
    padded = pad(examples_of(features), 6)
    assert padded["input_ids"].tolist() == [[2, 7, 3, 8, 3, 0], [2, 9, 3, 0, 0, 0]]
    assert padded["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]]
    assert padded["labels"].tolist() == [1, 0]
    back = PackedBatch.from_padded(padded["input_ids"], padded["attention_mask"], padded["token_type_ids"])
    packed = features.batch(np.arange(2)).packed
    assert torch.equal(back.input_ids, packed.input_ids)
    assert torch.equal(back.token_type_ids, packed.token_type_ids)


def test_what_cannot_be_measured_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        next(finetune_rows(inputs, steps=0))
    assert caught.value.slug == "bad-steps"
    with pytest.raises(ConfigError) as caught:
        next(finetune_rows(inputs, config=AlbertConfig.from_size("base", vocab_size=400, **TINY)))
    assert caught.value.slug == "vocab-too-large"
    for arguments in ({"data": None}, {"data": tmp_path, "steps": 0}):
        with pytest.raises(ConfigError) as caught:
            next(same_metric_rows(tmp_path, **arguments))
        assert caught.value.slug == "bad-settings"


@pytest.mark.slow
def test_rows_of_examples_a_second(inputs: Inputs) -> None:
    pytest.importorskip("transformers")
    config = AlbertConfig.from_size("base", vocab_size=500, **TINY)
    with open_inputs([], inputs.tokenizer_folder, 0.1) as opened:
        rows = list(finetune_rows(opened, rounds=1, threads=1, steps=1, config=config))
    assert {row.row.split(",")[1].split(" of")[0].strip() for row in rows} == {"pairs", "sentences"}
    for row in rows:
        assert row.equal is True, row.compared
        assert len(row.peers) >= 2
        assert json.dumps(row.to_json())
        assert row.peak is not None


def table(path: Path, rows: list[tuple[str, str]]) -> None:
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")


@pytest.mark.slow
def test_both_learn_the_same(inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    lines = [line.replace('"', "") for line in inputs.lines if 20 < len(line) < 200]
    rows = [(line, str(int("the" in line))) for line in lines]
    table(tmp_path / "train.tsv", rows[:96])
    table(tmp_path / "dev.tsv", rows[96:150])
    torch.manual_seed(0)
    model = AlbertForPreTraining(AlbertConfig.from_size("base", vocab_size=500, initializer_range=0.1, **TINY))
    model.save_pretrained(tmp_path / "model", AlbertTokenizer.from_pretrained(inputs.tokenizer_folder))

    def logits_differ() -> float:
        rows = list(same_metric_rows(tmp_path / "model", tmp_path, names=["sst2"], steps=6, seeds=1, threads=1))
        assert rows[-1].row.endswith("fp32")
        assert rows[-1].ratio[TRAINER] == 1 or rows[-1].details["logits_differ"][0] > 1e-4
        return rows[-1].details["logits_differ"][0]

    assert logits_differ() < 1e-5
    monkeypatch.setattr("albertkit.benchmarks.same_metric.EPS", 1e-4)  # another epsilon is noticed
    assert logits_differ() > 1e-4
