"""The rows for a GPU, run on a CPU with a small model: the same code, where a typing error would show."""

import json

import pytest
import torch

from albertkit.benchmarks.gpu_inference import gpu_encode_rows, gpu_latency_rows
from albertkit.benchmarks.gpu_pretraining import Measured, gpu_pretrain_rows
from albertkit.benchmarks.inputs import open_inputs
from albertkit.benchmarks.pretraining import Work
from albertkit.config import AlbertConfig

pytest.importorskip("transformers")
CPU = torch.device("cpu")
CONFIG = AlbertConfig.from_size(
    "base", hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=9000
)


@pytest.fixture(scope="module")
def inputs():
    with open_inputs([], None, 0.2) as found:
        yield found


def test_pretraining(inputs):
    works = [
        Measured(Work(f"tiny, natural {natural}", CONFIG, 32, sequences=6, best_batch=3), natural)
        for natural in (False, True)
    ]
    full, natural = gpu_pretrain_rows(inputs, CPU, rounds=1, steps=1, compiled=False, sizes=works)
    for row in (full, natural):
        assert row.equal
        assert row.details["sequences"] == 6
        assert row.details["share_of_matmul"] == pytest.approx(row.ours / row.peak)
        assert row.details["tflops"] == pytest.approx(row.ours * row.details["gflop_per_token"] / 1e3)
        assert row.details["mfu"] is None  # a CPU has no data sheet
        (peer,) = row.peers
        assert peer.endswith("eager, padded")
        json.dumps(row.to_json())
    assert full.details["padded_share"] == 0


def test_encoding_and_latency(inputs):
    rows = [
        *gpu_encode_rows(inputs, CPU, sentences=70, rounds=1, compiled=False, config=CONFIG),
        *gpu_latency_rows(CPU, ["2x9"], rounds=1, compiled=False, config=CONFIG),
    ]
    assert [row.unit for row in rows] == ["sentences/s", "batches/s"]
    for row in rows:
        assert row.equal
        assert row.peak > row.ours > 0
        assert len(row.details["agreement"]) == 1 + len(row.peers)
        assert row.details["milliseconds"]["ours"] == pytest.approx(1e3 / row.ours)
        json.dumps(row.to_json())
    assert {name.rpartition(", ")[2] for name in rows[0].peers} == {"unsorted", "sorted"}
