"""`bench serve` on a small model: rates, latencies, and the same vectors."""

import pytest

from albertkit.benchmarks import serving
from albertkit.benchmarks.inputs import Inputs
from albertkit.benchmarks.serving_overload import serve_overload_rows
from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError, MachineError
from albertkit.tokenizer import train_tokenizer

WORDS = "the quick brown fox jumps over a lazy dog while seven old wizards brew strong potions near calm rivers".split()
SMALL = AlbertConfig(
    vocab_size=64, embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=128, initializer_range=0.2,
)  # fmt: skip


@pytest.fixture
def inputs(tmp_path):
    lines = [" ".join(WORDS[n % 7 : n % 7 + 2 + n % 9]) for n in range(80)]
    train_tokenizer(lines * 4, tmp_path, 48)
    return Inputs([lines], "words", tmp_path)


def test_a_row(inputs):
    rows = list(serving.serve_rows(inputs, None, 60, (1, 8), rounds=2, threads=1, precision="fp32", config=SMALL))
    assert [row.row for row in rows] == ["serve sentences, 1 client, fp32", "serve sentences, 8 clients, fp32"]
    for row in rows:
        assert row.equal, row.compared
        assert row.unit == "sentences/s"
        assert row.ratio.keys() == {serving.OFFLINE}
        assert row.details["sentences"] == 60
        assert 0 < row.details["p50_ms"] <= row.details["p99_ms"]
        assert row.details["requests_a_batch"] >= 1


@pytest.mark.slow
def test_too_much_load(inputs):
    """The goodput of each load, of what was asked; every request is answered, or refused."""
    rows = list(
        serve_overload_rows(inputs, seconds=1.5, times=(1, 4), timeout=4, texts_a_request=8, threads=1, config=SMALL)
    )
    assert [row.row.split(",")[1] for row in rows] == [" 1x of capacity", " 4x of capacity"]
    for row in rows:
        statuses = {int(status): count for status, count in row.details["statuses"].items()}
        assert statuses[200] > 0
        assert statuses.keys() <= {200, 429}
        assert sum(statuses.values()) == row.details["requests"]
        assert row.ours > 0


def test_a_service_that_does_not_start_is_said(inputs, tmp_path):
    with (
        pytest.raises(MachineError, match="not-found"),
        serving.open_service(tmp_path / "gone", "fp32"),
    ):
        raise AssertionError("it started")
    with pytest.raises(ConfigError, match="at least 1"):
        next(serving.serve_rows(inputs, clients=(0,)))
