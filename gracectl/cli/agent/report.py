"""A rehearsal as one JSON object, under names that stay; docs/rehearsal.md explains every field.

Instants are RFC 3339, by the server's clock; what ends in `Seconds` is a number of seconds: of those that say when
something happens, counted from `at`. Invariant: fields are added, never renamed or taken away; the order of lists is
that of the table.
"""

from __future__ import annotations

import math

from gracectl.cli.agent.rehearsal import Logind, Rehearsed, grace_without, is_cut
from gracectl.cli.agent.warnings import Caution, cautions_of
from gracectl.cli.plan.report import CautionReport, Reported
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.rehearsal import RehearsedPod, RehearsedRange
from gracectl.policy.waves import is_daemon


class LogindReport(Reported, frozen=True):
    """The machine's own side. `delaySeconds` null: not known, or with `unlimited` for ever."""

    delay_seconds: float | None
    unlimited: bool
    problem: str | None


class NodeDeadlineReport(Reported, frozen=True):
    """By when the node itself must have ended."""

    at: str
    at_seconds: float


class RehearsedPodReport(Reported, frozen=True, kw_only=True):
    """What becomes of a pod. `toldSeconds`, `grantedSeconds` null: nobody tells it; `goneSeconds` null: nobody knows
    when it is gone."""

    namespace: str
    name: str
    uid: str
    priority: int
    daemon_set: bool
    terminating: bool
    grace_seconds: int
    granted_seconds: int | None
    cut: bool
    told_seconds: float | None
    gone_seconds: float | None
    in_time: bool


class RangeReport(Reported, frozen=True, kw_only=True):
    """Pods that leave together. `beginsSeconds`, `endsSeconds` null: it is skipped."""

    name: str
    least_priority: int
    period_seconds: float
    available_seconds: float
    begins_seconds: float | None
    ends_seconds: float | None
    pods: tuple[RehearsedPodReport, ...]


class LeftAloneReport(Reported, frozen=True):
    """A pod that is neither told nor waited for."""

    namespace: str
    name: str
    uid: str
    reason: str


class Report(Reported, frozen=True, kw_only=True):
    """The whole object. `logind` null: nobody has asked it."""

    at: str
    node: str
    wanted_seconds: float
    available_seconds: float
    over_seconds: float
    logind: LogindReport | None
    deadline: NodeDeadlineReport | None
    cautions: tuple[CautionReport, ...]
    ranges: tuple[RangeReport, ...]
    left_alone: tuple[LeftAloneReport, ...]


def report(told: Rehearsed) -> Report:
    """As JSON has it."""
    seen, rehearsal = told.seen, told.rehearsal
    return Report(
        at=format_time(seen.now),
        node=seen.node.name,
        wanted_seconds=told.wanted,
        available_seconds=rehearsal.available,
        over_seconds=rehearsal.over,
        logind=None if told.logind is None else _logind(told.logind),
        deadline=_deadline(told),
        cautions=tuple(map(_caution, cautions_of(told))),
        ranges=tuple(_range(each, told) for each in rehearsal.ranges),
        left_alone=tuple(_left_alone(pod, reason) for pod, reason in rehearsal.ignored),
    )


def _logind(logind: Logind) -> LogindReport:
    is_unlimited = logind.delay is not None and math.isinf(logind.delay)
    return LogindReport(None if is_unlimited else logind.delay, is_unlimited, logind.problem or None)


def _deadline(told: Rehearsed) -> NodeDeadlineReport | None:
    at = told.seen.deadline
    return None if at is None else NodeDeadlineReport(format_time(at), at - told.seen.now)


def _caution(caution: Caution) -> CautionReport:
    return CautionReport(caution.kind.value, caution.kind.is_grave, caution.message, caution.objects)


def _range(each: RehearsedRange, told: Rehearsed) -> RangeReport:
    return RangeReport(
        name=each.wave.name,
        least_priority=told.seen.order.lowest_priorities[each.number],
        period_seconds=each.wave.period,
        available_seconds=each.period,
        begins_seconds=each.begins,
        ends_seconds=each.ends,
        pods=tuple(_pod(pod, told) for pod in each.pods),
    )


def _pod(pod: RehearsedPod, told: Rehearsed) -> RehearsedPodReport:
    return RehearsedPodReport(
        namespace=pod.pod.namespace,
        name=pod.pod.name,
        uid=pod.pod.uid,
        priority=pod.pod.priority or 0,
        daemon_set=is_daemon(pod.pod),
        terminating=pod.pod.deletion_timestamp is not None,
        grace_seconds=grace_without(pod.pod),
        granted_seconds=pod.grace,
        cut=is_cut(pod),
        told_seconds=pod.at,
        gone_seconds=pod.ends,
        in_time=told.is_in_time(pod),
    )


def _left_alone(pod: Pod, reason: str) -> LeftAloneReport:
    return LeftAloneReport(pod.namespace, pod.name, pod.uid, reason)
