"""Write, upload, fetch and read token stores: memory-mapped shards of tokens with the boundaries of sentences and documents."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from albertkit.errors import CheckpointError, DataError, suggest_existing_path
from albertkit.files import (
    StrPath,
    cache_folder,
    json_bytes,
    read_json,
    remove_leftovers,
    sha256_bytes,
    sha256_file,
    write_file,
)
from albertkit.job import Job
from albertkit.model_paths import file_system_and_path, model_kind, network_errors_as_ours
from albertkit.tokenizer import AlbertTokenizer

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
UNFINISHED = ".build"  # in the folder of a store: what a build works in
KINDS = ("tokens", "sentences", "documents")


def shard_file(kind: str, shard: int) -> str:
    """Return the name of a shard's file; kind is tokens, sentences or documents."""
    return f"{kind}-{shard:05d}.bin"


def token_dtype(vocab_size: int) -> str:
    """Return the smallest type that holds every id: "uint16" or "uint32"."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def with_own_sha256(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the sha256 of itself."""
    return {**manifest, "sha256": sha256_bytes(json.dumps(manifest).encode())}


_PARTIAL = ".partial-"
_NAME = re.compile(rf"(?:(?:{'|'.join(KINDS)})-\d{{5,}}\.bin|tokenizer/[\w.-]+)\Z")


def folder_before_upload(url: str) -> Path:
    """Return the folder of a store before it is uploaded to an address."""
    # Always the same for an address, so that a build that was interrupted goes on.
    return (
        cache_folder()
        / "builds"
        / f"{_last_part_of_url(url)}-{sha256_bytes(url.rstrip('/').encode())[:16]}"
    )


def _last_part_of_url(url: str) -> str:
    return re.sub(r"[^\w.-]", "_", url.rstrip("/").rsplit("/", 1)[-1]) or "store"


# --- upload ---------------------------------------------------------------------------------------


def read_remote_manifest(url: str) -> bytes | None:
    """Return the manifest of the store at an address; None if there is no store."""
    system, root = file_system_and_path(url)
    with network_errors_as_ours(url):
        with suppress(FileNotFoundError):
            return system.cat_file(f"{root}/{MANIFEST}")
        with suppress(FileNotFoundError):
            foreign = [
                name
                for name in _remote_file_names(system, root)
                if not _NAME.match(name) and _PARTIAL not in name
            ]
            if foreign:
                raise CheckpointError(
                    "exists",
                    f"`{url}` holds other files and no store, such as `{foreign[0]}`",
                    "choose a new folder for --out",
                )
    return None


def _remote_file_names(system: Any, root: str) -> list[str]:
    start = system._strip_protocol(root).rstrip("/") + "/"
    return [name.removeprefix(start) for name in system.find(root)]


def upload_store(folder: Path, url: str, progress: bool) -> None:
    """Upload a whole store to an address. A store that lies there loses its manifest first and is replaced.

    The files that have been uploaded are noted next to the folder, for the next call after an
    interruption.
    """
    system, root = file_system_and_path(url)
    files = read_json(folder / MANIFEST)["files"]
    key = {"store": sha256_file(folder / MANIFEST)}
    upload = Job(
        folder.parent / "upload",
        key,
        overwrite=True,
        title=f"uploading to {url}",
        total=len(files),
        unit="files",
        progress=progress,
    )
    with upload as job, network_errors_as_ours(url):
        system.invalidate_cache()
        if system.exists(f"{root}/{MANIFEST}"):
            system.rm_file(f"{root}/{MANIFEST}")
        system.makedirs(f"{root}/tokenizer", exist_ok=True)
        existing_files = set(_remote_file_names(system, root))
        for name in existing_files - set(files):  # of a larger store before this one, or cut off
            if _NAME.match(name) or _PARTIAL in name:
                system.rm_file(f"{root}/{name}")
        for name in files:
            if name in existing_files and job.is_done(name):
                continue
            system.put_file(str(folder / name), f"{root}/{name}")
            job.mark(name)
            job.progress.update(job.progress.completed + 1)
        system.put_file(str(folder / MANIFEST), f"{root}/{_PARTIAL}{MANIFEST}")
        system.mv(f"{root}/{_PARTIAL}{MANIFEST}", f"{root}/{MANIFEST}")


