"""The one decision function: what may happen on a node now, what holds each pod, and when to look again.

The controller carries a plan out, `gracectl status` explains it, tests read it: no other place knows these rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.node import Node
from gracectl.model.pod import Pod, UnknownPod
from gracectl.model.volume import VolumeAttachment
from gracectl.policy.budgets import Allowance, BudgetKey, eviction_verdict
from gracectl.policy.deadlines import delete_at, ends_at, latest_shortening
from gracectl.policy.evictability import Ignored, ignored, stuck_at, undecodable_reason
from gracectl.policy.protection import Protection, protection_of
from gracectl.policy.settings import PolicySettings
from gracectl.policy.waves import DEFAULT_ORDER, DrainOrder, WaveDeadlines, wave_deadlines


class NodeView(msgspec.Struct, frozen=True):
    """Everything that a decision about a node rests on, as the caches showed it at one instant."""

    node: Node
    pods: tuple[Pod, ...]
    budgets: Mapping[str, tuple[PodDisruptionBudget, ...]]
    """By pod UID, the budgets that select it; a pod without one may be missing."""
    attachments: tuple[VolumeAttachment, ...] = ()
    """Volumes attached to the node."""
    staying_volumes: frozenset[str] = frozenset()
    """Names of the PersistentVolumes of pods that stay until the node ends."""
    cordoned_at: float | None = None
    """When the node was seen to take no more pods; None before."""
    deadline: float | None = None
    """When everything must be over; None when it may take as long as it takes."""
    is_maintenance: bool = False
    """The node is drained and stays, and the pods of its DaemonSets with it; it has no deadline."""
    settings: PolicySettings = PolicySettings()


class Outcome(StrEnum):
    """What a plan says about a pod."""

    DELETE = "delete"
    """Its time before the deadline has come: it is deleted, whatever else holds it."""
    EVICT = "evict"
    BLOCKED = "blocked"
    WAITING = "waiting"
    PROTECTED = "protected"
    TERMINATING = "terminating"
    IGNORED = "ignored"


class Blocker(StrEnum):
    """What keeps a pod from leaving now, told and not to be read from its reason."""

    BUDGET = "budget"
    """Its budget allows no disruption now, or others come first."""
    UNOBSERVED = "unobserved-budget"
    """Its budget has just changed, and the server has not counted it yet."""
    MISCONFIGURATION = "misconfiguration"
    """Several budgets select it, or its budget cannot be counted: nothing moves until somebody mends that."""
    PROTECTION = "protection"
    """It is protected itself."""
    NEIGHBOUR = "neighbour"
    """Another pod of the node is protected by a do-not-evict, which holds them all."""
    WAVE = "wave"
    """Those of an earlier wave are not gone yet."""
    UNDECODABLE = "undecodable"
    """Its object cannot be decoded, so that nothing can be decided about it."""


_OF_BUDGETS = {
    Allowance.SPENT: Blocker.BUDGET,
    Allowance.UNOBSERVED: Blocker.UNOBSERVED,
    Allowance.UNCOUNTED: Blocker.MISCONFIGURATION,
    Allowance.AMBIGUOUS: Blocker.MISCONFIGURATION,
}


class PodPlan(msgspec.Struct, frozen=True, gc=False):
    """One pod: what happens to it now, or why nothing does and until when at least that is so (None: unknown)."""

    pod: Pod
    outcome: Outcome
    wave: int
    """Index into the waves of the plan."""
    reason: str = ""
    until: float | None = None
    budgets: tuple[BudgetKey, ...] = ()
    delete_at: float | None = None
    """The instant at which the deadline demands its deletion, should it still be there then."""
    deadline: float | None = None
    """By when it must have ended: the node's deadline, or that of its wave."""
    protection: Protection | None = None
    """What protects it now."""
    stays: bool = False
    """It is passed over and keeps running on the node."""
    blocker: Blocker | None = None
    """What keeps it; None for one that leaves, is told to leave or is passed over."""

    @property
    def is_ambiguous(self) -> bool:
        """Several budgets select it, so that nobody can evict it."""
        return self.outcome is Outcome.BLOCKED and len(self.budgets) > 1

    @property
    def wants_out(self) -> bool:
        """Its turn has come: it belongs in the queue of its budget, whether or not that moves at present."""
        return self.outcome in (Outcome.EVICT, Outcome.BLOCKED)


