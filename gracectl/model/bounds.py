"""Bounds on the memory of decoded objects: one rule for the objects of every kind.

Tenants and kubelets write objects of a megabyte, and a decoded one takes up to thirty times that. Invariants: a small
object costs nothing here; a larger one is charged to its namespace and to all, for as long as it lives; what would
exceed a limit raises OverLimit instead, so that a cache sets it aside by name. Parts of objects that no decision needs
are cut before they are charged: a node is not set aside because its kubelet writes a thousand conditions.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from fractions import Fraction
from sys import getsizeof
from typing import Any, Final

import msgspec

from gracectl.model.selectors import LabelSelector

LONGEST_TEXT: Final = 1024
"""Characters of a text that only people read, or that is compared with a name."""

SELECTOR_BYTES: Final = 256 * 1024
"""Bytes of JSON: a larger selector is not decoded."""

_ENTRY = 100
"""Bytes of an entry of a map, without its key and value."""
_VALUE, _LABEL = 300, 500
"""Bytes of a value and of a label of a selector, with their entries in sets and in the index of its namespace."""


class Limits(msgspec.Struct, frozen=True):
    """Bytes of memory. `free`: objects up to this size are not charged; ResourceQuotas limit their number."""

    free: int = 16 * 1024
    per_object: int = 2 * 1024 * 1024
    per_namespace: int = 8 * 1024 * 1024
    in_all: int = 64 * 1024 * 1024


LIMITS: Final = Limits()


class OverLimit(msgspec.ValidationError):
    """The object would hold more memory than it may; the message says how much, and what to do."""


class _Version(weakref.ref[Any]):
    """One decoded state of an object."""

    __slots__ = ("account", "size")

    account: _Account
    size: int


class _Account:
    """Charge of one object: the size of the largest of its states that live, as a new one soon replaces the old one."""

    __slots__ = ("charged", "key", "namespace", "versions")

    def __init__(self, key: Hashable, namespace: str) -> None:
        self.key, self.namespace = key, namespace
        self.charged = 0
        self.versions: list[_Version] = []


class MemoryQuota:
    """Charges of the large objects that live now. The caches of one process share one quota."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._accounts: dict[Hashable, _Account] = {}
        self._namespaces: dict[str, int] = {}
        self._total = 0

    @property
    def charged(self) -> int:
        """Bytes charged now."""
        return self._total

    def charge(self, thing: Any, key: Hashable, namespace: str = "", size: int | None = None) -> None:
        """Charge an object until it dies; raises OverLimit. `key`: its identity, the same for each of its states."""
        size = size_of(thing) if size is None else size
        limits = self.limits
        if size <= limits.free:
            return
        check_object(size, limits)
        account = self._accounts.get(key) or _Account(key, namespace)
        if any(version() is thing for version in account.versions):
            return
        more = max(size - account.charged, 0)
        if self._namespaces.get(namespace, 0) + more > limits.per_namespace:
            place = f"namespace {namespace}" if namespace else "the cluster, outside of namespaces,"
            raise OverLimit(
                f"needs {_mib(size)} of memory, and the large objects of {place} already have most of their "
                f"{_mib(limits.per_namespace)}; make it smaller"
            )
        if self._total + more > limits.in_all:
            raise OverLimit(
                f"needs {_mib(size)} of memory, and the large objects of the cluster already have most of their "
                f"{_mib(limits.in_all)}; make it smaller"
            )
        version = _Version(thing, self._end)
        version.account, version.size = account, size
        account.versions.append(version)
        self._accounts[key] = account
        self._settle(account)

    def _end(self, version: _Version) -> None:
        account = version.account
        # By identity: living references are compared by their objects.
        account.versions = [each for each in account.versions if each is not version]
        self._settle(account)
        if not account.versions and self._accounts.get(account.key) is account:
            del self._accounts[account.key]

    def _settle(self, account: _Account) -> None:
        charged = max((version.size for version in account.versions), default=0)
        difference, account.charged = charged - account.charged, charged
        self._total += difference
        left = self._namespaces.get(account.namespace, 0) + difference
        if left:
            self._namespaces[account.namespace] = left
        else:
            self._namespaces.pop(account.namespace, None)


def check_object(size: int, limits: Limits = LIMITS) -> None:
    """Raise OverLimit if this number of bytes is too large for any object."""
    if size > limits.per_object:
        most = _mib(limits.per_object)
        raise OverLimit(f"needs {_mib(size)} of memory, more than the {most} of an object; make it smaller")


def size_of(value: Any) -> int:
    """Bytes of memory of a decoded value, roughly and rather too many; parts that it has several times count once."""
    size, seen, row = 0, set[int](), [value]
    while row:
        each = row.pop()
        if each is None or isinstance(each, (bool, float)):
            continue
        if id(each) in seen:
            size += 8
            continue
        seen.add(id(each))
        if isinstance(each, str):
            size += getsizeof(each)
        elif isinstance(each, int):
            size += 32 + each.bit_length() // 8
        elif isinstance(each, Fraction):
            size += 48
            row += (each.numerator, each.denominator)
        elif isinstance(each, LabelSelector):
            size += selector_size(each)
        elif isinstance(each, msgspec.Struct):
            size += 64 + 8 * len(each.__struct_fields__)
            row.extend(getattr(each, field) for field in each.__struct_fields__)
        elif isinstance(each, dict):
            size += 64 + _ENTRY * len(each)
            row.extend(each)
            row.extend(each.values())
        elif isinstance(each, Mapping):
            size += getsizeof(each)
        else:
            size += 56 + (8 if isinstance(each, tuple) else 40) * len(each)
            row.extend(each)
    return size


def selector_size(selector: LabelSelector) -> int:
    """Size of a selector, with the memory that matching needs."""
    texts = sum(len(key) + len(value) for key, value in selector.match_labels.items())
    texts += sum(len(each.key) + sum(map(len, each.values)) for each in selector.match_expressions)
    parts = len(selector.match_labels) + len(selector.match_expressions)
    return _LABEL * (1 + parts) + _VALUE * (selector.size - parts) + texts


def cut(text: str | None, longest: int = LONGEST_TEXT) -> str:
    """The text, or its first characters; null reads as empty."""
    return (text or "")[:longest]


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MiB"
