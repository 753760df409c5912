"""`albertkit export onnx` as people call it: what it prints."""

import json
import re
from pathlib import Path

import pytest

from albertkit.cli.export import onnx


@pytest.mark.filterwarnings("ignore:head size")
def test_json_is_one_object(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx(str(golden / "hf" / "seqcls_3class"), tmp_path / "out", json=True)
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report == json.loads((tmp_path / "out" / "export.json").read_text())
    assert (report["model_class"], report["precision"]) == ("AlbertForSequenceClassification", "fp32")
    assert report["max_abs_difference"] < 1e-5
    assert report["agreement"]["top1"] == 1
    assert printed.err == ""


@pytest.mark.filterwarnings("ignore:head size")
def test_lines_for_people(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx(str(golden / "hf" / "token_cls"), tmp_path / "out", precision="int8", force=True)
    said = capsys.readouterr().out
    assert re.search(r"^model +AlbertForTokenClassification, int8, 0\.\d MB$", said, re.M)
    assert "matrix products     19 MatMulInteger, 1 Gemm, 6 MatMul\n" in said
    assert "compared on         random pieces, 64 texts\n" in said
    assert "on average" in said
    assert "same choice" in said
