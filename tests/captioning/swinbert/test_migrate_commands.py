"""`albertkit migrate swinbert` and `swinbert-checkpoint`: what they print and how they end."""

import io
import sys

import pytest

from albertkit.captioning.swinbert.migration.migrate import migrate, show

pytestmark = pytest.mark.filterwarnings("ignore:head size")


def test_the_diff_goes_to_stdout_to_the_byte(checkout, monkeypatch):
    script = checkout / "src/tasks/run_caption_VidSwinBert.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\n" + script.read_bytes() + b"# caf\xe9\n")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    show(migrate(checkout))
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
    show(migrate(checkout))
    assert "\x1b[" in terminal.getvalue()
    assert "get_albert_model" in terminal.getvalue()


def test_check_tells_by_its_exit_status(checkout, run_command):
    def run(*flags):
        return run_command("migrate", "swinbert", checkout, *flags)

    assert run("--check").status == 1
    applied = run("--apply")
    assert applied.status == 0
    assert "ALBERT.md" in applied.out
    assert run("--check").status == 0
    assert "nothing left to change" in run().err
    report = run("--revert", "--json").json
    assert (report["action"], report["migrated"], len(report["removed"])) == ("revert", False, 10)
    refused = run("--apply", "--revert")
    assert refused.status == 2
    assert "--apply and --revert at once" in refused.err


def test_a_checkpoint_is_converted(golden, tmp_path, run_command):
    def run(name, *flags):
        source = golden / "captioning" / "untied_seq2seq"
        return run_command("migrate", "swinbert-checkpoint", source, tmp_path / name, *flags)

    assert "no-tokenizer" in run("out").err
    printed = run("out", "--tokenizer", golden / "captioning").out
    assert "6 cls_img_feat.*" in printed
    assert "- no swin.* in the file" in printed
    report = run("again", "--tokenizer", golden / "captioning", "--json").json
    assert (report["max_abs_diff"], report["tied"], report["text_model"]) == (0, False, "bert")
