"""Deadline of a termination, and what it means for each pod.

An administrator's deadline overrides budgets and protection. A pod is deleted early enough to have its whole grace
before it, if there is time for that at all.

    a running pod            ··········├── its grace ───────────────┤ deadline
                             delete_at ┘

    a terminating pod     first DELETE ├── granted before ────────────────┼──────▶ ends after the deadline
    is shortened                       ├── latest_shortening ──┤          deadline
                                       └ half of the time between the first DELETE and the deadline

The second half is too late for a shorter grace: see `latest_shortening`.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal

import msgspec

from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.durations import parse_seconds
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time, in_range, parse_time
from gracectl.policy.interruption import interruption_of
from gracectl.policy.settings import PolicySettings

GRACE_PERIOD: Final = re.compile(r"([0-9]+(s|m|h))+")
"""Valid spec.terminationGracePeriod of a NodeClaim."""

DEFAULT_GRACE_SECONDS: Final = 30
"""Default of the API server."""

LEAST_GRACE_SECONDS: Final = 1
"""Grace 0 would take the pod from the API while its processes run: a StatefulSet could then start a second one."""

CLOCKS_AGREE_SECONDS: Final = 2.0
"""Tolerance for pods that end after their deadline: the server's clock may differ a little."""


def parse_grace_period(text: str) -> float:
    """Seconds of a termination grace period such as `15m` or `1h30m`; ValueError for anything else."""
    if GRACE_PERIOD.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no termination grace period such as 30s, 15m or 1h30m")
    return parse_seconds(text)


def grace_period_of(node: Node | None, claim: NodeClaim | None, settings: PolicySettings) -> float | None:
    """The TGP of a node in seconds: its claim's own, else its group's. None: it has no deadline.

    Without a node the labels of the claim decide the group. A claim whose TGP cannot be parsed (its definition does
    not check it) has none: a typing error forces nothing.
    """
    if claim is not None and claim.termination_grace_period is not None:
        try:
            return parse_grace_period(claim.termination_grace_period)
        except ValueError:
            return None
    labeled = claim if node is None else node
    group = None if labeled is None else settings.group_of(labeled.labels)
    return None if group is None else group.termination_grace_seconds


class Deadline(msgspec.Struct, frozen=True):
    """Deadline of a termination: an instant in whole seconds, as in its annotation.

    `grace_period`: the TGP in seconds behind the deadline; None if the `annotation` sets the deadline.
    """

    at: float
    grace_period: float | None = None
    annotation: str = names.TERMINATION_TIMESTAMP


def deadline_of(node: Node | None, claim: NodeClaim | None, settings: PolicySettings) -> Deadline | None:
    """The deadline of a node, or of a claim without one, that is being deleted; None when it has none.

    The earliest of the annotations of node and claim, the end of an interrupted machine, and the deadline by the TGP: a
    deadline may be tightened by hand, never loosened. The claim's deletion starts the clock, the node's where there is
    no claim or it could not be deleted yet.
    """
    by_hand = [at for each in (node, claim) if each is not None and (at := written_deadline(each)) is not None]
    interrupted = None if node is None else interruption_of(node)
    if interrupted is not None and interrupted.at is not None:
        by_hand.append(interrupted.at)
    found = [Deadline(float(math.floor(at))) for at in by_hand]
    period = grace_period_of(node, claim, settings)
    start = claim.deletion_timestamp if claim is not None else None
    start = node.deletion_timestamp if start is None and node is not None else start
    if period is not None and start is not None:
        # First, so that it counts as the origin of the annotation that was written from it.
        found.insert(0, Deadline(float(math.floor(in_range(start + period))), period))
    return min(found, key=lambda each: each.at, default=None)


class DeadlineOrigin(msgspec.Struct, frozen=True):
    """Source of a deadline: a TGP, of a claim or of a node group, or an annotation. `object` has it: `NodeClaim
    a`, `Node n1`, `nodeGroups[0]`.
    """

    source: Literal["claim", "nodeGroup", "annotation"]
    object: str


def deadline_origin(
    deadline: Deadline, node: Node, claim: NodeClaim | None, settings: PolicySettings
) -> DeadlineOrigin:
    """Source of the deadline that `deadline_of` or `drain_deadline` has found."""
    if deadline.grace_period is None:
        is_drain = deadline.annotation == names.DRAIN_DEADLINE
        written = None if claim is None or is_drain else written_deadline(claim)
        by_claim = written is not None and math.floor(written) == deadline.at
        return DeadlineOrigin("annotation", f"NodeClaim {claim.name}" if claim and by_claim else f"Node {node.name}")
    if claim is not None and claim.termination_grace_period is not None:
        return DeadlineOrigin("claim", f"NodeClaim {claim.name}")
    group = settings.group_of(node.labels)
    return DeadlineOrigin("nodeGroup", "" if group is None else f"nodeGroups[{settings.node_groups.index(group)}]")


def earliest_deadline(known: Deadline | None, found: Deadline | None) -> Deadline | None:
    """The deadline that counts, of the known and the found one: never the later."""
    if known is None or found is None:
        return known or found
    return found if found.at <= known.at else known


