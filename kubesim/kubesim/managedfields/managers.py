"""Managers and their fields: metadata.managedFields, read and written.

A manager is identified by name, operation, version (Update only) and subresource. Invariant: entries are ordered by
operation, time, name, version, subresource, so equal ownership is equal JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kubesim.managedfields.fieldsets import FieldSet
from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import quoted
from kubesim.values import parse_time

APPLY = "Apply"
UPDATE = "Update"
FORMAT = "FieldsV1"


class Manager(NamedTuple):
    """The identity of a manager. `api_version` is empty for appliers."""

    name: str
    operation: str
    api_version: str = ""
    subresource: str = ""

    @property
    def words(self) -> str:
        """The manager as refusals name it."""
        words = quoted(self.name)
        if self.subresource:
            words += f" with subresource {quoted(self.subresource)}"
        return f"{words} using {self.api_version}" if self.operation == UPDATE else words


class Owned(NamedTuple):
    """Fields of a manager, the version that spells them, and its last write (RFC 3339, "" if unknown)."""

    fields: FieldSet
    api_version: str
    time: str = ""


Managed = Mapping[Manager, Owned]
"""The owners of one object's fields. Never change one in place."""

NO_OWNERS: Managed = {}


def decoded(entries: Json) -> Managed:
    """The owners in metadata.managedFields; none if the entries are missing or make no sense."""
    try:
        return dict(map(_read, entries or ()))
    except (AttributeError, KeyError, TypeError, ValueError):
        return NO_OWNERS


def _read(entry: JsonObject) -> tuple[Manager, Owned]:
    operation, api_version = entry["operation"], entry["apiVersion"]
    manager = Manager(
        entry.get("manager", ""), operation, "" if operation == APPLY else api_version, entry.get("subresource", "")
    )
    return manager, Owned(FieldSet.decoded(entry["fieldsV1"]), api_version, entry.get("time", ""))


def encoded(managed: Managed) -> list[JsonObject]:
    """metadata.managedFields."""
    return [_entry(manager, owned) for manager, owned in sorted(managed.items(), key=_rank)]


def _rank(entry: tuple[Manager, Owned]) -> tuple[str, float, str, str, str]:
    manager, owned = entry
    written = parse_time(owned.time) if owned.time else 0.0
    return manager.operation, written, manager.name, owned.api_version, manager.subresource


def _entry(manager: Manager, owned: Owned) -> JsonObject:
    entry: JsonObject = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": owned.api_version,
        "time": owned.time,
        "fieldsType": FORMAT,
        "fieldsV1": owned.fields.encoded(),
        "subresource": manager.subresource,
    }
    return {key: value for key, value in entry.items() if value != ""}


def is_reset(entries: Json) -> bool:
    """Whether a client resets ownership: it sends no entry, or one empty one."""
    return entries in ([], [{}])


def without_times(entries: Json) -> Json:
    """The entries as they are compared: the time of a write is no change of an object."""
    return [{key: value for key, value in entry.items() if key != "time"} for entry in entries or ()]
