"""The bytes of a store depend on nothing but inputs, tokenizer and settings: not on workers, kills or full disks."""

import errno
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from word_tokenizer import DyingTokenizer, WordTokenizer

from albertkit.corpus import BuildSettings, TokenStore, build_store
from albertkit.corpus.journal import Journal
from albertkit.corpus.writer import StoreWriter, publish
from albertkit.errors import AlbertKitError

SMALL_SHARDS = BuildSettings(shard_tokens=5000)
TOKENIZER = WordTokenizer()


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr("albertkit.corpus.reading.BATCH_CHARACTERS", 3000)


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Twelve files in three formats, about 500 kB: duplicates across files, empty documents, single sentences."""
    folder, rng = tmp_path / "corpus", random.Random(0)
    folder.mkdir()

    def document() -> str:
        sentences = (
            " ".join(f"w{rng.randrange(3000)}" for _ in range(rng.randint(1, 25))) for _ in range(rng.randint(1, 30))
        )
        return "\n".join(f"{sentence.capitalize()}." for sentence in sentences)

    for i in range(4):
        documents = [document() for _ in range(30)] + ["Seen\nbefore."]
        (folder / f"a{i}.txt.gz").write_bytes(gzip.compress("\n\n".join(documents).encode(), mtime=0))
        records = [json.dumps({"text": text}) for text in [document(), "", "Seen\nbefore."]]
        (folder / f"b{i}.jsonl").write_text("\n".join(records))
        wiki = [f'<doc id="1" title="T{j}">\nT{j}\n\n{document()}\n</doc>\n' for j in range(10)]
        (folder / f"c{i}").write_text("".join(wiki))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def slug_of(call) -> str:
    with pytest.raises(AlbertKitError) as caught:
        call()
    return caught.value.slug


def test_counts(corpus, tmp_path):
    report = build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS)
    assert report.input_files == 12
    assert report.documents == 4 * 30 + 1 + 4 + 40
    assert report.duplicate_documents == 3 + 4
    assert report.empty_documents == 4
    store = TokenStore.open(tmp_path / "store")
    assert report.shards == store.num_shards > 3
    assert report.single_sentence_documents == sum(len(document) == 1 for document in store.documents()) > 0
    assert report.tokens == store.num_tokens == sum(len(s) for document in store.documents() for s in document)
    assert report.peak_memory_mb > 10
    assert not (tmp_path / "store" / ".build").exists()
    assert "sentence order" not in " ".join(report.warnings)


def test_the_same_bytes_whatever_the_workers(corpus, tmp_path, small_batches):
    stores = []
    for workers in (0, 1, 2):
        report = build_store([corpus], tmp_path / f"store{workers}", TOKENIZER, SMALL_SHARDS, workers=workers)
        assert report.workers == workers
        stores.append(contents(tmp_path / f"store{workers}"))
    assert stores[0] == stores[1] == stores[2]


def test_batches_do_not_show(corpus, tmp_path, monkeypatch):
    build_store([corpus], tmp_path / "a", TOKENIZER, SMALL_SHARDS)
    monkeypatch.setattr("albertkit.corpus.reading.BATCH_DOCUMENTS", 1)
    build_store([corpus], tmp_path / "b", TOKENIZER, SMALL_SHARDS)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


BUILD = """
import os, signal, sys
import albertkit.corpus.reading, albertkit.corpus.writer, albertkit.corpus.build as build
from albertkit.corpus import BuildSettings, build_store
from word_tokenizer import WordTokenizer

corpus, out, where, count, workers = sys.argv[1:]
left = int(count)

