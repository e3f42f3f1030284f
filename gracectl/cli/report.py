"""JSON that commands print: the encoder, and the objects that several commands share.

Instants are RFC 3339 by the server's clock; a field that ends in `Seconds` is a number of seconds. Invariants: fields
are added, never renamed or removed; lists have the order of the table.
"""

from __future__ import annotations

import msgspec
import yaml

from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model.encoding import INDENTED, encode
from gracectl.model.foreign import visible_json
from gracectl.model.times import format_time
from gracectl.policy.answers import Answer, Never, Unknown, Window
from gracectl.policy.eviction_queues import QueuePosition
from gracectl.policy.protection import Protection
from gracectl.policy.warnings import PlanWarning


class JsonObject(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all JSON objects: immutable, names in camelCase."""


class ClusterReport(JsonObject, frozen=True):
    """The cluster. `context`: of the kubeconfig; null: the pod's service account was used."""

    context: str | None
    server: str


class QueuePositionReport(JsonObject, frozen=True):
    """Position (from 1) of a pod in the queue of its budget; `after`: the pod before it.

    `undecided`: pods of several nodes are equal, so it may have the position of any of them.
    """

    number: int
    of: int
    after: str | None
    undecided: bool


class ProtectionReport(JsonObject, frozen=True):
    """Protection of a pod. `until` null: until it is removed; `valid` false: the value cannot be parsed."""

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


class NeverCauseReport(JsonObject, frozen=True):
    """Why something never happens unless it is changed."""

    kind: str
    message: str
    pod: str
    budgets: tuple[str, ...]


class AnswerReport(JsonObject, frozen=True, kw_only=True):
    """When something happens: `answer` is range, unknown or never; what an answer does not have is null or empty.

    Seconds count from `at` of the whole, and are never negative. `expected`: when it probably happens. `missing`: what
    is not known. `causes`: why never.
    """

    answer: str
    earliest: str | None = None
    latest: str | None = None
    expected: str | None = None
    earliest_seconds: float | None = None
    latest_seconds: float | None = None
    expected_seconds: float | None = None
    certain: bool = False
    missing: tuple[str, ...] = ()
    causes: tuple[NeverCauseReport, ...] = ()


def to_json(value: object, *, indent: int = 2) -> str:
    """One JSON object; `indent` 0: on one line."""
    return visible_json(encode(value, INDENTED if indent else 0).decode())


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
    """Protection of a pod; None without one."""
    if protection is None:
        return None
    until = instant(protection.until)
    return ProtectionReport(protection.kind, protection.value, until, protection.is_valid, protection.is_capped)


def warning_report(warning: PlanWarning) -> PlanWarningReport:
    """A warning of a plan or a status."""
    kind = warning.kind
    return PlanWarningReport(kind.value, kind.is_blocking, warning.message, warning.objects, warning.remedy or None)


def answer_report(answer: Answer | None, at: float) -> AnswerReport | None:
    """An answer; seconds count from `at`."""
    match answer:
        case Window(earliest, latest, expected):
            return AnswerReport(
                answer="range",
                earliest=format_time(earliest),
                latest=format_time(latest),
                expected=instant(expected),
                earliest_seconds=_seconds(earliest, at),
                latest_seconds=_seconds(latest, at),
                expected_seconds=_seconds(expected, at),
                certain=answer.is_certain,
            )
        case Unknown(missing, soonest):
            return AnswerReport(
                answer="unknown",
                earliest=instant(soonest),
                earliest_seconds=_seconds(soonest, at),
                missing=missing,
            )
        case Never(causes):
            found = (NeverCauseReport(cause.kind.value, cause.reason, cause.pod, cause.budgets) for cause in causes)
            return AnswerReport(answer="never", causes=tuple(found))
    return None


def _seconds(instant: float | None, at: float) -> float | None:
    return None if instant is None else max(round(instant - at, 3), 0.0)
