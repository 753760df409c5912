"""A tiny run of each family: the rows have the documented shape and the outputs that must agree do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from albertkit.benchmarks.harness import Row
from albertkit.benchmarks.inputs import Inputs, open_inputs
from albertkit.errors import ConfigError, DataError

KEYS = {"row", "unit", "ours", "peers", "ratio", "peak", "equal", "compared", "missing", "versions", "best", "spread"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inputs]:
    """Forty short documents and a tokenizer trained on them."""
    from albertkit.corpus import builtin_documents

    text = tmp_path_factory.mktemp("text") / "text.txt"
    documents = [d for _, d in zip(range(40), builtin_documents(), strict=False)]
    text.write_text("\n\n".join("\n".join(d) for d in documents) + "\n", encoding="utf-8")
    with open_inputs([str(text)], None, 1.0) as opened:
        yield opened


def check_shape(row: Row) -> dict:
    shown = json.loads(json.dumps(row.to_json()))
    assert set(shown) >= KEYS
    assert shown["ours"] > 0
    assert set(shown["peers"]) == set(shown["ratio"])
    assert set(shown["best"]) == {"ours", *shown["peers"]}
    return shown


def test_inputs_read_whole_documents_up_to_the_limit(inputs: Inputs, tmp_path: Path) -> None:
    written = tmp_path / "again.txt"
    inputs.write_text(written)
    with open_inputs([str(written)], inputs.tokenizer_folder, 1.0) as again:
        assert again.documents == inputs.documents
    with open_inputs([str(written)], inputs.tokenizer_folder, 1e-6) as first:
        assert first.documents == inputs.documents[:1]


def test_inputs_say_what_is_wrong(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError) as caught, open_inputs([str(empty)], None, 1.0):
        pass
    assert caught.value.slug == "empty-input"
    with pytest.raises(ConfigError) as bad, open_inputs([str(empty)], None, 0.0):
        pass
    assert bad.value.slug == "bad-megabytes"


def test_tokenize_row(inputs: Inputs) -> None:
    from albertkit.benchmarks.tokenizing import tokenize_rows

    (row,) = tokenize_rows(inputs, rounds=1, threads=1)
    shown = check_shape(row)
    assert shown["equal"] is True
    assert shown["details"]["identical"]["albertkit"] == 1.0
    assert "raw sentencepiece, numpy" in shown["peers"]
    untouched, prepared = (
        shown["details"]["identical"][name]
        for name in ("raw sentencepiece, lists", "raw sentencepiece, lists, prepared text")
    )
    assert untouched < 0.5 < 0.95 < prepared <= 1.0


def test_masking_row(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    from albertkit.benchmarks import masking

    monkeypatch.setattr(masking, "TOKENS", 20_000)
    shown = check_shape(masking.masking_row(inputs, rounds=1))
    assert shown["unit"] == "tokens/s"
    assert 0.13 < shown["details"]["masked_share"]["albertkit"] < 0.17


def test_data_rows_name_the_missing_peer(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    from albertkit.benchmarks import masking
    from albertkit.benchmarks.data import INSTALL, MODEL_GARDEN, data_rows

    monkeypatch.setattr(masking, "TOKENS", 20_000)
    rows = data_rows(inputs, rounds=1, threads=1, peer_python=sys.executable)
    shown = check_shape(next(rows))
    if MODEL_GARDEN not in shown["peers"]:
        assert shown["missing"] == {MODEL_GARDEN: INSTALL}
    assert shown["equal"] is True


def test_a_checkout_without_the_script_is_an_error(inputs: Inputs, tmp_path: Path) -> None:
    from albertkit.benchmarks.data import data_rows

    with pytest.raises(DataError) as caught:
        next(data_rows(inputs, rounds=1, google_albert=tmp_path))
    assert caught.value.slug == "not-found"


def test_a_peer_that_fails_is_an_error_with_its_last_words(inputs: Inputs, tmp_path: Path) -> None:
    from albertkit.benchmarks.data import data_rows

    (tmp_path / "create_pretraining_data.py").write_text("raise SystemExit('no TensorFlow here')\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        next(data_rows(inputs, rounds=1, google_albert=tmp_path))
    assert caught.value.slug == "peer-failed"
    assert "no TensorFlow here" in caught.value.message


@pytest.mark.slow
def test_pretrain_rows(inputs: Inputs) -> None:
    from albertkit.benchmarks.pretraining import Work, pretrain_rows
    from albertkit.config import AlbertConfig

    config = AlbertConfig.from_size(
        "base", hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=8000
    )
    rows = list(pretrain_rows(inputs, rounds=1, threads=1, sizes=[Work("tiny", config, 64, 8, 4, compile=False)]))
    assert rows[-1].row.endswith("fp32")
    for row in rows:
        shown = check_shape(row)
        assert shown["equal"] is True, shown["compared"]
        assert len(shown["peers"]) == 2
        assert shown["details"]["mfu"] > 0
        assert shown["peak"] > 0


def test_examples_for_transformers_are_ours() -> None:
    torch = pytest.importorskip("torch")
    from albertkit.benchmarks.transformers_peer import examples_of, pad
    from albertkit.model import PackedBatch

    batch = PackedBatch.from_sequences(
        [[2, 7, 4, 3], [2, 4, 3]], [[0, 0, 1, 1], [0, 0, 0]], [[2], [1]], [[9], [8]], [1, 0]
    )
    padded = pad(examples_of(batch), 5)
    assert padded["input_ids"].tolist() == [[2, 7, 4, 3, 0], [2, 4, 3, 0, 0]]
    assert padded["labels"].tolist() == [[-100, -100, 9, -100, -100], [-100, 8, -100, -100, -100]]
    assert padded["attention_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert padded["sentence_order_label"].tolist() == [1, 0]
    back = PackedBatch.from_padded(**{k: v for k, v in padded.items() if k != "sentence_order_label"})
    assert torch.equal(back.input_ids, batch.input_ids)
    assert torch.equal(back.masked_positions, batch.masked_positions)


@pytest.mark.slow
def test_command_prints_one_object_a_row(inputs: Inputs, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    inputs.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "albertkit.cli", "bench", "tokenize", "--text", str(text), "--rounds", "1", "--json"],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    (line,) = done.stdout.splitlines()
    assert set(json.loads(line)) >= KEYS
