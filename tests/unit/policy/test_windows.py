"""Windows: what their schedules mean, and what holds in every time zone, across clock changes."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.model.times import parse_time
from gracectl.model.windows import MOST_WINDOWS, Window
from gracectl.policy.windows import (
    ALWAYS_OPEN,
    WindowState,
    explain_closed,
    invalid_window,
    parse_window,
    window_state,
)

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "Africa/Cairo",
    "America/Santiago", "Asia/Kathmandu", "Pacific/Apia", "Asia/Tehran", "America/Havana", "Africa/Casablanca",
)  # fmt: skip
"""Changes of an hour and of half an hour, at midnight too, to the south and the north, and none."""


def at(text: str) -> float:
    return parse_time(text)


def state(is_open: bool, until: str | None) -> WindowState:
    return WindowState(is_open, None if until is None else at(until))


NIGHTS = (Window("0 22 * * 1-5", "4h", "Europe/Berlin"),)
INVALID = Window("nonsense", "1h")
TOUCHING = (Window("@daily", "12h"), Window("0 12 * * *", "1h"))


@pytest.mark.parametrize(("windows", "now", "expected"), [
    ((), "2026-11-28T12:00:00Z", ALWAYS_OPEN),
    (NIGHTS, "2026-11-28T12:00:00Z", state(False, "2026-11-30T21:00:00Z")),  # a Saturday
    (NIGHTS, "2026-11-30T20:59:59Z", state(False, "2026-11-30T21:00:00Z")),
    (NIGHTS, "2026-11-30T21:00:00Z", state(True, "2026-12-01T01:00:00Z")),
    (NIGHTS, "2026-12-01T00:59:59.5Z", state(True, "2026-12-01T01:00:00Z")),
    (NIGHTS, "2026-12-01T01:00:00Z", state(False, "2026-12-01T21:00:00Z")),
    (NIGHTS, "2026-07-01T20:00:00Z", state(True, "2026-07-02T00:00:00Z")),  # summer time
    (TOUCHING, "2026-11-28T11:00:00Z", state(True, "2026-11-28T13:00:00Z")),
    ((Window("* * * * 0,6", "1m"),), "2026-11-28T12:00:00Z", state(True, "2026-11-30T00:00:00Z")),
    ((Window("0 9-16 * * *", "1h"),), "2026-11-28T10:30:00Z", state(True, "2026-11-28T17:00:00Z")),
    ((Window("* * * * *", "1h"),), "2026-11-28T12:00:00Z", state(True, None)),
    ((Window("@daily", "24h"),), "2026-11-28T12:00:00Z", state(True, None)),
    ((INVALID,), "2026-11-28T12:00:00Z", state(False, None)),
    ((INVALID, Window("0 13 * * *", "1h")), "2026-11-28T12:00:00Z", state(False, "2026-11-28T13:00:00Z")),
    # A clock that goes from 2:00 to 3:00 and a window at 2:30; one that goes from 3:00 to 2:00.
    ((Window("30 2 * * *", "1h", "Europe/Berlin"),), "2026-03-28T12:00:00Z", state(False, "2026-03-29T01:00:00Z")),
    ((Window("30 2 * * *", "1h", "Europe/Berlin"),), "2026-03-29T01:10:00Z", state(True, "2026-03-29T02:00:00Z")),
    ((Window("30 2 * * *", "1h", "Europe/Berlin"),), "2026-10-25T00:10:00Z", state(False, "2026-10-25T00:30:00Z")),
    ((Window("30 2 * * *", "1h", "Europe/Berlin"),), "2026-10-25T01:29:00Z", state(True, "2026-10-25T01:30:00Z")),
    ((Window("30 2 * * *", "1h", "Europe/Berlin"),), "2026-10-25T01:30:00Z", state(False, "2026-10-26T01:30:00Z")),
    # An hour ago it was the second 2:10, from which the schedule also names the first 2:30.
    ((Window("30 2 * * *", "1h", "Europe/Berlin"),), "2026-10-25T02:10:00Z", state(False, "2026-10-26T01:30:00Z")),
    # Elapsed time: the night of a clock change is neither longer nor shorter.
    ((Window("0 0 * * *", "6h", "Europe/Berlin"),), "2026-03-29T00:00:00Z", state(True, "2026-03-29T05:00:00Z")),
    ((Window("0 0 * * *", "6h", "Europe/Berlin"),), "2026-10-25T00:00:00Z", state(True, "2026-10-25T04:00:00Z")),
])  # fmt: skip
def test_when_windows_are_open(windows: tuple[Window, ...], now: str, expected: WindowState) -> None:
    assert window_state(windows, at(now)) == expected


@pytest.mark.parametrize(("window", "problem"), [
    (Window("61 * * * *", "1h"), "schedule: '61 * * * *' is no cron schedule: bad minute; give"),
    (Window("* * * *", "1h"), "schedule: '* * * *' is no cron schedule: it needs 5 fields, not 4; give"),
    (Window("0 0 22 * * 1", "1h"), "schedule: '0 0 22 * * 1' is no cron schedule: it needs 5 fields, not 6; give"),
    (Window("0 0 30 2 *", "1h"), "schedule: '0 0 30 2 *' is no cron schedule: bad day-of-month; give"),
    (Window("0 0 */31 2 1#5", "1h"), "schedule: '0 0 */31 2 1#5' never comes; give"),
    (Window("9" * 100 + " * * * *", "1h"), "schedule: '99999"),
    (Window("9" * 257, "1h"), "is longer than 256 characters; shorten it"),
    (Window("@daily", "4"), "duration: '4' is no duration: a number has no unit (ns, us, ms, s, m, h); give"),
    (Window("@daily", "0s"), "duration: '0s' is not from 1s to 8784h; give hours and minutes such as 4h or 1h30m"),
    (Window("@daily", "-1h"), "duration: '-1h' is not from"),
    (Window("@daily", "9000h"), "duration: '9000h' is not from"),
    (Window("@daily", "1h", "Berlin"), "timeZone: 'Berlin' is no known time zone; give an IANA name such as"),
    (Window("@daily", "1h", "America"), "timeZone: 'America' is no known"),
    (Window("@daily", "1h", "../../etc/passwd"), "timeZone: '../../etc/passwd' is no known"),
    (Window("@daily", "1h", "\0"), r"timeZone: '\x00' is no known"),
])  # fmt: skip
def test_windows_that_cannot_be_read(window: Window, problem: str) -> None:
    found = invalid_window((NIGHTS[0], window), "spec.windows")
    assert found is not None
    assert found.startswith("spec.windows[1].")
    assert problem in found
    assert not window_state((window,), at("2026-11-28T00:00:00Z")).is_open


@pytest.mark.parametrize(("text", "expected"), [
    ("0 22 * * 1-5 4h Europe/Berlin", NIGHTS[0]),
    ("0 12 * * * 1h", Window("0 12 * * *", "1h")),
    (" @daily 12h ", Window("@daily", "12h")),
])  # fmt: skip
def test_a_window_on_a_command_line(text: str, expected: Window) -> None:
    assert parse_window(text) == expected


@pytest.mark.parametrize(("text", "message"), [
    ("", "'' is no window; give schedule, duration, time zone: '0 22 * * 1-5 4h UTC'"),
    ("0 22 * * 1-5", "is no window"), ("@daily", "is no window"), ("@daily 1h UTC now", "is no window"),
    ("0 25 * * * 1h", "schedule: '0 25 * * *' is no cron schedule: bad hour"), ("@daily 1x", "duration: '1x'"),
])  # fmt: skip
def test_a_command_line_without_a_window(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_window(text)


def test_too_many_windows() -> None:
    problem = invalid_window(NIGHTS * (MOST_WINDOWS + 1), "spec.windows")
    assert problem == "spec.windows: 33 windows are more than 32; remove some"
    assert invalid_window(NIGHTS * MOST_WINDOWS, "spec.windows") is None


def test_the_message_names_the_next_opening() -> None:
    assert explain_closed(state(False, "2026-11-30T21:00:00Z")) == "outside of its windows until 2026-11-30T21:00:00Z"
    assert explain_closed(state(False, None)) == "outside of its windows"


INSTANTS = st.integers(at("2024-01-01T00:00:00Z"), at("2028-01-01T00:00:00Z"))  # type: ignore[arg-type]
FIELDS = (
    ("0", "30", "*/20", "*"),
    ("0", "2", "1-5", "22,23", "*/6", "*"),
    ("*", "1", "29"),
    ("*", "3,10"),
    ("*", "1-5", "0"),
)
SCHEDULES = st.tuples(*(st.sampled_from(field) for field in FIELDS)).map(" ".join)
WINDOWS = st.lists(
    st.builds(Window, SCHEDULES, st.sampled_from(("1m", "45m", "1h", "4h", "26h")), st.sampled_from(ZONES)),
    min_size=1, max_size=3,
).map(tuple)  # fmt: skip


@given(WINDOWS, INSTANTS, st.floats(0, 0.999))
def test_nothing_changes_before_the_announced_instant(windows: tuple[Window, ...], now: int, share: float) -> None:
    found = window_state(windows, now)
    if found.until is None:
        return
    assert found.until > now
    assert window_state(windows, now + (found.until - now) * share) == found
    assert window_state(windows, found.until).is_open != found.is_open


HOSTILE = st.text("0123456789*/,-#LW ?@MONJAN\t\0²", max_size=30)


@given(HOSTILE, st.text("0123456789hms.-", max_size=8), st.text(max_size=20) | st.sampled_from(ZONES), INSTANTS)
def test_any_text_is_a_window_or_a_problem(schedule: str, duration: str, zone: str, now: int) -> None:
    windows = (Window(schedule, duration, zone),)
    problem, found = invalid_window(windows, "f"), window_state(windows, now)
    assert problem is None or found == WindowState(False, None)


@given(st.tuples(*[st.text("0123456789*/,-#LW?MONJAN", min_size=1, max_size=6)] * 5).map(" ".join), INSTANTS)
def test_any_five_fields_are_a_schedule_or_a_problem(schedule: str, now: int) -> None:
    windows = (Window(schedule, "1h", "Europe/Berlin"),)
    problem, found = invalid_window(windows, "f"), window_state(windows, now)
    assert (problem is None) == (found.until is not None or found.is_open)


@given(SCHEDULES, st.sampled_from(("1m", "1h", "26h")), INSTANTS)
def test_in_utc_a_window_is_open_after_each_minute_that_its_schedule_names(
    schedule: str, duration: str, now: int
) -> None:
    seconds = {"1m": 60, "1h": 3600, "26h": 93600}[duration]
    minutes = range(now - now % 60, now - seconds, -60)
    expected = any(matches(schedule, datetime.fromtimestamp(minute, UTC)) for minute in minutes)
    assert window_state((Window(schedule, duration),), now).is_open == expected


@given(st.sampled_from(ZONES), st.dates(date(2024, 1, 2), date(2027, 12, 30)), st.times(), st.integers(1, 90))
def test_a_daily_window_opens_once_on_each_day(zone: str, day: date, moment: time, minutes: int) -> None:
    windows = (Window(f"{moment.minute} {moment.hour} * * *", f"{minutes}m", zone),)
    opens = openings(windows, ZoneInfo(zone), day)
    assert len(opens) == 1
    wanted = datetime.combine(day, moment.replace(second=0, microsecond=0), ZoneInfo(zone))
    # In the hour that is skipped: at its end.
    assert 0 <= opens[0] - wanted.timestamp() <= 3600 if is_skipped(wanted) else opens[0] == wanted.timestamp()
    assert window_state(windows, opens[0]) == WindowState(True, opens[0] + 60 * minutes)


def openings(windows: tuple[Window, ...], zone: ZoneInfo, day: date) -> list[float]:
    """Instants of that local day at which the windows open."""
    found = []
    now = datetime.combine(day - timedelta(1), time(12), zone).timestamp()
    end = datetime.combine(day + timedelta(1), time(12), zone).timestamp()
    while now < end:
        reached = window_state(windows, now)
        assert reached.until is not None
        now = reached.until
        if not reached.is_open and datetime.fromtimestamp(now, zone).date() == day:
            found.append(now)
    return found


def is_skipped(moment: datetime) -> bool:
    return datetime.fromtimestamp(moment.timestamp(), moment.tzinfo).replace(tzinfo=None) != moment.replace(tzinfo=None)


def matches(schedule: str, moment: datetime) -> bool:
    minute, hour, day, month, weekday = schedule.split()
    days = is_in(day, moment.day, 1), is_in(weekday, moment.isoweekday() % 7, 0)
    is_day = all(days) if "*" in (day[0], weekday[0]) else any(days)
    return is_day and is_in(minute, moment.minute, 0) and is_in(hour, moment.hour, 0) and is_in(month, moment.month, 1)


def is_in(field: str, value: int, least: int) -> bool:
    if field.startswith("*"):
        return (value - least) % int(field[2:] or 1) == 0
    ranges = (part.split("-") for part in field.split(","))
    return any(int(part[0]) <= value <= int(part[-1]) for part in ranges)
