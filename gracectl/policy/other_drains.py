"""Drains of other owners: who drains this node, which pods it evicts now, and by when.

`plan()` takes such a drain as part of its view, so a pod is evicted only if both gracectl and the owner would evict it
now. Invariant: what a plan of another owner's node evicts or deletes, the owner would evict or delete too; where its
settings are unknown, the strictest reading counts (ADR 0077).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec

from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.machine import Machine
from gracectl.model.node import DISRUPTED_TAINT, Node, Taint, tolerates
from gracectl.model.pod import Pod, UnknownPod
from gracectl.policy.answers import Unknown
from gracectl.policy.deadlines import invalid_deadline, written_deadline
from gracectl.policy.evictability import FINISHED, is_silent
from gracectl.policy.owners import DrainOwner, other_owner
from gracectl.policy.protection import Protection, do_not_disrupt_of, protection_of
from gracectl.policy.settings import ProtectionSettings
from gracectl.policy.waves import DEFAULT_ORDER, is_daemon

STUCK_SECONDS: Final = 61.0
"""Karpenter ignores a pod a minute after its grace has ended, at its next look: it looks each second."""

FROM_START: Final = ProtectionSettings(reference="start")
"""How Karpenter counts a do-not-disrupt with a duration."""

DELAY_SECONDS: Final = 6.0
"""Cluster Autoscaler evicts this long after its taint: its --node-delete-delay-after-taint, and the second that the
instant in the taint may be short of."""

RETRY_SECONDS: Final = 120.0
"""Its --max-pod-eviction-time: then it gives up, and removes its taint."""

PACES: Final[Mapping[DrainOwner, str]] = {
    DrainOwner.KARPENTER: (
        "when Karpenter tries again: it retries a pod that may not leave after up to 10 s, in no fixed order"
    ),
    DrainOwner.CLUSTER_AUTOSCALER: "when Cluster Autoscaler tries again, and when it gives up",
    DrainOwner.CLUSTER_API: "when Cluster API tries again",
}
"""What is unknown of a drain that its owner carries out alone."""

LOWEST_PRIORITY: Final = -(2**31)


class Held(NamedTuple):
    """Why the owner does not evict a pod now, and until when at least (Unix seconds; None: until an event)."""

    reason: str
    until: float | None = None


class OtherDrain(msgspec.Struct, frozen=True):
    """Drain of a node by another owner, as its objects show it."""

    owner: ClassVar[DrainOwner]
    keeps_daemon_sets: ClassVar[bool] = False
    """The owner leaves the pods of DaemonSets on the node."""
    minimum_seconds: ClassVar[float] = 0.0
    """Least duration of the drain."""
    late_seconds: ClassVar[float] = 0.0
    """Seconds by which the owner may delete a pod for the deadline too late."""
    deadline: float | None = None
    """Instant at which the owner deletes the remaining pods regardless of what blocks them; None: never."""
    claim: str = ""
    """Name of the NodeClaim with the deadline; empty without one."""
    is_assisted: bool = True
    """Whether gracectl evicts, too. If not, a plan says what the owner alone does, at its own pace."""

    def held(self, pods: Sequence[Pod], now: float) -> Mapping[str, Held]:
        """By UID, the pods of the node that the owner does not evict now."""
        raise NotImplementedError

    def group_of(self, pod: Pod) -> int:
        """Index into DEFAULT_ORDER of the pods with which the owner alone lets a pod leave."""
        return 0

    def protection(self, pod: Pod, now: float, settings: ProtectionSettings) -> Protection | None:
        """Active protection of a pod, by the stricter one of the owner's reading and ours; unassisted, by its own."""
        return protection_of(pod, now, settings) if self.is_assisted else None

    def deletes(self, pod: Pod) -> bool:
        """Whether the owner deletes this pod for the deadline, should the pod outlive it."""
        return self.deadline is not None

    def changes_at(self, now: float) -> float | None:
        """The next instant at which the clock alone changes what the owner evicts, beyond what `held` says."""
        return None


