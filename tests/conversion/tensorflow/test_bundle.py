"""Tensor bundles beside TensorFlow's own: every golden checkpoint, damage, and the ways to name a checkpoint."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from albertkit.conversion.tensorflow.bundle import (
    TensorBundle,
    bundle_shard_name,
    decode_strings_and_checksum,
    encode_strings_and_checksum,
    write_bundle,
)
from albertkit.conversion.tensorflow.records import (
    MalformedError,
    crc32c,
    mask_checksum,
    write_varint,
)
from albertkit.conversion.tensorflow.table import MESSAGES, read_table, write_table
from albertkit.errors import AlbertKitError
from albertkit.files import read_json

TF1 = (
    "classifier_mnli", "pretrain_a", "pretrain_a/start", "pretrain_b", "pretrain_c", "pretrain_d", "pretrain_e", "race",
    "regression_stsb", "squad_v1", "squad_v2",
)  # fmt: skip
TF2 = (
    "mg211_converted_encoder", "mg211_converted_pretrainer", "mg211_encoder", "mg211_model_e_eq_h", "mg22_converted",
    "mg22_model", "mg23_converted", "mg23_model",
)  # fmt: skip
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

TENSORS = {
    "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "double": np.array([0.1, -1e300]),
    "half": np.array([0.5, 65504, 6e-8], np.float16),
    "global_step": np.array(125_000, np.int64),
    "flags": np.array([True, False, True]),
    **{
        f"int/{name}": np.array([0, 1, 100], name)
        for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")
    },
    "words": np.array([[b"one", b""], [b"\xff\x00", b"long" * 1000]], object),
    "none": np.zeros((0, 3), np.float32),
    "no words": np.array([], object),
    "ένα": np.float32(1),
}


def rewrite_entry(prefix, name, change):
    """Change what the index says of a tensor, or of everything (""); the checksums of the index stay good."""
    index = Path(f"{prefix}.index")
    entries = dict(read_table(index.read_bytes()))
    message = MESSAGES["Entry" if name else "Header"].FromString(entries[name.encode()])
    change(message)
    entries[name.encode()] = message.SerializeToString()
    index.write_bytes(write_table(entries.items()))


@pytest.fixture
def prefix(tmp_path):
    """A checkpoint with every type that can be written."""
    write_bundle(tmp_path / "model.ckpt-1", TENSORS)
    return str(tmp_path / "model.ckpt-1")


@pytest.mark.parametrize("folder", TF1)
def test_tensorflow_1(golden, folder, tmp_path):
    path = golden / "tf1" / folder
    bundle = TensorBundle.open(path)
    described = (
        path / "variables.json"
        if (path / "variables.json").exists()
        else path.parent / "variables.json"
    )
    variables = read_json(described)
    assert {
        n: {"shape": list(bundle.shape(n)), "dtype": bundle.dtype(n)} for n in bundle.names
    } == variables
    assert bundle.variable_names == {name: name for name in variables}
    tensors = {name: bundle.read(name) for name in bundle.names}
    for name, values in tensors.items():
        assert list(values.shape) == variables[name]["shape"]
        assert values.dtype.name == variables[name]["dtype"]
        assert np.isfinite(values).all()
        assert values.flags.writeable
        assert values.flags.aligned

    write_bundle(tmp_path / "model", tensors)  # TensorFlow 1.15 wrote the same bytes
    for suffix in (".index", ".data-00000-of-00001"):
        assert (
            Path(f"{tmp_path}/model{suffix}").read_bytes()
            == Path(bundle.prefix + suffix).read_bytes()
        )


def test_values_are_those_that_the_outputs_come_from(golden):
    """The pooler and the masked-LM bias of the golden model, from its own outputs."""
    bundle = TensorBundle.open(golden / "tf1/pretrain_a")
    outputs = np.load(golden / "tf1/pretrain_a/outputs.npz")
    kernel = bundle.read("bert/pooler/dense/kernel")
    bias = bundle.read("bert/pooler/dense/bias")
    first = outputs["sequence_output"][:, 0]
    np.testing.assert_allclose(np.tanh(first @ kernel + bias), outputs["pooled_output"], atol=1e-5)
    assert (
        abs(np.tanh(first @ (kernel + np.eye(32) * 1e-3) + bias) - outputs["pooled_output"]).max()
        > 1e-5
    )
    assert bundle.read("global_step") == 8


@pytest.mark.parametrize("folder", TF2)
def test_tensorflow_2(golden, folder):
    path = golden / "tf2" / folder
    bundle = TensorBundle.open(path)
    keys = read_json(path / "keys.json")["keys"]
    assert {
        n: {"shape": list(bundle.shape(n)), "dtype": bundle.dtype(n)}
        for n in [*bundle.names, GRAPH]
    } == keys
    graph = read_json(path / "object_graph.json")
    attributes = [attribute for node in graph for attribute in node["attributes"]]
    assert bundle.variable_names == {a["checkpoint_key"]: a["full_name"] for a in attributes}

    by_name = {name: bundle.read(key) for key, name in bundle.variable_names.items()}
    by_name.pop("save_counter")
    if folder.endswith(("_converted", "_encoder", "_pretrainer")) and "converted" in folder:
        original = TensorBundle.open(golden / "tf1/pretrain_a")
        expected = {
            "word_embeddings/embeddings": original.read("bert/embeddings/word_embeddings"),
            "pooler_transform/kernel": original.read("bert/pooler/dense/kernel"),
        }
    else:
        expected = dict(np.load(path / "weights_by_name.npz"))
        assert set(expected) == set(by_name)
    for name, values in expected.items():
        assert_array_equal(by_name[name], values)
        assert by_name[name].dtype == values.dtype


def test_a_table_that_two_objects_share_is_listed_once(golden):
    names = TensorBundle.open(golden / "tf2/mg211_converted_pretrainer").variable_names
    keys = [key for key, name in names.items() if name == "word_embeddings/embeddings"]
    assert keys == ["masked_lm/embedding_table/.ATTRIBUTES/VARIABLE_VALUE"]
    escaped = "masked_lm/output_bias.Sbias/.ATTRIBUTES/VARIABLE_VALUE"
    assert names[escaped] == "bert/cls/predictions/output_bias/bias"


def test_what_is_written_is_read(prefix):
    bundle = TensorBundle.open(prefix)
    assert bundle.names == sorted(TENSORS)
    for name, values in TENSORS.items():
        values_read = bundle.read(name)
        assert bundle.shape(name) == values.shape == values_read.shape
        assert_array_equal(values_read, values)
        kind = "string" if values.dtype == object else values.dtype.name
        assert bundle.dtype(name) == kind
        assert values_read.dtype == (np.float32 if kind == "float16" else values.dtype)


def test_bfloat16_becomes_float32(tmp_path):
    # bfloat16 holds all of them
    values = np.array([1.0, -2.5, 1.5 * 2.0**127, np.inf, 2.0**-133], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    write_bundle(tmp_path / "b", {"x": upper})
    rewrite_entry(f"{tmp_path}/b", "x", lambda entry: setattr(entry, "dtype", 14))
    bundle = TensorBundle.open(tmp_path)
    assert bundle.dtype("x") == "bfloat16"
    assert_array_equal(bundle.read("x"), values)


def test_non_contiguous_and_big_endian_arrays(tmp_path):
    values = np.arange(12, dtype=">f4").reshape(3, 4).T
    write_bundle(tmp_path / "x", {"x": values})
    assert_array_equal(TensorBundle.open(tmp_path).read("x"), values)


def test_what_cannot_be_written_leaves_nothing(tmp_path, slug_of):
    for values in (np.array([1j]), np.array(["text"]), np.array([b"bytes", 1], object)):
        call = lambda values=values: write_bundle(  # noqa: E731
            tmp_path / "new/x", {"a": np.zeros(3), "x": values}
        )
        assert slug_of(call) == "unsupported"
    assert not any((tmp_path / "new").iterdir())


def test_every_tensor_notices_a_flipped_bit(golden, tmp_path, slug_of):
    for source in (
        golden / "tf1/pretrain_c/model.ckpt-best",
        golden / "tf2/mg22_model/bert_model.ckpt-1",
    ):
        for suffix in (".index", ".data-00000-of-00001"):
            shutil.copy(f"{source}{suffix}", f"{tmp_path}/x{suffix}")
        data = Path(bundle_shard_name(f"{tmp_path}/x", 0, 1))
        bundle = TensorBundle.open(f"{tmp_path}/x")
        content = data.read_bytes()
        end = 0
        for name, entry in sorted(bundle._entries.items(), key=lambda item: item[1].offset):
            assert entry.offset == end  # every byte of the file belongs to a tensor
            end += entry.size
            for position in {entry.offset, entry.offset + entry.size // 2, end - 1}:
                damaged = bytearray(content)
                damaged[position] ^= 1
                data.write_bytes(damaged)
                assert (
                    slug_of(lambda name=name: TensorBundle.open(f"{tmp_path}/x").read(name))
                    == "corrupt"
                )
        assert end == len(content)
        data.write_bytes(content)
        assert all(
            TensorBundle.open(f"{tmp_path}/x").read(name) is not None for name in bundle.names
        )


def test_every_byte_of_the_index_counts(tmp_path, slug_of):
    write_bundle(tmp_path / "x", {"group/kernel": np.ones((2, 3), np.float32), "step": np.int64(8)})
    index = tmp_path / "x.index"
    content = index.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        index.write_bytes(damaged)
        assert slug_of(TensorBundle.open, index) == "corrupt"


def test_shards(tmp_path):
    """Two shards, as `tf.train.Saver(sharded=True)` leaves them."""
    write_bundle(tmp_path / "x", {"a": np.arange(4), "b": np.arange(5)})
    shutil.move(tmp_path / "x.data-00000-of-00001", tmp_path / "x.data-00000-of-00002")
    rewrite_entry(f"{tmp_path}/x", "", lambda header: setattr(header, "num_shards", 2))
    (tmp_path / "x.data-00001-of-00002").write_bytes(np.arange(5).tobytes())

    def move(entry):
        entry.shard_id = 1
        entry.offset = 0

    rewrite_entry(f"{tmp_path}/x", "b", move)
    bundle = TensorBundle.open(tmp_path)
    assert_array_equal(bundle.read("a"), np.arange(4))
    assert_array_equal(bundle.read("b"), np.arange(5))
    (tmp_path / "x.data-00001-of-00002").unlink()
    with pytest.raises(AlbertKitError, match=r"\[missing-file\].*x\.data-00001-of-00002"):
        TensorBundle.open(tmp_path)


def test_a_shard_cut_short(prefix):
    data = Path(bundle_shard_name(prefix, 0, 1))
    for length in (0, 1, data.stat().st_size - 1):
        data.write_bytes(data.read_bytes()[:length])
        with pytest.raises(AlbertKitError, match=r"(?s)\[corrupt\].*cut short"):
            TensorBundle.open(prefix)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: setattr(entry, "shard_id", 1),
        lambda entry: setattr(entry, "shard_id", -1),
        lambda entry: setattr(entry, "offset", -1),
        lambda entry: setattr(entry, "offset", 2**63 - 1),
        lambda entry: setattr(entry, "size", -24),
        lambda entry: setattr(entry, "size", 2**62),
        lambda entry: setattr(entry.shape.dim[0], "size", -2),
        lambda entry: setattr(entry.shape.dim[0], "size", 2**40),
        lambda entry: setattr(entry.shape, "unknown_rank", True),
        lambda entry: entry.shape.dim.extend([type(entry.shape.dim[0])(size=1)] * 100),
        lambda entry: (
            setattr(entry.shape.dim[0], "size", 0),
            setattr(entry.shape.dim[1], "size", 2**62),
        ),
        lambda entry: (setattr(entry, "dtype", 7), setattr(entry.shape.dim[0], "size", 2**40)),
    ],
)
def test_impossible_entries(prefix, change, slug_of):
    rewrite_entry(prefix, "kernel", change)
    assert slug_of(TensorBundle.open, prefix) == "corrupt"


@pytest.mark.parametrize("lengths", [[2, 2], [2, 4], [2, 2**64 - 1], [2**32]])
def test_strings_whose_lengths_lie(lengths):
    good, _ = encode_strings_and_checksum([b"ab", b"cde"])
    assert decode_strings_and_checksum(b"".join(good), 2)[0].tolist() == [b"ab", b"cde"]
    wide = b"".join(length.to_bytes(4 if length < 2**32 else 8, "little") for length in lengths)
    stored = (
        b"".join(map(write_varint, lengths))
        + mask_checksum(crc32c(wide)).to_bytes(4, "little")
        + b"abcde"
    )
    with pytest.raises(MalformedError, match="do not fit their bytes"):
        decode_strings_and_checksum(stored, len(lengths))


def test_strings_whose_lengths_are_damaged():
    (lengths, tail), _ = encode_strings_and_checksum([b"ab", b"cde"])
    with pytest.raises(MalformedError, match="checksum"):
        decode_strings_and_checksum(lengths[::-1] + tail, 2)  # 3 and 2: as many bytes


def test_headers_that_are_refused(prefix):
    rewrite_entry(prefix, "", lambda header: setattr(header.version, "min_consumer", 2))
    with pytest.raises(AlbertKitError, match="version 2"):
        TensorBundle.open(prefix)
    rewrite_entry(prefix, "", lambda header: setattr(header, "endianness", 1))
    with pytest.raises(AlbertKitError, match="big-endian"):
        TensorBundle.open(prefix)
    Path(f"{prefix}.index").write_bytes(write_table([(b"a", b"")]))
    with pytest.raises(AlbertKitError, match="no header"):
        TensorBundle.open(prefix)


def test_an_index_too_big_to_be_one(prefix, slug_of):
    with open(f"{prefix}.index", "r+b") as index:
        index.truncate(1 << 40)
    assert slug_of(TensorBundle.open, prefix) == "corrupt"


def test_what_is_in_a_checkpoint_but_is_not_read(prefix):
    rewrite_entry(prefix, "kernel", lambda entry: entry.slices.add())
    rewrite_entry(prefix, "double", lambda entry: setattr(entry, "dtype", 8))
    rewrite_entry(prefix, "half", lambda entry: setattr(entry, "dtype", 999))
    bundle = TensorBundle.open(prefix)
    assert bundle.shape("kernel") == (2, 3)
    with pytest.raises(AlbertKitError, match="`kernel`") as caught:
        bundle.read("kernel")
    assert caught.value.slug == "unsupported"
    for name, kind in (("double", "complex64"), ("half", "type 999")):
        assert bundle.dtype(name) == kind
        with pytest.raises(AlbertKitError, match=kind) as caught:
            bundle.read(name)
        assert caught.value.slug == "unsupported"


def test_ways_to_name_a_checkpoint(tmp_path, slug_of):
    def write(path):
        write_bundle(tmp_path / path, {"path": np.array(path.encode(), object)})
        return path

    def opened(path):
        return TensorBundle.open(tmp_path / path).read("path").item().decode()

    assert slug_of(TensorBundle.open, tmp_path) == "not-found"
    hub = write("hub/variables/variables")
    assert (
        opened("hub") == opened("hub/variables") == opened("hub/variables/variables.index") == hub
    )
    first = write("run/model.ckpt-1")
    assert opened("run") == opened("run/model.ckpt-1") == opened("run/model.ckpt-1.index") == first
    second = write("run/model.ckpt-2")
    with pytest.raises(AlbertKitError, match="2 TensorFlow checkpoints") as caught:
        TensorBundle.open(tmp_path / "run")
    assert caught.value.slug == "ambiguous"
    assert all(f"`{tmp_path / path}`" in caught.value.hint for path in (first, second))
    state = tmp_path / "run/checkpoint"
    state.write_text(
        'model_checkpoint_path: "/elsewhere/model.ckpt-2"\nall_model_checkpoint_paths: "model.ckpt-1"\n'
    )
    assert opened("run") == second
    state.write_text('model_checkpoint_path: "model.ckpt-3"\n')
    assert slug_of(TensorBundle.open, tmp_path / "run") == "ambiguous"
    with pytest.raises(AlbertKitError, match=r"model\.ckpt-3\.index") as caught:
        TensorBundle.open(tmp_path / "run/model.ckpt-3")
    assert caught.value.slug == "not-found"
    assert "model.ckpt-2" in caught.value.hint
