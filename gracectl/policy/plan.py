"""Plan of a node, and its input: what happens to each pod now, what blocks it, and when to decide again.

`policy.planner` decides. The controller carries a plan out, `gracectl status` explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.node import Node
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.budgets import BudgetKey
from gracectl.policy.membership import LostBudget
from gracectl.policy.other_drains import OtherDrain
from gracectl.policy.protection import Protection
from gracectl.policy.replacement import NotReplaced, WorkloadFacts
from gracectl.policy.settings import PolicySettings
from gracectl.policy.volumes import VolumesByClaim
from gracectl.policy.waves import DEFAULT_ORDER, DrainOrder


class NodeView(msgspec.Struct, frozen=True):
    """Input of a plan, as the caches showed it at one instant."""

    node: Node
    pods: tuple[Pod, ...]
    budgets: Mapping[str, tuple[PodDisruptionBudget, ...]]
    """Budgets that select a pod, by pod UID; a pod without a budget may be missing."""
    attachments: tuple[VolumeAttachment, ...] = ()
    """Volumes attached to the node."""
    volumes: VolumesByClaim = {}
    """PersistentVolumes of pods that stay until the node ends, as far as they are known."""
    cordoned_at: float | None = None
    """When the node was seen to be cordoned; None before."""
    deadline: float | None = None
    """When everything must be over; None without a deadline."""
    is_maintenance: bool = False
    """The node is drained and stays, and the pods of its DaemonSets with it."""
    settings: PolicySettings = PolicySettings()
    lost_budgets: Mapping[str, LostBudget] = {}
    """Budget that has just stopped selecting a pod, by pod UID; only changes that this process has seen."""
    known_cordoned_at: float | None = None
    """Since when every scheduler could know the cordon, where that may be later than `cordoned_at`."""
    late: frozenset[str] = frozenset()
    """UIDs of pods that this process has seen come after the cordon."""
    refusals: Mapping[str, str] = {}
    """Reason, other than a budget, for which the server refused an eviction, by pod UID."""
    workloads: Mapping[tuple[str, str], WorkloadFacts] = {}
    """What was read of workloads with pods that may be replaced before their eviction, by `facts_key`."""
    other: OtherDrain | None = None
    """The drain of another owner: nothing is evicted or deleted that this owner would not evict or delete now."""

    @property
    def is_unassisted(self) -> bool:
        """Whether another owner drains the node alone."""
        return self.other is not None and not self.other.is_assisted

    @property
    def keeps_daemon_sets(self) -> bool:
        """Whether the pods of DaemonSets stay on the node."""
        return self.is_maintenance or (self.other is not None and self.other.keeps_daemon_sets)


class Outcome(StrEnum):
    """Outcome of a plan for a pod."""

    DELETE = "delete"
    """The pod is deleted now for the deadline, regardless of other blockers."""
    EVICT = "evict"
    REPLACE = "replace"
    """The pod is released now, so that its ReplicaSet replaces it before its eviction."""
    REPLACING = "replacing"
    """The pod is released, and leaves when its replacement is Ready."""
    RETURN = "return"
    """The pod is returned to its ReplicaSet now."""
    BLOCKED = "blocked"
    WAITING = "waiting"
    PROTECTED = "protected"
    TERMINATING = "terminating"
    IGNORED = "ignored"


class Blocker(StrEnum):
    """Blocker of a pod, for machines."""

    BUDGET = "budget"
    """The pod's budget allows no disruption now, or other pods go first."""
    UNOBSERVED = "unobserved-budget"
    """The pod's budget has just changed, and the disruption controller has not counted it yet."""
    MISCONFIGURATION = "misconfiguration"
    """Several budgets select it, or its budget cannot be counted: that must be fixed first."""
    PROTECTION = "protection"
    """The pod itself is protected."""
    NEIGHBOUR = "neighbour"
    """Another pod of the node is protected by do-not-evict, which blocks the whole node."""
    WAVE = "wave"
    """Pods of an earlier wave are not gone yet."""
    VOLUME = "volume"
    """A volume of a drained pod is attached to the node, and this DaemonSet pod may have to unstage it."""
    RETURNED = "returned"
    """The pod was created after the cordon, and would be recreated: it is evicted less and less often."""
    SETTLING = "settling-budget"
    """The pod has just lost its budget by a change of labels or selector."""
    REFUSED = "refused"
    """The server refuses its eviction, and not for a budget: an admission webhook, say."""
    REPLACEMENT = "replacement"
    """The pod is replaced before its eviction, and waits for that."""
    OWNER = "owner"
    """The other owner that drains the node does not evict the pod now."""
    UNDECODABLE = "undecodable"
    """The pod's object cannot be decoded, so no decision is possible."""