# --- download -------------------------------------------------------------------------------------


def fetch_store(url: str) -> Path:
    """Return the local copy of a store at an address, fetched if it is not there yet, every file checked by its sha256.

    A copy is found by the manifest, which is read every time: a store that was replaced at its
    address is fetched again. Of several processes that ask at once, one fetches and the others
    wait.
    """
    system, root = file_system_and_path(url)
    try:
        with network_errors_as_ours(url):
            data = system.cat_file(f"{root}/{MANIFEST}")
    except DataError as error:
        if error.slug != "not-found":
            raise
        raise DataError(
            "wrong-kind",
            f"`{url}` holds no {MANIFEST}",
            f"make a store with `albertkit corpus build … --out {url}`",
        ) from None
    try:
        files = json.loads(data)["files"]
        for name, entry in files.items():
            if (
                not _NAME.match(name)
                or not isinstance(entry["bytes"], int)
                or len(entry["sha256"]) != 64
            ):
                raise ValueError(name)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            "wrong-kind", f"`{url}/{MANIFEST}` is not the manifest of a store", "check the address"
        ) from None
    folder = cache_folder() / "stores" / f"{_last_part_of_url(url)}-{sha256_bytes(data)[:16]}"
    if not (folder / MANIFEST).is_file():
        (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / MANIFEST).is_file():
                remove_leftovers(folder)
                remove_leftovers(folder / "tokenizer")
                for name, entry in files.items():
                    _fetch_file(
                        system,
                        f"{root}/{name}",
                        folder / name,
                        entry,
                        f"{url.rstrip('/')}/{name}",
                    )
                write_file(folder / MANIFEST, data)
    return folder


def _fetch_file(
    system: Any,
    remote: str,
    target: Path,
    entry: dict[str, Any],
    url: str,
) -> None:
    if target.is_file() and target.stat().st_size == entry["bytes"]:
        return  # it took its name after its check
    partial = target.parent / f"{_PARTIAL}{target.name}"
    try:
        with network_errors_as_ours(url):
            system.get_file(remote, str(partial))
        if sha256_file(partial) != entry["sha256"]:
            raise DataError(
                "corrupt",
                f"`{url}` is corrupted: sha256 mismatch",
                "run it again if the store was being replaced; else upload it again, or rebuild it with --overwrite",
            )
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


class StoreWriter:
    """Appends documents to shards, which are files of a job; `shards` are their counts at its last commit.

    A shard takes no document that would carry it beyond `shard_tokens`; a longer document has its
    own shard.
    """

    def __init__(
        self,
        job: Job,
        vocab_size: int,
        shard_tokens: int,
        shards: list[dict[str, int]],
    ) -> None:
        self._job = job
        self.dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")
        self.shard_tokens = shard_tokens
        self.shards = [dict(shard) for shard in shards]

    def append(
        self,
        tokens: NDArray[Any],
        sentence_lengths: NDArray[Any],
        document_sentences: NDArray[Any],
    ) -> None:
        """Add D documents of S sentences of T tokens; no sentence and no document is empty."""
        sentence_ends = np.concatenate([[0], np.cumsum(sentence_lengths, dtype=np.int64)])
        document_ends = np.concatenate([[0], np.cumsum(document_sentences, dtype=np.int64)])
        token_ends = sentence_ends[document_ends]  # [D + 1] tokens before each document
        first = 0
        total = len(document_sentences)
        while first < total:
            shard_size = self.shards[-1]["tokens"] if self.shards else self.shard_tokens
            room = self.shard_tokens - shard_size
            last = int(np.searchsorted(token_ends, token_ends[first] + room, "right")) - 1
            # No room (less than none after a longer document), or no shard yet
            if last <= first and shard_size:
                if self.shards:
                    self._job.close(*(shard_file(kind, len(self.shards) - 1) for kind in KINDS))
                self.shards.append(dict.fromkeys(KINDS, 0))
                self._append_bytes("tokens", b"")
                for kind in ("sentences", "documents"):
                    self._append_bytes(kind, np.zeros(1, "<u4").tobytes())
                continue
            last = max(last, first + 1)
            self.write_documents(tokens, sentence_ends, document_ends, first, last)
            first = last

    def _append_bytes(self, kind: str, content: bytes) -> None:
        self._job.write(shard_file(kind, len(self.shards) - 1), content)

    def write_documents(
        self,
        tokens: NDArray[Any],
        sentence_ends: NDArray[Any],
        document_ends: NDArray[Any],
        first: int,
        last: int,
    ) -> None:
        """Write documents `first` to `last` of those that `append` was given to the last shard."""
        shard = self.shards[-1]
        ends = sentence_ends[document_ends[first] : document_ends[last] + 1]
        in_tokens = shard["tokens"] + ends[1:] - ends[0]
        in_sentences = (
            shard["sentences"] + document_ends[first + 1 : last + 1] - document_ends[first]
        )
        shard_tokens = tokens[ends[0] : ends[-1]].astype(self.dtype, copy=False)
        self._append_bytes("tokens", shard_tokens.tobytes())
        self._append_bytes("sentences", in_tokens.astype("<u4").tobytes())
        self._append_bytes("documents", in_sentences.astype("<u4").tobytes())
        shard["tokens"] = int(in_tokens[-1])
        shard["sentences"] = int(in_sentences[-1])
        shard["documents"] += last - first

    def totals(self) -> dict[str, int]:
        """Return the numbers of documents, sentences and tokens in all shards."""
        return {kind: sum(shard[kind] for shard in self.shards) for kind in reversed(KINDS)}


