"""Stores at any address that fsspec knows: uploaded with the manifest last, fetched once into a cache and checked.

A folder with a manifest is a whole store, there as here. What is killed half-way goes on at the first file that is missing.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from albertkit.addresses import file_system, reaching
from albertkit.corpus.store_format import KINDS, MANIFEST
from albertkit.errors import CheckpointError, DataError
from albertkit.files import atomic_file, cache_folder, read_json, remove_leftovers, sha256_bytes, sha256_file
from albertkit.frame.job import Job

_PARTIAL = ".partial-"
_NAME = re.compile(rf"(?:(?:{'|'.join(KINDS)})-\d{{5,}}\.bin|tokenizer/[\w.-]+)\Z")


def working_folder(url: str) -> Path:
    """Return where a store is built before it is uploaded to an address; always the same, so that a build goes on."""
    return cache_folder() / "builds" / f"{_last_name(url)}-{sha256_bytes(url.rstrip('/').encode())[:16]}"


def _last_name(url: str) -> str:
    return re.sub(r"[^\w.-]", "_", url.rstrip("/").rsplit("/", 1)[-1]) or "store"


# --- up -----------------------------------------------------------------------------------------------------------------


def remote_manifest(url: str) -> bytes | None:
    """Return the manifest of the store at an address; None if there is no store."""
    system, root = file_system(url)
    with reaching(url):
        with suppress(FileNotFoundError):
            return system.cat_file(f"{root}/{MANIFEST}")
        with suppress(FileNotFoundError):
            foreign = [name for name in _names(system, root) if not _NAME.match(name) and _PARTIAL not in name]
            if foreign:
                raise CheckpointError(
                    "exists",
                    f"`{url}` holds other files and no store, such as `{foreign[0]}`",
                    "choose a new folder for --out",
                )
    return None


def _names(system: Any, root: str) -> list[str]:
    start = system._strip_protocol(root).rstrip("/") + "/"
    return [name.removeprefix(start) for name in system.find(root)]


def upload_store(folder: Path, url: str, progress: bool) -> None:
    """Upload a whole store to an address. A store that lies there loses its manifest first and is replaced.

    The files that have been uploaded are noted next to the folder, for the next call after an interruption.
    """
    system, root = file_system(url)
    files = read_json(folder / MANIFEST)["files"]
    key = {"store": sha256_file(folder / MANIFEST)}
    with (
        Job(
            folder.parent / "upload",
            key,
            overwrite=True,
            title=f"uploading to {url}",
            total=len(files),
            unit="files",
            progress=progress,
        ) as job,
        reaching(url),
    ):
        system.invalidate_cache()
        if system.exists(f"{root}/{MANIFEST}"):
            system.rm_file(f"{root}/{MANIFEST}")
        system.makedirs(f"{root}/tokenizer", exist_ok=True)
        there = set(_names(system, root))
        for name in there - set(files):  # of a larger store that lay there, or cut off
            if _NAME.match(name) or _PARTIAL in name:
                system.rm_file(f"{root}/{name}")
        for name in files:
            if name in there and job.is_done(name):
                continue
            system.put_file(str(folder / name), f"{root}/{name}")
            job.mark(name)
            job.progress.update(job.progress.done + 1)
        system.put_file(str(folder / MANIFEST), f"{root}/{_PARTIAL}{MANIFEST}")
        system.mv(f"{root}/{_PARTIAL}{MANIFEST}", f"{root}/{MANIFEST}")


# --- down ---------------------------------------------------------------------------------------------------------------


def fetch_store(url: str) -> Path:
    """Return the local copy of a store at an address, fetched if it is not there yet, every file checked by its sha256.

    A copy is found by the manifest, which is read every time: a store that was replaced at its address is fetched again.
    Of several processes that ask at once, one fetches and the others wait.
    """
    system, root = file_system(url)
    try:
        with reaching(url):
            data = system.cat_file(f"{root}/{MANIFEST}")
    except DataError as error:
        if error.slug != "not-found":
            raise
        raise DataError(
            "wrong-kind", f"`{url}` holds no {MANIFEST}", f"make a store with `albertkit corpus build … --out {url}`"
        ) from None
    files = _files_of(data, url)
    folder = cache_folder() / "stores" / f"{_last_name(url)}-{sha256_bytes(data)[:16]}"
    if not (folder / MANIFEST).is_file():
        (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / MANIFEST).is_file():
                remove_leftovers(folder)
                remove_leftovers(folder / "tokenizer")
                for name, entry in files.items():
                    _fetch(system, f"{root}/{name}", folder / name, entry, f"{url.rstrip('/')}/{name}")
                with atomic_file(folder / MANIFEST) as stream:
                    stream.write(data)
    return folder


def _files_of(data: bytes, url: str) -> dict[str, dict[str, Any]]:
    try:
        files = json.loads(data)["files"]
        for name, entry in files.items():
            if not _NAME.match(name) or not isinstance(entry["bytes"], int) or len(entry["sha256"]) != 64:
                raise ValueError(name)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            "wrong-kind", f"`{url}/{MANIFEST}` is not the manifest of a store", "check the address"
        ) from None
    return files


def _fetch(system: Any, remote: str, target: Path, entry: dict[str, Any], url: str) -> None:
    if target.is_file() and target.stat().st_size == entry["bytes"]:
        return  # it took its name after its check
    partial = target.parent / f"{_PARTIAL}{target.name}"
    try:
        with reaching(url):
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
