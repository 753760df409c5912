"""Write the log of the service to stderr: plain lines on a terminal, one JSON object a line elsewhere.

Paths, and the errors of libraries, repeat what clients sent. A terminal obeys control characters,
and a line feed forges a line: both are written as escapes, JSON's or Python's.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from albertkit.printable import escape_json, escape_line
from albertkit.serve.options import LogLevel

REQUESTS = "albertkit.serve.requests"  # the logger of a line for every request
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}
_REQUEST = "{client} {method} {path} {status} {ms} ms {model} {tokens} tokens"


class JsonFormatter(logging.Formatter):
    """Write a record as one JSON object: time (UTC), level, message, its `extra`, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time,
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= _extra_fields(record)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(line, default=str))


class PlainFormatter(logging.Formatter):
    """Write a record as a line for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the line."""
        time, extra = (
            datetime.fromtimestamp(record.created).strftime("%H:%M:%S"),
            _extra_fields(record),
        )
        message, trace = record.getMessage(), extra.pop("trace", "")
        if message == "listening":
            text = (
                f"serving {', '.join(extra['models'])}; open {extra['url']} as soon as it is ready"
            )
        elif message == "request":
            text = _REQUEST.format(**{"model": "", **extra})
        else:
            text = " ".join([message, *(f"{name}={value}" for name, value in extra.items())])
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        if record.exc_info:
            trace = self.formatException(record.exc_info)
        # Lines of a trace are set in: the message of an exception may have lines that look like the
        # log's.
        lines = [
            f"{time} {level}{escape_line(text)}",
            *(f"    {escape_line(line)}" for line in trace.splitlines()),
        ]
        return "\n".join(lines)


def log_to_stderr(level: LogLevel | None = None) -> None:
    """Log this process to stderr: the service, uvicorn, and warnings of other libraries.

    Without a level a terminal gets no requests: a line a request hides the rest.
    """
    is_terminal = sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if is_terminal else JsonFormatter())
    service_level = logging.getLevelName((level or "info").upper())
    requests = logging.WARNING if is_terminal and level is None else service_level
    levels = {
        "albertkit.serve": service_level,
        REQUESTS: requests,
        "albertkit.model_paths": service_level,
        "albertkit.jit": service_level,
        "albertkit.engines": service_level,
        "uvicorn": logging.WARNING,
        "asyncio": logging.ERROR,
        "py.warnings": logging.WARNING,
    }
    logging.captureWarnings(True)
    logging.lastResort = handler  # for loggers without handlers, such as python-multipart's
    for name, min_level in levels.items():
        logger = logging.getLogger(name)
        logger.setLevel(min_level)
        if name != REQUESTS:
            logger.handlers, logger.propagate = [handler], False


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value for name, value in vars(record).items() if name not in _PLAIN and value != ""
    }
