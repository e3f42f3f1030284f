"""What differs between two readings of the settings, and which of that counts without a restart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec

from gracectl.config.fields import fields
from gracectl.config.settings import RELOADABLE, SHUTDOWN_PERIODS, Settings
from gracectl.config.words import shown

S = TypeVar("S", bound=msgspec.Struct)


class Reach(msgspec.Struct, frozen=True):
    """Of one program: the sections and fields that it takes over while it runs (`live`), and those of no meaning to it
    (`idle`). All others it reads when it begins."""

    live: tuple[str, ...]
    idle: tuple[str, ...]


OF_CONTROLLER: Final = Reach(live=RELOADABLE, idle=("agent", "featureGates"))

OF_AGENT: Final = Reach(
    live=(*SHUTDOWN_PERIODS, "nodeGroups", "featureGates", "log.level"),
    idle=(
        *("nodeSelector", "drain", "protection", "health", "voluntary", "instance", "provider", "leaderElection"),
        *("karpenter", "plan", "admission"),
    ),
)


class Change(msgspec.Struct, frozen=True):
    """A field with another value than before, as files have them."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if isinstance(self.before, dict | tuple | list) or isinstance(self.after, dict | tuple | list):
            return self.path
        return f"{self.path} ({_as_written(self.before)} before, {_as_written(self.after)} now)"


def _as_written(value: Any) -> str:
    """As `gracectl config` prints it: 50 for 50.0."""
    return shown(int(value) if isinstance(value, float) and value.is_integer() else value)


def is_among(path: str, places: Collection[str]) -> bool:
    """Whether a field is one of these, or in one of these sections."""
    return any(path == place or path.startswith(f"{place}.") for place in places)


def differences(before: Settings, after: Settings) -> tuple[Change, ...]:
    """The fields that differ, each as a whole."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    found: list[Change] = []
    for path, field in fields().items():
        # Of what may be left out as a whole, the whole is compared.
        if field.is_section or is_among(path, [each.path for each in found]):
            continue
        change = Change(path, _at(old, path), _at(new, path))
        if change.before != change.after:
            found.append(change)
    return tuple(found)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def adopted(running: S, found: S, places: Collection[str], before: str = "") -> S:
    """`running` with what `found` says in these places."""
    taken: dict[str, Any] = {}
    for field in msgspec.structs.fields(running):
        path = f"{before}{field.encode_name}"
        mine, its = getattr(running, field.name), getattr(found, field.name)
        if path in places:
            taken[field.name] = its
        elif any(place.startswith(f"{path}.") for place in places):
            taken[field.name] = adopted(mine, its, places, f"{path}.")
    return msgspec.structs.replace(running, **taken)
