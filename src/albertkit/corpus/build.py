"""Build a token store from files: read and encoded here or on many machines, written strictly in order, resumable.

The bytes depend on the inputs, the tokenizer and `BuildSettings`, not on machines, workers, batches
or interruptions.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from albertkit.command import takes
from albertkit.corpus.documents import DocumentFile
from albertkit.corpus.encode import (
    BuildCounts,
    BuildInputs,
    CorpusPosition,
    SeenDocuments,
    encode_here,
    peak_memory_mb,
)
from albertkit.corpus.options import BuildOptions, BuildSettings
from albertkit.corpus.sentences import split_sentences
from albertkit.corpus.store import (
    KINDS,
    MANIFEST,
    UNFINISHED,
    StoreWriter,
    folder_before_upload,
    read_remote_manifest,
    token_dtype,
    upload_store,
    write_store_manifest,
)
from albertkit.errors import DataError
from albertkit.files import check_folder_name, check_other_files, read_json, sha256_bytes
from albertkit.job import Job, check_made_from
from albertkit.model_paths import is_remote
from albertkit.output.sections import FactList, Result, Section
from albertkit.tables.files import InputFile, find_inputs
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.sentencepiece import available_cores


@dataclass
class BuildReport(Result):
    """Counts and facts of a finished build.

    Attributes:
        out: The store.
        documents, sentences, tokens, shards: In the store.
        empty_documents: Left out: no text, or no token.
        duplicate_documents: Left out: the same text as an earlier document.
        single_sentence_documents: In the store, but no sentence-order pair comes from them alone.
        cut_documents: Made by cutting a document longer than `documents.DOCUMENT_CHARACTERS`.
        unknown_tokens: Tokens that are the unknown token.
        bad_bytes: Bytes that are not UTF-8 (with errors="replace").
        faulty_lines: Lines of pairs that were passed over: no separator, or nothing on one of its
            sides.
        faults: The places of the first of them, `file:line`.
        input_files, empty_files: Files read; those without a byte.
        characters, text_bytes: Text of all documents, also of those left out.
        seconds: Of this run.
        mb_per_second: UTF-8 text in 10^6 bytes a second, in this run.
        peak_memory_mb: Peaks of this process and its workers, added (10^6 bytes).
        engine: "local" or "ray".
        workers: Worker processes; 0 is this one.
        nodes: Machines at the end of this run.
        resumed: An interrupted build was taken up.
        already_built: The same store lay there; nothing was done.
        warnings: Sentences on counts that speak against the use of the store.
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
    engine: str = "local"
    workers: int = 0
    nodes: int = 1
    resumed: bool = False
    already_built: bool = False
    warnings: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        """Return the facts, without usual ones; the first faulty lines are in a warning."""
        usual = {"engine": "local", "nodes": 1, "faults": self.faults, "warnings": self.warnings}
        facts = {
            name: value for name, value in vars(self).items() if value and usual.get(name) != value
        }
        return [FactList(facts)]


_LONG_SENTENCE = 60  # tokens; sentences of English Wikipedia have 29 on average


