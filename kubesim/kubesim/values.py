"""Values in Go's and Kubernetes' own grammar: durations, times, int-or-percent (checked against tests/oracles).

A duration is a whole number of nanoseconds, an instant is seconds since the Unix epoch.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

NANOS: Final = 1_000_000_000
_MICRO, _MILLI, _MINUTE, _HOUR = 1_000, 1_000_000, 60 * NANOS, 3_600 * NANOS
# Both the micro sign and the Greek letter are right.
_UNITS: Final = {"ns": 1, "us": _MICRO, "µs": _MICRO, "μs": _MICRO, "ms": _MILLI, "s": NANOS, "m": _MINUTE, "h": _HOUR}
_TERM: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_LIMIT: Final = 1 << 63

EARLIEST: Final = -62_135_596_800.0
"""0001-01-01T00:00:00Z."""
LATEST: Final = 253_402_300_799.0
"""9999-12-31T23:59:59Z."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# fromisoformat() alone takes more: week dates, missing zones, hour 24.
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_PERCENT: Final = re.compile(r"([+-]?[0-9]{1,300})%")


def parse_duration(text: str) -> int:
    """The nanoseconds of a Go duration (`1h30m`, `-1.5s`, `0`), as time.ParseDuration reads it. Raises ValueError."""
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total, position = 0, 0
    while position < len(rest) or not rest:
        term = _TERM.match(rest, position)
        if term is None or not (term[1] or term[2]):
            raise ValueError(f"{_shown(text)} is no duration such as 1h30m or 1.5s")
        # Nineteen digits are more than an int64 holds; int() refuses thousands of them in words of its own.
        whole = int(term[1].lstrip("0")[:20] or "0")
        total += whole * _UNITS[term[3]] + _fraction(term[2] or "", _UNITS[term[3]])
        if total > _LIMIT:
            raise ValueError(f"{_shown(text)} is no duration: it is longer than 292 years")
        position = term.end()
    if text.startswith("-"):
        return -total
    if total == _LIMIT:
        raise ValueError(f"{_shown(text)} is no duration: it is longer than 292 years")
    return total


def parse_seconds(text: str) -> float:
    """The seconds of a Go duration. ValueError if it is none."""
    return parse_duration(text) / NANOS


def format_duration(nanoseconds: int) -> str:
    """Go's Duration.String(): `1h0m0s`, `1.5s`, `250ms`, `0s`."""
    sign, size = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    for unit, name in ((1, "ns"), (_MICRO, "µs"), (_MILLI, "ms")):
        if 0 < size < (NANOS if unit == _MILLI else unit * 1_000):
            return f"{sign}{_decimal(size, unit)}{name}"
    minutes, rest = divmod(size, _MINUTE)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, NANOS)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else sign + text


def _fraction(digits: str, unit: int) -> int:
    """The nanoseconds of `0.digits` units: Go reads digits while they fit an int64, then multiplies as float64."""
    value, scale = 0, 1
    for digit in digits:
        following = value * 10 + int(digit)
        if value > (_LIMIT - 1) // 10 or following > _LIMIT:
            break
        value, scale = following, scale * 10
    return int(float(value) * (float(unit) / float(scale)))


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    return f"{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}" if rest else str(whole)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def parse_time(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time of the years 1 to 9999, to the microsecond. Raises ValueError."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"{_shown(text)} is no RFC 3339 time such as 2026-01-01T00:00:00Z")
    fraction = f".{found[2][:6]:0<6}" if found[2] else ""
    try:
        seconds = (datetime.fromisoformat(found[1] + fraction + found[3]) - _EPOCH).total_seconds()
    except ValueError as error:
        raise ValueError(f"{_shown(text)} is no RFC 3339 time: {error}") from error
    if not EARLIEST <= seconds < LATEST + 1:
        raise ValueError(f"{_shown(text)} is no RFC 3339 time: in UTC its year is not one of 1 to 9999")
    return min(seconds, LATEST)


def format_time(seconds: float) -> str:
    """A metav1.Time, `2026-01-01T00:00:00Z`: parts of a second are cut off; beyond the range, the end of the range."""
    return _moment(seconds).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def format_micro_time(seconds: float) -> str:
    """A metav1.MicroTime, `2026-01-01T00:00:00.000000Z`: always six digits (recording leases)."""
    return _moment(seconds).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _moment(seconds: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(max(EARLIEST, min(LATEST, seconds)) * 1_000_000))


def scaled_value(value: int | str, total: int, *, round_up: bool) -> int:
    """An integer as it is, a percentage as that part of `total` (GetScaledValueFromIntOrPercent). Raises ValueError."""
    if isinstance(value, int):
        return value
    found = _PERCENT.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is neither an integer nor a percentage such as 25%")
    share = int(found[1]) * total
    return -(-share // 100) if round_up else share // 100
