"""Texts of all Events on nodes, node claims and pods; voluntary terminations: `disruption/events.py`.

Invariant: nothing here records anything. Steps put Events into their answers, and `report` records them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gracectl.cloud.provider import InstanceGone, ProviderError
from gracectl.controllers.cluster.tracked import AnyTracked
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventType
from gracectl.kube.resources import BUDGETS, PODS
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.envelope import UndecodableObject
from gracectl.model.meta import natural_key
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.cordon import SPELT, Mark, marks_on, recorded
from gracectl.policy.deadlines import Deadline
from gracectl.policy.explain import agreed, explain, listed, stuck_text
from gracectl.policy.finalizers import has_finalizer, our_finalizers
from gracectl.policy.maintenance import is_maintenance_requested
from gracectl.policy.owners import Ownership
from gracectl.policy.plan import Plan
from gracectl.policy.protected_pods import ProtectedPod
from gracectl.policy.protection import invalid_annotation, printable
from gracectl.policy.release import Release
from gracectl.policy.remedies import remedy
from gracectl.policy.returning import LONGEST_SECONDS, ReturnedPod
from gracectl.policy.settings import ProtectionSettings


class Event(msgspec.Struct, frozen=True):
    """An Event to record, with a line in the log. `dedup_key`: see EventRecorder.record."""

    reason: EventReason
    message: str
    type: EventType = "Normal"
    dedup_key: str = ""
    about: AnyTracked | Pod | None = None
    """Object of the Event; None: the terminated object, and the claim of a node."""


def _warning(reason: EventReason, message: str, dedup_key: str = "", about: AnyTracked | Pod | None = None) -> Event:
    return Event(reason, message, "Warning", dedup_key, about)


def names_of(things: Iterable[Node | NodeClaim]) -> str:
    """`n1, n2, n10`"""
    return ", ".join(sorted((each.name for each in things), key=natural_key))


# -- begin and end -----------------------------------------------------------------------------------------------------

_OUTCOMES = {
    PodOutcome.EVICTED: "evicted",
    PodOutcome.DELETED: "deleted for the deadline",
    PodOutcome.LEFT: "ended by themselves",
    PodOutcome.ABANDONED: "still there",
}


def terminated(node: AnyTracked, outcomes: Mapping[PodOutcome, int], seconds: float, *, is_done: bool) -> Event:
    """The node is gone `seconds` after the request. `is_done`: gracectl removed the finalizer as the last step."""
    pods = ", ".join(f"{outcomes[outcome]} {text}" for outcome, text in _OUTCOMES.items() if outcomes.get(outcome))
    action = "removed" if is_done else "removed by another client before its termination was complete,"
    duration = format_duration(round(seconds) * NANOSECONDS_PER_SECOND)
    message = f"{action} {duration} after the request: pods: {pods or 'none had to leave'}"
    return Event(EventReason.NODE_TERMINATED, message, "Normal" if is_done else "Warning", about=node)


MISMATCH: Final = "nodeSelector does not match it"
_SELECTOR_REMEDY = "change nodeSelector or the node's labels"


def unmanaged_node(node: Node, owner: Ownership | None = None) -> Event:
    """A node is deleted or in maintenance, and not managed: what its mark means, and the remedy. `owner`: another
    controller that drains it."""
    why, remedy = (MISMATCH, _SELECTOR_REMEDY) if owner is None else (str(owner), f"run gracectl drain {node.name}")
    if node.deletion_timestamp is not None and has_finalizer(node):
        message = (
            f"finalizer {', '.join(our_finalizers(node))} blocks this node, but it is not managed: {MISMATCH}; "
            f"{_SELECTOR_REMEDY}; remove the finalizer by hand only if no other controller manages the node"
        )
        return _warning(EventReason.UNMANAGED_NODE_HELD, message)
    if is_maintenance_requested(node):
        message = (
            f"annotation {names.KEEP_DRAINED} requests maintenance of this node, but it is not managed: {why}; "
            f"{remedy}, or remove the annotation"
        )
    else:
        message = (
            f"the maintenance of this node has ended, but it is not managed: {why}, so what gracectl has put on it "
            f"stays ({node.annotations[names.CORDONED] or 'conditions'}); "
            f"{f'{remedy}, or ' if owner is None else ''}remove it by hand, and then annotation {names.CORDONED}"
        )
    return _warning(EventReason.MAINTENANCE_IGNORED, message)


def unmanaged_claim(claim: NodeClaim) -> Event:
    """A claim is deleted, and not managed."""
    message = (
        f"finalizer {', '.join(our_finalizers(claim))} blocks the deletion of this claim: nodeSelector matches neither "
        "its node nor its own labels; change nodeSelector or the labels; remove the finalizer by hand only if no other "
        "controller manages the claim"
    )
    return _warning(EventReason.UNMANAGED_CLAIM_HELD, message)


def step_failing(message: str) -> Event:
    """A step has been failing for some time."""
    return _warning(EventReason.STEP_FAILING, message)


# -- claims ------------------------------------------------------------------------------------------------------------


def claim_deletion_failed(claim: str, node: str, error: ApiError) -> Event:
    """The claim of a node cannot be deleted with it."""
    message = (
        f"node claim {claim} cannot be deleted with node {node}: {error}; retrying; the node drains meanwhile, and "
        "stays until then"
    )
    return _warning(EventReason.CLAIM_DELETION_FAILED, message)


def several_claims(node: AnyTracked, claims: Iterable[NodeClaim]) -> Event:
    """Several claims match one node."""
    message = f"several node claims have this node ({names_of(claims)}): none is used; delete all but one"
    return _warning(EventReason.SEVERAL_CLAIMS, message, about=node)


def rival_claims(rivals: Iterable[NodeClaim]) -> Event:
    """Another claim has the instance of this one."""
    message = (
        f"another node claim has the same instance ({names_of(rivals)}): released without terminating node or "
        "instance; a node with this claim in its ownerReferences, as Karpenter's have, is deleted by the cluster"
    )
    return _warning(EventReason.SEVERAL_CLAIMS, message)


def node_deletion_failed(failures: Mapping[str, ApiError], seconds: float) -> Event:
    """Nodes of a claim, by name, cannot be deleted; the DELETE is retried every `seconds`."""
    texts = "; ".join(f"deletion of node {name} failed: {error}" for name, error in failures.items())
    return _warning(EventReason.NODE_DELETION_FAILED, f"{texts}; retrying every {seconds:g} s")


# -- deadline ----------------------------------------------------------------------------------------------------------

CLOCKS_DISAGREE: Final = "clocks contradict each other (see /readyz and the log of the controller)"


def deadline_announced(deadline: Deadline, now: float, *, is_paused: bool) -> Event:
    """When the deadline is, why then, and what it means for the pods. `is_paused`: clocks are in dispute."""
    at = format_time(deadline.at)
    ends = "drained" if deadline.annotation == names.DRAIN_DEADLINE else "ends"
    cause = f"annotation {deadline.annotation}"
    if deadline.grace_period is not None:
        cause = f"termination grace period {format_duration(round(deadline.grace_period) * NANOSECONDS_PER_SECOND)}"
    if is_paused:
        message = f"paused: {CLOCKS_DISAGREE}; deadline {at}"
    elif deadline.at <= now:
        message = (
            f"{ends} now: its deadline {at} ({cause}) has passed; each remaining pod is deleted with 1 s of grace, "
            "regardless of what blocks it"
        )
    else:
        message = (
            f"{ends} by {at} ({cause}): pods leave as budgets and protection allow; each remaining pod is deleted, "
            "even if blocked, early enough for its full grace, or immediately with the remaining time"
        )
    return Event(EventReason.TERMINATION_GRACE_PERIOD_EXPIRING, message, dedup_key=at)


def unreadable_deadline(about: AnyTracked, text: str, deadline: Deadline | None, annotation: str) -> Event:
    """Event: a deadline annotation is not a valid instant; `deadline`: the deadline that applies instead."""
    then = "there is no deadline" if deadline is None else f"{format_time(deadline.at)} is written instead"
    message = f'annotation {annotation} is "{text[:100]}", which is no instant such as 2026-01-01T00:00:00Z: {then}'
    return _warning(EventReason.INVALID_TERMINATION_TIMESTAMP, message, about=about)


# -- cordon and maintenance --------------------------------------------------------------------------------------------


def cordoned(node: AnyTracked, activity: str, marks: Collection[Mark]) -> Event:
    """The node takes no more pods, since it is in this `activity`: `is being terminated`."""
    balancers = "; removed from external load balancers" if Mark.LABEL in marks else ""
    message = f"cordoned{balancers}: it {activity}"
    return Event(EventReason.CORDONED, message, about=node)


def cordon_undone(node: AnyTracked, undone: Collection[Mark], *, takes_pods: bool) -> Event:
    """Another client has removed these marks of the cordon."""
    marks = " and ".join(SPELT[mark] for mark in undone)
    then = "no pod is evicted until the node takes no new ones" if takes_pods else "the drain continues"
    message = f"{marks}: removed by a webhook or another controller; retrying with backoff, and {then}"
    return _warning(EventReason.CORDON_UNDONE, message, recorded(undone), node)


def drained_for_maintenance(message: str) -> Event:
    """A node in maintenance is drained, and stays so until it is returned."""
    return Event(EventReason.DRAINED, message)


def uncordoned(before: Node, after: Node) -> Event:
    """A node is returned from maintenance: why, and what still keeps pods or traffic from it."""
    is_by_hand = names.KEEP_DRAINED in before.annotations
    why = "it was uncordoned" if is_by_hand else f"annotation {names.KEEP_DRAINED} was removed"
    marks = " and ".join(SPELT[mark] for mark in marks_on(after))
    left = f"; it keeps {marks}, which gracectl has not set" if marks else ""
    return Event(EventReason.UNCORDONED, f"maintenance ended: {why}{left}")


# -- drain and volumes -------------------------------------------------------------------------------------------------


def draining(plan: Plan) -> Event:
    """The drain has begun."""
    return Event(EventReason.DRAINING, explain(plan))


def pods_return(came: ReturnedPod) -> Event:
    """A workload makes pods on a cordoned node."""
    message = (
        f"{came.workload}: its pods come back to this node after each eviction: {came.cause}; "
        f"evicting them every {LONGEST_SECONDS:g} s at most"
    )
    return _warning(EventReason.PODS_RETURN, message, came.controller)


def deadline_passed(left_behind: str) -> Event:
    """The deadline has passed with pods on the node."""
    return _warning(EventReason.TERMINATION_GRACE_PERIOD_EXPIRED, left_behind)


def pods_stuck(plan: Plan) -> Event:
    """Pods do not stop although their kubelet is alive."""
    pods = agreed(plan.stuck, "it", "them")
    message = f"{stuck_text(plan)}; the drain continues without waiting for {pods}"
    return _warning(EventReason.PODS_STUCK, message)


def drain_blocked(seconds: float, message: str) -> Event:
    """Event: no pod has left for this number of seconds."""
    return _warning(EventReason.DRAIN_BLOCKED, f"no pod has left for {seconds:g} s; {message}")


def awaiting_detachment(message: str) -> Event:
    """Only volumes of drained pods remain."""
    return Event(EventReason.AWAITING_VOLUME_DETACHMENT, message)


def still_attached(message: str) -> Event:
    """Volumes have not been detached for a long time."""
    return _warning(EventReason.VOLUMES_STILL_ATTACHED, message)


def node_budgets_block(blocked: Mapping[str, Refusal]) -> Event:
    """Node disruption budgets block the deletion of a claim's nodes, by name."""
    message = "; ".join(f"deletion of node {name} blocked: {refusal}" for name, refusal in blocked.items())
    gist = " ".join(f"{name} {refusal.budget} {refusal.allowance}" for name, refusal in blocked.items())
    return Event(EventReason.DISRUPTION_HELD, message, dedup_key=gist)


