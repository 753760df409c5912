"""TensorFlow's files where the outer checksums are right: whole conversions, records and examples, archives.

Damage of the tables themselves is in tests/conversion/tensorflow/test_fuzz.py.
"""

import io
import shutil
import tarfile

import damage
from hostile import Reader


def make_checkpoint(folder):
    from read_checkpoints import make_folder

    from albertkit.conversion.convert import convert

    (folder / "made").mkdir()
    make_folder(folder / "made")
    convert(folder / "made", folder / "tf", to="tf1")
    shutil.rmtree(folder / "made")


def convert_back(folder):
    from albertkit.conversion.convert import convert

    (source,) = [path for path in folder.iterdir() if path.name in ("tf", "model.tar.gz")]
    return convert(source, folder / "out", head="pretraining").tensors > 0


def other_tensors(rng, folder):
    """The checkpoint written anew with other values, shapes, types or names, all checksums right."""
    import numpy as np

    from albertkit.conversion.tensorflow.bundle import TensorBundle, write_bundle

    bundle = TensorBundle.open(folder / "tf")
    tensors = {name: bundle.read(name) for name in bundle.names}
    for _ in range(rng.choice((1, 1, 3))):
        name = rng.choice(sorted(tensors))
        values = tensors[name]
        change = rng.randrange(8)
        if change == 0:
            tensors[name] = values.T
        elif change == 1 and values.dtype != object:
            tensors[name] = values.astype(rng.choice(("float64", "float16", "int64", "bool")))
        elif change == 2:
            tensors[name] = np.array([b"text"] * 3, object)
        elif change == 3:
            tensors[
                rng.choice(
                    (
                        "x",
                        "../outside/x",
                        "bert/embeddings/word_embeddings",
                        "global_step",
                        name + "/adam_m",
                    )
                )
            ] = tensors.pop(name)
        elif change == 4:
            tensors[name] = np.full(values.shape, rng.choice((np.nan, np.inf, 1e38)), np.float32)
        elif change == 5:
            tensors[name] = values[:0] if values.ndim else np.zeros((1, 1), np.float32)
        elif change == 6:
            del tensors[name]
        else:
            tensors[name] = np.zeros((1,) * rng.choice((0, 1, 5, 30)), np.float32)
    for file in (folder / "tf").glob("model.ckpt*"):
        file.unlink()
    write_bundle(folder / "tf/model.ckpt-best", tensors)
    return "other tensors"


def make_archive(folder):
    make_checkpoint(folder)
    (folder / "tf/albert_config.json").rename(folder / "albert_config.json")
    with tarfile.open(folder / "model.tar.gz", "w:gz") as archive:
        for file in sorted((folder / "tf").iterdir()):
            archive.add(file, f"variables/{file.name.replace('model.ckpt-best', 'variables')}")
    shutil.rmtree(folder / "tf")


def read_archive(folder):
    from albertkit.conversion.convert import convert

    config = folder / "albert_config.json"
    return (
        convert(folder / "model.tar.gz", folder / "out", head="pretraining", config=config).tensors
        > 0
    )


def hostile_members(rng, folder):
    """An archive whose members leave the folder, by name or by link, or are devices, or pretend to be large."""
    path = folder / "model.tar.gz"
    out = io.BytesIO()
    changes = []
    with tarfile.open(path) as source, tarfile.open(fileobj=out, mode="w:gz") as target:
        for member in source.getmembers():
            content = source.extractfile(member).read()
            if rng.randrange(3) == 0:
                change = rng.randrange(7)
                if change == 0:
                    member.name = rng.choice(
                        (
                            "../outside/owned",
                            "/tmp/owned",
                            f"{folder.parent}/outside/owned",
                            "a/../../owned",
                        )
                    )
                elif change in (1, 2):
                    link = tarfile.TarInfo(rng.choice(("variables", member.name)))
                    link.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE))
                    link.linkname = rng.choice(
                        ("../outside", f"{folder.parent}/outside", "/etc/passwd", "/dev/zero", ".")
                    )
                    target.addfile(link)
                    changes.append("link")
                elif change == 3:
                    node = tarfile.TarInfo(member.name)
                    node.type = rng.choice((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE))
                    target.addfile(node)
                    changes.append("device")
                elif change == 4:
                    member.name = rng.choice(
                        ("\n", "x" * 5000, "variables/\udc80", "variables/" * 200 + "x")
                    )
                elif change == 5:
                    content = b"\0" * 40_000_000  # a bomb: 40 kB packed
                    member.size = len(content)
                else:
                    member.mode = 0
                changes.append(repr(member.name)[:60])
            target.addfile(member, io.BytesIO(content))
    path.unlink()
    path.write_bytes(out.getvalue())
    return f"archive with {', '.join(changes) or 'nothing strange'}"


def make_records(folder):
    from read_corpus import make_store

    from albertkit.corpus import TokenStore
    from albertkit.pretraining.export import export_records
    from albertkit.pretraining.options import ExportSettings

    make_store(folder)
    export_records(
        TokenStore.open(folder / "store"),
        folder / "records",
        ExportSettings(length=32, max_predictions=5, dupe_factor=1),
    )


def read_records(folder):
    import numpy as np

    from albertkit.pretraining.records import RecordStream, TrainingRecords
    from albertkit.tokenizer import AlbertTokenizer

    records = TrainingRecords(
        folder / "records", AlbertTokenizer.from_pretrained(folder / "store/tokenizer")
    )
    for number in range(len(records)):
        batch = records.batch(np.array([number]))
        assert batch.input_ids.max() < records.tokenizer.vocab_size
    records.count_tokens(np.ones(len(records), bool))
    next(RecordStream(records, np.ones(len(records), bool), batch_tokens=64))
    return len(records)


def other_examples(rng, folder):
    """Records with good checksums whose examples are damaged messages, or other numbers."""
    import numpy as np

    from albertkit.conversion.tensorflow.records import (
        RecordFile,
        encode_example,
        frame_record,
        read_example,
    )

    (file,) = [path for path in (folder / "records").iterdir() if "tfrecord" in path.name]
    payloads = list(RecordFile(file))
    index = rng.randrange(len(payloads))
    if rng.randrange(2):
        payloads[index] = damage.protobuf(rng, payloads[index])
    else:
        features = dict(read_example(payloads[index]))
        name = rng.choice(sorted(features))
        values = features[name].copy()
        change = rng.randrange(5)
        if change < 2 and len(values):
            values[rng.randrange(len(values))] = rng.choice(
                (-1, 1, 2, 31, 32, 59, 60, 2**31, 2**62)
                if values.dtype.kind == "i"
                else (np.nan, -1, 1e30)
            )
        elif change == 2:
            values = values[:-1] if rng.randrange(2) else np.concatenate([values] * 3)
        elif change == 3:
            values = np.array([b"bytes"], object) if rng.randrange(2) else values.astype(np.float32)
        features[name] = values
        if change == 4:
            del features[name]
        payloads[index] = encode_example(features)
    file.unlink()
    file.write_bytes(b"".join(map(frame_record, payloads)))
    return f"record {index} is other"


READERS = {
    "TensorFlow checkpoint": Reader(
        make_checkpoint, convert_back, ("tf/*",), other_tensors, writes=True, examples=15
    ),
    "archive of a SavedModel": Reader(
        make_archive, read_archive, ("*.tar.gz",), hostile_members, writes=True, memory=150 << 20
    ),
    "masked records": Reader(
        make_records, read_records, ("records/*",), other_examples, examples=15
    ),
}
