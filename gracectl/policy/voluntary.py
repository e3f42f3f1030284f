"""Voluntary terminations: what triggers them, and which pods may block them.

The pods come first. A pod that is protected or blocked by a budget blocks the termination, unless an administrator
has set a termination grace period: then the node is still terminated, and its pods have until the deadline
("eventual disruption" of Karpenter's termination grace period design).
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
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.pod import Pod, UnknownPod
from gracectl.model.times import format_time
from gracectl.policy.budgets import Allowance, eviction_verdict
from gracectl.policy.evictability import ignored, undecodable_reason
from gracectl.policy.health import first_untolerated, unhealthy_conditions, unhealthy_until
from gracectl.policy.interruption import interruption_of, urgent_at
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.protection import Protection, protection_of
from gracectl.policy.remedies import blocker_remedy
from gracectl.policy.settings import PolicySettings

_PERCENTAGE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)%")


class Cause(StrEnum):
    """Cause of a termination."""

    INTERRUPTED = "interrupted"
    UNHEALTHY = "unhealthy"
    TERMINABLE = "terminable"
    EXPIRED = "expired"


BY_HAND: Final = "by hand"
REASONS: Final = {
    Cause.INTERRUPTED: "interruption",
    Cause.UNHEALTHY: "health",
    Cause.TERMINABLE: "rotation",
    Cause.EXPIRED: "expiry",
}
"""Reason of a termination, by its cause; a termination without a cause was requested by hand."""


class Trigger(msgspec.Struct, frozen=True):
    """Reason to terminate a node from `at` (Unix seconds) on; `message` is read then. From `urgent_at` on nothing
    delays it."""

    cause: Cause
    at: float
    message: str
    urgent_at: float = math.inf


def triggers_of(nodes: Iterable[Node], claim: NodeClaim | None, settings: PolicySettings) -> tuple[Trigger, ...]:
    """All triggers for these nodes, or for this claim with them, in the order in which they are reported.

    Raises nothing: a claim whose expireAfter cannot be parsed never expires (see `expires_at`).
    """
    nodes = tuple(nodes)
    of_node = ((_interrupted(node, settings), _unhealthy(node, settings), _terminable(node)) for node in nodes)
    found = [trigger for triggers in of_node for trigger in triggers if trigger]
    expiries = [_expired(claim)] if claim is not None else [_node_expired(node, settings) for node in nodes]
    found += [expired for expired in expiries if expired is not None]
    return tuple(sorted(found, key=lambda trigger: list(Cause).index(trigger.cause)))


def is_idle(node: Node, settings: PolicySettings) -> bool:
    """Whether no voluntary termination of this node is due, now or later, and none has left a mark on it, if it has no
    claim. Nearly all nodes are idle nearly always."""
    return (
        not node.annotations
        and condition_of(node.conditions, names.TERMINATION_PENDING) is None
        and unhealthy_until(node, settings.health) < math.inf
        and _terminable(node) is None
        and node_expires_at(node, settings) is None
    )


def reason_of(deleted_at: float, triggers: Iterable[Trigger]) -> str:
    """Why an object was deleted at `deleted_at` (Unix seconds), as its triggers show it; "by hand" without one."""
    due = next((trigger for trigger in triggers if trigger.at <= deleted_at), None)
    return BY_HAND if due is None else REASONS[due.cause]


def expires_at(claim: NodeClaim) -> float | None:
    """The instant at which a claim reaches its expireAfter; None: never. ValueError if that cannot be read.

    Counted from the claim's creation, whether or not it has a node. Absent means Never here, unlike in Karpenter.
    """
    text = claim.expire_after
    if text is None or text == names.NEVER:
        return None
    seconds = parse_seconds(text)
    if seconds < 0:
        raise ValueError(f"{text!r} is negative")
    return claim.created + seconds


def node_expires_at(node: Node, settings: PolicySettings) -> float | None:
    """The instant at which a node without a claim reaches the age that its group gives it; None: never.

    Its UID decides how much earlier than `expireAfter` that is, up to the jitter: nodes of one age expire apart, and
    each at the same instant after every restart. Never later than `expireAfter`.
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
    """Parse a share such as `10%` or `0.1`. Raises ValueError if it is not from 0 to 1."""
    if isinstance(value, str):
        found = _PERCENTAGE.fullmatch(value)
        share = math.nan if found is None else float(found[1]) / 100
    else:
        share = value
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is not a percentage from 0% to 100% or a fraction from 0 to 1")
    return share


