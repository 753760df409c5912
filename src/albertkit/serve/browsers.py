"""What web pages of strangers may do through a visitor's browser: nothing.

A page can send a form anywhere, and can let its own name point to 127.0.0.1 (DNS rebinding). The first is seen from `Origin`
and `Sec-Fetch-Site`, the second from `Host`.
"""

from urllib.parse import urlsplit

from albertkit.serve.refusals import ServiceError
from albertkit.serve.settings import ServeSettings, is_loopback

PROBES = {"/health", "/ready"}  # balancers ask by address; they say nothing of models and texts
_READING = {"GET", "HEAD", "OPTIONS"}
ANY = "*"


class Visitors:
    """Who may ask, by the names in a request's headers.

    Args:
        settings: `allow_hosts` and `allow_origins`. Without `allow_hosts` only a service that listens on loopback without a
            key looks at `Host`: a key cannot be guessed, and behind other addresses something else decides.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._hosts, self._origins = settings.allow_hosts, settings.allow_origins
        self._looks_at_host = bool(self._hosts) or (is_loopback(settings.host) and settings.api_key is None)

    def refuse(self, method: str, path: str, headers: dict[bytes, bytes]) -> ServiceError | None:
        """The error for a request that a stranger's page may have sent; None for all others."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._looks_at_host and path not in PROBES and not self._is_known(host):
            return ServiceError(
                "foreign-host", f"the service is not known as `{host[:80]}`",
                f"albertkit serve … --allow-host {_name(host)[:80] or 'NAME'}", status=403,
            )  # fmt: skip
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        site = headers.get(b"sec-fetch-site", b"").decode("latin-1").lower()
        if method in _READING or self._is_own(origin, site, host):
            return None
        return ServiceError(
            "foreign-origin", f"a page of `{origin[:80] or site[:80]}` sent this request",
            f"albertkit serve … --allow-origin {origin[:80] or 'https://HOST'}", status=403,
        )  # fmt: skip

    def _is_known(self, host: str) -> bool:
        name = _name(host)
        return ANY in self._hosts or name in self._hosts or is_loopback(name) or name.endswith(".localhost")

    def _is_own(self, origin: str, site: str, host: str) -> bool:
        if origin in self._origins or ANY in self._origins:
            return True
        if site:  # the browser's own word, right behind proxies, too
            return site in ("same-origin", "none")
        return not origin or urlsplit(origin).netloc == host


def _name(host: str) -> str:
    """A host without its port, brackets, and final dot."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".")
