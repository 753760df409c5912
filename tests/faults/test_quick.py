"""A few faults in every default run: the others are `make faults`."""

import os

import pytest

from albertkit.errors import (
    AlbertKitError,
    CheckpointError,
    DataError,
    MachineError,
    explain_os_error,
)
from albertkit.files import (
    atomic_file,
    atomic_folder,
    files_not_matching_checksums,
    lock_folder,
    remove_folder,
    remove_leftovers,
    write_checksums,
)
from albertkit.report.doctor import verify_files
from albertkit.tasks.settings import FinetuneSettings
from albertkit.training.run import open_run
from albertkit.training.settings import check_no_other_files


def in_a_fork(function):
    """Exit status of a process that does this; 9 where albertkit states an error."""
    process = os.fork()
    if not process:
        try:
            function()
        except AlbertKitError:
            os._exit(9)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def dying_in(context):
    def die():
        with context():
            os._exit(7)

    assert in_a_fork(die) == 7


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_what_a_dead_process_left_goes_when_the_same_is_written_again(tmp_path):
    dying_in(lambda: atomic_file(tmp_path / "a"))
    dying_in(lambda: atomic_folder(tmp_path / "b"))
    assert len(names(tmp_path)) == 2
    # A living one's stays
    with atomic_file(tmp_path / "a") as stream, atomic_file(tmp_path / "a") as second_stream:
        stream.write(b"1")
        second_stream.write(b"2")
    with atomic_folder(tmp_path / "b"):
        pass
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_moved_aside_for_nothing_goes_back(tmp_path):
    (tmp_path / ".partial-old-best-0123abcd").mkdir()
    (tmp_path / ".partial-old-best-0123abcd/model").touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path / "best") == ["model"]
    (tmp_path / ".partial-old-best-0123abcd").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["best"]
    remove_folder(tmp_path / "best")
    assert names(tmp_path) == []


def test_one_process_writes_to_a_folder_and_its_death_frees_it(tmp_path):
    folder = tmp_path / "x/run"

    def write():
        with lock_folder(folder):
            (folder / "file").touch()

    with lock_folder(folder):
        assert in_a_fork(write) == 9
    assert names(tmp_path) == []  # nothing was written: nothing is left
    dying_in(lambda: lock_folder(folder))
    assert in_a_fork(write) == 0
    assert names(folder) == ["file"]


def test_a_training_holds_its_folder_and_takes_no_other(tmp_path):
    out = tmp_path / "run"
    with open_run(out, FinetuneSettings(), "training"):
        second = lock_folder(out)
        with pytest.raises(MachineError, match="another process"), second:
            pass
    (tmp_path / "run").mkdir()
    for log in ("train.log", "log.txt", "train-log.txt", "stdout.txt"):
        (tmp_path / "run" / log).touch()
    check_no_other_files(tmp_path / "run")
    (tmp_path / "run/thesis.docx").touch()
    with pytest.raises(CheckpointError, match=r"thesis\.docx"):
        check_no_other_files(tmp_path / "run")


def test_a_run_is_not_begun_in_a_folder_of_text_data(tmp_path):
    (tmp_path / "msr_paraphrase_train.txt").touch()
    with pytest.raises(CheckpointError, match=r"msr_paraphrase_train\.txt"):
        check_no_other_files(tmp_path)


def test_changed_files_are_named(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best/model.safetensors").write_bytes(b"weights")
    with pytest.raises(DataError, match="nothing below"):
        verify_files(tmp_path)
    write_checksums(tmp_path / "best")
    assert verify_files(tmp_path).models == 1
    (tmp_path / "best/model.safetensors").write_bytes(b"weightz")
    assert files_not_matching_checksums(tmp_path / "best") == ["model.safetensors"]
    with pytest.raises(DataError, match=r"model\.safetensors"):
        verify_files(tmp_path)


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (OSError(5, "Input/output error", "x"), "input-output"),
        (OSError(27, "File too large"), "input-output"),
        (MemoryError(), "out-of-memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "out-of-memory",
        ),
    ],
)
def test_what_the_machine_says_is_explained(error, slug):
    assert explain_os_error(error).slug == slug
    assert explain_os_error(RuntimeError("a bug")) is None


def test_half_a_tokenizer_is_none(tmp_path, monkeypatch):
    from albertkit.tokenizer import train_tokenizer

    def full(*_):
        raise OSError(28, "No space left on device")

    texts = ["the quick brown fox jumps over a lazy dog"] * 20
    with monkeypatch.context() as patch:
        # The last of its three files
        patch.setattr("albertkit.tokenizer.tokenizer.write_json", full)
        with pytest.raises(OSError, match="No space"):
            train_tokenizer(texts, tmp_path / "tokenizer", vocab_size=41)
    assert names(tmp_path) == []
    train_tokenizer(texts, tmp_path / "tokenizer", vocab_size=41)
    assert names(tmp_path / "tokenizer") == [
        "spiece.model",
        "spiece.vocab",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