class PodPlan(msgspec.Struct, frozen=True, gc=False):
    """Plan of one pod: what happens to it now, or why nothing does and until when at least (None: unknown)."""

    pod: Pod
    outcome: Outcome
    wave: int
    """Index into the waves of the plan."""
    reason: str = ""
    until: float | None = None
    budgets: tuple[BudgetKey, ...] = ()
    delete_at: float | None = None
    """The instant at which it is deleted for the deadline, should it still be there. The deleter applies the same rule
    (`policy.deadlines.delete_at`) to the newest pod when it sends the DELETE."""
    late_seconds: float = 0.0
    """Seconds by which that may be late: another owner deletes when it looks."""
    deadline: float | None = None
    """Instant by which the pod must have ended: the deadline of the node, or of the pod's wave."""
    protection: Protection | None = None
    """Active protection."""
    stays: bool = False
    """Whether the pod is ignored and keeps running on the node."""
    is_stuck: bool = False
    """Ignored because it is stuck: its kubelet is alive but does not stop it, so it may still run."""
    blocker: Blocker | None = None
    """Blocker; None for a pod that is evicted, deleted, terminating or ignored."""
    asks_for_replacement: bool = False
    """Whether the decision depends on the pod's workload, so that this must be read."""
    not_replaced: NotReplaced | None = None
    """Why it is not replaced before its eviction although that is requested."""
    attachments: tuple[VolumeAttachment, ...] = ()
    """The attachments that it waits for."""

    @property
    def deleted_by(self) -> float | None:
        """Latest instant at which it is deleted for the deadline."""
        return None if self.delete_at is None else self.delete_at + self.late_seconds

    @property
    def is_ambiguous(self) -> bool:
        """Several budgets select it, so that it cannot be evicted."""
        return self.outcome is Outcome.BLOCKED and len(self.budgets) > 1

    @property
    def is_queued(self) -> bool:
        """Whether the pod belongs in the queue of its budget, even while the queue does not move."""
        return self.outcome in (Outcome.EVICT, Outcome.BLOCKED)


class Plan(msgspec.Struct, frozen=True, dict=True):
    """Plan of one node at one instant."""

    pods: tuple[PodPlan, ...]
    drained: bool
    detaching: tuple[VolumeAttachment, ...]
    """Attachments that must go before the instance may end."""
    overdue: bool
    """Whether the deadline has passed: the drain waits for nothing. In maintenance it still waits for the pods."""
    next_change: float | None
    """The next instant at which the clock alone changes this plan; None when only an event can."""
    deadline: float | None = None
    """When everything must be over; None without a deadline."""
    attached: tuple[VolumeAttachment, ...] = ()
    """Attachments of drained pods, also when they are no longer waited for."""
    unread_claims: tuple[tuple[Pod, str], ...] = ()
    """Claims of pods that stay, where they matter and their volumes are unknown."""
    order: DrainOrder = DEFAULT_ORDER
    """The waves in which the pods leave."""
    is_stuck: bool = False
    """A node in maintenance would be drained but for stuck pods: an operator who reboots it would interrupt them."""
    excludes_daemon_sets: bool = False
    """DaemonSet pods leave now, so that no new one may come."""
    awaited: frozenset[str] = frozenset()
    """By UID, the pods of which the last must be gone before anything else can happen: those of the current wave. Empty
    where the end of a single pod may change more (a pod of another one is protected for the whole node, or another
    owner drains it)."""

    @cached_property
    def left(self) -> tuple[PodPlan, ...]:
        """The pods that block the node."""
        return tuple([p for p in self.pods if p.outcome is not Outcome.IGNORED])

    @cached_property
    def due(self) -> tuple[PodPlan, ...]:
        """Pods to delete now."""
        return tuple([p for p in self.pods if p.outcome is Outcome.DELETE])

    @cached_property
    def stuck(self) -> tuple[PodPlan, ...]:
        """The pods that may still run although nothing waits for them."""
        return tuple([p for p in self.pods if p.is_stuck])

    @cached_property
    def leaving(self) -> tuple[PodPlan, ...]:
        """Pods to evict now."""
        return tuple([p for p in self.pods if p.is_queued])
