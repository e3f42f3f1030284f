"""The functions and operators that every CEL has
(https://github.com/google/cel-spec/blob/master/doc/langdef.md#list-of-standard-definitions)."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kubesim.cel.errors import EvaluationError, not_convertible
from kubesim.cel.overloads import Library
from kubesim.cel.regexes import compiled
from kubesim.cel.values import (
    HIGHEST,
    LOWEST,
    CelType,
    Duration,
    Maybe,
    Timestamp,
    UInt,
    UnorderedList,
    checked,
    equals,
    type_name,
)
from kubesim.values import format_time, parse_duration, parse_time

STANDARD: Final = Library()
NUMBERS: Final = ("int", "uint", "double")
COMPARABLE: Final = ("bool", *NUMBERS, "string", "bytes", "timestamp", "duration")


def _operator(name: str, *pairs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Signatures of a binary operator: `int int int` is the two operands and the result."""
    signatures = []
    for pair in pairs:
        one, other, result = pair.split()
        signatures.append(f"_{name}_({one}, {other}) {result}")
    return STANDARD.add(*signatures)


@_operator("==", "A A bool")
def _equal(one: Any, other: Any) -> bool:
    return equals(one, other)


@_operator("!=", "A A bool")
def _unequal(one: Any, other: Any) -> bool:
    return not equals(one, other)


_ORDERED: Final = [
    *(f"{each} {each} bool" for each in COMPARABLE),
    *(f"{one} {other} bool" for one in NUMBERS for other in NUMBERS if one != other),
]


@_operator("<", *_ORDERED)
def _less(one: Any, other: Any) -> bool:
    return bool(one < other)


@_operator("<=", *_ORDERED)
def _at_most(one: Any, other: Any) -> bool:
    return bool(one <= other)


@_operator(">", *_ORDERED)
def _more(one: Any, other: Any) -> bool:
    return bool(one > other)


@_operator(">=", *_ORDERED)
def _at_least(one: Any, other: Any) -> bool:
    return bool(one >= other)


@_operator("+", "int int int")
def _add(one: int, other: int) -> int:
    return checked(one + other)


@_operator("-", "int int int")
def _subtract(one: int, other: int) -> int:
    return checked(one - other)


@_operator("*", "int int int")
def _multiply(one: int, other: int) -> int:
    return checked(one * other)


@_operator("/", "int int int")
def _divide(one: int, other: int) -> int:
    if other == 0:
        raise EvaluationError("division by zero")
    quotient = abs(one) // abs(other)
    return checked(quotient if (one < 0) == (other < 0) else -quotient)


@_operator("%", "int int int")
def _modulo(one: int, other: int) -> int:
    if other == 0:
        raise EvaluationError("modulus by zero")
    rest = abs(one) % abs(other)
    return -rest if one < 0 else rest


def _unsigned(number: int) -> UInt:
    if not 0 <= number < 2**64:
        raise EvaluationError("unsigned integer overflow")
    return UInt(number)


for _sign, _apply in (
    ("+", lambda one, other: int(one) + int(other)),
    ("-", lambda one, other: int(one) - int(other)),
    ("*", lambda one, other: int(one) * int(other)),
    ("/", lambda one, other: _divide(int(one), int(other))),
    ("%", lambda one, other: _modulo(int(one), int(other))),
):
    _operator(_sign, "uint uint uint")(lambda one, other, apply=_apply: _unsigned(apply(one, other)))

_operator("+", "double double double")(lambda one, other: one + other)
_operator("-", "double double double")(lambda one, other: one - other)
_operator("*", "double double double")(lambda one, other: one * other)


@_operator("/", "double double double")
def _divide_doubles(one: float, other: float) -> float:
    if other == 0.0:
        return math.nan if one == 0.0 or math.isnan(one) else math.copysign(math.inf, one) * math.copysign(1.0, other)
    return one / other


@_operator("+", "string string string", "bytes bytes bytes")
def _concatenate(one: Any, other: Any) -> Any:
    return one + other


