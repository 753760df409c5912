"""Models over HTTP, and a page to look inside."""

from albertkit.serve.server import serve
from albertkit.serve.settings import ServeSettings

__all__ = ["ServeSettings", "serve"]
