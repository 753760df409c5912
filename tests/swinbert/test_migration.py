"""The migration of a SwinBERT checkout: what it edits, twice is once, back to the byte, killed anywhere, refused elsewhere."""

import ast
import difflib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.swinbert.migrate import migrate_checkout, show_migration

TRAIN = "src/tasks/run_caption_VidSwinBert.py"
INFERENCE = "src/tasks/run_caption_VidSwinBert_inference.py"
VIDEO = "src/modeling/video_captioning_e2e_vid_swin_bert.py"
SAVING = "src/utils/load_save.py"
SCORING = "src/evalcap/utils_caption_evaluate.py"
CONFIG = "src/configs/config.py"
ADDED = {
    *(f"src/layers/albert/{name}.py" for name in (
        "__init__", "modeling_albert", "tokenization_albert", "tokenization_utils", "modeling_utils", "file_utils",
    )),
    "src/modeling/load_albert.py", "ALBERT.md",
    "src/configs/VidSwinBert/vatex_8frm_albert.json", "src/configs/VidSwinBert/local_debug_albert.json",
}  # fmt: skip


def changed_words(before, after):
    """Return what two texts differ in, word by word and sign by sign."""
    old, new = (re.findall(rb"'[^']*'|\w+|[^\w\s]", content) for content in (before, after))
    parts = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        ([w.decode() for w in old[a:b]], [w.decode() for w in new[c:d]])
        for kind, a, b, c, d in parts
        if kind != "equal"
    ]


def test_a_few_places_of_two_scripts_and_some_new_files(checkout, files_of):
    before = files_of(checkout)
    report = migrate_checkout(checkout, apply=True)
    after = {
        path: content
        for path, content in files_of(checkout).items()
        if not path.startswith(".albertkit-migration")
    }
    assert (
        set(report.changed)
        == {path for path in before if before[path] != after[path]}
        == {TRAIN, INFERENCE}
    )
    assert set(report.added) == after.keys() - before.keys() == ADDED
    for script in (TRAIN, INFERENCE):
        changes = [
            (["load_bert"], ["load_albert"]),
            (["get_bert_model"], ["get_albert_folder", ",", "get_albert_model"]),
            ([], [",", "'layer_norm.weight'"]),
            (
                ["'models/captioning/bert-base-uncased/'"],
                ["get_albert_folder", "(", "args", ",", "train_args", ")"],
            ),
            (["get_bert_model"], ["get_albert_model"]),
        ]
        if script == INFERENCE:
            del changes[2]
        assert changed_words(before[script], after[script]) == changes
        # Nothing but those tokens: put back by hand, the bytes are the original's.
        text = after[script].replace(
            b"get_albert_folder(args, train_args)", b"'models/captioning/bert-base-uncased/'"
        )
        text = (
            text.replace(b"get_albert_folder, ", b"")
            .replace(b", 'layer_norm.weight'", b"")
            .replace(b"_albert", b"_bert")
        )
        assert text == before[script]
    assert after[INFERENCE].startswith(b"\xef\xbb\xbf")
    assert after[INFERENCE].count(b"\r\n") == before[INFERENCE].count(b"\r\n") > 0
    values = json.loads(after["src/configs/VidSwinBert/vatex_8frm_albert.json"])
    assert values == {
        "model_name_or_path": "models/captioning/albert-base-v2/",
        "output_dir": "output/vatex_albert",
        "seed": 88,
        "mixed_precision_method": "deepspeed",
        "use_checkpoint": True,
    }


def test_twice_is_once_and_back_is_to_the_byte(checkout, files_of):
    original = files_of(checkout)
    os.chmod(checkout / TRAIN, 0o755)
    for portable in (False, True):
        assert not migrate_checkout(checkout, check=True, portable=portable).migrated
        migrate_checkout(checkout, apply=True, portable=portable)
        once = files_of(checkout)
        second = migrate_checkout(checkout, apply=True, portable=portable)
        assert files_of(checkout) == once
        assert second.changed == ()
        assert second.added == ()
        assert second.diff == ""
        assert migrate_checkout(checkout, check=True).migrated  # --portable stays chosen
    assert (checkout / TRAIN).stat().st_mode & 0o777 == 0o755
    report = migrate_checkout(checkout, revert=True)
    assert set(report.removed) == ADDED
    assert files_of(checkout) == original
    assert not (checkout / "src/layers/albert").exists()
    assert not (checkout / ".albertkit-migration.patch").exists()
    assert (checkout / TRAIN).stat().st_mode & 0o777 == 0o755
    assert migrate_checkout(checkout, revert=True).notes  # nothing to take back
    assert files_of(checkout) == original


