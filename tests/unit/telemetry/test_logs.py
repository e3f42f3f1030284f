"""Log lines: stable keys, odd values, and repeats."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
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
        ("ts", "2026-01-01T00:00:00.250Z"), ("level", "info"), ("logger", "gracectl.eviction"),
        ("message", "pod web-1 evicted"), ("pod", "shop/web-1"), ("node", "worker-1"), ("attempts", 2),
    ]  # fmt: skip


def test_an_exception_is_one_field() -> None:
    made = record("it failed", node="worker-1")
    error = failure()
    made.exc_info = (type(error), error, error.__traceback__)
    entry = as_json(made)
    assert list(entry)[-1] == "exception"
    assert entry["exception"].startswith("Traceback")
    assert entry["exception"].endswith("ValueError: because")


@pytest.mark.parametrize(("value", "shown"), [
    (("shop", "web-1"), ["shop", "web-1"]), ({1: "one"}, {"1": "one"}), (ValueError("because"), "because"),
    (2**70, str(2**70)),
    ("half a pair: \ud800", "half a pair: \\ud800"),
    (Broken(), "<Broken>"), (float("nan"), None), (b"\xff", "b'\\xff'"),
])  # fmt: skip
def test_no_value_can_lose_a_line(value: object, shown: object) -> None:
    entry = as_json(record(node="worker-1", odd=value))
    assert (entry["message"], entry["node"], entry["odd"]) == ("pod evicted", "worker-1", shown)


def test_an_odd_value_leaves_the_others_as_they_are() -> None:
    entry = as_json(record(odd=2**70, attempts=2, names=["a", "b"]))
    assert (entry["attempts"], entry["names"]) == (2, ["a", "b"])


@pytest.mark.parametrize(("message", "arguments", "shown"), [
    ("%d pods", ("two",), "%d pods two"),
    ("no place for it", (7,), "no place for it 7"),
    ("%s and %s", ("one",), "%s and %s one"),
    ("%(pod)s", ({"node": "a"},), "%(pod)s {'node': 'a'}"),
    ("broken: %s", (Broken(),), "broken: %s <Broken>"),
    (Broken(), (), "<Broken>"), ("100% sure", (), "100% sure"),
])  # fmt: skip
def test_arguments_that_do_not_fit_their_message_lose_no_line(message: Any, arguments: Any, shown: str) -> None:
    made = record(message, *arguments)
    assert as_json(made)["message"] == shown
    assert TextFormatter().format(made).endswith(shown)


def test_a_message_of_several_lines_is_one_line_of_json_and_indented_as_text() -> None:
    made = record("refused:\nfirst\nsecond", pod="shop/web\n-1")
    assert as_json(made)["message"] == "refused:\nfirst\nsecond"
    assert TextFormatter().format(made) == ("00:00:00.250 INFO    refused:  pod=shop/web -1\n    first\n    second")


def test_text_shows_control_characters_and_does_not_send_them_to_the_terminal() -> None:
    made = record("\x1b[31mred\rover\tit", name_of_pod="\x07")
    assert TextFormatter().format(made) == ("00:00:00.250 INFO    \\x1b[31mred\\rover\tit  name_of_pod=\\x07")


def test_a_stack_that_was_asked_for_is_shown() -> None:
    made = record(stack="mine")
    made.stack_info = "Stack (most recent call last):\n  here"
    entry = as_json(made)
    assert (entry["stack"], entry["stack_"]) == (made.stack_info, "mine")
    assert TextFormatter().format(made).endswith("\n  here")


def test_a_value_that_holds_itself_is_shown_as_text() -> None:
    around: list[object] = []
    around.append(around)
    assert as_json(record(odd=around))["odd"] == "[[...]]"


def test_an_extra_cannot_take_the_place_of_a_stable_key() -> None:
    made = record()
    vars(made).update(ts=1, level="high", logger="x", exception="none")
    entry = as_json(made)
    assert (entry["level"], entry["level_"], entry["ts_"], entry["logger_"], entry["exception_"]) == (
        "info", "high", 1, "x", "none",
    )  # fmt: skip


def test_text_is_one_line_with_the_extras_behind() -> None:
    made = record("pod %s evicted", "web-1", level=logging.WARNING, node="worker-1", odd=Broken())
    assert TextFormatter().format(made) == "00:00:00.250 WARNING pod web-1 evicted  node=worker-1 odd=<Broken>"


def test_text_shows_a_map_without_python_around_it() -> None:
    made = record("done", seconds={"cordon": 0.01, "drain": 3.2})
    assert TextFormatter().format(made) == "00:00:00.250 INFO    done  seconds=cordon:0.01,drain:3.2"


def test_text_without_extras_ends_with_the_message() -> None:
    assert TextFormatter().format(record("stopped")) == "00:00:00.250 INFO    stopped"


class Repeats:
    """Sends records through a filter that lets two a minute pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.filter = RepeatFilter(2, lambda: self.now)

    def passes(self, at: float, message: str = "cannot be written: %s", **keywords: Any) -> bool:
        return self.sent(at, message, **keywords) is not None

    def sent(self, at: float, message: str = "cannot be written: %s", **keywords: Any) -> logging.LogRecord | None:
        made = record(message, **keywords)
        self.now = at
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


