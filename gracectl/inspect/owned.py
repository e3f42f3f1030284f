"""Drains of other owners, such as Karpenter, as the objects of the cluster show them: who drains a node, at which step.

It is read only, and needs neither a controller of gracectl nor its assistance. What blocks a pod is then what blocks
its owner. Changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.settings import TerminationSettings
from gracectl.model import names
from gracectl.model.claim import NodeClaim, only_claim
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of
from gracectl.model.node import DISRUPTED_TAINT, Node
from gracectl.policy.deadlines import Deadline, deadline_of, invalid_deadline, written_deadline
from gracectl.policy.explain import summarize
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.other_drains import KarpenterDrain, OtherDrain, autoscaler_drain, karpenter_drain
from gracectl.policy.owners import DrainOwner, Ownership
from gracectl.policy.plan import Plan
from gracectl.policy.remedies import NODE_HOLD, attachment_remedy, remedy
from gracectl.policy.settings import PolicySettings
from gracectl.policy.volumes import listed_attachments
from gracectl.policy.warnings import PlanWarning, WarningKind

BEGINS_WITHIN_SECONDS: Final = 5.0
"""Time within which a Karpenter that leads has put its taint on a deleted node."""


def is_drained_by_other(cluster: ClusterCache, node: Node) -> bool:
    """Whether another owner drains this node, or has to."""
    return owner_of_drain(cluster, node) is not None


def owner_of_drain(cluster: ClusterCache, node: Node) -> Ownership | None:
    """The other owner that drains this node, or has to; None: none does now."""
    if node.deletion_timestamp is not None:
        return cluster.owner_of(node) if names.FINALIZER in node.finalizers else None
    if autoscaler_drain(node) is None or is_in_maintenance(node):
        return None
    return Ownership(DrainOwner.CLUSTER_AUTOSCALER, f"taint {names.TO_BE_DELETED_TAINT_KEY}")


def other_drain(cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float) -> OtherDrain | None:
    """The drain of this node by another owner: as it is, or as it would be if the node were deleted at `now`.

    None: gracectl drains it, if anything does.
    """
    found: OtherDrain | None = None
    if (owner := cluster.owner_of(node)) is not None and owner.owner is DrainOwner.KARPENTER:
        found = _of_karpenter(cluster, node, now)
    elif owner_of_drain(cluster, node) is not None:
        found = autoscaler_drain(node)
    return None if found is None else msgspec.structs.replace(found, is_assisted=settings.assist.assists(found.owner))


def _of_karpenter(cluster: ClusterCache, node: Node, now: float) -> KarpenterDrain:
    claims = cluster.claims_of(node)
    begun = msgspec.structs.replace(
        node,
        deletion_timestamp=_deleted_at(node, now),
        finalizers=(*node.finalizers, names.FINALIZER),
        taints=(*node.taints, DISRUPTED_TAINT),
    )
    found = karpenter_drain(begun, claims) or KarpenterDrain()
    claim = only_claim(claims)
    if claim is None or found.claim != claim.name or found.deadline is not None:
        return found
    deadline = _granted(claim, now)
    return found if deadline is None else msgspec.structs.replace(found, deadline=deadline.at)


def deadline_of_other(cluster: ClusterCache, node: Node, other: OtherDrain, now: float) -> Deadline | None:
    """The deadline of the drain, with the grace period behind it where the claim has one."""
    if other.deadline is None:
        return None
    claim = only_claim(cluster.claims_of(node))
    granted = None if claim is None else _granted(claim, now)
    return granted if granted is not None and granted.at == other.deadline else Deadline(other.deadline)


def deadline_of_claim(claim: NodeClaim, now: float) -> Deadline | None:
    """The deadline of a claim of another owner, as its annotation or else its grace period says."""
    written = written_deadline(claim)
    granted = _granted(claim, now)
    return granted if written is None or (granted is not None and granted.at == written) else Deadline(written)


def _granted(claim: NodeClaim, now: float) -> Deadline | None:
    """The deadline by the grace period of a claim. Karpenter knows no others: neither a node's nor those of groups."""
    deleted = msgspec.structs.replace(claim, annotations={}, labels={}, deletion_timestamp=_deleted_at(claim, now))
    return deadline_of(None, deleted, PolicySettings())


def _deleted_at(thing: Node | NodeClaim, now: float) -> float:
    return float(math.floor(now)) if thing.deletion_timestamp is None else thing.deletion_timestamp


