"""Plan of a node: the one decision about what happens now, what blocks each pod, and when to decide again.

The controller carries a plan out, `gracectl status` explains it, tests read it: no other place knows these rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.node import Node
from gracectl.model.pod import Pod, UnknownPod, VolumeAttachment
from gracectl.policy.budgets import UNCHARGED_PHASES, Allowance, BudgetKey, eviction_verdict, never_allows
from gracectl.policy.deadlines import delete_at, ends_at, latest_shortening
from gracectl.policy.evictability import (
    FINISHED,
    Ignored,
    ignored,
    ignored_without_kubelet,
    is_kubelet_alive,
    is_silent,
    stuck_at,
    undecodable_reason,
)
from gracectl.policy.maintenance import maintenance_since
from gracectl.policy.membership import LostBudget
from gracectl.policy.other_drains import Held, OtherDrain
from gracectl.policy.protection import Protection, asks_for_protection, protection_of
from gracectl.policy.release import release_of
from gracectl.policy.replacement import (
    Circumstances,
    NotReplaced,
    ReplacementStep,
    WorkloadFacts,
    decide_replacement,
    facts_key,
    may_be_replaced,
)
from gracectl.policy.returning import ReturnedPod, returned
from gracectl.policy.settings import PolicySettings
from gracectl.policy.volumes import (
    VolumesByClaim,
    attachments_to_await,
    has_volumes,
    listed_attachments,
    unread_claims,
    waits_for_volumes,
)
from gracectl.policy.waves import DEFAULT_ORDER, DrainOrder, WaveDeadlines, is_daemon, wave_deadlines

EXCLUDE_BEFORE_SECONDS: Final = 5.0
"""Seconds before the deletion of a DaemonSet pod for a deadline, from which on no new one may come: else its
DaemonSet would replace it."""


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


_OF_BUDGETS = {
    Allowance.EXHAUSTED: Blocker.BUDGET,
    Allowance.NOT_OBSERVED: Blocker.UNOBSERVED,
    Allowance.NOT_COUNTABLE: Blocker.MISCONFIGURATION,
    Allowance.AMBIGUOUS: Blocker.MISCONFIGURATION,
}


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


def plan(view: NodeView, now: float) -> Plan:
    """Decide about every pod of `view` at `now` (Unix seconds, the server's clock).

    The deadline overrides everything, protection overrides budgets, and a wave starts when the previous wave is gone.
    For nodes in maintenance see ADR 0014.
    """
    planner = _prepare(view, now)
    waves = planner.waves
    in_order = sorted(view.pods, key=lambda pod: (waves[pod.uid], pod.created, pod.key))
    pods = tuple(planner.plan_pod(pod) for pod in in_order)
    settled = settled_at(view)
    is_overdue = view.deadline is not None and view.deadline <= now and not view.is_maintenance
    is_empty = all(entry.outcome is Outcome.IGNORED for entry in pods)
    owners_change = None if view.other is None else view.other.changes_at(now)
    instants = (*planner.instants(pods), settled if is_empty else None, view.deadline, owners_change)
    is_drained = is_overdue or (is_empty and settled is not None and settled <= now)
    is_stuck = is_drained and view.is_maintenance and any(entry.is_stuck for entry in pods)
    return Plan(
        pods=pods,
        drained=is_drained and not is_stuck,
        detaching=() if is_overdue else planner.detaching,
        attached=planner.detaching,
        unread_claims=unread_claims(planner.staying, view.volumes) if planner.detaching else (),
        overdue=is_overdue,
        next_change=min((at for at in instants if at is not None and at > now), default=None),
        deadline=view.deadline,
        order=planner.order,
        is_stuck=is_stuck,
        excludes_daemon_sets=_excludes_daemon_sets(view, pods, planner.detaching, now),
        awaited=frozenset() if is_overdue else planner.awaited(pods),
    )


def _excludes_daemon_sets(
    view: NodeView, pods: tuple[PodPlan, ...], detaching: tuple[VolumeAttachment, ...], now: float
) -> bool:
    """See Plan. Before their wave DaemonSet pods serve the pods that are still there, also after a rollout."""
    if view.is_maintenance or view.other is not None:
        return False
    left = [entry for entry in pods if entry.outcome is not Outcome.IGNORED]
    if (view.deadline is not None and view.deadline <= now) or not (left or detaching):
        return True
    return any(
        entry.is_queued
        or entry.outcome is Outcome.DELETE
        or (entry.delete_at is not None and entry.delete_at - EXCLUDE_BEFORE_SECONDS <= now)
        for entry in left
        if is_daemon(entry.pod)
    )


def _prepare(view: NodeView, now: float) -> _PodPlanner:
    """Collect inputs about all pods before planning each."""
    order = view.settings.order_of(view.node.labels) if view.other is None else DEFAULT_ORDER
    began = maintenance_since(view.node, now) if view.is_maintenance else view.node.deletion_timestamp
    wave_of = view.other.group_of if view.other is not None and view.is_unassisted else order.wave_of
    waves = {pod.uid: wave_of(pod) for pod in view.pods}
    # Ignored pods need no time; which are ignored depends on the deadlines: on the earliest ones there can be.
    deadlines = wave_deadlines(order, range(len(order.waves)), view.deadline, began)
    ignored_pods: dict[str, Ignored] = {}
    waited_for: list[Pod] = []
    # An undecodable pod blocks the node, and no other pod: neither its wave nor its protection is known.
    is_kubelet_gone = (
        is_silent(view.node) and not view.is_unassisted and _has_stuck_pod(view.pods, waves, deadlines, now)
    )
    for pod in (pod for pod in view.pods if not isinstance(pod, UnknownPod)):
        earliest = deadlines.earliest_of(waves[pod.uid])
        verdict = ignored(pod, now, deadlines.node, earliest, is_maintenance=view.keeps_daemon_sets)
        if verdict is None and is_kubelet_gone:
            verdict = ignored_without_kubelet(pod)
        if verdict is None:
            waited_for.append(pod)
        else:
            ignored_pods[pod.uid] = verdict
    staying: tuple[Pod, ...] = ()
    detaching: tuple[VolumeAttachment, ...] = ()
    if view.attachments:
        staying = tuple(pod for pod in view.pods if pod.uid in ignored_pods and ignored_pods[pod.uid].stays)
        detaching = attachments_to_await(view.attachments, staying, view.volumes)
    # Without a kubelet no volume is unstaged; other owners do not let DaemonSet pods wait for volumes.
    attached = () if is_kubelet_gone or view.is_unassisted else detaching
    occupied = in_turn = {waves[pod.uid] for pod in waited_for}
    if attached and any(has_volumes(pod) for pod in waited_for):
        # The volumes may be those of a later wave, which must not wait for the pods that wait for it.
        in_turn = {waves[pod.uid] for pod in waited_for if not waits_for_volumes(pod)}
    deadlines = wave_deadlines(order, occupied, view.deadline, began)
    protections = {
        pod.uid: protection
        for pod in waited_for
        if asks_for_protection(pod) and (protection := _protection(view, pod, now))
    }
    return _PodPlanner(
        view=view,
        now=now,
        order=order,
        waves=waves,
        deadlines=deadlines,
        ignored_pods=ignored_pods,
        protections=protections,
        wave=min((wave for wave in in_turn if not _is_over(deadlines.of(wave), now)), default=None),
        staying=staying,
        detaching=detaching,
        attached=attached,
        node_blocker=_node_blocker(waited_for, protections),
        taken=Counter(),
        returned_pods={
            pod.uid: found
            for pod in (() if view.is_unassisted else waited_for)
            if (found := came_late(view, pod)) is not None and found.until > now
        },
        verdicts={},
        replacing=set(),
        held=view.other.held(view.pods, now) if view.other is not None else {},
    )


def _protection(view: NodeView, pod: Pod, now: float) -> Protection | None:
    settings = view.settings.protection
    return protection_of(pod, now, settings) if view.other is None else view.other.protection(pod, now, settings)


def came_late(view: NodeView, pod: Pod) -> ReturnedPod | None:
    """Describe a pod that returned to this node after its cordon; else None."""
    since = view.cordoned_at if view.known_cordoned_at is None else view.known_cordoned_at
    return returned(pod, view.node, since, is_late=pod.uid in view.late)


def _has_stuck_pod(pods: tuple[Pod, ...], waves: Mapping[str, int], deadlines: WaveDeadlines, now: float) -> bool:
    """Whether a pod has outlived its grace by a minute: on a silent node that is enough for all, in every wave."""
    return any(
        pod.phase not in FINISHED
        and not isinstance(pod, UnknownPod)
        and _is_over(stuck_at(pod, deadlines.node, deadlines.earliest_of(waves[pod.uid])), now)
        for pod in pods
    )


def _is_over(limit: float | None, now: float) -> bool:
    return limit is not None and limit <= now


class _Decision(NamedTuple):
    """Decision about one pod."""

    outcome: Outcome
    reason: str
    until: float | None = None
    protection: Protection | None = None
    blocker: Blocker | None = None
    asks_for_replacement: bool = False
    not_replaced: NotReplaced | None = None


_REPLACEMENTS: Final = {
    ReplacementStep.WAIT: Outcome.WAITING,
    ReplacementStep.RELEASE: Outcome.REPLACE,
    ReplacementStep.REPLACING: Outcome.REPLACING,
    ReplacementStep.RETURN: Outcome.RETURN,
}
_AGREED: Final = (Allowance.ALLOWED, Allowance.UNCHARGED)
_UNBUDGETED: Final = _Decision(Outcome.EVICT, "")


class _PodPlanner(msgspec.Struct, frozen=True):
    """Context that the pods of one plan share while they are planned one after another."""

    view: NodeView
    now: float
    order: DrainOrder
    waves: Mapping[str, int]
    """Wave of each pod, by UID."""
    deadlines: WaveDeadlines
    ignored_pods: Mapping[str, Ignored]
    protections: Mapping[str, Protection]
    wave: int | None
    """Current wave; a pod that outlives the time of its wave does not block other pods."""
    staying: tuple[Pod, ...]
    detaching: tuple[VolumeAttachment, ...]
    attached: tuple[VolumeAttachment, ...]
    """The attachments that DaemonSet pods wait for."""
    node_blocker: Pod | None
    taken: Counter[BudgetKey]
    returned_pods: Mapping[str, ReturnedPod]
    """Pods that arrived after the cordon and are not evicted yet, by UID."""
    verdicts: dict[tuple[tuple[BudgetKey, ...], bool, str, int], tuple[_Decision, bool]]
    """Under budgets, and whether it takes a disruption, by what that depends on: hundreds of pods have the same."""
    replacing: set[tuple[str, str]]
    """ReplicaSets of which a pod is being replaced, by `facts_key`."""
    held: Mapping[str, Held]
    """By UID, the pods that another owner of the drain does not evict now."""

    def plan_pod(self, pod: Pod) -> PodPlan:
        wave = self.waves[pod.uid]
        if isinstance(pod, UnknownPod):
            reason = undecodable_reason(pod)
            return PodPlan(
                pod, Outcome.WAITING, wave, reason, deadline=self.deadlines.node, blocker=Blocker.UNDECODABLE
            )
        if verdict := self.ignored_pods.get(pod.uid):
            is_stuck = verdict.is_stuck and is_kubelet_alive(self.view.node)
            return PodPlan(pod, Outcome.IGNORED, wave, verdict.reason, stays=verdict.stays, is_stuck=is_stuck)
        limit = self.deadlines.of(wave)
        is_deleted = limit is not None and (self.view.other is None or self.view.other.deletes(pod))
        at = delete_at(pod, limit, self.now) if limit is not None and is_deleted else None
        budgets = tuple([budget.key for budget in self.view.budgets.get(pod.uid, ())])
        is_due = at is not None and at <= self.now
        decided = _deletion_due(pod) if is_due else self._before_deadline(pod, wave, budgets, at)
        return PodPlan(
            pod=pod,
            outcome=decided.outcome,
            wave=wave,
            reason=decided.reason,
            until=decided.until,
            budgets=budgets,
            delete_at=at,
            late_seconds=self.view.other.late_seconds if self.view.other and self.view.is_unassisted else 0.0,
            deadline=limit,
            protection=decided.protection,
            blocker=decided.blocker,
            attachments=self.attached if decided.blocker is Blocker.VOLUME else (),
            asks_for_replacement=decided.asks_for_replacement,
            not_replaced=decided.not_replaced,
        )

    def _before_deadline(self, pod: Pod, wave: int, budgets: tuple[BudgetKey, ...], ends: float | None) -> _Decision:
        if pod.deletion_timestamp is not None:
            ends = ends_at(pod, self.deadlines.node, self.deadlines.earliest_of(wave))
            return _Decision(Outcome.TERMINATING, "terminating", ends)
        if protection := self.protections.get(pod.uid):
            return _Decision(
                Outcome.PROTECTED, protection.description, protection.until, protection, Blocker.PROTECTION
            )
        if self.node_blocker:
            reason = f"blocked by do-not-evict of {self.node_blocker.full_name}"
            return _Decision(Outcome.WAITING, reason, blocker=Blocker.NEIGHBOUR)
        if self.wave is not None and wave > self.wave:
            reason = f"waiting for {self.order.waves[self.wave].pods}"
            return _Decision(Outcome.WAITING, reason, blocker=Blocker.WAVE)
        if held := self.held.get(pod.uid):
            return _Decision(Outcome.WAITING, held.reason, held.until, blocker=Blocker.OWNER)
        if self.attached and waits_for_volumes(pod):
            reason = f"waiting for volumes of drained pods to detach: {listed_attachments(self.attached)}"
            return _Decision(Outcome.WAITING, reason, blocker=Blocker.VOLUME)
        if came := self.returned_pods.get(pod.uid):
            return _Decision(Outcome.WAITING, came.reason, came.until, blocker=Blocker.RETURNED)
        lost = None if budgets or pod.phase in UNCHARGED_PHASES else self.view.lost_budgets.get(pod.uid)
        if lost is not None and lost.until > self.now:
            return _Decision(Outcome.WAITING, lost.reason, lost.until, blocker=Blocker.SETTLING)
        is_asked = may_be_replaced(pod, self.view.settings.replace_first) or release_of(pod) is not None
        if is_asked and self.view.other is None:  # another owner evicts it without a replacement
            return self._replaced_first(pod, budgets, ends)
        return self._under_budget(pod, budgets)

    def _replaced_first(self, pod: Pod, budgets: tuple[BudgetKey, ...], ends: float | None) -> _Decision:
        """Decide about a pod that asks for a replacement before it leaves; one of each workload at a time."""
        found = self.view.budgets.get(pod.uid, ())
        is_exhausted = eviction_verdict(pod, found).allowance is Allowance.EXHAUSTED
        key = facts_key(pod)
        around = Circumstances(self.now, is_blocked=is_exhausted and never_allows(found[0]), ends=ends)
        facts = None if key is None else self.view.workloads.get(key)
        decided = decide_replacement(pod, facts, self.view.settings.replace_first, around) if len(found) <= 1 else None
        if decided is None or decided.step is ReplacementStep.REFUSED:
            usual = self._under_budget(pod, budgets)._replace(asks_for_replacement=key is not None)
            if decided is None:
                return usual
            reason = f"{usual.reason or 'is being evicted'}; {decided.reason}"
            return usual._replace(reason=reason, not_replaced=decided.refusal)
        outcome, reason = _REPLACEMENTS[decided.step], decided.reason
        if outcome is Outcome.REPLACE and key in self.replacing:
            outcome, reason = Outcome.WAITING, "replace first: another pod of its workload is replaced before it"
        if outcome is not Outcome.WAITING and key is not None:
            self.replacing.add(key)
        return _Decision(outcome, reason, decided.until, None, Blocker.REPLACEMENT, True, decided.refusal)

    def _under_budget(self, pod: Pod, budgets: tuple[BudgetKey, ...]) -> _Decision:
        refusal = self.view.refusals.get(pod.uid)
        if refusal and eviction_verdict(pod, self.view.budgets.get(pod.uid, ())).allowance in _AGREED:
            return _Decision(Outcome.BLOCKED, f"eviction refused: {refusal}", blocker=Blocker.REFUSED)
        if not budgets:
            return _UNBUDGETED
        taken = self.taken[budgets[0]]
        cause = (budgets, pod.ready, pod.phase, taken)
        if (known := self.verdicts.get(cause)) is None:
            verdict = eviction_verdict(pod, self.view.budgets[pod.uid], taken=taken)
            blocker = _OF_BUDGETS.get(verdict.allowance)
            decision = _Decision(Outcome.BLOCKED if blocker else Outcome.EVICT, verdict.reason, blocker=blocker)
            known = self.verdicts[cause] = decision, verdict.allowance is Allowance.ALLOWED
        decision, is_taking = known
        if is_taking:
            self.taken[budgets[0]] += 1
        return decision

    def awaited(self, pods: tuple[PodPlan, ...]) -> frozenset[str]:
        """See Plan."""
        if self.node_blocker is not None or self.wave is None or self.view.other is not None:
            return frozenset()
        return frozenset([p.pod.uid for p in pods if p.wave == self.wave and p.outcome is not Outcome.IGNORED])

    def instants(self, pods: tuple[PodPlan, ...]) -> Iterator[float | None]:
        """When the clock alone may change something in the plans of these pods."""
        for entry in pods:
            if entry.outcome is Outcome.IGNORED:
                continue
            yield entry.delete_at
            yield entry.deadline
            if entry.delete_at is not None and is_daemon(entry.pod):
                yield entry.delete_at - EXCLUDE_BEFORE_SECONDS
            if entry.pod.deletion_timestamp is None:
                yield entry.until
                continue
            yield stuck_at(entry.pod, self.deadlines.node, self.deadlines.earliest_of(entry.wave))
            if entry.outcome is Outcome.DELETE and entry.deadline is not None:
                yield latest_shortening(entry.pod, entry.deadline)


def _deletion_due(pod: Pod) -> _Decision:
    if pod.deletion_timestamp is None:
        return _Decision(Outcome.DELETE, "deleted now for the deadline")
    return _Decision(Outcome.DELETE, "terminating, grace shortened for the deadline")


def _node_blocker(waited_for: list[Pod], protections: Mapping[str, Protection]) -> Pod | None:
    holding = (pod for pod in waited_for if pod.uid in protections and protections[pod.uid].holds_node)
    return min(holding, key=lambda pod: pod.key, default=None)


def settled_at(view: NodeView) -> float | None:
    """From when on a pod that was bound in the instant of the cordon would have been seen."""
    if view.cordoned_at is None:
        return None
    drain = view.settings.drain_of(view.node.labels) if view.other is None else view.other
    return view.cordoned_at + drain.minimum_seconds