def write_store_manifest(job: Job, shards: list[dict[str, int]], facts: dict[str, Any]) -> None:
    """Write the manifest of the committed shards and of `tokenizer/`: after it only `Job.publish` is left to do."""
    names = sorted(
        f"tokenizer/{file.name}" for file in (job.folder / "tokenizer").iterdir() if file.is_file()
    )
    job.add(*names)
    shard_names = [shard_file(kind, number) for number in range(len(shards)) for kind in KINDS]
    files = {name: job.files[name]._asdict() for name in [*shard_names, *names]}
    manifest = with_own_sha256(
        {"albertkit_store": FORMAT_VERSION, **facts, "shards": shards, "files": files}
    )
    with job.part(MANIFEST) as stream:
        stream.write(json_bytes(manifest))


def document_hash(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash document numbers, uint64 [N], uniformly, keyed by a seed.

    Source: SplitMix64 (Steele, Lea and Flood 2014; constants of Vigna's splitmix64.c).
    """

    def mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))

    step = np.uint64(0x9E3779B97F4A7C15)
    start = mix(np.array([seed % (1 << 64)], np.uint64) + step)
    return mix(start + (numbers + np.uint64(1)) * step)


def is_held_out(share: float, seed: int, first: int, last: int) -> NDArray[np.bool_]:
    """Return which of the documents or records from number `first` to `last` are for evaluation, by hash of (seed, number)."""
    hashes = document_hash(seed, np.arange(first, last, dtype=np.uint64))
    return (hashes >> np.uint64(11)).astype(np.float64) < share * 2.0**53


class TokenStore:
    """A store opened for reading; use `TokenStore.open`.

    Attributes:
        folder: Folder of the store.
        manifest: Content of manifest.json.
        vocab_size: Number of tokens of its vocabulary.
        tokenizer_fingerprint: 64 hexadecimal digits.
        num_documents, num_sentences, num_tokens, num_shards: Counts.
        tokens: For each shard, uint16 or uint32 [tokens].
        sentence_offsets: For each shard, uint32 [sentences + 1] into its tokens.
        document_offsets: For each shard, uint32 [documents + 1] into its sentences. A document
            never straddles shards.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        counts = manifest["counts"]
        self.vocab_size: int = manifest["vocab_size"]
        self.tokenizer_fingerprint: str = manifest["tokenizer_fingerprint"]
        self.num_documents: int = counts["documents"]
        self.num_sentences: int = counts["sentences"]
        self.num_tokens: int = counts["tokens"]
        self.num_shards: int = len(manifest["shards"])
        shards = range(self.num_shards)
        if manifest["dtype"] not in ("uint16", "uint32"):
            raise TypeError(f"dtype is {manifest['dtype']!r}")
        self.tokens = [self._map_array("tokens", k, manifest["dtype"]) for k in shards]
        self.sentence_offsets = [self._map_array("sentences", k, "uint32") for k in shards]
        self.document_offsets = [self._map_array("documents", k, "uint32") for k in shards]
        documents = [len(offsets) - 1 for offsets in self.document_offsets]
        self._first_document = np.cumsum([0, *documents], dtype=np.int64)
        actual_counts = {
            "documents": sum(documents),
            "sentences": sum(len(offsets) - 1 for offsets in self.sentence_offsets),
            "tokens": sum(map(len, self.tokens)),
        }
        for name, count in actual_counts.items():
            if counts[name] != count:
                raise ValueError(f"it counts {counts[name]!r} {name}, the files hold {count:,}")
        if not isinstance(self.vocab_size, int) or not isinstance(self.tokenizer_fingerprint, str):
            raise TypeError(
                "vocab_size is not a number, or the fingerprint of the tokenizer is not a text"
            )

    @classmethod
    def open(cls, folder: StrPath) -> "TokenStore":
        """Open a store; checks that every file is there and has its size (`verify` checks the contents).

        Args:
            folder: Its folder; or an address (`s3://…`), of which a local copy is made once
                (`fetch_store`).

        Raises:
            DataError: not-found, wrong-kind, unfinished or corrupt.
        """
        if "://" in os.fspath(folder):
            folder = fetch_store(os.fspath(folder))
        path = Path(folder)
        build = f"albertkit corpus build INPUTS --tokenizer DIR --out {path}"
        if not path.exists():
            hint = suggest_existing_path(path, f"check the path, or make one with `{build}`")
            raise DataError("not-found", f"no store at `{path}`", hint)
        if path.is_file():
            raise DataError(
                "wrong-kind",
                f"`{path}` is a file, a token store is a folder",
                f"make a store of text with `albertkit corpus build {path} --tokenizer DIR --out STORE`",
            )
        if not (path / MANIFEST).is_file():
            if (path / UNFINISHED).is_dir():
                raise DataError(
                    "unfinished",
                    f"the build of `{path}` has not finished",
                    "run the same build command again to go on",
                )
            kind = model_kind(path)
            if kind:
                hint = f"make a store first: `albertkit corpus build INPUTS --tokenizer {path} --out STORE`"
                raise DataError("wrong-kind", f"`{path}` is {kind}, not a token store", hint)
            raise DataError(
                "wrong-kind",
                f"`{path}` holds no {MANIFEST}",
                f"make a store with `{build}`",
            )
        manifest = read_json(path / MANIFEST, "store manifest")
        version = manifest.get("albertkit_store") if isinstance(manifest, dict) else None
        if version != FORMAT_VERSION:
            raise DataError(
                "wrong-kind",
                f"`{path / MANIFEST}` is not of store format {FORMAT_VERSION} (it says {version!r})",
                f"make a store with `{build}`",
            )
        unsigned = {name: value for name, value in manifest.items() if name != "sha256"}
        if with_own_sha256(unsigned)["sha256"] != manifest.get("sha256"):
            raise DataError(
                "corrupt",
                f"`{path / MANIFEST}` is corrupted: sha256 mismatch",
                f"copy the store again, or rebuild it: `{build} --overwrite`",
            )
        hint = f"copy the store again, or rebuild it: `{build}`"
        try:
            for name, entry in manifest["files"].items():
                if Path(name).is_absolute() or ".." in Path(name).parts:
                    raise ValueError(f"the name `{name}` leaves the folder")
                file = path / name
                size = file.stat().st_size if file.is_file() else None
                if size != entry["bytes"]:
                    problem = (
                        "is missing"
                        if size is None
                        else f"has {size:,} bytes instead of {entry['bytes']:,}"
                    )
                    raise DataError("corrupt", f"`{file}` {problem}", hint)
            return cls(path, manifest)
        except DataError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                "corrupt",
                f"`{path / MANIFEST}` is not what a build writes: {error}",
                hint,
            ) from None

    def _map_array(self, kind: str, shard: int, dtype: str) -> NDArray[Any]:
        file = self.folder / shard_file(kind, shard)
        if file.name not in self.manifest["files"]:
            raise ValueError(f"it does not list {file.name}")
        if not file.stat().st_size:
            return np.zeros(0, np.dtype(dtype))
        return np.memmap(file, np.dtype(dtype).newbyteorder("<"), "r").view(np.ndarray)

    def __reduce__(self) -> tuple:  # worker processes map the files themselves
        return TokenStore.open, (self.folder,)

    def __repr__(self) -> str:
        return (
            f"TokenStore({str(self.folder)!r}: {self.num_documents:,} documents, {self.num_sentences:,} sentences, "
            f"{self.num_tokens:,} tokens, {self.num_shards} shards)"
        )

    def verify(self, max_bytes: int | None = None) -> None:
        """Check the sha256 of every file against the manifest.

        Args:
            max_bytes: Maximum bytes to read; the smallest files are checked first.

        Raises:
            DataError: corrupt, with the file.
        """
        num_bytes = 0
        for name, entry in sorted(
            self.manifest["files"].items(), key=lambda file: file[1]["bytes"]
        ):
            num_bytes += entry["bytes"]
            if max_bytes is not None and num_bytes > max_bytes:
                return
            if sha256_file(self.folder / name) != entry.get("sha256"):
                raise DataError(
                    "corrupt",
                    f"`{self.folder / name}` is corrupted: sha256 mismatch",
                    "copy the store again, or rebuild it with --overwrite",
                )

    def tokenizer(self) -> AlbertTokenizer:
        """Return the tokenizer that is saved with the shards.

        Raises:
            DataError: wrong-tokenizer, if it was replaced by another.
        """
        tokenizer = AlbertTokenizer.from_pretrained(self.folder / "tokenizer")
        self.check_tokenizer(tokenizer)
        return tokenizer

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Make sure that ids of this store mean to `tokenizer` what they meant to its own.

        Args:
            tokenizer: Anything with `fingerprint` and `vocab_size`.

        Raises:
            DataError: wrong-tokenizer.
        """
        if (
            tokenizer.fingerprint != self.tokenizer_fingerprint
            or tokenizer.vocab_size != self.vocab_size
        ):
            raise DataError(
                "wrong-tokenizer",
                f"the store `{self.folder}` was built with another tokenizer ({self.vocab_size:,} tokens, "
                f"{self.tokenizer_fingerprint[:12]}) than this one ({tokenizer.vocab_size:,} tokens, "
                f"{tokenizer.fingerprint[:12]})",
                f"use the one in `{self.folder / 'tokenizer'}`, or rebuild the store with yours",
            )

    @property
    def fingerprint(self) -> str:
        """Return the sha256 of the manifest, which holds the sha256 of every file: 64 hexadecimal digits."""
        return sha256_file(self.folder / MANIFEST)

    def held_out(self, share: float, seed: int) -> list[NDArray[np.bool_]]:
        """Return masks of the documents for evaluation, by hash of (seed, document number), so the choice needs no file.

        Args:
            share: Expected share of documents, 0 to 1.
            seed: Another seed holds out others.

        Returns:
            For each shard, bool [documents].
        """
        bounds = pairwise(self._first_document)
        return [is_held_out(share, seed, first, last) for first, last in bounds]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the shard of a document and its index there, by its number in the store (negative: from the end)."""
        index = number + self.num_documents if number < 0 else number
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {number} of {self.num_documents}")
        shard = int(np.searchsorted(self._first_document, index, "right")) - 1
        return shard, index - int(self._first_document[shard])

    def document(self, number: int) -> list[NDArray[Any]]:
        """Return the sentences of a document, each an array of ids (views into the mapped file).

        Args:
            number: Of the document in the store, from 0; negative counts from the end.
        """
        shard, index = self.locate(number)
        first, last = self.document_offsets[shard][index : index + 2].tolist()
        offsets = self.sentence_offsets[shard][first : last + 1].tolist()
        tokens = self.tokens[shard]
        return [tokens[start:end] for start, end in pairwise(offsets)]

    def documents(self) -> Iterator[list[NDArray[Any]]]:
        """Yield all documents in order."""
        for number in range(self.num_documents):
            yield self.document(number)
