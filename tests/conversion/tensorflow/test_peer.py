"""Beside a real TensorFlow: we read what it writes, it reads what we write, and both write the same bytes.

ALBERTKIT_TENSORFLOW_PYTHON names a Python that has TensorFlow.
"""

import json
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

from albertkit.conversion.tensorflow.bundle import TensorBundle, open_saved_model, write_bundle
from albertkit.errors import AlbertKitError

pytestmark = pytest.mark.peer


def run_tensorflow(task, folder):
    python = os.environ.get("ALBERTKIT_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("ALBERTKIT_TENSORFLOW_PYTHON is not set")
    subprocess.run(
        [python, Path(__file__).with_name("tensorflow_side.py"), task, folder],
        check=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def tensorflow_files(tmp_path_factory):
    """What TensorFlow wrote."""
    folder = tmp_path_factory.mktemp("tensorflow")
    run_tensorflow("write", folder)
    return folder


@pytest.fixture(scope="module")
def values(tensorflow_files):
    """Name to type, shape and values of what TensorFlow wrote."""
    return pickle.loads((tensorflow_files / "values.pickle").read_bytes())


def described(bundle, names):
    return {
        short: (bundle.dtype(name), list(bundle.shape(name)), bundle.read(name).tolist())
        for name, short in names.items()
    }


def test_object_graph_with_cycles(tensorflow_files, values):
    bundle = TensorBundle.open(tensorflow_files / "object_graph")
    names = bundle.variable_names
    assert sorted(names.values()) == sorted(f"variable_{name}" for name in values)
    assert (
        described(bundle, {key: name.removeprefix("variable_") for key, name in names.items()})
        == values
    )


def test_saved_model(tensorflow_files, values):
    with open_saved_model(tensorflow_files / "saved_model") as (bundle, assets):
        names = bundle.variable_names
        assert (
            described(bundle, {key: name.removeprefix("variable_") for key, name in names.items()})
            == values
        )
        assert not assets


def test_merged_shards(tensorflow_files):
    bundle = TensorBundle.open(tensorflow_files / "shards")
    assert len(list((tensorflow_files / "shards").glob("*.data-*"))) == 3
    assert bundle.names == "a0 a1 a2 b0 b1 b2".split()
    assert [bundle.read(f"a{i}").tolist() for i in range(3)] == [[0], [1, 1], [2, 2, 2]]
    assert all(bundle.read(f"b{i}") == 0.5 for i in range(3))


def test_saver_with_a_partitioned_variable(tensorflow_files):
    bundle = TensorBundle.open(tensorflow_files / "saver")
    assert bundle.prefix.endswith("model.ckpt-7")
    assert bundle.names == ["bert/kernel", "global_step", "partitioned"]
    np.testing.assert_array_equal(bundle.read("bert/kernel"), np.eye(3))
    assert bundle.shape("partitioned") == (12, 3)
    with pytest.raises(AlbertKitError, match=r"(?s)\[unsupported\].*`partitioned`"):
        bundle.read("partitioned")


def test_every_type_but_bfloat16_and_our_bytes_are_tensorflows(tensorflow_files, values, tmp_path):
    bundle = TensorBundle.open(tensorflow_files / "plain")
    assert described(bundle, {name: name for name in bundle.names}) == {
        n: v for n, v in values.items() if n != "bfloat16"
    }
    tensors = {name: bundle.read(name) for name in bundle.names}
    assert_same_bytes(
        bundle, {**tensors, "float16": tensors["float16"].astype(np.float16)}, tmp_path
    )
    with pytest.raises(AssertionError):
        assert_same_bytes(bundle, tensors, tmp_path)  # float16 as float32


def test_an_index_of_several_blocks_has_tensorflows_bytes(tensorflow_files, tmp_path):
    bundle = TensorBundle.open(tensorflow_files / "many")
    assert (tensorflow_files / "many.index").stat().st_size > 3 * 262_144
    assert_same_bytes(bundle, {name: bundle.read(name) for name in bundle.names}, tmp_path)


def assert_same_bytes(bundle, tensors, folder):
    write_bundle(folder / "ours", tensors)
    for suffix in (".index", ".data-00000-of-00001"):
        assert (folder / f"ours{suffix}").read_bytes() == Path(bundle.prefix + suffix).read_bytes()


def test_tensorflow_reads_ours(tmp_path):
    tensors = {
        "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "global_step": np.array(125_000, np.int64),
        "half": np.array([0.5, 65504], np.float16),
        "flags": np.array([[True], [False]]),
        "words": np.array([b"", b"one", b"\xff\x00" * 1000], object),
        "none": np.zeros((0, 3), np.float64),
        **{
            f"model/layer_{i:05d}/kernel/.ATTRIBUTES/VARIABLE_VALUE": np.array([i], np.int32)
            for i in range(9000)
        },
    }
    write_bundle(tmp_path / "ours", tensors)
    assert (tmp_path / "ours.index").stat().st_size > 262_144
    run_tensorflow("read", tmp_path)
    values_read = pickle.loads((tmp_path / "found.pickle").read_bytes())
    assert values_read == {
        name: (
            "string" if values.dtype == object else values.dtype.name,
            list(values.shape),
            values.tolist(),
        )
        for name, values in tensors.items()
    }
    assert json.loads((tmp_path / "restored.json").read_text()) == tensors["kernel"].tolist()
