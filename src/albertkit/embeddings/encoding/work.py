"""The work of `encode_file`, in windows that can be taken up again.

Within a window texts are sorted by length and computed in batches, and each vector goes to its row; so the bytes depend on the
texts, the model and the settings, not on interruptions. Memory holds one window of texts and no vectors.
"""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.corpus.inputs import InputFile
from albertkit.corpus.journal import Journal
from albertkit.embeddings.encoder import SentenceEncoder, runs_of_like_length
from albertkit.embeddings.encoding.other_encoder import OtherEncoder
from albertkit.embeddings.encoding.progress import EncodeProgress
from albertkit.embeddings.encoding.text_input import Text, TextInput
from albertkit.embeddings.encoding.vector_files import VectorRows, write_parquet
from albertkit.engines import Engine
from albertkit.errors import AlbertKitError, DataError, MachineError
from albertkit.files import only_writer, read_json, sha256_file, sync_folder, write_json
from albertkit.tasks.faults import Faults

WINDOW = 100_000  # texts sorted together; with batches of 8192 tokens hardly a batch then holds two lengths
WINDOW_CHARACTERS = 100_000_000  # and characters at most, for texts that are books
# First text of the window, runs of it that are done, texts done in all, checksum of their vectors, texts cut before the window.
_PLACE = ("window", "runs", "done", "sum", "truncated")
_JOURNAL, _VECTORS, _PARQUET = "journal.sqlite", "vectors.npy", "vectors.parquet"


@dataclass(frozen=True)
class Done:
    """Progress of an encoding.

    Attributes:
        resumed: Texts that an earlier call had computed.
        truncated: Texts that were cut.
    """

    resumed: int
    truncated: int


