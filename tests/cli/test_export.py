"""`albertkit export onnx` as people call it: what it prints."""

import json
import re
from pathlib import Path

import pytest


@pytest.mark.filterwarnings("ignore:head size")
def test_json_is_one_object(golden: Path, tmp_path: Path, run_command) -> None:
    done = run_command("export", "onnx", golden / "hf" / "seqcls_3class", tmp_path / "out", "--json")
    report = done.json
    assert report == json.loads((tmp_path / "out" / "export.json").read_text())
    assert (report["model_class"], report["precision"]) == ("AlbertForSequenceClassification", "fp32")
    assert report["max_abs_difference"] < 1e-5
    assert report["agreement"]["top1"] == 1
    assert (done.status, done.err) == (0, "")


@pytest.mark.filterwarnings("ignore:head size")
def test_lines_for_people(golden: Path, tmp_path: Path, run_command) -> None:
    folder = golden / "hf" / "token_cls"
    said = run_command("export", "onnx", folder, tmp_path / "out", "--precision", "int8", "--force").out
    assert re.search(r"^model +AlbertForTokenClassification, int8, 0\.\d MB$", said, re.M)
    assert re.search(r"^matrix products +19 MatMulInteger, 1 Gemm, 6 MatMul$", said, re.M)
    assert re.search(r"^compared on +random pieces, 64 texts$", said, re.M)
    assert "on average" in said
    assert "same choice" in said
