"""A store at an address is whole or none, is fetched once, and is what was written or an error."""

import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fault_moments import bytes_below
from word_tokenizer import WordTokenizer

from albertkit.corpus import BuildSettings, TokenStore, build_store
from albertkit.errors import AlbertKitError
from albertkit.tables.files import find_inputs

URL = "memory://bucket/stores/small"
SETTINGS = BuildSettings(shard_tokens=300)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALBERTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "in.txt").write_text(
        "\n\n".join(f"Document {i} begins.\nIt ends." for i in range(200))
    )
    return tmp_path / "in.txt"


def remote_contents(system, root="/bucket/stores/small/"):
    return {name.removeprefix(root): system.cat_file(name) for name in system.find(root)}


def test_built_here_and_uploaded_whole(text, tmp_path, memory, cache, slug_of):
    build_store([text], tmp_path / "local", WordTokenizer(), SETTINGS)
    report = build_store([text], URL, WordTokenizer(), SETTINGS)
    assert report.out == URL
    assert report.documents == 200
    assert report.shards > 3
    assert remote_contents(memory) == bytes_below(tmp_path / "local")
    assert not [path for path in cache.rglob("*") if path.is_file()]
    second_report = build_store([text], URL, WordTokenizer(), SETTINGS)
    assert second_report.already_built
    assert second_report.tokens == report.tokens
    assert slug_of(lambda: build_store([text], URL, WordTokenizer())) == "changed"
    build_store([text], URL, WordTokenizer(), overwrite=True)
    build_store([text], tmp_path / "one shard", WordTokenizer())
    # No shard of the larger one is left
    assert remote_contents(memory) == bytes_below(tmp_path / "one shard")


def test_inputs_and_foreign_folders(text, memory, slug_of):
    memory.pipe("/texts/a.txt", text.read_bytes())
    report = build_store(["memory://texts/*.txt"], URL, WordTokenizer())
    assert report.documents == 200
    assert slug_of(lambda: build_store([text], "memory://texts", WordTokenizer())) == "exists"
    with pytest.raises(AlbertKitError, match=r"(?s)\[not-installed\].*hint: pip install paramiko$"):
        find_inputs(["sftp://host/texts"])
    assert slug_of(lambda: find_inputs(["nosuch://host/texts"])) == "bad-value"
    assert slug_of(lambda: find_inputs(["memory://nowhere/at.txt"])) == "not-found"


@pytest.mark.parametrize(
    ("call", "overwrite"),
    [
        ("put_file", False),
        ("mv", False),
        ("put_file", True),
        ("rm_file", True),
    ],
)
def test_an_interrupted_upload_goes_on(text, tmp_path, memory, monkeypatch, call, overwrite):
    build_store([text], tmp_path / "local", WordTokenizer(), SETTINGS)
    if overwrite:
        build_store([text], URL, WordTokenizer(), BuildSettings(shard_tokens=100))
    kind = type(memory)
    original = getattr(kind, call)
    remaining_files = 0
    puts = []
    put_file = kind.put_file

    def dying(self, *arguments, **options):
        nonlocal remaining_files
        remaining_files -= 1
        if remaining_files == 0:
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    interrupted = 0
    for count in range(1, 60, 4):
        remaining_files = count
        monkeypatch.setattr(kind, call, dying)
        try:
            build_store([text], URL, WordTokenizer(), SETTINGS, overwrite=overwrite)
        except KeyboardInterrupt:
            interrupted += 1
            assert "manifest.json" not in remote_contents(memory) or overwrite
        else:
            break
        finally:
            monkeypatch.undo()
            monkeypatch.setenv("ALBERTKIT_CACHE", str(tmp_path / "cache"))
    assert interrupted
    monkeypatch.setattr(
        kind,
        "put_file",
        lambda self, *names, **options: (puts.append(names), put_file(self, *names, **options)),
    )
    build_store([text], URL, WordTokenizer(), SETTINGS)
    assert not puts  # all of it is there
    assert remote_contents(memory) == bytes_below(tmp_path / "local")


