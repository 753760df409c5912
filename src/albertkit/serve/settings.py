"""Settings of the service."""

import ipaddress
import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from albertkit.engines.engine import PRECISIONS, Precision
from albertkit.errors import ConfigError
from albertkit.tasks.exits import ExitRule

MEGABYTE = 1_000_000
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How models are served.

    Attributes:
        host: Address to listen on. Any other than this machine's own asks for `api_key`, or for `no_key`.
        port: To listen on; 0 for a free one.
        precision: As `load_engine`, of all models.
        device: auto, cpu, cuda or cuda:N, of all models.
        force: Serve int8 of models that no longer say in it what they say in fp32.
        exits: A rule for leaving early, such as entropy:0.3, of the models that were trained with exits.
        threads: Of the process that runs the models; 0 for all cores.
        batch_tokens: Most tokens computed at once; sequences of many requests share a batch.
        queue_tokens: Tokens that may wait for the worker; a request beyond them is refused with 429.
        timeout: Seconds a request may take, from its first byte to its answer; then 504.
        max_megabytes: Largest body of a request, in millions of bytes.
        max_upload_megabytes: Largest upload of a video, in millions of bytes.
        api_key: What clients send as `Authorization: Bearer KEY`; None lets everybody in.
        no_key: Listen on other addresses without a key: something in front of the service decides who may come in.
        allow_hosts: Names under which the service is asked; `*` for any. Without them a service on loopback without a key
            answers only to localhost and loopback addresses, every other one to any name.
        allow_origins: Origins such as https://example.org whose pages may ask; `*` for any.
        drain_seconds: Seconds after SIGTERM in which `/ready` says 503 and requests are still accepted.
        log_level: debug, info, warning or error.

    Raises:
        ConfigError: bad-value, bad-precision, no-api-key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    precision: Precision = "auto"
    device: str = "auto"
    force: bool = False
    exits: str | None = None
    threads: int = 0
    batch_tokens: int = 4096
    queue_tokens: int = 262_144
    timeout: float = 60.0
    max_megabytes: float = 4.0
    max_upload_megabytes: float = 100.0
    api_key: str | None = field(default=None, repr=False)
    no_key: bool = False
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    drain_seconds: float = 1.0
    log_level: LogLevel | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), 0 if one.name in ("port", "threads", "drain_seconds") else 1e-3
            if isinstance(value, int | float) and not isinstance(value, bool) and not least <= value < math.inf:
                wanted = "a finite number, above 0" if least else "0 or more"
                raise ConfigError("bad-value", f"{one.name} is {value}, it must be {wanted}", "leave it out")
        if self.port > 65535:
            raise ConfigError("bad-value", f"port {self.port} is above 65535", "use 8000, or 0 for a free one")
        if self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise ConfigError("bad-precision", f"there is no precision `{self.precision}`", f"use one of {known}")
        if self.log_level not in (None, *get_args(LogLevel)):
            known = ", ".join(get_args(LogLevel))
            raise ConfigError("bad-value", f"there is no log level `{self.log_level}`", f"use one of {known}")
        if self.exits is not None:
            ExitRule.parse(self.exits)
        for name in ("allow_hosts", "allow_origins"):
            object.__setattr__(self, name, tuple(one.lower().rstrip("/") for one in getattr(self, name)))
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise ConfigError(
                "bad-value", "the API key is empty, or not of printable ASCII", "put one line into its file"
            )
        if not (is_loopback(self.host) or self.api_key or self.no_key):
            raise ConfigError(
                "no-api-key", f"`{self.host}` can be reached from other machines, and there is no API key",
                "name a file with one: --api-key-file FILE; or say --no-key if something in front decides who may come in",
            )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_key(file: Path | None) -> str | None:
    """The key in a file, else in the environment's `ALBERTKIT_API_KEY`, else None.

    Raises:
        OSError: If the file cannot be read.
    """
    return os.environ.get("ALBERTKIT_API_KEY") or None if file is None else file.read_text(encoding="utf-8").strip()
