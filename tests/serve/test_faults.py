"""The worker is killed, the service is ended, the models cannot be loaded: every request is answered, nothing hangs."""

import itertools
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import httpx
import openai
import psutil
import pytest
from safetensors.torch import load_file, save_file

from albertkit.errors import AlbertKitError
from albertkit.serve.server import serve

PATIENCE = 120


@pytest.fixture(scope="module")
def served_folder(folders, tmp_path_factory):
    """A folder whose files are replaced for a while."""
    return shutil.copytree(folders["pretrained"], tmp_path_factory.mktemp("served") / "pretrained")


@pytest.fixture
def sturdy(served_folder, services):
    """A service with a key, whose workers are killed; it drains for three seconds.

    A request may wait for a worker that a busy machine takes minutes to start.
    """
    return services(
        served_folder, *"--batch-tokens 128 --drain-seconds 3 --timeout 600".split(), key="secret"
    )


def load(service, texts, clients, until):
    """Each client asks until told to stop: how often each status came, and errors of connections."""
    stopped = threading.Event()
    counts = Counter()

    def ask(number):
        with service.client() as client:
            for turn in itertools.count():
                if stopped.is_set():
                    return
                body = {"texts": [f"{texts[(number + 17 * turn) % len(texts)]} [MASK]"]}
                try:
                    answer = client.post("/fill-mask", json=body)
                except httpx.ConnectError:
                    counts["not accepted"] += 1
                    return
                except httpx.TransportError as error:
                    counts[type(error).__name__] += 1
                    return
                if answer.status_code == 200:
                    assert answer.json()["results"][0]["text"] == body["texts"][0]
                else:
                    assert answer.headers["Retry-After"]
                    time.sleep(0.05)
                counts[answer.status_code] += 1

    with ThreadPoolExecutor(clients) as pool:
        clients_running = [pool.submit(ask, number) for number in range(clients)]
        try:
            until(counts)
        finally:
            stopped.set()
        for client_running in clients_running:
            client_running.result(PATIENCE)
    return counts


def test_a_killed_worker_loses_no_request(sturdy, texts):
    first = sturdy.worker
    restarts = sturdy.metric("albertkit_worker_restarts_total")

    def kill(counts):
        sturdy.wait_until(lambda: counts[200] > 50)
        first.kill()
        sturdy.wait_until(lambda: sturdy.metric("albertkit_worker_restarts_total") == restarts + 1)
        sturdy.wait_until_ready()
        answered = counts[200]
        sturdy.wait_until(lambda: counts[200] > answered + 50)

    counts = load(sturdy, texts, 16, kill)
    assert counts.keys() <= {200, 503}, counts
    assert sturdy.worker.pid != first.pid
    assert sturdy.metric("albertkit_queue_tokens") == 0


def test_a_folder_that_was_replaced_is_not_mixed_with_what_the_service_holds(sturdy, served_folder):
    """The worker would load other weights than the tokenizer and the labels belong to: 200, and wrong."""
    weights = served_folder / "model.safetensors"
    original = weights.read_bytes()
    size = weights.stat().st_size
    ask = lambda: sturdy.post("/fill-mask", {"texts": ["the quick [MASK]"]})  # noqa: E731
    before = ask().json()
    save_file(
        {name: -value for name, value in load_file(weights).items()}, weights, {"format": "pt"}
    )
    os.utime(weights, (1, 1))
    assert weights.stat().st_size == size
    sturdy.worker.kill()
    sturdy.wait_until(lambda: ask().json().get("error", {}).get("slug") == "changed")
    assert ask().status_code == 503
    assert sturdy.get("/ready").status_code == 503
    weights.write_bytes(original)
    sturdy.wait_until_ready()
    assert ask().json() == before


@pytest.mark.skipif(sys.platform != "linux", reason="sets the limit of another process")
def test_a_worker_that_dies_while_no_descriptor_is_free_is_replaced_once_there_is_one(sturdy):
    limit = psutil.Process(sturdy.process.pid).rlimit
    before = limit(psutil.RLIMIT_NOFILE)
    first = sturdy.worker
    lowest = 3
    limit(psutil.RLIMIT_NOFILE, (lowest, before[1]))
    first.kill()
    sturdy.wait_until(
        lambda: any(line.get("message") == "no worker can be started" for line in sturdy.lines)
    )
    limit(psutil.RLIMIT_NOFILE, before)
    sturdy.wait_until_ready()
    assert sturdy.worker.pid != first.pid


