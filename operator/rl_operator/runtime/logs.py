"""Structured logs: one JSON object per line, with run and attempt."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_FIELDS = ("namespace", "run", "attempt", "reason")


class JsonFormatter(logging.Formatter):
    """A record as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A record for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it."""
        where = "/".join(str(getattr(record, name)) for name in ("namespace", "run") if hasattr(record, name))
        number = getattr(record, "attempt", 0)
        attempt = f" #{number}" if number else ""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        text = f"{time} {record.levelname:7} {where}{attempt}{' ' if where else ''}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up(style: str, level: str) -> None:
    """Send all logs to standard error; Kopf's own only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("rl_operator").setLevel(level.upper())
