"""Text inputs in every format and packing; token stores; interrupted work."""

import gzip
import itertools
import json
import lzma
from typing import get_args

from hostile import Reader, read_each

SENTENCES = [
    "The quick brown fox jumps.",
    "A lazy dog – sleeps.",
    "서울에서 온 여우.",
    "1,000 wizards brew.",
]
TEXT = "\n\n".join("\n".join(SENTENCES[n % 4 :] + SENTENCES[:1]) for n in range(6)) + "\n"


def make_texts(folder):
    import pyarrow as arrow
    import zstandard
    from pyarrow import parquet

    rows = [{"text": text, "id": number} for number, text in enumerate(SENTENCES)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    wiki = "".join(
        f'<doc id="{n}" url="u" title="T{n}">\nT{n}\n\n{text}\n</doc>\n'
        for n, text in enumerate(SENTENCES)
    )
    (folder / "plain.txt").write_text(TEXT)
    (folder / "lines.jsonl").write_text(lines)
    (folder / "pages.wiki").write_text(wiki)
    (folder / "packed.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (folder / "packed.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    (folder / "packed.txt.zst").write_bytes(zstandard.compress(TEXT.encode()))
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "table.parquet")


def read_texts(folder):
    """Every file by itself, both ways of treating bad bytes."""
    from albertkit.corpus.documents import DocumentFile
    from albertkit.corpus.sentences import split_sentences
    from albertkit.tables.files import find_inputs

    def read(file, errors):
        (input_file,) = find_inputs([file])
        texts = [document.text for document in DocumentFile(input_file, errors=errors)]
        "".join(texts).encode()
        return sum(len(split_sentences(text)) for text in texts)

    ways = itertools.product(sorted(folder.iterdir()), ("strict", "replace"))
    return read_each(lambda arguments=arguments: read(*arguments) for arguments in ways)


def read_as_anything(folder):
    """A file as what it is not: a text is no Parquet, so there is a problem at least with that."""
    from albertkit.corpus.documents import DocumentFile
    from albertkit.corpus.options import BuildSettings, Format
    from albertkit.errors import AlbertKitError
    from albertkit.tables.files import find_inputs

    file = folder / "plain.txt"
    good = file.is_file() and file.read_bytes() == TEXT.encode()
    try:
        (input_file,) = find_inputs([file])
        read_each(
            lambda f=f: list(DocumentFile(input_file, BuildSettings(f), "replace"))
            for f in get_args(Format)
        )
    except AlbertKitError:
        if not good:
            raise
    return "the good file" if good else "no problem"


def make_plain(folder):
    (folder / "plain.txt").write_text(TEXT)


def make_store(folder):
    from albertkit.corpus import build_store
    from albertkit.tokenizer import train_tokenizer

    text = folder / "text.txt"
    text.write_text(TEXT * 3 + "\n".join(f"{n} {SENTENCES[n % 4]}\n" for n in range(50)))
    train_tokenizer([text], folder / "made", vocab_size=60)
    build_store([text], folder / "store", folder / "made", workers=0)


def read_store(folder):
    """Everything that training reads of a store, then the check of its contents."""
    from albertkit.corpus import TokenStore
    from albertkit.pretraining.batches import BatchStream
    from albertkit.pretraining.examples import ExampleSettings
    from albertkit.pretraining.objective import Unigram

    store = TokenStore.open(folder / "store")
    list(store.documents())
    held_out = store.held_out(0.2, 0)
    for pairs in ("pure", "google"):
        settings = ExampleSettings(max_length=64, sop_pairs=pairs)
        stream = BatchStream(
            store, [~documents for documents in held_out], settings, batch_tokens=256
        )
        for _ in range(6):
            next(stream)
    Unigram.of_store(store, held_out)
    store.verify()


def restated(rng, folder):
    """Damage that the manifest vouches for, sizes and checksums."""
    import hashlib

    import damage

    from albertkit.corpus.store import with_own_sha256

    store = folder / "store"
    manifest = json.loads((store / "manifest.json").read_text())
    name = rng.choice([name for name in manifest["files"] if name.endswith(".bin")])
    content = (store / name).read_bytes()
    content = (
        damage.raw(rng, content)
        if rng.randrange(2)
        else _numbers(rng, content, 2 if "tokens" in name else 4)
    )
    (store / name).unlink()
    (store / name).write_bytes(content)
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (store / "manifest.json").write_text(
        json.dumps(with_own_sha256({k: v for k, v in manifest.items() if k != "sha256"}))
    )
    return f"restated {name}"


def _numbers(rng, content, width):
    position = rng.randrange(len(content) // width) * width
    number = rng.choice((0, 1, 59, 60, 2**15, 2**16 - 1, 2**31, 2**32 - 1)) % 256**width
    return content[:position] + number.to_bytes(width, "little") + content[position + width :]


def make_unfinished(folder):
    """The work of an interrupted job."""
    from albertkit.job import Job

    with Job(folder / "work", {"inputs": [1, "two"], "settings": {"size": 3}}) as job:
        with job.part("part-0") as stream:
            stream.write(b"whole" * 100)
        for number in range(3):
            job.write("grown", bytes([number]) * 300)
            job.commit(done=number, place={"file": 0, "document": number})


def take_up(folder):
    from albertkit.files import sha256_bytes
    from albertkit.job import Job

    with Job(folder / "work", {"inputs": [1, "two"], "settings": {"size": 3}}) as job:
        for name, committed in job.files.items():
            assert sha256_bytes((folder / "work" / name).read_bytes()) == committed.sha256
        return sorted(job.files), job.facts


def forged(rng, folder):
    """A log whose checksums are right and whose lines are not."""
    import hashlib

    import damage

    log = folder / "work/commits.jsonl"
    lines = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
    number = rng.randrange(len(lines))
    lines[number] = json.dumps(damage.tree(rng, json.loads(lines[number])))
    text = "".join(f"{hashlib.sha256(line.encode()).hexdigest()[:16]} {line}\n" for line in lines)
    log.write_text(text)
    return f"line {number} of the log: {lines[number]:.200}"


READERS = {
    "texts in every packing": Reader(make_texts, read_texts, alone=True),
    "a text as anything": Reader(make_plain, read_as_anything, examples=20, streams=True),
    "token store": Reader(
        make_store,
        read_store,
        ("store/*.json", "store/*.bin", "store/tokenizer/*"),
        restated,
        examples=15,
    ),
    "interrupted work": Reader(make_unfinished, take_up, ("work/*",), forged, writes=True),
}