@pytest.mark.parametrize(
    "patch", [b"no patch", b"--- a/../out.py\n+++ b/../out.py\n@@ -1 +1 @@\n-a\n+b\n"]
)
def test_a_damaged_patch_is_noticed_and_none_reaches_out_of_the_checkout(checkout, files_of, patch):
    migrate_checkout(checkout, apply=True)
    (checkout / ".albertkit-migration.patch").write_bytes(patch)
    before = files_of(checkout)
    for action in ("apply", "revert"):
        with pytest.raises(CheckpointError, match=r"\[corrupt\]"):
            migrate_checkout(checkout, **{action: True})
    assert files_of(checkout) == before


def test_git_alone_takes_it_back(checkout, files_of):
    original = files_of(checkout)
    migrate_checkout(checkout, apply=True, portable=True)
    undo = ["git", "apply", "-R", ".albertkit-migration.patch"]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(checkout.parent)}
    subprocess.run(undo, cwd=checkout, env=environment, capture_output=True, check=True)
    files = {
        path: content
        for path, content in files_of(checkout).items()
        if not path.startswith(".albertkit")
    }
    assert files == original


def test_portable(checkout, files_of):
    before = files_of(checkout)
    report = migrate_checkout(checkout, apply=True, portable=True)
    assert set(report.changed) == {TRAIN, INFERENCE, VIDEO, SAVING, SCORING, CONFIG}
    after = files_of(checkout)
    lines = after[TRAIN].decode().splitlines()
    assert lines[5:9] == [
        "from albertkit.swinbert.optional_packages import available_device, optional",
        'deepspeed = optional("deepspeed")',
        'amp = optional("apex", "amp")',
        'DDP = optional("apex.parallel", "DistributedDataParallel")  # the one of apex',
    ]
    assert 'Run = optional("azureml.core.run", "Run")' in lines
    assert "        from fairscale.optim.oss import OSS" in lines  # imported when used already
    assert b"own = torch.eye(self.tokens).to(next(self.parameters()).device)\n" in after[VIDEO]
    assert (
        b"return x.to('cuda' if torch.cuda.is_available() else 'cpu')  # set before\n"
        in after[SAVING]
    )
    assert "    args.device = available_device(args.device)" in lines
    assert b"default='cuda' if torch.cuda.is_available() else 'cpu',\n" in after[CONFIG]
    assert after[SCORING].decode().splitlines()[1:5] == [
        "from albertkit.swinbert.optional_packages import optional",
        'COCO = optional("src.evalcap.coco_caption.pycocotools.coco", "COCO")',
        'COCOEvalCap = optional("src.evalcap.coco_caption.pycocoevalcap.eval", "COCOEvalCap")',
        'CiderD = optional("src.evalcap.cider.pyciderevalcap.ciderD.ciderD", "CiderD")',
    ]
    assert after["src/layers/bert/modeling_bert.py"] == before["src/layers/bert/modeling_bert.py"]
    assert after["src/evalcap/python2.py"] == before["src/evalcap/python2.py"]
    values = json.loads(after["src/configs/VidSwinBert/vatex_8frm_albert.json"])
    assert values["mixed_precision_method"] == "apex"
    assert values["use_checkpoint"] is False
    for path in (*report.changed, *ADDED):
        if path.endswith(".py"):
            ast.parse(after[path])


