"""A job that is killed anywhere and run again ends with the bytes of an undisturbed one; what is damaged is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import fault_moments
import pytest
from fault_moments import bytes_below, in_a_fork

from albertkit import job as job_module
from albertkit.errors import AlbertKitError
from albertkit.files import read_json, sha256_bytes
from albertkit.job import Job, check_made_from
from albertkit.output.progress import ProgressBar


def count(folder, key="a", overwrite=False, total=5):
    """A job with everything: parts, growing files that are committed in time, one that is discarded, a result."""
    work = folder / ".work"
    with Job(work, {"what": key, "total": total}, into=folder, overwrite=overwrite) as job:
        if job.finished:
            job.publish("result.json")
            return "published"
        if not job.resumed and (folder / "result.json").exists() and not overwrite:
            check_made_from(folder, read_json(folder / "result.json")["key"], job.key)
            return "there"
        how = "resumed" if job.resumed else "new"
        for name in job.missing([f"folder/part-{number}" for number in range(2)]):
            with job.part(name) as stream:
                stream.write(name.encode() * 1000)
        for number in range(job.facts.get("done", 0), total):
            name = f"grown-{number // 2}"
            job.write(name, f"{key} {number}\n".encode() * 5000)
            job.write("scratch", b"x")
            if number % 2:
                job.close(name)
            if number == 3:
                job.discard("scratch")
            job.commit(done=number + 1)
        if "scratch" in job.files:
            job.discard("scratch")
            job.commit(**job.facts)
        sums = {
            name: committed.sha256 for name, committed in job.files.items() if name != "result.json"
        }
        with job.part("result.json") as stream:
            stream.write(json.dumps({"key": job.key, "sums": sums}).encode())
        job.publish("result.json", replaces=["grown-*"])
    return how


@pytest.mark.parametrize("do", ["kill", "half"])
def test_killed_at_every_moment_and_again(tmp_path, do):
    """In an interpreter of its own: a fork of this one, with all that was imported, takes 30 ms in place of 3."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(fault_moments.__file__).parent), *sys.path])
    }
    command = [sys.executable, __file__, str(tmp_path), do]
    process = subprocess.run(command, env=environment, text=True, stderr=subprocess.PIPE)
    assert process.returncode == 0, process.stderr


def kill_at_every_moment_and_again(tmp_path, do):
    status, moments = in_a_fork(tmp_path / "whole", lambda: count(tmp_path / "whole"))
    expected = bytes_below(tmp_path / "whole")
    assert status == 0
    assert (
        sorted(expected)
        == "folder/part-0 folder/part-1 grown-0 grown-1 grown-2 result.json".split()
    )
    assert len(moments) > 50
    sums = json.loads(expected["result.json"])["sums"]
    assert all(sha256_bytes(expected[name]) == digest for name, digest in sums.items())
    kill_moments = [
        at for at, name in enumerate(moments, 1) if do == "kill" or name.startswith("write")
    ]
    for turn, at in enumerate(kill_moments):
        folder = tmp_path / f"{turn}"
        assert (
            in_a_fork(folder, lambda folder=folder: count(folder), at, do)[0] == -signal.SIGKILL
        ), moments[at - 1]
        # Killed again, or through
        in_a_fork(folder, lambda folder=folder: count(folder), 7 + turn % 20, do)
        count(folder)
        assert bytes_below(folder) == expected, moments[at - 1]
        assert not (folder / ".work").exists()
        assert count(folder) == "there"


class Interrupted(Exception):
    pass


def interrupted(folder, monkeypatch, appends=6):
    """A job that ended after so many lines of its log."""
    append = Job._append_commit
    remaining = iter(range(appends))

    def ending(self, commit):
        if next(remaining, None) is None:
            raise Interrupted
        append(self, commit)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "_append_commit", ending)
        with pytest.raises(Interrupted):
            count(folder)


def test_what_was_done_is_not_done_again(tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch)
    part = tmp_path / ".work/folder/part-0"
    before = part.stat().st_mtime_ns
    written_names = []
    write = Job.write
    monkeypatch.setattr(
        Job,
        "write",
        lambda self, name, content: (written_names.append(name), write(self, name, content)),
    )
    assert count(tmp_path) == "resumed"
    assert len(written_names) < 8
    assert (tmp_path / "folder/part-0").stat().st_mtime_ns == before


