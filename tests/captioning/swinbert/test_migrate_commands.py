"""`albertkit migrate swinbert` and `swinbert-checkpoint`: what they print and how they end."""

import io
import json
import sys

import pytest

from albertkit.cli.migrate import swinbert, swinbert_checkpoint
from albertkit.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:head size")


def test_the_diff_goes_to_stdout_to_the_byte(checkout, monkeypatch):
    script = checkout / "src/tasks/run_caption_VidSwinBert.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\n" + script.read_bytes() + b"# caf\xe9\n")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    assert swinbert(checkout) == 0
    out.flush()
    printed = out.buffer.getvalue()
    assert b"\n-from src.modeling.load_bert import get_bert_model\n" in printed
    assert b"\n+from src.modeling.load_albert import get_albert_folder, get_albert_model\n" in printed
    assert not (checkout / "ALBERT.md").exists()


def test_on_a_terminal_it_has_colours(checkout, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    swinbert(checkout)
    assert "\x1b[" in terminal.getvalue()
    assert "get_albert_model" in terminal.getvalue()


def test_check_tells_by_its_exit_status(checkout, capsys):
    assert swinbert(checkout, check=True) == 1
    assert swinbert(checkout, apply=True) == 0
    assert "ALBERT.md" in capsys.readouterr().out
    assert swinbert(checkout, check=True) == 0
    assert swinbert(checkout) == 0
    assert "nothing left to change" in capsys.readouterr().err
    assert swinbert(checkout, revert=True, json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["action"], report["migrated"], len(report["removed"])) == ("revert", False, 10)
    with pytest.raises(ConfigError, match="--apply and --revert at once"):
        swinbert(checkout, apply=True, revert=True)


def test_a_checkpoint_is_converted(golden, tmp_path, capsys):
    source = golden / "captioning" / "untied_seq2seq"
    with pytest.raises(CheckpointError, match="no-tokenizer"):
        swinbert_checkpoint(source, tmp_path / "out")
    swinbert_checkpoint(source, tmp_path / "out", tokenizer=golden / "captioning")
    printed = capsys.readouterr().out
    assert "6 cls_img_feat.*" in printed
    assert "- no swin.* in the file" in printed
    swinbert_checkpoint(source, tmp_path / "again", tokenizer=golden / "captioning", json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["max_abs_diff"], report["tied"], report["text_model"]) == (0, False, "bert")
