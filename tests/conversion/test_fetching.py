"""`convert` from addresses: archives on a local web server, in memory and in files; cut off, exchanged, damaged, out of reach."""

import hashlib
import shutil
import tarfile
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.conversion import checkpoints
from albertkit.conversion.checkpoints import fetch_archive_and_describe, fetch_model_and_describe
from albertkit.conversion.convert import convert
from albertkit.errors import AlbertKitError
from albertkit.model import AlbertForPreTraining

CONFIG = AlbertConfig(
    vocab_size=500,
    embedding_size=64,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=32,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALBERTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checkpoints, "_STEP", 1 << 14)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A checkpoint of TensorFlow 1, packed as Google packs them."""
    folder = tmp_path_factory.mktemp("published")
    torch.manual_seed(0)
    AlbertForPreTraining(CONFIG).save_pretrained(folder / "ours")
    convert(folder / "ours", folder / "albert_tiny", to="tf1")
    with tarfile.open(folder / "albert_tiny.tar.gz", "w:gz") as packed:
        packed.add(folder / "albert_tiny", "albert_tiny")
    return folder / "albert_tiny.tar.gz"


class Server(ThreadingHTTPServer):
    """Serves one body under every path. `cut`: bytes after which answers break off; `ranges`: whether a part can be asked for."""

    body = b""
    tag = "one"
    md5 = ""
    cut = 0
    ranges = True
    request_starts = ()

    def handle_error(self, *_):
        """Clients go where the connection was cut."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        server, body = self.server, self.server.body
        requested_range = self.headers.get("Range")
        if server.ranges and requested_range:
            first, _, last = requested_range.removeprefix("bytes=").partition("-")
            begin = int(first)
            end = min(int(last or len(body)), len(body) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(body)}")
            body = body[begin : end + 1]
        else:
            begin = 0
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes" if server.ranges else "none")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{server.tag}"')
        if server.md5:
            self.send_header("Content-MD5", server.md5)
        self.end_headers()
        if with_body:
            server.request_starts = (*server.request_starts, begin)
            if server.cut and begin + len(body) > server.cut:
                self.wfile.write(body[: max(server.cut - begin, 0)])
                self.wfile.flush()
                self.connection.close()
            else:
                self.wfile.write(body)


@pytest.fixture
def server(archive):
    http_server = Server(("127.0.0.1", 0), Handler)
    http_server.body = archive.read_bytes()
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    yield http_server
    http_server.shutdown()
    http_server.server_close()


def url_of(server, name="albert_tiny.tar.gz"):
    return f"http://127.0.0.1:{server.server_port}/{name}"


def refused(address, slug, message=""):
    with pytest.raises(AlbertKitError) as caught:
        fetch_model_and_describe(address)
    assert caught.value.slug == slug, caught.value
    assert message in f"{caught.value.message} {caught.value.hint}"
    return caught.value


def has_same_tensors(folder, archive):
    ours, theirs = (
        AlbertForPreTraining.from_pretrained(converted, strict=True).state_dict()
        for converted in (folder, archive.parent / "ours")
    )
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_archive_is_converted_from_every_kind_of_address(archive, server, tmp_path):
    fsspec.filesystem("memory").pipe_file("/published/albert_tiny.tar.gz", archive.read_bytes())
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    for number, address in enumerate(
        (url_of(server), "memory://published/albert_tiny.tar.gz", archive.as_uri())
    ):
        report = convert(f"{address}#sha256={sha256}", tmp_path / str(number))
        assert has_same_tensors(tmp_path / str(number), archive)
        assert report.kind == "TensorFlow 1 checkpoint"
        (sha256_note,) = [note for note in report.notes if "sha256" in note]
        assert sha256 in sha256_note
        assert "downloaded" in sha256_note


def test_what_was_downloaded_is_kept_and_used_where_the_address_is_out_of_reach(server, cache):
    file, note = fetch_archive_and_describe(url_of(server))
    assert note.startswith("downloaded")
    num_requests = server.request_starts
    second_file, note = fetch_archive_and_describe(url_of(server))
    assert second_file == file
    assert "the copy in" in note
    assert server.request_starts == num_requests
    server.shutdown()
    server.server_close()
    second_file, note = fetch_archive_and_describe(url_of(server))
    assert second_file == file
    assert "cannot be reached: the copy of 20" in note
    file.write_bytes(b"damaged")
    refused(url_of(server), "unreachable")


def test_an_interrupted_download_goes_on_where_it_ended(server, archive, cache):
    server.cut = len(server.body) // 2
    refused(url_of(server), "unreachable")
    (partial,) = cache.rglob(".partial-*")
    had = partial.stat().st_size
    assert 0 < had <= server.cut
    server.cut = 0
    server.request_starts = ()
    file, _ = fetch_archive_and_describe(url_of(server))
    assert file.read_bytes() == archive.read_bytes()
    assert min(server.request_starts) == had
    assert not list(cache.rglob(".partial-*"))


