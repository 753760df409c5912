"""Text inputs in every format and packing; token stores; the journal of an unfinished build."""

import gzip
import json
import lzma
import random
import sqlite3
from pathlib import Path

import pytest
from hostile import Reader

SENTENCES = ["The quick brown fox jumps.", "A lazy dog – sleeps.", "서울에서 온 여우.", "1,000 wizards brew."]
TEXT = "\n\n".join("\n".join(SENTENCES[n % 4 :] + SENTENCES[:1]) for n in range(6)) + "\n"


def make_texts(folder: Path) -> None:
    import pyarrow as arrow
    import zstandard
    from pyarrow import parquet

    rows = [{"text": text, "id": number} for number, text in enumerate(SENTENCES)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    wiki = "".join(f'<doc id="{n}" url="u" title="T{n}">\nT{n}\n\n{text}\n</doc>\n' for n, text in enumerate(SENTENCES))
    (folder / "plain.txt").write_text(TEXT)
    (folder / "lines.jsonl").write_text(lines)
    (folder / "pages.wiki").write_text(wiki)
    (folder / "packed.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (folder / "packed.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    (folder / "packed.txt.zst").write_bytes(zstandard.compress(TEXT.encode()))
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "table.parquet")


def read_each(folder: Path):
    """Every file by itself, both ways of treating bad bytes; the last error counts."""
    from albertkit.corpus.inputs import find_inputs
    from albertkit.corpus.readers import DocumentFile
    from albertkit.corpus.sentences import split_sentences
    from albertkit.errors import AlbertKitError

    problem, count = None, 0
    for file in sorted(folder.iterdir()):
        for errors in ("strict", "replace"):
            try:
                (found,) = find_inputs([file])
                for document in DocumentFile(found, errors=errors):
                    document.text.encode()
                    count += len(split_sentences(document.text))
            except AlbertKitError as error:
                problem = error
    if problem:
        raise problem
    return count


def read_as_anything(folder: Path):
    """A file as what it is not."""
    from albertkit.corpus.inputs import find_inputs
    from albertkit.corpus.readers import FORMATS, DocumentFile
    from albertkit.errors import AlbertKitError

    problem = None
    for format in FORMATS:
        try:
            list(DocumentFile(find_inputs([folder / "plain.txt"])[0], format, errors="replace"))
        except AlbertKitError as error:
            problem = error
    if (folder / "plain.txt").is_file() and (folder / "plain.txt").read_bytes() == TEXT.encode():
        return "the good file"
    raise problem  # a text is no Parquet


def make_plain(folder: Path) -> None:
    (folder / "plain.txt").write_text(TEXT)


def make_store(folder: Path) -> None:
    from albertkit.corpus import build_store
    from albertkit.tokenizer import train_tokenizer

    text = folder / "text.txt"
    text.write_text(TEXT * 3 + "\n".join(f"{n} {SENTENCES[n % 4]}\n" for n in range(50)))
    train_tokenizer([text], folder / "made", vocab_size=60)
    build_store([text], folder / "store", folder / "made", workers=0)


def read_store(folder: Path):
    """Everything that training reads of a store, then the check of its contents."""
    from albertkit.corpus import TokenStore
    from albertkit.pretraining.evaluation import Unigram
    from albertkit.pretraining.examples import ExampleSettings
    from albertkit.pretraining.stream import BatchStream

    store = TokenStore.open(folder / "store")
    list(store.documents())
    held_out = store.held_out(0.2, 0)
    for pairs in ("pure", "google"):
        settings = ExampleSettings(max_length=64, sop_pairs=pairs)
        stream = BatchStream(store, [~documents for documents in held_out], settings, batch_tokens=256)
        for _ in range(6):
            next(stream)
    Unigram(store, held_out)
    store.verify()


def restated(rng: random.Random, folder: Path) -> str:
    """Damage that the manifest vouches for, sizes and checksums."""
    import hashlib

    import damage

    from albertkit.corpus.store import signed

    store = folder / "store"
    manifest = json.loads((store / "manifest.json").read_text())
    name = rng.choice([name for name in manifest["files"] if name.endswith(".bin")])
    content = (store / name).read_bytes()
    content = damage.raw(rng, content) if rng.randrange(2) else _numbers(rng, content, 2 if "tokens" in name else 4)
    (store / name).unlink()
    (store / name).write_bytes(content)
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (store / "manifest.json").write_text(json.dumps(signed({k: v for k, v in manifest.items() if k != "sha256"})))
    return f"restated {name}"


def _numbers(rng: random.Random, content: bytes, width: int) -> bytes:
    place = rng.randrange(len(content) // width) * width
    number = rng.choice((0, 1, 59, 60, 2**15, 2**16 - 1, 2**31, 2**32 - 1)) % 256**width
    return content[:place] + number.to_bytes(width, "little") + content[place + width :]


def make_unfinished(folder: Path) -> None:
    """A build that a full journal says has begun."""
    from albertkit.corpus.journal import Journal

    make_plain(folder)
    journal = Journal(folder / "journal.sqlite")
    journal.add([bytes([n]) * 16 for n in range(200)])
    journal.commit(progress={"file": 0, "document": 3}, facts=[1, 2])
    journal.close()


def read_journal(folder: Path):
    from albertkit.corpus.journal import Journal

    journal = Journal(folder / "journal.sqlite")
    try:
        found = [journal.fact(name) for name in ("progress", "facts", "nothing")], journal.seen(b"\1" * 16)
        journal.add([b"new" * 5])
        journal.commit(progress=1)
        return found
    finally:
        journal.close()


def wrong_facts(rng: random.Random, folder: Path) -> str:
    """A good database of other contents."""
    base = sqlite3.connect(folder / "journal.sqlite")
    what = rng.choice((
        "UPDATE facts SET value = '[['", "UPDATE facts SET value = NULL", "DROP TABLE facts", "DROP TABLE seen",
        "ALTER TABLE seen RENAME COLUMN hash TO h", "ALTER TABLE facts RENAME COLUMN value TO v",
        "DELETE FROM facts", "UPDATE facts SET value = x'ff'", "UPDATE facts SET value = 7",
    ))  # fmt: skip
    base.execute(what)
    base.commit()
    base.close()
    return what


READERS = {
    "texts in every packing": Reader(make_texts, read_each),
    "a text as anything": Reader(make_plain, read_as_anything, examples=30, streams=True),
    "token store": Reader(
        make_store, read_store, ("store/*.json", "store/*.bin", "store/tokenizer/*"), restated, examples=40
    ),
    "journal of a build": Reader(make_unfinished, read_journal, ("*.sqlite",), wrong_facts, writes=True),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name, fuzzing):
    fuzzing.damage(name, READERS[name])


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file(name, fuzzing):
    if name != "texts in every packing":  # of which each reads the others
        fuzzing.places(name, READERS[name])
