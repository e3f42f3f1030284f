"""The functions and operators that expressions may use: the subset of CEL and of Kubernetes' additions to it that the
definitions, match conditions and admission policies of this repository need
(https://kubernetes.io/docs/reference/using-api/cel/#cel-options-language-features-and-libraries).

A function that is missing here does not compile: its definition is refused, never misread.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Final

from kubesim.cel.errors import EvaluationError, not_convertible
from kubesim.cel.overloads import Library
from kubesim.cel.regexes import compiled
from kubesim.cel.values import (
    HIGHEST,
    LOWEST,
    CelType,
    Duration,
    Timestamp,
    UnorderedList,
    checked,
    equals,
    type_name,
)
from kubesim.values import format_time, parse_duration, parse_time

LIBRARY: Final = Library()
NUMBERS: Final = ("int", "double")
COMPARABLE: Final = ("bool", *NUMBERS, "string", "timestamp", "duration")


def _operator(name: str, *pairs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Signatures of a binary operator: `int int int` is the two operands and the result."""
    signatures = []
    for pair in pairs:
        one, other, result = pair.split()
        signatures.append(f"_{name}_({one}, {other}) {result}")
    return LIBRARY.add(*signatures)


_operator("==", "A A bool")(equals)
_operator("!=", "A A bool")(lambda one, other: not equals(one, other))
_ORDERED: Final = (*(f"{each} {each} bool" for each in COMPARABLE), "int double bool", "double int bool")
for _sign, _compare in (("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge)):
    _operator(_sign, *_ORDERED)(_compare)
for _sign, _compute in (("+", operator.add), ("-", operator.sub), ("*", operator.mul)):
    _operator(_sign, "int int int")(lambda one, other, compute=_compute: checked(compute(one, other)))
    _operator(_sign, "double double double")(_compute)
_operator("+", "string string string")(operator.add)


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


@_operator("+", "list(A) list(A) list(A)")
def _append(one: list[Any], other: list[Any]) -> list[Any]:
    if not isinstance(one, UnorderedList):
        return [*one, *other]
    keys = one.keys

    def identity(item: Any) -> Any:
        return [item.get(key) for key in keys] if keys else item

    # An item of both lists keeps its place and takes the newer value.
    replaced = [next((new for new in other if equals(identity(item), identity(new))), item) for item in one]
    added = [new for new in other if not any(equals(identity(new), identity(item)) for item in one)]
    joined = UnorderedList([*replaced, *added])
    joined.keys = keys
    return joined


_operator("+", "timestamp duration timestamp", "duration timestamp timestamp")(
    lambda one, other: Timestamp(checked(one.nanoseconds + other.nanoseconds))
)
_operator("-", "timestamp duration timestamp")(
    lambda one, other: Timestamp(checked(one.nanoseconds - other.nanoseconds))
)
_operator("-", "timestamp timestamp duration")(
    lambda one, other: Duration(checked(one.nanoseconds - other.nanoseconds))
)
LIBRARY.add("-_(int) int")(lambda number: checked(-number))
LIBRARY.add("-_(double) double")(operator.neg)
LIBRARY.add("!_(bool) bool")(operator.not_)


@LIBRARY.add("@in(A, list(A)) bool", "@in(A, map(A, B)) bool")
def _in(value: Any, container: Any) -> bool:
    if isinstance(container, dict):
        return value in container
    return any(equals(value, item) for item in container)


for _type in ("string", "list(A)", "map(A, B)"):
    LIBRARY.add(f"size({_type}) int", f"{_type}.size() int")(len)
LIBRARY.add("string.contains(string) bool")(operator.contains)
LIBRARY.add("string.startsWith(string) bool")(str.startswith)
LIBRARY.add("string.endsWith(string) bool")(str.endswith)


def _pattern(pattern: str) -> re.Pattern[str]:
    try:
        return compiled(pattern)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


@LIBRARY.add("matches(string, string) bool", "string.matches(string) bool")
def _matches(text: str, pattern: str) -> bool:
    return _pattern(pattern).search(text) is not None


@LIBRARY.add("string.find(string) string")
def _find(text: str, pattern: str) -> str:
    match = _pattern(pattern).search(text)
    return match.group() if match else ""


@LIBRARY.add("string.findAll(string) list(string)")
def _find_all(text: str, pattern: str) -> list[str]:
    return [match.group() for match in _pattern(pattern).finditer(text)]


LIBRARY.add("list(string).join() string", "list(string).join(string) string")(
    lambda texts, separator="": separator.join(texts)
)
LIBRARY.add("list(int).sum() int")(lambda values: checked(sum(values)))
LIBRARY.add("list(double).sum() double")(lambda values: sum(values, 0.0))


LIBRARY.add("type(A) type")(lambda value: CelType(type_name(value)))
LIBRARY.add("dyn(A) dyn", "bool(bool) bool", "duration(duration) duration", "timestamp(timestamp) timestamp")(
    lambda value: value
)


@LIBRARY.add("int(int) int", "int(double) int", "int(string) int")
def _int(value: Any) -> int:
    if isinstance(value, str):
        text = value[1:] if value[:1] in ("+", "-") else value
        if not (text.isascii() and text.isdigit()) or not LOWEST <= int(value) <= HIGHEST:
            raise not_convertible("string", "int")
        return int(value)
    if isinstance(value, float) and not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return checked(int(value))


@LIBRARY.add("double(double) double", "double(int) double", "double(string) double")
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
        case Timestamp():
            rest = f".{value.nanoseconds % 10**9:09d}".rstrip("0").rstrip(".")
            return f"{format_time(value.nanoseconds // 10**9)[:-1]}{rest}Z"
    return str(value)


for _type in COMPARABLE:
    LIBRARY.add(f"string({_type}) string")(_string)


@LIBRARY.add("duration(string) duration")
def _duration(text: str) -> Duration:
    try:
        return Duration(parse_duration(text))
    except ValueError:
        raise not_convertible("string", "google.protobuf.Duration") from None


@LIBRARY.add("timestamp(string) timestamp")
def _timestamp(text: str) -> Timestamp:
    try:
        return Timestamp(round(parse_time(text) * 10**6) * 1000)
    except ValueError:
        raise not_convertible("string", "google.protobuf.Timestamp") from None


LIBRARY.add("optional(A).hasValue() bool")(lambda value: bool(value.values))
LIBRARY.add("optional(A).value() A")(lambda value: value.value)
LIBRARY.add("optional(A).orValue(A) A")(lambda value, other: value.values[0] if value.values else other)
