"""Writing a store: shards that grow document by document, can be cut back to an earlier state, and appear at once."""

import os
import shutil
from pathlib import Path
from typing import IO, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from albertkit.corpus.journal import JOURNAL
from albertkit.corpus.store import FORMAT_VERSION, KINDS, MANIFEST, is_signed, shard_file, signed, token_dtype
from albertkit.errors import MachineError
from albertkit.files import crc32c_file, read_json, sha256_file, sync_folder, write_json


class StoreWriter:
    """Appends documents to shards in a folder.

    Args:
        folder: The build folder.
        vocab_size: Decides the type of the tokens.
        shard_tokens: A shard takes no document that would carry it beyond this; a longer document has its own shard.
        shards: Shards as a former writer left them (its `shards`); files are cut back to exactly these.
        sums: Of their files (its `sums`); None where it knew none.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        shard_tokens: int,
        shards: list[dict[str, int]],
        sums: list[dict[str, int]] | None = None,
    ) -> None:
        self.folder = folder
        self.dtype = np.dtype(token_dtype(vocab_size)).newbyteorder("<")
        self.shard_tokens = shard_tokens
        self.shards = [dict(shard) for shard in shards]
        self.sums = [dict(own) for own in sums or [{}] * len(shards)]  # CRC-32C of every file, where it is known
        self._files: dict[str, IO[bytes]] = {}
        self._cut_back()

    def _cut_back(self) -> None:
        keep = {shard_file(kind, k) for kind in KINDS for k in range(len(self.shards))}
        for kind in KINDS:
            for file in self.folder.glob(f"{kind}-*.bin"):
                if file.name not in keep:
                    file.unlink()
        for number, shard in enumerate(self.shards):
            sizes = {"tokens": self.dtype.itemsize * shard["tokens"]}
            sizes |= {kind: 4 * (shard[kind] + 1) for kind in ("sentences", "documents")}
            for kind, size in sizes.items():
                file = self.folder / shard_file(kind, number)
                if not file.exists() or file.stat().st_size < size:
                    raise MachineError(
                        "broken-build", f"`{file}` is shorter than the journal of the build says",
                        "start anew with --overwrite",
                    )  # fmt: skip
                os.truncate(file, size)
                written = self.sums[number].get(kind)
                if written is not None and crc32c_file(file) != written:
                    raise MachineError(
                        "broken-build",
                        f"`{file}` is not what was written (CRC-32C differs)",
                        "start anew with --overwrite",
                    )
        if self.shards:
            self._open(len(self.shards) - 1)
            for opened in self._files.values():
                opened.seek(0, os.SEEK_END)

    def _open(self, shard: int) -> None:
        for kind in KINDS:
            path = self.folder / shard_file(kind, shard)
            self._files[kind] = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115

    def _next_shard(self) -> None:
        self.sync()
        self.close()
        self._open(len(self.shards))
        self.shards.append(dict.fromkeys(KINDS, 0))
        self.sums.append(dict.fromkeys(KINDS, 0))
        for kind in ("sentences", "documents"):
            self._put(kind, np.zeros(1, "<u4").tobytes())
        sync_folder(self.folder)

    def _put(self, kind: str, content: bytes) -> None:
        self._files[kind].write(content)
        if kind in self.sums[-1]:
            self.sums[-1][kind] = google_crc32c.extend(self.sums[-1][kind], content)

    def append(self, tokens: NDArray[Any], sentence_lengths: NDArray[Any], document_sentences: NDArray[Any]) -> None:
        """Add documents.

        Args:
            tokens: [T] ids.
            sentence_lengths: [S] tokens of each sentence, all above 0.
            document_sentences: [D] sentences of each document, all above 0.
        """
        sentence_ends = np.concatenate([[0], np.cumsum(sentence_lengths, dtype=np.int64)])
        document_ends = np.concatenate([[0], np.cumsum(document_sentences, dtype=np.int64)])
        token_ends = sentence_ends[document_ends]  # [D + 1] tokens before each document
        done, total = 0, len(document_sentences)
        while done < total:
            room = self.shard_tokens - (self.shards[-1]["tokens"] if self.shards else self.shard_tokens)
            fitting = int(np.searchsorted(token_ends, token_ends[done] + room, "right")) - 1
            if fitting <= done or not self.shards:
                self._next_shard()
                fitting = int(np.searchsorted(token_ends, token_ends[done] + self.shard_tokens, "right")) - 1
                fitting = max(fitting, done + 1)
            self._write(tokens, sentence_ends, document_ends, done, fitting)
            done = fitting

    def _write(
        self, tokens: NDArray[Any], sentence_ends: NDArray[Any], document_ends: NDArray[Any], first: int, last: int
    ) -> None:
        shard = self.shards[-1]
        sentences = slice(document_ends[first], document_ends[last] + 1)
        ends = sentence_ends[sentences]
        in_tokens = shard["tokens"] + ends[1:] - ends[0]
        in_sentences = shard["sentences"] + document_ends[first + 1 : last + 1] - document_ends[first]
        self._put("tokens", tokens[ends[0] : ends[-1]].astype(self.dtype, copy=False).tobytes())
        self._put("sentences", in_tokens.astype("<u4").tobytes())
        self._put("documents", in_sentences.astype("<u4").tobytes())
        shard["tokens"], shard["sentences"] = int(in_tokens[-1]), int(in_sentences[-1])
        shard["documents"] += last - first

    def sync(self) -> None:
        """Bring everything appended to the disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def totals(self) -> dict[str, int]:
        """Documents, sentences and tokens in all shards."""
        return {kind: sum(shard[kind] for shard in self.shards) for kind in reversed(KINDS)}


