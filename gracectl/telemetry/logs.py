"""Logs: one event a line, as JSON for machines or as text for a terminal, with stable keys.

Callers use the standard `logging` and hand keys over as `extra={"node": …, "pod": …}`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

LogFormat = Literal["auto", "json", "text"]


def configure(stream: TextIO, *, format: LogFormat = "auto", level: str = "info") -> None:
    """Send everything from `level` on to `stream`; `auto` is text on a terminal and JSON elsewhere."""
    is_text = format == "text" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # It reports every failed connection, which our own client does in words of its own.
    logging.getLogger("kubernetes_asyncio").setLevel("ERROR")


class JsonFormatter(logging.Formatter):
    """`{"ts", "level", "logger", "message", …extras, "exception"}`; what JSON does not know becomes its text."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, without a line break inside."""
        entry: dict[str, Any] = {
            "ts": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class TextFormatter(logging.Formatter):
    """`12:00:00.123 WARNING message  node=worker-1 pod=shop/web-1`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback, if there is one, below it."""
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        line = f"{_instant(record)[11:23]} {record.levelname:<7} {record.getMessage()}{' ' if extras else ''}{extras}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extras(record: logging.LogRecord) -> Mapping[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}
