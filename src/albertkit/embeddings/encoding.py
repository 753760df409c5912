"""`encode_file`: from the texts of a file of any size to a file of vectors; killed anywhere, it goes on where it was.

Texts are taken in windows. Within a window they are sorted by length and computed in batches, which are appended to a file in
that order; when the window is complete, its vectors are appended to the result in the order of the texts. So the bytes depend on
the texts, the model and the settings, not on interruptions. Memory holds one window of texts and no vectors.
E texts, vectors of D numbers.
"""

import copy
import io
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from albertkit.data.bad_rows import BadRow, BadRows, counted
from albertkit.data.inputs import InputFile
from albertkit.embeddings.data import Text, TextInput
from albertkit.embeddings.encoder import SentenceEncoder, runs_of_like_length
from albertkit.embeddings.models import EmbeddingModel, embedding_folder, open_model
from albertkit.embeddings.options import EncodeOptions
from albertkit.embeddings.unknown_words import LOOKED_AT, unknown_note
from albertkit.engines import Engine
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError, DataError, MachineError, MissingExtraError
from albertkit.files import check_not_folder, json_bytes, read_json, sha256_file
from albertkit.frame.command import takes
from albertkit.frame.job import Job, check_made_from
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Section
from albertkit.tasks.loading import check_not_swapped
from albertkit.training.distributed import join_world

WINDOW = 100_000  # texts sorted together; with batches of 8192 tokens hardly a batch then holds two lengths
WINDOW_CHARACTERS = 100_000_000  # and characters at most, for texts that are books
_GROUP = 10_000  # rows of Parquet written at once: 30 MB of 768 numbers
_ROWS = 4096  # rows of a window brought into order at once


@dataclass(frozen=True)
class EncodeReport(Result):
    """Result of `encode_file`.

    Attributes:
        out: The file of vectors.
        texts: Rows of it.
        dimension: Numbers of a vector.
        dtype: Of the numbers.
        precision: What was computed in.
        read_as: "lines", or "table".
        left_out: Rows of the input that could not be used.
        notes: What the engine fell back from, and how the file was read, where that was not plain.
        resumed: Rows that an earlier, interrupted call had done; all of them where the file was finished already.
        truncated: Texts longer than `max_length`, which were cut.
        max_length: Longest sequence, special tokens included.
        seconds: Of this call.
        sentences_per_second: In this call, reading and writing included.
    """

    out: Path
    texts: int
    dimension: int
    dtype: str
    precision: str
    read_as: str
    left_out: tuple[BadRow, ...]
    notes: tuple[str, ...]
    resumed: int
    truncated: int
    max_length: int
    seconds: float
    sentences_per_second: float

    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return super().to_dict() | {"left_out": list(map(str, self.left_out))}

    def sections(self) -> list[Section]:
        """Return the facts, without what is usual."""
        facts = {name: value for name, value in vars(self).items() if name not in ("left_out", "warnings")}
        return [Facts(facts | {"left_out": len(self.left_out) or None, "resumed": self.resumed or None})]


