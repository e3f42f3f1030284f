"""The JSON object of a rehearsal; docs/rehearsal.md explains every field. Seconds of instants count from `at`."""

from __future__ import annotations

import math

from gracectl.cli.agent.rehearsal import Logind, RehearsalResult, is_shortened, unshortened_grace
from gracectl.cli.agent.warnings import ShutdownWarning, rehearsal_warnings
from gracectl.cli.report import ClusterReport, JsonObject, WarningReport, cluster_report
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.shutdown import RehearsedPod, RehearsedRange
from gracectl.policy.waves import is_daemon


class LogindReport(JsonObject, frozen=True):
    """The inhibit delay of logind. `delaySeconds` null: unknown, or unlimited."""

    delay_seconds: float | None
    unlimited: bool
    problem: str | None


class NodeDeadlineReport(JsonObject, frozen=True):
    """The deadline of the node's termination."""

    at: str
    at_seconds: float


class RehearsedPodReport(JsonObject, frozen=True, kw_only=True):
    """A pod. `deletedSeconds`, `grantedSeconds` null: it is not deleted; `terminatedSeconds` null: unknown."""

    namespace: str
    name: str
    uid: str
    priority: int
    daemon_set: bool
    terminating: bool
    grace_seconds: int
    granted_seconds: int | None
    shortened: bool
    deleted_seconds: float | None
    terminated_seconds: float | None
    in_time: bool


class RangeReport(JsonObject, frozen=True, kw_only=True):
    """Pods that are terminated together. `beginsSeconds`, `endsSeconds` null: skipped."""

    name: str
    minimum_priority: int
    period_seconds: float
    available_seconds: float
    begins_seconds: float | None
    ends_seconds: float | None
    pods: tuple[RehearsedPodReport, ...]


class IgnoredPodReport(JsonObject, frozen=True):
    """A pod that the agent does not delete or wait for."""

    namespace: str
    name: str
    uid: str
    reason: str


class RehearsalReport(JsonObject, frozen=True, kw_only=True):
    """The JSON object. `logind` null: not read."""

    cluster: ClusterReport
    at: str
    node: str
    required_seconds: float
    available_seconds: float
    finished_seconds: float
    logind: LogindReport | None
    deadline: NodeDeadlineReport | None
    warnings: tuple[WarningReport, ...]
    ranges: tuple[RangeReport, ...]
    ignored: tuple[IgnoredPodReport, ...]


def rehearsal_report(result: RehearsalResult) -> RehearsalReport:
    """The report of a rehearsal."""
    inputs, rehearsal = result.inputs, result.rehearsal
    return RehearsalReport(
        cluster=cluster_report(inputs.cluster),
        at=format_time(inputs.now),
        node=inputs.node.name,
        required_seconds=result.required,
        available_seconds=rehearsal.available,
        finished_seconds=rehearsal.over,
        logind=None if result.logind is None else _logind(result.logind),
        deadline=_deadline(result),
        warnings=tuple(map(_caution, rehearsal_warnings(result))),
        ranges=tuple(_range(each, result) for each in rehearsal.ranges),
        ignored=tuple(_ignored(pod, reason) for pod, reason in rehearsal.ignored),
    )


def _logind(logind: Logind) -> LogindReport:
    is_unlimited = logind.delay is not None and math.isinf(logind.delay)
    return LogindReport(None if is_unlimited else logind.delay, is_unlimited, logind.problem or None)


def _deadline(result: RehearsalResult) -> NodeDeadlineReport | None:
    at = result.inputs.deadline
    return None if at is None else NodeDeadlineReport(format_time(at), at - result.inputs.now)


def _caution(warning: ShutdownWarning) -> WarningReport:
    return WarningReport(warning.kind.value, warning.kind.is_blocking, warning.message, warning.objects)


def _range(each: RehearsedRange, result: RehearsalResult) -> RangeReport:
    return RangeReport(
        name=each.wave.name,
        minimum_priority=result.inputs.order.lowest_priorities[each.number],
        period_seconds=each.wave.period,
        available_seconds=each.period,
        begins_seconds=each.begins,
        ends_seconds=each.ends,
        pods=tuple(_pod(pod, result) for pod in each.pods),
    )


def _pod(pod: RehearsedPod, result: RehearsalResult) -> RehearsedPodReport:
    return RehearsedPodReport(
        namespace=pod.pod.namespace,
        name=pod.pod.name,
        uid=pod.pod.uid,
        priority=pod.pod.priority or 0,
        daemon_set=is_daemon(pod.pod),
        terminating=pod.pod.deletion_timestamp is not None,
        grace_seconds=unshortened_grace(pod.pod),
        granted_seconds=pod.grace,
        shortened=is_shortened(pod),
        deleted_seconds=pod.at,
        terminated_seconds=pod.ends,
        in_time=result.is_in_time(pod),
    )


def _ignored(pod: Pod, reason: str) -> IgnoredPodReport:
    return IgnoredPodReport(pod.namespace, pod.name, pod.uid, reason)