class KarpenterDrain(OtherDrain, frozen=True):
    """Karpenter evicts its first group of pods that is not empty, and deletes what would outlive the deadline.

    Source: Karpenter 1.0 to 1.15, `pkg/controllers/node/termination/terminator` (Drain, groupPodsByPriority,
    needsForceDelete) and `pkg/utils/pod/scheduling.go`. Where releases differ, the strictest one counts: pods that are
    deleted for the deadline still hold the groups behind them (until 1.14).
    """

    owner = DrainOwner.KARPENTER
    minimum_seconds = 4.0  # 5 s, counted from an instant that is cut to whole seconds
    late_seconds = 11.0  # its longest backoff, and the second in which it looks

    def held(self, pods: Sequence[Pod], now: float) -> Mapping[str, Held]:
        """See OtherDrain."""
        groups: dict[int, list[Pod]] = {}
        for pod in pods:
            if _karpenter_waits_for(pod, now):
                groups.setdefault(_karpenter_group(pod), []).append(pod)
        first = min(groups, default=0)
        stuck_from = [p.deletion_timestamp + STUCK_SECONDS for p in groups.get(first, ()) if p.deletion_timestamp]
        held = Held(f"Karpenter waits for {DEFAULT_ORDER.waves[first].pods}", min(stuck_from, default=None))
        return {pod.uid: held for pod in pods if _karpenter_group(pod) > first}

    def group_of(self, pod: Pod) -> int:
        """See OtherDrain."""
        return _karpenter_group(pod)

    def protection(self, pod: Pod, now: float, settings: ProtectionSettings) -> Protection | None:
        """See OtherDrain: Karpenter counts from the start of the pod, and knows no maximum. To Karpenter itself an
        invalid value, or do-not-evict, is no protection.
        """
        if not self.is_assisted:
            own = do_not_disrupt_of(pod, now, FROM_START)
            return own if own is not None and own.is_valid else None
        found = [each for reading in (settings, FROM_START) if (each := protection_of(pod, now, reading)) is not None]
        return max(found, key=lambda each: float("inf") if each.until is None else each.until, default=None)

    def deletes(self, pod: Pod) -> bool:
        """See OtherDrain: a terminating pod is left alone if its grace ends in time."""
        if self.deadline is None or (pod.deletion_timestamp or self.deadline + 1) <= self.deadline:
            return False
        return pod.deletion_timestamp is not None or (pod.grace_seconds is not None and pod.grace_seconds >= 0)


def is_pace(answer: Unknown) -> bool:
    """Whether only the pace of an owner is unknown: the pod leaves without a change by a person."""
    return bool(answer.missing) and all(each in PACES.values() for each in answer.missing)


def karpenter_drain(node: Node, claims: Iterable[NodeClaim]) -> KarpenterDrain | None:
    """The drain of a node by Karpenter; None: it does not drain the node now. `claims`: those of the node."""
    if node.deletion_timestamp is None or names.FINALIZER not in node.finalizers:
        return None
    found = other_owner(node, claims := tuple(claims))
    if found is None or found.owner is not DrainOwner.KARPENTER or _taint(node, DISRUPTED_TAINT.key) is None:
        return None
    own = [claim for claim in claims if node.provider_id and claim.provider_id == node.provider_id]
    if len(own) != 1:  # of several Karpenter uses none
        return KarpenterDrain()
    # At an instant that it cannot parse Karpenter fails before it drains.
    if invalid_deadline(own[0]) is not None:
        return None
    return KarpenterDrain(written_deadline(own[0]), own[0].name)


def _karpenter_waits_for(pod: Pod, now: float) -> bool:
    """IsWaitingEviction. What cannot be decoded may be anything."""
    if isinstance(pod, UnknownPod):
        return True
    is_stuck = pod.deletion_timestamp is not None and now - pod.deletion_timestamp >= STUCK_SECONDS
    is_gone = pod.phase in FINISHED or is_stuck
    return not (is_gone or tolerates(pod.tolerations, DISRUPTED_TAINT) or any(owner.is_node for owner in pod.owners))


def _karpenter_group(pod: Pod) -> int:
    """Index into the waves of DEFAULT_ORDER; Karpenter knows critical pods by their class only."""
    is_of_daemon_set = any((owner.kind, owner.group) == (names.DAEMON_SET, "apps") for owner in pod.owners)
    return (2 if pod.priority_class in names.CRITICAL_PRIORITY_CLASSES else 0) + is_of_daemon_set


