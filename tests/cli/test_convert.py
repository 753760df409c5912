"""`albertkit convert` as people call it: what it prints."""

import json
from pathlib import Path

import pytest

from albertkit.cli.convert import convert


def test_json_is_one_object(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(str(golden / "tf1" / "pretrain_b"), tmp_path / "out", json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["verified"], report["max_abs_diff"]) == (True, 0)
    assert (report["tensors"], report["missing"], report["unused"]) == (80, [], [])
    assert report["model_class"] == "AlbertForPreTraining"
    assert report["source"].endswith("pretrain_b")


def test_lines_for_people(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(str(golden / "tf1" / "pretrain_c"), tmp_path / "out", to="npz")
    said = capsys.readouterr().out
    assert "verified      yes\n" in said
    assert "max abs diff  0\n" in said
    assert "- E = H: the source has no projection" in said