def began_at(cluster: ClusterCache, node: Node, now: float) -> float:
    """When (Unix seconds) the drain of a node by another owner was requested."""
    if node.deletion_timestamp is not None:
        return min(node.deletion_timestamp, now)
    found = autoscaler_drain(node)
    return now if found is None else min(found.tainted_at, now)


def is_begun(node: Node) -> bool:
    """Whether the owner has put its taint on the node."""
    keys = {taint.key for taint in node.taints}
    return not keys.isdisjoint((DISRUPTED_TAINT.key, names.TO_BE_DELETED_TAINT_KEY))


def step_of_other(cluster: ClusterCache, node: Node, decision: Plan | None) -> tuple[str, str]:
    """Current step of a drain by another owner, and what it waits for."""
    claim = only_claim(cluster.claims_of(node))
    if (text := _unreadable(claim)) is not None:
        return "cordon", text
    if not is_begun(node):
        return "cordon", "its taint is missing"
    if decision is None:
        return "drain", ""
    if decision.left:
        return "drain", summarize(decision)
    if node.deletion_timestamp is None:
        return "drain", "no pod is left"
    conditions = () if claim is None else claim.conditions
    drained = condition_of(conditions, names.DRAINED)
    if drained is not None and drained.status != names.TRUE:
        return "drain", "no pod is left; Karpenter drains for 5 s at least"
    detached = condition_of(conditions, names.VOLUMES_DETACHED)
    if decision.attached and (detached is None or detached.status == "Unknown"):
        return "volumes", listed_attachments(decision.attached)
    return "instance", "the end of its instance"


def warnings_of_other(
    cluster: ClusterCache, node: Node, now: float, decision: Plan | None = None
) -> Iterator[PlanWarning]:
    """Warnings about a node that another owner drains. `decision`: the plan of its drain, if that has begun."""
    step, _ = step_of_other(cluster, node, decision)
    if decision is not None and decision.attached and not decision.left and step in ("drain", "volumes"):
        message = f"Karpenter waits for volumes to detach: {listed_attachments(decision.attached)}"
        attachments = tuple(each.name for each in decision.attached)
        helps = attachment_remedy(decision.attached, node)
        yield PlanWarning(WarningKind.VOLUMES_STILL_ATTACHED, message, attachments, helps)
    claims = cluster.claims_of(node)
    claim = only_claim(claims)
    if (text := _unreadable(claim)) is not None and claim is not None:
        kind = WarningKind.INVALID_DEADLINE
        helps = remedy(kind, kind="nodeclaim", name=claim.name, annotation=names.TERMINATION_TIMESTAMP)
        yield PlanWarning(WarningKind.OWNER_WAITS, text, remedy=helps)
    elif _is_late(cluster, node, now):
        message = f"drain not started: Karpenter has not put the taint {DISRUPTED_TAINT.key} on it"
        yield PlanWarning(WarningKind.OWNER_WAITS, message, remedy=remedy(WarningKind.OWNER_WAITS))
    if node.annotations.get(names.DO_NOT_DISRUPT) == "true" and node.deletion_timestamp is None:
        held = f"annotation {names.DO_NOT_DISRUPT}; a deletion still drains it"
        message = f"Karpenter does not disrupt it by itself: {held}"
        yield PlanWarning(WarningKind.OWNER_HOLDS, message, remedy=remedy(NODE_HOLD, node=node.name))
    if len(claims) > 1:
        found = " ".join(sorted(each.name for each in claims))
        message = (
            f"several node claims have this node ({found.replace(' ', ', ')}): Karpenter uses none, and no deadline"
        )
        kind = WarningKind.SEVERAL_CLAIMS
        yield PlanWarning(kind, message, remedy=remedy(kind, claims=found))


def _is_late(cluster: ClusterCache, node: Node, now: float) -> bool:
    """Whether its owner should have begun."""
    is_requested = owner_of_drain(cluster, node) is not None and not is_begun(node)
    return is_requested and now >= began_at(cluster, node, now) + BEGINS_WITHIN_SECONDS


def _unreadable(claim: NodeClaim | None) -> str | None:
    """Message that Karpenter cannot begin for a deadline that it cannot parse."""
    text = None if claim is None else invalid_deadline(claim)
    if text is None or claim is None:
        return None
    return (
        f"Karpenter fails before it drains: annotation {names.TERMINATION_TIMESTAMP} of NodeClaim {claim.name} is no "
        f'instant: "{harmless(text)}"'
    )