class AutoscalerDrain(OtherDrain, frozen=True, kw_only=True):
    """Cluster Autoscaler evicts all pods but those of DaemonSets, in groups by priority if it is so configured.

    Its groups are unknown here, but the pods of the lowest priority are always in the first one. It evicts for
    RETRY_SECONDS from DELAY_SECONDS after its taint. Source: sigs.k8s.io/cluster-autoscaler
    `pkg/core/scaledown/actuation` (deleteNodesAsync, drainNode, evictPod).
    """

    owner = DrainOwner.CLUSTER_AUTOSCALER
    keeps_daemon_sets = True
    tainted_at: float
    """Instant in the value of the taint (Unix seconds)."""

    def held(self, pods: Sequence[Pod], now: float) -> Mapping[str, Held]:
        """See OtherDrain."""
        begins = self.tainted_at + DELAY_SECONDS
        if now < begins:
            return dict.fromkeys((pod.uid for pod in pods), Held("Cluster Autoscaler has not begun its drain", begins))
        if now >= begins + RETRY_SECONDS:
            return dict.fromkeys((pod.uid for pod in pods), Held("Cluster Autoscaler evicts no longer"))
        drained = [pod for pod in pods if names.MIRROR_POD not in pod.annotations and not _is_autoscalers_daemon(pod)]
        lowest = min(map(_priority, drained), default=0)
        held = Held("Cluster Autoscaler may wait for pods of a lower priority")
        leaving = {pod.uid for pod in drained if _priority(pod) == lowest}
        return {pod.uid: held for pod in pods if pod.uid not in leaving}

    def changes_at(self, now: float) -> float | None:
        """See OtherDrain: when it begins, or gives up."""
        begins = self.tainted_at + DELAY_SECONDS
        return next((at for at in (begins, begins + RETRY_SECONDS) if at > now), None)


def autoscaler_drain(node: Node) -> AutoscalerDrain | None:
    """The drain of a node by Cluster Autoscaler; None: it does not drain the node now."""
    taint = _taint(node, names.TO_BE_DELETED_TAINT_KEY)
    if taint is None or node.deletion_timestamp is not None or not taint.value.isdecimal():
        return None
    return AutoscalerDrain(tainted_at=float(taint.value)) if len(taint.value) <= 12 else None


def _priority(pod: Pod) -> int:
    """What cannot be decoded may have the lowest one."""
    return LOWEST_PRIORITY if isinstance(pod, UnknownPod) else pod.priority or 0


def _is_autoscalers_daemon(pod: Pod) -> bool:
    return is_daemon(pod) or pod.annotations.get(names.AUTOSCALER_DAEMON_POD) == "true"


class ClusterApiDrain(OtherDrain, frozen=True, kw_only=True):
    """Cluster API evicts all pods but those of DaemonSets, unless a label or a MachineDrainRule says otherwise.

    Which pods a rule is about is not decided here: with any rule in the namespace of the Machine, Cluster API drains
    alone. Source: Cluster API 1.14, `core/reconcilers/machine` (reconcileDelete, drainNode) and its `drain`.
    """

    owner = DrainOwner.CLUSTER_API
    keeps_daemon_sets = True
    machine: tuple[str, str]
    """Namespace and name."""
    ends: float | None = None
    """When Cluster API gives up (Unix seconds); None: never."""
    has_rules: bool | None = None
    """None: unknown."""

    def held(self, pods: Sequence[Pod], now: float) -> Mapping[str, Held]:
        """See OtherDrain."""
        if self.has_rules is not False:
            reason = "Cluster API has MachineDrainRules" if self.has_rules else "MachineDrainRules are not read yet"
            return dict.fromkeys((pod.uid for pod in pods), Held(reason))
        if self.ends is not None and self.ends <= now:
            return dict.fromkeys((pod.uid for pod in pods), Held("Cluster API evicts no longer: its drain timed out"))
        labeled = Held(f"label {names.CLUSTER_API_DRAIN}: Cluster API does not evict it")
        return {pod.uid: labeled for pod in pods if names.CLUSTER_API_DRAIN in pod.labels}

    def changes_at(self, now: float) -> float | None:
        """See OtherDrain: when it gives up."""
        return self.ends if self.ends is not None and self.ends > now else None


def cluster_api_drain(node: Node, machines: Collection[Machine]) -> ClusterApiDrain | None:
    """The drain of a node by Cluster API; None: it does not drain the node now. `machines`: the Machines with the
    providerID of the node.

    On a node without a kubelet it grants pods one second: gracectl does not.
    """
    if node.deletion_timestamp is not None or is_silent(node) or len(machines) != 1:
        return None
    (machine,) = machines
    is_excluded = machine.is_paused or names.EXCLUDE_NODE_DRAINING in machine.annotations
    if is_excluded or not (machine.is_deleted and machine.is_draining) or machine.node_name != node.name:
        return None
    return ClusterApiDrain(machine=machine.key, ends=machine.drain_ends)


def _taint(node: Node, key: str) -> Taint | None:
    if not node.taints:  # as of nearly all nodes
        return None
    return next((taint for taint in node.taints if (taint.key, taint.effect) == (key, names.NO_SCHEDULE)), None)
