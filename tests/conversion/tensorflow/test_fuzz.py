"""Damaged and hostile checkpoints: a value or an error of ours, nothing else, and no more memory than their size warrants."""

import random
import struct
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from albertkit.conversion.tensorflow.bundle import (
    OBJECT_GRAPH,
    TensorBundle,
    _ObjectGraph,
    encode_strings_and_checksum,
    open_saved_model,
    write_bundle,
)
from albertkit.conversion.tensorflow.records import crc32c, mask_checksum, write_varint
from albertkit.conversion.tensorflow.table import MESSAGES, _BlockBuilder, read_table, write_table
from albertkit.errors import AlbertKitError

HOSTILE_NUMBERS = (-1, 0, 1, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
DTYPES = (*range(-1, 26), 999)
EMPTY_BLOCK = struct.pack("<II", 0, 1)


def flip(rng, data):
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def overwrite(rng, data):
    """Some bytes replaced, put in or left out; often by a hostile length."""
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 1, 2, 5, 20)))
    new = rng.choice(
        (
            rng.randbytes(rng.randrange(12)),
            write_varint(abs(rng.choice(HOSTILE_NUMBERS))),
            b"\xff" * 9,
            bytes(8),
        )
    )
    return data[:start] + new + data[end:]


# Damage without knowledge of the checksums: it has to be noticed.


def flipped_index(rng, index, data):
    return flip(rng, index), data


def flipped_data(rng, index, data):
    return index, flip(rng, data)


def cut_index(rng, index, data):
    return index[: rng.randrange(len(index))], data


def cut_data(rng, index, data):
    return index, data[: rng.randrange(len(data))]


def swapped_regions(rng, index, data):
    a, b, c = sorted(rng.sample(range(len(index)), 3))
    return index[:a] + index[b:c] + index[a:b] + index[c:], data


def overwritten_index(rng, index, data):
    return overwrite(rng, index), data


# Hostility with good checksums: it may be a checkpoint.


def joined(blocks, kinds, entries):
    """A table of these data blocks, with an index of entries (key, number of the block); the metaindex and index last."""
    table = b""
    handles = []
    for contents, kind in zip([*blocks, EMPTY_BLOCK, b""], kinds, strict=True):
        if len(handles) == len(blocks) + 1:
            builder = _BlockBuilder(restart_interval=1)
            for key, number in entries:
                builder.add(key, handles[number])
            contents = builder.finish()
        handles.append(write_varint(len(table)) + write_varint(len(contents)))
        typed = contents + bytes([kind])
        table += typed + struct.pack("<I", mask_checksum(crc32c(typed)))
    return table + b"".join(handles[-2:]).ljust(40, b"\0") + write_table([])[-8:]