def damage(file, how):
    content = file.read_bytes()
    if how == "byte":
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    elif how == "short":
        content = content[: len(content) // 2]
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how != "missing":
        file.write_bytes(content)


@pytest.mark.parametrize("how", ["byte", "short", "missing", "folder"])
@pytest.mark.parametrize("name", ["commits.jsonl", "folder/part-0", "grown-0"])
def test_what_is_damaged_is_refused_or_begun_again(tmp_path, monkeypatch, name, how, slug_of):
    count(tmp_path / "whole")
    interrupted(tmp_path / "out", monkeypatch)
    damage(tmp_path / "out/.work" / name, how)
    if name != "commits.jsonl" or how in ("byte", "folder"):
        assert slug_of(lambda: count(tmp_path / "out")) == "corrupt"
        assert count(tmp_path / "out", overwrite=True) == "new"
    elif how == "missing":
        assert count(tmp_path / "out") == "new"
    else:  # a log that was cut off: the files are cut back to what it still says
        assert slug_of(lambda: count(tmp_path / "out", key="b")) == "changed"
        count(tmp_path / "out")
    assert bytes_below(tmp_path / "out") == bytes_below(tmp_path / "whole")


def test_a_line_that_was_not_finished_is_no_commit(tmp_path, monkeypatch):
    count(tmp_path / "whole")
    interrupted(tmp_path / "out", monkeypatch)
    with open(tmp_path / "out/.work/commits.jsonl", "ab") as log:
        log.write(b"0123456789abcdef {")
    (tmp_path / "out/.work/stranger").touch()
    assert count(tmp_path / "out") == "resumed"
    assert bytes_below(tmp_path / "out") == bytes_below(tmp_path / "whole")


def test_other_work_is_named_and_replaced_only_when_asked(tmp_path, monkeypatch):
    interrupted(tmp_path / "out", monkeypatch)
    with pytest.raises(AlbertKitError, match=r"unfinished work .*\(differing: total, what\)"):
        count(tmp_path / "out", "b", total=7)
    count(tmp_path / "out", "b", overwrite=True, total=7)
    with pytest.raises(AlbertKitError, match=r"made otherwise \(differing: total, what\)"):
        count(tmp_path / "out")
    count(tmp_path / "out", overwrite=True)
    count(tmp_path / "whole")
    # Grown-3 of the other is gone
    assert bytes_below(tmp_path / "out") == bytes_below(tmp_path / "whole")


def test_one_process_works_and_nothing_is_left_of_nothing(tmp_path, slug_of):
    with Job(tmp_path / "x/work", {}, into=tmp_path / "x"):
        assert slug_of(lambda: Job(tmp_path / "x/work", {}).__enter__()) == "in-use"
    assert not list(tmp_path.iterdir())
    (tmp_path / "work").mkdir()
    (tmp_path / "work/rubbish").touch()
    with Job(tmp_path / "work", {}):
        pass
    assert not list(tmp_path.iterdir())


def test_a_name_may_not_leave_the_folder(tmp_path, slug_of):
    text = json.dumps({"key": {}, "files": {"../x": [0, ""]}})
    (tmp_path / "commits.jsonl").write_text(f"{sha256_bytes(text.encode())[:16]} {text}\n")
    assert slug_of(lambda: Job(tmp_path, {}).__enter__()) == "corrupt"


def test_several_processes_share_the_parts(tmp_path):
    names = [f"{number}" for number in range(6)]
    for _ in range(2):
        with Job(tmp_path / "work", {}) as first, Job(tmp_path / "work", {}, rank=1) as second:
            for job, mine in ((first, names[:4:2]), (second, names[1:4:2])):
                for name in job.missing(mine):
                    with job.part(name) as stream:
                        stream.write(name.encode())
    with Job(tmp_path / "work", {}) as job:
        assert sorted(job.files) == ["0", "1", "2", "3"]
        assert list(job.missing(names)) == ["4", "5"]
        job.mark("4")
        assert list(job.missing(names)) == ["5"]
        job.discard("1")
        job.commit()
    with Job(tmp_path / "work", {}) as job:
        assert list(job.missing(names)) == ["1", "5"]


def test_a_commit_is_due_now_and_then(tmp_path, monkeypatch):
    with Job(tmp_path / "work", {}) as job:
        assert not job.is_due
        monkeypatch.setattr(job_module, "COMMIT_SECONDS", 0.0)
        assert job.is_due


def test_progress_in_a_pipe(capsys, monkeypatch):
    monkeypatch.setattr("albertkit.output.progress._LINE_SECONDS", 0.0)
    with (
        ProgressBar("encoding", 2000, "texts") as texts,
        ProgressBar("building", 400, "bytes") as size,
    ):
        texts.say("3 files")
        texts.update(1000)
        texts.update(2000, "2 skipped")
        size.update(100, "7 documents")
    with ProgressBar("silent", 1, "texts", enabled=False) as silent:
        silent.say("nothing")
        silent.update(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "3 files"
    assert lines[1].startswith("encoding: 1,000 of 2,000 texts, ")
    assert lines[2:] == ["encoding: 2,000 of 2,000 texts, 2 skipped", "building: 25%, 7 documents"]


if __name__ == "__main__":
    kill_at_every_moment_and_again(Path(sys.argv[1]), sys.argv[2])
