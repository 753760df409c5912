"""`encode_file`: from the texts of a file of any size to a file of vectors; killed anywhere, it goes on where it was.

Texts are computed in parts, within a part sorted by length; the vectors of a part are appended to
the result in the order of the texts and committed. So the bytes depend on the texts, the model and
the settings, not on interruptions. Memory holds one part. E texts, vectors of D numbers.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from albertkit.command import takes
from albertkit.embeddings.data import FileText, TextInput
from albertkit.embeddings.encoder import LOOKED_AT, check_dimension, unknown_words_notes
from albertkit.embeddings.models import EmbeddingModel, load_embedding_model
from albertkit.embeddings.options import EncodeOptions
from albertkit.errors import (
    AlbertKitError,
    CheckpointError,
    ConfigError,
    DataError,
    MachineError,
    requires_package,
)
from albertkit.files import check_not_folder, json_bytes, read_json, sha256_file
from albertkit.job import Job, check_made_from
from albertkit.output.sections import FactList, Result, Section
from albertkit.tables.bad_rows import BadRow, BadRows, pluralize
from albertkit.tables.files import InputFile
from albertkit.tasks.models import check_not_swapped
from albertkit.training.processes import join_world, npy_header

# Texts sorted together and committed together: 150 MB of vectors of 768 numbers. A kill loses 80 s
# of work of a base model. Not a file for each: the number of truncated texts must be committed with
# the vectors.
PART_TEXTS = 50_000
# And characters at most, for texts that are books: a kill loses the work of one part
PART_CHARACTERS = 10_000_000
_GROUP = 10_000  # rows of Parquet written at once: 30 MB of 768 numbers


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
        resumed: Rows that an earlier, interrupted call had done; all of them where the file was
            finished already.
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
        facts = {
            name: value
            for name, value in vars(self).items()
            if name not in ("left_out", "warnings")
        }
        if self.resumed == self.texts:
            del facts["sentences_per_second"]
        return [
            FactList(
                facts | {"left_out": len(self.left_out) or None, "resumed": self.resumed or None}
            )
        ]


@takes(EncodeOptions)
def encode_file(options: EncodeOptions) -> EncodeReport:
    """Encode every text of a file, in its order. Arguments as `EncodeOptions`; `model` may also be a `SentenceEncoder`.

    Raises:
        ConfigError: bad-value, unknown-name, conflicting-options.
        DataError: bad-row, empty, changed, and what reading raises.
        CheckpointError: exists, corrupt, and what loading raises. MissingExtraError: not-installed,
            for Parquet.
        MachineError: in-use, not-finite.
    """
    began = time.perf_counter()
    check_not_swapped(options.model, options.input)
    target = _check_output_file(Path(options.out), options.input)
    if options.id is not None and target.suffix == ".npy":
        raise ConfigError(
            "conflicting-options",
            f"`{target.name}` holds vectors alone, and no ids",
            "leave --id out, or name a .parquet file",
        )
    source = TextInput(
        str(options.input),
        options.text,
        options.id,
        options.columns,
        options.quoted,
    )
    file = source.find_file()
    world = join_world(options.device)
    if world.size > 1:
        raise ConfigError(
            "bad-value",
            f"encode was started with {world.size} processes",
            "start it with one process",
        )
    model = load_embedding_model(
        options.model,
        options.precision,
        options.prompt_name,
        options.prompt,
        str(world.device),
        options.length,
    )
    dimension = model.dimension if options.dimension is None else options.dimension
    dimension = check_dimension(dimension, model.full_dimension)
    bad_rows = BadRows(options.on_error)
    # Bad rows are reported before hours of work
    total, sample, file_notes = _survey_texts(source, bad_rows)
    notes = [*model.notes, *bad_rows.notes, *file_notes]
    if model.tokenizer is not None:
        notes += unknown_words_notes(sample, model.tokenizer)
    key = {
        "input": _input_identity(file),
        "columns": list(asdict(source).values())[1:],
        "rows": total,
        "model": model.digest(),
        "dimension": dimension,
        "normalize": options.normalize,
        "dtype": options.dtype,
        "precision": model.precision,
        "batch_tokens": options.batch_tokens,
        # Texts are sorted within a part: parts of another size would change the last bits.
        "part": [PART_TEXTS, PART_CHARACTERS],
    }
    with Job(
        target.with_name(f".{target.name}.encoding"),
        key,
        into=target.parent,
        overwrite=options.overwrite,
        title="encoding",
        total=total,
        unit="texts",
        progress=options.progress,
    ) as job:
        if not job.resumed and target.exists() and not options.overwrite:
            encoded = _Encoded(total, _verify_finished_and_count_truncated(target, key))
            resumed = total
        else:
            resumed = job.state(_Encoded).texts
            if not job.finished:
                try:
                    _compute_vectors(job, options, model, source, (total, dimension))
                    _write_parquet_and_record(job, key, source, target)
                except AlbertKitError:  # nothing that could go on
                    job.clear()
                    raise
            encoded = job.state(_Encoded)
            job.publish(_record_file(target).name)
    if resumed == total:
        notes.insert(
            0,
            f"already encoded: `{target.name}` holds these vectors, nothing was computed",
        )
    if encoded.truncated:
        cut = pluralize(encoded.truncated, "text")
        notes.append(f"{cut} of {total:,} longer than {model.max_length} tokens, cut there")
    seconds = time.perf_counter() - began
    return EncodeReport(
        out=target,
        texts=total,
        dimension=dimension,
        dtype=options.dtype,
        precision=model.precision,
        read_as="table" if source.is_table else "lines",
        left_out=tuple(bad_rows.rows),
        notes=tuple(notes),
        resumed=resumed,
        truncated=encoded.truncated,
        max_length=model.max_length,
        seconds=round(seconds, 3),
        sentences_per_second=round((total - resumed) / seconds, 1),
        warnings=tuple(f"left out: {row}" for row in bad_rows.rows),
    )


class _Survey(NamedTuple):
    """Number of the texts of a file, some of them, and notes on the file."""

    num_texts: int
    sample: list[str]
    notes: list[str]


def _survey_texts(source: TextInput, bad_rows: BadRows) -> _Survey:
    """Read all texts once."""
    total = num_empty = 0
    tabs: set[int] = set()  # numbers of tabs in a line; two are enough to know that it is no table
    sample: list[str] = []
    for row in source.texts(bad_rows):
        total += 1
        num_empty += not row.text.strip()
        if len(sample) < LOOKED_AT:
            sample.append(row.text)
        if len(tabs) < 2 and row.text:
            tabs.add(row.text.count("\t"))
    if not total:
        raise DataError(
            "empty",
            f"`{source.file}` holds no text that can be used",
            "name a file with texts",
        )
    notes = []
    if num_empty:
        notes.append(
            f"{pluralize(num_empty, 'text')} of {total:,} empty: a vector without meaning stands for each"
        )
    if not source.is_table and total > 1 and len(tabs) == 1 and 0 not in tabs:
        names = ",".join(f"c{n}" for n in range(1, max(tabs) + 2))
        notes.append(
            f"every line has {max(tabs) + 1} fields with tabs between and is encoded whole; for one of them: "
            f"--columns {names} --text c1"
        )
    return _Survey(total, sample, notes)


def _check_output_file(out: Path, input: str | Path) -> Path:
    if out.suffix not in (".npy", ".parquet"):
        raise ConfigError(
            "bad-value",
            f"`{out}` ends in neither .npy nor .parquet",
            "name such a file",
        )
    check_not_folder(out)
    if out.exists() and Path(input).exists() and out.samefile(input):
        raise ConfigError(
            "bad-value",
            f"`{out}` is the input",
            "choose another name for the vectors",
        )
    # A library that is missing is missed now, not after hours.
    if out.suffix == ".parquet":
        _import_pyarrow()
    return out.absolute()


# --- the work -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Encoded:
    """Counts the texts whose vectors are committed."""

    texts: int = 0
    truncated: int = 0  # of these


def _input_identity(file: InputFile) -> list[Any]:
    return [file.path, file.size, file.modified]


def _record_file(target: Path) -> Path:
    """Return the path of the record that says what a finished file was made with."""
    return target.with_name(f"{target.name}.json")


def _verify_finished_and_count_truncated(target: Path, key: dict[str, Any]) -> int:
    """Verify that the file is what an equal call has written; return how many texts that call truncated."""
    record = read_json(_record_file(target)) if _record_file(target).exists() else None
    if not isinstance(record, dict) or record.get("file") != [
        target.stat().st_size,
        sha256_file(target),
    ]:
        raise CheckpointError(
            "exists",
            f"`{target}` exists, and there is no record of what it was made with",
            "choose another --out, or replace it with --overwrite",
        )
    check_made_from(target, record.get("made_with"), key)
    return record["truncated"]


def _vectors_file_name(target: Path) -> str:
    """Return the name of the growing file of vectors: the result itself, or what Parquet is written from."""
    return "vectors.npy" if target.suffix == ".parquet" else target.name


def _compute_vectors(
    job: Job,
    options: EncodeOptions,
    model: EmbeddingModel,
    source: TextInput,
    shape: tuple[int, int],
) -> None:
    """Append the vectors that are not committed yet; `shape` is [E, D]."""
    vectors_name = _vectors_file_name(Path(options.out))
    encoded = job.state(_Encoded)
    job.progress.resume(encoded.texts)
    if not encoded.texts:
        job.write(vectors_name, npy_header(shape, np.dtype(options.dtype)))
    for texts in split_into_parts(islice(source.texts(BadRows("skip")), encoded.texts, None)):
        vectors, truncated = model.compute(
            texts,
            dimension=shape[1],
            normalize=options.normalize,
            batch_tokens=options.batch_tokens,
            progress=job.progress,
        )
        vectors = vectors.astype(options.dtype, copy=False)
        is_finite = np.isfinite(vectors).all(axis=1)
        if not is_finite.all():
            raise MachineError(
                "not-finite",
                f"the vector of `{texts[int(is_finite.argmin())][:60]}` is not finite in {vectors.dtype}",
                "look at the model with `albertkit inspect`; try --precision fp32, --normalize or --dtype float32",
            )
        # Bytes: numpy's `tofile` loses what its last flush cannot write.
        job.write(vectors_name, vectors.data.cast("B"))
        encoded = _Encoded(encoded.texts + len(texts), encoded.truncated + truncated)
        job.commit(**asdict(encoded))


def _write_parquet_and_record(
    job: Job, key: dict[str, Any], source: TextInput, target: Path
) -> None:
    """Write Parquet, if that is wanted, and the record of what the vectors were made with."""
    # The texts are read twice at least: of a file that changed in between the vectors would be of
    # neither state.
    if _input_identity(source.find_file()) != key["input"]:
        raise DataError(
            "changed",
            f"`{source.file}` was changed while it was read",
            "encode it again",
        )
    vectors_name = _vectors_file_name(target)
    if vectors_name != target.name:
        if not job.is_done(target.name):
            with job.part(target.name) as stream:
                write_parquet(
                    stream,
                    source.texts(BadRows("skip")),
                    np.load(job.folder / vectors_name, "r"),
                )
        job.discard(vectors_name)
        job.commit(**job.facts)
    record = {
        "made_with": key,
        "truncated": job.state(_Encoded).truncated,
        "file": list(job.files[target.name]),
    }
    with job.part(_record_file(target).name) as stream:
        stream.write(json_bytes(record))


def split_into_parts(texts: Iterator[FileText]) -> Iterator[list[str]]:
    """Yield runs of texts, of `PART_TEXTS` at most, cut behind the one that makes `PART_CHARACTERS`."""
    part: list[str] = []
    characters = 0
    for text in texts:
        part.append(text.text)
        characters += len(text.text)
        if len(part) == PART_TEXTS or characters >= PART_CHARACTERS:
            yield part
            part = []
            characters = 0
    if part:
        yield part


# --- files of vectors -----------------------------------------------------------------------------


def write_parquet(stream: IO[bytes], texts: Iterator[FileText], vectors: np.ndarray) -> None:
    """Write `id` (or the place), `text` and `vector`, a list of fixed size, a row; the vectors are [E, D]."""
    arrow, parquet = _import_pyarrow()
    kind = arrow.list_(arrow.from_numpy_dtype(vectors.dtype), vectors.shape[1])
    num_rows = 0
    writer = None
    while group := list(islice(texts, _GROUP)):
        numbers = arrow.array(vectors[num_rows : num_rows + len(group)].reshape(-1))
        columns = {
            "id": [text.number if text.id is None else text.id for text in group],
            "text": [text.text for text in group],
            "vector": arrow.FixedSizeListArray.from_arrays(numbers, type=kind),
        }
        table = arrow.table(columns)
        # Dictionaries are for values that come again; vectors do not.
        writer = writer or parquet.ParquetWriter(
            stream, table.schema, use_dictionary=False, compression="zstd"
        )
        writer.write_table(table)
        num_rows += len(group)
    if writer is not None:
        writer.close()


def _import_pyarrow() -> tuple[Any, Any]:
    """Return the package and its Parquet."""
    with requires_package("pyarrow", "parquet", "writing Parquet"):
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    return arrow, parquet