def test_the_diff_is_one_that_git_applies(checkout, files_of, tmp_path):
    shutil.copytree(checkout, tmp_path / "copy")
    before = files_of(checkout)
    diff = migrate_checkout(checkout, portable=True).diff
    assert files_of(checkout) == before
    git = subprocess.run(
        ["git", "apply", "-p1", "-"],
        cwd=tmp_path / "copy",
        input=diff.encode("utf-8", "surrogateescape"),
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert git.returncode == 0, git.stderr
    migrate_checkout(checkout, apply=True, portable=True)
    applied = {
        path: content
        for path, content in files_of(checkout).items()
        if not path.startswith(".albertkit")
    }
    assert files_of(tmp_path / "copy") == applied


def killed_after(writes, checkout, action):
    """Run an action in a process of its own, which ends without any cleaning up after so many files were written."""
    process = os.fork()
    if process == 0:
        real = os.replace
        remaining_writes = iter(range(writes))
        os.replace = lambda source, target: (
            real(source, target) if next(remaining_writes, None) is not None else os._exit(9)
        )
        try:
            migrate_checkout(checkout, **{action: True}, portable=True)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9


def test_killed_anywhere_it_goes_on_or_back(checkout, files_of, tmp_path):
    def files(folder):
        return {
            path: content
            for path, content in files_of(folder).items()
            if not path.startswith(".albertkit")
        }

    original = files(checkout)
    finished = Path(shutil.copytree(checkout, tmp_path / "finished"))
    migrate_checkout(finished, apply=True, portable=True)
    expected = {"apply": files(finished), "revert": original}
    for writes in (0, 4, 5, 13):
        for then in ("apply", "revert"):
            copy = tmp_path / f"{then}-{writes}"
            shutil.copytree(checkout, copy)
            assert killed_after(writes, copy, "apply")
            migrate_checkout(copy, **{then: True}, portable=True)
            assert files(copy) == expected[then]
            assert (copy / "src/layers/albert").exists() == (then == "apply")
    assert not killed_after(99, finished, "apply")
    assert killed_after(1, finished, "revert")
    migrate_checkout(finished, revert=True)
    assert files_of(finished) == original


def test_one_patch_is_enough_where_portable_is_added_later(checkout, files_of, tmp_path):
    original = files_of(checkout)
    finished = Path(shutil.copytree(checkout, tmp_path / "finished"))
    migrate_checkout(finished, apply=True, portable=True)
    migrate_checkout(checkout, apply=True)
    for writes in (0, 9, 27):
        for action, expected in (("apply", files_of(finished)), ("revert", original)):
            copy = Path(shutil.copytree(checkout, tmp_path / f"{action}-{writes}"))
            was_killed = killed_after(writes, copy, "apply")
            migrate_checkout(copy, **{action: True}, portable=True)
            assert files_of(copy) == expected
    assert not was_killed  # the last had nothing left to write


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "from src.modeling.load_bert import get_bert_model",
            "from src.modeling.load_bert import get_bert_model as get",
        ),
        ("from src.modeling.load_bert import get_bert_model\n", ""),
        ("get_bert_model(args)", "get_bert_model(args, True)"),
        ("    bert_model, config", "    again = get_bert_model\n    bert_model, config"),
        ("'models/captioning/bert-base-uncased/'", "'models/mine/'"),
        (
            "return train_args",
            "train_args.model_name_or_path = 'bert-base-uncased'\n    return train_args",
        ),
        ("def main(args):", "def main(args) -> :"),
    ],
)
def test_another_script_is_refused_before_anything_is_written(checkout, files_of, old, new):
    script = checkout / TRAIN
    assert old in script.read_text()
    script.write_text(script.read_text().replace(old, new))
    before = files_of(checkout)
    with pytest.raises(DataError, match=r"\[unsupported\]") as raised:
        migrate_checkout(checkout, apply=True)
    assert TRAIN in raised.value.message
    assert files_of(checkout) == before


def test_force_edits_what_can_be_edited(checkout, files_of):
    script = checkout / TRAIN
    script.write_text(
        script.read_text().replace("'models/captioning/bert-base-uncased/'", "'models/mine/'")
    )
    before = files_of(checkout)
    report = migrate_checkout(checkout, apply=True, force=True)
    assert "bert-base-uncased is there 0 times" in report.notes[0]
    assert "get_albert_model(args)" in script.read_text()
    assert "'models/mine/'" in script.read_text()
    migrate_checkout(checkout, revert=True)
    assert files_of(checkout) == before


def test_another_list_of_what_does_not_decay_is_reported(checkout):
    script = checkout / TRAIN
    script.write_text(script.read_text().replace("['bias', 'LayerNorm.bias'", "['bias', 'mine'"))
    report = migrate_checkout(checkout, apply=True)
    assert report.notes == (
        f"{TRAIN}: its list `no_decay` is not as in SwinBERT: ALBERT's full_layer_layer_norm is decayed",
    )
    assert "get_albert_folder(args, train_args)" in script.read_text()


