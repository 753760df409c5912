"""The sorted table: what is written is read, and nothing else is."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albertkit.conversion.tensorflow.records import (
    MalformedError,
    crc32c,
    mask_checksum,
    read_varint,
    write_varint,
)
from albertkit.conversion.tensorflow.table import BLOCK_SIZE, read_table, write_table


def repaired(table, offset, contents, kind=0):
    """The table with a block's bytes replaced by as many others, and a good checksum behind them."""
    typed = contents + bytes([kind])
    trailed = typed + struct.pack("<I", mask_checksum(crc32c(typed)))
    return table[:offset] + trailed + table[offset + len(trailed) :]


def block_of(entry, restarts=1):
    """A table whose first block holds just these bytes."""
    contents = entry + struct.pack("<II", 0, restarts)
    placeholder = write_table([(b"k" * (len(entry) - 3), b"")])
    assert len(entry) < 100  # so that a varint is one byte
    return repaired(placeholder, 0, contents)


@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=2000), max_size=60))
def test_what_is_written_is_read(entries):
    ordered = sorted(entries.items())
    assert list(read_table(write_table(ordered))) == ordered


def test_several_blocks():
    entries = [(f"layer_{i:06d}/kernel".encode(), bytes([i % 256]) * 300) for i in range(3000)]
    table = write_table(entries)
    assert len(table) > 3 * BLOCK_SIZE
    assert list(read_table(table)) == entries


def test_checksum_is_castagnolis_as_rfc_3720_has_it():
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(16)), bytes(range(16, 32))) == 0x46DD794E
    assert mask_checksum(0) == 0xA282EAD8


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (300, "ac02"),
        (2**64 - 1, "ff" * 9 + "01"),
    ],
)
def test_varints(number, encoded):
    assert write_varint(number).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0, len(encoded) // 2) == (number, len(encoded) // 2)


@pytest.mark.parametrize("encoded", ["", "80", "ff" * 9, "ff" * 9 + "02", "80" * 10 + "01", "8000"])
def test_varints_that_do_not_end_or_are_too_long(encoded):
    with pytest.raises(MalformedError):
        read_varint(bytes.fromhex(encoded), 0, len(encoded) // 2)


def test_every_byte_counts():
    table = write_table([(b"a", b"one"), (b"ab", b"two"), (b"b", b"")])
    for position in range(len(table)):
        damaged = bytearray(table)
        damaged[position] ^= 0x10
        with pytest.raises(MalformedError):
            list(read_table(bytes(damaged)))
    for length in range(len(table)):
        with pytest.raises(MalformedError):
            list(read_table(table[:length]))


def test_snappy_is_refused_by_name():
    table = write_table([(b"key", b"value")])
    (size,) = struct.unpack_from("<B", table, table.index(b"key") - 1)
    assert size == len(b"value")
    contents = table[: table.index(b"value") + size + 8]
    with pytest.raises(MalformedError, match="snappy"):
        list(read_table(repaired(table, 0, contents, kind=1)))
    assert list(read_table(repaired(table, 0, contents, kind=0)))


@pytest.mark.parametrize(
    ("entry", "fact"),
    [
        (b"\x01\x01\x00k", "leaves its block"),  # shares a byte with no key
        (b"\x00\x05\x00k", "leaves its block"),  # key longer than the block
        (b"\x00\x01\x05k", "leaves its block"),  # value longer than the block
        (b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", "leaves its block"),
        (b"\x00\xff\xff", "ends inside a number"),
        (b"\x00\x01\x00k\x00\x01\x00k", "out of order"),
        (b"\x00\x01\x00k\x00\x01\x00j", "out of order"),
    ],
)
def test_hostile_entries(entry, fact):
    with pytest.raises(MalformedError, match=fact):
        list(read_table(block_of(entry)))


@pytest.mark.parametrize("restarts", [0, 100, 2**32 - 1])
def test_hostile_restart_points(restarts):
    with pytest.raises(MalformedError, match="restart points"):
        list(read_table(block_of(b"\x00\x01\x00k", restarts)))


def test_keys_that_share_their_way_to_gigabytes():
    """One key of 100 kB, and entries of 5 bytes that each rebuild it."""
    key = b"k" * 100_000
    hostile = [(key, b"")] + [(key + bytes([0]) * i, b"") for i in range(1, 100)]
    block = b"".join(
        write_varint(shared) + write_varint(len(name) - shared) + b"\x00" + name[shared:]
        for name, shared in zip(
            [name for name, _ in hostile], [0, *range(100_000, 100_099)], strict=True
        )
    )
    contents = block + struct.pack("<II", 0, 1)
    placeholder = write_table([(b"p" * (len(contents) - 8 - 5), b"")])
    assert len(placeholder) - len(write_table([])) > 100_000
    with pytest.raises(MalformedError, match="16 times"):
        list(read_table(repaired(placeholder, 0, contents)))
