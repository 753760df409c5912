"""Build a token store from files: read and encoded here or on many machines, written strictly in order, resumable.

The bytes depend on the inputs, the tokenizer and `BuildSettings`, not on machines, workers, batches or interruptions.
"""

import json
import os
import shutil
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from albertkit.addresses import is_remote
from albertkit.corpus.encoding import EncodedBatch, encode_here, peak_memory_mb
from albertkit.corpus.layout import check_layout
from albertkit.corpus.options import BuildOptions
from albertkit.corpus.reading import BuildCounts, BuildInputs, CorpusPosition, DocumentBatch
from albertkit.corpus.remote import remote_manifest, upload_store, working_folder
from albertkit.corpus.report import BuildReport, warnings_of
from albertkit.corpus.seen import SeenDocuments
from albertkit.corpus.store_format import KINDS, MANIFEST, UNFINISHED, token_dtype
from albertkit.corpus.writer import StoreWriter, write_manifest
from albertkit.data.inputs import find_inputs
from albertkit.errors import DataError
from albertkit.files import check_other_files, read_json, sha256_bytes
from albertkit.frame.command import takes
from albertkit.frame.job import Job, check_made_from
from albertkit.tokenizer import AlbertTokenizer
from albertkit.tokenizer.batch import available_cores

# A worker process costs 1.7 s of processor time before it is as fast as this one (Python, the tokenizer, the compiled
# engine, an empty word table): two of them took 5.7 s where this process took 2.3 for 41 MB of text.
_SMALL_BYTES = 100_000_000
_HASHES = "hashes.bin"  # of all documents, in the order they were written
_RESULT = (*(f"{kind}-*.bin" for kind in KINDS), "tokenizer/*")


@takes(BuildOptions)
def build_store(options: BuildOptions) -> BuildReport:
    """Make a token store of text files. Arguments as `BuildOptions`; `tokenizer` may also be an `AlbertTokenizer`.

    Killed at any moment and called again with the same inputs and settings, it goes on from the last commit and ends
    with the same bytes. The work lies in `out/.build` until the store is complete.

    Raises:
        ConfigError: bad-value, unknown-name.
        MissingExtraError: not-installed, without Ray.
        DataError: bad input (`readers.DocumentFile`), doubtful, empty, changed.
        MachineError: disk-full, worker-died, in-use, unreachable, machines-differ. CheckpointError: corrupt, exists.
    """
    tokenizer = options.tokenizer
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = AlbertTokenizer.from_pretrained(tokenizer)
    build = _Build(options, BuildInputs(find_inputs(options.inputs), options.settings, options.errors, tokenizer))
    return build.at_address(str(options.out)) if is_remote(options.out) else build.in_folder(Path(options.out))


