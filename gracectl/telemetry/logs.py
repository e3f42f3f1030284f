"""Logs: one event a line, as JSON for machines or as text for a terminal, with stable keys.

Callers use the standard `logging` and hand keys over as `extra={"node": …, "pod": …}` (the standard library itself
reserves a few names, `name` and `message` among them). No value, however odd, can lose a line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_STABLE = frozenset({"ts", "level", "logger", "message", "exception"})
# What a message is about: the same words about another node are another message.
_IDENTITY = ("node", "pod", "key", "resource")
_WINDOW_SECONDS = 60.0
_WINDOWS = 4096

LogFormat = Literal["auto", "json", "text"]


def configure(stream: TextIO, *, format: LogFormat = "auto", level: str = "info", repeats: int = 10) -> None:
    """Send everything from `level` on to `stream`; `auto` is text on a terminal and JSON elsewhere.

    At most `repeats` lines a minute say the same about the same thing; see RepeatFilter.
    """
    is_text = format == "text" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    handler.addFilter(RepeatFilter(repeats))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # It reports every failed connection, which our own client does in words of its own.
    logging.getLogger("kubernetes_asyncio").setLevel("ERROR")


class JsonFormatter(logging.Formatter):
    """`{"ts", "level", "logger", "message", …extras, "exception"}`; what JSON does not know becomes its text.

    `ts` is RFC 3339 with milliseconds, in UTC, by this machine's clock. An extra that bears the name of a stable key
    gets a `_` behind it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, without a line break inside."""
        entry: dict[str, Any] = {
            "ts": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _extras(record).items():
            entry[f"{key}_" if key in _STABLE else key] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        try:
            return _dump(entry)
        except TypeError:  # orjson's refusal: half a surrogate pair, an integer of 70 bits, a __str__ that fails…
            return _dump({_text(key): _text(value) for key, value in entry.items()})


class TextFormatter(logging.Formatter):
    """`12:00:00.123 WARNING message  node=worker-1 pod=shop/web-1`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback, if there is one, below it."""
        extras = "".join(f" {key}={_text(value)}" for key, value in _extras(record).items())
        line = f"{_instant(record)[11:23]} {record.levelname:<7} {record.getMessage()}{' ' if extras else ''}{extras}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class RepeatFilter(logging.Filter):
    """Lets the same message about the same thing pass `limit` times a minute; debug messages always.

    The same: logger, level, message before its arguments are filled in, and the extras node, pod, key and resource. The
    first line that passes in a later minute carries `suppressed`, the number of those that did not. The time is the
    records' own.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._windows: dict[tuple[object, ...], _Window] = {}  # by the time of their beginning

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a line too many."""
        if record.levelno <= logging.DEBUG:
            return True
        about = tuple(_text(getattr(record, name, "")) for name in _IDENTITY)
        same = (record.name, record.levelno, record.msg if isinstance(record.msg, str) else _text(record.msg), *about)
        window = self._windows.get(same)
        # A wall clock may have been set back; such a window is over, too.
        if window is None or not 0 <= record.created - window.begun < _WINDOW_SECONDS:
            window = self._begin(same, record)
        window.count += 1
        return window.count <= self._limit

    def _begin(self, same: tuple[object, ...], record: logging.LogRecord) -> _Window:
        before = self._windows.pop(same, None)
        if before is not None and before.count > self._limit:
            record.suppressed = before.count - self._limit
        while len(self._windows) >= _WINDOWS:
            del self._windows[next(iter(self._windows))]
        self._windows[same] = window = _Window(record.created)
        return window


class _Window:
    __slots__ = ("begun", "count")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.count = 0


def _dump(entry: Mapping[str, Any]) -> str:
    return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _text(value: object) -> str:
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception:  # it is not ours, and a value that cannot be shown must not lose the line that mentions it
        return f"<{type(value).__name__}>"


def _instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extras(record: logging.LogRecord) -> Mapping[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}