# -- instance ----------------------------------------------------------------------------------------------------------


def instance_shared(about: AnyTracked, others: Sequence[Node]) -> Event:
    """The instance is kept, as other nodes use it."""
    message = f"instance kept: {names_of(others)} uses the same instance"
    if not any(other.ready for other in others):
        message += "; not Ready: if the node is left over, delete it, which terminates the instance"
    return Event(EventReason.INSTANCE_SHARED, message, about=about)


def instance_returned(provider_id: str, state: str) -> Event:
    """The instance is kept, as another one with its provider ID was confirmed to be gone before."""
    message = f"instance kept: {provider_id} was gone before, and is {state} now"
    return _warning(EventReason.INSTANCE_SHARED, message)


def instance_terminating(provider_id: str) -> Event:
    """The provider has accepted the termination."""
    return Event(EventReason.INSTANCE_TERMINATING, f"instance {provider_id}: termination requested")


def instance_terminated(gone: InstanceGone) -> Event:
    """The provider has confirmed that the instance is gone."""
    return Event(EventReason.INSTANCE_TERMINATED, str(gone))


def machine_keeps_running(message: str) -> Event:
    """The provider `none` terminates no machine."""
    reason = EventReason.MACHINE_KEEPS_RUNNING
    return _warning(reason, f"{message}; {remedy(reason)}")


