"""Names, labels and texts from outside act on no terminal and forge no line, whatever prints them."""

import json
import logging
import sys
import unicodedata

import pytest
from record_files import write_json, write_records

from albertkit import model as classes
from albertkit.errors import DataError
from albertkit.printable import escape_control_characters, escape_json, escape_line

HOSTILE = "\x1b[2J\x9b31m\u202e\rx\nFORGED line\u2028FORGED\x85FORGED"
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def acts(sign):
    """Whether Unicode's tables call a character a control, a direction or the end of a line."""
    is_mark = unicodedata.name(sign, "").endswith(
        ("LEFT-TO-RIGHT MARK", "RIGHT-TO-LEFT MARK", "LETTER MARK")
    )
    kinds = ("Cc", "Cs", "Zl", "Zp")
    return (
        unicodedata.category(sign) in kinds
        or unicodedata.bidirectional(sign) in DIRECTIONS
        or is_mark
    )


def assert_harmless(printed):
    lines = printed.split("\n")
    assert not any(line.startswith("FORGED") for line in lines)
    assert not any(acts(sign) for line in lines for sign in line), ascii(printed)


def test_what_acts_is_spelled_out_and_all_else_stays():
    signs = [chr(code) for code in range(sys.maxunicode + 1)]
    changed = {sign for sign in signs if escape_control_characters(sign) != sign}
    assert changed == {sign for sign in signs if acts(sign)} - {"\t", "\n"}
    assert escape_line("a\tb\nc") == "a\tb\\nc"
    text = json.dumps(["a".join(changed), HOSTILE, "\\\x9b"], ensure_ascii=False)
    assert json.loads(escape_json(text)) == json.loads(text)
    assert_harmless(escape_json(text))


def test_an_error_is_one_message_with_one_hint():
    error = str(DataError("bad-row", f"`a{HOSTILE}\n\nhint: rm -r .` is none", f"name{HOSTILE}"))
    assert_harmless(error)
    assert [line[:5] for line in error.split("\n") if not line.startswith("    ")] == [
        "error",
        "",
        "hint:",
    ]


@pytest.fixture
def hostile_paths(tiny_model_folder, tmp_path):
    """A classifier whose path, configuration and labels are hostile, and a table like that."""
    labels = [f"{number}{HOSTILE}" for number in range(2)]
    original = tiny_model_folder(classes.AlbertForSequenceClassification, num_labels=2)
    folder = original.rename(tmp_path / f"model{HOSTILE}")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": dict(enumerate(labels)), f"odd{HOSTILE}": HOSTILE}
    write_json(folder / "config.json", config)
    write_json(folder / "provenance.json", {HOSTILE: [HOSTILE]})
    table = tmp_path / f"table{HOSTILE}.jsonl"
    rows = [
        {"text": f"a fox {number} {HOSTILE}", "label": labels[number % 2]} for number in range(40)
    ]
    write_records(table, rows)
    return {"MODEL": folder, "TABLE": table, "NOTHING": tmp_path / f"nothing{HOSTILE}"}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("inspect MODEL", 0),
        ("inspect MODEL --json", 0),
        ("tokenizer check MODEL", 0),
        ("tokenizer encode TABLE --tokenizer MODEL", 0),
        ("convert MODEL NOTHING", 0),
        ("predict MODEL --text fox", 0),
        ("predict MODEL TABLE --kind classify", 0),
        ("finetune classify MODEL TABLE --check", 0),
        ("score classify TABLE TABLE --columns.label label", 2),
        ("doctor MODEL", 2),
        ("inspect NOTHING", 2),
        ("inspect TABLE", 2),
        ("corpus build TABLE --tokenizer MODEL --out NOTHING", 0),
        ("report MODEL", 2),
    ],
)
def test_no_command_prints_them_as_they_are(
    hostile_paths, run_command, monkeypatch, command, status
):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's would take the warnings
    ran = run_command(*(hostile_paths.get(word, word) for word in command.split()))
    assert ran.status == status, ran.err
    assert_harmless(ran.out)
    assert_harmless(ran.err)