@_operator("+", "list(A) list(A) list(A)")
def _append(one: list[Any], other: list[Any]) -> list[Any]:
    if not isinstance(one, UnorderedList):
        return [*one, *other]
    keys = one.keys

    def identity(item: Any) -> Any:
        return [item.get(key) for key in keys] if keys else item

    found = UnorderedList(item for item in one if not any(equals(identity(item), identity(each)) for each in other))
    # What is in both keeps its place and takes the newer value.
    replaced = [next((new for new in other if equals(identity(item), identity(new))), item) for item in one]
    found[:] = [*replaced, *(new for new in other if not any(equals(identity(new), identity(item)) for item in one))]
    found.keys = keys
    return found


@_operator("+", "timestamp duration timestamp", "duration timestamp timestamp")
def _later(one: Timestamp | Duration, other: Timestamp | Duration) -> Timestamp:
    return Timestamp(checked(one.nanoseconds + other.nanoseconds))


@_operator("+", "duration duration duration")
def _longer(one: Duration, other: Duration) -> Duration:
    return Duration(checked(one.nanoseconds + other.nanoseconds))


@_operator("-", "timestamp duration timestamp")
def _earlier(one: Timestamp, other: Duration) -> Timestamp:
    return Timestamp(checked(one.nanoseconds - other.nanoseconds))


@_operator("-", "timestamp timestamp duration", "duration duration duration")
def _between(one: Timestamp | Duration, other: Timestamp | Duration) -> Duration:
    return Duration(checked(one.nanoseconds - other.nanoseconds))


STANDARD.add("-_(int) int")(lambda number: checked(-number))
STANDARD.add("-_(double) double")(lambda number: -number)
STANDARD.add("!_(bool) bool")(lambda value: not value)


@STANDARD.add("@in(A, list(A)) bool", "@in(A, map(A, B)) bool")
def _in(value: Any, container: Any) -> bool:
    if isinstance(container, dict):
        return value in container
    return any(equals(value, item) for item in container)


def _size(value: Any) -> int:
    return len(value)


for _type in ("string", "bytes", "list(A)", "map(A, B)"):
    STANDARD.add(f"size({_type}) int", f"{_type}.size() int")(_size)

STANDARD.add("string.contains(string) bool")(lambda text, part: part in text)
STANDARD.add("string.startsWith(string) bool")(lambda text, part: text.startswith(part))
STANDARD.add("string.endsWith(string) bool")(lambda text, part: text.endswith(part))


@STANDARD.add("matches(string, string) bool", "string.matches(string) bool")
def _matches(text: str, pattern: str) -> bool:
    try:
        return compiled(pattern).search(text) is not None
    except ValueError as error:
        raise EvaluationError(str(error)) from None


# -- conversions -------------------------------------------------------------------------------------------------------

STANDARD.add("type(A) type")(lambda value: CelType(type_name(value)))
STANDARD.add("dyn(A) dyn")(lambda value: value)


@STANDARD.add("int(int) int", "int(uint) int", "int(double) int", "int(string) int", "int(timestamp) int")
def _int(value: Any) -> int:
    if isinstance(value, Timestamp):
        return value.nanoseconds // 10**9
    if isinstance(value, str):
        text = value[1:] if value[:1] in ("+", "-") else value
        if not (text.isascii() and text.isdigit()) or not LOWEST <= int(value) <= HIGHEST:
            raise not_convertible("string", "int")
        return int(value)
    if isinstance(value, float) and not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return checked(int(value))


@STANDARD.add("uint(uint) uint", "uint(int) uint", "uint(double) uint", "uint(string) uint")
def _uint(value: Any) -> UInt:
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise not_convertible("string", "uint")
    if isinstance(value, float) and not 0 <= value < 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return _unsigned(int(value))


