"""The page of layers: its numbers, hostile texts, no resource from outside, and shapes at the ends."""

import math
import re
from dataclasses import replace

import pytest

from albertkit.errors import MissingExtraError
from albertkit.inference.layers import LayerMovement, trace_layers
from albertkit.model import AlbertForMaskedLM
from albertkit.report import layer_page as page
from albertkit.report.layer_page import (
    layer_page,
    layer_table,
    layer_warnings,
    layers_in_words,
    read_text,
    similarity_svgs,
)
from albertkit.tokenizer import AlbertTokenizer

EVIL = "<script>alert('x')</script>"


def movement(count=3, heads=2):
    """A synthetic movement: states on a circle, 30 degrees a layer."""
    angle = math.radians(30)
    return LayerMovement(
        texts=2, tokens=1040, unknown=0.0, cut=1,
        similarity=[[math.cos(angle * (i - j)) for j in range(count + 1)] for i in range(count + 1)],
        norm=[2.0] * (count + 1), step=[0.5176] * count, turn=[math.cos(angle)] * (count - 1),
        anisotropy=[0.1 * i for i in range(count + 1)],
        entropy=[[1.5 + 0.3 * head for head in range(heads)] for _ in range(count)], uniform=3.0,
    )  # fmt: skip


def test_rows_hold_what_belongs_to_each_state():
    first, second, third, last = layer_table(movement()).rows
    assert first == [0, None, "0.000", None, None, "2.00", "0.000", None]
    assert second[1:5] == ["0.866", "0.500", "0.518", None]
    assert third[1:7] == ["0.866", "0.866", "0.518", "0.866", "2.00", "0.200"]
    assert last[7] == "55.0% (50.0% to 60.0%)"


def test_page_has_its_numbers_and_is_harmless(harmless):
    html = layer_page(f"a {EVIL}", movement(), [f"one {EVIL}", read_text(movement()), EVIL], [EVIL, "long " * 99])
    parsed = harmless(html)
    assert html.count("<svg") == 6
    assert parsed.words.count(EVIL) == 5  # title twice, two facts, text
    for expected in (
        "1,040 tokens of 2 texts (1 of them cut)", "0.00 cosine", "52% of its length", "after: 0.866", "0.30 cosine", "long …",
    ):  # fmt: skip
        assert expected in parsed.words, expected
    assert "know" not in parsed.words


@pytest.mark.parametrize(("count", "heads"), [(1, 1), (12, 12), (24, 64)])
def test_every_shape_is_drawn(count, heads, harmless):
    layers = movement(count, heads)
    html = layer_page("a", layers, ["one"])
    harmless(html)
    svgs = re.findall("<svg.*?</svg>", html, re.DOTALL)
    seen = sum(value > 0 for row in layers.similarity for value in row)  # nothing is drawn where nothing is alike
    assert [drawn.count("var(--heat") for drawn in svgs] == [seen, seen, 0, 0, count * heads, count * heads]
    assert [".87</text>" in drawn for drawn in svgs[:2]] == [count < 16] * 2
    assert all("turn" in drawn for drawn in svgs[2:4])


def test_stronger_is_more_alike():
    drawn, _ = similarity_svgs([[1.0, 0.25], [-0.5, 1.0]])
    strengths = re.findall(r"fill: var\(--heat, #7fbfe6\)(?:; fill-opacity: ([\d.]+))?", drawn)
    assert strengths == ["", "0.25", ""]  # and none where it is negative
    assert ">.25<" in drawn
    assert ">-.50<" in drawn.replace("\u2212", "-")


def test_unknown_text_is_reported():
    layers = replace(movement(), unknown=0.4)
    assert "does not know 40% of the tokens" in layer_page("a", layers, ["one"])
    assert layer_warnings(layers)[0].startswith("the tokenizer does not know 40%")


def test_without_matplotlib_the_page_says_how_to_get_the_pictures(monkeypatch, harmless):
    def missing(*_args, **_kwargs):
        raise MissingExtraError.of("matplotlib", "report", "drawing")

    monkeypatch.setattr(page, "similarity_svgs", missing)
    parsed = harmless(layer_page("a", movement(), ["one"]))
    assert "svg" not in parsed.tags
    assert "albertkit[report]" in parsed.words
    assert "55.0%" in parsed.words


# --- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, tiny_model):
    """A run with a best model that knows few words."""
    folder = tmp_path / "run" / "best"
    tiny_model(AlbertForMaskedLM, vocab_size=12).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "one", "layer", "run", "twelve", "times"]
    (folder / "vocab.txt").write_text("\n".join([*words, ""]))
    return tmp_path / "run"


def test_texts_are_read_and_drawn(run, tmp_path, run_command):
    page, texts = tmp_path / "layers.html", ["one layer, run twelve times", "one <b>"]
    found = run_command("inspect", run, "--layers", page, "--text", texts[0], "--text", texts[1], "--json").json
    model, tokenizer = AlbertForMaskedLM.from_pretrained(run / "best"), AlbertTokenizer.from_pretrained(run / "best")
    assert found["layers"] == trace_layers(model, tokenizer, texts).to_dict()
    assert (found["model"], found["page"]) == (str(run / "best"), str(page))
    html = page.read_text(encoding="utf-8")
    assert "one layer, applied 3 times" in html
    assert "one &lt;b&gt;" in html
    printed = run_command("inspect", run / "best", "--layers", page, "--length", 4, "--text", texts[0]).out
    assert "4 tokens of 1 text (1 of them cut)" in printed
    assert str(page) in printed


def test_without_texts_the_built_in_sample_is_read(run, tmp_path, run_command):
    done = run_command("inspect", run, "--layers", tmp_path / "layers.html")
    assert "of 16 texts" in done.out
    assert "does not know" in done.err
    assert "built-in English text" in (tmp_path / "layers.html").read_text(encoding="utf-8")


def test_options_that_do_not_go_together_are_refused(run, tmp_path, run_command):
    page = tmp_path / "layers.html"
    refused = {
        ("--layers", page): "bad-value",
        (run, "--text", "one"): "bad-value",
        (run, "--layers", page, "--text", " "): "bad-input",
        (run, "--layers", page, "--length", "2"): "bad-value",
        (tmp_path / "nowhere", "--layers", page): "not-found",
    }
    for arguments, slug in refused.items():
        done = run_command("inspect", *arguments)
        assert (done.status, done.out) == (2, "")
        assert done.err.removeprefix(f"model  {run / 'best'}\n").startswith(f"error[{slug}]"), done.err
    (run / "best" / "vocab.txt").unlink()
    assert "error[no-tokenizer]" in run_command("inspect", run, "--layers", page).err
    assert not page.exists()


def test_layers_in_words(tiny_model):
    config = tiny_model(AlbertForMaskedLM).config
    assert layers_in_words(config) == "one layer, applied 3 times"
    assert layers_in_words(config.replace(inner_group_num=2)) == "2 layers, applied 6 times"
    shared = config.replace(num_hidden_groups=3, parameter_sharing="ffn")
    assert layers_in_words(shared) == "3 layers, which share their feed-forward, applied 3 times"
