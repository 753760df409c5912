"""The page of passes: its numbers, hostile texts, no resource from outside, and shapes at the ends."""

import io
import math
import re

import pytest

from albertkit.errors import MissingExtraError
from albertkit.report import passes_page as page
from albertkit.report.passes_page import pass_rows, passes_page, print_passes, write_passes_page
from albertkit.report.passes_plots import entropy_svg, movement_svg, similarity_svg

EVIL = "<script>alert('x')</script>"


def passes(count=3, heads=2):
    """A made-up movement: states on a circle, 30 degrees a pass."""
    angle = math.radians(30)
    return {
        "texts": 2, "tokens": 1040, "unknown": 0.0, "cut": 1,
        "similarity": [[math.cos(angle * (i - j)) for j in range(count + 1)] for i in range(count + 1)],
        "norm": [2.0] * (count + 1), "step": [0.5176] * count, "turn": [math.cos(angle)] * (count - 1),
        "anisotropy": [0.1 * i for i in range(count + 1)],
        "entropy": [[1.5 + 0.3 * head for head in range(heads)] for _ in range(count)], "uniform": 3.0,
    }  # fmt: skip


def test_rows_hold_what_belongs_to_each_state():
    first, second, third, last = pass_rows(passes())
    assert (first["pass"], first["before"], first["step"], first["turn"], first["last"]) == ("0", "", "", "", "0.000")
    assert (second["before"], second["step"], second["turn"]) == ("0.866", "0.518", "")
    assert (third["turn"], third["last"], third["anisotropy"]) == ("0.866", "0.866", "0.200")
    assert (last["last"], last["entropy"], last["norm"]) == ("1.000", "55.0% (50.0% to 60.0%)", "2.00")


def test_page_has_its_numbers_and_is_harmless(harmless):
    html = passes_page(f"a {EVIL}", passes(), layer=f"one {EVIL}", texts=[EVIL, "long " * 99], source=EVIL)
    parsed = harmless(html)
    assert html.count("<svg") == 6
    assert parsed.words.count(EVIL) == 5  # title twice, layer, source, text
    for expected in (
        "1,040 tokens of 2 texts (1 of them cut)",
        "0.00 cosine",
        "52% of its length",
        "after: 0.866",
        "0.30 cosine",
    ):
        assert expected in parsed.words, expected
    assert "long…" in parsed.words or "long …" in parsed.words
    assert "know" not in parsed.words


def test_the_check_would_see_a_text_that_escapes(harmless):
    html = passes_page("a", passes(), layer="one", texts=["MARK"])
    with pytest.raises(AssertionError):
        harmless(html.replace("MARK", EVIL))


@pytest.mark.parametrize(("count", "heads"), [(1, 1), (12, 12), (24, 64)])
def test_every_shape_is_drawn(count, heads, harmless):
    facts = passes(count, heads)
    harmless(passes_page("a", facts, layer="one"))
    seen = sum(value > 0 for row in facts["similarity"] for value in row)  # nothing is drawn where nothing is alike
    for narrow in (False, True):
        drawn = similarity_svg(facts["similarity"], narrow)
        assert drawn.count("var(--heat") == seen
        assert (".87</text>" in drawn) == (count < 16)
        assert entropy_svg(facts["entropy"], 3.0, narrow).count("var(--heat") == count * heads
        assert "turn" in movement_svg(facts, narrow)


def test_stronger_is_more_alike():
    drawn = similarity_svg([[1.0, 0.25], [-0.5, 1.0]])
    strengths = re.findall(r"fill: var\(--heat, #7fbfe6\)(?:; fill-opacity: ([\d.]+))?", drawn)
    assert strengths == ["", "0.25", ""]  # and none where it is negative
    assert ">.25<" in drawn
    assert ">-.50<" in drawn.replace("\u2212", "-")


def test_unknown_text_is_said():
    facts = passes() | {"unknown": 0.4}
    assert "does not know 40% of the tokens" in passes_page("a", facts, layer="one")
    shown = io.StringIO()
    print_passes(facts, shown)
    assert "! the tokenizer does not know 40%" in shown.getvalue()


def test_a_table_for_people(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = io.StringIO()
    print_passes(passes(12, 12), shown)
    text = shown.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^ +12 +0.866 +1.000 +0.518 +0.866 +1.200 ", text, re.M)


def test_without_matplotlib_the_page_says_how_to_get_the_pictures(monkeypatch, tmp_path, harmless):
    def missing(*_args, **_kwargs):
        raise MissingExtraError.of("matplotlib", "report", "drawing")

    monkeypatch.setattr(page, "similarity_svg", missing)
    path = write_passes_page(tmp_path / "passes.html", "a", passes(), layer="one")
    parsed = harmless(path.read_text(encoding="utf-8"))
    assert "svg" not in parsed.tags
    assert "albertkit[report]" in parsed.words
    assert "55.0%" in parsed.words
    assert [file.name for file in tmp_path.iterdir()] == ["passes.html"]
