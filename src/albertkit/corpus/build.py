"""From files to a token store: one reader, N workers, results written strictly in order; killed anywhere, it resumes.

The bytes depend on the inputs, the tokenizer and `BuildSettings`, not on workers, batches or interruptions.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from albertkit.corpus.inputs import InputFile, find_inputs
from albertkit.corpus.journal import Journal
from albertkit.corpus.progress import BuildProgress
from albertkit.corpus.readers import ERRORS, FORMATS, SEPARATOR
from albertkit.corpus.reading import Counts, Place, Reader
from albertkit.corpus.sentences import SENTENCES
from albertkit.corpus.store import MANIFEST, token_dtype
from albertkit.corpus.workers import EncodedBatch, encode_all, peak_memory_mb
from albertkit.corpus.writer import StoreWriter, publish, write_manifest
from albertkit.errors import AlbertKitError, ConfigError, DataError, near_miss
from albertkit.files import read_json, sha256_bytes
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.batch import available_cores

_BUILD = ".build"
JOURNAL = "journal.sqlite"
# A worker process costs 1.7 s of processor time before it is as fast as this one (Python, the tokenizer, the compiled
# engine, an empty word table): two of them took 5.7 s where this process took 2.3 for 41 MB of text.
_SMALL_BYTES = 100_000_000


@dataclass(frozen=True)
class BuildSettings:
    """What decides the bytes of a store, beside inputs and tokenizer.

    Args:
        format: text, jsonl, parquet, wiki, paragraphs or pairs; None finds out for each file (never the last two).
        field: JSONL field or Parquet column that holds the text.
        separator: Between the sentences of a line of pairs.
        sentences: "lines" (a line is a sentence), "split", or "kiwi" (Korean, also without full stops: needs kiwipiepy);
            None: lines in plain text and pairs, split in the others.
        language: Two-letter code whose abbreviations the splitter knows.
        shard_tokens: Tokens a shard holds at most. 2^29: a file of 1 GiB (uint16) or 2 GiB, easy to copy and to check
            one by one, while offsets stay far below 2^32.
    """

    format: str | None = None
    field: str = "text"
    separator: str = SEPARATOR
    sentences: str | None = None
    language: str = "en"
    shard_tokens: int = 1 << 29

    def __post_init__(self) -> None:
        for name, known in (("format", FORMATS), ("sentences", SENTENCES)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ConfigError(f"bad-{name}", f"there is no {name} `{value}`", near_miss(value, known))
        if not self.separator.strip(" "):
            raise ConfigError("bad-separator", "the separator is empty", "use a sign that no sentence holds, like ;$;")
        if not 0 < self.shard_tokens <= 1 << 31:
            raise ConfigError("bad-shard-tokens", f"shard_tokens is {self.shard_tokens:,}", "use 1 to 2^31")


@dataclass
class BuildReport:
    """What a build did.

    Args:
        out: The store.
        documents, sentences, tokens, shards: In the store.
        empty_documents: Left out: no text, or no token.
        duplicate_documents: Left out: the same text as an earlier document.
        single_sentence_documents: In the store, but no sentence-order pair comes from them alone.
        cut_documents: Made by cutting a document longer than `readers.DOCUMENT_CHARACTERS`.
        unknown_tokens: Tokens that are the unknown piece.
        bad_bytes: Bytes that are not UTF-8 (with errors="replace").
        faulty_lines: Lines of pairs that were passed over: no separator, or nothing on one of its sides.
        faults: The places of the first of them, `file:line`.
        input_files, empty_files: Files read; those without a byte.
        characters, text_bytes: Text of all documents, also of those left out.
        seconds: Of this run.
        mb_per_second: UTF-8 text in 10^6 bytes a second, in this run.
        peak_memory_mb: Peaks of this process and its workers, added (10^6 bytes).
        workers: Worker processes; 0 is this one.
        resumed: An interrupted build was taken up.
        already_built: The same store lay there; nothing was done.
        warnings: What a person should know.
    """

    out: str
    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    shards: int = 0
    empty_documents: int = 0
    duplicate_documents: int = 0
    single_sentence_documents: int = 0
    cut_documents: int = 0
    unknown_tokens: int = 0
    bad_bytes: int = 0
    faulty_lines: int = 0
    faults: list[str] = field(default_factory=list)
    input_files: int = 0
    empty_files: int = 0
    characters: int = 0
    text_bytes: int = 0
    seconds: float = 0.0
    mb_per_second: float = 0.0
    peak_memory_mb: float = 0.0
    workers: int = 0
    resumed: bool = False
    already_built: bool = False
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


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
) -> BuildReport:
    """Make a token store of text files.

    Killed at any moment and called again with the same inputs and settings, it goes on from the last commit and ends
    with the same bytes. The work lies in `out/.build` until the store is complete.

    Args:
        inputs: Files, globs, folders, URLs: `inputs.find_inputs`.
        out: Folder of the store; new, empty, or holding an unfinished build.
        tokenizer: A tokenizer or the folder of one.
        settings: What decides the bytes; default `BuildSettings()`.
        errors: What to do about bytes that are not UTF-8: "strict" (an error) or "replace".
        workers: Processes that split and encode. 0 means threads of this process: the default on two cores, and for
            less than 100 MB of input; otherwise one a core.
        overwrite: Replace another store, or another or a broken unfinished build, that lies in `out`.
        progress: Show it on stderr.
        commit_seconds: How often work is made safe.

    Raises:
        ConfigError: bad-workers, bad-errors.
        DataError: bad input (`readers.DocumentFile`), empty-corpus, folder-not-empty, other-store, other-build.
        MachineError: disk-full, worker-died, build-running.
    """
    settings = settings or BuildSettings()
    if workers is not None and workers < 0:
        raise ConfigError("bad-workers", f"workers is {workers}", "use 0 (this process) or more")
    if errors not in ERRORS:
        raise ConfigError("bad-errors", f"there is no way `{errors}` to treat bad bytes", near_miss(errors, ERRORS))
    if not isinstance(tokenizer, str | os.PathLike):
        loaded: Any = tokenizer
    else:
        loaded = AlbertTokenizer.from_pretrained(tokenizer)
    files = find_inputs(inputs)
    if workers is None:
        cores = available_cores()
        # On two cores, the two threads of this process are worth two workers, whatever the size.
        workers = 0 if cores <= 2 or sum(file.size for file in files) < _SMALL_BYTES else cores
    build = _Build(Path(out), files, loaded, settings, errors)
    return build.run(workers, overwrite, progress, commit_seconds)


class _Build:
    """One call of `build_store`."""

    def __init__(self, out: Path, files: list[InputFile], tokenizer: Any, settings: BuildSettings, errors: str) -> None:
        self.out = out
        self.work = out / _BUILD
        self.files = files
        self.tokenizer = tokenizer
        self.settings = settings
        self.errors = errors
        self.report = BuildReport(str(out), input_files=len(files))
        self.counts = Counts()
        self.place = Place()
        self.text_before = 0
        self.peaks: dict[int, float] = {}

    def run(self, workers: int, overwrite: bool, progress: bool, commit_seconds: float) -> BuildReport:
        began = time.perf_counter()
        self.report.workers = workers
        if self._finished_before(overwrite):
            return self._fill()
        if not (self.work / MANIFEST).exists():  # else only publishing is left
            journal = self._open_journal(overwrite)
            try:
                self._encode(journal, workers, progress, commit_seconds)
                self._complete()
            except AlbertKitError:
                if not self.writer.totals()["documents"]:  # nothing to resume from
                    shutil.rmtree(self.work)
                    if not any(self.out.iterdir()):
                        self.out.rmdir()
                raise
            finally:
                journal.close()
        publish(self.work, self.out)
        seconds = time.perf_counter() - began
        self.peaks[os.getpid()] = peak_memory_mb()
        self.report.seconds = round(seconds, 3)
        self.report.mb_per_second = round((self.counts.text_bytes - self.text_before) / 1e6 / seconds, 3)
        self.report.peak_memory_mb = round(sum(self.peaks.values()), 1)
        return self._fill()

    # --- before -------------------------------------------------------------------------------------------------------

    def _finished_before(self, overwrite: bool) -> bool:
        """Whether the very same store is there already; otherwise make sure that this build may use the folder."""
        if self.work.exists() and not any((self.work / name).exists() for name in (JOURNAL, MANIFEST)):
            shutil.rmtree(self.work)  # what a kill left between the last step of a build and its cleaning up
        waiting = self.work / MANIFEST
        if waiting.exists() and (before := read_json(waiting)["made_from"]) != self._made_from():
            if not overwrite:
                raise self._other_build(before, self._made_from())
            shutil.rmtree(self.work)
        if self.work.exists() or not self.out.exists():
            return False
        if (self.out / MANIFEST).exists():
            if overwrite:
                return False
            if read_json(self.out / MANIFEST).get("made_from") == self._made_from():
                self.report.already_built = True
                return True
            raise DataError(
                "other-store",
                f"`{self.out}` holds a store made from other inputs or settings",
                "choose another --out, or --overwrite to replace it",
            )
        if any(self.out.iterdir()):
            raise DataError(
                "folder-not-empty", f"`{self.out}` holds other files and no store", "choose a new folder for --out"
            )
        return False

    def _other_build(self, before: dict[str, Any], now: dict[str, Any]) -> DataError:
        differing = {name for name in now if before.get(name) != now[name]}
        plain = {
            "tokenizer" if "tokenizer" in n else "inputs" if "input" in n or "paths" in n else n for n in differing
        }
        return DataError(
            "other-build",
            f"`{self.out}` holds an unfinished build that began otherwise (differing: {', '.join(sorted(plain))})",
            "run the command that began it, choose another --out, or start anew with --overwrite",
        )

    def _made_from(self) -> dict[str, Any]:
        """What the store is made from, by names and sizes: copies of the inputs elsewhere give the same manifest."""
        listing = json.dumps([[file.name, file.size] for file in self.files])
        settings = asdict(self.settings)
        if self.settings.format != "pairs":
            del settings["separator"]  # decides nothing
        return {
            "input_files": len(self.files),
            "input_bytes": sum(file.size for file in self.files),
            "first_input": self.files[0].name,
            "last_input": self.files[-1].name,
            "inputs_sha256": sha256_bytes(listing.encode()),
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            **settings,
        }

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
        listing = json.dumps([[file.path, file.size, file.modified] for file in self.files])
        identity = {**self._made_from(), "paths_sha256": sha256_bytes(listing.encode())}
        journal = Journal(self.work / JOURNAL)
        try:
            before = journal.fact("made_from")
            if before not in (None, identity):
                raise self._other_build(before, identity)
            state = journal.fact("state") if before else None
            if before is None:
                shutil.rmtree(self.work / "tokenizer", ignore_errors=True)
                self.tokenizer.save_pretrained(self.work / "tokenizer")
            shards = state["shards"] if state else []
            self.writer = StoreWriter(self.work, self.tokenizer.vocab_size, self.settings.shard_tokens, shards)
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

    def _encode(self, journal: Journal, workers: int, progress: bool, commit_seconds: float) -> None:
        reader = Reader(self.files, self.place, self.settings, self.errors, journal.seen)
        with BuildProgress(sum(file.size for file in self.files), progress) as display:
            several = f"{len(self.files):,} files in this order: {self.files[0].path} … {self.files[-1].path}"
            display.say(several if len(self.files) > 1 else f"1 file: {self.files[0].path}")
            if self.report.resumed:
                display.say(f"going on after {self.writer.totals()['documents']:,} documents")
            committed = time.monotonic()
            results = encode_all(
                reader.batches(), self.tokenizer, self.work / "tokenizer", self.settings.language, workers
            )
            try:
                for note, encoded in results:
                    self._take(note, encoded)
                    journal.add(note.digests)
                    reader.written(note.digests)
                    if time.monotonic() - committed >= commit_seconds:
                        self._commit(journal)
                        committed = time.monotonic()
                    display.update(
                        reader.stored_bytes(),
                        self.counts.text_bytes - self.text_before,
                        self.writer.totals()["documents"],
                    )
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

    def _take(self, note: Any, encoded: EncodedBatch) -> None:
        if len(encoded.document_sentences):
            self.writer.append(encoded.tokens, encoded.sentence_lengths, encoded.document_sentences)
        self.counts.add(note.counts)
        self.counts.empty_documents += encoded.empty
        self.counts.unknown_tokens += encoded.unknown
        self.counts.single_sentence_documents += int((encoded.document_sentences == 1).sum())
        self.counts.lines += encoded.lines
        self.counts.unfinished_lines += encoded.unfinished
        self.place = note.place
        process, peak = encoded.process
        self.peaks[process] = max(peak, self.peaks.get(process, 0.0))

    def _commit(self, journal: Journal) -> None:
        self.writer.sync()
        journal.commit(state={"counts": asdict(self.counts), "place": asdict(self.place), "shards": self.writer.shards})

    # --- after --------------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        totals = self.writer.totals()
        if totals["documents"] == 0:
            empty = self.counts.empty_files
            if self.counts.faulty_lines:
                raise DataError(
                    "no-pairs",
                    f"none of {self.counts.faulty_lines:,} lines has two sentences with `{self.settings.separator}` between "
                    f"them; the first: {self.counts.faults[0]}",
                    "name what divides them with --separator, or read the lines with --format paragraphs",
                )
            named = f"`{self.files[0].path}`" if len(self.files) == 1 else f"{len(self.files):,} files"
            raise DataError(
                "empty-corpus", f"no document with text in {named} ({empty:,} without a byte)",
                "check the inputs, --format and --field",
            )  # fmt: skip
        counts = asdict(self.counts)
        if not self.counts.faulty_lines:
            del counts["faulty_lines"], counts["faults"]
        facts = {
            "dtype": token_dtype(self.tokenizer.vocab_size),
            "vocab_size": self.tokenizer.vocab_size,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "counts": {**totals, **counts},
            "made_from": self._made_from(),
        }
        write_manifest(self.work, self.writer.shards, facts)

    def _fill(self) -> BuildReport:
        manifest = read_json(self.out / MANIFEST)
        for name, value in manifest["counts"].items():
            if hasattr(self.report, name):
                setattr(self.report, name, value)
        self.report.shards = len(manifest["shards"])
        self.report.warnings = list(_warnings(manifest["counts"]))
        return self.report


def _warnings(counts: dict[str, Any]) -> Iterator[str]:
    if counts["single_sentence_documents"] == counts["documents"]:
        yield (
            "no document has two sentences: sentence order cannot be learnt from this store; "
            "put a blank line between documents only, or use --sentences split"
        )
    if counts["lines"] and counts["unfinished_lines"] > 0.5 * counts["lines"]:
        yield (
            f"{counts['unfinished_lines']:,} of {counts['lines']:,} lines end without punctuation: if a line is "
            "not a whole sentence, use --sentences split"
        )
    if counts["unknown_tokens"] > 0.05 * counts["tokens"]:
        share = counts["unknown_tokens"] / counts["tokens"]
        yield f"{share:.1%} of the tokens are unknown: this tokenizer does not fit this text"
    if counts["cut_documents"]:
        yield f"{counts['cut_documents']:,} documents were too long and were cut; put blank lines between documents"
    if counts["bad_bytes"]:
        yield f"{counts['bad_bytes']:,} bytes were not UTF-8 and were replaced"
    if "faulty_lines" in counts:
        yield (
            f"{counts['faulty_lines']:,} lines were passed over, without two sentences and the separator between them: "
            f"{', '.join(counts['faults'][:5])}{' …' if counts['faulty_lines'] > 5 else ''}"
        )
    if counts["empty_files"]:
        yield f"{counts['empty_files']:,} files are empty"
