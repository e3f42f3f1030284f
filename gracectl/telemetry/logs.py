"""Logs: one entry per line, as JSON for machines or as text for a terminal, with stable keys.

Callers use the standard `logging` and pass keys as `extra={"node": …, "pod": …}` (the standard library reserves a few
names, `name` and `message` among them). No value and no mismatch of arguments can lose a line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TextIO

import orjson

from gracectl.model.foreign import shortened, visible_json, visible_lines, without_secrets

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_STABLE = frozenset({"ts", "level", "logger", "message", "exception", "stack"})
# Subject of a message: the same words about another node are another message.
_IDENTITY = ("node", "pod", "key", "resource")
_HEAD, _TAIL = 6_000, 2_000
"""Characters of a message, of a value and of a traceback that are logged: errors may quote objects of megabytes."""
_WINDOW_SECONDS = 60.0
_WINDOWS = 4096
_LIBRARIES = {
    "aiohttp.access": logging.WARNING,  # a line for every request served
    # Messages about notifications, with the secrets of their URLs.
    "apprise": logging.CRITICAL + 1,
    "asyncio": logging.WARNING,
    # gracectl's own errors cover what it logs about kubeconfigs, with a remedy.
    "kubernetes_asyncio": logging.ERROR,
    "oauthlib": logging.WARNING,
    "requests_oauthlib": logging.WARNING,
    "urllib3": logging.INFO,  # paths of URLs
}

Monotonic = Callable[[], float]
LogFormat = Literal["auto", "json", "text"]


_NOWHERE = logging.NullHandler()


def silence() -> None:
    """Drop log messages until `configure`: the standard library would print warnings to stderr, into a command's
    output."""
    logging.getLogger("gracectl").addHandler(_NOWHERE)


def configure(
    stream: TextIO,
    *,
    format: LogFormat = "auto",
    level: str = "info",
    repeats: int = 10,
    monotonic: Monotonic = time.monotonic,  # noqa: TID251  logging starts before there is a Clock
) -> None:
    """Log everything from `level` on to `stream`; `auto` is text on a terminal and JSON elsewhere.

    At most `repeats` lines a minute, by `monotonic` (seconds), have the same message about the same subject; see
    RepeatFilter.
    """
    is_text = format == "text" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    handler.addFilter(RepeatFilter(repeats, monotonic))
    _leave_out_callers()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Change the lowest level that is logged."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name, least in _LIBRARIES.items():
        # A logger with its own level does not consult the root.
        logging.getLogger(name).setLevel(max(least, root.level))


def add_trace_ids(lookup: Callable[[Mapping[str, object]], str | None]) -> None:
    """Add `trace_id` to lines for which `lookup` finds a trace by their keys; it must be quick."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_TraceIds(lookup))


def mark_dry_run() -> None:
    """Begin every message with `dry run:`: what it says was done was not."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_mark)


def _mark(record: logging.LogRecord) -> bool:
    record.msg = f"dry run: {record.msg}"
    return True


class _TraceIds(logging.Filter):
    def __init__(self, lookup: Callable[[Mapping[str, object]], str | None]) -> None:
        super().__init__()
        self._lookup = lookup

    def filter(self, record: logging.LogRecord) -> bool:
        trace_id = self._lookup(vars(record))
        if trace_id is not None:
            record.trace_id = trace_id
        return True


class JsonFormatter(logging.Formatter):
    """`{"ts", "level", "logger", "message", …extras, "exception", "stack"}`; values unknown to JSON become text.

    `ts` is RFC 3339 with milliseconds, in UTC, by this machine's clock. An extra with the name of a stable key gets a
    `_` suffix.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, without line breaks."""
        entry: dict[str, Any] = {
            "ts": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for key, value in _extras(record).items():
            entry[f"{key}_" if key in _STABLE else key] = value
        if record.exc_info:
            entry["exception"] = _bounded(self.formatException(record.exc_info))
        if record.stack_info:
            entry["stack"] = record.stack_info
        try:
            line = _dump(entry)
        except TypeError:  # orjson: half a surrogate pair, an integer of 70 bits, a __str__ that fails…
            line = _dump({_text(key): _json_value(value) for key, value in entry.items()})
        return visible_json(without_secrets(line))


class TextFormatter(logging.Formatter):
    """`12:00:00.123 WARNING message  node=worker-1 pod=shop/web-1`, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; below it, indented, the rest of the message, and the traceback, if there is one.

        Control characters are escaped.
        """
        extras = "".join(f" {key}={_value_text(value)}" for key, value in _extras(record).items())
        first, *rest = _message(record).split("\n")
        lines = [
            f"{_instant(record)[11:23]} {record.levelname:<7} {first}{' ' if extras else ''}{extras}".replace(
                "\n", " "
            ),
            *(f"    {line}" for line in rest),
        ]
        if record.exc_info:
            lines.append(_bounded(self.formatException(record.exc_info)))
        if record.stack_info:
            lines.append(record.stack_info)
        return visible_lines(without_secrets("\n".join(lines)))


class RepeatFilter(logging.Filter):
    """Lets the same message about the same subject pass `limit` times a minute; debug messages always.

    Same: logger, level, message before its arguments are filled in, and the extras node, pod, key and resource. The
    first line of a later minute carries `suppressed`, the number of lines dropped. `monotonic` returns seconds.
    Thread-safe.
    """

    def __init__(self, limit: int, monotonic: Monotonic) -> None:
        super().__init__()
        self._limit = limit
        self._monotonic = monotonic
        # Reentrant: the garbage collector may run while it is locked, and asyncio logs from there.
        self._lock = threading.RLock()
        self._windows: OrderedDict[tuple[object, ...], _Window] = OrderedDict()  # by start time

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        if record.levelno <= logging.DEBUG:
            return True
        values = vars(record)
        about = tuple(_text(values[name]) if name in values else "" for name in _IDENTITY)
        same = (record.name, record.levelno, _text(record.msg), *about)
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


def _value_text(value: object) -> str:
    """Value as text: a map as `cordon:0.01,drain:3.2`."""
    if isinstance(value, dict):
        return ",".join(f"{_text(key)}:{_text(each)}" for key, each in value.items())
    return _text(value)


def _dump(entry: Mapping[str, Any]) -> str:
    return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _bounded(text: str) -> str:
    return shortened(text, _HEAD, _TAIL)


def _message(record: logging.LogRecord) -> str:
    return _bounded(_whole_message(record))


def _whole_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit, or have no text: the line is kept
        arguments = [record.args] if isinstance(record.args, Mapping) else record.args or ()
        return " ".join(map(_text, (record.msg, *arguments)))


def _json_value(value: object) -> object:
    """The value if JSON accepts it, else its text."""
    try:
        _dump({"value": value})
    except TypeError:
        return _text(value)
    return value


def _text(value: object) -> str:
    if type(value) is str and value.isascii():
        return value
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception:  # a value without a text must not lose the line
        return f"<{type(value).__name__}>"


def _instant(record: logging.LogRecord) -> str:
    seconds, milliseconds = divmod(int(record.created * 1000), 1000)
    return f"{_second(seconds)}.{milliseconds:03}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


def _extras(record: logging.LogRecord) -> Mapping[str, Any]:
    found = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {key: _bounded(value) if isinstance(value, str) else value for key, value in found.items()}


def _leave_out_callers() -> None:
    """Have records made without what no line shows (file, function, thread, process, task), an eighth of their time.

    As https://docs.python.org/3/howto/logging.html#optimization says.
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):  # Python 3.12
        logging.logAsyncioTasks = False