def instance_termination_failed(provider: str, error: ProviderError, provider_id: str) -> Event:
    """The provider has not terminated the instance; `provider_id`: empty if it is unknown."""
    then = "; retrying until the instance is gone" if provider_id else ""
    return _warning(EventReason.INSTANCE_TERMINATION_FAILED, f"provider {provider}: {error}{then}")


# -- pods --------------------------------------------------------------------------------------------------------------


def pod_released(pod: Pod, release: Release) -> Event:
    """The pod is replaced before its eviction."""
    message = (
        f"{pod.full_name} released from ReplicaSet {release.replica_set}, which replaces it; evicted from node "
        f"{pod.node_name} when its replacement is Ready"
    )
    return Event(EventReason.POD_RELEASED, message, about=pod)


def pod_returned(pod: Pod, reason: str, *, is_deleted: bool, is_failed: bool) -> Event:
    """A released pod stays after all, or is deleted since its ReplicaSet is gone."""
    action = "deleted, as its ReplicaSet is gone" if is_deleted else "returned to its ReplicaSet"
    message = f"{action}: {reason}"
    return Event(EventReason.POD_RETURNED, message, "Warning" if is_failed else "Normal", about=pod)


def evicted(pod: EvictionCandidate) -> Event:
    """The server has agreed to an eviction."""
    return Event(EventReason.EVICTED, f"evicted by gracectl: node {pod.node} {pod.node_activity}")


