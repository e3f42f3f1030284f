"""Differences between two settings, and which of them apply without a restart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec

from gracectl.config.fields import fields
from gracectl.config.messages import display
from gracectl.config.settings import RELOADABLE, SHUTDOWN_PERIODS, Settings

S = TypeVar("S", bound=msgspec.Struct)


class ReloadScope(msgspec.Struct, frozen=True):
    """Scope of one program: sections and fields that it reloads (`live`), and those that it ignores. All others are
    read at its start."""

    live: tuple[str, ...]
    ignored: tuple[str, ...]


CONTROLLER_SCOPE: Final = ReloadScope(live=RELOADABLE, ignored=("agent", "featureGates"))

AGENT_SCOPE: Final = ReloadScope(
    live=(*SHUTDOWN_PERIODS, "nodeGroups", "featureGates", "log.level"),
    ignored=(
        *("nodeSelector", "finalizer", "drain", "protection", "replaceFirst", "health", "voluntary", "interruption"),
        *("instance", "provider", "leaderElection", "assist", "plan", "metrics.labels", "tracing", "notifications"),
        "admission",
    ),
)


class Change(msgspec.Struct, frozen=True):
    """Changed field, with values as in a file."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return self.text("before", "now")

    def text(self, before: str, after: str) -> str:
        """`eviction.qps (100 before, 50 now)`, with these words; only the path of lists and mappings."""
        if isinstance(self.before, dict | tuple | list) or isinstance(self.after, dict | tuple | list):
            return self.path
        return f"{self.path} ({_as_printed(self.before)} {before}, {_as_printed(self.after)} {after})"


def _as_printed(value: Any) -> str:
    """Value as `gracectl config` prints it: 50 for 50.0."""
    return display(int(value) if isinstance(value, float) and value.is_integer() else value)


def is_within(path: str, places: Collection[str]) -> bool:
    """Whether a field is one of these, or in one of these sections."""
    return any(path == place or path.startswith(f"{place}.") for place in places)


def differences(before: Settings, after: Settings) -> tuple[Change, ...]:
    """Fields that differ, each as a whole."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    found: list[Change] = []
    for path, field in fields().items():
        # An optional section is compared as a whole.
        if field.is_section or is_within(path, [each.path for each in found]):
            continue
        change = Change(path, _at(old, path), _at(new, path))
        if change.before != change.after:
            found.append(change)
    return tuple(found)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def with_changes(running: S, found: S, places: Collection[str], before: str = "") -> S:
    """`running` with the values of `found` in these places."""
    taken: dict[str, Any] = {}
    for field in msgspec.structs.fields(running):
        path = f"{before}{field.encode_name}"
        mine, its = getattr(running, field.name), getattr(found, field.name)
        if path in places:
            taken[field.name] = its
        elif any(place.startswith(f"{path}.") for place in places):
            taken[field.name] = with_changes(mine, its, places, f"{path}.")
    return msgspec.structs.replace(running, **taken)
