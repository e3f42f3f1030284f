"""Plans of all draining nodes, the queues of their pods, and since when each pod is blocked.

All that waits in the same queue is planned together. Over several reads a node is planned anew only if one of its
objects has changed, or the clock has reached an instant that its plan names, so that a change costs as much as its
nodes have pods, not as the cluster has. Invariant: kept plans equal new plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.forecast import deadline_if_requested, is_draining, other_drain_of, view_for_other
from gracectl.inspect.owned import began_at, is_drained_by_other
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.budgets import BudgetKey
from gracectl.policy.cordon import is_drain_begun
from gracectl.policy.eviction_queues import QueuedPod, QueuePosition, in_order, positions_of
from gracectl.policy.explain import blocked_since, urgency_of
from gracectl.policy.maintenance import maintenance_since
from gracectl.policy.plan import NodeView, Plan, PodPlan
from gracectl.policy.planner import plan
from gracectl.policy.remedies import pod_remedy
from gracectl.policy.returning import cordon_known_at

QueueKey = tuple[BudgetKey, ...]
"""The budgets that select the pods of a queue."""


class PodStatus(msgspec.Struct, frozen=True):
    """A pod that is waited for. `since`: when (Unix seconds) its outcome in the plan has begun, as far as is known.

    `remedy`: the command that lets it go, or the owner to ask; empty if it is not blocked itself. `owner`: the other
    controller that evicts it, alone; empty: gracectl does.
    """

    entry: PodPlan
    since: float
    queue_position: QueuePosition | None
    remedy: str = ""
    owner: str = ""


class BlockedHistory:
    """Since when each pod of a node has been blocked by what blocks it, over several reads."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, float]] = {}

    def update(self, entries: Collection[tuple[PodPlan, float]], now: float) -> dict[str, float]:
        """Return since when each pod is in its state, by UID, from the objects at `now`. Forget other pods."""
        seen: dict[str, tuple[object, float]] = {}
        for entry, reported in entries:
            what = (entry.outcome, entry.budgets, entry.protection and entry.protection.kind)
            before = self._seen.get(entry.pod.uid)
            if before is None or entry.pod.deletion_timestamp is not None:
                since = reported
            else:
                since = before[1] if before[0] == what else now
            seen[entry.pod.uid] = (what, since)
        self._seen = seen
        return {uid: since for uid, (_, since) in seen.items()}


class DrainingPlan:
    """Plan of one draining node. `began`: when (Unix seconds) its drain was requested. `queued`: its pods by queue.

    `budgets`, `namespaces`: of the pods. `pods`: status of the pods; None: not computed yet.
    """

    def __init__(self, node: Node, history: BlockedHistory) -> None:
        self.node = node
        self.history = history
        self.began = 0.0
        self.view = NodeView(node, (), {})
        self.plan: Plan = Plan((), False, (), False, None)
        self.since: Mapping[str, float] = {}
        self.queued: Mapping[QueueKey, tuple[QueuedPod, ...]] = {}
        self.budgets: frozenset[BudgetKey] = frozenset()
        self.namespaces: frozenset[str] = frozenset()
        self.pods: tuple[PodStatus, ...] | None = None

    def make(self, view: NodeView, began: float, now: float) -> None:
        """Plan it at `now`."""
        self.node, self.view, self.began, self.pods = view.node, view, began, None
        self.plan = plan(view, now)
        blocked = [(each, blocked_since(each, view.budgets.get(each.pod.uid, ()), began)) for each in self.plan.left]
        self.since = self.history.update(blocked, now)
        queued: dict[QueueKey, list[QueuedPod]] = {}
        for entry in () if view.is_unassisted else self.plan.leaving:  # its owner has queues of its own
            if entry.budgets:
                queued.setdefault(entry.budgets, []).append(QueuedPod(view.node.name, began, entry))
        self.queued = {key: tuple(pods) for key, pods in queued.items()}
        self.budgets = frozenset(budget.key for found in view.budgets.values() for budget in found)
        self.namespaces = frozenset(pod.namespace for pod in view.pods)


