"""Sections in a terminal, a page, Markdown and JSON: nothing is lost, and no text becomes markup or acts on a terminal."""

import io
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from albertkit.output.render import Card, escape_markdown, print_sections, to_markdown, to_page
from albertkit.output.sections import (
    Bar,
    Bars,
    Cell,
    Commands,
    FactList,
    Figure,
    Highlight,
    Highlights,
    MarkedSpan,
    Panel,
    Paragraph,
    Result,
    TableSection,
    format_value,
    format_whole_seconds,
    to_json,
    to_json_value,
)
from albertkit.printable import escape_control_characters

HOSTILE = "<script>alert(1)</script> a|b `c` \x1b[31mred\x1b]0;title\x07 \u202eevil & *d*"


def printed(sections, width=None):
    out = io.StringIO()
    print_sections(sections, out, width)
    return out.getvalue()


def one_of_each(text):
    return [
        FactList({text: text}, text),
        TableSection(
            ["name", text], [[text, text], [Cell(text, "bad", 0.5), None]], text, text, strong=0
        ),
        Paragraph(text, text, "warning"),
        Paragraph([MarkedSpan(text, "strong", text), MarkedSpan(text)]),
        Paragraph(text, form="code", language="python"),
        Paragraph(text, text, form="source"),
        Figure("<svg></svg>", text, text, "<svg></svg>"),
        Bars([Bar(text, 0.5, "good")], text),
        Highlights([Highlight(text, text, text, text, 0.5, 0.1)], text),
        Commands([(text, text)], text),
        Panel([Paragraph(text)], text),
    ]


def test_no_text_becomes_html():
    page = to_page(HOSTILE, one_of_each(HOSTILE), HOSTILE, [HOSTILE], HOSTILE)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 20
    assert page.count("<svg></svg>") == 2


def test_no_text_acts_on_a_terminal():
    output = printed(one_of_each(HOSTILE))
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "\u202e" not in output
    assert "\\x1b[31mred" in output
    assert "[31m" in output


def test_no_text_breaks_a_markdown_table():
    text = to_markdown(
        [
            FactList({HOSTILE: HOSTILE}),
            TableSection(["a", "b"], [[HOSTILE, "two\nlines"]], note=HOSTILE),
        ]
    )
    assert "<script" not in text
    assert "\x1b" not in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 3


def test_code_in_markdown_ends_where_it_ends():
    text = to_markdown([Paragraph("a\n```\n# not a heading", form="code", language="python")])
    assert text == "````python\na\n```\n# not a heading\n````\n"


@pytest.mark.parametrize(
    "render",
    [
        printed,
        partial(to_page, ""),
        to_markdown,
        lambda sections: json.dumps(to_json(sections)),
    ],
)
def test_every_kind_is_shown_everywhere(render):
    output = render(one_of_each("word"))
    assert output.count("word") >= 15


def test_facts_have_units_and_leave_out_what_is_not_known():
    facts = FactList(
        {
            "seconds": 61.0,
            "peak_memory_mb": 32.25,
            "masked_lm_accuracy": 0.5,
            "none": None,
            "empty": [],
            "notes": (),
            "text": "",
        }
    )
    assert facts.rows() == [
        ("seconds", "1 min 01 s"),
        ("peak memory", "32.2 MB"),
        ("masked lm accuracy", "50.00%"),
    ]


def test_settings_are_shown_as_they_are_given():
    facts = FactList(
        {"lr": 1e-5, "steps": 125_000, "data": {"resume": False, "seed": None}, "dims": [128, 64]},
        exact=True,
    )
    assert facts.rows() == [
        ("lr", "1e-05"),
        ("steps", "125000"),
        ("data.resume", "no"),
        ("data.seed", "–"),
        ("dims", "128, 64"),
    ]


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (math.nan, "", "undefined"),
        (-math.inf, "loss", "-infinite"),
        (math.nan, "seconds", "undefined"),
        (None, "", "–"),
        (True, "", "yes"),
        (1234567, "", "1,234,567"),
        (0.5, "", "0.5000"),
        (12345.6, "", "12,346"),
        ((1, 2), "", "1 to 2"),
        ([1, 2], "", "1, 2"),
        (("one note", "another"), "", "one note, another"),
        ((0.1, 0.25), "f1_interval", "10.00% to 25.00%"),
        (0.25, "hours", "15 min 00 s"),
        (Path("a/b"), "", "a/b"),
    ],
)
def test_values(value, name, text):
    assert format_value(value, name) == text


