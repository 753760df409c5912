"""Logs: one JSON object a line on stderr."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time (UTC), level, message, whatever `extra` it has, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN and value != ""}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr() -> None:
    """Send what this service and uvicorn have to say to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    levels = {
        "albertkit.serve": logging.INFO, "albertkit.model_folder": logging.INFO, "uvicorn": logging.WARNING,
        "asyncio": logging.ERROR,
    }  # fmt: skip
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