def eviction_failed(pod: EvictionCandidate, error: ApiError) -> Event:
    """The server has refused an eviction, and not for a budget."""
    return _warning(EventReason.EVICTION_FAILED, f"eviction from node {pod.node} failed: {error}; retrying")


def multiple_budgets(pod: EvictionCandidate) -> Event:
    """Several budgets select the pod: their names, as the server's response names none of them."""
    budgets = " and ".join(f"{namespace}/{name}" for namespace, name in pod.budgets)
    message = (
        f"eviction from node {pod.node} impossible: more than one PodDisruptionBudget selects this pod"
        f"{f' ({budgets})' if budgets else ''}; change their selectors so that one is left"
    )
    return _warning(EventReason.MULTIPLE_BUDGETS, message)


def deleted(deletion: Deletion) -> Event:
    """A pod is deleted for the deadline of its node. Each further cut of its grace makes another Event."""
    type_: EventType = "Warning" if is_cut(deletion) else "Normal"
    return Event(EventReason.DELETED_FOR_DEADLINE, deletion_message(deletion), type_, str(deletion.granted))


def deletion_failed(pod: ScheduledDeletion, error: ApiError) -> Event:
    """The deletion for the deadline was refused."""
    message = f"deletion for the deadline of node {pod.node} failed: {error}; retrying"
    return _warning(EventReason.DELETION_FAILED, message)