def write_manifest(build: Path, shards: list[dict[str, int]], facts: dict[str, Any]) -> None:
    """Write the manifest into the build folder: from here on only `publish` is left to do.

    Args:
        build: The build folder with closed shard files and `tokenizer/`.
        shards: Counts of each shard.
        facts: Further entries.
    """
    names = [shard_file(kind, k) for k in range(len(shards)) for kind in KINDS]
    names += sorted(f"tokenizer/{file.name}" for file in (build / "tokenizer").iterdir() if file.is_file())
    files = {name: {"bytes": (build / name).stat().st_size, "sha256": sha256_file(build / name)} for name in names}
    write_json(build / MANIFEST, signed({"albertkit_store": FORMAT_VERSION, **facts, "shards": shards, "files": files}))


def check_waiting(build: Path, out: Path) -> None:
    """Make sure that a build whose last step was interrupted is what its manifest says.

    Raises:
        MachineError: broken-build.
    """
    manifest = read_json(build / MANIFEST, "store manifest")
    if not is_signed(manifest):
        raise MachineError(
            "broken-build", f"`{build / MANIFEST}` is not what was written", "start anew with --overwrite"
        )
    for name, entry in manifest["files"].items():
        file = build / name if (build / name).exists() else out / name
        if not file.exists() or sha256_file(file) != entry["sha256"]:
            raise MachineError(
                "broken-build", f"`{file}` is not what was written (sha256 differs)", "start anew with --overwrite"
            )


def publish(build: Path, out: Path) -> None:
    """Move a complete build to its place; the manifest comes last and makes it a store.

    May be killed at any moment and called again. A store that lay there before loses its manifest first, so that no
    mixture of the two is ever taken for a store.
    """
    if (out / MANIFEST).exists():
        (out / MANIFEST).unlink()
        sync_folder(out)
    names = {name for name in read_json(build / MANIFEST)["files"] if name.endswith(".bin")}
    for kind in KINDS:
        for file in out.glob(f"{kind}-*.bin"):
            if file.name not in names:
                file.unlink()
    for name in names:
        if (build / name).exists():
            os.replace(build / name, out / name)
    if (build / "tokenizer").exists():
        shutil.rmtree(out / "tokenizer", ignore_errors=True)
        os.replace(build / "tokenizer", out / "tokenizer")
    sync_folder(out)
    for journal in build.glob(f"{JOURNAL}*"):  # without it, what is left of the folder can only be rubbish
        journal.unlink()
    os.replace(build / MANIFEST, out / MANIFEST)
    sync_folder(out)
    shutil.rmtree(build)
