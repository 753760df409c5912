"""Object graphs, SavedModels and hub modules, whole, packed and hostile."""

import gzip
import io
import json
import random
import tarfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from albertkit.conversion.tensorflow.bundle import (
    MAX_GRAPH_BYTES,
    OBJECT_GRAPH,
    TensorBundle,
    _ObjectGraph,
    open_saved_model,
    write_bundle,
)
from albertkit.errors import AlbertKitError


def scalar(text):
    return np.array(text, object)


def fact_of(call):
    with pytest.raises(AlbertKitError) as caught:
        call()
    assert caught.value.slug == "corrupt"
    return caught.value.message


def open_and_close(path):
    with open_saved_model(path):
        pass


def pack(path, files, *members):
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return path


@pytest.fixture
def module(tmp_path):
    """The files of a hub module of TensorFlow 1."""
    write_bundle(
        tmp_path / "made/variables",
        {"module/bert/pooler/dense/bias": np.arange(3, dtype=np.float32)},
    )
    files = {f"variables/{file.name}": file.read_bytes() for file in (tmp_path / "made").iterdir()}
    return {
        **files,
        "tfhub_module.pb": b"\x08\x03",
        "saved_model.pb": b"\n\x00",
        "assets/30k-clean.model": b"pieces",
    }


@pytest.mark.parametrize("folder", ["mg211_saved_model", "mg23_saved_model"])
def test_saved_models(golden, folder, tmp_path):
    path = golden / "tf2" / folder
    described = json.loads((path / "keys.json").read_text())
    with tarfile.open(path / "saved_model.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for source in (path / "saved_model.tar.gz", tmp_path):
        with open_saved_model(source) as (bundle, assets):
            keys = {
                n: {"shape": list(bundle.shape(n)), "dtype": bundle.dtype(n)}
                for n in [*bundle.names, OBJECT_GRAPH]
            }
            assert keys == described["keys"]
            assert bundle.variable_names == described["variable_names"]
            assert {name: file.read_bytes() for name, file in assets.items()} == {
                "spm_asset.model": (tmp_path / "assets/spm_asset.model").read_bytes()
            }
            by_name = {name: bundle.read(key) for key, name in bundle.variable_names.items()}
        if folder == "mg211_saved_model":  # made from a TensorFlow 1 checkpoint
            original = TensorBundle.open(golden / "tf1/pretrain_a")
            values = original.read(
                "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel"
            )
            expected = {
                "word_embeddings/embeddings": original.read("bert/embeddings/word_embeddings"),
                "transformer/self_attention/query/kernel": values.reshape(32, 4, 8),
            }
        else:
            expected = dict(np.load(golden / "tf2/mg23_model/weights_by_name.npz"))
            assert set(expected) == set(by_name)
        for name, values in expected.items():
            assert_array_equal(by_name[name], values)


def test_a_module_of_tensorflow_1(module, tmp_path):
    folder = tmp_path / "folder"
    for name, content in module.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    wrapped = {f"./albert_base_1/{name}": content for name, content in module.items()}
    for source in (
        folder,
        pack(tmp_path / "a.tar.gz", module),
        pack(tmp_path / "b.tar", module),
        pack(tmp_path / "c.tar.gz", wrapped),
    ):
        with open_saved_model(source) as (bundle, assets):
            assert bundle.variable_names == {
                "module/bert/pooler/dense/bias": "module/bert/pooler/dense/bias"
            }
            assert_array_equal(bundle.read("module/bert/pooler/dense/bias"), [0, 1, 2])
            assert {name: file.read_bytes() for name, file in assets.items()} == {
                "30k-clean.model": b"pieces"
            }
            unpacked = assets["30k-clean.model"]
        assert unpacked.exists() == (source is folder)  # what was unpacked is gone


def test_errors_name_the_archive(module, tmp_path):
    module["variables/variables.data-00000-of-00001"] = bytes(12)
    with (
        pytest.raises(AlbertKitError, match=r"damaged\.tar\.gz/variables") as caught,
        open_saved_model(pack(tmp_path / "damaged.tar.gz", module)) as (bundle, _),
    ):
        bundle.read("module/bert/pooler/dense/bias")
    assert caught.value.slug == "corrupt"
    for path in (tmp_path / "nothing", pack(tmp_path / "empty.tar.gz", {})):
        with pytest.raises(AlbertKitError) as caught:
            open_and_close(path)
        assert caught.value.slug == "not-found"
        assert str(path) in caught.value.message


def test_hostile_archives(module, tmp_path):
    outside = tmp_path / "outside"
    assert "outside" in fact_of(
        lambda: open_and_close(pack(tmp_path / "a.tar", {f"../../..{outside}": b""}))
    )
    assert not outside.exists()
    link = tarfile.TarInfo("variables/variables.index")
    link.type = tarfile.SYMTYPE
    link.linkname = "/etc/passwd"
    assert "not a plain file" in fact_of(lambda: open_and_close(pack(tmp_path / "b.tar", {}, link)))
    members = {f"assets/{i}": b"" for i in range(1001)}
    assert "more than 1000" in fact_of(lambda: open_and_close(pack(tmp_path / "c.tar.gz", members)))
    big = {**module, "saved_model.pb": bytes(70_000_000)}
    assert "unpacks to more than" in fact_of(
        lambda: open_and_close(pack(tmp_path / "d.tar.gz", big))
    )
    holes = tarfile.TarInfo("saved_model.pb")  # one byte of data, a terabyte long
    holes.pax_headers = {
        f"GNU.sparse.{key}": value
        for key, value in (
            ("major", "1"),
            ("minor", "0"),
            ("name", "x"),
            ("realsize", "1099511627776"),
        )
    }
    holes.size = 512
    with tarfile.open(tmp_path / "f.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(holes, io.BytesIO(b"1\n0\n0\n".ljust(512, b"\0")))
    assert "not a plain file" in fact_of(lambda: open_and_close(tmp_path / "f.tar"))
    twice = tarfile.TarInfo("tfhub_module.pb/inside")
    assert "not a complete tar archive" in fact_of(
        lambda: open_and_close(pack(tmp_path / "e.tar.gz", module, twice))
    )


def test_damaged_archives(module, tmp_path):
    content = pack(tmp_path / "whole.tar.gz", module).read_bytes()
    path = tmp_path / "damaged.tar.gz"
    for damaged in (
        b"",
        b"text",
        content[:2],
        content[: len(content) // 2],
        gzip.compress(b"no tar" * 1000),
    ):
        path.write_bytes(damaged)
        assert "tar archive" in fact_of(lambda: open_and_close(path))
    text = {**module, "assets/text": bytes(random.Random(0).choices(range(16), k=100_000))}
    compressed = pack(tmp_path / "text.tar.gz", text).read_bytes()
    for start in range(1000, len(compressed) - 100, len(compressed) // 60):
        path.write_bytes(compressed[:start] + b"\xff" * 100 + compressed[start + 100 :])
        assert "tar archive" in fact_of(lambda: open_and_close(path))
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    path.write_bytes(flipped)
    assert fact_of(lambda: open_and_close(path))


def test_graphs_with_cycles_strangers_and_nothing(tmp_path):
    """Children are not described, so a graph of protobuf's full message is read with them left aside."""
    graph = _ObjectGraph()
    graph.nodes.add().attributes.add(full_name="kernel", checkpoint_key="a")
    graph.nodes.add().attributes.add(full_name="elsewhere", checkpoint_key="not in the checkpoint")
    graph.nodes.add().attributes.add(checkpoint_key="b")
    # Nodes {children {node_id: 3 local_name: ""}}
    child_of_itself = bytes.fromhex("0a 06 0a 04 0803 1200")
    tensors = {
        "a": np.float32(1),
        "b": np.float32(2),
        OBJECT_GRAPH: scalar(graph.SerializeToString() + child_of_itself),
    }
    write_bundle(tmp_path / "x", tensors)
    bundle = TensorBundle.open(tmp_path)
    assert bundle.names == ["a", "b"]
    assert bundle.variable_names == {"a": "kernel", "b": "b"}


@pytest.mark.parametrize(
    "graph",
    [
        scalar(b"\x0a\x7f"),
        scalar(b"\xff" * 100),
        scalar(b"\x0a\x05\x12\x03\x12\x01\xff"),  # a name that is not text
        scalar(bytes(MAX_GRAPH_BYTES + 1)),
        np.array([b"", b""], object),
        np.float32(1),
    ],
)
def test_hostile_graphs(tmp_path, graph):
    write_bundle(tmp_path / "x", {"a": np.float32(1), OBJECT_GRAPH: graph})
    bundle = TensorBundle.open(tmp_path)
    assert bundle.read("a") == 1
    fact_of(lambda: bundle.variable_names)