def hostile_blocks(rng, index, data):
    """A table of four blocks: one with other bytes, another type, in another order, twice or not at all in the index."""
    entries = list(read_table(index))
    blocks = []
    order = list(range(4))
    kinds = [0] * 6
    for i in range(4):
        builder = _BlockBuilder()
        for key, value in entries[len(entries) * i // 4 : len(entries) * (i + 1) // 4]:
            builder.add(key, value)
        blocks.append(builder.finish())
    names = [bytes([i]) for i in range(4)]
    assert list(read_table(joined(blocks, kinds, list(zip(names, order, strict=True))))) == entries
    part = rng.choice(("bytes", "bytes", "bytes", "kind", "blocks", "index"))
    if part == "bytes":
        changed = rng.randrange(4)
        blocks[changed] = overwrite(rng, blocks[changed])
    elif part == "kind":
        kinds[rng.randrange(6)] = rng.choice((1, 2, 255))
    elif part == "blocks":
        rng.shuffle(blocks)
    else:
        order = rng.choices(order, k=4)
    return joined(blocks, kinds, list(zip(names, order, strict=True))), data


def hostile_message(rng, index, data):
    entries = dict(read_table(index))
    for key in rng.sample(sorted(entries), rng.choice((1, 1, 3))):
        entries[key] = overwrite(rng, entries[key])
    return write_table(entries.items()), data


def hostile_fields(rng, index, data):
    entries = dict(read_table(index))
    key = rng.choice(sorted(entries))
    if key == b"":
        header = MESSAGES["Header"].FromString(entries[key])
        header.num_shards = rng.choice((-1, 0, 2, 2**31 - 1))
        entries[key] = header.SerializeToString()
        return write_table(entries.items()), data
    entry = MESSAGES["Entry"].FromString(entries[key])
    for _ in range(rng.choice((1, 2, 4))):
        part = rng.choice(("dtype", "size", "offset", "shard_id", "dim", "dims", "rank", "slices"))
        if part in ("size", "offset"):
            setattr(entry, part, rng.choice(HOSTILE_NUMBERS))
        elif part == "dtype":
            entry.dtype = rng.choice(DTYPES)
        elif part == "shard_id":
            entry.shard_id = rng.choice((-1, 1, 2**31 - 1))
        elif part == "dim" and entry.shape.dim:
            rng.choice(entry.shape.dim).size = rng.choice(HOSTILE_NUMBERS)
        elif part == "dims":
            for _ in range(rng.choice((1, 2, 64, 300))):
                entry.shape.dim.add(size=rng.choice(HOSTILE_NUMBERS))
        elif part == "rank":
            entry.shape.unknown_rank = True
        elif part == "slices":
            entry.slices.add()
    entries[key] = entry.SerializeToString()
    return write_table(entries.items()), data


def swapped_entries(rng, index, data):
    entries = dict(read_table(index))
    first, second = rng.sample(sorted(entries), 2)
    entries[first], entries[second] = entries[second], entries[first]
    return write_table(entries.items()), data


def hostile_strings(rng, index, data):
    """A tensor of strings whose lengths are lies, with and without a checksum that fits."""
    strings = [rng.randbytes(rng.choice((0, 1, 3, 200))) for _ in range(rng.choice((0, 1, 50)))]
    parts, checksum = encode_strings_and_checksum(strings)
    stored = b"".join(parts)
    if rng.random() < 0.8:
        stored = overwrite(rng, stored)
        checksum = crc32c(stored)
    count = rng.choice((len(strings), len(stored), 2**40))
    return _added(index, data, "strings", stored, checksum, [count])


def hostile_graph(rng, index, data):
    graph = _ObjectGraph()
    for name in [key.decode(errors="replace") for key, _ in read_table(index)]:
        graph.nodes.add().attributes.add(full_name=name[::-1], checkpoint_key=name)
    (lengths, tail), checksum = encode_strings_and_checksum(
        [overwrite(rng, graph.SerializeToString())]
    )
    return _added(index, data, OBJECT_GRAPH, lengths + tail, checksum, [])


def _added(index, data, name, stored, checksum, shape):
    entries = dict(read_table(index))
    entry = MESSAGES["Entry"](
        dtype=7,
        shape={"dim": [{"size": n} for n in shape]},
        offset=len(data),
        size=len(stored),
        crc32c=mask_checksum(checksum),
    )
    entries[name.encode()] = entry.SerializeToString()
    return write_table(sorted(entries.items())), data + stored


DAMAGE = (flipped_index, flipped_data, cut_index, cut_data, swapped_regions, overwritten_index)
HOSTILITY = (
    hostile_blocks, hostile_message, hostile_fields, swapped_entries, hostile_strings, hostile_graph,
)  # fmt: skip


def read_everything(path):
    """Read every tensor; the number of errors."""
    try:
        bundle = TensorBundle.open(path)
    except AlbertKitError:
        return 1
    errors = 0
    for name in bundle._entries:
        try:
            values = bundle.read(name)
            assert values.shape == bundle.shape(name)
        except AlbertKitError:
            errors += 1
    try:
        assert list(bundle.variable_names) == bundle.names
    except AlbertKitError:
        errors += 1
    return errors


def attack(source, variants, folder):
    """Try that many variants of a checkpoint."""
    path = folder / "x"
    suffix = ".data-00000-of-00001"
    index = Path(f"{source.prefix}.index").read_bytes()
    data = Path(source.prefix + suffix).read_bytes()
    noticed = good = 0
    tracemalloc.start()
    try:
        for seed in variants:
            rng = random.Random(seed)
            change = rng.choice(DAMAGE + HOSTILITY)
            new_index, new_data = change(rng, index, data)
            Path(f"{path}.index").write_bytes(new_index)
            Path(f"{path}{suffix}").write_bytes(new_data)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            errors = read_everything(path)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 3 * len(new_data) + 15 * len(new_index) + 50_000, (change, seed)
            if change in DAMAGE and (new_index, new_data) != (index, data):
                assert errors, (change, seed)
            noticed += bool(errors)
            good += not errors
    finally:
        tracemalloc.stop()
    assert noticed > len(variants) * 0.7
    assert good  # some of what is hostile is still a checkpoint


@pytest.fixture
def ours(tmp_path):
    tensors = {f"layer_{i}/kernel": np.full((i, 7), i, np.float32) for i in range(20)}
    words = np.array([b"word" * i for i in range(30)], object)
    write_bundle(
        tmp_path / "ours",
        {**tensors, "step": np.int64(8), "words": words, "flags": np.array([True, False])},
    )
    return TensorBundle.open(tmp_path / "ours")


def test_variants_of_ours(ours, tmp_path):
    attack(ours, range(150), tmp_path)


@pytest.mark.parametrize("checkpoint", ["tf1/pretrain_c", "tf2/mg22_model"])
def test_variants_of_golden_checkpoints(golden, checkpoint, tmp_path):
    attack(TensorBundle.open(golden / checkpoint), range(60), tmp_path)


@pytest.mark.slow
def test_ten_thousand_variants_of_golden_checkpoints(golden, tmp_path):
    checkpoints = sorted(file.with_suffix("") for file in golden.glob("tf[12]/**/*.index"))
    assert len(checkpoints) >= 19
    share = -(-10_000 // len(checkpoints))
    for i, prefix in enumerate(checkpoints):
        attack(TensorBundle.open(prefix), range(i * share, (i + 1) * share), tmp_path)


def test_variants_of_an_archive(ours, tmp_path):
    """Headers of tar are changed with checksums that fit; compressed archives are cut and flipped."""
    plain = tmp_path / "x.tar"
    packed = tmp_path / "x.tar.gz"
    path = tmp_path / "damaged"
    for archive, mode in ((plain, "w"), (packed, "w:gz")):
        with tarfile.open(archive, mode) as members:
            for suffix in (".index", ".data-00000-of-00001"):
                members.add(f"{ours.prefix}{suffix}", f"variables/variables{suffix}")
    opened = 0
    for seed in range(120):
        rng = random.Random(seed)
        data = (packed if seed % 3 == 0 else plain).read_bytes()
        if seed % 3 == 0:
            data = rng.choice((flip(rng, data), data[: rng.randrange(len(data))]))
        else:
            header = bytearray(data[:512])
            position = rng.choice(
                (rng.randrange(100), rng.randrange(100, 148), 156, rng.randrange(157, 512))
            )
            header[position : position + 1] = rng.choice(
                (b"\0", b"\xff", b"/", b"7", b"L", b"x", b"S", b"2")
            )
            header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
            data = bytes(header) + data[512:]
        path.write_bytes(data)
        try:
            with open_saved_model(path) as (bundle, _):
                assert len(bundle.names) == len(ours.names)
                opened += 1
        except AlbertKitError:
            pass
    assert 0 < opened < 120