@takes(EncodeOptions)
def encode_file(options: EncodeOptions) -> EncodeReport:
    """Encode every text of a file, in its order. Arguments as `EncodeOptions`; `model` may also be a `SentenceEncoder`.

    Raises:
        ConfigError: bad-value, unknown-name, conflicting-options.
        DataError: bad-row, empty, changed, and what reading raises.
        CheckpointError: exists, corrupt, and what loading raises. MissingExtraError: not-installed, for Parquet.
        MachineError: in-use, not-finite.
    """
    began = time.perf_counter()
    check_not_swapped(options.model, options.input)
    target = _target(Path(options.out), options.input)
    source = TextInput(str(options.input), options.text, options.id, options.columns, options.quoted)
    file = source.found()
    world = join_world(options.device)
    if world.size > 1:
        raise ConfigError("bad-value", f"encode was started with {world.size} processes", "start it with one process")
    encoder = _encoder(options, str(world.device))
    engine = encoder.to(world.device).engine(options.precision) if isinstance(encoder, SentenceEncoder) else None
    width, bad_rows = encoder.kept(options.dimension), BadRows(options.on_error)
    total, sample, file_notes = _look_at(source, bad_rows)  # bad rows are reported before hours of work
    notes = [*bad_rows.notes, *file_notes]
    if isinstance(encoder, EmbeddingModel):
        notes += encoder.notes
    elif engine is not None:
        notes = [*engine.notes, *notes, *unknown_note(sample, encoder.tokenizer)]
    encoding = _Encoding(options, encoder, engine, source, file, target, total, width)
    done = encoding.run()
    if done.is_old:
        notes.insert(0, f"already encoded: `{target.name}` holds these vectors, nothing was computed")
    if done.truncated:
        cut = counted(done.truncated, "text")
        notes.append(f"{cut} of {total:,} longer than {encoder.max_length} tokens, cut there")
    seconds = time.perf_counter() - began
    return EncodeReport(
        out=target,
        texts=total,
        dimension=width,
        dtype=options.dtype,
        precision=encoding.precision,
        read_as="table" if source.is_table else "lines",
        left_out=tuple(bad_rows.found),
        notes=tuple(notes),
        resumed=done.resumed,
        truncated=done.truncated,
        max_length=encoder.max_length,
        seconds=round(seconds, 3),
        sentences_per_second=round((total - done.resumed) / seconds, 1),
        warnings=tuple(f"left out: {row}" for row in bad_rows.found),
    )


def _look_at(source: TextInput, bad_rows: BadRows) -> tuple[int, list[str], list[str]]:
    """Read all texts once; return their number, some of them, and what a user should know about the file."""
    total, tabs, sample = 0, set[int](), list[str]()
    for row in source.texts(bad_rows):
        total += 1
        if len(sample) < LOOKED_AT:
            sample.append(row.text)
        if len(tabs) < 2 and row.text:
            tabs.add(row.text.count("\t"))
    if not total:
        raise DataError("empty", f"`{source.file}` holds no text that can be used", "name a file with texts")
    notes = []
    if not source.is_table and total > 1 and len(tabs) == 1 and 0 not in tabs:
        names = ",".join(f"c{n}" for n in range(1, max(tabs) + 2))
        notes.append(
            f"every line has {max(tabs) + 1} fields with tabs between and is encoded whole; for one of them: "
            f"--columns {names} --text c1"
        )
    return total, sample, notes


def _encoder(options: EncodeOptions, device: str) -> SentenceEncoder | EmbeddingModel:
    model = options.model
    if not isinstance(model, SentenceEncoder):
        given = options.prompt_name, options.prompt, device, options.length
        return open_model(str(model), embedding_folder(model), options.precision, *given)
    encoder = copy.copy(model.with_prompt(options.prompt_name, options.prompt))
    encoder.max_length = encoder.max_length if options.length is None else options.length
    return encoder


def _target(out: Path, input: str | Path) -> Path:
    if out.suffix not in (".npy", ".parquet"):
        raise ConfigError("bad-value", f"`{out}` ends in neither .npy nor .parquet", "name such a file")
    check_not_folder(out)
    if out.exists() and Path(input).exists() and out.samefile(input):
        raise ConfigError("bad-value", f"`{out}` is the input", "choose another name for the vectors")
    if out.suffix == ".parquet":
        _pyarrow()
    return out.absolute()


# --- the work -----------------------------------------------------------------------------------------------------------


@dataclass
class _Place:
    """Tells how far the work is."""

    window: int = 0  # number of the first text of the window
    runs: int = 0  # batches of the window that are done
    resumed: int = 0  # texts that are done, in all windows
    truncated: int = 0  # texts that were cut, before the window
    is_old: bool = False  # an earlier call has finished it


