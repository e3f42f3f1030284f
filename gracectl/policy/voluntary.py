"""What ends a node although nobody has deleted it, and what may keep it from that (DESIGN 3.1 no 3 to 5).

Nobody waits for such an end, so it is voluntary: the pods come first. A pod that is protected, or whose budget blocks,
keeps its node, unless an administrator has set a termination grace period: then the node is ended all the same, and has
until its deadline to do what the pod asks for ("eventual disruption" of the grace period seed).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.durations import parse_seconds
from gracectl.model.node import Node
from gracectl.model.pod import Pod, UnknownPod
from gracectl.model.times import format_time
from gracectl.policy.budgets import Allowance, eviction_verdict
from gracectl.policy.evictability import ignored, undecodable_reason
from gracectl.policy.health import first_untolerated, unhealthy_conditions
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.protection import Protection, protection_of
from gracectl.policy.settings import PolicySettings

_PERCENTAGE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)%")

REMEDIES: Final = {
    Allowance.EXHAUSTED: "give the budget more healthy pods or a wider bound",
    Allowance.NOT_COUNTABLE: "mend what its condition names, or take the budget away",
    Allowance.AMBIGUOUS: "change their selectors so that one is left",
    Allowance.NOT_OBSERVED: "wait for the disruption controller",
}
"""What would let a pod leave whose budget blocks."""


class Cause(StrEnum):
    """Why a node is to end."""

    UNHEALTHY = "unhealthy"
    TERMINABLE = "terminable"
    EXPIRED = "expired"


class Trigger(msgspec.Struct, frozen=True):
    """From `at` (Unix seconds) on a node is to end; `message` say why, to people who read them then."""

    cause: Cause
    at: float
    message: str


def triggers_of(nodes: Iterable[Node], claim: NodeClaim | None, settings: PolicySettings) -> tuple[Trigger, ...]:
    """All that will end these nodes, or this claim with them, if nothing changes; in the order in which it is told.

    Raises nothing: a claim whose expireAfter cannot be read never expires (see `expires_at`).
    """
    nodes = tuple(nodes)
    found = [trigger for node in nodes for trigger in (_unhealthy(node, settings), _terminable(node)) if trigger]
    expiries = [_expired(claim)] if claim is not None else [_node_expired(node, settings) for node in nodes]
    found += [expired for expired in expiries if expired is not None]
    return tuple(sorted(found, key=lambda trigger: list(Cause).index(trigger.cause)))


def expires_at(claim: NodeClaim) -> float | None:
    """The instant at which a claim reaches its expireAfter; None: never. ValueError if that cannot be read.

    Counted from the claim's creation, whether or not it has a node. Absent means Never here, unlike in Karpenter.
    """
    written = claim.expire_after
    if written is None or written == names.NEVER:
        return None
    seconds = parse_seconds(written)
    if seconds < 0:
        raise ValueError(f"{written!r} is negative")
    return claim.created + seconds


def node_expires_at(node: Node, settings: PolicySettings) -> float | None:
    """The instant at which a node without a claim reaches the age that its group gives it; None: never.

    Its uid decides how much earlier than `expireAfter` that is, up to the jitter: nodes of one age expire apart, and
    each at the same instant whatever has restarted. Never later than `expireAfter`.
    """
    group = settings.group_of(node.labels)
    if group is None or group.expire_seconds is None:
        return None
    return node.created + group.expire_seconds * (1 - group.expire_jitter * _share_of(node.uid))


def parse_expire_after(text: str) -> float | None:
    """Seconds of an `expireAfter` such as `720h`; None for `Never`. ValueError for anything else."""
    if text == names.NEVER:
        return None
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is not positive; give an age such as 720h, or {names.NEVER}")
    return seconds


def parse_jitter(value: str | float) -> float:
    """The share that `10%` or `0.1` names. ValueError unless that lies from 0 to 1."""
    if isinstance(value, str):
        found = _PERCENTAGE.fullmatch(value)
        share = math.nan if found is None else float(found[1]) / 100
    else:
        share = value
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is neither a percentage from 0% to 100% nor a fraction from 0 to 1")
    return share


def _share_of(uid: str) -> float:
    """From 0 to 1, evenly spread over all uids."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:6]) / 2**48


def _unhealthy(node: Node, settings: PolicySettings) -> Trigger | None:
    if is_in_maintenance(node):
        return None  # somebody is rebooting it, or worse
    ailment = first_untolerated(unhealthy_conditions(node, settings.health))
    if ailment is None or ailment.since is None:
        return None
    words = (
        f"node {node.name} is unhealthy: its condition {ailment.type} has been {ailment.status} since "
        f"{format_time(ailment.since)}, and {ailment.toleration:g} s of that are tolerated"
    )
    return Trigger(Cause.UNHEALTHY, ailment.tolerated_until, words)