def test_a_key(sturdy):
    for key, works in (("secret", True), ("other", False)):
        client = openai.OpenAI(base_url=f"{sturdy.url}/v1", api_key=key, max_retries=0)
        with nullcontext() if works else pytest.raises(openai.AuthenticationError):
            assert client.embeddings.create(input="the fox", model="pretrained").data
    open_paths = {
        "/health": 200,
        "/ready": 200,
        "/": 307,
        "/models": 401,
        "/metrics": 401,
        "/v1/models": 401,
    }
    with httpx.Client(base_url=sturdy.url, timeout=PATIENCE, trust_env=False) as client:
        assert {path: client.get(path).status_code for path in open_paths} == open_paths
        for path, body in (("/fill-mask", {"texts": "[MASK]"}), ("/", {"inputs": "the fox"})):
            assert client.post(path, json=body).json()["error"]["slug"] == "not-allowed"
            assert sturdy.post(path, body).status_code == 200
        for sent, status in (("bearer secret", 200), ("Basic secret", 401)):
            assert client.get("/metrics", headers={"Authorization": sent}).status_code == status


def test_an_end_under_load_answers_what_was_accepted(sturdy, texts):
    """SIGTERM to the whole group, as systemd and `timeout` send it, during a long request, most of which is still waiting.

    The workers go on, `/ready` says that the end is near, new requests are answered.
    """
    workers = sturdy.workers
    died = str(sturdy.lines).count("died")

    def end(counts):
        sturdy.wait_until(lambda: counts[200] > 50)
        # However slow this machine is, the request then waits when the end comes
        for worker in workers:
            worker.suspend()
        long_request = pool.submit(
            sturdy.post, "/fill-mask", {"texts": [f"{text} [MASK]" for text in texts] * 10}
        )
        sturdy.wait_until(lambda: sturdy.metric("albertkit_queue_tokens") > 1000)
        for process in (*workers, sturdy.process):
            process.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.resume()
        answer = sturdy.get("/ready")
        assert answer.status_code == 503
        assert answer.json() == {"status": "draining"}
        answer = sturdy.post("/fill-mask", {"texts": [f"{text} [MASK]" for text in texts]})
        assert answer.status_code == 200
        assert answer.headers["Connection"] == "close"
        long = long_request.result(PATIENCE)
        assert long.status_code == 200
        assert len(long.json()["results"]) == 10 * len(texts)
        assert sturdy.process.wait(PATIENCE) == 0

    with ThreadPoolExecutor(1) as pool:
        counts = load(sturdy, texts, 8, end)
    # A connection that is kept open for a next request may be closed just as one is sent: it was
    # not accepted.
    assert counts.keys() <= {
        200,
        "not accepted",
        "RemoteProtocolError",
        "ReadError",
        "WriteError",
    }, counts
    assert psutil.wait_procs(workers, timeout=PATIENCE)[1] == []
    assert str(sturdy.lines).count("died") == died


@pytest.mark.parametrize(
    ("model", "options", "slug"),
    [
        ("gone", {}, "not-found"),
        ("empty", {}, "not-found"),
        ("tag", {"port": "taken"}, "in-use"),
        ("tag", {"host": "192.0.2.1", "no_key": True}, "bad-value"),  # an address of nobody
        ("tag", {"host": "[::1]", "no_key": True}, "bad-value"),  # the name of nobody
    ],
)
def test_what_cannot_be_served_is_said_before_anything_listens(
    model, options, slug, folders, tmp_path
):
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if options.get("port") else 0
        with pytest.raises(AlbertKitError, match=rf"\[{slug}\]"):
            serve([str(folders.get(model, tmp_path / model))], **options | {"port": port})


def test_a_model_that_only_the_worker_finds_broken_ends_the_service(folders, tmp_path, run_command):
    """A captioner is loaded by the worker alone."""
    shutil.copytree(folders["caption"], tmp_path / "broken")
    for file in (tmp_path / "broken").glob("*.safetensors"):
        file.write_bytes(b"broken")
    ran = run_command("serve", tmp_path / "broken", "--port", 0)
    assert ran.status == 2
    assert "corrupt" in ran.err.splitlines()[-3]