def test_what_was_edited_since_is_not_lost(checkout, files_of):
    original = files_of(checkout)
    migrate_checkout(checkout, apply=True)
    script = checkout / TRAIN
    config = checkout / "src/configs/VidSwinBert/vatex_8frm_albert.json"
    migrated = script.read_bytes()
    script.write_bytes(migrated + b"\n# mine\n")
    for portable in (False, True):  # in another place than the migration's: kept, whatever is done
        migrate_checkout(checkout, apply=True, portable=portable)
        assert script.read_bytes().endswith(b"# mine\n")
    migrate_checkout(checkout, revert=True)
    assert files_of(checkout) == original | {TRAIN: original[TRAIN] + b"\n# mine\n"}
    script.write_bytes(original[TRAIN])
    migrate_checkout(checkout, apply=True)
    edited = migrated.replace(b"get_albert_model(args)", b"get_albert_model(args, 1)")
    script.write_bytes(edited)
    for action in ("revert", "apply"):
        with pytest.raises(CheckpointError, match=r"\[exists\]"):
            migrate_checkout(checkout, **{action: True})
        assert script.read_bytes() == edited
    script.write_bytes(migrated)
    config.write_text("{}")
    report = migrate_checkout(checkout, apply=True)
    assert report.notes == (f"left as it was edited: {config.relative_to(checkout).as_posix()}",)
    assert config.read_text() == "{}"
    with pytest.raises(CheckpointError, match=r"\[exists\]"):
        migrate_checkout(checkout, revert=True)
    assert config.read_text() == "{}"
    config.unlink()
    migrate_checkout(checkout, revert=True)
    assert files_of(checkout) == original


def test_a_file_in_the_way(checkout, files_of):
    loader = checkout / "src/modeling/load_albert.py"
    loader.write_text("def get_albert_model(args): pass\n")
    before = files_of(checkout)
    with pytest.raises(CheckpointError, match=r"\[exists\]"):
        migrate_checkout(checkout, apply=True)
    assert files_of(checkout) == before
    migrate_checkout(checkout, apply=True, force=True)
    assert b"albertkit" in loader.read_bytes()
    migrate_checkout(checkout, revert=True)
    assert files_of(checkout) == before


def test_what_is_no_checkout(tmp_path, checkout):
    with pytest.raises(DataError, match="not-found"):
        migrate_checkout(tmp_path)
    with pytest.raises(ConfigError, match="--apply and --revert cannot be combined"):
        migrate_checkout(checkout, apply=True, revert=True)
    (checkout / "src/configs/VidSwinBert/local_debug.json").write_text(
        '{"a": 1, // as in the guide of 2024\n}'
    )
    with pytest.raises(DataError, match="bad-file"):
        migrate_checkout(checkout, apply=True)
    (checkout / INFERENCE).unlink()
    with pytest.raises(DataError, match="not-found"):
        migrate_checkout(checkout, apply=True)


def test_a_link_stays_a_link(checkout, tmp_path):
    elsewhere = tmp_path / "script.py"
    shutil.move(checkout / TRAIN, elsewhere)
    (checkout / TRAIN).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    migrate_checkout(checkout, apply=True)
    assert (checkout / TRAIN).is_symlink()
    assert b"get_albert_model" in elsewhere.read_bytes()
    migrate_checkout(checkout, revert=True)
    assert (checkout / TRAIN).is_symlink()
    assert elsewhere.read_bytes() == before


def test_the_diff_goes_to_stdout_to_the_byte(checkout, monkeypatch):
    script = checkout / TRAIN
    script.write_bytes(b"# -*- coding: latin-1 -*-\n" + script.read_bytes() + b"# caf\xe9\n")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    show_migration(migrate_checkout(checkout))
    out.flush()
    printed = out.buffer.getvalue()
    assert b"\n-from src.modeling.load_bert import get_bert_model\n" in printed
    assert (
        b"\n+from src.modeling.load_albert import get_albert_folder, get_albert_model\n" in printed
    )
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
    show_migration(migrate_checkout(checkout))
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
    assert report["action"] == "revert"
    assert report["migrated"] is False
    assert len(report["removed"]) == 10
    refused = run("--apply", "--revert")
    assert refused.status == 2
    assert "--apply and --revert cannot be combined" in refused.err