def _terminable(node: Node) -> Trigger | None:
    if node.labels.get(names.LIFECYCLE_PHASE) != names.LIFECYCLE_PHASE_TERMINABLE:
        return None
    words = f"node {node.name} has the label {names.LIFECYCLE_PHASE}={names.LIFECYCLE_PHASE_TERMINABLE}"
    return Trigger(Cause.TERMINABLE, -math.inf, words)


def _expired(claim: NodeClaim) -> Trigger | None:
    try:
        at = expires_at(claim)
    except ValueError:
        return None
    if at is None:
        return None
    words = f"node claim {claim.name}, made {format_time(claim.created)}, has reached its expireAfter of "
    return Trigger(Cause.EXPIRED, at, words + str(claim.expire_after))


def _node_expired(node: Node, settings: PolicySettings) -> Trigger | None:
    at = node_expires_at(node, settings)
    if at is None:
        return None
    words = (
        f"node {node.name}, made {format_time(node.created)}, has reached the age of its node group (expireAfter, less "
        "its jitter)"
    )
    return Trigger(Cause.EXPIRED, at, words)


class VoluntaryBlocker(msgspec.Struct, frozen=True):
    """A pod that keeps its node from a voluntary end. `until`: the instant at which that is over by itself, if it is
    one of those; `remedy`: what else would let the node go."""

    pod: Pod
    reason: str
    until: float | None
    remedy: str
    protection: Protection | None = None
    """What protects it; None if it is its budget that blocks."""


def voluntary_blockers(
    pods: Iterable[Pod],
    budgets: Mapping[str, tuple[PodDisruptionBudget, ...]],
    now: float,
    settings: PolicySettings,
) -> tuple[VoluntaryBlocker, ...]:
    """The pods of a node that keep it, ordered by name; `budgets` by pod UID. Each is asked for by itself: that a
    budget cannot let all of them go at once is for the drain to wait out."""
    counted = (pod for pod in sorted(pods, key=lambda pod: pod.key) if ignored(pod, now) is None)
    found = (_hold(pod, budgets.get(pod.uid, ()), now, settings) for pod in counted)
    return tuple(hold for hold in found if hold is not None)


def elapses_at(holds: tuple[VoluntaryBlocker, ...]) -> float | None:
    """The instant at which the last of the protections ends that end by themselves: if nothing else keeps the node, it
    is free then. None if there are none of those, and only an event can free it."""
    return max((hold.until for hold in holds if hold.until is not None), default=None)


def explain_blockers(holds: tuple[VoluntaryBlocker, ...]) -> str:
    """`pod shop/job is protected by … until … (and 2 more pods); to let the node end, …`: for people."""
    first = holds[0]
    until = f" until {format_time(first.until)}" if first.until is not None else ""
    if first.protection is not None:
        until += first.protection.limit_note
    more = len(holds) - 1
    others = f" (and {more} more pod{'s' if more > 1 else ''})" if more else ""
    return (
        f"pod {first.pod.namespace}/{first.pod.name} {first.reason}{until}{others}; to let the node end, "
        f"{first.remedy}, or give the node a terminationGracePeriod (in nodeGroups, if its claim has none), or delete "
        "it"
    )


def explain_elapsed(holds: Sequence[VoluntaryBlocker]) -> str:
    """`pod shop/job was protected by … until …; 2 more had ended before`: of protections that have ended by themselves,
    in that order."""
    last = holds[-1]
    assert last.protection is not None
    assert last.until is not None
    protection = f"was {last.protection.description} until {format_time(last.until)}{last.protection.limit_note}"
    others = f"; {len(holds) - 1} more had ended before" if len(holds) > 1 else ""
    return f"pod {last.pod.namespace}/{last.pod.name} {protection}{others}"


def _hold(
    pod: Pod, budgets: tuple[PodDisruptionBudget, ...], now: float, settings: PolicySettings
) -> VoluntaryBlocker | None:
    if isinstance(pod, UnknownPod):
        return VoluntaryBlocker(pod, f"stands there: {undecodable_reason(pod)}", None, "mend or delete the pod")
    if pod.deletion_timestamp is not None:
        return None
    if protection := protection_of(pod, now, settings.protection):
        way_out = f"take {protection.kind} off the pod"
        return VoluntaryBlocker(pod, f"is {protection.description}", protection.until, way_out, protection)
    verdict = eviction_verdict(pod, budgets)
    remedy = REMEDIES.get(verdict.allowance)
    return None if remedy is None else VoluntaryBlocker(pod, f"may not leave: {verdict.reason}", None, remedy)