@dataclass(frozen=True)
class _Build:
    """One call of `build_store`."""

    options: BuildOptions
    inputs: BuildInputs

    def in_folder(self, out: Path) -> BuildReport:
        start = time.perf_counter()
        report = self._report(str(out))
        size = sum(file.size for file in self.inputs.files)
        with Job(
            out / UNFINISHED,
            self._key(),
            into=out,
            overwrite=self.options.overwrite,
            title="building",
            total=size,
            unit="bytes",
            progress=self.options.progress,
        ) as job:
            if not job.resumed:
                if self._is_built(out):
                    report.already_built = True
                    return _fill(report, read_json(out / MANIFEST), self._changed_since(out / MANIFEST))
                check_layout(self.inputs.files, self.inputs.settings)
            report.resumed = job.resumed
            text_bytes = self._encode(job, report) if not job.finished else 0
            job.publish(MANIFEST, _RESULT)
        report.seconds = round(time.perf_counter() - start, 3)
        report.mb_per_second = round(text_bytes / 1e6 / report.seconds, 3)
        return _fill(report, read_json(out / MANIFEST))

    def at_address(self, url: str) -> BuildReport:
        """Build the store in a folder below the cache, bring it to an address and remove the folder."""
        manifest_bytes = remote_manifest(url)
        if manifest_bytes is not None and not self.options.overwrite:
            manifest = json.loads(manifest_bytes)
            check_made_from(url, _short(manifest.get("made_from")), _short(self._made_from()))
            report = self._report(url)
            report.already_built = True
            return _fill(report, manifest)
        folder = working_folder(url)
        built = folder / "store" / MANIFEST  # by an earlier call, which was interrupted while it uploaded it
        is_built = built.exists() and read_json(built).get("made_from") == self._made_from()
        options = replace(self.options, overwrite=self.options.overwrite and not is_built)
        report = _Build(options, self.inputs).in_folder(folder / "store")
        upload_store(folder / "store", url, self.options.progress)
        shutil.rmtree(folder)
        report.out, report.already_built = url, False
        return report

    def _report(self, out: str) -> BuildReport:
        return BuildReport(out, input_files=len(self.inputs.files), engine=self.options.engine)

    # --- what it is made from -----------------------------------------------------------------------------------------

    def _made_from(self) -> dict[str, Any]:
        """Return what the manifest says of it: by names and sizes, so that copies of the inputs give the same manifest."""
        files = self.inputs.files
        settings = asdict(self.inputs.settings)
        if self.inputs.settings.format != "pairs":
            del settings["separator"]  # decides nothing
        return {
            "input_files": len(files),
            "input_bytes": sum(file.size for file in files),
            "first_input": files[0].name,
            "last_input": files[-1].name,
            "inputs_sha256": _digest([[file.name, file.size] for file in files]),
            "tokenizer_fingerprint": self.inputs.tokenizer.fingerprint,
            **settings,
        }

    def _key(self) -> dict[str, Any]:
        """Return what decides whether a build is taken up: the very files, too, as they are now."""
        key = _short(self._made_from())
        key["inputs"] = _digest([[file.path, file.size, file.modified] for file in self.inputs.files])
        if self.options.engine != "local":  # engines count places in the inputs differently
            key["engine"] = self.options.engine
        return key

    def _is_built(self, out: Path) -> bool:
        """Return True if the very same store is there; otherwise make sure that this build may use the folder."""
        if (out / MANIFEST).exists():
            if not self.options.overwrite:
                check_made_from(out, _short(read_json(out / MANIFEST).get("made_from")), _short(self._made_from()))
            return not self.options.overwrite
        check_other_files(out, [UNFINISHED], "a store")
        return False

    def _changed_since(self, manifest: Path) -> list[str]:
        """Warn where an input has a later date than the store: sizes and names alone do not show another text."""
        newer = [file.path for file in self.inputs.files if file.modified > manifest.stat().st_mtime_ns]
        if not newer:
            return []
        return [
            f"nothing was built, but {len(newer):,} inputs have changed since, or were copied (the first: {newer[0]}); if "
            "their text is another, add --overwrite"
        ]

    # --- the work -------------------------------------------------------------------------------------------------------

    def _encode(self, job: Job, report: BuildReport) -> int:
        """Read, encode and write all that is left, and the manifest; return the bytes of text that were read."""
        inputs = self.inputs
        facts = job.facts
        inputs.tokenizer.save_pretrained(job.folder / "tokenizer")
        counts = BuildCounts(**facts.get("counts", {}))
        position = CorpusPosition(**facts.get("place", {}))
        writer = StoreWriter(job, inputs.tokenizer.vocab_size, inputs.settings.shard_tokens, facts.get("shards", []))
        text_before = counts.text_bytes
        start = time.monotonic()
        peaks: dict[tuple[Any, int], float] = {}

        def commit() -> None:
            if writer.shards:  # else there is nothing to go on from
                job.commit(counts=asdict(counts), place=asdict(position), shards=writer.shards)

        if documents := writer.totals()["documents"]:
            job.progress.say(f"going on after {documents:,} documents")
        if len(inputs.files) > 1:
            first, last = inputs.files[0].path, inputs.files[-1].path
            job.progress.say(f"{len(inputs.files):,} files in this order: {first} … {last}")
        with SeenDocuments(job.folder / "seen.sqlite", job.folder / _HASHES) as seen:
            results = self._results(position, seen, job)
            try:
                for batch, encoded in results:
                    counts.add(batch.counts)
                    counts.add(BuildCounts(faults=[f"{name}:{line}" for name, line in batch.faults]))
                    for name, values in encoded.counts.items():
                        setattr(counts, name, getattr(counts, name) + int(values.sum()))
                    counts.empty_documents += int((encoded.document_sentences == 0).sum())
                    counts.single_sentence_documents += int((encoded.document_sentences == 1).sum())
                    document_sentences = encoded.document_sentences[encoded.document_sentences > 0]
                    if len(document_sentences):
                        writer.append(encoded.tokens, encoded.sentence_lengths, document_sentences)
                    job.write(_HASHES, b"".join(batch.digests))
                    position = batch.position
                    node, process, peak = encoded.process
                    peaks[node, process] = max(peak, peaks.get((node, process), 0.0))
                    if job.is_due:
                        commit()
                    rate = (counts.text_bytes - text_before) / 1e6 / max(time.monotonic() - start, 1e-9)
                    state = f"{writer.totals()['documents']:,} documents, {rate:.1f} MB/s"
                    if self.options.engine == "ray":
                        state += f" ({len({node for node, _ in peaks})} nodes, {len(peaks)} workers)"
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
        write_manifest(job, writer.shards, self._facts(counts, writer.totals()))
        if self.options.engine == "ray":
            report.workers, report.nodes = len(peaks), len({node for node, _ in peaks})
        else:
            report.workers = self._local_workers()
        peaks[None, os.getpid()] = peak_memory_mb()
        report.peak_memory_mb = round(sum(peaks.values()), 1)
        return counts.text_bytes - text_before

    def _results(
        self, position: CorpusPosition, seen: SeenDocuments, job: Job
    ) -> Generator[tuple[DocumentBatch, EncodedBatch], None, None]:
        if self.options.engine == "ray":
            from albertkit.corpus.cluster import encode_on_cluster  # ray is an extra

            return encode_on_cluster(self.inputs, position, seen.is_new, self.options.address, self.options.workers)
        return encode_here(self.inputs, position, seen.is_new, job.folder / "tokenizer", self._local_workers())

    def _local_workers(self) -> int:
        if self.options.workers is not None:
            return self.options.workers
        cores = available_cores()
        # On two cores, the two threads of this process are worth two workers, whatever the size.
        return 0 if cores <= 2 or sum(file.size for file in self.inputs.files) < _SMALL_BYTES else cores

    def _facts(self, counts: BuildCounts, totals: dict[str, int]) -> dict[str, Any]:
        counted = asdict(counts)
        if not counts.faulty_lines:
            del counted["faulty_lines"], counted["faults"]
        tokenizer = self.inputs.tokenizer
        return {
            "dtype": token_dtype(tokenizer.vocab_size),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_fingerprint": tokenizer.fingerprint,
            "counts": {**totals, **counted},
            "made_from": self._made_from(),
        }