class Plan(msgspec.Struct, frozen=True, dict=True):
    """The decision about one node at one instant."""

    pods: tuple[PodPlan, ...]
    drained: bool
    detaching: tuple[VolumeAttachment, ...]
    """Attachments that must go before the instance may end."""
    overdue: bool
    """The deadline has passed: nothing is waited for any more."""
    next_change: float | None
    """The next instant at which the clock alone changes this plan; None when only an event can."""
    deadline: float | None = None
    """When everything must be over; None when it may take as long as it takes."""
    order: DrainOrder = DEFAULT_ORDER
    """The waves in which the pods leave."""

    @cached_property
    def left(self) -> tuple[PodPlan, ...]:
        """The pods that hold the node."""
        return tuple([p for p in self.pods if p.outcome is not Outcome.IGNORED])

    @cached_property
    def leaving(self) -> tuple[PodPlan, ...]:
        """The pods whose turn it is to be evicted."""
        return tuple([p for p in self.pods if p.wants_out])


def plan(view: NodeView, now: float) -> Plan:
    """Decide about every pod of `view` at `now` (Unix seconds, the server's clock).

    Source: DESIGN 3.3 to 3.7, for nodes that are kept ADR 0014; the deadline stands above everything, protection is
    looked at before budgets, and a wave starts when the one before is gone.
    """
    round_ = _prepare(view, now)
    waves = round_.waves
    in_order = sorted(view.pods, key=lambda pod: (waves[pod.uid], pod.created, pod.key))
    pods = tuple(round_.judge(pod) for pod in in_order)
    settled = settled_at(view)
    is_overdue = view.deadline is not None and view.deadline <= now
    is_empty = all(entry.outcome is Outcome.IGNORED for entry in pods)
    detaching = tuple(a for a in view.attachments if a.volume_name not in view.staying_volumes)
    instants = (*round_.instants(pods), settled, view.deadline)
    return Plan(
        pods=pods,
        drained=is_overdue or (is_empty and settled is not None and settled <= now),
        detaching=() if is_overdue else detaching,
        overdue=is_overdue,
        next_change=min((at for at in instants if at is not None and at > now), default=None),
        deadline=view.deadline,
        order=round_.order,
    )


def _prepare(view: NodeView, now: float) -> _PodPlanner:
    """What has to be known of all pods before each is judged."""
    order = view.settings.order_of(view.node.labels)
    began = view.node.deletion_timestamp
    waves = {pod.uid: order.wave_of(pod) for pod in view.pods}
    # Who is passed over needs no time; who is, depends a little on the deadlines: on the earliest ones there can be.
    limits = wave_deadlines(order, range(len(order.waves)), view.deadline, began)
    passed_over: dict[str, Ignored] = {}
    waited_for: list[Pod] = []
    # What cannot be decoded holds the node, and no other pod: neither its wave nor its protection is known.
    for pod in (pod for pod in view.pods if not isinstance(pod, UnknownPod)):
        earliest = limits.earliest_of(waves[pod.uid])
        verdict = ignored(pod, now, limits.node, earliest, is_maintenance=view.is_maintenance)
        if verdict is None:
            waited_for.append(pod)
        else:
            passed_over[pod.uid] = verdict
    occupied = {waves[pod.uid] for pod in waited_for}
    limits = wave_deadlines(order, occupied, view.deadline, began)
    protections = {
        pod.uid: protection for pod in waited_for if (protection := protection_of(pod, now, view.settings.protection))
    }
    return _PodPlanner(
        view=view,
        now=now,
        order=order,
        waves=waves,
        limits=limits,
        passed_over=passed_over,
        protections=protections,
        wave=min((wave for wave in occupied if not _is_over(limits.of(wave), now)), default=None),
        holder=_node_blocker(waited_for, protections),
        taken=Counter(),
    )


def _is_over(limit: float | None, now: float) -> bool:
    return limit is not None and limit <= now


class _Decision(NamedTuple):
    """What is found about a pod by itself."""

    outcome: Outcome
    reason: str
    until: float | None = None
    protection: Protection | None = None
    blocker: Blocker | None = None


