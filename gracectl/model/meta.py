"""Metadata of objects of every kind, and the small kinds Lease and ConfigMap."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from gracectl.model import names

MOST_KEYS: Final = 16_384
"""Sort keys that are kept: the board sorts thousands of nodes at each change."""

_NUMBERS: Final = re.compile(r"([0-9]+)")


class NamespacedObject(msgspec.Struct, frozen=True, gc=False):
    """Base of the kinds that live in namespaces; a namesake with another uid is another object."""

    namespace: str
    name: str
    uid: str
    resource_version: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.namespace, self.name)

    @property
    def full_name(self) -> str:
        """`namespace/name`, for messages."""
        return f"{self.namespace}/{self.name}"


class ClusterObject(msgspec.Struct, frozen=True, gc=False):
    """Base of the kinds that live in no namespace; a namesake with another uid is another object."""

    name: str
    uid: str
    resource_version: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """("", name)."""
        return ("", self.name)


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    """One entry of metadata.ownerReferences; `controller` marks the one that manages the object."""

    kind: str
    name: str
    uid: str
    controller: bool = False
    group: str = ""
    """API group of the owner; empty for the core group."""

    @property
    def is_node(self) -> bool:
        """Whether the owner is a Node of Kubernetes, not a kind of that name in another group."""
        return self.kind == names.NODE_KIND and not self.group


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One entry of status.conditions. `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition: float | None = None
    """Instant; None if absent."""


def condition_of(conditions: tuple[Condition, ...], type_: str) -> Condition | None:
    """The condition of that type, if the object has it."""
    for condition in conditions:
        if condition.type == type_:
            return condition
    return None


def turned_at(before: Condition | None, status: str, now: float) -> float:
    """Since when a condition has `status` (Unix seconds), if it is written at `now`; `before`: as it is shown."""
    if before is None or before.status != status or before.last_transition is None:
        return now
    return before.last_transition


@lru_cache(maxsize=MOST_KEYS)
def natural_key(name: str) -> tuple[tuple[str, int, str], ...]:
    """Sort key of names in lists for people: `node-2` comes before `node-10`. Different names never tie."""
    parts = [*_NUMBERS.split(name), ""]
    numbers = [(len(digits.lstrip("0")) if digits else -1, digits.lstrip("0")) for digits in parts[1::2]]
    return (*((text, *number) for text, number in zip(parts[::2], numbers, strict=True)), (name, 0, ""))


def pointer(*parts: str) -> str:
    """A JSON pointer (RFC 6901); parts may hold slashes, as label keys do."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


class Lease(NamespacedObject, frozen=True, gc=False):
    """One lease. Its expiry is enforced by holders and contenders, not by the server."""

    holder: str = ""
    """Empty when it was released."""
    duration_seconds: int = 0
    acquire_time: float | None = None
    renew_time: float | None = None
    transitions: int = 0


class ConfigMap(NamespacedObject, frozen=True, gc=False):
    """One ConfigMap: its texts by key, without binary ones."""

    data: Mapping[str, str] = {}
