"""A conversion is verified before its target gets its name, and what is wrong is not left behind."""

import sys

import pytest
import torch
from small_models import tiny_config

from albertkit.conversion import convert as targets
from albertkit.conversion import convert as verify
from albertkit.conversion.convert import convert
from albertkit.errors import MachineError
from albertkit.model import AlbertForPreTraining


@pytest.fixture
def folder(tmp_path):
    """A saved `AlbertForPreTraining`."""
    torch.manual_seed(0)
    AlbertForPreTraining(tiny_config()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_what_is_written_wrongly_is_not_left_behind(folder, tmp_path, monkeypatch):
    """One bit of one tensor, between reading and writing."""

    def flipped(file, tensors):
        changed = tensors["albert.pooler.bias"].clone()
        changed.view(torch.int32)[3] ^= 1
        targets_write(file, {**tensors, "albert.pooler.bias": changed})

    targets_write = targets.write_tensors
    monkeypatch.setattr(targets, "write_tensors", flipped)
    with pytest.raises(
        MachineError,
        match=r"(?s)\[internal-error\].*albert.pooler.bias, written and read again, differs",
    ):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".partial*"))


def test_outputs_are_compared_with_transformers(folder, tmp_path, monkeypatch):
    report = convert(folder, tmp_path / "out")
    assert report.outputs_max_abs_diff is not None
    assert report.outputs_max_abs_diff < 1e-5
    assert any("outputs equal to those of transformers" in note for note in report.notes)
    monkeypatch.setattr(verify, "_TOLERANCE", -1.0)  # whatever they differ by is then too much
    with pytest.raises(MachineError, match=r"(?s)\[internal-error\].*outputs that differ by"):
        convert(folder, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_outputs_that_nobody_can_compute(golden, folder, tmp_path, monkeypatch):
    report = convert(golden / "tf1/squad_v2", tmp_path / "beams")
    assert report.outputs_max_abs_diff is None
    assert any("transformers has no AlbertForBeam" in note for note in report.notes)
    monkeypatch.setitem(sys.modules, "transformers", None)
    report = convert(folder, tmp_path / "out")
    assert any("transformers is not installed" in note for note in report.notes)
