"""Read a token store: memory-mapped shards of tokens with the boundaries of sentences and documents (`store_format`)."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albertkit.corpus.remote import fetch_store
from albertkit.corpus.store_format import FORMAT_VERSION, MANIFEST, UNFINISHED, is_signed, shard_file
from albertkit.errors import DataError, near_path
from albertkit.files import read_json, sha256_file
from albertkit.model_folder import model_kind
from albertkit.tokenizer import AlbertTokenizer


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


class TokenStore:
    """A store opened for reading; use `TokenStore.open`.

    Attributes:
        folder: Where it lies.
        manifest: What manifest.json says.
        vocab_size: Number of tokens of its vocabulary.
        tokenizer_fingerprint: 64 hexadecimal digits.
        num_documents, num_sentences, num_tokens, num_shards: Counts.
        tokens: For each shard, uint16 or uint32 [tokens].
        sentence_offsets: For each shard, uint32 [sentences + 1] into its tokens.
        document_offsets: For each shard, uint32 [documents + 1] into its sentences. A document never straddles shards.
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
        self.tokens = [self._map("tokens", k, manifest["dtype"]) for k in shards]
        self.sentence_offsets = [self._map("sentences", k, "uint32") for k in shards]
        self.document_offsets = [self._map("documents", k, "uint32") for k in shards]
        documents = [len(offsets) - 1 for offsets in self.document_offsets]
        self._first_document = np.cumsum([0, *documents], dtype=np.int64)
        found = {
            "documents": sum(documents),
            "sentences": sum(len(offsets) - 1 for offsets in self.sentence_offsets),
            "tokens": sum(map(len, self.tokens)),
        }
        if wrong := [name for name, count in found.items() if counts[name] != count]:
            raise ValueError(f"it counts {counts[wrong[0]]!r} {wrong[0]}, the files hold {found[wrong[0]]:,}")
        if not isinstance(self.vocab_size, int) or not isinstance(self.tokenizer_fingerprint, str):
            raise TypeError("vocab_size is not a number, or the fingerprint of the tokenizer is not a text")

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "TokenStore":
        """Open a store; checks that every file is there and has its size (`verify` checks the contents).

        Args:
            folder: Its folder; or an address (`s3://…`), of which a local copy is made once (`remote.fetch_store`).

        Raises:
            DataError: not-found, wrong-kind, unfinished or corrupt.
        """
        if "://" in os.fspath(folder):
            folder = fetch_store(os.fspath(folder))
        path = Path(folder)
        build = f"albertkit corpus build INPUTS --tokenizer DIR --out {path}"
        if not path.exists():
            hint = near_path(path, f"check the path, or make one with `{build}`")
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
            if kind := model_kind(path):
                hint = f"make a store first: `albertkit corpus build INPUTS --tokenizer {path} --out STORE`"
                raise DataError("wrong-kind", f"`{path}` is {kind}, not a token store", hint)
            raise DataError("wrong-kind", f"`{path}` holds no {MANIFEST}", f"make a store with `{build}`")
        manifest = read_json(path / MANIFEST, "store manifest")
        version = manifest.get("albertkit_store") if isinstance(manifest, dict) else None
        if version != FORMAT_VERSION:
            raise DataError(
                "wrong-kind",
                f"`{path / MANIFEST}` is not of store format {FORMAT_VERSION} (it says {version!r})",
                f"make a store with `{build}`",
            )
        if not is_signed(manifest):
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
                    found = "is missing" if size is None else f"has {size:,} bytes instead of {entry['bytes']:,}"
                    raise DataError("corrupt", f"`{file}` {found}", hint)
            return cls(path, manifest)
        except DataError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError("corrupt", f"`{path / MANIFEST}` is not what a build writes: {error}", hint) from None

    def _map(self, kind: str, shard: int, dtype: str) -> NDArray[Any]:
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

    def verify(self, most: int | None = None) -> None:
        """Check the sha256 of every file against the manifest.

        Args:
            most: Bytes that are read; files are then left out from the first one on that would be too much.

        Raises:
            DataError: corrupt, with the file.
        """
        read = 0
        for name, entry in sorted(self.manifest["files"].items(), key=lambda file: file[1]["bytes"]):
            read += entry["bytes"]
            if most is not None and read > most:
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
        if tokenizer.fingerprint != self.tokenizer_fingerprint or tokenizer.vocab_size != self.vocab_size:
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
        """Return which documents are kept for evaluation, by hash of (seed, document number), so the choice needs no file.

        Args:
            share: Expected share of documents, 0 to 1.
            seed: Another seed holds out others.

        Returns:
            For each shard, bool [documents].
        """
        threshold = min(max(share, 0.0), 1.0) * 2.0**53
        masks = []
        for first, last in zip(self._first_document[:-1], self._first_document[1:], strict=True):
            hashes = document_hash(seed, np.arange(first, last, dtype=np.uint64))
            masks.append((hashes >> np.uint64(11)).astype(np.float64) < threshold)
        return masks

    def locate(self, number: int) -> tuple[int, int]:
        """Return the shard of a document and its place there, by its number in the store (negative: from the end)."""
        wanted = number + self.num_documents if number < 0 else number
        if not 0 <= wanted < self.num_documents:
            raise IndexError(f"document {number} of {self.num_documents}")
        shard = int(np.searchsorted(self._first_document, wanted, "right")) - 1
        return shard, wanted - int(self._first_document[shard])

    def document(self, number: int) -> list[NDArray[Any]]:
        """Return the sentences of a document, each an array of ids (views into the mapped file).

        Args:
            number: Of the document in the store, from 0; negative counts from the end.
        """
        shard, place = self.locate(number)
        first, last = self.document_offsets[shard][place : place + 2].tolist()
        offsets = self.sentence_offsets[shard][first : last + 1].tolist()
        tokens = self.tokens[shard]
        return [tokens[start:end] for start, end in pairwise(offsets)]

    def documents(self) -> Iterator[list[NDArray[Any]]]:
        """Yield all documents in order."""
        for number in range(self.num_documents):
            yield self.document(number)
