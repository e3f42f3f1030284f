"""Values that Go reads and writes in its own way: times, quantities, durations, base64.

Each function takes a JSON value and returns it as Go would write it. A ValueError has Go's words; a TypeError's text is
the expected Go type.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

from kubesim.server.api import Json
from kubesim.values import format_duration, parse_duration

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII).fullmatch
_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII).fullmatch
_LAYOUT: Final = (
    ("2006", r"\d{4}"),
    ("-", "-"),
    ("01", r"\d\d"),
    ("-", "-"),
    ("02", r"\d\d"),
    ("T", "T"),
    ("15", r"\d\d"),
    (":", ":"),
    ("04", r"\d\d"),
    (":", ":"),
    ("05", r"\d\d"),
)
_FRACTION: Final = (("", r"(?:[.,]\d+)?"),)
_MICROS: Final = ((".000000", r"\.\d{6}"),)
_ZONE: Final = (("Z07:00", r"Z|[+-]\d\d:\d\d"),)

QUANTITY_FAULT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))((?:[eE][+-]?\d+)|[numkMGTPE]|[KMGTPE]i|)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_POWERS: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_EXPONENTS: Final = {exponent: f"e{exponent}" if exponent else "" for exponent in _POWERS}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def time_text(value: Json) -> str:
    """A metav1.Time: RFC 3339, written in UTC without parts of a second."""
    if isinstance(value, str) and _TIME(value):
        _check_calendar(value)
        return value
    try:
        return _moment(value, _FRACTION, "2006-01-02T15:04:05Z07:00").strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")
    except OverflowError:
        return _year_10000(value)


def _year_10000(value: str) -> str:
    """An instant of the last day that is one of the year 10000 in UTC. Go writes its year with all digits, and does not
    read it again (seen on Kubernetes 1.37)."""
    local = datetime.fromisoformat(value[:19])
    hours, minutes = int(value[-5:-3]), int(value[-2:])
    moment = local - timedelta(days=1) + timedelta(hours=hours, minutes=minutes)
    return f"10000-01-01T{moment:%H:%M:%S}Z"


def micro_time_text(value: Json) -> str:
    """A metav1.MicroTime: RFC 3339 with exactly six digits after the point, written in UTC."""
    if isinstance(value, str) and _MICRO_TIME(value):
        _check_calendar(value)
        return value
    moment = _moment(value, _MICROS, "2006-01-02T15:04:05.000000Z07:00")
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _check_calendar(text: str) -> None:
    # Nearly every time that comes is a right one; only the last days of a month need a calendar.
    right_day = "01" <= text[5:7] <= "12" and "01" <= text[8:10] <= "28"
    if not (right_day and text[11:13] <= "23" and text[14:16] <= "59" and text[17:19] <= "59"):
        _moment_of(text, text)


def _moment(value: Json, fraction: tuple[tuple[str, str], ...], layout: str) -> datetime:
    if not isinstance(value, str):
        raise TypeError("string")
    rest = value
    for element, pattern in (*_LAYOUT, *fraction, *_ZONE):
        found = re.match(pattern, rest, re.ASCII)
        if found is None:
            raise ValueError(f'parsing time "{value}" as "{layout}": cannot parse "{rest}" as "{element}"')
        rest = rest[found.end() :]
    if rest:
        raise ValueError(f'parsing time "{value}": extra text: "{rest}"')
    whole, zone = value[:19], re.search(r"(Z|[+-]\d\d:\d\d)\Z", value)
    digits = re.match(r"[.,](\d+)", value[19:])
    micros = f".{digits[1][:6]:0<6}" if digits else ""
    return _moment_of(value, f"{whole}{micros}{zone[0] if zone else 'Z'}")


def _moment_of(given: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        if isinstance(error, OverflowError) and given.startswith("9999-12-31"):
            raise
        ranges = (("month", 5, 1, 12), ("day", 8, 1, 31), ("hour", 11, 0, 23), ("minute", 14, 0, 59))
        for name, start, low, high in ranges:
            if not low <= int(text[start : start + 2]) <= high:
                raise ValueError(f'parsing time "{given}": {name} out of range') from None
        name = "second" if text[17:19] > "59" else "day"
        raise ValueError(f'parsing time "{given}": {name} out of range') from None


def quantity_text(value: Json) -> str:
    """Canonical resource.Quantity: `0.5` is `500m`, `1024Mi` is `1Gi`; the largest lossless suffix, nanos round up.
    (https://github.com/kubernetes/apimachinery/blob/master/pkg/api/resource/quantity.go)"""
    if isinstance(value, str):
        return _canonical(value)
    if value is None:
        return "0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(QUANTITY_FAULT)
    return _canonical(str(value))


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(QUANTITY_FAULT)
    number, suffix = Decimal(found[1]), found[2]
    if suffix.endswith("i"):
        return _binary(number * 1024 ** _BINARY.index(suffix))
    if suffix in _DECIMAL:
        return _decimal(number.scaleb(_DECIMAL[suffix]), _POWERS)
    return _decimal(number.scaleb(int(suffix[1:])), _EXPONENTS)


def _binary(value: Decimal) -> str:
    if abs(value) < 1024:
        return _decimal(value, _POWERS)
    whole = int(value.to_integral_value(ROUND_CEILING))
    power = 0
    while whole and whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole //= 1024
        power += 1
    return f"{whole}{_BINARY[power]}"


def _decimal(value: Decimal, suffixes: dict[int, str]) -> str:
    try:
        nanos = int(value.scaleb(9).to_integral_value(ROUND_CEILING))
    except InvalidOperation:
        raise ValueError(QUANTITY_FAULT) from None
    if not nanos:
        return "0"
    exponent = -9
    while nanos % 1000 == 0 and exponent < 18:
        nanos //= 1000
        exponent += 3
    return f"{nanos}{suffixes[exponent]}"


def duration_text(value: Json) -> str:
    """A metav1.Duration: `90s` is `1m30s`."""
    if not isinstance(value, str):
        raise TypeError("string")
    try:
        return format_duration(parse_duration(value))
    except ValueError:
        raise ValueError(f'time: invalid duration "{value}"') from None


def base64_text(value: Json) -> str:
    """Bytes, which JSON holds as standard base64 (line breaks in it are left out)."""
    if not isinstance(value, str):
        raise TypeError("[]uint8")
    text = value.replace("\n", "").replace("\r", "")
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        wrong = re.search(r"[^A-Za-z0-9+/]", text)
        raise ValueError(f"illegal base64 data at input byte {wrong.start() if wrong else len(text)}") from None
    return text
