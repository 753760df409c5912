"""TFRecords: a file of google-research/albert's script to the byte; what is broken, hostile or something else is said."""

import gzip
import json
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.conversion.tensorflow.records import (
    RecordFile,
    crc32c,
    encode_example,
    frame_record,
    mask_checksum,
    read_example,
)
from albertkit.errors import DataError


@pytest.fixture(scope="module")
def original(golden):
    """200 records that create_pretraining_data.py wrote with TensorFlow 1.15."""
    return golden / "masking/seq128_cap20.tfrecord"


@pytest.fixture
def contents(golden):
    """What TensorFlow 1.15 read from them."""
    return [json.loads(line) for line in (golden / "masking/seq128_cap20.jsonl").open()]


def plain(features):
    return {name: values.tolist() for name, values in features.items()}


def test_the_original_is_read_as_tensorflow_reads_it(original, contents):
    records = [plain(read_example(payload)) for payload in RecordFile(original)]
    assert records == contents
    contents[7]["masked_lm_ids"][3] += 1
    assert records != contents


def test_records_are_framed_as_tensorflow_frames_them(original, tmp_path):
    payloads = list(RecordFile(original))
    (tmp_path / "again.tfrecord").write_bytes(b"".join(map(frame_record, payloads)))
    assert (tmp_path / "again.tfrecord").read_bytes() == original.read_bytes()
    (tmp_path / "again.tfrecord").write_bytes(
        b"".join(map(frame_record, [*payloads[:-1], payloads[-1][:-1]]))
    )
    assert (tmp_path / "again.tfrecord").read_bytes() != original.read_bytes()


def test_examples_are_the_originals_bytes_but_for_the_order_of_the_features(original, contents):
    """The original's Python 3.7 wrote each map in an order of its own, another one in every record; ours goes by name."""
    orders = set()
    for payload, features in zip(RecordFile(original), contents, strict=True):
        features["masked_lm_weights"] = np.array(features["masked_lm_weights"], np.float32)
        content = encode_example(features)
        assert len(content) == len(payload)
        alone = {name: encode_example({name: values}) for name, values in features.items()}
        entries = {
            name: message[message.index(b"\n", 1) :] for name, message in alone.items()
        }  # without the outer length
        assert all(entry in payload for entry in entries.values())
        # Tag and two bytes of length around them
        assert sum(map(len, entries.values())) == len(payload) - 3
        assert content[3:] == b"".join(entries[name] for name in sorted(entries))
        orders.add(tuple(sorted(entries, key=lambda name: payload.index(entries[name]))))
    assert len(orders) > 100
    features["input_ids"][5] += 1
    assert encode_example({"input_ids": features["input_ids"]})[3:] not in payload


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.text(max_size=20),
        st.lists(st.integers(-(2**63), 2**63 - 1))
        | st.lists(st.floats(width=32, allow_nan=False), min_size=1)
        | st.lists(st.binary(max_size=20), min_size=1),
        max_size=5,
    )
)
def test_examples_come_back(features):
    features_read = read_example(encode_example(features))
    assert plain(features_read) == features
    kinds = {int: np.int64, float: np.float32, bytes: object}
    assert all(
        features_read[name].dtype == kinds[type(values[0])]
        for name, values in features.items()
        if values
    )


def test_records_are_read_in_any_order(tmp_path):
    payloads = [bytes([n]) * (n * 37 % 101) for n in range(50)]  # the first is empty
    (tmp_path / "some.tfrecord").write_bytes(b"".join(map(frame_record, payloads)))
    records = RecordFile(tmp_path / "some.tfrecord")
    assert len(records) == 50
    assert [records[n] for n in (49, 0, 23)] == [payloads[n] for n in (49, 0, 23)]
    assert list(records) == payloads
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    assert len(RecordFile(tmp_path / "empty.tfrecord")) == 0


def test_the_fingerprint_knows_every_record(tmp_path):
    payloads = [b"one", b"two", b"three"]
    fingerprints = set()
    for change in (
        [b"one", b"two", b"three"],
        [b"one", b"twp", b"three"],
        [b"two", b"one", b"three"],
        payloads[:2],
    ):
        (tmp_path / "some.tfrecord").write_bytes(b"".join(map(frame_record, change)))
        fingerprints.add(RecordFile(tmp_path / "some.tfrecord").fingerprint)
    assert len(fingerprints) == 4


def test_a_file_cut_anywhere_is_noticed(tmp_path):
    content = b"".join(map(frame_record, (b"first", b"", b"the third")))
    ends = {
        0,
        len(frame_record(b"first")),
        len(frame_record(b"first")) + len(frame_record(b"")),
        len(content),
    }
    path = tmp_path / "cut.tfrecord"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        if size in ends:
            assert len(RecordFile(path)) < 3
            continue
        with pytest.raises(DataError) as caught:
            list(RecordFile(path))
        assert caught.value.slug == "corrupt"
        assert str(path) in caught.value.message
    assert f"ends at byte {size}, inside record 2, which starts at byte 37" in caught.value.message


def test_every_flipped_bit_is_noticed(tmp_path):
    content = b"".join(map(frame_record, (b"first", b"the second")))
    path = tmp_path / "flipped.tfrecord"
    for position in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(DataError) as caught:
            list(RecordFile(path))
        assert caught.value.slug in ("corrupt", "corrupt")
    assert caught.value.message.startswith(
        f"the content of record 1 of `{path}`, at byte {len(frame_record(b'first'))}"
    )


def test_a_hostile_length_allocates_nothing(tmp_path):
    length = struct.pack("<Q", 1 << 62)
    path = tmp_path / "hostile.tfrecord"
    path.write_bytes(length + struct.pack("<I", mask_checksum(crc32c(length))) + b"x" * 1000)
    tracemalloc.start()
    with pytest.raises(DataError) as caught:
        RecordFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.slug == "corrupt"
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "content",
    [b"hello", b"not records at all, but text of a few words", b"\0" * 64, b"\x89PNG" * 8],
)
def test_other_files_are_no_records(tmp_path, content):
    path = tmp_path / "some.tfrecord"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"\[corrupt\].*is not a TFRecord file"):
        RecordFile(path)


def test_compressed_records_are_refused_with_the_command_that_helps(tmp_path):
    path = tmp_path / "some.tfrecord"
    path.write_bytes(gzip.compress(frame_record(b"one")))
    with pytest.raises(DataError) as caught:
        RecordFile(path)
    assert caught.value.slug == "unsupported"
    assert f"gzip -dc {path}" in caught.value.hint


def test_a_file_that_changes_after_its_scan_is_noticed(tmp_path):
    path = tmp_path / "some.tfrecord"
    path.write_bytes(b"".join(map(frame_record, [b"one", b"a longer one"])))
    records = RecordFile(path)
    path.write_bytes(path.read_bytes()[:-9])
    assert records[0] == b"one"
    with pytest.raises(DataError, match=r"\[corrupt\]"):
        records[1]


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_payload_is_an_example_or_an_error(payload):
    arrays = {}
    with suppress(DataError):
        arrays = read_example(payload)
    assert all(values.ndim == 1 for values in arrays.values())
