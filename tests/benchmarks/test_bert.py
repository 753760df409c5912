"""`bench bert`: what is compared is what the table says, and a comparison that is repeated takes over what is there."""

import json

import pytest

from albertkit.benchmarks.bert import Trained, as_table, compare_with_bert, configurations
from albertkit.benchmarks.inputs import Inputs
from albertkit.corpus import builtin_documents
from albertkit.errors import ConfigError
from albertkit.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    documents = [document for _, document in zip(range(40), builtin_documents(), strict=False)]
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([line for document in documents for line in document], folder, vocab_size=500)
    return Inputs(documents, "built-in text", folder)


def test_the_three_models_are_of_equal_width_and_of_equal_size():
    albert, wide, small = configurations(8000, 192, 4, 128).values()
    assert (albert.num_hidden_groups, wide.num_hidden_groups, small.num_hidden_groups) == (1, 4, 4)
    assert wide.hidden_size == albert.hidden_size == 192
    sizes = [config.num_parameters(heads=True) for config in (albert, wide, small)]
    assert sizes[2] <= sizes[0] < sizes[1]
    larger = small.replace(
        hidden_size=small.hidden_size + 32, embedding_size=small.embedding_size + 32,
        intermediate_size=4 * (small.hidden_size + 32), num_attention_heads=small.num_attention_heads + 1,
    )  # fmt: skip
    assert larger.num_parameters(heads=True) > sizes[0]  # the widest that fits
    with pytest.raises(ConfigError, match="bad-value"):
        configurations(100_000, 32, 24, 128)


def test_all_three_are_trained_scored_and_drawn(inputs, tmp_path):
    options = dict(hidden_size=64, layers=2, steps=4, rounds=1, threads=1)
    trained = compare_with_bert(inputs, tmp_path / "out", **options)
    assert [one.name for one in trained] == ["ALBERT", "BERT, as wide", "BERT, as many parameters"]
    assert all(0 < one.train_loss < 8 and 0 < one.dev_loss < 8 for one in trained)
    assert trained[0].memory_mb < trained[1].memory_mb
    assert (tmp_path / "out" / "bert.png").is_file()
    written = json.loads((tmp_path / "out" / "bert.json").read_text())
    assert [one["dev_loss"] for one in written["models"]] == [one.dev_loss for one in trained]
    with pytest.raises(ConfigError, match="--task and --data go together"):
        compare_with_bert(inputs, tmp_path / "out", **options, task="mrpc")


def test_the_table_compares_after_the_same_time():
    def one(name, seconds, losses):
        curve = [(n, n * seconds, loss) for n, loss in enumerate(losses, 1)]
        return Trained(name, 64, 1000, 1.0, seconds, 5.0, losses[-1], 0.5, (0.4, 0.6), {}, curve)

    slow, fast = one("slow", 2.0, [7.0, 6.5, 6.0]), one("fast", 1.0, [7.1, 6.8, 6.6])
    rows = {row[0]: row[1:] for row in as_table([slow, fast])}
    assert rows["masked-LM loss, held-out text"] == ["6.000", "6.600"]
    assert rows["held-out loss after 3 s"] == ["7.000", "6.600"]  # the fast one's end
    assert rows["gap"] == ["+1.000", "+1.600"]
