"""A rehearsal with all that it rests on, and what follows from it for each pod; whoever prints says the same."""

from __future__ import annotations

import msgspec

from gracectl.cli.rehearsals.looking import Seen
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import grace_of, granted_already
from gracectl.policy.rehearsal import Rehearsal, RehearsedPod, rehearse


class Logind(msgspec.Struct, frozen=True):
    """What is known of the machine's own side. `delay`: seconds that logind grants now (math.inf: for ever; None: not
    known); `problem`: what is wrong with that, for people; "" if it will do."""

    delay: float | None = None
    problem: str = ""


class Rehearsed(msgspec.Struct, frozen=True):
    """What was seen, and what a shutdown would do to it. `logind` None: nobody has asked."""

    seen: Seen
    rehearsal: Rehearsal
    logind: Logind | None = None

    @property
    def wanted(self) -> float:
        """Seconds that logind is asked to wait: all ranges together."""
        return self.seen.order.total

    @property
    def has_enough(self) -> bool:
        """Whether each range has its whole period."""
        return self.rehearsal.available >= self.wanted

    def is_in_time(self, pod: RehearsedPod) -> bool:
        """Whether it is gone when the machine is let go."""
        return pod.ends is not None and pod.ends <= self.rehearsal.over


def rehearsal_of(seen: Seen, logind: Logind | None = None, available: float | None = None) -> Rehearsed:
    """Rehearse with as many seconds as the order wants; with `available` ones if that is less."""
    total = seen.order.total
    seconds = total if available is None else min(available, total)
    found = rehearse(seen.order, seen.pods, seconds, seen.now, seen.own_uid, seen.deadline)
    return Rehearsed(seen, found, logind)


def is_cut(pod: RehearsedPod) -> bool:
    """Whether the shutdown takes some of its grace from a pod."""
    return pod.grace is not None and pod.grace < grace_without(pod.pod)


def grace_without(pod: Pod) -> int:
    """The seconds that a pod would have without the shutdown: those that it asks for, or has been granted already."""
    return grace_of(pod) if pod.deletion_timestamp is None else granted_already(pod)
