"""What `--out` may name: nothing that is there already is overwritten, and no file is dropped into a run."""

import json

import pytest

from albertkit.errors import AlbertKitError, ConfigError
from albertkit.files import check_page_file
from albertkit.pipelines.predict import predict


def contents(folder):
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        ("predict {model} {own}/in.jsonl --out {own}/in.jsonl", "exists"),
        ("predict {model} {own}/in.jsonl --out {own}/in.jsonl --kind classify", "exists"),
        ("predict {model} {own}/in.jsonl --out {own}", "exists"),
        ("predict {model} {own}/in.jsonl --out {model}", "exists"),
        ("evaluate {model} {own}/in.jsonl --out {own}", "exists"),
        ("score classify {own}/in.jsonl {own}/in.jsonl --label label --out {own}", "exists"),
        ("caption score {own}/in.jsonl {own}/in.jsonl --details {own}/in.jsonl", "exists"),
    ],
)
def test_what_is_there_is_not_overwritten(untrained, tmp_path, run_command, command, slug):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "notes.html").write_text("my notes on <b>ALBERT</b>")
    row = {"sentence": "seven wizards", "label": "magic", "key": "a", "caption": "seven wizards"}
    (folder / "in.jsonl").write_text(json.dumps(row) + "\n")
    before = contents(folder) | contents(untrained)
    completed = run_command(*command.format(model=untrained, own=folder).split())
    assert completed.status == 2
    assert f"error[{slug}]" in completed.err
    assert "rm " not in completed.err  # what is there may be the input itself
    assert contents(folder) | contents(untrained) == before


def test_a_page_is_replaced_by_a_page(tmp_path):
    page = tmp_path / "page.html"
    check_page_file(page)
    page.write_text("<!DOCTYPE html>\n<title>of last week</title>")
    assert check_page_file(page) == page
    with pytest.raises(AlbertKitError, match="does not end in"):
        check_page_file(tmp_path / "page.png")


@pytest.mark.parametrize(
    "name",
    "scored.csv.gz a.xlsx a.json a.ndjson a.html a.npz a.jsonl.zst a.h5".split(),
)
def test_predictions_in_a_file_of_a_kind_that_is_not_written_are_refused(
    name, tmp_path, untrained, table
):
    with pytest.raises(ConfigError, match="is called a file, and a folder is written") as error:
        predict(untrained, table, out=tmp_path / name)
    assert ".jsonl, .csv or .tsv" in error.value.hint
    assert not (tmp_path / name).exists()
