"""The HTML report: parses, escapes what corpora hold, and needs nothing from outside."""

import re

import pytest
from scipy.stats import binomtest

from albertkit.errors import MissingExtraError
from albertkit.report import page, run_page, write_page

EVIL = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def facts(records):
    return dict(
        results={"masked_lm_loss": 4.3121, "masked_lm_accuracy": 0.3123, "masked_lm_count": 23456,
                 "sentence_order_loss": 0.52, "sentence_order_accuracy": 0.71, "sentence_order_count": 512},
        baselines={"unigram_loss": 6.71, "most_frequent_accuracy": 0.0421},
        metrics=records,
        examples=[
            {"text": f"The [MASK] of {EVIL} & others.", "answer": "▁cat",
             "predictions": [("▁cat", 0.5), ("s", 0.25), (f"▁{EVIL}", 0.0125)]},
            {"text": "It [MASK] a lot.", "answer": "▁rained", "predictions": [("▁is", 0.4), ("▁was", 0.3)]},
        ],
        parameters=8975810,
        corpus={"documents": 12345, "text_rules": "google"},
        settings={"seed": 20261121, "optimizer": {"lr": 0.00176}, "name": EVIL},
        versions={"torch": "2.13.0+cpu"},
        next_commands=[("albertkit evaluate 'RUN/best' STORE", "Measure it on <another> store")],
    )  # fmt: skip


@pytest.fixture(scope="module")
def html(facts):
    return run_page(f"run {EVIL}", **facts)


def test_page_is_sound_html_with_its_numbers(html, outline):
    parsed = outline(html)
    text = " ".join(" ".join(parsed.text).split())
    order = binomtest(364, 512).proportion_ci(method="wilson")  # 364 = round(0.71 * 512)
    for expected in (
        "11.0 times more probable", "4.312 nats", "unigram baseline 6.710; 2.398 nats below it", "31.2%",
        "95%: 30.6% to 31.8%; most frequent piece 4.2%", f"95%: {order.low:.1%} to {order.high:.1%}; coin toss 50.0%",
        "8,975,810 parameters",
        "1,200 steps · 4.9 M tokens · 10 min 00 s", "12,345", "20261121", "optimizer.lr", "0.00176", "2.13.0+cpu",
        "albertkit evaluate 'RUN/best' STORE",
    ):  # fmt: skip
        assert expected in text, expected
    assert {"svg", "table", "article"} <= parsed.tags


def test_texts_are_escaped(html, outline):
    parsed = outline(html)
    assert "script" not in parsed.tags
    assert html.count("&lt;script&gt;") >= 4  # title twice, sentence, piece, setting
    assert EVIL in " ".join(parsed.text)
    assert "Measure it on &lt;another&gt; store" in html


def test_nothing_comes_from_outside(html, outline):
    parsed = outline(html)
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "srcset", "data", "action", "poster"):
            assert value.startswith("#"), (tag, name, value)
    assert not parsed.tags & {"script", "link", "img", "iframe", "object"}
    without_namespace = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", without_namespace)


def test_both_pictures_are_there_and_no_identifier_twice(html, outline):
    parsed = outline(html)
    assert html.count("<svg") == 2
    assert len(parsed.identifiers) == len(set(parsed.identifiers))
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_filled_in_masks_show_the_right_answer(html):
    articles = re.findall(r"<article.*?</article>", html, flags=re.DOTALL)
    assert len(articles) == 2
    right, wrong = articles
    assert '<span class="blank">[MASK]</span>' in right
    assert re.search(r'<li class="right"><span class="piece">cat ✓</span>', right)
    assert ">…s</span>" in right  # goes on with a word
    assert "width: 50.0%" in right
    assert "In the text" not in right
    assert 'class="right"' not in wrong
    assert "In the text: <strong>rained</strong>" in wrong


def test_a_worse_model_than_guessing_is_said_so(facts):
    page_text = run_page("bad", results={"masked_lm_loss": 7.0}, baselines={"unigram_loss": 6.0})
    assert "times less probable" in page_text
    assert "1.000 nats above it" in page_text


def test_sections_without_content_are_left_out(outline):
    bare = outline(run_page("bare", results={}))
    assert not bare.tags & {"h2", "table", "article", "svg", "figure"}


def test_incomplete_lines_are_said(records):
    torn = [*records, {"no": "event"}]
    assert "1 line of the metrics was left incomplete" in run_page("torn", results={}, metrics=torn)


def test_without_matplotlib_the_page_says_how_to_get_the_curve(facts, monkeypatch, outline):
    def missing(*_args, **_kwargs):
        raise MissingExtraError.of("matplotlib", "report", "drawing a curve")

    monkeypatch.setattr(page, "training_svg", missing)
    html = run_page("plain", **facts)
    outline(html)
    assert "<svg" not in html
    assert "pip install -c constraints.txt &#39;albertkit[report]&#39;" in html
    assert "1,200 steps" in html


def test_the_page_is_written_whole(tmp_path, facts):
    facts = facts | {"metrics": None}
    path = write_page(tmp_path / "report.html", "run", **facts)
    assert path.read_text(encoding="utf-8") == run_page("run", **facts)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
