"""What a process knows of torchrun from its environment, and how processes of one start find each other."""

import json
import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore, TCPStore

from albertkit.errors import ConfigError
from albertkit.training import launch
from albertkit.training.processes import agree_on_start_name

LAUNCHED = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "RANK": "0"}


@pytest.fixture
def torchrun(monkeypatch, tmp_path):
    """Sets the environment of a process that torchrun has started so often before."""

    def set_environment(restarts):
        file = tmp_path / "logs" / f"attempt_{restarts}" / "0/error.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        values = {
            **LAUNCHED,
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
            "TORCHELASTIC_ERROR_FILE": str(file),
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        return file

    return set_environment


def test_a_person_resumes_what_is_there_torchrun_also_what_is_not(
    tmp_path, torchrun, capsys, slug_of
):
    empty = tmp_path / "empty"
    started = tmp_path / "there"
    (started / "seed-1").mkdir(parents=True)
    (started / "seed-1/run.toml").write_text("")
    assert slug_of(launch.check_whether_to_resume, empty, True) == "missing-file"
    assert [
        launch.check_whether_to_resume(empty, False),
        launch.check_whether_to_resume(started, False),
        launch.check_whether_to_resume(started, True),
    ] == [
        False,
        False,
        True,
    ]
    torchrun(0)
    assert not launch.check_whether_to_resume(
        started, False
    )  # a first start: the folder holds another run
    assert not launch.check_whether_to_resume(empty, True)
    assert f"no run in `{empty}` yet: one is started" in capsys.readouterr().err
    torchrun(1)
    assert [
        launch.check_whether_to_resume(empty, False),
        launch.check_whether_to_resume(started, False),
        launch.check_whether_to_resume(started, True),
    ] == [
        False,
        True,
        True,
    ]


def test_a_mistake_of_the_user_is_not_tried_again(torchrun):
    torchrun(0)
    assert not launch.was_refused_before()
    launch.record_failure(ConfigError("bad-value", "lr is -1", "use another"))
    file = torchrun(1)
    assert launch.was_refused_before()
    # What torchrun sums up at its end
    assert "lr is -1" in json.loads(file.read_text())["message"]["message"]


def test_a_fault_of_the_machine_is_tried_again(torchrun):
    error = ConfigError("bad-value", "lr is -1")
    error.exit_code = 1
    torchrun(0)
    launch.record_failure(error)
    torchrun(1)
    assert not launch.was_refused_before()


def test_of_many_the_first_that_fails_speaks(monkeypatch):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert [launch.claim_first_failure() for _ in range(3)] == [True, False, False]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert launch.claim_first_failure()


@pytest.mark.parametrize("size", [2, 5])
def test_processes_of_one_start_agree_on_its_name_whatever_dead_ones_left(size):
    store = HashStore()
    names = []
    for _ in range(3):  # starts of one launch; nothing is removed between them
        of_start = {}

        def come(rank, of_start=of_start):
            of_start[rank] = agree_on_start_name(store, rank, size, timedelta(seconds=20))

        threads = [threading.Thread(target=come, args=(rank,)) for rank in reversed(range(size))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(of_start) == size
        assert len(set(of_start.values())) == 1
        names.append(of_start[0])
    assert len(set(names)) == 3
    with pytest.raises(RuntimeError, match="1 of 2 processes did not come"):
        agree_on_start_name(HashStore(), 0, 2, timedelta(seconds=0.2))


@pytest.mark.parametrize(
    ("machines", "rank", "value", "warns"),
    [
        ("2", "0", None, True),
        ("2", "0", "0", True),
        ("2", "0", "1", False),
        ("2", "1", None, False),
        ("1", "0", None, False),
    ],
)
def test_several_machines_are_told_of_the_store_that_they_share(
    monkeypatch, capsys, machines, rank, value, warns
):
    monkeypatch.setenv("GROUP_WORLD_SIZE", machines)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.delenv(launch.SEPARATE_STORE, raising=False)
    if value is not None:
        monkeypatch.setenv(launch.SEPARATE_STORE, value)
    launch.warn_of_shared_store()
    assert (
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all of them" in capsys.readouterr().err
    ) == warns
