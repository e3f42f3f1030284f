"""RFC 3339 instants as Kubernetes writes them: `metav1.Time` (whole seconds) and `metav1.MicroTime`.

Invariant: an instant is float seconds since the Unix epoch, in any time zone. Every instant from EARLIEST to LATEST
survives writing and reading. Stored instants out of that range (Go knows the years 0 and 10000) are moved to its end;
user input out of the range is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

EARLIEST: Final = -62_135_596_800.0
"""0001-01-01T00:00:00Z."""
LATEST: Final = 253_402_300_799.0
"""9999-12-31T23:59:59Z."""

_SHOWN: Final = 60
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# fromisoformat() alone would also take week dates, missing zones, missing seconds and (since 3.14) hour 24.
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def parse_time(text: str) -> float:
    """Seconds since the epoch; digits beyond microseconds are dropped.

    ValueError if it is not RFC 3339, or in UTC not of the years 1 to 9999.
    """
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:_SHOWN]!r} is no RFC 3339 time such as 2026-01-01T00:00:00Z")
    whole, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}{zone}" if fraction else whole + zone)
    except ValueError as error:
        raise ValueError(f"{text[:_SHOWN]!r} is no RFC 3339 time: {error}") from error
    seconds = (moment - _EPOCH).total_seconds()
    if not EARLIEST <= seconds < LATEST + 1:
        raise ValueError(f"{text[:_SHOWN]!r} is no RFC 3339 time: in UTC its year is not one of 1 to 9999")
    return min(seconds, LATEST)


def in_range(seconds: float) -> float:
    """Clamp an instant to the range."""
    return seconds if EARLIEST <= seconds <= LATEST else max(EARLIEST, min(LATEST, seconds))


def format_time(seconds: float) -> str:
    """`2026-01-01T00:00:00Z`; parts of a second are cut off, as metav1.Time does. Beyond the range: its end."""
    return _moment(seconds).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def format_micro_time(seconds: float) -> str:
    """`2026-01-01T00:00:00.000000Z`: the server refuses a MicroTime without its six digits (recording `leases`)."""
    return _moment(seconds).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _moment(seconds: float) -> datetime:
    return _EPOCH + round(in_range(seconds) * 1_000_000) * _MICROSECOND
