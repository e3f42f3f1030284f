"""The one decision about a node: what happens now, what blocks each pod, and when to decide again.

The controller carries a plan out, `gracectl status` explains it, tests read it: no other place knows these rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

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
from gracectl.policy.other_drains import Held
from gracectl.policy.plan import Blocker, NodeView, Outcome, Plan, PodPlan
from gracectl.policy.protection import Protection, asks_for_protection, protection_of
from gracectl.policy.release import release_of
from gracectl.policy.replacement import (
    Circumstances,
    NotReplaced,
    ReplacementStep,
    decide_replacement,
    facts_key,
    may_be_replaced,
)
from gracectl.policy.returning import ReturnedPod, returned
from gracectl.policy.volumes import (
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

_OF_BUDGETS = {
    Allowance.EXHAUSTED: Blocker.BUDGET,
    Allowance.NOT_OBSERVED: Blocker.UNOBSERVED,
    Allowance.NOT_COUNTABLE: Blocker.MISCONFIGURATION,
    Allowance.AMBIGUOUS: Blocker.MISCONFIGURATION,
}


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
