"""Warnings of a rehearsal: pods that are not terminated in time or lose grace, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from gracectl.cli.agent.rehearsal import RehearsalResult, is_shortened, unshortened_grace
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.shutdown import RehearsedPod, RehearsedRange
from gracectl.policy.waves import is_daemon


class ShutdownWarningKind(StrEnum):
    """Kind of a warning, for filters; the most important comes first."""

    LOGIND = "Logind"
    TOO_LITTLE_TIME = "TooLittleTime"
    NOT_TERMINATED = "NotTerminated"
    GRACE_SHORTENED = "GraceShortened"
    DAEMON_SET_PODS = "DaemonSetPods"

    @property
    def is_blocking(self) -> bool:
        """The shutdown is not as graceful as the settings require."""
        return self in (ShutdownWarningKind.TOO_LITTLE_TIME, ShutdownWarningKind.NOT_TERMINATED)


class ShutdownWarning(msgspec.Struct, frozen=True):
    """A warning; `objects`: the pods concerned, as `namespace/name`."""

    kind: ShutdownWarningKind
    message: str
    objects: tuple[str, ...] = ()


def rehearsal_warnings(result: RehearsalResult) -> tuple[ShutdownWarning, ...]:
    """All warnings, the most important first."""
    return tuple(_warnings(result))


def _warnings(result: RehearsalResult) -> Iterator[ShutdownWarning]:
    if result.logind is not None and result.logind.problem:
        yield ShutdownWarning(ShutdownWarningKind.LOGIND, result.logind.problem)
    if not result.has_enough:
        available, required = result.rehearsal.available, result.required
        message = f"only {available:g} of {required:g} s are available: every range gets its share"
        yield ShutdownWarning(ShutdownWarningKind.TOO_LITTLE_TIME, message)
    yield from _not_terminated(result)
    for each in result.rehearsal.ranges:
        yield from _shortened(each, result)
    daemons = [pod_name(pod) for each in result.rehearsal.ranges for pod in each.pods if is_daemon(pod.pod)]
    if daemons:
        message = f"DaemonSet pods are terminated as well, in the range of their priority: {listed(daemons)}"
        yield ShutdownWarning(ShutdownWarningKind.DAEMON_SET_PODS, message, tuple(daemons))


def _not_terminated(result: RehearsalResult) -> Iterator[ShutdownWarning]:
    late = [(pod, each) for each in result.rehearsal.ranges for pod in each.pods if not result.is_in_time(pod)]
    if late:
        reasons = [f"{pod_name(pod)} ({_late_reason(pod, each)})" for pod, each in late]
        message = f"not terminated before the machine goes down: {listed(reasons)}"
        yield ShutdownWarning(ShutdownWarningKind.NOT_TERMINATED, message, tuple(pod_name(pod) for pod, _ in late))


def _late_reason(pod: RehearsedPod, of: RehearsedRange) -> str:
    if pod.grace is not None:
        # A pod that is waited for is granted no grace beyond the end of its range.
        return "deleted, not waited for" if of.period == 0 else "deleted too late"
    if pod.pod.deletion_timestamp is None:
        return "not deleted: no time is left for its range"
    if pod.ends is None:
        return "terminating already, its grace is over"
    return f"terminating already, with grace until {format_time(pod.pod.deletion_timestamp)}"


def _shortened(of: RehearsedRange, result: RehearsalResult) -> Iterator[ShutdownWarning]:
    shortened = [pod for pod in of.pods if is_shortened(pod)]
    if not shortened:
        return
    figures = [f"{pod_name(pod)} ({pod.grace} of {unshortened_grace(pod.pod)} s)" for pod in shortened]
    message = f"grace shortened: {listed(figures)}: {_limit(of, shortened, result)}"
    yield ShutdownWarning(ShutdownWarningKind.GRACE_SHORTENED, message, tuple(map(pod_name, shortened)))


def _limit(of: RehearsedRange, shortened: Sequence[RehearsedPod], result: RehearsalResult) -> str:
    """Why they cannot have all."""
    longest, deadline = max(unshortened_grace(pod.pod) for pod in shortened), result.inputs.deadline
    if deadline is not None and of.begins is not None and deadline - result.inputs.now < of.begins + of.period:
        return f"the deadline of the node is {format_time(deadline)}"
    if of.period < of.wave.period:
        return f"{of.wave.name} has {of.period:g} s of its {of.wave.period:g} s"
    return f"{of.wave.name} has {of.period:g} s; {longest} s would be enough"


def pod_name(pod: RehearsedPod) -> str:
    """`shop/web-1`."""
    return "/".join(pod.pod.key)
