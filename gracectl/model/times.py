"""RFC 3339 instants as Kubernetes writes them: `metav1.Time` (whole seconds) and `metav1.MicroTime`.

Invariant: an instant is float seconds since the Unix epoch, whatever zone its text was written in.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# fromisoformat() alone would also take week dates, missing zones, missing seconds and (since 3.14) hour 24.
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def parse_time(text: str) -> float:
    """Seconds since the epoch; digits beyond microseconds are dropped. ValueError if it is not RFC 3339."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no RFC 3339 time such as 2026-01-01T00:00:00Z")
    whole, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}{zone}" if fraction else whole + zone)
        return (moment - _EPOCH).total_seconds()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no RFC 3339 time: {error}") from error


def format_time(seconds: float) -> str:
    """`2026-01-01T00:00:00Z`; parts of a second are cut off, as metav1.Time does. ValueError outside years 1-9999."""
    return _moment(seconds).strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


def format_micro_time(seconds: float) -> str:
    """`2026-01-01T00:00:00.000000Z`: the server refuses a MicroTime without its six digits (recording `leases`)."""
    return _moment(seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _moment(seconds: float) -> datetime:
    try:
        return _EPOCH + round(seconds * 1_000_000) * _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{seconds!r} seconds since the epoch cannot be written as RFC 3339") from error