def test_any_thread_may_log_while_the_oldest_are_forgotten() -> None:
    repeats = Repeats()
    failures: list[BaseException] = []

    def log(thread: int) -> None:
        try:
            for number in range(2000):
                repeats.filter.filter(record(node=f"node-{thread}-{number}"))
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=log, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failures == []


def test_a_line_that_comes_up_while_another_is_judged_is_judged_too() -> None:
    judged: list[bool] = []

    def now() -> float:
        if not judged:
            judged.append(False)
            judged[0] = judge.filter(record("from within"))  # as the garbage collector would, in the same thread
        return 0.0

    judge = RepeatFilter(2, now)
    assert judge.filter(record("busy"))
    assert judged == [True]


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
    for library in ("aiohttp.access", "asyncio", "kubernetes_asyncio"):
        logging.getLogger(library).setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "format", "is_json"), [
    (io.StringIO(), "auto", True), (Terminal(), "auto", False), (Terminal(), "json", True),
    (io.StringIO(), "text", False),
])  # fmt: skip
def test_configure_sets_the_format(root: logging.Logger, stream: io.StringIO, format: LogFormat, is_json: bool) -> None:
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


def test_libraries_speak_up_only_when_it_matters(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure(stream, format="json", level="debug")
    for name in ("aiohttp.access", "asyncio", "kubernetes_asyncio.config.kube_config"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).error("trouble")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["trouble"] * 3


def test_libraries_keep_to_a_stricter_level(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure(stream, format="json", level="error")
    logging.getLogger("asyncio").warning("slow")
    assert stream.getvalue() == ""


def test_configure_takes_the_time_of_its_repeats_from_outside(root: logging.Logger) -> None:
    stream = io.StringIO()
    now = 0.0
    configure(stream, format="text", repeats=1, monotonic=lambda: now)
    for instant in (0.0, 59.0, 60.0):
        now = instant
        root.warning("busy", extra={"node": "worker-1"})
    lines = stream.getvalue().splitlines()
    assert [line.partition("WARNING ")[2] for line in lines] == [
        "busy  node=worker-1",
        "busy  node=worker-1 suppressed=1",
    ]


def test_json_lines_hold_nothing_that_a_terminal_would_obey_and_keep_their_values() -> None:
    hostile = "\x1b[2J\x7f\x9b\u202e\u2066\U000e0041"
    made = record(f"it is {hostile}", holder=hostile)
    assert JsonFormatter().format(made).isprintable()
    entry = as_json(made)
    assert (entry["message"], entry["holder"]) == (f"it is {hostile}", hostile)


def test_a_line_is_short_whatever_a_server_has_quoted() -> None:
    quoted = "patch: Invalid value: " + "x" * 1_000_000 + ": the reason"
    try:
        raise ValueError(quoted)
    except ValueError:
        made = record("step %s failed: %s", "cordon", quoted, error=quoted)
        made.exc_info = sys.exc_info()
    line = as_json(made)
    assert line["message"].startswith("step cordon failed: patch: Invalid value: xxx")
    assert line["message"].endswith("x: the reason")
    assert "ValueError" in line["exception"]
    for formatter in (JsonFormatter(), TextFormatter()):
        assert len(formatter.format(made)) < 30_000
