"""What expressions compute with: JSON values as they are, and the few types that JSON lacks.

CEL's int is Python's int (and never a bool), double is float, list and map are list and dict. Invariant: equality is
CEL's: numbers compare across types, everything else only with its own kind; lists of type set and map compare without
regard to order.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from ipaddress import ip_address, ip_interface
from typing import Any, Final

import msgspec

from kubesim.cel.errors import EvaluationError
from kubesim.values import format_duration

LOWEST, HIGHEST = -(2**63), 2**63 - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class UInt(int):
    """An unsigned integer."""

    __slots__ = ()


class Duration(msgspec.Struct, frozen=True, order=True):
    """A length of time."""

    nanoseconds: int

    def __str__(self) -> str:
        seconds = Decimal(self.nanoseconds) / 10**9
        return f"{seconds.normalize():f}s"

    @property
    def go(self) -> str:
        """As Go writes it: `1h0m0s`."""
        return format_duration(self.nanoseconds)


class Timestamp(msgspec.Struct, frozen=True, order=True):
    """An instant, in nanoseconds since the epoch."""

    nanoseconds: int

    @property
    def moment(self) -> datetime:
        """The instant in UTC, to the microsecond."""
        return EPOCH + timedelta(microseconds=self.nanoseconds // 1000)


class Maybe(msgspec.Struct, frozen=True):
    """A value that may be absent (`optional.of`, `?.`)."""

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


class Quantity(msgspec.Struct, frozen=True, order=True):
    """An amount as Kubernetes writes it: `1500m`, `2Gi`."""

    amount: Decimal


class Url(msgspec.Struct, frozen=True):
    """A parsed URL."""

    scheme: str
    host: str
    hostname: str
    port: str
    path: str
    query: dict[str, list[str]]


class Address(msgspec.Struct, frozen=True):
    """An IP address."""

    text: str

    @property
    def parsed(self) -> Any:
        """The address of the standard library."""
        return ip_address(self.text)


class Range(msgspec.Struct, frozen=True):
    """A range of IP addresses."""

    text: str

    @property
    def parsed(self) -> Any:
        """The interface of the standard library: an address and its network."""
        return ip_interface(self.text)


class UnorderedList(list[Any]):
    """A list of type set, or (with keys) of type map: equal lists may be in different orders."""

    keys: tuple[str, ...] = ()


_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (UInt, "uint"),
    (int, "int"),
    (float, "double"),
    (str, "string"),
    (bytes, "bytes"),
    (list, "list"),
    (dict, "map"),
    (type(None), "null_type"),
    (Duration, "google.protobuf.Duration"),
    (Timestamp, "google.protobuf.Timestamp"),
    (Maybe, "optional_type"),
    (CelType, "type"),
    (Quantity, "kubernetes.Quantity"),
    (Url, "kubernetes.URL"),
    (Address, "net.IP"),
    (Range, "net.CIDR"),
)


def type_name(value: Any) -> str:
    """The name of a value's type."""
    return next((name for kind, name in _NAMES if isinstance(value, kind)), "dyn")


def is_number(value: Any) -> bool:
    """Whether it is an int, a uint or a double."""
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


_AMOUNT: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))((?:[KMGTPE]i)|[numkMGTPE]|(?:[eE][+-]?\d+))?")
_SUFFIXES: Final = {
    **{
        suffix: Decimal(1000) ** power
        for suffix, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)
    },
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


def parse_quantity(text: str) -> Quantity:
    """The amount that a text says. Raises ValueError."""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    number, suffix = found.groups()
    try:
        if suffix and suffix not in _SUFFIXES:
            return Quantity(Decimal(number + suffix))
        return Quantity(Decimal(number) * _SUFFIXES.get(suffix or "", Decimal(1)))
    except InvalidOperation:
        raise ValueError(f"{text!r} is no quantity") from None
