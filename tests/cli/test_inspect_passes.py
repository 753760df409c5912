"""`albertkit inspect --layers` from a folder to a page, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

from albertkit.cli import main
from albertkit.config import AlbertConfig
from albertkit.inference.layers import trace_layers
from albertkit.model import AlbertForMaskedLM
from albertkit.report.layer_page import layers_in_words
from albertkit.tokenizer import AlbertTokenizer

CONFIG = AlbertConfig(
    vocab_size=12, embedding_size=16, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=24,
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a best model."""
    folder = tmp_path / "run" / "best"
    torch.manual_seed(0)
    AlbertForMaskedLM(CONFIG).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "one", "layer", "run", "twelve", "times"]
    (folder / "vocab.txt").write_text("\n".join([*words, ""]))
    return tmp_path / "run"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, arguments)])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_texts_are_read_and_drawn(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "layers.html"
    texts = ["one layer, run twelve times", "one <b>"]
    code, out, _ = call(capsys, run, "--layers", page, "--text", texts[0], "--text", texts[1], "--json")
    assert code == 0
    found = json.loads(out)
    model, tokenizer = AlbertForMaskedLM.from_pretrained(run / "best"), AlbertTokenizer.from_pretrained(run / "best")
    assert found["layers"] == trace_layers(model, tokenizer, texts).to_dict()
    assert (found["model"], found["page"]) == (str(run / "best"), str(page))
    html = page.read_text(encoding="utf-8")
    assert "one layer, applied 3 times" in html
    assert "one &lt;b&gt;" in html

    code, out, _ = call(capsys, run / "best", "--layers", page, "--length", 4, "--text", texts[0])
    assert code == 0
    assert "4 tokens of 1 text (1 of them cut)" in out
    assert str(page) in out


def test_without_texts_the_built_in_sample_is_read(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, run, "--layers", tmp_path / "layers.html")
    assert code == 0
    assert "of 16 texts" in out
    assert "does not know" in err  # of eleven pieces
    assert "built-in English text" in (tmp_path / "layers.html").read_text(encoding="utf-8")


def test_what_does_not_go_together_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "layers.html"
    refused = {
        ("--layers", page): "bad-value",
        (run, "--text", "one"): "bad-value",
        (run, "--layers", page, "--text", " "): "bad-input",
        (run, "--layers", page, "--length", "2"): "bad-value",
        (tmp_path / "nowhere", "--layers", page): "not-found",
    }
    for arguments, slug in refused.items():
        code, out, err = call(capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.removeprefix(f"model  {run / 'best'}\n").startswith(f"error[{slug}]"), err
    (run / "best" / "vocab.txt").unlink()
    assert "error[no-tokenizer]" in call(capsys, run, "--layers", page)[2]
    assert not page.exists()


def test_what_is_run_how_often_is_said() -> None:
    assert layers_in_words(CONFIG) == "one layer, applied 3 times"
    assert layers_in_words(CONFIG.replace(inner_group_num=2)) == "2 layers, applied 6 times"
    shared = CONFIG.replace(num_hidden_groups=3, parameter_sharing="ffn")
    assert layers_in_words(shared) == "3 layers, which share their feed-forward, applied 3 times"