def test_fetched_once_and_checked(text, memory, cache, monkeypatch):
    build_store([text], URL, WordTokenizer(), SETTINGS)
    kind = type(memory)
    fetched_files = []
    get = kind.get_file
    monkeypatch.setattr(
        kind,
        "get_file",
        lambda self, name, *rest, **options: (
            fetched_files.append(name),
            get(self, name, *rest, **options),
        ),
    )
    store = TokenStore.open(URL)
    store.verify()
    assert store.num_documents == 200
    assert cache in store.folder.parents
    assert len(fetched_files) == len(store.manifest["files"])
    assert TokenStore.open(URL).fingerprint == store.fingerprint
    assert len(fetched_files) == len(store.manifest["files"])  # and not fetched again
    build_store([text], URL, WordTokenizer(), BuildSettings(shard_tokens=500), overwrite=True)
    # A store that was replaced is another one
    assert TokenStore.open(URL).num_shards < store.num_shards
    store.verify()


def test_a_fetch_goes_on_and_takes_nothing_on_trust(text, memory, cache, monkeypatch):
    build_store([text], URL, WordTokenizer(), SETTINGS)
    kind = type(memory)
    remaining_files = 5
    get = kind.get_file
    get_file = []

    def dying(self, name, target, **options):
        nonlocal remaining_files
        remaining_files -= 1
        get_file.append(name)
        if remaining_files == 0:
            Path(target).write_bytes(b"half of it")
            raise KeyboardInterrupt
        return get(self, name, target, **options)

    monkeypatch.setattr(kind, "get_file", dying)
    with pytest.raises(KeyboardInterrupt):
        TokenStore.open(URL)
    damaged = memory.cat_file("/bucket/stores/small/tokens-00002.bin")
    memory.pipe_file("/bucket/stores/small/tokens-00002.bin", damaged[:-1] + b"\x7f")
    with pytest.raises(AlbertKitError, match=r"\[corrupt\].*small/tokens-00002\.bin"):
        TokenStore.open(URL)
    memory.pipe_file("/bucket/stores/small/tokens-00002.bin", damaged)
    TokenStore.open(URL).verify()
    assert sorted(set(get_file)) == sorted(
        f"/bucket/stores/small/{name}" for name in TokenStore.open(URL).manifest["files"]
    )
    # Only what was cut off or damaged was fetched again
    assert len(get_file) - len(set(get_file)) == 2
    assert not list(cache.rglob(".partial*"))


@pytest.mark.parametrize(
    "name",
    "../../evil.bin /etc/evil tokenizer/../../evil tokens-00000.bin/x other.txt".split(),
)
def test_a_manifest_cannot_name_files_elsewhere(memory, name, slug_of):
    manifest = {"albertkit_store": 1, "files": {name: {"bytes": 1, "sha256": "0" * 64}}}
    memory.pipe_file("/bucket/stores/small/manifest.json", json.dumps(manifest).encode())
    assert slug_of(lambda: TokenStore.open(URL)) == "wrong-kind"
    assert slug_of(lambda: TokenStore.open("memory://bucket/nothing")) == "wrong-kind"


@pytest.fixture
def served(tmp_path, text):
    """A store on a local web server; `requests` fills with what was asked for."""
    build_store([text], tmp_path / "served/store", WordTokenizer(), SETTINGS)
    requests = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            requests.append(self.requestline)

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "served"))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


OPEN = """
import os, signal, sys
from albertkit.corpus import TokenStore
from albertkit.corpus import store as remote
if sys.argv[2] != "whole":
    left, check = int(sys.argv[2]), remote.sha256_file
    def dying(path):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return check(path)
    remote.sha256_file = dying
store = TokenStore.open(sys.argv[1])
store.verify()
print(store.num_documents)
"""


def opening(url, how):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, url, how], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_processes_that_fetch_at_once_and_one_that_is_killed(served):
    address, requests = served
    assert opening(f"{address}/store", "7").wait() == -signal.SIGKILL
    processes = [opening(f"{address}/store", "whole") for _ in range(3)]
    assert [process.communicate()[0] for process in processes] == ["200\n"] * 3
    fetched = [line.split()[1] for line in requests if line.startswith("GET") and ".bin" in line]
    # One file twice: what the killed process had not checked
    assert len(fetched) == len(set(fetched)) + 1


def test_text_from_a_web_server(served, text, tmp_path, slug_of):
    address, _ = served
    (tmp_path / "served/in.txt").write_bytes(text.read_bytes())
    build_store([f"{address}/in.txt"], tmp_path / "store", WordTokenizer(), SETTINGS)
    expected = bytes_below(tmp_path / "served/store")
    assert bytes_below(tmp_path / "store") == expected
    assert slug_of(lambda: TokenStore.open(f"{address}/nothing")) == "wrong-kind"
    assert slug_of(lambda: TokenStore.open("http://127.0.0.1:9/store")) == "unreachable"
