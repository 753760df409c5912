"""Options of `albertkit serve`: how models are served."""

import ipaddress
import math
import os
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, get_args

from albertkit.errors import ConfigError
from albertkit.frame.command import SEVERAL

MEGABYTE = 1_000_000
LogLevel = Literal["debug", "info", "warning", "error"]
_MAY_BE_ZERO = ("port", "threads", "drain_seconds")


@dataclass(frozen=True)
class ServeOptions:
    """Serve models over HTTP: OpenAI's /v1/embeddings, /fill-mask, /classify and the others, a page at /, /docs, /metrics.

    Ends at Ctrl-C or SIGTERM, after every accepted request has its answer.

    Attributes:
        models: Folders of models, or NAME=FOLDER; also org/name of the hub. A request without a name is answered by the first
            model that can.
        host: Address to listen on. An address that other machines can reach needs an API key, or --no-key.
        port: Port to listen on; 0 for a free one.
        api_key_file: File with the key that clients send as `Authorization: Bearer KEY`. Default: what ALBERTKIT_API_KEY
            holds, or no key.
        no_key: Listen on other addresses without an API key, for example behind a proxy that controls access.
        allow_host: Accepted `Host` header, such as example.org; may be repeated; `*` accepts any. Without an API key a local
            service accepts only localhost and loopback addresses, to prevent DNS rebinding.
        allow_origin: Accepted `Origin` of other sites' pages, such as https://example.org; may be repeated; `*` accepts any.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        force: Serve models in int8 although their answers differ from those in fp32.
        exits: Early exit: patience:N or entropy:SHARE, of the models trained with exits; `albertkit early-exit` measures it.
        threads: Threads of the process that runs the models. Default: all cores.
        batch_tokens: Most tokens computed at once; sequences of many requests share a batch.
        queue_tokens: Most tokens that may wait in the queue; further requests are refused with 429.
        timeout: Seconds a request may take; then 504. One that cannot be finished in them is refused with 429 at once.
        max_megabytes: Largest body of a request.
        max_upload_megabytes: Largest upload of a video.
        drain_seconds: Seconds after SIGTERM in which /ready says 503 and requests are still accepted.
        log_level: debug, info, warning or error; requests are info, probes debug. Default: info, on a terminal without the
            requests.
    """

    models: Annotated[tuple[str, ...], SEVERAL]
    _: KW_ONLY
    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: Path | None = None
    no_key: bool = False
    allow_host: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    device: str = "auto"
    force: bool = False
    exits: str | None = None
    threads: int = 0
    batch_tokens: int = 4096
    queue_tokens: int = 262_144
    timeout: float = 60.0
    max_megabytes: float = 4.0
    max_upload_megabytes: float = 100.0
    drain_seconds: float = 1.0
    log_level: LogLevel | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), 0 if one.name in _MAY_BE_ZERO else 1e-3
            if isinstance(value, int | float) and not isinstance(value, bool) and not least <= value < math.inf:
                wanted = "a finite number, above 0" if least else "0 or more"
                raise ConfigError("bad-value", f"{one.name} is {value}, it must be {wanted}", "leave it out")
        if self.port > 65535:
            raise ConfigError("bad-value", f"port {self.port} is above 65535", "use 8000, or 0 for a free one")
        if self.log_level not in (None, *get_args(LogLevel)):
            known = ", ".join(get_args(LogLevel))
            raise ConfigError("unknown-name", f"there is no log level `{self.log_level}`", f"use one of {known}")
        for name in ("allow_host", "allow_origin"):
            object.__setattr__(self, name, tuple(one.lower().rstrip("/") for one in getattr(self, name)))
        key = self.api_key  # read now, so that what is wrong with it is reported first
        if not (is_loopback(self.host) or key or self.no_key):
            raise ConfigError(
                "not-allowed",
                f"`{self.host}` can be reached from other machines, and there is no API key",
                "name a file with one: --api-key-file FILE; or use --no-key if something in front decides who may come in",
            )

    @cached_property
    def api_key(self) -> str | None:
        """Return the key in the file, else in the environment's `ALBERTKIT_API_KEY`, else None."""
        if self.api_key_file is None:
            key = os.environ.get("ALBERTKIT_API_KEY") or None
        else:
            key = self.api_key_file.read_text(encoding="utf-8").strip()
        if key is not None and not (key.isascii() and key.isprintable() and key):
            hint = "put one line into its file"
            raise ConfigError("bad-value", "the API key is empty, or not of printable ASCII", hint)
        return key


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
