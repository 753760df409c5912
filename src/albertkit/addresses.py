"""Addresses that fsspec knows (`s3://…`, `https://…`), and what goes wrong with them stated as our errors."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from albertkit.errors import AlbertKitError, DataError, MachineError, MissingExtraError

_PACKAGES = {  # that fsspec needs: its name, and the protocols it is for
    protocol: package
    for package, protocols in {
        "s3fs": "s3 s3a",
        "gcsfs": "gs gcs",
        "adlfs": "az abfs abfss",
        "aiohttp": "http https",
        "paramiko": "sftp ssh",
        "smbprotocol": "smb",
    }.items()
    for protocol in protocols.split()
}


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is an address (`s3://…`) and not a path."""
    return "://" in os.fspath(location)


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """State what goes wrong with an address as one of our errors."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec says "not found" of a server that cannot be reached, or refuses, too
        if isinstance(cause, OSError) or getattr(cause, "status", 404) not in (404, 410):
            raise _unreachable(url, cause) from None
        raise DataError("not-found", f"no such file or folder: `{url}`", "check the address") from None
    except ImportError as error:
        package = _PACKAGES.get(url.split("://")[0])
        hint = f"pip install {package}" if package else "install the package it names"
        raise MissingExtraError("not-installed", f"`{url}` cannot be opened: {error}", hint) from None
    except ValueError as error:
        if isinstance(error, AlbertKitError):
            raise
        raise DataError("bad-value", f"`{url}` cannot be opened: {error}", "known: s3://, gs://, https://, …") from None
    except Exception as error:  # every protocol has errors of its own
        if isinstance(error, AlbertKitError) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise  # the disk here
        raise _unreachable(url, error) from None


def _unreachable(url: str, error: BaseException | None) -> MachineError:
    fact = f"`{url}`: {type(error).__name__}: {error}"
    return MachineError("unreachable", fact, "check address, network and rights, then run it again")


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it."""
    with reaching(url):
        system, path = fsspec.core.url_to_fs(url)
        return system, path.rstrip("/")
