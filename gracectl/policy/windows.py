"""Windows of time in which voluntary terminations may begin.

A window opens at each time of its cron schedule, and stays open for its duration in elapsed time: a clock change makes
it neither longer nor shorter. Windows that touch or overlap are one. Schedules follow Debian's cron around a clock
change: a fixed time that is skipped is moved to the end of the gap, and one that occurs twice counts once; a schedule
with a wildcard in its minute or hour follows the clock. Without windows everything is open; a window that cannot be
read never opens. Time zones are read once from the system or the package tzdata. Source: ADR 0082.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from gracectl.model.durations import parse_seconds
from gracectl.model.times import format_time
from gracectl.model.windows import LONGEST_TEXT, MOST_WINDOWS, Window

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Schedules with a name, as CronJobs and Karpenter have them."""

LONGEST_SECONDS: Final = 366 * 86400.0
"""Maximum duration of a window."""
LONGEST_RUN_SECONDS: Final = 400 * 86400.0
MOST_OPENINGS: Final = 5000
"""Windows that stay open for longer, or open more often without a pause, count as open without a known end."""

_FIELDS: Final = 5
_SHOWN: Final = 60
_REFERENCE: Final = datetime(2000, 1, 1)


class WindowState(msgspec.Struct, frozen=True):
    """Whether windows are open, and the instant (Unix seconds) at which that changes; None: never, or unknown."""

    is_open: bool
    until: float | None


ALWAYS_OPEN: Final = WindowState(True, None)


def window_state(windows: Sequence[Window], now: float) -> WindowState:
    """State of the windows at `now` (Unix seconds). Raises nothing."""
    if not windows:
        return ALWAYS_OPEN
    valid = tuple(window for window in windows[:MOST_WINDOWS] if _problem(window) is None)
    first = next(_runs(valid, now), None)
    if first is None:
        return WindowState(False, None)
    if first[0] > now:
        return WindowState(False, first[0])
    return WindowState(True, _closes_at(valid, first[0]))


def invalid_window(windows: Sequence[Window], field: str) -> str | None:
    """Problem with the first window that cannot be read, with its field and a remedy; None if all can be read."""
    if len(windows) > MOST_WINDOWS:
        return f"{field}: {len(windows)} windows are more than {MOST_WINDOWS}; remove some"
    for index, window in enumerate(windows):
        if (problem := _problem(window)) is not None:
            return f"{field}[{index}].{problem}"
    return None


def parse_window(text: str) -> Window:
    """Parse `0 22 * * 1-5 4h Europe/Berlin`: a schedule, a duration, and perhaps a time zone. Raises ValueError."""
    words = text.split()
    length = 1 if text.lstrip().startswith("@") else _FIELDS
    window = Window(" ".join(words[:length]), *words[length : length + 2]) if len(words) > length else None
    if window is None or len(words) > length + 2:
        raise ValueError(f"{text[:_SHOWN]!r} is no window; give schedule, duration, time zone: '0 22 * * 1-5 4h UTC'")
    if (problem := _problem(window)) is not None:
        raise ValueError(problem)
    return window


def explain_closed(state: WindowState) -> str:
    """`outside of its windows until 2026-11-28T22:00:00Z`."""
    return "outside of its windows" + ("" if state.until is None else f" until {format_time(state.until)}")


def _runs(windows: Sequence[Window], now: float) -> Iterator[tuple[float, float]]:
    """Openings that end after `now`, as (opens, closes), ordered by their beginning."""
    return heapq.merge(*(_openings(window, now - _seconds(window)) for window in windows))


@lru_cache(maxsize=512)
def _closes_at(windows: tuple[Window, ...], opened: float) -> float | None:
    """End of the run of openings of which the first is at `opened`."""
    end = opened
    for count, (opens, closes) in enumerate(heapq.merge(*(_openings(window, opened - 1) for window in windows))):
        if opens > end:
            return end
        end = max(end, closes)
        if count == MOST_OPENINGS or end - opened > LONGEST_RUN_SECONDS:
            return None
    return end


def _openings(window: Window, after: float) -> Iterator[tuple[float, float]]:
    """Openings of a valid window that begin after an instant."""
    seconds = _seconds(window)
    times = CronSim(_cron(window.schedule), datetime.fromtimestamp(math.floor(after), ZoneInfo(window.time_zone)))
    for time in times:
        # From within an hour that occurs twice, the schedule also names times of its first occurrence.
        if (opens := time.timestamp()) > after:
            yield opens, opens + seconds


def _cron(schedule: str) -> str:
    return MACROS.get(schedule.strip(), schedule)


@lru_cache(maxsize=512)
def _seconds(window: Window) -> float:
    return parse_seconds(window.duration)


@lru_cache(maxsize=512)
def _problem(window: Window) -> str | None:
    """Why a window cannot be read: `schedule: … is no cron schedule: …; remedy`."""
    for field, text in (("schedule", window.schedule), ("duration", window.duration), ("timeZone", window.time_zone)):
        if len(text) > LONGEST_TEXT:
            return f"{field}: {text[:_SHOWN]!r} is longer than {LONGEST_TEXT} characters; shorten it"
    return _schedule_problem(window.schedule) or _duration_problem(window.duration) or _zone_problem(window.time_zone)


def _schedule_problem(schedule: str) -> str | None:
    remedy = "give minute, hour, day of month, month and day of week, such as '0 22 * * 1-5'"
    shown = f"schedule: {schedule[:_SHOWN]!r}"
    cron = _cron(schedule)
    if (count := len(cron.split())) != _FIELDS:
        return f"{shown} is no cron schedule: it needs {_FIELDS} fields, not {count}; {remedy}"
    try:
        if next(CronSim(cron, _REFERENCE), None) is None:
            return f"{shown} never comes; {remedy}"
    except (CronSimError, ValueError) as error:
        return f"{shown} is no cron schedule: {str(error).lower()}; {remedy}"
    return None


def _duration_problem(duration: str) -> str | None:
    try:
        seconds = parse_seconds(duration)
    except ValueError as error:
        return f"duration: {error}; give hours and minutes such as 4h or 1h30m"
    if 0 < seconds <= LONGEST_SECONDS:
        return None
    return f"duration: {duration!r} is not from 1s to 8784h; give hours and minutes such as 4h or 1h30m"


def _zone_problem(name: str) -> str | None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return f"timeZone: {name[:_SHOWN]!r} is no known time zone; give an IANA name such as Europe/Berlin, or UTC"
    return None