def test_it_begins_again_where_the_server_has_no_ranges_or_another_file(server, archive, cache):
    server.cut = len(server.body) // 2
    refused(url_of(server), "unreachable")
    server.cut = 0
    server.tag = "two"
    server.request_starts = ()
    server.body = archive.read_bytes()[:-8] + archive.read_bytes()[-8:][::-1]
    file, _ = fetch_archive_and_describe(url_of(server))
    assert file.read_bytes() == server.body
    assert min(server.request_starts) == 0
    server.ranges, server.body, server.tag, server.cut = (
        False,
        archive.read_bytes(),
        "three",
        len(server.body) // 2,
    )
    refused(url_of(server), "unreachable")
    server.cut = 0
    assert fetch_archive_and_describe(url_of(server))[0].read_bytes() == archive.read_bytes()


def test_checksums_are_verified(server, cache):
    right = hashlib.sha256(server.body).hexdigest()
    error = refused(
        f"{url_of(server)}#sha256={'0' * 64}", "corrupt", f"has the sha256 {right}, not 000"
    )
    assert "rm -r" in error.hint
    refused(f"{url_of(server)}#sha256=12", "bad-value", "64 hexadecimal digits")
    refused(f"{url_of(server)}#md5=12", "bad-value", "#sha256=")
    server.md5 = b64encode(hashlib.md5(b"another").digest()).decode()
    server.tag = "four"
    refused(url_of(server), "corrupt", "the server states")
    assert not list(cache.rglob(".partial-*"))
    server.md5 = b64encode(hashlib.md5(server.body).digest()).decode()
    server.tag = "five"
    assert fetch_archive_and_describe(url_of(server))[1].endswith(right)


def test_what_is_no_archive_is_said(server):
    server.body = b"<!DOCTYPE html><html>Not here any more</html>"
    refused(url_of(server), "wrong-kind", "not an archive")
    refused(url_of(server, "albert_base"), "bad-value", "does not end in .tar.gz")
    refused("memory://published/none.tar.gz", "not-found")
    refused("nothing://published/none.tar.gz", "bad-value")


@pytest.mark.parametrize(
    ("address", "url", "name"),
    [
        (
            "https://tfhub.dev/google/albert_base/3",
            "https://tfhub.dev/google/albert_base/3?tf-hub-format=compressed",
            "google-albert_base-3.tar.gz",
        ),
        (
            "https://tfhub.dev/tensorflow/albert_en_base/2?tf-hub-format=compressed",
            "https://tfhub.dev/tensorflow/albert_en_base/2?tf-hub-format=compressed",
            "tensorflow-albert_en_base-2.tar.gz",
        ),
        (
            "gs://albert_models/albert_base_v2.tar.gz",
            "https://storage.googleapis.com/albert_models/albert_base_v2.tar.gz",
            "albert_base_v2.tar.gz",
        ),
    ],
)
def test_published_addresses(monkeypatch, address, url, name):
    monkeypatch.setattr(checkpoints, "find_spec", lambda _: None)
    assert checkpoints.address_and_file_name(address) == (url, name)


def test_an_address_as_model_names_convert():
    with pytest.raises(AlbertKitError) as caught:
        AlbertForPreTraining.from_pretrained(
            "https://storage.googleapis.com/albert_models/albert_base_v2.tar.gz"
        )
    assert "albertkit convert 'https://storage" in caught.value.hint


@pytest.mark.parametrize("folder", ["folder", "checkpoint"])
def test_a_folder_is_fetched_with_vocabulary_and_configuration(archive, tmp_path, folder):
    plain = archive.parent / "albert_tiny"
    system = fsspec.filesystem("memory")
    system.rm("/bucket", recursive=True) if system.exists("/bucket") else None
    for file in plain.iterdir():
        system.pipe(f"/bucket/albert_v2_base/{file.name}", file.read_bytes())
    system.pipe("/bucket/albert_v2_base/30k-clean.vocab", b"<pad>\t0\n")
    system.pipe("/bucket/albert_v2_base/events.out.tfevents.1", b"of the training")
    address = "memory://bucket/albert_v2_base"
    (prefix,) = (file.name.removesuffix(".index") for file in plain.glob("*.index"))
    if folder == "checkpoint":
        system.pipe(f"/bucket/albert_v2_base/{prefix}-9.index", b"another")
        refused(address, "ambiguous", address)
        address += f"/{prefix}"
    report = convert(f"{address}/" if folder == "folder" else address, tmp_path / "out")
    assert has_same_tensors(tmp_path / "out", archive)
    assert any(address in note and "30k-clean.vocab" in note for note in report.notes)
    assert not any("tfevents" in note for note in report.notes)
    shutil.rmtree(tmp_path / "out")
    system.rm(f"/bucket/albert_v2_base/{prefix}.index")
    refused(address, "not-found" if folder == "checkpoint" else "wrong-kind")


def test_messages_show_the_address_that_was_typed(monkeypatch):
    real = fsspec.core.url_to_fs

    def without_package(url, **options):
        if url.startswith("gs://"):
            raise ImportError("Please install gcsfs to access Google Storage")
        return real(url, **options)

    monkeypatch.setattr(fsspec.core, "url_to_fs", without_package)
    error = refused(
        "gs://cloud-tpu-checkpoints/albert/albert_v2_base",
        "not-installed",
        "`gs://cloud-tpu-checkpoints",
    )
    assert error.hint == "pip install gcsfs"
    assert "https://" not in error.message
