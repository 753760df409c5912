"""`albertkit inspect --passes` from a folder to a page, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

from albertkit.cli import main
from albertkit.config import AlbertConfig
from albertkit.inference.pass_page import layers
from albertkit.inference.passes import trace_passes
from albertkit.model import AlbertForMaskedLM
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
    page = tmp_path / "passes.html"
    texts = ["one layer, run twelve times", "one <b>"]
    code, out, _ = call(capsys, run, "--passes", page, "--text", texts[0], "--text", texts[1], "--json")
    assert code == 0
    found = json.loads(out)
    model, tokenizer = AlbertForMaskedLM.from_pretrained(run / "best"), AlbertTokenizer.from_pretrained(run / "best")
    assert found["passes"] == trace_passes(model, tokenizer, texts).to_dict()
    assert (found["model"], found["page"]) == (str(run / "best"), str(page))
    html = page.read_text(encoding="utf-8")
    assert "one layer, 3 passes" in html
    assert "one &lt;b&gt;" in html

    code, out, _ = call(capsys, run / "best", "--passes", page, "--length", 4, "--text", texts[0])
    assert code == 0
    assert "4 tokens of 1 text (1 of them cut)" in out
    assert str(page) in out


def test_without_texts_the_built_in_sample_is_read(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, run, "--passes", tmp_path / "passes.html")
    assert code == 0
    assert "of 16 texts" in out
    assert "does not know" in out  # of eleven pieces
    assert "built-in English text" in (tmp_path / "passes.html").read_text(encoding="utf-8")


def test_what_does_not_go_together_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "passes.html"
    refused = {
        ("--passes", page): "bad-argument",
        (run, "--text", "one"): "bad-argument",
        (run, "--passes", page, "--text", " "): "bad-input",
        (run, "--passes", page, "--length", "2"): "bad-argument",
        (tmp_path / "nowhere", "--passes", page): "not-found",
    }
    for arguments, slug in refused.items():
        code, out, err = call(capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.removeprefix(f"model  {run / 'best'}\n").startswith(f"error[{slug}]"), err
    (run / "best" / "vocab.txt").unlink()
    assert "error[no-tokenizer]" in call(capsys, run, "--passes", page)[2]
    assert not page.exists()


def test_what_is_run_how_often_is_said() -> None:
    assert layers(CONFIG) == "one layer, 3 passes"
    assert layers(CONFIG.replace(inner_group_num=2)) == "2 layers, 6 passes"
    shared = CONFIG.replace(num_hidden_groups=3, parameter_sharing="ffn")
    assert layers(shared) == "3 layers, which share their feed-forward, 3 passes"