def store_count_warnings(counts: dict[str, Any]) -> Iterator[str]:
    """Yield warnings about the counts of a manifest that speak against its use."""
    if counts["single_sentence_documents"] == counts["documents"]:
        yield (
            "no document has two sentences: sentence order cannot be learnt from this store; "
            "put a blank line between documents only, or use --sentences split"
        )
    if counts["lines"] and counts.get("line_tokens", 0) > _LONG_SENTENCE * counts["lines"]:
        yield (
            f"a line has {counts['line_tokens'] / counts['lines']:,.0f} tokens on average and is taken for one sentence; what is "
            "longer than a sequence is cut. If lines are paragraphs, use --sentences split; if they are documents, "
            "--format paragraphs"
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
        yield (
            f"{counts['cut_documents']:,} documents were too long and were cut; put blank lines between documents, or, if each "
            "line is a document, use --format paragraphs"
        )
    if counts["bad_bytes"]:
        yield f"{counts['bad_bytes']:,} bytes were not UTF-8 and were replaced"
    if "faulty_lines" in counts:
        yield (
            f"{counts['faulty_lines']:,} lines were passed over, without two sentences and the separator between them: "
            f"{', '.join(counts['faults'][:5])}{' …' if counts['faulty_lines'] > 5 else ''}"
        )
    if counts["empty_files"]:
        yield f"{counts['empty_files']:,} files are empty"


_MAX_FILES = 5
_HEAD_BYTES = 1 << 16  # of each file
_MIN_CHARACTERS = 2000  # characters; less text says nothing
# In bytes of UTF-8, which are nearly the same in every language: sentences of English and Korean
# Wikipedia have 129 and 148 on average, their paragraphs 365 and 420. Where the average does not
# tell, the number of sentences does: no text of those files of sentences is in lines of three or
# more, of those paragraphs 86 % and 66 %.
_PARAGRAPH_BYTES = 400
_MIN_SENTENCES = 3  # two are often a quotation


@dataclass(frozen=True)
class LineLayout:
    """The lines at the beginning of some files of plain text.

    Attributes:
        file: The first of the files.
        characters: Characters in a line, on average.
        sentences: Sentences in a line, on average.
        mean_bytes: UTF-8 bytes in a line, on average.
        paragraph_share: Share of the text that is in lines of three sentences or more.
        blank_lines: Whether there are blank lines between lines of text.
    """

    file: str
    characters: float
    sentences: float
    mean_bytes: float
    paragraph_share: float
    blank_lines: bool

    @property
    def paragraphs(self) -> bool:
        """Return True if the lines are too long for sentences."""
        return self.mean_bytes > _PARAGRAPH_BYTES or self.paragraph_share > 0.5


def detect_line_layout(files: Sequence[InputFile], settings: BuildSettings) -> LineLayout | None:
    """Look at the first 64 KiB of up to five files of plain text; None if there is too little of it to tell.

    Files of other formats are passed over, and so are pipes.
    """
    lines: list[str] = []
    first_path = ""
    has_blank_lines = False
    step = max(len(files) // _MAX_FILES, 1)
    for file in files[::step][:_MAX_FILES]:
        if not (is_remote(file.path) or os.path.isfile(file.path)):
            continue  # bytes that are read from a pipe are gone
        documents = DocumentFile(file, settings, errors="replace")
        try:
            head = documents.stream.peek(_HEAD_BYTES) if documents.format == "text" else b""
        finally:
            documents.stream.close()
        text = head.decode("utf-8", "ignore").strip()
        if len(head) == _HEAD_BYTES and "\n" in text:
            text = text[: text.rindex("\n")]
        stripped = [line.strip() for line in text.split("\n")]
        has_blank_lines = has_blank_lines or "" in stripped
        lines += filter(None, stripped)
        first_path = first_path or (file.path if text else "")
    size = sum(map(len, lines))
    if size < _MIN_CHARACTERS:
        return None
    counts = [len(split_sentences(line, "paragraph", settings.language)) for line in lines]
    paragraphs = [
        line for line, count in zip(lines, counts, strict=True) if count >= _MIN_SENTENCES
    ]
    return LineLayout(
        file=first_path,
        characters=size / len(lines),
        sentences=sum(counts) / len(lines),
        mean_bytes=sum(len(line.encode()) for line in lines) / len(lines),
        paragraph_share=sum(map(len, paragraphs)) / size,
        blank_lines=has_blank_lines,
    )


def check_layout(files: Sequence[InputFile], settings: BuildSettings) -> None:
    """Make sure that lines of plain text are sentences, unless the settings say what a line is."""
    if settings.sentences is not None or settings.format not in (None, "text"):
        return
    layout = detect_line_layout(files, settings)
    if layout is None or not layout.paragraphs:
        return
    advice = [
        "`--format paragraphs` if each line is a document",
        "`--sentences split` if blank lines end documents",
    ]
    if layout.blank_lines:
        advice.reverse()
    raise DataError(
        "doubtful",
        f"`{layout.file}`: a line of plain text is taken for one sentence, but a line here has {layout.sentences:.1f} "
        f"sentences and {layout.characters:,.0f} characters on average; most of such a line is never trained on",
        f"add {', '.join(advice)}, or `--sentences lines` if a line is one sentence",
    )


def choose_build_settings(files: Sequence[InputFile]) -> BuildSettings:
    """Return settings that fit the layout of the files, for callers that cannot ask.

    They are the defaults; for plain text with paragraphs in its lines `sentences="split"`, or
    `format="paragraphs"` where no blank line ends a document and all inputs are plain text.
    """
    layout = detect_line_layout(files, BuildSettings())
    if layout is None or not layout.paragraphs:
        return BuildSettings()
    if layout.blank_lines:
        return BuildSettings(sentences="split")
    for file in files:
        documents = DocumentFile(file)
        documents.stream.close()
        if documents.format != "text":
            return BuildSettings(sentences="split")
    return BuildSettings(format="paragraphs")


# A worker process costs 1.7 s of processor time before it is as fast as this one (Python, the
# tokenizer, the compiled engine, an empty word table): two of them took 5.7 s where this process
# took 2.3 for 41 MB of text.
_SMALL_BYTES = 100_000_000
_HASHES = "hashes.bin"  # of all documents, in the order they were written
_RESULT = (*(f"{kind}-*.bin" for kind in KINDS), "tokenizer/*")


@takes(BuildOptions)
def build_store(options: BuildOptions) -> BuildReport:
    """Build a token store from text files. Arguments as `BuildOptions`; `tokenizer` may also be an `AlbertTokenizer`.

    Killed at any moment and called again with the same inputs and settings, it goes on from the
    last commit and ends with the same bytes. The work lies in `out/.build` until the store is
    complete.

    Raises:
        ConfigError: bad-value, unknown-name.
        MissingExtraError: not-installed, without Ray.
        DataError: bad input (`documents.DocumentFile`), doubtful, empty, changed.
        MachineError: disk-full, worker-died, in-use, unreachable, machines-differ. CheckpointError:
            corrupt, exists.
    """
    check_folder_name(options.out)
    tokenizer = options.tokenizer
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = AlbertTokenizer.from_pretrained(tokenizer)
    inputs = BuildInputs(find_inputs(options.inputs), options.settings, options.errors, tokenizer)
    build = _Build(options, inputs)
    if is_remote(options.out):
        return build.build_at_address(str(options.out))
    return build.build_in_folder(Path(options.out))


@dataclass(frozen=True)
class _Build:
    """One call of `build_store`."""

    options: BuildOptions
    inputs: BuildInputs

    def build_in_folder(self, out: Path) -> BuildReport:
        start = time.perf_counter()
        report = self._report(str(out))
        size = sum(file.size for file in self.inputs.files)
        # A build is resumed only with the same files, unchanged.
        key = _comparable_origin(self._origin_for_manifest())
        key["inputs"] = _json_digest(
            [[file.path, file.size, file.modified] for file in self.inputs.files]
        )
        if self.options.engine != "local":  # engines count places in the inputs differently
            key["engine"] = self.options.engine
        with Job(
            out / UNFINISHED,
            key,
            into=out,
            overwrite=self.options.overwrite,
            title="building",
            total=size,
            unit="bytes",
            progress=self.options.progress,
        ) as job:
            if not job.resumed:
                if (out / MANIFEST).exists() and not self.options.overwrite:
                    manifest = read_json(out / MANIFEST)
                    check_made_from(
                        out,
                        _comparable_origin(manifest.get("made_from")),
                        _comparable_origin(self._origin_for_manifest()),
                    )
                    report.already_built = True
                    built_ns = (out / MANIFEST).stat().st_mtime_ns
                    changed_since = [
                        file.path for file in self.inputs.files if file.modified > built_ns
                    ]
                    _fill_report_from_manifest(report, manifest)
                    if changed_since:  # sizes and names alone do not show another text
                        report.warnings += (
                            f"nothing was built, but {len(changed_since):,} inputs have changed since, or were copied (the "
                            f"first: {changed_since[0]}); if their text is another, add --overwrite",
                        )
                    return report
                if not (out / MANIFEST).exists():
                    check_other_files(out, [UNFINISHED], "a store")
                check_layout(self.inputs.files, self.inputs.settings)
            report.resumed = job.resumed
            text_bytes = self._encode(job, report) if not job.finished else 0
            job.publish(MANIFEST, _RESULT)
        report.seconds = round(time.perf_counter() - start, 3)
        report.mb_per_second = round(text_bytes / 1e6 / report.seconds, 3)
        return _fill_report_from_manifest(report, read_json(out / MANIFEST))

    def build_at_address(self, url: str) -> BuildReport:
        """Build the store in a folder below the cache, upload it to an address and remove the folder."""
        manifest_bytes = read_remote_manifest(url)
        if manifest_bytes is not None and not self.options.overwrite:
            manifest = json.loads(manifest_bytes)
            check_made_from(
                url,
                _comparable_origin(manifest.get("made_from")),
                _comparable_origin(self._origin_for_manifest()),
            )
            report = self._report(url)
            report.already_built = True
            return _fill_report_from_manifest(report, manifest)
        folder = folder_before_upload(url)
        # By an earlier call, which was interrupted while it uploaded it
        built = folder / "store" / MANIFEST
        is_built = (
            built.exists() and read_json(built).get("made_from") == self._origin_for_manifest()
        )
        options = replace(self.options, overwrite=self.options.overwrite and not is_built)
        report = _Build(options, self.inputs).build_in_folder(folder / "store")
        upload_store(folder / "store", url, self.options.progress)
        shutil.rmtree(folder)
        report.out = url
        report.already_built = False
        return report

    def _report(self, out: str) -> BuildReport:
        return BuildReport(out, input_files=len(self.inputs.files), engine=self.options.engine)

    def _origin_for_manifest(self) -> dict[str, Any]:
        """Return the origin for the manifest."""
        # Names and sizes alone, without time, path or number of workers: copies of the inputs give
        # the same manifest, and whole folders of stores compare equal.
        files = self.inputs.files
        settings = asdict(self.inputs.settings)
        if self.inputs.settings.format != "pairs":
            del settings["separator"]  # decides nothing
        return {
            "input_files": len(files),
            "input_bytes": sum(file.size for file in files),
            "first_input": files[0].name,
            "last_input": files[-1].name,
            "inputs_sha256": _json_digest([[file.name, file.size] for file in files]),
            "tokenizer_fingerprint": self.inputs.tokenizer.fingerprint,
            **settings,
        }

    def _encode(self, job: Job, report: BuildReport) -> int:
        """Read, encode and write the remaining documents and the manifest; return the bytes of text that were read."""
        inputs = self.inputs
        facts = job.facts
        inputs.tokenizer.save_pretrained(job.folder / "tokenizer")
        counts = BuildCounts(**facts.get("counts", {}))
        position = CorpusPosition(**facts.get("place", {}))
        writer = StoreWriter(
            job,
            inputs.tokenizer.vocab_size,
            inputs.settings.shard_tokens,
            facts.get("shards", []),
        )
        text_before = counts.text_bytes
        start = time.monotonic()
        peaks: dict[tuple[Any, int], float] = {}

        def commit() -> None:
            if writer.shards:  # else there is nothing to go on from
                job.commit(counts=asdict(counts), place=asdict(position), shards=writer.shards)

        documents = writer.totals()["documents"]
        if documents:
            job.progress.say(f"going on after {documents:,} documents")
        if len(inputs.files) > 1:
            first = inputs.files[0].path
            last = inputs.files[-1].path
            job.progress.say(f"{len(inputs.files):,} files in this order: {first} … {last}")
        with SeenDocuments(job.folder / "seen.sqlite", job.folder / _HASHES) as seen_documents:
            options = self.options
            workers = self._num_local_workers()
            if options.engine == "ray":
                from albertkit.corpus.cluster import encode_on_cluster  # ray is an extra

                results = encode_on_cluster(
                    inputs,
                    position,
                    seen_documents.add_if_new,
                    options.address,
                    options.workers,
                )
            else:
                results = encode_here(
                    inputs,
                    position,
                    seen_documents.add_if_new,
                    job.folder / "tokenizer",
                    workers,
                )
            try:
                for batch, encoded in results:
                    counts.add(batch, encoded)
                    document_sentences = encoded.document_sentences[encoded.document_sentences > 0]
                    if len(document_sentences):
                        writer.append(encoded.tokens, encoded.sentence_lengths, document_sentences)
                    job.write(_HASHES, b"".join(batch.digests))
                    position = batch.position
                    node, process, peak = encoded.process
                    peaks[node, process] = max(peak, peaks.get((node, process), 0.0))
                    if job.is_due:
                        commit()
                    rate = (
                        (counts.text_bytes - text_before)
                        / 1e6
                        / max(time.monotonic() - start, 1e-9)
                    )
                    state = f"{writer.totals()['documents']:,} documents, {rate:.1f} MB/s"
                    if self.options.engine == "ray":
                        state += (
                            f" ({len({node for node, _ in peaks})} nodes, {len(peaks)} workers)"
                        )
                    job.progress.update(batch.stored_bytes, state)
            except DataError:  # bad input: what came before it is sound and need not be done again
                commit()
                raise
            finally:
                results.close()
        if not writer.shards:
            raise _no_documents_error(counts, inputs)
        job.discard(_HASHES)
        commit()
        write_store_manifest(job, writer.shards, self._manifest_facts(counts, writer.totals()))
        if self.options.engine == "ray":
            report.workers = len(peaks)
            report.nodes = len({node for node, _ in peaks})
        else:
            report.workers = workers
        peaks[None, os.getpid()] = peak_memory_mb()
        report.peak_memory_mb = round(sum(peaks.values()), 1)
        return counts.text_bytes - text_before

    def _num_local_workers(self) -> int:
        if self.options.workers is not None:
            return self.options.workers
        # On two cores, the two threads of this process are worth two workers, whatever the size:
        # 296 MB for 540.
        cores = available_cores()
        is_small = sum(file.size for file in self.inputs.files) < _SMALL_BYTES
        return 0 if is_small or cores <= 2 else cores

    def _manifest_facts(self, counts: BuildCounts, totals: dict[str, int]) -> dict[str, Any]:
        counted = asdict(counts)
        if not counts.faulty_lines:
            del counted["faulty_lines"], counted["faults"]
        tokenizer = self.inputs.tokenizer
        return {
            "dtype": token_dtype(tokenizer.vocab_size),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "counts": {**totals, **counted},
            "made_from": self._origin_for_manifest(),
        }


def _json_digest(value: Any) -> str:
    return sha256_bytes(json.dumps(value).encode())


def _comparable_origin(origin: Any) -> Any:
    """Return what a store was made from as a key for a resumed job and for comparison.

    Digest of the inputs, fingerprint of the tokenizer, settings.
    """
    if not isinstance(origin, dict):
        return origin
    short = {
        "inputs": origin.get("inputs_sha256"),
        "tokenizer": origin.get("tokenizer_fingerprint"),
    }
    for name, value in origin.items():
        if "input" not in name and "tokenizer" not in name:
            short[name] = value
    return short


def _fill_report_from_manifest(report: BuildReport, manifest: dict[str, Any]) -> BuildReport:
    for name, value in manifest["counts"].items():
        if hasattr(report, name):
            setattr(report, name, value)
    report.shards = len(manifest["shards"])
    report.warnings = tuple(store_count_warnings(manifest["counts"]))
    return report


def _no_documents_error(counts: BuildCounts, inputs: BuildInputs) -> DataError:
    if counts.faulty_lines:
        return DataError(
            "too-little-data",
            f"none of {counts.faulty_lines:,} lines has two sentences with `{inputs.settings.separator}` between them; "
            f"the first: {counts.faults[0]}",
            "name what divides them with --separator, or read the lines with --format paragraphs",
        )
    subject = (
        f"`{inputs.files[0].path}`" if len(inputs.files) == 1 else f"{len(inputs.files):,} files"
    )
    return DataError(
        "empty",
        f"no document with text in {subject} ({counts.empty_files:,} without a byte)",
        "check the inputs, --format and --field",
    )