def test_durations():
    assert [format_whole_seconds(seconds) for seconds in (42.4, 252, 11100)] == [
        "42 s",
        "4 min 12 s",
        "3 h 05 min",
    ]


def test_clean_keeps_lines_and_tabs():
    assert escape_control_characters("a\tb\nc\x00") == "a\tb\nc\\x00"


def test_columns_of_numbers_stand_to_the_right():
    table = TableSection(
        ["name", "f1", "share", "word"],
        [["a", 0.5, "12 (3.0%)", "x"], ["b", math.nan, None, "3x, y"]],
    )
    assert table.numeric_columns() == [False, True, True, False]
    assert TableSection(["a", "b"], []).numeric_columns() == [False, True]


def test_wide_characters_stand_in_columns():
    lines = printed(
        [TableSection(["label", "f1"], [["日本語", 0.5], ["abcdef", 0.25]])]
    ).splitlines()
    assert lines == ["label       f1", "日本語  0.5000", "abcdef  0.2500"]


def test_a_file_has_no_width():
    assert "x" * 500 in printed(
        [TableSection(["a", "b"], [["x" * 500, 1]]), FactList({"a": "x" * 500})]
    )


@pytest.mark.parametrize("width", [12, 20, 40, 80])
def test_a_narrow_terminal_loses_nothing(width):
    heads = ["label", *(f"class{number}" for number in range(6))]
    rows = [[f"name{row}", *range(100 * row, 100 * row + 6)] for row in range(3)]
    output = printed(
        [TableSection(heads, rows), FactList({"a long name": "a long value " * 5})], width
    )
    assert all(len(line) <= width for line in output.splitlines())
    assert all(str(value) in output for row in rows for value in row)
    assert output.count("value") == 5


@pytest.mark.parametrize(
    "sections",
    [
        [],
        [TableSection(["a"], [])],
        [FactList({})],
        [Bars([])],
        [Paragraph("")],
        [Panel()],
    ],
)
def test_nothing_is_no_error(sections):
    printed(sections)
    to_page("", sections)
    assert to_markdown(sections).strip() == ""


def test_a_row_of_another_length_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        TableSection(["a", "b"], [["only one"]]).cells()


def test_a_card_is_yaml_and_markdown(tmp_path):
    import yaml

    fields = {
        "language": ["no"],
        "license": "mit",
        "tags": ["albert"],
        "model-index": [{"name": "a: b"}],
    }
    file = Card("A\nname", fields, [FactList({"a": 1}, "Facts")]).write(tmp_path)
    _, front, body = file.read_text().split("---\n", 2)
    assert yaml.safe_load(front) == fields
    assert body.startswith("\n# A name\n\n## Facts\n\n|")


def test_a_cell_is_one_line():
    assert escape_markdown("a\n b|c") == "a b\\|c"
    assert escape_markdown(1234) == "1,234"


@dataclass(frozen=True)
class Inner:
    score: float
    files: dict


@dataclass(frozen=True)
class Outer(Result):
    out: Path
    inner: Inner
    count: np.int64
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def test_a_result_is_plain_values_and_sections():
    result = Outer(
        Path("a"),
        Inner(math.nan, {"x": Path("b"), 1: np.float32(0.5)}),
        np.int64(3),
        ("a",),
        ("beware",),
    )
    assert result.to_dict() == {
        "out": "a",
        "inner": {"score": None, "files": {"x": "b", "1": 0.5}},
        "count": 3,
        "names": ["a"],
        "warnings": ["beware"],
    }
    json.dumps(result.to_dict(), allow_nan=False)
    (facts,) = result.sections()
    assert "warnings" not in facts.values
    assert facts.values["out"] == Path("a")


def test_plain_sorts_sets():
    assert to_json_value({"b", "a"}) == ["a", "b"]


def test_the_frame_is_light():
    code = "import sys, albertkit.output.sections, albertkit.output.render; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "rich", "jinja2", "numpy"} & set(loaded)
