"""The frame of commands: options, help, exit status, JSON, and the same function in Python."""

import json
import math
import re
import subprocess
import sys
import time
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from cyclopts import App, CycloptsError

from albertkit import command as frame
from albertkit.command import SEVERAL, Command, takes
from albertkit.errors import ConfigError
from albertkit.validation import Range, list_wrong_fields


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules of counting.

    Attributes:
        case: Which letters count.
        strict: Refuse what is no letter.
    """

    case: Literal["upper", "lower"] = "lower"
    strict: bool = True


@dataclass(frozen=True)
class CountOptions:
    """Count the letters of words.

    More about it.

    Attributes:
        words: Words to count,
            however many.
        out: File to write.
        at_least: Shortest word.
        rules: See `Rules`.
    """

    words: Annotated[list[str], SEVERAL]
    out: str | Path
    _: KW_ONLY
    at_least: Annotated[int, Range(0)] = 0
    rules: Rules = Rules()
    progress: bool = False


@dataclass(frozen=True)
class Counted:
    letters: int
    options: dict[str, Any]
    exit_status: int = 0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"letters": self.letters, "options": self.options}


@takes(CountOptions)
def count(options: CountOptions) -> Counted:
    """Count letters."""
    words = [word for word in options.words if len(word) >= options.at_least]
    warnings = ("nothing to count",) if not words else ()
    return Counted(sum(map(len, words)), asdict(options), 0 if words else 1, warnings)


@dataclass(frozen=True)
class ShareOptions:
    """Options of every type."""

    out: str | Path
    _: KW_ONLY
    at_least: Annotated[int, Range(0)] = 0
    rules: Rules = Rules()
    shares: tuple[float, ...] = ()
    order: Literal["first", "last"] | None = None
    progress: bool = False


@takes(ShareOptions)
def share(options: ShareOptions) -> ShareOptions:
    """Return the options."""
    return options


def show(counted):
    print(f"{counted.letters} letters")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setitem(sys.modules, "counting", sys.modules[__name__])
    command = Command("count", "counting:CountOptions", "counting:count", show="counting:show")
    app = App(result_action="return_value", exit_on_error=False, print_error=False)
    app.command(command.make_cli_function(), name="count")
    return lambda *arguments: app(["count", *arguments])


def test_arguments_flags_and_settings_reach_the_function(run, capsys):
    assert (
        run(
            "one",
            "three",
            "--out",
            "o",
            "--at-least",
            "4",
            "--case",
            "upper",
            "--no-strict",
            "--json",
        )
        == 0
    )
    options = json.loads(capsys.readouterr().out)["options"]
    assert options == {
        "words": ["one", "three"],
        "out": "o",
        "at_least": 4,
        "rules": {"case": "upper", "strict": False},
        "progress": False,
    }


def test_people_get_lines_progress_and_warnings(run, capsys):
    assert run("one", "--out", "o") == 0
    assert capsys.readouterr().out == "3 letters\n"
    assert run("one", "--out", "o", "--at-least", "4") == 1
    printed = capsys.readouterr()
    assert printed.out == "0 letters\n"
    assert printed.err == "warning: nothing to count\n"


def test_a_number_out_of_its_range_is_refused_on_the_command_line_and_in_python(run):
    with pytest.raises(ConfigError, match="at_least is -1, it must be a whole number, at least 0"):
        run("one", "--out", "o", "--at-least", "-1")
    with pytest.raises(ConfigError, match="at_least is -1, it must be a whole number, at least 0"):
        count(["one"], "o", at_least=-1)


@dataclass(frozen=True)
class Ranges:
    share: Annotated[float, Range(0, below=1)] = 0.0
    rate: Annotated[float | None, Range(above=0, maximum=2000)] = None
    steps: Annotated[int, Range(1)] | None = None


def test_ranges_and_their_words():
    assert list_wrong_fields(Ranges()) == list_wrong_fields(Ranges(0.999, 2000, 1)) == []
    share = "a number, at least 0 and below 1"
    rate = "a number or None, above 0 and at most 2,000"
    assert list_wrong_fields(Ranges(1, 0, 0)) == [
        f"share is 1, it must be {share}",
        f"rate is 0, it must be {rate}",
        "steps is 0, it must be a whole number, at least 1 or None",
    ]
    assert list_wrong_fields(Ranges(math.nan, math.inf)) == [
        f"share is nan, it must be {share}",
        f"rate is inf, it must be {rate}",
    ]


def test_a_wrong_choice_is_refused(run):
    with pytest.raises(CycloptsError, match="middle"):
        run("one", "--out", "o", "--case", "middle")


def test_the_help_says_what_the_options_say(run, capsys):
    run("--help")
    help = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in (
        "Count the letters of words.",
        "Words to count, however many.",
        "Shortest word.",
        "Which letters count.",
    ):
        assert text in help
    assert "progress" not in help.replace("and no progress", "")


def test_a_command_that_loads_long_says_so(run, capsys, monkeypatch):
    import_attribute = frame.import_attribute

    def import_slowly(path: str) -> Any:
        time.sleep(0.3 if path == "counting:count" else 0)
        return import_attribute(path)

    monkeypatch.setattr(frame, "import_attribute", import_slowly)
    monkeypatch.setattr(frame, "_SILENCE", 0.05)
    assert run("one", "--out", "o") == 0
    assert capsys.readouterr().err == "albertkit count: loading\n"
    monkeypatch.setattr(frame, "_SILENCE", 60.0)
    assert run("one", "--out", "o") == 0
    assert capsys.readouterr().err == ""


def test_python_calls_the_same_function_with_the_same_options():
    assert count(["one"], "o", at_least=2).letters == 3
    assert count(CountOptions(["one"], "o")).letters == 3
    with pytest.raises(TypeError, match="unknown"):
        count(["one"], "o", unknown=1)


def test_help_of_every_command_needs_no_torch():
    """In one fresh interpreter, because this one has long imported it."""
    code = (
        "import sys\n"
        "from albertkit.cli.commands import COMMANDS\n"
        "for command in COMMANDS:\n"
        "    command.make_cli_function()\n"
        "    assert 'torch' not in sys.modules, command\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("options", "slug", "fact"),
    [
        ({"at_least": "4"}, "bad-value", "at_least is '4', it must be a whole number"),
        ({"at_least": 1.5}, "bad-value", "at_least is 1.5, it must be a whole number"),
        ({"at_least": True}, "bad-value", "at_least is True, it must be a whole number"),
        ({"progress": "no"}, "bad-value", "progress is 'no', it must be True or False"),
        ({"out": None}, "bad-value", "out is None, it must be a text or a path"),
        (
            {"rules": {"case": "upper"}},
            "bad-value",
            "rules is {'case': 'upper'}, it must be of the type Rules",
        ),
        (
            {"rules": Rules(strict="yes")},
            "bad-value",
            "rules: strict is 'yes', it must be True or False",
        ),
        ({"shares": "0.5"}, "bad-value", "shares is '0.5', it must be a tuple, each a number"),
        (
            {"shares": ("0.5",)},
            "bad-value",
            "shares is ('0.5',), it must be a tuple, each a number",
        ),
        ({"order": "random"}, "unknown-name", "order cannot be `random`"),
    ],
)
def test_python_is_refused_what_the_command_line_would_not_take(options, slug, fact):
    with pytest.raises(ConfigError, match=re.escape(f"error[{slug}]: {fact}")):
        share(**{"out": "o", **options})


def test_numbers_of_numpy_paths_and_lists_are_taken():
    options = {
        "at_least": np.int64(3),
        "shares": [np.float32(0.5), 1],
        "progress": np.True_,
        "order": "first",
    }
    assert share(Path("o"), **options).shares == options["shares"]
    assert share("o").order is None
