"""JSON that commands print: the encoder, and the objects that several commands share.

Instants are RFC 3339 by the server's clock; a field that ends in `Seconds` is a number of seconds. Invariants: fields
are added, never renamed or removed; lists have the order of the table.
"""

from __future__ import annotations

import msgspec
import yaml

from gracectl.kube.credentials import ClusterAddress
from gracectl.model.foreign import visible_json
from gracectl.model.times import format_time
from gracectl.policy.eviction_queues import QueuePosition
from gracectl.policy.forecast import Window
from gracectl.policy.protection import Protection
from gracectl.policy.warnings import PlanWarning


class JsonObject(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all JSON objects: immutable, names in camelCase."""


class ClusterReport(JsonObject, frozen=True):
    """The cluster. `context`: of the kubeconfig; null: the pod's service account was used."""

    context: str | None
    server: str


class QueuePositionReport(JsonObject, frozen=True):
    """The position (from 1) of a pod among those that wait for the same budget; `after`: the pod before it.

    `undecided`: pods of several nodes are equal, so it may have the position of any of them.
    """

    number: int
    of: int
    after: str | None
    undecided: bool


class ProtectionReport(JsonObject, frozen=True):
    """What protects a pod. `until` null: until it is removed; `valid` false: the value cannot be parsed."""

    kind: str
    value: str
    until: str | None
    valid: bool
    capped: bool


class WarningReport(JsonObject, frozen=True):
    """A warning. `blocking`: the node will not be drained, or not gracefully."""

    kind: str
    blocking: bool
    message: str
    objects: tuple[str, ...]


class PlanWarningReport(WarningReport, frozen=True):
    """A warning of a plan or a status. `remedy` null: there is none."""

    remedy: str | None


class WindowReport(JsonObject, frozen=True):
    """Between which instants something happens. `latest` null: perhaps never; seconds count from `at` of the whole."""

    earliest: str
    latest: str | None
    earliest_seconds: float
    latest_seconds: float | None
    certain: bool


def to_json(value: object, *, indent: int = 2) -> str:
    """One JSON object; `indent` 0: on one line."""
    text = msgspec.json.encode(value)
    return visible_json((msgspec.json.format(text, indent=indent) if indent else text).decode())


def to_yaml(value: object) -> str:
    """The same object as YAML."""
    return yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, width=1000).rstrip()


def structured(value: object, output: str) -> str:
    """The object for a program, in the notation that `-o` names: yaml, or json."""
    return to_yaml(value) if output == "yaml" else to_json(value)


def instant(at: float | None) -> str | None:
    """RFC 3339; None for None."""
    return None if at is None else format_time(at)


def cluster_report(cluster: ClusterAddress) -> ClusterReport:
    """The cluster that an object is about."""
    return ClusterReport(cluster.context, cluster.server)


def queue_position_report(position: QueuePosition | None) -> QueuePositionReport | None:
    """The position of a pod, if it waits for a budget."""
    if position is None:
        return None
    ahead = None if position.ahead is None else "/".join(position.ahead.entry.pod.key)
    return QueuePositionReport(position.number, position.of, ahead, position.is_undecided)


def protection_report(protection: Protection | None) -> ProtectionReport | None:
    """What protects a pod, if anything does."""
    if protection is None:
        return None
    until = instant(protection.until)
    return ProtectionReport(protection.kind, protection.value, until, protection.is_valid, protection.is_capped)


def warning_report(warning: PlanWarning) -> PlanWarningReport:
    """A warning of a plan or a status."""
    kind = warning.kind
    return PlanWarningReport(kind.value, kind.is_blocking, warning.message, warning.objects, warning.remedy or None)


def window_report(window: Window | None, at: float) -> WindowReport | None:
    """A window; seconds count from `at`."""
    if window is None:
        return None
    return WindowReport(
        earliest=format_time(window.earliest),
        latest=instant(window.latest),
        earliest_seconds=round(window.earliest - at, 3),
        latest_seconds=None if window.latest is None else round(window.latest - at, 3),
        certain=window.is_certain,
    )
