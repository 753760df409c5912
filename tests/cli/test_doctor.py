"""`albertkit doctor` as people call it."""

import json
import subprocess
import sys

import albertkit


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "albertkit.cli", "doctor", *arguments], capture_output=True, text=True, timeout=120
    )


def test_json_is_one_object_on_standard_output():
    done = run("--json")
    facts = json.loads(done.stdout)
    assert facts["albertkit"] == albertkit.__version__
    assert {row["name"] for row in facts["packages"]} >= {"torch", "numpy", "sentencepiece", "jinja2"}
    fatal = any(problem["fatal"] for problem in facts["problems"])
    assert done.returncode == int(fatal)
    assert done.stderr == ""


def test_tables_for_people_are_plain_in_a_pipe():
    done = run()
    assert "sentencepiece" in done.stdout
    assert "\x1b" not in done.stdout


def test_contradicting_flags_are_the_users_mistake():
    done = run("--json", "--markdown")
    assert done.returncode == 2
    assert "error[conflicting-options]" in done.stderr
    assert "Traceback" not in done.stderr
