"""What `--out` may name: nothing that is there already is overwritten, and no file is dropped into a run."""

import json
from pathlib import Path

import pytest
import torch

from albertkit.cli import main
from albertkit.errors import AlbertKitError
from albertkit.files import check_page_file
from albertkit.tasks.columns import Columns
from albertkit.tasks.loading import load_encoder, save_task_model
from albertkit.tasks.registry import find_task


@pytest.fixture(scope="module")
def model(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with random weights."""
    folder = tmp_path_factory.mktemp("outputs") / "model"
    task = find_task("classify", Columns(text="sentence", label="label"))
    task = task.with_changes(labels=("magic", "plain"), length=32)
    torch.manual_seed(5)
    classifier, tokenizer, _ = load_encoder(start, task)
    save_task_model(folder, classifier, tokenizer, task)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        ("predict {model} {own}/in.jsonl --out {own}/in.jsonl", "output-exists"),
        ("predict {model} {own}/in.jsonl --out {own}/in.jsonl --kind classify", "output-exists"),
        ("predict {model} {own}/in.jsonl --out {own}", "folder-not-empty"),
        ("predict {model} {own}/in.jsonl --out {model}", "folder-not-empty"),
        ("evaluate {model} {own}/in.jsonl --out {own}", "folder-not-empty"),
        ("score classify {own}/in.jsonl {own}/in.jsonl --label label --out {own}", "folder-not-empty"),
        ("inspect {model} --passes {own}/notes.html", "output-exists"),
        ("embed map {model} {own}/in.jsonl --text sentence --out {own}/in.jsonl", "bad-argument"),
        ("embed map {model} {own}/in.jsonl --text sentence --out {own}/notes.html", "output-exists"),
        ("caption score {own}/in.jsonl {own}/in.jsonl --details {own}/in.jsonl", "output-exists"),
    ],
)
def test_what_is_there_is_not_overwritten(model, tmp_path, capfd, command, slug):
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes.html").write_text("my notes on <b>ALBERT</b>")
    row = {"sentence": "seven wizards", "label": "magic", "key": "a", "caption": "seven wizards"}
    (own / "in.jsonl").write_text(json.dumps(row) + "\n")
    before = contents(own) | contents(model)
    with pytest.raises(SystemExit) as ended:
        main(command.format(model=model, own=own).split())
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert f"error[{slug}]" in said
    assert "rm " not in said  # what is there may be the input itself
    assert contents(own) | contents(model) == before


def test_a_page_is_replaced_by_a_page(tmp_path):
    page = tmp_path / "page.html"
    check_page_file(page)
    page.write_text("<!DOCTYPE html>\n<title>of last week</title>")
    assert check_page_file(page) == page
    with pytest.raises(AlbertKitError, match="does not end in"):
        check_page_file(tmp_path / "page.png")
