"""Values of expressions: JSON values, and the few types that JSON lacks.

CEL's int is Python's int (never a bool), double is float, list and map are list and dict. Invariant: `equals` is CEL's
equality: numbers compare across types; lists of type set and map compare without regard to order.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

from kubesim.cel.errors import EvaluationError

LOWEST, HIGHEST = -(2**63), 2**63 - 1


class Duration(msgspec.Struct, frozen=True, order=True):
    """A length of time."""

    nanoseconds: int

    def __str__(self) -> str:
        seconds = Decimal(self.nanoseconds) / 10**9
        return f"{seconds.normalize():f}s"


class Timestamp(msgspec.Struct, frozen=True, order=True):
    """An instant, in nanoseconds since the epoch."""

    nanoseconds: int


class Maybe(msgspec.Struct, frozen=True):
    """A value that may be absent (`.?`, optionalOldSelf)."""

    values: tuple[Any, ...] = ()

    @property
    def value(self) -> Any:
        """The value. Raises EvaluationError where there is none."""
        if not self.values:
            raise EvaluationError("optional.none() dereference")
        return self.values[0]


class CelType(msgspec.Struct, frozen=True):
    """A type as a value: what `type(x)` gives."""

    name: str


class UnorderedList(list[Any]):
    """A list of type set, or (with keys) of type map: equal lists may be in different orders."""

    keys: tuple[str, ...] = ()


_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (int, "int"),
    (float, "double"),
    (str, "string"),
    (list, "list"),
    (dict, "map"),
    (type(None), "null_type"),
    (Duration, "google.protobuf.Duration"),
    (Timestamp, "google.protobuf.Timestamp"),
    (Maybe, "optional_type"),
    (CelType, "type"),
)


def type_name(value: Any) -> str:
    """The name of a value's type."""
    return next((name for kind, name in _NAMES if isinstance(value, kind)), "dyn")


def is_number(value: Any) -> bool:
    """Whether a value is an int or a double."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def equals(one: Any, other: Any) -> bool:
    """CEL's ==."""
    if is_number(one) or is_number(other):
        return is_number(one) and is_number(other) and bool(one == other)
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and equals(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return False
        if isinstance(one, UnorderedList) and isinstance(other, UnorderedList):
            return all(any(equals(item, found) for found in other) for item in one)
        return all(equals(item, found) for item, found in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


def checked(number: int) -> int:
    """An int that fits 64 bits. Raises EvaluationError."""
    if not LOWEST <= number <= HIGHEST:
        raise EvaluationError("integer overflow")
    return number