def _digest(value: Any) -> str:
    return sha256_bytes(json.dumps(value).encode())


def _short(made_from: Any) -> Any:
    """Name what decides a store as the user knows it: inputs, tokenizer, and the settings by their names."""
    if not isinstance(made_from, dict):
        return made_from
    rest = {name: value for name, value in made_from.items() if "input" not in name and "tokenizer" not in name}
    return {"inputs": made_from.get("inputs_sha256"), "tokenizer": made_from.get("tokenizer_fingerprint"), **rest}


def _fill(report: BuildReport, manifest: dict[str, Any], changed: Sequence[str] = ()) -> BuildReport:
    """Fill a report with the counts of a manifest."""
    for name, value in manifest["counts"].items():
        if hasattr(report, name):
            setattr(report, name, value)
    report.shards = len(manifest["shards"])
    report.warnings = (*warnings_of(manifest["counts"]), *changed)
    return report


def _no_documents_error(counts: BuildCounts, inputs: BuildInputs) -> DataError:
    """Return the error that says why there is nothing to store."""
    if counts.faulty_lines:
        return DataError(
            "too-little-data",
            f"none of {counts.faulty_lines:,} lines has two sentences with `{inputs.settings.separator}` between them; "
            f"the first: {counts.faults[0]}",
            "name what divides them with --separator, or read the lines with --format paragraphs",
        )
    named = f"`{inputs.files[0].path}`" if len(inputs.files) == 1 else f"{len(inputs.files):,} files"
    return DataError(
        "empty",
        f"no document with text in {named} ({counts.empty_files:,} without a byte)",
        "check the inputs, --format and --field",
    )