def _share_of(uid: str) -> float:
    """From 0 to 1, evenly spread over all uids."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:6]) / 2**48


def _interrupted(node: Node, settings: PolicySettings) -> Trigger | None:
    found = interruption_of(node)
    if found is None:
        return None
    return Trigger(Cause.INTERRUPTED, -math.inf, f"node {node.name}: {found}", urgent_at(found, settings.lead_seconds))


def _unhealthy(node: Node, settings: PolicySettings) -> Trigger | None:
    if is_in_maintenance(node):
        return None  # it may be rebooting, or worse
    condition = first_untolerated(unhealthy_conditions(node, settings.health))
    if condition is None or condition.since is None:
        return None
    message = (
        f"node {node.name} is unhealthy: its condition {condition.type} has been {condition.status} since "
        f"{format_time(condition.since)}, and {condition.toleration:g} s of that are tolerated"
    )
    return Trigger(Cause.UNHEALTHY, condition.tolerated_until, message)


def _terminable(node: Node) -> Trigger | None:
    if node.labels.get(names.LIFECYCLE_PHASE) != names.LIFECYCLE_PHASE_TERMINABLE:
        return None
    message = f"node {node.name} has the label {names.LIFECYCLE_PHASE}={names.LIFECYCLE_PHASE_TERMINABLE}"
    return Trigger(Cause.TERMINABLE, -math.inf, message)


def _expired(claim: NodeClaim) -> Trigger | None:
    try:
        at = expires_at(claim)
    except ValueError:
        return None
    if at is None:
        return None
    message = f"node claim {claim.name}, created {format_time(claim.created)}, has reached its expireAfter of "
    return Trigger(Cause.EXPIRED, at, message + str(claim.expire_after))


def _node_expired(node: Node, settings: PolicySettings) -> Trigger | None:
    at = node_expires_at(node, settings)
    if at is None:
        return None
    message = (
        f"node {node.name}, created {format_time(node.created)}, has reached the age of its node group (expireAfter, "
        "less its jitter)"
    )
    return Trigger(Cause.EXPIRED, at, message)


class VoluntaryBlocker(msgspec.Struct, frozen=True):
    """Pod that blocks a voluntary termination. `until`: instant at which it stops blocking, if known;
    `remedy`: what else would help.
    """

    pod: Pod
    reason: str
    until: float | None
    remedy: str
    protection: Protection | None = None
    """Protection of the pod; None if a budget blocks the pod."""


def voluntary_blockers(
    pods: Iterable[Pod],
    budgets: Mapping[str, tuple[PodDisruptionBudget, ...]],
    now: float,
    settings: PolicySettings,
) -> tuple[VoluntaryBlocker, ...]:
    """The blocking pods of a node, ordered by name; `budgets` by pod UID.

    Each pod is checked alone: if a budget cannot allow all pods at the same time, the drain waits.
    """
    counted = (pod for pod in sorted(pods, key=lambda pod: pod.key) if ignored(pod, now) is None)
    found = (_blocker(pod, budgets.get(pod.uid, ()), now, settings) for pod in counted)
    return tuple(each for each in found if each is not None)


def elapses_at(blockers: tuple[VoluntaryBlocker, ...]) -> float | None:
    """The instant at which the last of the protections ends that end by themselves: if nothing else blocks the
    node, it is free then. None if there are none of those, and only an event can free it.
    """
    return max((each.until for each in blockers if each.until is not None), default=None)


def explain_blockers(blockers: tuple[VoluntaryBlocker, ...]) -> str:
    """`pod shop/job is protected by … until … (and 2 more pods); to terminate the node, …`."""
    first = blockers[0]
    until = f" until {format_time(first.until)}" if first.until is not None else ""
    if first.protection is not None:
        until += first.protection.limit_note
    more = len(blockers) - 1
    others = f" (and {more} more pod{'s' if more > 1 else ''})" if more else ""
    return (
        f"pod {first.pod.full_name} {first.reason}{until}{others}; to terminate the node, delete it, or give it a "
        f"terminationGracePeriod (in nodeGroups, if its claim has none), or {first.remedy}"
    )


def explain_elapsed(blockers: Sequence[VoluntaryBlocker]) -> str:
    """`pod shop/job was protected by … until …; 2 more had ended before`: of protections that have ended, in that
    order.
    """
    last = blockers[-1]
    assert last.protection is not None
    assert last.until is not None
    protection = f"was {last.protection.description} until {format_time(last.until)}{last.protection.limit_note}"
    others = f"; {len(blockers) - 1} more had ended before" if len(blockers) > 1 else ""
    return f"pod {last.pod.full_name} {protection}{others}"


def _blocker(
    pod: Pod, budgets: tuple[PodDisruptionBudget, ...], now: float, settings: PolicySettings
) -> VoluntaryBlocker | None:
    if isinstance(pod, UnknownPod):
        return VoluntaryBlocker(pod, f"blocks it: {undecodable_reason(pod)}", None, blocker_remedy(pod, None, budgets))
    if pod.deletion_timestamp is not None:
        return None
    if protection := protection_of(pod, now, settings.protection):
        helps = blocker_remedy(pod, protection, budgets)
        return VoluntaryBlocker(pod, f"is {protection.description}", protection.until, helps, protection)
    verdict = eviction_verdict(pod, budgets)
    if verdict.allowance in (Allowance.UNCHARGED, Allowance.ALLOWED):
        return None
    helps = blocker_remedy(pod, None, budgets)
    return VoluntaryBlocker(pod, f"cannot be evicted: {verdict.reason}", None, helps)