@dataclass(frozen=True)
class _Encoding:
    """Runs one call of `encode_file`."""

    options: EncodeOptions
    encoder: SentenceEncoder | EmbeddingModel
    engine: Engine | None  # of the encoder; None for a model of sentence-transformers
    source: TextInput
    file: InputFile  # as it was found at the start
    target: Path
    total: int  # E
    width: int  # D

    @property
    def precision(self) -> str:
        return "fp32" if self.engine is None else self.engine.precision

    @property
    def _record(self) -> Path:
        """Return the path of the record of what a finished file's vectors were made with."""
        return self.target.with_name(f"{self.target.name}.json")

    @property
    def _vectors(self) -> str:
        """Return the name of the file of vectors in the work folder."""
        return self.target.name if self.target.suffix == ".npy" else "vectors.npy"

    def run(self) -> _Place:
        """Do what is left to do."""
        folder = self.target.with_name(f".{self.target.name}.encoding")
        with Job(
            folder,
            self._key(),
            into=self.target.parent,
            overwrite=self.options.overwrite,
            title="encoding",
            total=self.total,
            unit="texts",
            progress=self.options.progress,
        ) as job:
            if not job.resumed and self.target.exists() and not self.options.overwrite:
                return _Place(resumed=self.total, truncated=self._check_finished(), is_old=True)
            place = job.state(_Place)
            if not job.finished:
                try:
                    if self._vectors == self.target.name or self.target.name not in job.files:
                        self._compute(job)
                    self._complete(job)
                except AlbertKitError:  # nothing that could go on
                    job.clear()
                    raise
            truncated = job.state(_Place).truncated
            job.publish(self._record.name)
        return _Place(resumed=place.resumed, truncated=truncated)

    def _key(self) -> dict[str, Any]:
        """Return what decides the bytes."""
        return {
            "input": [self.file.path, self.file.size, self.file.modified],
            "columns": list(asdict(self.source).values())[1:],
            "rows": self.total,
            "model": self.encoder.digest(),
            "dimension": self.width,
            "normalize": self.options.normalize,
            "dtype": self.options.dtype,
            "precision": self.precision,
            "batch_tokens": self.options.batch_tokens,
            "window": [WINDOW, WINDOW_CHARACTERS],
        }

    def _check_finished(self) -> int:
        """Make sure that the file is there, and what an equal call has written; return how many texts it has cut."""
        known = read_json(self._record) if self._record.exists() else None
        if not isinstance(known, dict) or known.get("file") != [self.target.stat().st_size, sha256_file(self.target)]:
            raise CheckpointError(
                "exists",
                f"`{self.target}` exists, and there is no record of what it was made with",
                "choose another --out, or replace it with --overwrite",
            )
        check_made_from(self.target, known.get("made_with"), self._key())
        return known["truncated"]

    def _compute(self, job: Job) -> None:
        """Compute every vector that is not there yet."""
        place = job.state(_Place)
        job.progress.resume(place.resumed)
        if self._vectors not in job.files:
            job.write(self._vectors, npy_header((self.total, self.width), np.dtype(self.options.dtype)))
        for texts in _windows(islice(self.source.texts(BadRows("skip")), place.window, None)):
            features = self.encoder.features(texts)
            runs = runs_of_like_length(features.lengths, self.options.batch_tokens)
            in_runs = f"window-{place.window}.bin"
            for run in runs[place.runs :]:
                vectors = self._encode_run(features, run).astype(self.options.dtype)
                job.write(in_runs, _finite(vectors, texts, run).tobytes())
                place.runs, place.resumed = place.runs + 1, place.resumed + len(run)
                job.progress.update(place.resumed)
                if job.is_due:
                    job.commit(**asdict(place))
            job.commit(**asdict(place))
            self._put_in_order(job, in_runs, np.concatenate(runs))
            place.window, place.runs = place.window + len(texts), 0
            place.truncated += features.num_truncated
            job.discard(in_runs)
            job.commit(**asdict(place))

    def _encode_run(self, features: Any, run: np.ndarray) -> np.ndarray:
        if isinstance(self.encoder, EmbeddingModel):
            return self.encoder.encode_run(features, run, self.width, self.options.normalize)
        assert self.engine is not None
        return self.encoder.encode_run(features, run, self.engine, self.width, self.options.normalize)

    def _put_in_order(self, job: Job, in_runs: str, order: np.ndarray) -> None:
        """Append the vectors of a window to the result: row n of the window's file belongs to its text `order[n]`."""
        vectors = np.memmap(job.folder / in_runs, self.options.dtype, "r", shape=(len(order), self.width))
        rows = np.argsort(order)
        for first in range(0, len(rows), _ROWS):
            job.write(self._vectors, vectors[rows[first : first + _ROWS]].tobytes())

    def _complete(self, job: Job) -> None:
        """Write Parquet, if that is wanted, and the record."""
        if self.source.found() != self.file:
            raise DataError("changed", f"`{self.file.path}` was changed while it was read", "encode it again")
        if self._vectors != self.target.name:
            if self.target.name not in job.files:
                with job.part(self.target.name) as stream:
                    write_parquet(stream, self.source.texts(BadRows("skip")), np.load(job.folder / self._vectors, "r"))
            job.discard(self._vectors)
            job.commit(**job.facts)
        facts = {
            "made_with": self._key(),
            "truncated": job.state(_Place).truncated,
            "file": list(job.files[self.target.name]),
        }
        with job.part(self._record.name) as stream:
            stream.write(json_bytes(facts))


