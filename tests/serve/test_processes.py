"""The front's end of a worker: processes that end before they are spoken to."""

import asyncio
import errno
import os
import pickle
import shutil
import subprocess
import sys

import pytest
import uvloop

from albertkit.serve.options import ServeOptions
from albertkit.serve.processes import WorkerProcess
from albertkit.serve.protocol import Alive, StartMessage, pack_message

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture
def start(monkeypatch):
    """Return the first message of a worker whose process ends at once."""
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    return StartMessage({}, ServeOptions(["model"]))


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_message_to_a_worker_that_has_ended_is_dropped(loop_factory, start):
    """A request that comes between the end of a worker and its discovery waits for the next worker; it got status 500."""

    async def talk():
        worker = WorkerProcess(start)
        await worker.connect()
        assert await worker.receive() is None
        for _ in range(3):
            worker.send(Alive())
            await asyncio.sleep(0)
        await worker.end()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(talk())


def test_a_worker_does_not_know_the_key(start, monkeypatch):
    started = {}
    popen = subprocess.Popen
    monkeypatch.setenv("ALBERTKIT_API_KEY", "a-secret")
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **options: started.update(options) or popen(*a, **options)
    )
    options = ServeOptions(["model"])
    assert options.api_key == "a-secret"
    WorkerProcess(StartMessage({}, options)).kill()
    assert "a-secret" not in started["env"].values()
    assert b"a-secret" not in pack_message(StartMessage({}, options))
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_process_that_cannot_be_started_leaves_no_descriptor_open(start, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="unavailable") as error:
        WorkerProcess(start)
    assert len(os.listdir("/proc/self/fd")) == before
    del error
