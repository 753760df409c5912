"""The worker is killed, the service is ended, the models cannot be loaded: every request is answered, nothing hangs."""

import itertools
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from albertkit.errors import AlbertKitError
from albertkit.serve import ServeSettings, serve

PATIENCE = 120


@pytest.fixture
def alone(folders, running):
    """A service of its own, to be ended."""
    with running(folders["pretrained"], "--batch-tokens", 128) as found:
        yield found


@pytest.fixture(scope="module")
def sturdy(folders, running):
    """A service whose workers are killed."""
    with running(folders["pretrained"], "--batch-tokens", 128) as found:
        yield found


def load(service, texts, clients, until):
    """Each client asks until told to stop: how often each status came, and errors of connections."""
    stopped = threading.Event()
    found = Counter()

    def ask(number):
        with service.client() as client:
            for turn in itertools.count():
                if stopped.is_set():
                    return
                body = {"texts": [f"{texts[(number + 17 * turn) % len(texts)]} [MASK]"]}
                try:
                    answer = client.post("/fill-mask", json=body)
                except httpx.ConnectError:
                    found["not accepted"] += 1
                    return
                except httpx.TransportError as error:
                    found[type(error).__name__] += 1
                    return
                if answer.status_code == 200:
                    assert answer.json()["results"][0]["text"] == body["texts"][0]
                else:
                    assert answer.headers["Retry-After"]
                    time.sleep(0.05)
                found[answer.status_code] += 1

    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(ask, number) for number in range(clients)]
        try:
            until(found)
        finally:
            stopped.set()
        for one in asked:
            one.result(PATIENCE)
    return found


def test_a_killed_worker_loses_no_request(sturdy, texts):
    first, restarts = sturdy.worker, sturdy.metric("albertkit_worker_restarts_total")

    def kill(found):
        sturdy.wait_until(lambda: found[200] > 50)
        first.kill()
        sturdy.wait_until(lambda: sturdy.metric("albertkit_worker_restarts_total") == restarts + 1)
        sturdy.wait_until_ready()
        again = found[200]
        sturdy.wait_until(lambda: found[200] > again + 50)

    found = load(sturdy, texts, 16, kill)
    assert found.keys() <= {200, 503}, found
    assert sturdy.worker.pid != first.pid
    assert sturdy.metric("albertkit_queue_tokens") == 0


def test_a_request_that_a_killed_worker_had_is_computed_by_the_next(sturdy):
    worker = sturdy.worker
    worker.suspend()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(sturdy.post, "/fill-mask", {"texts": ["the [MASK] fox"] * 200})
        sturdy.wait_until(lambda: sturdy.metric("albertkit_queue_tokens") > 0)
        worker.kill()
        answer = asked.result(PATIENCE)
    assert answer.status_code == 200
    assert len(answer.json()["results"]) == 200


def test_an_end_under_load_answers_what_was_accepted(alone, texts):
    """Also a long request, most of which is still waiting."""
    worker = alone.worker

    def end(found):
        alone.wait_until(lambda: found[200] > 50)
        asked = pool.submit(alone.post, "/fill-mask", {"texts": [f"{text} [MASK]" for text in texts] * 10})
        alone.wait_until(lambda: alone.metric("albertkit_queue_tokens") > 1000)
        alone.process.send_signal(signal.SIGTERM)
        long = asked.result(PATIENCE)
        assert (long.status_code, len(long.json()["results"])) == (200, 10 * len(texts))
        assert alone.process.wait(PATIENCE) == 0

    with ThreadPoolExecutor(1) as pool:
        found = load(alone, texts, 8, end)
    # A connection that is kept open for a next request may be closed just as one is sent: it was not accepted.
    assert found.keys() <= {200, "not accepted", "RemoteProtocolError", "ReadError", "WriteError"}, found
    assert not psutil.pid_exists(worker.pid) or worker.status() == psutil.STATUS_ZOMBIE


def test_a_killed_front_takes_its_worker_along(alone):
    worker = alone.worker
    alone.end(signal.SIGKILL)
    assert psutil.wait_procs([worker], timeout=PATIENCE)[1] == []


def test_what_cannot_be_served_is_said_before_anything_listens(folders, service, tmp_path):
    (tmp_path / "empty").mkdir()
    taken = int(service.url.rsplit(":", 1)[1])
    for model, settings, slug in (
        (tmp_path / "gone", {"port": 0}, "not-found"),
        (tmp_path / "empty", {"port": 0}, "not-found"),
        (folders["tag"], {"port": taken}, "cannot-listen"),
        (folders["tag"], {"port": 0, "host": "192.0.2.1", "no_key": True}, "cannot-listen"),  # an address of nobody
    ):
        with pytest.raises(AlbertKitError) as error:
            serve([str(model)], ServeSettings(**settings))
        assert error.value.slug == slug


def test_a_model_that_only_the_worker_finds_broken_ends_the_service(folders, tmp_path):
    """A captioner is loaded by the worker alone."""
    shutil.copytree(folders["caption"], tmp_path / "broken")
    for file in (tmp_path / "broken").glob("*.safetensors"):
        file.write_bytes(b"broken")
    command = "import sys; from albertkit.serve import serve, ServeSettings; serve(sys.argv[1:], ServeSettings(port=0))"
    done = subprocess.run(
        [sys.executable, "-c", command, tmp_path / "broken"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "broken-weights" in done.stderr.splitlines()[-3]