class DrainingNodes:
    """Plans of the nodes that are draining, by name, in natural order; `update` brings them up to date.

    `queues`: pods in the order in which they go, by their budgets. `follows`: changes of the caches are noted, so that
    a later update plans only changed nodes; otherwise it plans all.
    """

    def __init__(
        self,
        cluster: ClusterCache,
        settings: TerminationSettings,
        has_pods: Callable[[str], bool] = lambda node: True,
        *,
        follows: bool = False,
    ) -> None:
        self.plans: dict[str, DrainingPlan] = {}
        self.queues: dict[QueueKey, tuple[QueuedPod, ...]] = {}
        self._cluster = cluster
        self._settings = settings
        self._has_pods = has_pods
        self._follows = follows
        self._changed: set[str] = set()  # names of nodes with changed objects
        self._members: dict[QueueKey, set[str]] = {}  # names of the nodes with pods in a queue
        self._positions: dict[QueueKey, dict[str, QueuePosition]] = {}
        if follows:
            cluster.nodes.subscribe(self._node_changed)
            cluster.pods.subscribe(self._pod_changed)
            cluster.budgets.subscribe(self._budget_changed)
            cluster.claims.subscribe(self._claim_changed)
            cluster.attachments.subscribe(self._attachment_changed)

    def configure(self, settings: TerminationSettings) -> None:
        """Plan all nodes again by these settings."""
        self._settings = settings
        self._changed.update(self.plans)

    def update(self, now: float) -> None:
        """Plan the changed nodes at `now` (Unix seconds, the server's clock)."""
        draining = [
            node
            for node in self._cluster.nodes.values()
            if is_draining(node, self._settings, self._cluster) and self._has_pods(node.name)
        ]
        changed_queues: dict[QueueKey, None] = {}
        kept: dict[str, DrainingPlan] = {}
        for node in draining:
            known = self.plans.get(node.name)
            if known is not None and known.node.uid != node.uid:
                self._leave_queues(known, changed_queues)
                known = None
            if known is None or self._is_outdated(known, now):
                each = known or DrainingPlan(node, BlockedHistory())
                self._leave_queues(each, changed_queues)
                each.make(self._view(node, now), self._requested_at(node, now), now)
                for key in each.queued:
                    changed_queues[key] = None
                    self._members.setdefault(key, set()).add(node.name)
                known = each
            kept[node.name] = known
        for name, each in self.plans.items():
            if name not in kept:
                self._leave_queues(each, changed_queues)
        if kept.keys() != self.plans.keys():
            kept = {name: kept[name] for name in sorted(kept, key=natural_key)}
            self.plans = kept
        else:
            self.plans.update(kept)
        self._changed.clear()
        self._order(changed_queues)

    def pods_of(self, name: str) -> tuple[PodStatus, ...]:
        """Pods that block a draining node, the most urgent and the first in their queues first; the same object if none
        has changed."""
        found = self.plans[name]
        if found.pods is None:
            budgets, other = found.view.budgets, found.view.other
            owner = "" if other is None or other.is_assisted else other.owner.value
            pods = [
                PodStatus(each, found.since[uid], self._position(each), pod_remedy(each, budgets.get(uid, ())), owner)
                for each in found.plan.left
                for uid in [each.pod.uid]
            ]
            found.pods = tuple(sorted(pods, key=_urgency))
        return found.pods

    def _position(self, entry: PodPlan) -> QueuePosition | None:
        return self._positions.get(entry.budgets, {}).get(entry.pod.uid) if entry.is_queued else None

    def _is_outdated(self, known: DrainingPlan, now: float) -> bool:
        if not self._follows or known.node.name in self._changed:
            return True
        if len(known.view.volumes) != len(self._cluster.volumes):
            return True  # they only grow
        if known.view.other is None and known.view.workloads != self._cluster.workloads:
            return True
        at = known.plan.next_change
        if at is not None and at <= now:
            return True
        # Until its claim is deleted too, a termination grace period counts from now.
        claim = self._cluster.claim_ending_with(known.node)
        return claim is not None and claim.deletion_timestamp is None

    def _requested_at(self, node: Node, now: float) -> float:
        if is_drained_by_other(self._cluster, node):
            return began_at(self._cluster, node, now)
        return requested_at(node, now)

    def _view(self, node: Node, now: float) -> NodeView:
        other = other_drain_of(self._cluster, self._settings, node, now)
        if other is not None and is_drained_by_other(self._cluster, node):
            return view_for_other(self._cluster, self._settings, node, other, now)
        deadline = deadline_if_requested(self._cluster, self._settings, node, now)
        view = self._cluster.view_of(node, self._settings.policy, deadline)
        requested = requested_at(node, now)
        return msgspec.structs.replace(
            view,
            cordoned_at=requested if is_drain_begun(node) else None,
            known_cordoned_at=cordon_known_at(node, requested),
        )

    def _leave_queues(self, each: DrainingPlan, changed: dict[QueueKey, None]) -> None:
        for key in each.queued:
            changed[key] = None
            self._members[key].discard(each.node.name)

    def _order(self, changed: Iterable[QueueKey]) -> None:
        """Sort these queues again; the pods of a node count as changed if a position has changed."""
        for key in changed:
            before = self._positions.pop(key, {})
            self.queues.pop(key, None)
            if not self._members[key]:
                del self._members[key]
                continue
            queue = self.queues[key] = in_order(
                pod for name in self._members[key] for pod in self.plans[name].queued[key]
            )
            positions = self._positions[key] = positions_of(queue)
            for queued in queue:
                uid = queued.entry.pod.uid
                if not _is_same(before.get(uid), positions[uid]):
                    self.plans[queued.node].pods = None

    # -- changes -------------------------------------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        for node in filter(None, (old, new)):
            self._changed.add(node.name)
            # Whether a claim ends with a node depends on the other nodes of that claim.
            for claim in self._cluster.claims_of(node):
                self._changed.update(other.name for other in self._cluster.nodes_of(claim))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        self._changed.add(pod.node_name)

    def _attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        self._changed.update(each.node_name for each in (old, new) if each is not None)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        for claim in filter(None, (old, new)):
            self._changed.update(node.name for node in self._cluster.nodes_of(claim))

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        budget = new or old
        assert budget is not None
        is_same_selection = old is not None and new is not None and old.selector == new.selector
        for name, each in self.plans.items():
            if name in self._changed:
                continue
            if budget.key in each.budgets if is_same_selection else budget.namespace in each.namespaces:
                self._changed.add(name)


def requested_at(node: Node, now: float) -> float:
    """When the termination or drain of a node was requested."""
    if node.deletion_timestamp is not None:
        return min(node.deletion_timestamp, now)
    return maintenance_since(node, now)


def _is_same(before: QueuePosition | None, now: QueuePosition) -> bool:
    """Whether a position is displayed in the same way; the plan of the pod ahead may differ."""
    if before is None or (before.number, before.of, before.is_undecided) != (now.number, now.of, now.is_undecided):
        return False
    if before.ahead is None or now.ahead is None:
        return before.ahead is now.ahead
    return before.ahead.entry.pod.uid == now.ahead.entry.pod.uid


def _urgency(pod: PodStatus) -> tuple[int, int]:
    return urgency_of(pod.entry), 0 if pod.queue_position is None else pod.queue_position.number
