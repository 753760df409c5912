"""Stores at any address that fsspec knows: uploaded with the manifest last, fetched once into a cache and checked.

A folder with a manifest is a whole store, there as here. What is killed half-way goes on at the first file that is missing.
"""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from albertkit.addresses import cache_folder, file_system, reaching
from albertkit.corpus.store import KINDS, MANIFEST
from albertkit.errors import DataError
from albertkit.files import atomic_file, read_json, remove_leftovers, sha256_bytes, sha256_file, write_json

_UPLOADED = "uploaded.json"
_PARTIAL = ".partial-"
_NAME = re.compile(rf"(?:(?:{'|'.join(KINDS)})-\d{{5,}}\.bin|tokenizer/[\w.-]+)\Z")


def working_folder(url: str) -> Path:
    """Where a store is built that is to lie at an address; the same for the same address, so that a build goes on."""
    return cache_folder() / "builds" / f"{_last_name(url)}-{sha256_bytes(url.rstrip('/').encode())[:16]}"


def _last_name(url: str) -> str:
    return re.sub(r"[^\w.-]", "_", url.rstrip("/").rsplit("/", 1)[-1]) or "store"


# --- up -----------------------------------------------------------------------------------------------------------------


def remote_manifest(url: str) -> bytes | None:
    """The manifest of the store at an address; None if there is no store.

    Raises:
        DataError: folder-not-empty, if there is no store but something else.
    """
    system, root = file_system(url)
    with reaching(url):
        with suppress(FileNotFoundError):
            return system.cat_file(f"{root}/{MANIFEST}")
        with suppress(FileNotFoundError):
            foreign = [name for name in _names(system, root) if not _NAME.match(name) and _PARTIAL not in name]
            if foreign:
                raise DataError(
                    "folder-not-empty", f"`{url}` holds other files and no store, such as `{foreign[0]}`",
                    "choose a new folder for --out",
                )  # fmt: skip
    return None


def _names(system: Any, root: str) -> list[str]:
    start = system._strip_protocol(root).rstrip("/") + "/"
    return [name.removeprefix(start) for name in system.find(root)]


def upload_store(folder: Path, url: str, say: Callable[[str], None]) -> None:
    """Bring a store to an address. A store that lies there loses its manifest first and is replaced.

    Args:
        folder: A whole store. What has been uploaded is noted beside it, for the next call after an interruption.
        url: Address of its folder.
        say: Shows a line.
    """
    system, root = file_system(url)
    files = read_json(folder / MANIFEST)["files"]
    note = folder.parent / _UPLOADED
    fingerprint = sha256_file(folder / MANIFEST)
    noted = read_json(note) if note.exists() else {}
    uploaded = noted["names"] if noted.get("store") == fingerprint else []
    with reaching(url):
        system.invalidate_cache()
        if system.exists(f"{root}/{MANIFEST}"):
            system.rm_file(f"{root}/{MANIFEST}")
        system.makedirs(f"{root}/tokenizer", exist_ok=True)
        there = set(_names(system, root))
        for name in there - set(files):  # of a larger store that lay there, or cut off
            if _NAME.match(name) or _PARTIAL in name:
                system.rm_file(f"{root}/{name}")
        left = [name for name in files if name not in uploaded or name not in there]
        say(f"uploading {len(left):,} files, {sum(files[name]['bytes'] for name in left) / 1e6:,.1f} MB, to {url}")
        for name in left:
            system.put_file(str(folder / name), f"{root}/{name}")
            uploaded.append(name)
            write_json(note, {"store": fingerprint, "names": uploaded})
        system.put_file(str(folder / MANIFEST), f"{root}/{_PARTIAL}{MANIFEST}")
        system.mv(f"{root}/{_PARTIAL}{MANIFEST}", f"{root}/{MANIFEST}")


# --- down ---------------------------------------------------------------------------------------------------------------


def fetch_store(url: str) -> Path:
    """The local copy of a store at an address, fetched if it is not there yet, every file checked by its sha256.

    A copy is found by the manifest, which is read every time: when the store at the address is replaced, it is fetched anew.
    Of several processes that ask at once, one fetches and the others wait.

    Raises:
        DataError: not-a-store; broken-store, if a file is not what the manifest says.
        MachineError: cannot-reach, disk-full.
    """
    system, root = file_system(url)
    try:
        with reaching(url):
            data = system.cat_file(f"{root}/{MANIFEST}")
    except DataError as error:
        if error.slug != "not-found":
            raise
        raise DataError(
            "not-a-store", f"`{url}` holds no {MANIFEST}", f"make a store with `albertkit corpus build … --out {url}`"
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
        raise DataError("not-a-store", f"`{url}/{MANIFEST}` is no manifest of a store", "check the address") from None
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
                "broken-store", f"`{url}` is not what was written (sha256 differs)",
                "run it again if the store was being replaced; else upload it again, or build it anew with --overwrite",
            )  # fmt: skip
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
