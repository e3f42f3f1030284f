"""What people should know of a rehearsal before the machine shuts down: who is not gone in time, who loses grace, whom
they may not expect to be ended, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from gracectl.cli.agent.rehearsal import Rehearsed, grace_without, is_cut
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.rehearsal import RehearsedPod, RehearsedRange
from gracectl.policy.waves import is_daemon


class Kind(StrEnum):
    """What a caution is about; machines filter by it. What matters most comes first."""

    LOGIND = "Logind"
    TOO_LITTLE_TIME = "TooLittleTime"
    STILL_THERE = "StillThere"
    GRACE_SHORTENED = "GraceShortened"
    DAEMON_SET_PODS = "DaemonSetPods"

    @property
    def is_grave(self) -> bool:
        """The shutdown is not as graceful as the settings want it."""
        return self in (Kind.TOO_LITTLE_TIME, Kind.STILL_THERE)


class Caution(msgspec.Struct, frozen=True):
    """One thing to know; `objects`: the pods that it is about, as `namespace/name`."""

    kind: Kind
    message: str
    objects: tuple[str, ...] = ()


def cautions_of(told: Rehearsed) -> tuple[Caution, ...]:
    """All there are, what matters most first."""
    return tuple(_cautions(told))


def _cautions(told: Rehearsed) -> Iterator[Caution]:
    if told.logind is not None and told.logind.problem:
        yield Caution(Kind.LOGIND, told.logind.problem)
    if not told.has_enough:
        message = (
            f"there are {told.rehearsal.available:g} s for all ranges instead of {told.wanted:g} s: each has its share "
            "of them"
        )
        yield Caution(Kind.TOO_LITTLE_TIME, message)
    yield from _still_there(told)
    for each in told.rehearsal.ranges:
        yield from _cut(each, told)
    daemons = [called(pod) for each in told.rehearsal.ranges for pod in each.pods if is_daemon(pod.pod)]
    if daemons:
        message = f"pods of DaemonSets are ended as well, in the range of their priority: {listed(daemons)}"
        yield Caution(Kind.DAEMON_SET_PODS, message, tuple(daemons))


def _still_there(told: Rehearsed) -> Iterator[Caution]:
    late = [(pod, each) for each in told.rehearsal.ranges for pod in each.pods if not told.is_in_time(pod)]
    if late:
        reasons = [f"{called(pod)} ({_why_late(pod, each)})" for pod, each in late]
        are = "is" if len(late) == 1 else "are"
        message = f"{listed(reasons)} {are} still there when the machine goes down"
        yield Caution(Kind.STILL_THERE, message, tuple(called(pod) for pod, _ in late))


def _why_late(pod: RehearsedPod, of: RehearsedRange) -> str:
    if pod.grace is not None:
        # Whoever is waited for is granted no end beyond that of the range.
        return "it is told, and nobody waits for it" if of.period == 0 else "it is told too late"
    if pod.pod.deletion_timestamp is None:
        return "it is not told: no time is left for its range"
    if pod.ends is None:
        return "it terminates already, and its grace is over"
    return f"it terminates already, and has grace until {format_time(pod.pod.deletion_timestamp)}"


def _cut(of: RehearsedRange, told: Rehearsed) -> Iterator[Caution]:
    cut = [pod for pod in of.pods if is_cut(pod)]
    if not cut:
        return
    figures = [f"{called(pod)} ({pod.grace} s of {grace_without(pod.pod)} s)" for pod in cut]
    has = "has" if len(cut) == 1 else "have"
    message = f"{listed(figures)} {has} less than the whole grace: {_limit(of, cut, told)}"
    yield Caution(Kind.GRACE_SHORTENED, message, tuple(map(called, cut)))


def _limit(of: RehearsedRange, cut: Sequence[RehearsedPod], told: Rehearsed) -> str:
    """Why they cannot have all."""
    longest, deadline = max(grace_without(pod.pod) for pod in cut), told.seen.deadline
    if deadline is not None and of.begins is not None and deadline - told.seen.now < of.begins + of.period:
        return f"the node must have ended by {format_time(deadline)}"
    if of.period < of.wave.period:
        return f"{of.wave.name} has {of.period:g} s of its {of.wave.period:g} s"
    return f"{of.wave.name} has {of.period:g} s; {longest} s would do"


def called(pod: RehearsedPod) -> str:
    """`shop/web-1`."""
    return "/".join(pod.pod.key)