class _PodPlanner(msgspec.Struct, frozen=True):
    """What the pods of one plan share while they are judged one after another."""

    view: NodeView
    now: float
    order: DrainOrder
    waves: Mapping[str, int]
    """By pod uid."""
    limits: WaveDeadlines
    passed_over: Mapping[str, Ignored]
    protections: Mapping[str, Protection]
    wave: int | None
    """The one whose turn it is; who is still there when the time of his wave is over holds up nobody."""
    holder: Pod | None
    taken: Counter[BudgetKey]

    def judge(self, pod: Pod) -> PodPlan:
        wave = self.waves[pod.uid]
        if isinstance(pod, UnknownPod):
            reason = undecodable_reason(pod)
            return PodPlan(pod, Outcome.WAITING, wave, reason, deadline=self.limits.node, blocker=Blocker.UNDECODABLE)
        if verdict := self.passed_over.get(pod.uid):
            return PodPlan(pod, Outcome.IGNORED, wave, verdict.reason, stays=verdict.stays)
        limit = self.limits.of(wave)
        at = None if limit is None else delete_at(pod, limit, self.now)
        found = self._undisturbed(pod, wave) if at is None or at > self.now else _deletion_due(pod)
        return PodPlan(
            pod=pod,
            outcome=found.outcome,
            wave=wave,
            reason=found.reason,
            until=found.until,
            budgets=tuple([budget.key for budget in self.view.budgets.get(pod.uid, ())]),
            delete_at=at,
            deadline=limit,
            protection=found.protection,
            blocker=found.blocker,
        )

    def _undisturbed(self, pod: Pod, wave: int) -> _Decision:
        if pod.deletion_timestamp is not None:
            ends = ends_at(pod, self.limits.node, self.limits.earliest_of(wave))
            return _Decision(Outcome.TERMINATING, "terminating", ends)
        if protection := self.protections.get(pod.uid):
            return _Decision(Outcome.PROTECTED, protection.words, protection.until, protection, Blocker.PROTECTION)
        if self.holder:
            reason = f"the node is held by {_called(self.holder)}, which asks not to be evicted (do-not-evict)"
            return _Decision(Outcome.WAITING, reason, blocker=Blocker.NEIGHBOUR)
        if self.wave is not None and wave > self.wave:
            reason = f"waits until {self.order.waves[self.wave].pods} are gone"
            return _Decision(Outcome.WAITING, reason, blocker=Blocker.WAVE)
        return self._under_budget(pod)

    def _under_budget(self, pod: Pod) -> _Decision:
        budgets = self.view.budgets.get(pod.uid, ())
        taken = self.taken[budgets[0].key] if budgets else 0
        verdict = eviction_verdict(pod, budgets, taken=taken)
        if verdict.leave is Allowance.ALLOWED:
            self.taken[budgets[0].key] += 1
        blocker = _OF_BUDGETS.get(verdict.leave)
        return _Decision(Outcome.BLOCKED if blocker else Outcome.EVICT, verdict.reason, blocker=blocker)

    def instants(self, pods: tuple[PodPlan, ...]) -> Iterator[float | None]:
        """When the clock alone may change something of what was said about these pods."""
        for entry in pods:
            if entry.outcome is Outcome.IGNORED:
                continue
            yield entry.delete_at
            yield entry.deadline
            if entry.pod.deletion_timestamp is None:
                yield entry.until
                continue
            yield stuck_at(entry.pod, self.limits.node, self.limits.earliest_of(entry.wave))
            if entry.outcome is Outcome.DELETE and entry.deadline is not None:
                yield latest_shortening(entry.pod, entry.deadline)


def _deletion_due(pod: Pod) -> _Decision:
    if pod.deletion_timestamp is None:
        return _Decision(Outcome.DELETE, "is deleted now for the deadline")
    return _Decision(Outcome.DELETE, "terminating, its grace is cut for the deadline")


def _node_blocker(waited_for: list[Pod], protections: Mapping[str, Protection]) -> Pod | None:
    holding = (pod for pod in waited_for if pod.uid in protections and protections[pod.uid].holds_node)
    return min(holding, key=lambda pod: pod.key, default=None)


def settled_at(view: NodeView) -> float | None:
    """From when on a pod that was bound in the instant of the cordon would have been seen."""
    if view.cordoned_at is None:
        return None
    return view.cordoned_at + view.settings.drain_of(view.node.labels).minimum_seconds


def _called(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