@STANDARD.add("double(double) double", "double(int) double", "double(uint) double", "double(string) double")
def _double(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise not_convertible("string", "double") from None


def _string(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}" if value == int(value or 0) and abs(value) < 1e15 else repr(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
        case Timestamp():
            rest = f".{value.nanoseconds % 10**9:09d}".rstrip("0").rstrip(".")
            return f"{format_time(value.nanoseconds // 10**9)[:-1]}{rest}Z"
    return str(value)


for _type in ("string", "bool", "int", "uint", "double", "bytes", "timestamp", "duration"):
    STANDARD.add(f"string({_type}) string")(_string)

STANDARD.add("bytes(bytes) bytes")(lambda value: value)
STANDARD.add("bytes(string) bytes")(lambda value: value.encode())
STANDARD.add("bool(bool) bool")(lambda value: value)


@STANDARD.add("bool(string) bool")
def _bool(value: str) -> bool:
    if value in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if value in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    raise not_convertible("string", "bool")


@STANDARD.add("duration(duration) duration", "duration(string) duration")
def _duration(value: Duration | str) -> Duration:
    if isinstance(value, Duration):
        return value
    try:
        return Duration(parse_duration(value))
    except ValueError:
        raise not_convertible("string", "google.protobuf.Duration") from None


@STANDARD.add("timestamp(timestamp) timestamp", "timestamp(string) timestamp", "timestamp(int) timestamp")
def _timestamp(value: Timestamp | str | int) -> Timestamp:
    if isinstance(value, Timestamp):
        return value
    try:
        return Timestamp(round(parse_time(value) * 10**6) * 1000 if isinstance(value, str) else value * 10**9)
    except ValueError:
        raise not_convertible("string", "google.protobuf.Timestamp") from None


# -- parts of times ----------------------------------------------------------------------------------------------------


def _zoned(timestamp: Timestamp, zone: str = "UTC") -> Any:
    if zone[:1] in "+-" or zone[:2].isdigit():
        hours, _, minutes = zone.lstrip("+-").partition(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timestamp.moment.astimezone(timezone(-offset if zone.startswith("-") else offset))
    try:
        return timestamp.moment.astimezone(UTC if zone in ("", "UTC") else ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):
        raise EvaluationError(f"unknown time zone {zone}") from None


_PARTS: Final[dict[str, Callable[[Any], int]]] = {
    "getFullYear": lambda moment: moment.year,
    "getMonth": lambda moment: moment.month - 1,
    "getDate": lambda moment: moment.day,
    "getDayOfMonth": lambda moment: moment.day - 1,
    "getDayOfWeek": lambda moment: moment.isoweekday() % 7,
    "getDayOfYear": lambda moment: moment.timetuple().tm_yday - 1,
    "getHours": lambda moment: moment.hour,
    "getMinutes": lambda moment: moment.minute,
    "getSeconds": lambda moment: moment.second,
    "getMilliseconds": lambda moment: moment.microsecond // 1000,
}
for _name, _part in _PARTS.items():
    STANDARD.add(f"timestamp.{_name}() int", f"timestamp.{_name}(string) int")(
        lambda timestamp, zone="UTC", part=_part: part(_zoned(timestamp, zone))
    )
for _name, _unit in (("getHours", 3600), ("getMinutes", 60), ("getSeconds", 1)):
    STANDARD.add(f"duration.{_name}() int")(lambda length, unit=_unit: _divide(length.nanoseconds, unit * 10**9))
STANDARD.add("duration.getMilliseconds() int")(lambda length: _divide(length.nanoseconds, 10**6) % 1000)

# -- optional values ---------------------------------------------------------------------------------------------------

STANDARD.add("optional.of(A) optional(A)")(lambda value: Maybe((value,)))
STANDARD.add("optional.none() optional(A)")(lambda: Maybe())
STANDARD.add("optional.ofNonZeroValue(A) optional(A)")(
    lambda value: Maybe() if value is None or value in (False, 0, 0.0, "", b"", [], {}) else Maybe((value,))
)
STANDARD.add("optional(A).hasValue() bool")(lambda value: bool(value.values))
STANDARD.add("optional(A).value() A")(lambda value: value.value)
STANDARD.add("optional(A).orValue(A) A")(lambda value, other: value.values[0] if value.values else other)
STANDARD.add("optional(A).or(optional(A)) optional(A)")(lambda value, other: value if value.values else other)
