"""Log lines: stable keys, odd values, and repeats."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gracectl.telemetry.logs import JsonFormatter, LogFormat, RepeatFilter, TextFormatter, configure

CREATED = 1_767_225_600.0


def record(
    message: str = "pod evicted", *arguments: object, level: int = logging.INFO, **extras: Any
) -> logging.LogRecord:
    made = logging.LogRecord("gracectl.eviction", level, __file__, 1, message, arguments, None)
    made.created = CREATED + 0.25
    vars(made).update(extras)
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


class Broken:
    """A value that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("not today")


def failure() -> BaseException:
    try:
        raise ValueError("because")
    except ValueError as error:
        return error


def test_a_line_has_the_stable_keys_first_and_the_extras_in_their_order() -> None:
    entry = as_json(record("pod %s evicted", "web-1", pod="shop/web-1", node="worker-1", attempts=2))
    assert list(entry.items()) == [
        ("ts", "2026-01-01T00:00:00.250Z"),
        ("level", "info"),
        ("logger", "gracectl.eviction"),
        ("message", "pod web-1 evicted"),
        ("pod", "shop/web-1"),
        ("node", "worker-1"),
        ("attempts", 2),
    ]


def test_an_exception_is_one_field() -> None:
    made = record("it failed", node="worker-1")
    error = failure()
    made.exc_info = (type(error), error, error.__traceback__)
    entry = as_json(made)
    assert list(entry)[-1] == "exception"
    assert entry["exception"].startswith("Traceback")
    assert entry["exception"].endswith("ValueError: because")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (("shop", "web-1"), ["shop", "web-1"]),
        ({1: "one"}, {"1": "one"}),
        (ValueError("because"), "because"),
        (2**70, str(2**70)),
        ("half a pair: \ud800", "half a pair: \\ud800"),
        (Broken(), "<Broken>"),
        (float("nan"), None),
        (b"\xff", "b'\\xff'"),
    ],
)
def test_no_value_can_lose_a_line(value: object, shown: object) -> None:
    entry = as_json(record(node="worker-1", odd=value))
    assert (entry["message"], entry["node"], entry["odd"]) == ("pod evicted", "worker-1", shown)


def test_a_value_that_holds_itself_is_shown_as_text() -> None:
    around: list[object] = []
    around.append(around)
    assert as_json(record(odd=around))["odd"] == "[[...]]"


def test_an_extra_cannot_take_the_place_of_a_stable_key() -> None:
    made = record()
    vars(made).update(ts=1, level="high", logger="x", exception="none")
    entry = as_json(made)
    assert (entry["level"], entry["level_"], entry["ts_"], entry["logger_"], entry["exception_"]) == (
        "info",
        "high",
        1,
        "x",
        "none",
    )


def test_text_is_one_line_with_the_extras_behind() -> None:
    made = record("pod %s evicted", "web-1", level=logging.WARNING, node="worker-1", odd=Broken())
    assert TextFormatter().format(made) == "00:00:00.250 WARNING pod web-1 evicted  node=worker-1 odd=<Broken>"


def test_text_without_extras_ends_with_the_message() -> None:
    assert TextFormatter().format(record("stopped")) == "00:00:00.250 INFO    stopped"


class Repeats:
    """Sends records through a filter that lets two a minute pass."""

    def __init__(self) -> None:
        self.filter = RepeatFilter(2)

    def passes(self, at: float, message: str = "cannot be written: %s", **keywords: Any) -> bool:
        return self.sent(at, message, **keywords) is not None

    def sent(self, at: float, message: str = "cannot be written: %s", **keywords: Any) -> logging.LogRecord | None:
        made = record(message, **keywords)
        made.created = CREATED + at
        return made if self.filter.filter(made) else None


def test_repeats_pass_a_few_times_a_minute_and_the_next_line_counts_the_others() -> None:
    repeats = Repeats()
    assert [repeats.passes(at) for at in (0, 1, 2, 59)] == [True, True, False, False]
    after = repeats.sent(60)
    assert after is not None
    assert vars(after)["suppressed"] == 2
    calm = repeats.sent(120)
    assert calm is not None
    assert "suppressed" not in vars(calm)


@pytest.mark.parametrize(
    "other", [{"node": "b"}, {"pod": "b"}, {"key": "b"}, {"level": logging.ERROR}, {"message": "b"}]
)
def test_another_message_or_another_thing_is_no_repeat(other: dict[str, Any]) -> None:
    repeats = Repeats()
    assert [repeats.passes(0, node="a") for _ in range(3)] == [True, True, False]
    assert repeats.passes(0, **{"node": "a", **other})


def test_debug_messages_always_pass() -> None:
    repeats = Repeats()
    assert all(repeats.passes(0, level=logging.DEBUG) for _ in range(50))


def test_a_clock_that_is_set_back_does_not_silence_a_message() -> None:
    repeats = Repeats()
    assert [repeats.passes(3600) for _ in range(3)] == [True, True, False]
    assert repeats.passes(0)


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    for number in range(10_000):
        repeats.passes(0, node=f"node-{number}")
    assert len(repeats.filter._windows) <= 4096


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    before = (logger.handlers[:], logger.level)
    yield logger
    logger.handlers[:] = before[0]
    logger.setLevel(before[1])
    logging.getLogger("kubernetes_asyncio").setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "format", "is_json"),
    [
        (io.StringIO(), "auto", True),
        (Terminal(), "auto", False),
        (Terminal(), "json", True),
        (io.StringIO(), "text", False),
    ],
)
def test_configure_chooses_the_format(
    root: logging.Logger, stream: io.StringIO, format: LogFormat, is_json: bool
) -> None:
    configure(stream, format=format)
    root.info("hello", extra={"node": "worker-1"})
    assert stream.getvalue().startswith("{") == is_json


def test_configure_sets_the_level_and_limits_repeats_and_may_be_called_again(root: logging.Logger) -> None:
    first, stream = io.StringIO(), io.StringIO()
    configure(first, level="debug")
    configure(stream, format="json", level="warning", repeats=1)
    for _ in range(3):
        root.warning("busy")
    root.info("hidden")
    assert first.getvalue() == ""
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["busy"]


def test_a_failing_reconcile_is_logged_with_its_traceback(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure(stream, format="json")
    error = failure()
    root.error("failed", exc_info=error)
    assert "ValueError: because" in json.loads(stream.getvalue())["exception"]
    assert sys.exc_info() == (None, None, None)
