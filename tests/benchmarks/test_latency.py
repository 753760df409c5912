"""The rows of inference: what is compared, with whom, in which order, and what missing and failing peers look like."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.benchmarks import (
    encoding,
    inference_agreement,
    inference_peers,
    latency,
)
from albertkit.benchmarks.encoding import encode_rows, first_states, padding
from albertkit.benchmarks.harness import Row
from albertkit.benchmarks.inference_agreement import REFERENCE, agreement, agrees, make_engines
from albertkit.benchmarks.inference_peers import PYTHON
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.latency import latency_rows
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, DataError

# Answers as the peers' process does, with numbers of a fixed kind and without any library. MODE says how it misbehaves.
FAKE = """
import json, sys
import numpy as np
mode = MODE
job = json.loads(sys.argv[1])
works = json.load(open(job["works"]))
print("what a library says", file=sys.stderr)
if mode == "dies at once":
    sys.exit("no such thing as a peer")
print(json.dumps({"making": "one"}), flush=True)
ready = [] if mode == "nothing works" else ["transformers fp32", "two"]
print(json.dumps({
    "ready": ready, "failed": {"three": "no openvino"}, "threads": {name: job["threads"] for name in ready},
    "notes": {name: {"trials": {work: {"chosen": "it", "trial_ms": {}} for work in works}} for name in ready},
    "versions": {"peers' x": "1"},
}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "run" in asked and mode == "dies":
        sys.exit("out of memory")
    if "run" in asked and mode == "raises":
        print(json.dumps({"error": "RuntimeError: no such shape"}), flush=True)
    elif "run" in asked:
        print(json.dumps({"seconds": [0.5 if asked["run"] == "two" else 0.25] * asked["calls"]}), flush=True)
    else:
        sequences = works[asked["work"]]["sequences"]
        shape = (len(sequences), 64) if job["first_only"] else (len(sequences), len(sequences[0]), 64)
        np.save(asked["file"], np.ones(shape if mode != "other shape" else (1, 1), np.float32))
        print(json.dumps({"saved": asked["file"]}), flush=True)
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    from albertkit.corpus import builtin_documents
    from albertkit.tokenizer import train_tokenizer

    documents = [document for _, document in zip(range(40), builtin_documents(), strict=False)]
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([line for document in documents for line in document], folder, vocab_size=500)
    return Inputs(documents, "built-in text", folder)


@pytest.fixture
def config() -> AlbertConfig:
    sizes = dict(embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)
    return AlbertConfig.from_size("base", vocab_size=500, **sizes)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_peers, "SETTLE", 0.0)
    monkeypatch.setattr(inference_agreement, "MATMUL", 64)


def fake(folder: Path, mode: str = "") -> str:
    """A program that stands for an interpreter, and runs the fake in place of the script."""
    script = folder / "fake.py"
    script.write_text(FAKE.replace("MODE", repr(mode), 1), encoding="utf-8")
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {script} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def check_row(row: Row) -> None:
    shown = json.loads(json.dumps(row.to_json(), allow_nan=False))
    assert shown["ours"] > 0
    assert set(shown["peers"]) == set(shown["ratio"])
    assert set(shown["best"]) == {"ours", *shown["peers"]}


# --- rows, with peers that are not there or misbehave -----------------------------------------------------------------


def test_latency_beside_a_peer(config: AlbertConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, fake(tmp_path))
    rows = list(latency_rows(["1x16", "2x8"], rounds=2, threads=1, config=config))
    assert len(rows) % 2 == 0
    for row in rows:
        check_row(row)
        assert row.peers == {REFERENCE: 4.0, "two": 2.0}
        assert row.ratio["two"] == pytest.approx(2 * row.ratio[REFERENCE])
        assert row.details["milliseconds"] == {"ours": pytest.approx(1e3 / row.ours), REFERENCE: 250, "two": 500}
        assert row.details["threads"] == {"ours": 1, REFERENCE: 1, "two": 1}
        assert row.details["calls_a_round"] == latency.MOST_CALLS
        assert row.missing.keys() == {"three"}
        assert row.missing["three"].startswith("no openvino; python -m venv")
        assert PYTHON in row.missing["three"]
        assert row.versions["peers' x"] == "1"
        assert row.equal is False  # their states are all ones, ours are not
        assert row.details["agreement"]["two"]["lowest_cosine"] == pytest.approx(1)
        assert row.details["products"]["linear_layers"] == 13
    assert [row.row.split(",")[1] for row in rows] == [" 1x16"] * (len(rows) // 2) + [" 2x8"] * (len(rows) // 2)
    assert rows[-1].row.endswith("ours in fp32")


def test_encode_beside_a_peer(inputs: Inputs, config: AlbertConfig, tmp_path: Path) -> None:
    rows = list(encode_rows(inputs, 128, rounds=1, threads=1, peer_python=fake(tmp_path), config=config))
    assert rows
    for row in rows:
        check_row(row)
        every = {f"{name}, {order}" for name in (REFERENCE, "two") for order in ("unsorted", "sorted")}
        assert row.peers.keys() == every
        assert row.peers["two, sorted"] == 256.0
        assert row.details["best_padded_peer"]["sorted"] == {f"{REFERENCE}, sorted": row.ratio[f"{REFERENCE}, sorted"]}
        assert row.equal is False
        assert 0 < row.details["padding"]["sorted"] < row.details["padding"]["unsorted"] < 1
        assert row.details["sentences"] == 128
        assert 2 < row.details["mean_length"] < row.details["longest"]


def test_without_peers_we_run_alone_and_say_how_to_get_them(
    inputs: Inputs, config: AlbertConfig, tmp_path: Path
) -> None:
    peer = fake(tmp_path, "nothing works")
    alone = [
        *latency_rows(["1x8"], rounds=1, threads=1, peer_python=peer, config=config),
        *encode_rows(inputs, 10, rounds=1, threads=1, peer_python=peer, config=config),
    ]
    for row in alone:
        check_row(row)
        assert row.peers == {}
        assert row.missing.keys() == {"three"}
        if row.row.endswith("fp32"):
            assert row.equal is None  # with itself there is nothing to compare
        else:
            assert row.equal is True
            assert "our own fp32" in row.compared


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("dies at once", "exit status 1: no such thing as a peer"),
        ("dies", "exit status 1: out of memory"),
        ("raises", "transformers fp32: RuntimeError: no such shape"),
        ("other shape", "states of shape"),
    ],
)
def test_a_peer_that_fails_is_named(config: AlbertConfig, tmp_path: Path, mode: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        list(latency_rows(["1x8"], rounds=1, threads=1, peer_python=fake(tmp_path, mode), config=config))
    assert caught.value.slug == "peer-failed"
    assert said in caught.value.message


def test_what_cannot_be_measured_is_refused(inputs: Inputs, config: AlbertConfig) -> None:
    for shapes in (["128"], ["1x"], ["0x8"], ["1x0"], ["1x513"], ["-1x8"], ["1x8x2"]):
        with pytest.raises(ConfigError) as caught:
            next(latency_rows(shapes, config=config))
        assert caught.value.slug == "bad-value"
    for arguments, slug in (
        ({"sentences": 0}, "bad-sentences"),
        ({"peer_python": "/no/such/python"}, "not-found"),
        ({"config": config.replace(vocab_size=400)}, "vocab-too-large"),
    ):
        with pytest.raises((ConfigError, DataError)) as refused:
            next(encode_rows(inputs, **{"config": config, **arguments}))
        assert refused.value.slug == slug


# --- results: their order and their agreement -------------------------------------------------------------------------


def test_our_states_are_in_the_order_given(config: AlbertConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BATCH", 3)
    _, engines = make_engines(config)
    random = np.random.default_rng(0)
    sequences = [random.integers(5, 500, length).tolist() for length in (9, 2, 30, 5, 5, 17, 3)]
    states = first_states(engines["fp32"], sequences)
    for sequence, state in zip(sequences, states, strict=True):
        assert state == pytest.approx(first_states(engines["fp32"], [sequence])[0], abs=1e-5)
    other = first_states(engines["fp32"], sequences[::-1])
    assert not agrees("fp32", agreement(other, states))
    assert not agrees("int8", agreement(other, states))
    assert agrees("fp32", agreement(other[::-1], states))


def test_padding_is_what_peers_compute_too_much() -> None:
    lengths = np.array([1, 3, 1, 3] * 16)  # two batches of 32
    assert padding(lengths, by_length=False) == pytest.approx(1 / 3)
    assert padding(lengths, by_length=True) == 0


@pytest.mark.parametrize(
    ("precision", "change", "good"),
    [("fp32", 5e-5, True), ("fp32", 3e-4, False), ("bf16", 1e-2, True), ("bf16", 0.1, False), ("int8", 0.2, False)],
)
def test_the_bounds_of_agreement(precision: str, change: float, good: bool) -> None:
    reference = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    changed = reference.copy()
    changed[7] += change * np.where(np.arange(64) % 2, 1, -1)  # one state of forty
    assert agrees(precision, agreement(changed, reference)) is good


def test_what_is_no_number_does_not_agree() -> None:
    reference = np.ones((2, 4), np.float32)
    broken = np.array([[1, 1, 1, np.nan], [1, 1, 1, 1]], np.float32)
    assert not any(agrees(precision, agreement(broken, reference)) for precision in ("fp32", "bf16", "int8"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latency", "encode"])
def test_real_peers_agree(inputs: Inputs, config: AlbertConfig, kind: str) -> None:
    pytest.importorskip("transformers")
    config = config.replace(max_position_embeddings=128)
    python = os.environ.get(PYTHON, sys.executable)
    if kind == "latency":
        rows = list(latency_rows(["1x16", "2x40"], rounds=1, threads=1, peer_python=python, config=config))
    else:
        rows = list(encode_rows(inputs, 70, rounds=1, threads=1, peer_python=python, config=config))
    for row in rows:
        check_row(row)
        assert row.equal, row.compared
        settings = {name.partition(",")[0] for name in row.peers}
        assert REFERENCE in settings
        assert len(settings) + len(row.missing) == 7
        assert set(row.details["threads"].values()) == {1}
        for name, found in row.details["agreement"].items():
            if "fp32" in name:
                assert agrees("fp32", found), name
            else:
                assert found["lowest_cosine"] > 0.98, name  # narrow models suffer more from int8 than base does
        products = row.details["products"]
        for counts in products.get("ONNX Runtime int8", {}).values():
            assert counts["MatMulInteger"] == products["linear_layers"]


def test_threads_are_as_before(config: AlbertConfig, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    list(latency_rows(["1x8"], rounds=1, threads=1, peer_python=fake(tmp_path), config=config))
    assert torch.get_num_threads() == before
