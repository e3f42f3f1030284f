"""Go durations, read and written exactly as `time.ParseDuration` and `Duration.String()` do.

Annotations, claims and settings hold durations in Go's grammar. Invariant: a duration is an integer number
of nanoseconds within int64; nothing is ever rounded through a float beyond what Go itself rounds.
"""

from __future__ import annotations

import re
from typing import Final

NANOSECONDS_PER_SECOND: Final = 1_000_000_000

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek mu
    "ms": 1_000_000,
    "s": NANOSECONDS_PER_SECOND,
    "m": 60 * NANOSECONDS_PER_SECOND,
    "h": 3_600 * NANOSECONDS_PER_SECOND,
}
# Any text between two numbers is read as a unit, so that the error can name it.
_TERM: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^.0-9]*)")
_LIMIT: Final = 1 << 63
"""The magnitude of the most negative int64; Go parses the magnitude first and the sign last."""
_LIMIT_DIGITS: Final = len(str(_LIMIT))


def parse_duration(text: str) -> int:
    """Parse a Go duration such as `1h30m`, `-1.5s` or `0` into nanoseconds. Raises ValueError.

    Linear in the length of `text`: any tenant writes annotations, of up to 256 KiB.
    """
    negative = text.startswith("-")
    position = 1 if text.startswith(("+", "-")) else 0
    if text[position:] == "0":
        return 0
    if position == len(text):
        raise _refusal(text, "there is no number in it")
    total = 0
    while position < len(text):
        term = _TERM.match(text, position)
        assert term is not None  # every part of the pattern may be empty
        total += _nanoseconds(text, *term.groups(default=""))
        if total > _LIMIT:
            raise _too_long(text)
        position = term.end()
    if negative:
        return -total
    if total == _LIMIT:
        raise _too_long(text)
    return total


def parse_seconds(text: str) -> float:
    """Parse a duration into seconds."""
    return parse_duration(text) / NANOSECONDS_PER_SECOND


def format_duration(nanoseconds: int) -> str:
    """Go's `Duration.String()`: `1h0m0s`, `1.5s`, `250ms`, `0s`. Takes what parse_duration returns."""
    if nanoseconds == 0:
        return "0s"
    sign, magnitude = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if magnitude < NANOSECONDS_PER_SECOND:
        unit = "ms" if magnitude >= _UNITS["ms"] else "µs" if magnitude >= _UNITS["µs"] else "ns"
        return f"{sign}{_decimal(magnitude, _UNITS[unit])}{unit}"
    minutes, rest = divmod(magnitude, _UNITS["m"])
    seconds = _decimal(rest, NANOSECONDS_PER_SECOND)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}s"
    return f"{sign}{minutes}m{seconds}s" if minutes else f"{sign}{seconds}s"


def _nanoseconds(text: str, whole: str, fraction: str, unit: str) -> int:
    """The value of one number and its unit."""
    if not whole and not fraction:
        raise _refusal(text, f"a number is missing before {unit[:20]!r}" if unit else "a dot has no digits")
    if not unit:
        raise _refusal(text, "a number has no unit (ns, us, ms, s, m, h)")
    if unit not in _UNITS:
        raise _refusal(text, f"there is no unit {unit[:20]!r} (ns, us, ms, s, m, h)")
    whole = whole.lstrip("0")
    # int() would refuse thousands of digits with its own message.
    if len(whole) > _LIMIT_DIGITS or int(whole or "0") > _LIMIT // _UNITS[unit]:
        raise _too_long(text)
    return int(whole or "0") * _UNITS[unit] + _scaled_fraction(fraction, _UNITS[unit])


def _scaled_fraction(digits: str, unit: int) -> int:
    """The nanoseconds of `0.digits` units: Go reads digits while they fit an int64, then multiplies as float64."""
    value, scale = 0, 1
    for digit in digits:
        following = value * 10 + int(digit)
        if value > (_LIMIT - 1) // 10 or following > _LIMIT:
            break
        value, scale = following, scale * 10
    return int(float(value) * (float(unit) / float(scale))) if value else 0


def _decimal(value: int, unit: int) -> str:
    """`value / unit` without trailing zeros; `unit` is a power of ten."""
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}"


def _refusal(text: str, why: str) -> ValueError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return ValueError(f"{shown!r} is no duration: {why}")


def _too_long(text: str) -> ValueError:
    return _refusal(text, "it is longer than the 292 years that a duration can hold")
