"""From files to a token store: read and encoded here or on many machines, written strictly in order; killed anywhere, it resumes.

The bytes depend on the inputs, the tokenizer and `BuildSettings`, not on machines, workers, batches or interruptions.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from albertkit.addresses import is_remote
from albertkit.corpus.inputs import InputFile, find_inputs
from albertkit.corpus.journal import JOURNAL, Journal
from albertkit.corpus.layout import check_layout
from albertkit.corpus.local import BuildEngine, LocalEngine, Work
from albertkit.corpus.origin import Origin, other_build, other_store
from albertkit.corpus.progress import BuildProgress
from albertkit.corpus.readers import ERRORS
from albertkit.corpus.reading import BatchNote, Counts, Place
from albertkit.corpus.remote import remote_manifest, upload_store, working_folder
from albertkit.corpus.report import BuildReport, warnings_of
from albertkit.corpus.settings import BuildSettings
from albertkit.corpus.store import MANIFEST, UNFINISHED, token_dtype
from albertkit.corpus.workers import EncodedBatch, peak_memory_mb
from albertkit.corpus.writer import StoreWriter, check_waiting, publish, write_manifest
from albertkit.errors import AlbertKitError, ConfigError, DataError, near_miss
from albertkit.files import only_writer, read_json
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.batch import available_cores

ENGINES = ("local", "ray")
# A worker process costs 1.7 s of processor time before it is as fast as this one (Python, the tokenizer, the compiled
# engine, an empty word table): two of them took 5.7 s where this process took 2.3 for 41 MB of text.
_SMALL_BYTES = 100_000_000


def build_store(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    tokenizer: AlbertTokenizer | str | os.PathLike[str],
    settings: BuildSettings | None = None,
    *,
    errors: str = "strict",
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    commit_seconds: float = 10.0,
    engine: str = "local",
    address: str | None = None,
) -> BuildReport:
    """Make a token store of text files.

    Killed at any moment and called again with the same inputs and settings, it goes on from the last commit and ends
    with the same bytes. The work lies in `out/.build` until the store is complete.

    Args:
        inputs: Files, globs, folders, URLs: `inputs.find_inputs`.
        out: Folder of the store; new, empty, or holding an unfinished build. An address (`s3://…`): the store is built in a
            folder below `ALBERTKIT_CACHE` (`~/.cache/albertkit`), uploaded with the manifest last, and removed here.
        tokenizer: A tokenizer or the folder of one.
        settings: What decides the bytes; default `BuildSettings()`.
        errors: What to do about bytes that are not UTF-8: "strict" (an error) or "replace".
        workers: Processes that split and encode. 0 means threads of this process: the default on two cores, and for
            less than 100 MB of input; otherwise one a core. With Ray: parts of the inputs at work or waiting at a time, 1 or
            more; None follows the cores of the cluster.
        overwrite: Replace another store, or another or a broken unfinished build, that lies in `out`.
        progress: Show it on stderr.
        commit_seconds: How often work is made safe.
        engine: "local" (this machine) or "ray" (the machines of a Ray cluster, which must see the inputs under the same
            names). The bytes are the same.
        address: Of the Ray cluster, `host:port`; None: the one this machine is part of, else this machine alone.

    Raises:
        ConfigError: bad-workers, bad-errors, bad-engine, bad-address.
        MissingExtraError: missing-extra, without Ray.
        DataError: bad input (`readers.DocumentFile`), lines-are-paragraphs, empty-corpus, folder-not-empty,
            other-store, other-build.
        MachineError: disk-full, worker-died, in-use, no-cluster, node-differs.
    """
    settings = settings or BuildSettings()
    if engine not in ENGINES:
        raise ConfigError("bad-engine", f"there is no engine `{engine}`", near_miss(engine, ENGINES))
    least = 0 if engine == "local" else 1
    if workers is not None and workers < least:
        hint = "use 0 (this process) or more" if engine == "local" else "use 1 or more"
        raise ConfigError("bad-workers", f"workers is {workers}", hint)
    if errors not in ERRORS:
        raise ConfigError("bad-errors", f"there is no way `{errors}` to treat bad bytes", near_miss(errors, ERRORS))
    if not isinstance(tokenizer, str | os.PathLike):
        loaded: Any = tokenizer
    else:
        loaded = AlbertTokenizer.from_pretrained(tokenizer)
    files = find_inputs(inputs)
    remote = os.fspath(out) if is_remote(out) else None
    folder = working_folder(remote) / "store" if remote else Path(out)
    build = _Build(folder, files, loaded, settings, errors, engine)
    with only_writer(folder):
        if remote and build.is_at(remote, overwrite):
            return build.report
        overwrite = overwrite and not (remote and build.is_whole())  # what is built waits to be uploaded
        build.run(lambda: _engine(engine, address, workers, files), overwrite, progress, commit_seconds)
        if remote:
            build.move_to(remote, progress)
    return build.report


def _engine(engine: str, address: str | None, workers: int | None, files: list[InputFile]) -> BuildEngine:
    if engine == "ray":
        from albertkit.corpus.cluster import Cluster

        return Cluster(address, workers)
    if workers is None:
        cores = available_cores()
        # On two cores, the two threads of this process are worth two workers, whatever the size.
        workers = 0 if cores <= 2 or sum(file.size for file in files) < _SMALL_BYTES else cores
    return LocalEngine(workers)


class _Build:
    """One call of `build_store`."""

    def __init__(
        self, out: Path, files: list[InputFile], tokenizer: Any, settings: BuildSettings, errors: str, engine: str
    ) -> None:
        self.out = out
        self.work = out / UNFINISHED
        self.files = files
        self.tokenizer = tokenizer
        self.settings = settings
        self.errors = errors
        self.origin = Origin(files, tokenizer.fingerprint, settings, engine)
        self.report = BuildReport(str(out), input_files=len(files), engine=engine)
        self.counts = Counts()
        self.place = Place()
        self.text_before = 0
        self.peaks: dict[Any, float] = {}
        self.changed: list[str] = []

    def run(self, engine: Callable[[], BuildEngine], overwrite: bool, progress: bool, commit_seconds: float) -> None:
        began = time.perf_counter()
        if self._finished_before(overwrite):
            self._fill(read_json(self.out / MANIFEST))
            return
        if not (self.work / MANIFEST).exists():  # else only publishing is left
            workers = engine()
            try:
                self._build(workers, overwrite, progress, commit_seconds)
            finally:
                workers.close()
            self.report.workers, self.report.nodes, self.report.retried = (
                workers.workers,
                workers.nodes,
                workers.retried,
            )
        publish(self.work, self.out)
        seconds = time.perf_counter() - began
        self.peaks[os.getpid()] = peak_memory_mb()
        self.report.seconds = round(seconds, 3)
        self.report.mb_per_second = round((self.counts.text_bytes - self.text_before) / 1e6 / seconds, 3)
        self.report.peak_memory_mb = round(sum(self.peaks.values()), 1)
        self._fill(read_json(self.out / MANIFEST))

    def _build(self, engine: BuildEngine, overwrite: bool, progress: bool, commit_seconds: float) -> None:
        if not self.work.exists():
            check_layout(self.files, self.settings)
        journal = self._open_journal(overwrite)
        try:
            self._encode(journal, engine, progress, commit_seconds)
            self._complete()
        except AlbertKitError:
            if not self.writer.totals()["documents"]:  # nothing to resume from
                shutil.rmtree(self.work)
                if not any(self.out.iterdir()):
                    self.out.rmdir()
            raise
        finally:
            journal.close()

    # --- before -------------------------------------------------------------------------------------------------------

    def _finished_before(self, overwrite: bool) -> bool:
        """Whether the very same store is there already; otherwise make sure that this build may use the folder."""
        if self.work.exists() and not any((self.work / name).exists() for name in (JOURNAL, MANIFEST)):
            shutil.rmtree(self.work)  # what a kill left between the last step of a build and its cleaning up
        waiting = self.work / MANIFEST
        if waiting.exists():
            self._check_waiting(overwrite)
        if self.work.exists() or not self.out.exists():
            return False
        if (self.out / MANIFEST).exists():
            if overwrite:
                return False
            if read_json(self.out / MANIFEST).get("made_from") == self.origin.of_store():
                self.report.already_built = True
                self.changed = self.origin.changed_since(self.out / MANIFEST)
                return True
            raise other_store(self.out)
        if any(self.out.iterdir()):
            raise DataError(
                "folder-not-empty", f"`{self.out}` holds other files and no store", "choose a new folder for --out"
            )
        return False

    def _check_waiting(self, overwrite: bool) -> None:
        """Make sure that what is only to be moved to its place was made of these inputs, and is what was written."""
        try:
            check_waiting(self.work, self.out)
            if (before := read_json(self.work / MANIFEST)["made_from"]) != self.origin.of_store():
                raise other_build(self.out, before, self.origin.of_store())
            if (self.work / JOURNAL).exists():
                journal = Journal(self.work / JOURNAL)
                try:
                    if (before := journal.fact("made_from")) != self.origin.of_build():
                        raise other_build(self.out, before or {}, self.origin.of_build())
                finally:
                    journal.close()
        except AlbertKitError:
            if not overwrite:
                raise
            shutil.rmtree(self.work)

    def _open_journal(self, overwrite: bool) -> Journal:
        """Take up what an earlier call has committed, or begin; with `overwrite`, anew if it cannot be taken up."""
        try:
            return self._take_up()
        except AlbertKitError as error:
            if not overwrite or error.slug not in ("other-build", "broken-journal", "broken-build"):
                raise
            shutil.rmtree(self.work)
            return self._take_up()

    def _take_up(self) -> Journal:
        self.work.mkdir(parents=True, exist_ok=True)
        identity = self.origin.of_build()
        journal = Journal(self.work / JOURNAL)
        try:
            before = journal.fact("made_from")
            if before not in (None, identity):
                raise other_build(self.out, before, identity)
            state = journal.fact("state") if before else None
            shutil.rmtree(self.work / "tokenizer", ignore_errors=True)  # what lay on a disk may have changed
            self.tokenizer.save_pretrained(self.work / "tokenizer")
            shards = state["shards"] if state else []
            sums = state.get("sums") if state else None
            self.writer = StoreWriter(self.work, self.tokenizer.vocab_size, self.settings.shard_tokens, shards, sums)
            if state:
                self.counts, self.place = Counts(**state["counts"]), Place(**state["place"])
                self.text_before = self.counts.text_bytes
                self.report.resumed = True
            journal.commit(made_from=identity)
        except BaseException:
            journal.close()
            raise
        return journal

    # --- the work -----------------------------------------------------------------------------------------------------

    def _encode(self, journal: Journal, engine: BuildEngine, progress: bool, commit_seconds: float) -> None:
        work = Work(self.files, self.settings, self.errors, self.tokenizer, self.work / "tokenizer")
        with BuildProgress(sum(file.size for file in self.files), progress) as display:
            several = f"{len(self.files):,} files in this order: {self.files[0].path} … {self.files[-1].path}"
            display.say(several if len(self.files) > 1 else f"1 file: {self.files[0].path}")
            if self.report.resumed:
                display.say(f"going on after {self.writer.totals()['documents']:,} documents")
            committed = time.monotonic()
            results = engine.results(work, self.place, journal)
            try:
                for note, encoded in results:
                    self._take(note, encoded)
                    journal.add(note.digests)
                    if time.monotonic() - committed >= commit_seconds:
                        self._commit(journal)
                        committed = time.monotonic()
                    text = self.counts.text_bytes - self.text_before
                    documents = self.writer.totals()["documents"]
                    display.update(engine.stored_bytes, text, documents, engine.describe())
            except DataError:  # bad input: what came before it is sound and need not be done again
                self._commit(journal)
                raise
            except OSError as error:
                error.filename = error.filename or str(self.work)
                raise
            finally:
                results.close()
            self._commit(journal)
        self.writer.close()

    def _take(self, note: BatchNote, encoded: EncodedBatch) -> None:
        document_sentences = encoded.document_sentences[encoded.document_sentences > 0]
        if len(document_sentences):
            self.writer.append(encoded.tokens, encoded.sentence_lengths, document_sentences)
        self.counts.add(note.counts)
        self.counts.empty_documents += int((encoded.document_sentences == 0).sum())
        self.counts.unknown_tokens += int(encoded.unknown.sum())
        self.counts.single_sentence_documents += int((document_sentences == 1).sum())
        self.counts.lines += int(encoded.lines.sum())
        self.counts.line_tokens += int(encoded.line_tokens.sum())
        self.counts.unfinished_lines += int(encoded.unfinished.sum())
        self.place = note.place
        process, peak = encoded.process
        self.peaks[process] = max(peak, self.peaks.get(process, 0.0))

    def _commit(self, journal: Journal) -> None:
        self.writer.sync()
        files = {"shards": self.writer.shards, "sums": self.writer.sums}
        journal.commit(state={"counts": asdict(self.counts), "place": asdict(self.place), **files})

    # --- after --------------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        totals = self.writer.totals()
        if totals["documents"] == 0:
            raise _nothing(self.counts, self.files, self.settings)
        counts = asdict(self.counts)
        if not self.counts.faulty_lines:
            del counts["faulty_lines"], counts["faults"]
        facts = {
            "dtype": token_dtype(self.tokenizer.vocab_size),
            "vocab_size": self.tokenizer.vocab_size,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "counts": {**totals, **counts},
            "made_from": self.origin.of_store(),
        }
        write_manifest(self.work, self.writer.shards, facts)

    def _fill(self, manifest: dict[str, Any]) -> None:
        for name, value in manifest["counts"].items():
            if hasattr(self.report, name):
                setattr(self.report, name, value)
        self.report.shards = len(manifest["shards"])
        self.report.warnings = [*warnings_of(manifest["counts"]), *self.changed]

    # --- a store that is to lie elsewhere -----------------------------------------------------------------------------

    def is_at(self, url: str, overwrite: bool) -> bool:
        """Whether the very same store is at an address already; otherwise make sure that this build may go there."""
        self.report.out = url
        found = remote_manifest(url)
        if found is None or overwrite:
            return False
        manifest = json.loads(found)
        if manifest.get("made_from") != self.origin.of_store():
            raise other_store(url)
        self.report.already_built = True
        self._fill(manifest)
        return True

    def is_whole(self) -> bool:
        """Whether the store has been built here, by an earlier call that was interrupted while it uploaded it."""
        manifest = self.out / MANIFEST
        return manifest.exists() and read_json(manifest).get("made_from") == self.origin.of_store()

    def move_to(self, url: str, progress: bool) -> None:
        """Bring the whole store to an address, and remove it here."""
        with BuildProgress(0, progress) as display:
            upload_store(self.out, url, display.say)
        self.report.already_built = False
        shutil.rmtree(self.out.parent)


def _nothing(counts: Counts, files: list[InputFile], settings: BuildSettings) -> DataError:
    """Why there is nothing to store."""
    if counts.faulty_lines:
        return DataError(
            "no-pairs",
            f"none of {counts.faulty_lines:,} lines has two sentences with `{settings.separator}` between them; the first: "
            f"{counts.faults[0]}",
            "name what divides them with --separator, or read the lines with --format paragraphs",
        )
    named = f"`{files[0].path}`" if len(files) == 1 else f"{len(files):,} files"
    return DataError(
        "empty-corpus", f"no document with text in {named} ({counts.empty_files:,} without a byte)",
        "check the inputs, --format and --field",
    )  # fmt: skip