def dying(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

if __name__ == "__main__":
    albertkit.corpus.reading.BATCH_CHARACTERS = 3000
    writer, journal = albertkit.corpus.writer.StoreWriter, build.Journal
    if where == "write":
        writer._write = dying(writer._write)
    elif where == "commit":
        journal.commit = dying(journal.commit)
    elif where == "sync":
        writer.sync = dying(writer.sync)
    elif where == "publish":
        for name in ("replace", "unlink"):
            setattr(os, name, dying(getattr(os, name)))
    build_store([corpus], out, WordTokenizer(), BuildSettings(shard_tokens=5000), workers=int(workers), commit_seconds=0.0)
"""


def build_in_a_process(tmp_path: Path, *arguments: object) -> int:
    script = tmp_path / "build_script.py"
    script.write_text(BUILD)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.run([sys.executable, script, *map(str, arguments)], env=environment, check=False).returncode


def test_kill_9_anywhere_and_again(corpus, tmp_path):
    build_store([corpus], tmp_path / "whole", TOKENIZER, SMALL_SHARDS)
    expected = contents(tmp_path / "whole")
    out = tmp_path / "killed"
    # each round begins where the one before was killed; the last ones die while files move to their place
    rounds = [("write", 12), ("commit", 1), ("commit", 8), ("sync", 6), ("write", 1), ("write", 9), ("publish", 3)]
    for where, count in [*rounds, ("publish", 5), ("publish", 9)]:
        assert build_in_a_process(tmp_path, corpus, out, where, count, 0) == -signal.SIGKILL
        assert slug_of(lambda: TokenStore.open(out)) == "unfinished-store"
    assert build_in_a_process(tmp_path, corpus, out, "nowhere", 1, 0) == 0
    assert contents(out) == expected


def test_kill_9_with_workers(corpus, tmp_path):
    build_store([corpus], tmp_path / "whole", TOKENIZER, SMALL_SHARDS)
    assert build_in_a_process(tmp_path, corpus, tmp_path / "killed", "write", 40, 2) == -signal.SIGKILL
    assert build_in_a_process(tmp_path, corpus, tmp_path / "killed", "nowhere", 1, 1) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_resumed_build_does_not_begin_anew(corpus, tmp_path, small_batches, monkeypatch):
    full = build_store([corpus], tmp_path / "whole", TOKENIZER, SMALL_SHARDS)
    write = StoreWriter._write
    calls = []

    def failing(self, *arguments):
        calls.append(1)
        if len(calls) == 45:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "tokens-00000.bin")
        write(self, *arguments)

    monkeypatch.setattr(StoreWriter, "_write", failing)
    with pytest.raises(OSError, match="No space left"):
        build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS, commit_seconds=0.0)
    written = len(calls)
    report = build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS)
    assert report.resumed
    assert len(calls) - written < written
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")
    ours, theirs = report.to_dict(), full.to_dict()
    for name in ("documents", "sentences", "text_bytes", "characters", "empty_documents", "duplicate_documents"):
        assert ours[name] == theirs[name]


def test_a_disk_that_is_full_for_the_journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    journal.commit(made_from={})
    journal._database.execute("PRAGMA max_page_count=4")
    with pytest.raises(OSError, match="No space left") as caught:
        journal.add(i.to_bytes(16, "big") for i in range(3000))
    assert caught.value.errno == errno.ENOSPC


def test_the_same_store_is_not_built_twice(corpus, tmp_path):
    first = build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS)
    before = {file: os.stat(file).st_mtime_ns for file in (tmp_path / "store").iterdir()}
    again = build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS)
    assert again.already_built
    assert again.tokens == first.tokens
    assert before == {file: os.stat(file).st_mtime_ns for file in (tmp_path / "store").iterdir()}


def test_another_store_is_replaced_only_when_asked(corpus, tmp_path):
    build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS)
    one_shard = BuildSettings()
    assert slug_of(lambda: build_store([corpus], tmp_path / "store", TOKENIZER, one_shard)) == "other-store"
    build_store([corpus], tmp_path / "store", TOKENIZER, one_shard, overwrite=True)
    build_store([corpus], tmp_path / "fresh", TOKENIZER, one_shard)
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")  # no shard of the old one is left


def test_an_unfinished_build_goes_on_only_as_it_began(corpus, tmp_path):
    out = tmp_path / "store"
    assert build_in_a_process(tmp_path, corpus, out, "write", 30, 0) == -signal.SIGKILL
    others = BuildSettings(sentences="lines", shard_tokens=5000)
    with pytest.raises(AlbertKitError, match="differing: sentences") as caught:
        build_store([corpus], out, TOKENIZER, others)
    assert caught.value.slug == "other-build"
    assert slug_of(lambda: build_store([corpus], out, WordTokenizer(77), SMALL_SHARDS)) == "other-build"
    (corpus / "a0.txt.gz").write_bytes(gzip.compress(b"changed"))
    assert slug_of(lambda: build_store([corpus], out, TOKENIZER, SMALL_SHARDS)) == "other-build"
    build_store([corpus], out, TOKENIZER, others, overwrite=True)
    build_store([corpus], tmp_path / "fresh", TOKENIZER, others)
    assert contents(out) == contents(tmp_path / "fresh")


@pytest.mark.parametrize("broken", ["journal", "no journal", "page", "shard"])
def test_a_broken_unfinished_build_begins_anew_when_asked(corpus, tmp_path, broken):
    out = tmp_path / "store"
    assert build_in_a_process(tmp_path, corpus, out, "write", 30, 0) == -signal.SIGKILL
    journal = out / ".build" / "journal.sqlite"
    if broken == "journal":
        journal.write_bytes(journal.read_bytes()[:5000])
    elif broken == "no journal":
        journal.write_bytes(b"this is no database, whatever it was " * 100)
    elif broken == "page":
        data = bytearray(journal.read_bytes())
        data[4096 : 2 * 4096] = bytes(4096)
        journal.write_bytes(data)
    else:
        (out / ".build" / "tokens-00000.bin").write_bytes(b"\1\0")
    slug = slug_of(lambda: build_store([corpus], out, TOKENIZER, SMALL_SHARDS))
    assert slug == ("broken-build" if broken == "shard" else "broken-journal")
    report = build_store([corpus], out, TOKENIZER, SMALL_SHARDS, overwrite=True)
    assert not report.resumed
    build_store([corpus], tmp_path / "fresh", TOKENIZER, SMALL_SHARDS)
    assert contents(out) == contents(tmp_path / "fresh")


def test_bad_bytes_stop_the_build_and_replace_goes_on(corpus, tmp_path, small_batches):
    (corpus / "z.txt").write_bytes(b"All good.\n\nThe caf\xe9 is\xff.\n")
    assert slug_of(lambda: build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS)) == "bad-encoding"
    report = build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS, errors="replace")
    assert report.resumed  # what was sound is not done again
    assert report.bad_bytes == 2
    assert "2 bytes were not UTF-8" in " ".join(report.warnings)
    build_store([corpus], tmp_path / "fresh", TOKENIZER, SMALL_SHARDS, errors="replace")
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


def test_a_worker_that_dies_is_an_error_and_nothing_is_lost(corpus, tmp_path, small_batches):
    (corpus / "b9.txt").write_text("here workers\ndie at once")
    assert slug_of(lambda: build_store([corpus], tmp_path / "store", DyingTokenizer(), workers=2)) == "worker-died"
    report = build_store([corpus], tmp_path / "store", TOKENIZER, workers=0)
    assert report.documents == 166


def test_only_one_process_builds_a_store(corpus, tmp_path):
    (tmp_path / "store" / ".build").mkdir(parents=True)
    journal = Journal(tmp_path / "store" / ".build" / "journal.sqlite")
    hold = (
        "import sys; from word_tokenizer import WordTokenizer; from albertkit.corpus import build_store\n"
        "from albertkit.errors import AlbertKitError\n"
        "try: build_store([sys.argv[1]], sys.argv[2], WordTokenizer())\n"
        "except AlbertKitError as error: sys.exit(error.slug)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", hold, str(corpus), str(tmp_path / "store")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "build-running"
    journal.close()


def test_empty_and_foreign(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    for names in (["empty.txt"], ["empty.txt", "blank.txt"]):
        files = [tmp_path / name for name in names]
        assert slug_of(lambda files=files: build_store(files, tmp_path / "store", TOKENIZER)) == "empty-corpus"
        assert not (tmp_path / "store").exists()
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"word " * 9999)[:-20])
    assert slug_of(lambda: build_store([tmp_path / "cut.txt.gz"], tmp_path / "store", TOKENIZER)) == "truncated-file"
    assert not (tmp_path / "store").exists()
    (tmp_path / "good.txt").write_text("One.\nTwo.")
    report = build_store([tmp_path / "empty.txt", tmp_path / "good.txt"], tmp_path / "store", TOKENIZER)
    assert (report.documents, report.empty_files) == (1, 1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    assert slug_of(lambda: build_store([tmp_path / "good.txt"], tmp_path / "full", TOKENIZER)) == "folder-not-empty"
    assert slug_of(lambda: build_store([tmp_path / "none.txt"], tmp_path / "new", TOKENIZER)) == "not-found"
    assert not (tmp_path / "new").exists()


def test_bad_settings(tmp_path):
    assert slug_of(lambda: BuildSettings(format="json")) == "bad-format"
    assert slug_of(lambda: BuildSettings(sentences="line")) == "bad-sentences"
    assert slug_of(lambda: BuildSettings(shard_tokens=0)) == "bad-shard-tokens"
    assert slug_of(lambda: build_store([tmp_path], tmp_path / "out", TOKENIZER, workers=-1)) == "bad-workers"
    assert slug_of(lambda: build_store([tmp_path], tmp_path / "out", TOKENIZER, errors="ignore")) == "bad-errors"
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(corpus, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        build_store([corpus], tmp_path / "locked" / "store", TOKENIZER)


def test_warnings(tmp_path):
    wrapped = "\n\n".join(f"This prose {i} is broken\nwherever the line was\nfull." for i in range(50))
    (tmp_path / "wrapped.txt").write_text(wrapped)
    (tmp_path / "single.txt").write_text("\n\n".join(f"Sentence {i}." for i in range(50)))
    report = build_store([tmp_path / "wrapped.txt"], tmp_path / "a", TOKENIZER)
    assert "100 of 150 lines end without punctuation" in report.warnings[0]
    report = build_store([tmp_path / "single.txt"], tmp_path / "b", TOKENIZER)
    assert report.single_sentence_documents == 50
    assert "no document has two sentences" in report.warnings[0]
    report = build_store([tmp_path / "wrapped.txt"], tmp_path / "c", TOKENIZER, BuildSettings(sentences="split"))
    assert report.sentences == 50


@pytest.mark.parametrize("function", ["replace", "unlink", "rmdir"])
def test_replacing_a_store_can_be_interrupted_anywhere(tmp_path, monkeypatch, function):
    (tmp_path / "old.txt").write_text("\n\n".join(f"Old {i}.\nYes." for i in range(300)))
    (tmp_path / "new.txt").write_text("\n\n".join(f"New {i}.\nYes." for i in range(40)))
    settings = BuildSettings(shard_tokens=60)
    build_store([tmp_path / "new.txt"], tmp_path / "fresh", TOKENIZER, settings)
    build_store([tmp_path / "old.txt"], tmp_path / "store", TOKENIZER, settings)
    system, left = getattr(os, function), 0

    def interrupted(*arguments, **options):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return system(*arguments, **options)

    monkeypatch.setattr(os, function, interrupted)
    for count in range(1, 30):
        left = count
        try:
            build_store([tmp_path / "new.txt"], tmp_path / "store", TOKENIZER, settings, overwrite=True)
        except KeyboardInterrupt:
            if (tmp_path / "store" / "manifest.json").exists():  # whole, the old or the new one
                TokenStore.open(tmp_path / "store").verify()
            else:
                assert slug_of(lambda: TokenStore.open(tmp_path / "store")) == "unfinished-store"
        else:
            break
    monkeypatch.undo()
    build_store([tmp_path / "new.txt"], tmp_path / "store", TOKENIZER, settings)
    assert contents(tmp_path / "store") == contents(tmp_path / "fresh")


def test_publishing_twice_is_publishing_once(tmp_path, corpus):
    build_store([corpus], tmp_path / "store", TOKENIZER, SMALL_SHARDS)
    expected = contents(tmp_path / "store")
    build = tmp_path / "store" / ".build"
    build.mkdir()
    for name in ("manifest.json", "tokens-00000.bin"):
        os.replace(tmp_path / "store" / name, build / name)
    publish(build, tmp_path / "store")
    assert contents(tmp_path / "store") == expected


# --- real text ----------------------------------------------------------------------------------------------------------


def test_wikipedia_is_read_as_sentencepiece_reads_it(data, tmp_path):
    import sentencepiece
    from sentencex import segment

    file = data / "wiki-en" / "wiki_07.gz"
    build_store([file], tmp_path / "store", data / "albert", workers=0)
    store = TokenStore.open(tmp_path / "store")
    raw = gzip.decompress(file.read_bytes()).decode()
    articles = re.findall(r"<doc [^>]*>\n(.*?)\n(.*?)</doc>", raw, re.DOTALL)
    assert store.num_documents == len(articles)
    model = sentencepiece.SentencePieceProcessor(model_file=str(data / "albert" / "30k-clean.model"))
    same = total = 0
    for document, (_, body) in zip(store.documents(), articles, strict=True):
        sentences = [s.strip() for line in body.split("\n") for s in segment("en", line) if s.strip()]
        ids = [encoded for s in sentences if (encoded := model.encode(s.lower()))]
        assert len(document) == len(ids)
        same += sum(a.tolist() == b for a, b in zip(document, ids, strict=True))
        total += len(ids)
    # the rules `google` differ from bare SentencePiece in accents and in a comma after a digit
    assert 0.8 < same / total < 1


def test_the_command(data, tmp_path):
    command = [sys.executable, "-m", "albertkit.cli", "corpus", "build", str(data / "wiki-en" / "wiki_00.gz"), "--out"]
    command += [str(tmp_path / "store"), "--tokenizer", str(data / "albert"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert done.stderr == ""
    assert report["documents"] == TokenStore.open(tmp_path / "store").num_documents
    assert {"seconds", "mb_per_second", "peak_memory_mb", "tokens", "sentences"} <= set(report)
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    command[5], command[7] = str(tmp_path / "bad.txt"), str(tmp_path / "bad")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error[bad-encoding]")
    assert "Traceback" not in done.stderr