def _windows(texts: Iterator[Text]) -> Iterator[list[str]]:
    """Yield runs of texts, of `WINDOW` at most, cut behind the one that makes `WINDOW_CHARACTERS`."""
    window: list[str] = []
    characters = 0
    for text in texts:
        window.append(text.text)
        characters += len(text.text)
        if len(window) == WINDOW or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _finite(vectors: np.ndarray, texts: list[str], run: np.ndarray) -> np.ndarray:
    """Return the vectors, if all of their numbers are finite."""
    if not np.isfinite(vectors).all():
        text = texts[run[~np.isfinite(vectors).all(axis=1)][0]]
        raise MachineError(
            "not-finite",
            f"the vector of `{text[:60]}` is not finite in {vectors.dtype}",
            "look at the model with `albertkit inspect`; try --precision fp32, --normalize or --dtype float32",
        )
    return vectors


# --- files of vectors ---------------------------------------------------------------------------------------------------


def npy_header(shape: tuple[int, int], dtype: np.dtype) -> bytes:
    """Return the first bytes of a `.npy` file."""
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def write_parquet(stream: IO[bytes], texts: Iterator[Text], vectors: np.ndarray) -> None:
    """Write `id` (or the place), `text` and `vector`, a list of fixed size, a row; the vectors are [E, D]."""
    arrow, parquet = _pyarrow()
    kind = arrow.list_(arrow.from_numpy_dtype(vectors.dtype), vectors.shape[1])
    done, writer = 0, None
    while group := list(islice(texts, _GROUP)):
        numbers = arrow.array(vectors[done : done + len(group)].reshape(-1))
        columns = {
            "id": [text.number if text.id is None else text.id for text in group],
            "text": [text.text for text in group],
            "vector": arrow.FixedSizeListArray.from_arrays(numbers, type=kind),
        }
        table = arrow.table(columns)
        # Dictionaries are for values that come again; vectors do not.
        writer = writer or parquet.ParquetWriter(stream, table.schema, use_dictionary=False, compression="zstd")
        writer.write_table(table)
        done += len(group)
    if writer is not None:
        writer.close()


def _pyarrow() -> tuple[Any, Any]:
    """Return the package and its Parquet."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError.of("pyarrow", "parquet", "writing Parquet") from None
    return arrow, parquet
