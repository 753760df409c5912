"""Options that errors of the tasks name: the commands that show these errors have them."""

import ast
import re
from pathlib import Path

import pytest

import albertkit.tasks
from albertkit.cli import app
from albertkit.errors import DataError
from albertkit.tasks.registry import find_task

from .conftest import read_examples

TASKS = Path(albertkit.tasks.__file__).parent
TABLES = TASKS.parent / "tables"
# What every command that reads a table runs.
READERS = (
    TABLES / "table.py",
    TABLES / "text_lines.py",
    TABLES / "layouts.py",
    TABLES / "bad_rows.py",
    TASKS / "texts.py",
    TASKS / "data.py",
)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+\b")
# --label is short for --label-column.
# In errors that only these commands show: of the split of a training, and of the file of a folder.
ELSEWHERE = {
    "finetune": {"--split"},
    "predict": {"--dev", "--held-out", "--label", "--positive-class", "--teacher", "--unlabelled"},
    "evaluate": {"--dev", "--held-out", "--positive-class", "--teacher", "--unlabelled"},
}


def options_of(command):
    return {
        name for argument in app[command].assemble_argument_collection() for name in argument.names
    }


def named_in(file):
    """Options in the texts of a file, docstrings left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node not in documented
    ]
    return {option for text in texts if isinstance(text, str) for option in OPTION.findall(text)}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("classify", "label"),
        ("regress", "label"),
        ("multilabel", "labels"),
    ],
)
def test_a_table_of_text_and_label_needs_no_options(tmp_path, name, label):
    file = tmp_path / "train.csv"
    file.write_text(f"text,{label}\na text,1\nanother,2\n")
    examples = read_examples(find_task(name), file, "train")
    assert [example.text for example in examples] == ["a text", "another"]
    file.write_text(f"sentence,{label}\na text,1\n")
    with pytest.raises(DataError, match="no column `text` for") as caught:
        read_examples(find_task(name), file, "train")
    assert "--text-column" in caught.value.hint


def test_every_option_that_is_named_exists():
    options = set().union(
        *map(options_of, ("finetune", "predict", "evaluate", "score", "early-exit"))
    )
    options_in_files = {
        (file.name, option)
        for room in (TASKS, TABLES)
        for file in room.rglob("*.py")
        for option in named_in(file)
    }
    assert len(options_in_files) > 30
    assert {(file, option) for file, option in options_in_files if option not in options} == set()


@pytest.mark.parametrize("command", ["finetune", "predict", "evaluate"])
def test_what_a_reader_of_tables_names_every_command_that_reads_them_has(command):
    files = [file for path in READERS for file in (path.rglob("*.py") if path.is_dir() else [path])]
    options = set().union(*map(named_in, files))
    assert {"--on-error", "--quoted", "--text-column", "--pair-column", "--label-column"} <= options
    assert options - options_of(command) <= ELSEWHERE[command]