def is_cut(deletion: Deletion) -> bool:
    """Whether the pod loses part of its grace or, if it was already terminating, of the granted grace.

    A pod that is deleted again at the deadline, when its grace has ended, loses nothing.
    """
    if deletion.before is None:
        return deletion.granted < deletion.requested
    return deletion.before.grace_ends > deletion.pod.deadline


def deletion_message(deletion: Deletion) -> str:
    """Grace and reason of a deletion for the deadline, and that nothing else counts."""
    before, granted = deletion.before, f"{deletion.granted} s"
    if before is None and is_cut(deletion):
        action = f"deleted by gracectl with {granted} of grace instead of {deletion.requested} s"
    elif before is None:
        action = f"deleted by gracectl with its whole grace ({granted})"
    elif is_cut(deletion):
        excess = math.ceil(before.grace_ends - deletion.pod.deadline)
        # A deadline of long ago is an end by hand, which no number makes clearer.
        when = f"{excess} s after the deadline" if excess <= before.grace else "after the deadline"
        action = f"grace cut by gracectl from {before.grace} s, which would end {when}, to {granted}"
    else:
        action = f"deleted again by gracectl with {granted} of grace, still running after {before.grace} s"
    return f"{action}: {_deletion_reason(deletion.pod)}, regardless of budgets and protection"


def _deletion_reason(pod: ScheduledDeletion) -> str:
    """Why a pod is deleted: `node n1 must be gone by 2026-01-01T00:00:00Z`."""
    end = format_time(pod.deadline)
    if pod.cause:
        activity = "is being terminated" if pod.node_goal == "gone" else "is drained for maintenance"
        return f"node {pod.node} {activity}, and must be {pod.node_goal} by {end} ({pod.cause})"
    drained = f" is drained by {pod.owner}, and" if pod.owner else ""
    return f"node {pod.node}{drained} must be {pod.node_goal} by {end}"


def disruption_target(pod: ScheduledDeletion) -> ConditionUpdate:
    """The condition DisruptionTarget of a pod that is about to be deleted for a deadline."""
    message = f"deleted by gracectl: {_deletion_reason(pod)}"
    return ConditionUpdate(names.DISRUPTION_TARGET, names.TRUE, names.DELETION_BY_GRACECTL, message)


_CONSEQUENCES = {
    PODS.kind: "the drain of its node waits for it until a deadline",
    BUDGETS.kind: "it blocks every pod of its namespace until it is smaller, or gone",
}


def undecodable(kind: str, found: UndecodableObject) -> Event:
    """An object cannot be decoded: why, and what follows."""
    then = _CONSEQUENCES.get(kind, "gracectl uses its last known state")
    return _warning(EventReason.UNDECODABLE, f"cannot be decoded: {found.error}; {then}")


def invalid_protection(pod: Pod, settings: ProtectionSettings) -> Event:
    """The value of do-not-disrupt is invalid: what it means now, and what would be valid."""
    value = printable(invalid_annotation(pod) or "")
    effect = "protects the pod indefinitely"
    if settings.maximum_seconds is not None:
        maximum = f"{settings.maximum_seconds:g} s from its {settings.reference}"
        effect = f"protects the pod for protection.maximumSeconds ({maximum})"
    owner = pod.controller
    others = "" if owner is None else f", on all pods of {owner.kind} {owner.name} that have it"
    message = (
        f'annotation {names.DO_NOT_DISRUPT}: "{value}" is neither "true" nor a positive duration and {effect}; set '
        f'"true", or a duration such as "4h" or "1h30m" from its {settings.reference}, or remove it{others}'
    )
    return _warning(EventReason.INVALID_DO_NOT_DISRUPT_ANNOTATION, message, value, pod)


# -- protected pods ----------------------------------------------------------------------------------------------------