def written_deadline(holder: Node | NodeClaim, annotation: str = names.TERMINATION_TIMESTAMP) -> float | None:
    """The instant that the annotation of a node or claim names; None without one, or when it cannot be parsed."""
    try:
        return parse_time(holder.annotations[annotation])
    except (KeyError, ValueError):
        return None


def missing_deadline(holder: Node | NodeClaim, at: float | None) -> dict[str, str]:
    """The annotation that makes `at` the latest deadline of a termination; empty if that is written already."""
    written = written_deadline(holder)
    if at is None or (written is not None and written <= at):
        return {}
    return {names.TERMINATION_TIMESTAMP: format_time(at)}


def invalid_deadline(holder: Node | NodeClaim, annotation: str = names.TERMINATION_TIMESTAMP) -> str | None:
    """The text of a deadline annotation that cannot be parsed; None when there is nothing wrong."""
    text = holder.annotations.get(annotation)
    return text if text is not None and written_deadline(holder, annotation) is None else None


def grace_of(pod: Pod) -> int:
    """Grace (seconds) in a pod's spec; a negative value counts as one second."""
    if pod.grace_seconds is None:
        return DEFAULT_GRACE_SECONDS
    return LEAST_GRACE_SECONDS if pod.grace_seconds < 0 else pod.grace_seconds


def delete_at(pod: Pod, deadline: float, now: float, begins: float | None = None) -> float | None:
    """Instant at which to delete the pod so that it ends by `deadline`; None if nothing is left to do.

    A running pod: its grace before the deadline. One that terminates beyond the deadline: now (an instant in the
    past), if the server grants it the time that is left; any other that terminates: at the deadline itself, should it
    still exist.

    `begins`: it is deleted at this instant if that is earlier, and need not be gone by the deadline as long as the
    deletion was in time: a pod that terminates in time, or cannot be shortened, is settled.
    """
    if pod.deletion_timestamp is None:
        latest = deadline - grace_of(pod)
        return latest if begins is None else min(latest, begins)
    already = granted_already(pod)
    if already <= LEAST_GRACE_SECONDS:
        return None
    in_the_end, tolerated = (deadline, 0.0) if begins is None else (None, CLOCKS_AGREE_SECONDS)
    if pod.deletion_timestamp <= deadline + tolerated:
        return in_the_end
    # A grace that is not shorter would be ignored.
    at = deadline - already + 1
    return at if max(at, now) < latest_shortening(pod, deadline) else in_the_end


def granted(pod: Pod, deadline: float, now: float) -> int | None:
    """Grace (seconds) with which to delete the pod at `now`; None if that would have no effect, or cause harm.

    At least one second, at most the pod's own, and at most a fraction of a second beyond the deadline, which the
    server's whole seconds cut off.
    """
    left = math.ceil(deadline - now)
    if pod.deletion_timestamp is None:
        return max(LEAST_GRACE_SECONDS, min(grace_of(pod), left))
    already = granted_already(pod)
    if now >= deadline:
        return LEAST_GRACE_SECONDS if already > LEAST_GRACE_SECONDS else None
    if already <= left or pod.deletion_timestamp <= deadline or now >= latest_shortening(pod, deadline):
        return None
    return left


def latest_shortening(pod: Pod, deadline: float) -> float:
    """Instant until which the grace of a terminating pod may be shortened to end by `deadline`; later that would kill
    the pod early.

    A server counts a shorter grace from the first DELETE, and if it would be over by then (since 1.33, kubernetes
    pull 122646) grants one second instead of what was requested; a kubelet counts what is granted from when it sees
    it. So the shorter grace must reach from the first DELETE beyond the second one, plus a second for its way.
    """
    return (asked_at(pod) + deadline - 1) / 2


def ends_at(pod: Pod, deadline: float | None = None, earliest: float | None = None) -> float | None:
    """Latest end of the grace of a terminating pod; None for a running pod.

    It is the deletionTimestamp, unless its grace was shortened for the deadline: the server counts a shorter grace
    from the first DELETE, the kubelet from the second one, which is sent within as much time (see
    `latest_shortening`):

        first DELETE ├── granted ──┤ deletionTimestamp, by the server
                   second DELETE ├── granted ──┤ by the kubelet: at most deletionTimestamp + granted, and the deadline

    `earliest`: the deadline may have been this one at that time (None: the same).
    """
    if pod.deletion_timestamp is None:
        return None
    if deadline is None or not was_shortened(pod, deadline if earliest is None else earliest):
        return pod.deletion_timestamp
    return max(pod.deletion_timestamp, min(deadline, pod.deletion_timestamp + granted_already(pod)))


def was_shortened(pod: Pod, deadline: float) -> bool:
    """Whether a terminating pod's grace may have been shortened for the deadline: it is less than its own, which
    would have been too long.
    """
    if pod.deletion_timestamp is None or pod.deletion_grace_seconds is None:
        return False
    return pod.deletion_grace_seconds < grace_of(pod) and asked_at(pod) + grace_of(pod) > deadline


def asked_at(pod: Pod) -> float:
    """When (Unix seconds) a terminating pod was deleted first."""
    assert pod.deletion_timestamp is not None
    return pod.deletion_timestamp - granted_already(pod)


def granted_already(pod: Pod) -> int:
    """The grace (seconds) that a terminating pod was given: its own, if the server does not say."""
    return grace_of(pod) if pod.deletion_grace_seconds is None else pod.deletion_grace_seconds
