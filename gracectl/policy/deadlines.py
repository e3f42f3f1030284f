"""The deadline of a termination, and what it means for each pod (DESIGN 3.7).

An administrator's promise that the node has ended by then stands above budgets and protection. So that nobody loses
more than he must, a pod is told to end early enough to have its whole grace before the deadline, if there is time for
that at all.
"""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.durations import NANOSECONDS_PER_SECOND, parse_duration
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import parse_time
from gracectl.policy.settings import PolicySettings

GRACE_PERIOD: Final = re.compile(r"([0-9]+(s|m|h))+")
"""What NodeClaim takes as spec.terminationGracePeriod."""

DEFAULT_GRACE_SECONDS: Final = 30
"""Of a pod that names none, as the API server fills it in."""

LEAST_GRACE_SECONDS: Final = 1
"""Grace 0 would take the pod from the API while its processes run: a StatefulSet could then start a second one."""


def parse_grace_period(text: str) -> float:
    """Seconds of a termination grace period such as `15m` or `1h30m`; ValueError for anything else."""
    if GRACE_PERIOD.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no termination grace period such as 30s, 15m or 1h30m")
    return parse_duration(text) / NANOSECONDS_PER_SECOND


def grace_period_of(node: Node, claim: NodeClaim | None, settings: PolicySettings) -> float | None:
    """The TGP of a node in seconds: its claim's own, else its group's. None: it has no deadline.

    A claim whose TGP cannot be read (its definition does not check it) has none: nobody is forced on a misspelling.
    """
    if claim is not None and claim.termination_grace_period is not None:
        try:
            return parse_grace_period(claim.termination_grace_period)
        except ValueError:
            return None
    group = settings.group_of(node.labels)
    return None if group is None else group.termination_grace_seconds


class Deadline(msgspec.Struct, frozen=True):
    """When a termination must be over. `grace_period`: the TGP in seconds that it comes from, None if set by hand."""

    at: float
    grace_period: float | None = None


def deadline_of(node: Node, claim: NodeClaim | None, settings: PolicySettings) -> Deadline | None:
    """The deadline of a node that is being deleted; None when it has none.

    The earliest of what is written on node and claim and what follows from the TGP: an administrator may tighten a
    deadline by hand, nobody may loosen it. The claim's deletion starts the clock, without a claim the node's.
    """
    instants = [at for each in (node, claim) if each is not None and (at := written(each)) is not None]
    period = grace_period_of(node, claim, settings)
    start = node.deletion_timestamp if claim is None else claim.deletion_timestamp
    if period is not None and start is not None:
        instants.append(start + period)
    return Deadline(min(instants), period) if instants else None


def written(holder: Node | NodeClaim) -> float | None:
    """The instant that the annotation on a node or claim names; None without one, or when it cannot be read."""
    try:
        return parse_time(holder.annotations[names.TERMINATION_TIMESTAMP])
    except (KeyError, ValueError):
        return None


def grace_of(pod: Pod) -> int:
    """The seconds that a pod is granted when nobody says otherwise; what is negative counts as one."""
    if pod.grace_seconds is None:
        return DEFAULT_GRACE_SECONDS
    return LEAST_GRACE_SECONDS if pod.grace_seconds < 0 else pod.grace_seconds


def delete_at(pod: Pod, deadline: float) -> float | None:
    """The instant at which the pod is to be deleted so that it has ended by `deadline`; None when that is settled.

    A pod that runs: its grace before the deadline. One that terminates beyond the deadline: as soon as the rest is less
    than what it was granted. One that terminates in time: at the deadline itself, should it still be there.
    """
    if pod.deletion_timestamp is None:
        return deadline - grace_of(pod)
    already = _granted_already(pod)
    if already <= LEAST_GRACE_SECONDS:
        return None
    return deadline - already + 1 if pod.deletion_timestamp > deadline else deadline


def granted(pod: Pod, deadline: float, now: float) -> int | None:
    """The grace (seconds) with which to delete the pod at `now`; None when a deletion would change nothing.

    Never more than its own, never less than one, and beyond the deadline by a part of a second at most, which the
    server's whole seconds cut off. The server ignores a grace that is not shorter than the one granted before.
    """
    left = math.ceil(deadline - now)
    if pod.deletion_timestamp is None:
        return max(LEAST_GRACE_SECONDS, min(grace_of(pod), left))
    already = _granted_already(pod)
    if already <= max(LEAST_GRACE_SECONDS, left):
        return None
    return max(LEAST_GRACE_SECONDS, left)


def was_shortened(pod: Pod, deadline: float) -> bool:
    """Whether a terminating pod's grace was cut for the deadline, so that its deletionTimestamp says nothing.

    The server counts a shorter grace from the first DELETE: the timestamp may lie in the past while the pod has all the
    time that it was granted.
    """
    if pod.deletion_timestamp is None or pod.deletion_grace_seconds is None:
        return False
    asked_at = pod.deletion_timestamp - pod.deletion_grace_seconds
    return pod.deletion_grace_seconds < grace_of(pod) and asked_at + grace_of(pod) > deadline


def _granted_already(pod: Pod) -> int:
    return grace_of(pod) if pod.deletion_grace_seconds is None else pod.deletion_grace_seconds
