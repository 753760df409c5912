"""Options of `albertkit serve`: how models are served."""

import ipaddress
import os
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from albertkit.command import SEVERAL, BatchOptions, DeviceOptions, check_values
from albertkit.errors import ConfigError
from albertkit.validation import NotNegative, Positive, Range

MEGABYTE = 1_000_000
API_KEY = "ALBERTKIT_API_KEY"  # variable of the environment
LogLevel = Literal["debug", "info", "warning", "error"]
_Amount = Annotated[float, Range(1e-3)]


@dataclass(frozen=True)
class ServeOptions(DeviceOptions, BatchOptions):
    """Serve models over HTTP: OpenAI's /v1/embeddings, /fill-mask, /classify and others, a web page, /openapi.json, /metrics.

    Stops on Ctrl-C or SIGTERM after answering all accepted requests.

    Attributes:
        models: Model folders, NAME=FOLDER, or org/name of the hub. A request without a model name
            goes to the first model that can answer it.
        host: Address to listen on. One that other machines can reach needs an API key, or --no-key.
        port: Port to listen on; 0: a free one.
        api_key_file: File with the key that clients send as `Authorization: Bearer KEY`. Default:
            the value of ALBERTKIT_API_KEY, or no key.
        no_key: Allow non-local addresses without an API key, for example behind a proxy that
            controls access.
        allow_host: Accepted `Host` header, such as example.org; `*` accepts any. May be repeated.
            Without an API key a local service accepts only localhost and loopback addresses, to
            prevent DNS rebinding.
        allow_origin: Accepted `Origin` of other sites' pages, such as https://example.org; `*`
            accepts any. May be repeated.
        force: Serve models in int8 even if their outputs differ from fp32.
        exits: Early exit rule for models trained with --exits: patience:N or entropy:SHARE. Measure
            it with `albertkit early-exit`.
        threads: Threads of the process that runs the models. 0: all cores.
        batch_tokens: Maximum tokens per batch; sequences of different requests share a batch.
        queue_tokens: Maximum tokens in the queue; further requests get status 429.
        timeout: Seconds a request may take before status 504. A request that cannot finish in time
            gets 429 at once.
        max_megabytes: Maximum request body, in MB.
        max_upload_megabytes: Maximum video upload, in MB.
        drain_seconds: Seconds after SIGTERM in which /ready returns 503 while requests are still
            accepted.
        log_level: Log level: debug, info, warning or error. Requests are info, probes debug.
            Default: info, without requests on a terminal.
    """

    models: Annotated[tuple[str, ...], SEVERAL]
    _: KW_ONLY
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = 8000
    api_key_file: Path | None = None
    no_key: bool = False
    allow_host: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()
    force: bool = False
    exits: str | None = None
    threads: NotNegative = 0
    batch_tokens: Positive = 4096
    queue_tokens: Positive = 262_144
    timeout: _Amount = 60.0
    max_megabytes: _Amount = 4.0
    max_upload_megabytes: _Amount = 100.0
    drain_seconds: Annotated[float, Range(0)] = 1.0
    log_level: LogLevel | None = None

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("allow_host", "allow_origin"):
            object.__setattr__(
                self, name, tuple(option.lower().rstrip("/") for option in getattr(self, name))
            )
        key = self.api_key  # read now, to report its errors first
        if not (is_loopback(self.host) or key or self.no_key):
            raise ConfigError(
                "not-allowed",
                f"`{self.host}` can be reached from other machines, and there is no API key",
                "name a file with one: --api-key-file FILE; or use --no-key if something in front decides who may come in",
            )

    @cached_property
    def api_key(self) -> str | None:
        """Return the key in the file, else in the environment's `ALBERTKIT_API_KEY`, else None."""
        path = self.api_key_file
        if path is None and not os.environ.get(API_KEY):
            return None
        text = os.environ[API_KEY] if path is None else Path(path).read_text("utf-8", "replace")
        key = text.strip()  # as the key of a header is
        if not (key.isascii() and key.isprintable() and key):
            hint = f"put one line into {path or API_KEY}"
            raise ConfigError("bad-value", "the API key is empty, or not of printable ASCII", hint)
        return key

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the key: processes that run models need none, and videos of unknown clients are decoded there."""
        return {name: value for name, value in vars(self).items() if name != "api_key"}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
