"""The parts of a page about a pretraining: its numbers compared with guessing, filled-in masks, the curve."""

import io
import re

import pytest
from scipy.stats import binomtest

from albertkit.errors import MissingExtraError
from albertkit.output.render import print_sections, to_markdown, to_page
from albertkit.report import run_page
from albertkit.report.run_page import curve_sections, filled_masks, pretraining_highlights
from albertkit.training.monitor import RunMetrics

EVIL = "<script>alert('x')</script>"
RESULTS = {
    "masked_lm_loss": 4.3121,
    "masked_lm_accuracy": 0.3123,
    "masked_lm_count": 23456,
    "sentence_order_loss": 0.52,
    "sentence_order_accuracy": 0.71,
    "sentence_order_count": 512,
}
BASELINES = {"unigram_loss": 6.71, "most_frequent_accuracy": 0.0421}
EXAMPLES = [
    {
        "text": f"The [MASK] of {EVIL} & others.",
        "answer": "▁cat",
        "predictions": [("▁cat", 0.5), ("s", 0.25), (f"▁{EVIL}", 0.0125)],
    },
    {"text": "It [MASK] a lot.", "answer": "▁rained", "predictions": [("▁is", 0.4), ("▁was", 0.3)]},
]


def terminal_text(sections):
    out = io.StringIO()
    print_sections(sections, out)
    return out.getvalue()


def test_numbers_are_compared_with_guessing(harmless):
    words = harmless(to_page("run", [pretraining_highlights(RESULTS, BASELINES)])).words
    order = binomtest(364, 512).proportion_ci(method="wilson")  # 364 = round(0.71 * 512)
    for expected in (
        "11.0 times more probable",
        "4.312 nats",
        "unigram baseline 6.710; 2.398 nats below it",
        "31.2%",
        "95%: 30.6% to 31.8%; most frequent token 4.2%",
        f"95%: {order.low:.1%} to {order.high:.1%}; coin toss 50.0%",
    ):
        assert expected in words, expected


def test_a_worse_model_than_guessing_is_called_worse():
    html = to_page("run", [pretraining_highlights({"masked_lm_loss": 7.0}, {"unigram_loss": 6.0})])
    assert "times less probable" in html
    assert "1.000 nats above it" in html


def test_filled_in_masks_show_the_right_answer(harmless):
    html = to_page("run", filled_masks(EXAMPLES))
    assert EVIL in harmless(html).words
    right, wrong = re.findall(r"<article.*?</article>", html, flags=re.DOTALL)
    assert '<span class="blank">[MASK]</span>' in right
    assert re.search(r'<li class="good"><span class="piece">cat ✓</span>', right)
    assert ">…s</span>" in right  # goes on with a word
    assert "width: 50.0%" in right
    assert "In the text" not in right
    assert 'class="good"' not in wrong
    assert 'In the text: <span class="blank">rained</span>' in wrong


@pytest.mark.parametrize("write", [to_markdown, terminal_text])
def test_the_mark_that_is_explained_is_there_in_plain_text_too(write):
    right, wrong = (write(filled_masks([example])) for example in EXAMPLES)
    assert "cat ✓" in right
    assert "✓ marks the token" in right
    assert "✓" not in wrong


def test_there_is_nothing_without_numbers():
    nothing = [pretraining_highlights({}, {}), *curve_sections(RunMetrics(), {}), *filled_masks([])]
    assert to_page("run", nothing).split() == to_page("run", []).split()


def test_incomplete_lines_are_reported(records):
    metrics = RunMetrics.from_records([*records, {"no": "event"}])
    assert "1 line of the metrics was left incomplete" in to_page(
        "run", curve_sections(metrics, {})
    )


def test_without_matplotlib_the_page_says_how_to_get_the_curve(records, monkeypatch):
    def missing(*_args, **_kwargs):
        raise MissingExtraError.for_package("matplotlib", "report", "drawing a curve")

    monkeypatch.setattr(run_page, "run_svgs", missing)
    html = to_page("run", curve_sections(RunMetrics.from_records(records), BASELINES))
    assert "<svg" not in html
    assert "pip install -c constraints.txt &#39;albertkit[report]&#39;" in html


@pytest.mark.parametrize("name", ["report.txt", "report"])
def test_a_page_is_an_html_file(name, tmp_path, slug_of):
    from albertkit.output.render import write_page

    assert slug_of(write_page, tmp_path / name, "run", []) == "bad-value"
    assert list(tmp_path.iterdir()) == []
