"""Logs on stderr: lines for people on a terminal, one JSON object a line elsewhere."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from albertkit.serve.settings import LogLevel

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}
_REQUEST = "{client} {method} {path} {status} {ms} ms {model} {tokens} tokens"


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time (UTC), level, message, whatever `extra` it has, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= _extra(record)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class PlainFormatter(logging.Formatter):
    """A record as a line for people; their address to open, and a request in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when, extra = datetime.fromtimestamp(record.created).strftime("%H:%M:%S"), _extra(record)
        message = record.getMessage()
        if message == "listening":
            told = f"serving {', '.join(extra['models'])}; open {extra['url']} as soon as it is ready"
        elif message == "request":
            told = _REQUEST.format(**{"model": "", **extra})
        else:
            trace = extra.pop("trace", "")
            told = " ".join([message, *(f"{name}={value}" for name, value in extra.items())]) + (trace and f"\n{trace}")
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{when} {level}{told}{trace}"


def log_to_stderr(level: LogLevel | None = None) -> None:
    """Send what this service and uvicorn have to say to stderr.

    Args:
        level: The least that is logged. Requests are info, those of probes debug. Default: info; on a terminal, where a line
            a request hides the rest, requests only if a level is given.
    """
    is_terminal = sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if is_terminal else JsonFormatter())
    own = logging.getLevelName((level or "info").upper())
    requests = logging.WARNING if is_terminal and level is None else own
    for name, least in (
        ("albertkit.serve", own), ("albertkit.serve.observing", requests),
        ("albertkit.model_folder", own), ("uvicorn", logging.WARNING), ("asyncio", logging.ERROR),
    ):  # fmt: skip
        logger = logging.getLogger(name)
        logger.setLevel(least)
        if name != "albertkit.serve.observing":
            logger.handlers, logger.propagate = [handler], False


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN and value != ""}