@dataclass(frozen=True)
class Encoding:
    """One call of `encode_file`.

    Args:
        encoder: On its device.
        engine: Of the encoder; None for a model of sentence-transformers.
        precision: What is computed in.
        source: The texts.
        file: Their file, as it was found.
        target: The file of vectors.
        shape: (E, D).
        dtype: Of the numbers.
        normalize: Divide what is kept by its length.
        batch_tokens: Most tokens computed at once.
    """

    encoder: SentenceEncoder | OtherEncoder
    engine: Engine | None
    precision: str
    source: TextInput
    file: InputFile
    target: Path
    shape: tuple[int, int]
    dtype: np.dtype
    normalize: bool
    batch_tokens: int

    @property
    def work(self) -> Path:
        """Where everything lies until it is whole."""
        return self.target.with_name(f".{self.target.name}.encoding")

    @property
    def record(self) -> Path:
        """Return the path of the record of what a finished file's vectors were made with."""
        return self.target.with_name(f"{self.target.name}.json")

    def finished(self) -> Done | None:
        """Return what an earlier, equal call finished if its file is intact; None where there is no file.

        Raises:
            DataError: output-exists for any other file.
        """
        if not self.target.exists() or (self.work / _JOURNAL).exists():
            return None
        known = read_json(self.record) if self.record.exists() else None
        if not isinstance(known, dict) or known.get("file") != _file_facts(self.target):
            raise DataError(
                "output-exists", f"`{self.target}` exists, and there is no record of what it was made with",
                "choose another --out, or replace it with --overwrite",
            )  # fmt: skip
        now = self._identity()
        if (before := known["made_with"]) != now:
            differing = ", ".join(name for name in now if before.get(name) != now[name])
            raise DataError(
                "output-exists", f"`{self.target}` holds vectors that were made otherwise (differing: {differing})",
                "choose another --out, or replace it with --overwrite",
            )  # fmt: skip
        if self.work.exists():  # a kill came while it was removed, after its journal
            with only_writer(self.work):
                shutil.rmtree(self.work)
        return Done(self.shape[0], known["truncated"])

    def run(self, display: EncodeProgress, overwrite: bool, commit_seconds: float) -> Done:
        """Do what is left to do."""
        with only_writer(self.work):
            return self._run(display, overwrite, commit_seconds)

    def _run(self, display: EncodeProgress, overwrite: bool, commit_seconds: float) -> Done:
        journal = self._open_journal(overwrite)
        try:
            place = self._place(journal)
            display.start(place["done"])
            if (self.work / _VECTORS).exists() or not place["done"]:
                self._compute(journal, display, commit_seconds)
            elif place["done"] < self.shape[0] or not self.target.exists():
                # Otherwise they are where they belong: a kill came after they had been moved there.
                raise MachineError("broken-journal", f"`{self.work}` has lost its vectors", "run the command again")
            truncated = self._place(journal)["truncated"]
            # The work folder goes last: after a kill before that, the next call takes the finished work up.
            facts = {"made_with": self._identity(), "truncated": truncated, "file": _file_facts(self.target)}
            write_json(self.record, facts)
        except AlbertKitError:  # nothing that could go on
            shutil.rmtree(self.work)
            raise
        finally:
            journal.close()
        shutil.rmtree(self.work)
        return Done(place["done"], truncated)

    def _place(self, journal: Journal) -> dict[str, int]:
        """How far the work is; what a journal says is checked, because rows are left out by it.

        Raises:
            MachineError: broken-journal.
        """
        place = journal.fact("place")
        if (
            not isinstance(place, dict)
            or set(place) != set(_PLACE)
            or any(type(number) is not int or number < 0 for number in place.values())
            or max(number for name, number in place.items() if name != "sum") > self.shape[0]
        ):
            raise MachineError(
                "broken-journal",
                f"`{journal.path}` says that the work is at {place!r}",
                "run the command again: it begins anew",
            )
        return place

    def _compute(self, journal: Journal, display: EncodeProgress, commit_seconds: float) -> None:
        whole = self.work / _VECTORS
        with VectorRows(whole, self.shape, self.dtype) as rows:
            self._fill(rows, journal, display, commit_seconds)
            if self.source.found() != self.file:
                raise DataError("input-changed", f"`{self.file.path}` was changed while it was read", "encode it again")
            if self.target.suffix == ".parquet":
                whole = self.work / _PARQUET
                write_parquet(whole, self.source.texts(Faults("skip")), rows)
        os.replace(whole, self.target)
        sync_folder(self.target.parent)

    def _fill(self, rows: VectorRows, journal: Journal, display: EncodeProgress, commit_seconds: float) -> None:
        """Compute every vector that is not there yet."""
        first, runs_done, done, wanted, truncated = (self._place(journal)[name] for name in _PLACE)
        before = done
        rows.count(np.arange(first))

        def check() -> None:
            if done == before and rows.sum != wanted:
                raise MachineError(
                    "broken-build", f"the vectors in `{self.work}` are not what was written", "run the command again"
                )

        committed = time.monotonic()
        for texts in _windows(islice(self.source.texts(Faults("skip")), first, None)):
            features = self.encoder.features(texts)
            for number, run in enumerate(runs_of_like_length(features.lengths, self.batch_tokens)):
                if number < runs_done:
                    rows.count(first + run)
                    continue
                check()
                vectors = self._vectors(features, run)
                rows.write(first + run, _finite(vectors.astype(self.dtype), texts, run))
                done += len(run)
                display.update(done)
                if time.monotonic() - committed >= commit_seconds:
                    rows.sync()
                    journal.commit(place=dict(zip(_PLACE, (first, number + 1, done, rows.sum, truncated), strict=True)))
                    committed = time.monotonic()
            first, runs_done = first + len(texts), 0
            truncated += features.num_truncated
        check()
        rows.sync()
        journal.commit(place=dict(zip(_PLACE, (first, 0, done, rows.sum, truncated), strict=True)))

    def _vectors(self, features: Any, run: np.ndarray) -> np.ndarray:
        if isinstance(self.encoder, OtherEncoder):
            return self.encoder.encode_run(features, run, self.shape[1], self.normalize)
        assert self.engine is not None
        return self.encoder.encode_run(features, run, self.engine, self.shape[1], self.normalize)

    def _open_journal(self, overwrite: bool) -> Journal:
        """Take up what an earlier call has committed, or begin; with `overwrite`, anew if it cannot be taken up."""
        try:
            return self._take_up()
        except AlbertKitError as error:
            if error.slug == "build-running":
                raise MachineError(
                    "build-running", f"another process is encoding into `{self.target}`", "wait for it, or choose another --out"
                ) from None  # fmt: skip
            if not overwrite:
                raise
            self._clear()
            return self._take_up()

    def _clear(self) -> None:
        """Begin anew in the folder, which is locked and therefore stays."""
        for file in self.work.iterdir():
            file.unlink()

    def _take_up(self) -> Journal:
        if not (self.work / _JOURNAL).exists():
            self._clear()  # what a kill left between the last step and the cleaning up
        journal = Journal(self.work / _JOURNAL)
        try:
            before, now = journal.fact("identity"), self._identity()
            if before is None:
                journal.commit(identity=now, place=dict.fromkeys(_PLACE, 0))
            elif not isinstance(before, dict):
                raise MachineError(
                    "broken-journal", f"`{journal.path}` does not say what it is of", "begin anew with --overwrite"
                )
            elif before != now:
                differing = ", ".join(name for name in now if before.get(name) != now[name])
                raise DataError(
                    "other-build", f"`{self.work}` holds unfinished work that began otherwise (differing: {differing})",
                    "run the command that began it, choose another --out, or begin anew with --overwrite",
                )  # fmt: skip
        except BaseException:
            journal.close()
            raise
        return journal

    def _identity(self) -> dict[str, Any]:
        """What decides the bytes."""
        return {
            "input": [self.file.path, self.file.size, self.file.modified],
            "columns": list(asdict(self.source).values())[1:],
            "rows": self.shape[0],
            "model": self.encoder.digest(),
            "dimension": self.shape[1],
            "normalize": self.normalize,
            "dtype": self.dtype.name,
            "precision": self.precision,
            "batch_tokens": self.batch_tokens,
            "window": [WINDOW, WINDOW_CHARACTERS],
        }


def _file_facts(file: Path) -> list[Any]:
    """Size and SHA-256: a file with others is not the one that was written."""
    return [file.stat().st_size, sha256_file(file)]


def _windows(texts: Iterator[Text]) -> Iterator[list[str]]:
    """Runs of texts, of `WINDOW` at most, cut behind the one that makes `WINDOW_CHARACTERS`."""
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
    """The vectors, if all of their numbers are numbers.

    Raises:
        MachineError: vectors-not-finite.
    """
    if not np.isfinite(vectors).all():
        text = texts[run[~np.isfinite(vectors).all(axis=1)][0]]
        raise MachineError(
            "vectors-not-finite", f"the vector of `{text[:60]}` is not finite in {vectors.dtype}",
            "look at the model with `albertkit inspect`; try --precision fp32, --normalize or --dtype float32",
        )  # fmt: skip
    return vectors
