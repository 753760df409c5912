"""A build on a real Ray cluster of two nodes: the bytes of a local build, with workers and nodes killed in the middle."""

import json
import os
import signal
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from fault_moments import bytes_below
from ray_cluster import ray_cluster
from word_tokenizer import SlowTokenizer, WordTokenizer

from albertkit.corpus import BuildSettings, build_store
from albertkit.errors import AlbertKitError, DataError
from albertkit.job import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra `cluster` is not installed"),
]

SETTINGS = BuildSettings(shard_tokens=20_000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """1 MB in two formats: duplicates within and across files, faulty bytes, files of many sizes."""
    folder = tmp_path_factory.mktemp("corpus")

    def document(number):
        return "\n".join(
            f"Sentence {number % 700} {line} is here." for line in range(1 + number % 13)
        )

    for name, first in (("a", 0), ("b", 300)):
        text = "\n\n".join(document(number) for number in range(first, first + 1000))
        (folder / f"{name}.txt").write_bytes(text.encode() + b"\n\nCaf\xe9.\n")
    (folder / "c.jsonl").write_text(
        "\n".join(json.dumps({"text": document(n)}) for n in range(500, 1500))
    )
    for number in range(30):
        (folder / f"d{number}.txt").write_text(f"{document(number)}\n\nOnly in {number}.\nYes.")
    return folder


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "store"
    build_store([corpus], out, WordTokenizer(), SETTINGS, errors="replace")
    return bytes_below(out)


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster([1, 1]) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("albertkit.corpus.cluster.PART_BYTES", 20_000)
    monkeypatch.setattr("albertkit.job.COMMIT_SECONDS", 0.0)


def build(corpus, out, cluster, tokenizer=None, **options):
    options = {"errors": "replace", **options}
    return build_store(
        [corpus],
        out,
        tokenizer or SlowTokenizer(),
        SETTINGS,
        engine="ray",
        address=cluster.address,
        **options,
    )


def after_results(monkeypatch, count, action):
    """Do something once a build has this many results."""
    commit = Job.commit
    remaining_results = count

    def counting(self, **facts):
        nonlocal remaining_results
        remaining_results -= 1
        if remaining_results == 0:
            action()
        commit(self, **facts)

    monkeypatch.setattr(Job, "commit", counting)


def workers_of_ray():
    """Processes that Ray's workers run in while they have a task of ours."""
    workers = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(b"ray::encode_part"):
                workers.append(int(process.name))
        except OSError:
            continue
    return workers


def test_two_nodes_give_the_bytes_of_one_machine(corpus, expected, tmp_path, cluster):
    report = build(corpus, tmp_path / "store", cluster)
    assert bytes_below(tmp_path / "store") == expected
    assert report.nodes == 2
    assert report.workers >= 2
    assert report.duplicate_documents > 500
    assert report.bad_bytes == 2


def test_a_worker_killed_in_the_middle(corpus, expected, tmp_path, cluster, monkeypatch):
    killed = []

    def kill():  # while the build goes on: a worker is to be met at its work; three kills cannot be four tries
        while len(killed) < 3:
            for process in workers_of_ray()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)

    thread = threading.Thread(target=kill, daemon=True)
    after_results(monkeypatch, 10, thread.start)
    build(corpus, tmp_path / "store", cluster)
    assert killed
    assert bytes_below(tmp_path / "store") == expected


def test_a_driver_that_ends_in_the_middle_goes_on(corpus, expected, tmp_path, cluster, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        after_results(patch, 25, stop)
        with pytest.raises(KeyboardInterrupt):
            build(corpus, tmp_path / "store", cluster)
    with pytest.raises(AlbertKitError, match=r"\[changed\].*differing: engine"):
        build_store([corpus], tmp_path / "store", SlowTokenizer(), SETTINGS, errors="replace")
    results = []
    commit = Job.commit
    monkeypatch.setattr(
        Job, "commit", lambda self, **facts: (results.append(1), commit(self, **facts))
    )
    report = build(corpus, tmp_path / "store", cluster)
    assert report.resumed
    assert bytes_below(tmp_path / "store") == expected
    assert len(results) < 60  # of more than 80


def test_bad_input_names_the_line_of_the_file(corpus, tmp_path, cluster):
    with pytest.raises(DataError) as local:
        build_store([corpus / "a.txt"], tmp_path / "local", WordTokenizer(), SETTINGS)
    with pytest.raises(DataError) as remote:
        build(corpus / "a.txt", tmp_path / "store", cluster, errors="strict")
    assert remote.value.slug == "bad-encoding"
    assert remote.value.message == local.value.message


def test_what_kills_every_worker_is_named(tmp_path, cluster):
    (tmp_path / "in.txt").write_text("Fine.\nYes.\n\nWorkers die here.\nNo.")
    with pytest.raises(AlbertKitError, match=r"\[worker-died\].*4 workers died .* `.*in.txt`"):
        build(tmp_path / "in.txt", tmp_path / "store", cluster)


def kill_machine(cluster):
    """All of a node at once. Its workers alone would work on for a while without their raylet."""
    node = cluster.worker_nodes.copy().pop()
    raylet = node.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGKILL)
    for process in workers_of_ray():
        if f"RAY_RAYLET_PID={raylet}\0".encode() in Path(f"/proc/{process}/environ").read_bytes():
            os.kill(process, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


def test_a_node_killed_in_the_middle(corpus, expected, tmp_path, cluster, monkeypatch):
    after_results(monkeypatch, 10, lambda: kill_machine(cluster))
    build(corpus, tmp_path / "store", cluster)
    assert bytes_below(tmp_path / "store") == expected