def last_end(pods: Iterable[ProtectedPod]) -> float | None:
    """The instant at which the last protection ends: infinity if one has no known end, None without any."""
    return max((_end(each) for each in pods if not each.is_leaving), default=None)


def _end(pod: ProtectedPod) -> float:
    return math.inf if pod.protection.until is None else pod.protection.until


def protection(pods: Collection[ProtectedPod], deadline: float | None) -> Event:
    """Protected pods block a drain: how many, and until when."""
    message = _protection_summary(pods)
    if deadline is not None:
        message += f"; node deadline {format_time(deadline)}"
    return Event(EventReason.DO_NOT_DISRUPT_UNTIL, message, dedup_key=str(last_end(pods)))


def protection_elapsed(elapsed: Sequence[ProtectedPod], remaining: Iterable[ProtectedPod]) -> Event:
    """Pods of a node are no longer protected; `remaining`: the pods that still are."""
    message = f"{_count(elapsed)} no longer protected, evicted as budgets allow: {_protected_names(elapsed)}"
    if left := [each for each in remaining if not each.is_leaving]:
        message += f"; {_protection_summary(left)}"
    dedup_key = f"{elapsed[0].pod.uid} {elapsed[0].protection.until}"
    return Event(EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message, dedup_key=dedup_key)


def pod_protected(pod: ProtectedPod, node: str, deadline: float | None) -> Event:
    """A protected pod blocks the drain of its node, until when, and what happens then."""
    message = f"blocks the drain of node {node}: {_explain(pod, deadline)}"
    return Event(EventReason.DO_NOT_DISRUPT_UNTIL, message, dedup_key=_key(pod), about=pod.pod)


def pod_protection_elapsed(pod: ProtectedPod, node: str) -> Event:
    """A pod is no longer protected."""
    message = f"no longer blocks the drain of node {node}: was {_until(pod)}; evicted as budgets allow"
    return Event(EventReason.DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED, message, dedup_key=_key(pod), about=pod.pod)


def _key(pod: ProtectedPod) -> str:
    return " ".join(map(str, pod.until))


def _protection_summary(pods: Iterable[ProtectedPod]) -> str:
    """`3 pods are protected, the last until …: shop/a, shop/b, shop/c`; the pod that is protected longest first."""
    protected = sorted((each for each in pods if not each.is_leaving), key=lambda each: (-_end(each), each.pod.key))
    endless = sum(each.protection.until is None for each in protected)
    if endless:
        number = "" if len(protected) == 1 else "all " if endless == len(protected) else f"{endless} "
        until = f"{number}without a known end"
    else:
        until = f"{'' if len(protected) == 1 else 'the last '}until {format_time(_end(protected[0]))}"
    return f"{_count(protected)} protected, {until}: {_protected_names(protected)}"


def _explain(pod: ProtectedPod, deadline: float | None) -> str:
    """`protected by … until …; evicted after that as budgets allow; deleted at … at the latest (node deadline …)`."""
    protection, by_deadline = pod.protection, ""
    if pod.delete_at is not None and deadline is not None:
        by_deadline = f"; deleted at {format_time(pod.delete_at)} at the latest (node deadline {format_time(deadline)})"
    if protection.until is not None:
        is_evicted_first = pod.delete_at is None or pod.delete_at > protection.until
        return f"{_until(pod)}{'; evicted after that as budgets allow' if is_evicted_first else ''}{by_deadline}"
    if protection.lasting == "time":
        return f"{protection.description}, which counts from its start; not started yet{by_deadline}"
    extent = ", which blocks the whole node" if protection.holds_node else ""
    return f"{protection.description}{extent}; stays until you remove that{by_deadline}"


def _until(pod: ProtectedPod) -> str:
    protection = pod.protection
    assert protection.until is not None
    return f"{protection.description} until {format_time(protection.until)}{protection.limit_note}"


def _count(pods: Sequence[object]) -> str:
    return "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"


def _protected_names(pods: Sequence[ProtectedPod]) -> str:
    """The first three, as in the condition `Drained`."""
    return listed([each.pod.full_name for each in pods])
