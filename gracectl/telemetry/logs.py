"""Logs: one event a line, as JSON for machines or as text for a terminal, with stable keys.

Callers use the standard `logging` and hand keys over as `extra={"node": …, "pod": …}` (the standard library itself
reserves a few names, `name` and `message` among them). No value, however odd, and no arguments that do not fit their
message can lose a line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson

from gracectl.model.foreign import visible_json, visible_lines, without_secrets

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_STABLE = frozenset({"ts", "level", "logger", "message", "exception", "stack"})
# What a message is about: the same words about another node are another message.
_IDENTITY = ("node", "pod", "key", "resource")
_WINDOW_SECONDS = 60.0
_WINDOWS = 4096
_LIBRARIES = {
    "aiohttp.access": logging.WARNING,  # a line for every request that is served
    "asyncio": logging.WARNING,
    # What it says of kubeconfigs, our own errors say with a remedy.
    "kubernetes_asyncio": logging.ERROR,
}

Monotonic = Callable[[], float]
LogFormat = Literal["auto", "json", "text"]


_NOWHERE = logging.NullHandler()


def begin_silent() -> None:
    """Until somebody configures a log there is none: the standard library would print warnings to stderr, into whatever
    a command shows there."""
    logging.getLogger("gracectl").addHandler(_NOWHERE)


def configure(
    stream: TextIO,
    *,
    format: LogFormat = "auto",
    level: str = "info",
    repeats: int = 10,
    monotonic: Monotonic = time.monotonic,  # noqa: TID251  logs begin before there is a Clock, on a floor without one
) -> None:
    """Send everything from `level` on to `stream`; `auto` is text on a terminal and JSON elsewhere.

    At most `repeats` lines a minute, by `monotonic` (seconds), say the same about the same thing; see RepeatFilter.
    """
    is_text = format == "text" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    handler.addFilter(RepeatFilter(repeats, monotonic))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """From now on this is the least that is told."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name, least in _LIBRARIES.items():
        # A logger with a level of its own does not ask the root for one.
        logging.getLogger(name).setLevel(max(least, root.level))


def add_trace_ids(lookup: Callable[[Mapping[str, object]], str | None]) -> None:
    """From now on lines carry `trace_id`, the trace that `lookup` finds for their other keys; it must be quick."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_TraceIds(lookup))


class _TraceIds(logging.Filter):
    def __init__(self, lookup: Callable[[Mapping[str, object]], str | None]) -> None:
        super().__init__()
        self._lookup = lookup

    def filter(self, record: logging.LogRecord) -> bool:
        found = self._lookup(vars(record))
        if found is not None:
            record.trace_id = found
        return True


class JsonFormatter(logging.Formatter):
    """`{"ts", "level", "logger", "message", …extras, "exception", "stack"}`; what JSON does not know becomes its text.

    `ts` is RFC 3339 with milliseconds, in UTC, by this machine's clock. An extra that bears the name of a stable key
    gets a `_` behind it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, without a line break inside."""
        entry: dict[str, Any] = {
            "ts": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for key, value in _extras(record).items():
            entry[f"{key}_" if key in _STABLE else key] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        try:
            line = _dump(entry)
        except TypeError:  # orjson's refusal: half a surrogate pair, an integer of 70 bits, a __str__ that fails…
            line = _dump({_text(key): _shown(value) for key, value in entry.items()})
        return visible_json(without_secrets(line))


class TextFormatter(logging.Formatter):
    """`12:00:00.123 WARNING message  node=worker-1 pod=shop/web-1`, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; below it, indented, what else the message has, and the traceback, if there is one.

        Control characters are shown, not sent.
        """
        extras = "".join(f" {key}={_worded(value)}" for key, value in _extras(record).items())
        first, *rest = _message(record).split("\n")
        lines = [
            f"{_instant(record)[11:23]} {record.levelname:<7} {first}{' ' if extras else ''}{extras}".replace(
                "\n", " "
            ),
            *(f"    {line}" for line in rest),
        ]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        if record.stack_info:
            lines.append(record.stack_info)
        return visible_lines(without_secrets("\n".join(lines)))


class RepeatFilter(logging.Filter):
    """Lets the same message about the same thing pass `limit` times a minute; debug messages always.

    The same: logger, level, message before its arguments are filled in, and the extras node, pod, key and resource. The
    first line that passes in a later minute carries `suppressed`, the number of those that did not. `monotonic` tells
    the seconds. Any thread may log.
    """

    def __init__(self, limit: int, monotonic: Monotonic) -> None:
        super().__init__()
        self._limit = limit
        self._monotonic = monotonic
        # Reentrant: the garbage collector may run while we hold it, and asyncio logs what it finds there.
        self._lock = threading.RLock()
        self._windows: OrderedDict[tuple[object, ...], _Window] = OrderedDict()  # by the time of their beginning

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a line too many."""
        if record.levelno <= logging.DEBUG:
            return True
        about = tuple(_text(getattr(record, name, "")) for name in _IDENTITY)
        same = (record.name, record.levelno, record.msg if isinstance(record.msg, str) else _text(record.msg), *about)
        with self._lock:
            now = self._monotonic()
            window = self._windows.get(same)
            if window is None or now - window.begun >= _WINDOW_SECONDS:
                window = self._begin(same, record, now)
            window.count += 1
            return window.count <= self._limit

    def _begin(self, same: tuple[object, ...], record: logging.LogRecord, now: float) -> _Window:
        before = self._windows.pop(same, None)
        if before is not None and before.count > self._limit:
            record.suppressed = before.count - self._limit
        while len(self._windows) >= _WINDOWS:
            self._windows.popitem(last=False)
        self._windows[same] = window = _Window(now)
        return window


class _Window:
    __slots__ = ("begun", "count")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.count = 0


def _worded(value: object) -> str:
    """A value for people: a map as `cordon:0.01,drain:3.2`."""
    if isinstance(value, dict):
        return ",".join(f"{_text(key)}:{_text(each)}" for key, each in value.items())
    return _text(value)


def _dump(entry: Mapping[str, Any]) -> str:
    return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit, or cannot be shown: what was meant is still worth its line
        shown = [record.args] if isinstance(record.args, Mapping) else record.args or ()
        return " ".join(map(_text, (record.msg, *shown)))


def _shown(value: object) -> object:
    """The value itself if JSON takes it, else its text."""
    try:
        _dump({"value": value})
    except TypeError:
        return _text(value)
    return value


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
