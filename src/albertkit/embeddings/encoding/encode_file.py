"""`encode_file`: the texts of a file of any size to a file of vectors; killed anywhere, it goes on where it was."""

import copy
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.encoding.other_encoder import OtherEncoder
from albertkit.embeddings.encoding.progress import EncodeProgress
from albertkit.embeddings.encoding.text_input import TextInput
from albertkit.embeddings.encoding.vector_files import pyarrow
from albertkit.embeddings.encoding.work import Encoding
from albertkit.embeddings.models import check_other_precision, embedding_folder, is_albert
from albertkit.embeddings.unknown_words import LOOKED_AT, unknown_note
from albertkit.engines.engine import Precision
from albertkit.errors import ConfigError, DataError
from albertkit.tasks.faults import Fault, Faults, counted
from albertkit.training.distributed import join_world


@dataclass(frozen=True)
class EncodeReport:
    """What `encode_file` did.

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
    left_out: tuple[Fault, ...]
    notes: tuple[str, ...]
    resumed: int
    truncated: int
    max_length: int
    seconds: float
    sentences_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        faults = [f"{fault.file}, {fault.where}: {fault.reason}" for fault in self.left_out]
        return {**asdict(self), "out": str(self.out), "left_out": faults, "notes": list(self.notes)}


def encode_file(
    model: SentenceEncoder | str | Path,
    input: str | Path,
    out: str | Path,
    *,
    text: str | None = None,
    id: str | None = None,
    columns: str | None = None,
    quoted: bool | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    dimension: int | None = None,
    normalize: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    batch_tokens: int = 8192,
    precision: Precision = "auto",
    device: str = "auto",
    prompt_name: str | None = None,
    prompt: str | None = None,
    length: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
    commit_seconds: float = 10.0,
) -> EncodeReport:
    """Encode every text of a file, in its order.

    Killed at any moment and called again with the same arguments, it goes on from the last commit and ends with the same
    bytes. Until then the work lies beside `out`, in `.NAME.encoding/`; `out` appears whole. `NAME.json` beside it records what
    the vectors were made with: a finished file is not computed again by the same call, and not replaced by another one.

    Args:
        model: An encoder; or any model that makes vectors: see `load_embedding_model`.
        input: Lines of text; or CSV, TSV, JSONL or Parquet. `.gz`, `.xz` and `.zst` are unpacked.
        out: `.npy`: fp [E, D]. `.parquet`: columns `id`, `text` and `vector`.
        text: Column of the texts in a table. Default: `text`.
        id: Column of their names, for Parquet. Default: the place of the row in the file, from 0.
        columns: Names of all columns, with commas between, of a table without a header.
        quoted: Whether fields are in quotes. Default: with commas between them they may be, with tabs not.
        on_error: Rows that cannot be used: stop before anything is computed, or skip and name them.
        dimension, normalize, batch_tokens, precision, prompt_name, prompt: As `SentenceEncoder.encode`; precision auto is bf16
            where the hardware multiplies it faster, and the report says which it was.
        dtype: Of the numbers in the file.
        device: auto, cpu, cuda or cuda:N.
        length: Longest text in tokens, special tokens included. Default: the model's. Longer texts are cut and counted.
        overwrite: Replace a finished file, and unfinished work with other texts, model or settings.
        progress: Show it on stderr.
        commit_seconds: How often work is made safe.

    Raises:
        ConfigError: bad-argument, bad-value, bad-precision, bad-device, bad-settings.
        DataError: bad-row, empty-input, output-exists, other-build, input-changed, and what reading raises.
        CheckpointError: what loading raises. MissingExtraError: missing-extra, for Parquet.
        MachineError: build-running, broken-journal, broken-build, vectors-not-finite.
    """
    began = time.perf_counter()
    if batch_tokens < 1:
        raise ConfigError(
            "bad-value", f"batch_tokens is {batch_tokens}, it must be at least 1", "leave it out for 8192"
        )
    target = _target(Path(out), input)
    source = TextInput(str(input), text, id, columns, quoted)
    file = source.found()
    world = join_world(device)
    if world.size > 1:
        raise ConfigError("bad-settings", f"{world.size} processes", "encoding runs in one process")
    encoder = _encoder(model, str(world.device), length, prompt_name, prompt, precision)
    engine = encoder.to(world.device).engine(precision) if isinstance(encoder, SentenceEncoder) else None
    computed_in = "fp32" if engine is None else engine.precision
    width, faults = encoder.kept(dimension), Faults(on_error)
    total = 0
    tabs: set[int] = set()
    sample: list[str] = []
    for row in source.texts(faults):  # what is wrong with the file is said before hours of work
        total += 1
        if len(sample) < LOOKED_AT:
            sample.append(row.text)
        if len(tabs) < 2 and row.text:
            tabs.add(row.text.count("\t"))
    if not total:
        raise DataError("empty-input", f"`{input}` holds no text that can be used", "name a file with texts")
    encoding = Encoding(
        encoder, engine, computed_in, source, file, target, (total, width), np.dtype(dtype), normalize, batch_tokens
    )
    notes = [*faults.notes]
    if not source.is_table and total > 1 and len(tabs) == 1 and 0 not in tabs:
        names = ",".join(f"c{n}" for n in range(1, max(tabs) + 2))
        notes.append(
            f"every line has {max(tabs) + 1} fields with tabs between and is encoded whole; for one of them: "
            f"--columns {names} --text c1"
        )
    if engine is not None and isinstance(encoder, SentenceEncoder):
        notes = [*engine.notes, *notes, *unknown_note(sample, encoder.tokenizer)]
    else:
        notes += encoder.model.notes if isinstance(encoder, OtherEncoder) else ()
    if (done := None if overwrite else encoding.finished()) is not None:
        notes.insert(0, f"already encoded: `{target.name}` holds these vectors, nothing was computed")
    else:
        with EncodeProgress(total, progress) as display:
            done = encoding.run(display, overwrite, commit_seconds)
    if done.truncated:
        notes.append(
            f"{counted(done.truncated, 'text')} of {total:,} longer than {encoder.max_length} tokens, cut there"
        )
    seconds = time.perf_counter() - began
    return EncodeReport(
        target, total, width, dtype, computed_in, "table" if source.is_table else "lines", tuple(faults.found),
        tuple(notes), done.resumed, done.truncated, encoder.max_length, round(seconds, 3),
        round((total - done.resumed) / seconds, 1),
    )  # fmt: skip


def _encoder(
    model: SentenceEncoder | str | Path,
    device: str,
    length: int | None,
    prompt_name: str | None,
    prompt: str | None,
    precision: str,
) -> SentenceEncoder | OtherEncoder:
    if not isinstance(model, SentenceEncoder):
        folder = embedding_folder(model)
        if not is_albert(folder):
            check_other_precision(model, precision)
            return OtherEncoder(str(model), folder, prompt_name, prompt, device, length)
        model = SentenceEncoder.from_pretrained(folder)
    encoder = model.with_prompt(prompt_name, prompt)
    if length is not None:
        encoder = copy.copy(encoder)
        encoder.max_length = length
    return encoder


def _target(out: Path, input: str | Path) -> Path:
    if out.suffix not in (".npy", ".parquet"):
        raise ConfigError("bad-argument", f"`{out}` ends in neither .npy nor .parquet", "name such a file")
    if out.is_dir():
        raise DataError("wrong-kind", f"a file was expected, this is a folder: `{out}`", "name another file")
    if out.exists() and Path(input).exists() and out.samefile(input):
        raise ConfigError("bad-argument", f"`{out}` is the input", "choose another name for the vectors")
    if out.suffix == ".parquet":
        pyarrow()
    return out.absolute()
