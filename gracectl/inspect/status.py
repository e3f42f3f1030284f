"""How nodes stand that end, are kept drained or are given back: as the objects of the cluster alone show it.

No controller is asked, so this is true whether or not one lives: what may happen is decided anew by the plan, what has
happened stands in conditions, taints and finalizers. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import StrEnum

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.controllers.node.unmanaged import unmanaged_report
from gracectl.controllers.pipeline.state import KEPT
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.forecast import LONGEST, deadline_if_deleted, is_draining, obstacles_of, origin_if_deleted
from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.deadlines import Deadline, DeadlineOrigin, deadline_of
from gracectl.policy.evictability import is_disrupted
from gracectl.policy.eviction_queues import QueuePosition, positions_of, queues_of
from gracectl.policy.explain import blocked_since, by_urgency, listed, summarize
from gracectl.policy.maintenance import (
    is_in_maintenance,
    is_maintenance_ending,
    is_maintenance_requested,
    maintenance_since,
)
from gracectl.policy.pending import is_pending, pending_since
from gracectl.policy.plan import NodeView, Plan, PodPlan, plan
from gracectl.policy.warnings import PlanWarning, WarningKind, by_importance, shutdown_warnings

ACTS_WITHIN_SECONDS = 15.0
"""A controller that lives has done by then what it is time for, however busy it is."""


IS_IT_RUNNING = "; is `gracectl controller` running?"
"""The end of what is said where nobody does what it is time for, and why is not known."""


class State(StrEnum):
    """What is done to a node."""

    ENDING = "ending"
    KEPT = "kept"
    RETURNING = "returning"
    PENDING = "pending"
    """To be terminated for its health, label or age, and waiting."""
    IDLE = "idle"


class PodStatus(msgspec.Struct, frozen=True):
    """A pod that is waited for. `since`: when (Unix seconds) what the plan says of it has begun, as far as is known;
    `place` in the lane of its budget, if it is in one."""

    entry: PodPlan
    since: float
    place: QueuePosition | None


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `since`: when (Unix seconds) somebody asked for it; None if that stands nowhere.

    `step`: where it stands, under the name that logs and metrics use; empty of an idle one, and where nobody does
    anything. `waits_for`: in one line, what for. `pods`: those that hold it, what blocks first; None: not listed yet.
    """

    node: Node
    state: State
    since: float | None
    step: str = ""
    waits_for: str = ""
    pods: tuple[PodStatus, ...] | None = ()
    deadline: Deadline | None = None
    origin: DeadlineOrigin | None = None
    obstacles: tuple[PlanWarning, ...] = ()

    @property
    def name(self) -> str:
        """The node's."""
        return self.node.name

    @property
    def uid(self) -> str:
        """The node's."""
        return self.node.uid

    @property
    def is_done(self) -> bool:
        """It was to be drained and kept so, and it is."""
        return self.state is State.KEPT and self.step == "kept"


class NodeClaimStatus(msgspec.Struct, frozen=True):
    """A node claim that ends and whose end no node shows: it has none (any more), or one that nobody has deleted yet.
    Instants are Unix seconds."""

    name: str
    nodes: tuple[str, ...]
    since: float
    deadline: Deadline | None
    waits_for: str


class Memory:
    """Since when each pod has been held by what holds it, as somebody saw it who keeps looking."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, float]] = {}

    def look(self, entries: Collection[tuple[PodPlan, float]], now: float) -> dict[str, float]:
        """By uid since when; given what the objects tell of all pods at `now`. What was not seen is forgotten."""
        seen: dict[str, tuple[object, float]] = {}
        for entry, told in entries:
            what = (entry.outcome, entry.budgets, entry.protection and entry.protection.kind)
            before = self._seen.get(entry.pod.uid)
            if before is None or entry.pod.deletion_timestamp is not None:
                since = told
            else:
                since = before[1] if before[0] == what else now
            seen[entry.pod.uid] = (what, since)
        self._seen = seen
        return {uid: since for uid, (_, since) in seen.items()}


def is_under_way(node: Node) -> bool:
    """Whether its end, its drain or its return was asked for, or its end is due and waits."""
    return node.deletion_timestamp is not None or is_in_maintenance(node) or is_pending(node)


def node_statuses(
    observed: ClusterCache,
    settings: TerminationSettings,
    asked: Collection[str],
    now: float,
    *,
    memory: Memory | None = None,
    has_pods: Callable[[str], bool] = lambda node: True,
) -> tuple[NodeStatus, ...]:
    """How the nodes called `asked` stand at `now`, by name; what is not there is left out.

    Of all nodes that are draining the pods must be observed: they wait in the same lanes. `has_pods`: whether those of
    a node have been listed. Costs a plan for each of them.
    """
    nodes = sorted(observed.nodes.values(), key=lambda node: node.name)
    draining = {node.name: node for node in nodes if is_draining(node, settings) and has_pods(node.name)}
    began = {name: _asked_at(node, now) for name, node in draining.items()}
    views = {name: _view(observed, settings, node, now) for name, node in draining.items()}
    plans = {name: plan(view, now) for name, view in views.items()}
    places: dict[str, QueuePosition] = {}
    for budgets, lane in queues_of((began[name], name, decision) for name, decision in plans.items()).items():
        if budgets:
            places |= positions_of(lane)
    told = [
        (entry, blocked_since(entry, views[name].budgets.get(entry.pod.uid, ()), began[name]))
        for name, decision in plans.items()
        for entry in decision.left
    ]
    since = (memory or Memory()).look(told, now)
    found = []
    for node in nodes:
        if node.name not in asked:
            continue
        decision = plans.get(node.name)
        standing = _standing(observed, settings, node, now, decision)
        if decision is not None:
            entries = by_urgency(decision.left)
            pods = (PodStatus(each, since[each.pod.uid], places.get(each.pod.uid)) for each in entries)
            standing = msgspec.structs.replace(standing, pods=tuple(pods))
        elif is_draining(node, settings):
            standing = msgspec.structs.replace(standing, pods=None)
        found.append(standing)
    return tuple(found)


def claims_by_themselves(
    observed: ClusterCache, settings: TerminationSettings, now: float
) -> tuple[NodeClaimStatus, ...]:
    """The node claims that end and have no node that would show it."""
    found = []
    for claim in sorted(observed.claims.values(), key=lambda claim: claim.name):
        nodes = observed.nodes_of(claim)
        is_shown = any(node.deletion_timestamp is not None for node in nodes)
        if not is_finalizing(claim) or is_shown or not observed.is_managed(claim, settings.node_selector):
            continue
        words = (condition_of(claim.conditions, type_) for type_ in (names.INSTANCE_TERMINATING, names.DRAINED))
        says = next((word.message for word in words if word is not None and word.message), "")
        assert claim.deletion_timestamp is not None
        deadline = deadline_of(nodes[0] if nodes else None, claim, settings.policy)
        undeleted = tuple(sorted(node.name for node in nodes))
        found.append(NodeClaimStatus(claim.name, undeleted, min(claim.deletion_timestamp, now), deadline, says))
    return tuple(found)


def _asked_at(node: Node, now: float) -> float:
    """When somebody asked for what is done to it."""
    if node.deletion_timestamp is not None:
        return min(node.deletion_timestamp, now)
    return maintenance_since(node, now)


def _view(observed: ClusterCache, settings: TerminationSettings, node: Node, now: float) -> NodeView:
    deadline = None if is_maintenance_requested(node) else deadline_if_deleted(observed, settings, node, now)
    view = observed.view_of(node, settings.policy, deadline)
    return msgspec.structs.replace(view, cordoned_at=_asked_at(node, now) if is_disrupted(node) else None)


# -- one node ----------------------------------------------------------------------------------------------------------


def _standing(
    observed: ClusterCache, settings: TerminationSettings, node: Node, now: float, decision: Plan | None
) -> NodeStatus:
    state = _state(node)
    if state is State.IDLE:
        return NodeStatus(node=node, state=state, since=None, obstacles=tuple(shutdown_warnings(node)))
    if state is State.PENDING:
        condition = condition_of(node.conditions, names.TERMINATION_PENDING)
        assert condition is not None
        return NodeStatus(
            node=node,
            state=state,
            since=pending_since((node,), now),
            step="pending",
            waits_for=harmless(f"{condition.reason}: {condition.message}", LONGEST),
            obstacles=tuple(shutdown_warnings(node)),
        )
    is_ending = state is State.ENDING
    step, waits_for = _step(node, settings, decision)
    return NodeStatus(
        node=node,
        state=state,
        since=None if state is State.RETURNING else _asked_at(node, now),
        step=step,
        waits_for=waits_for,
        deadline=deadline_if_deleted(observed, settings, node, now) if is_ending else None,
        origin=origin_if_deleted(observed, settings, node, now) if is_ending else None,
        obstacles=by_importance(_obstacles(observed, settings, node, now, decision)),
    )


def _state(node: Node) -> State:
    if node.deletion_timestamp is not None:
        return State.ENDING
    if is_maintenance_requested(node):
        return State.KEPT
    if is_maintenance_ending(node):
        return State.RETURNING
    return State.PENDING if is_pending(node) else State.IDLE


def _step(node: Node, settings: TerminationSettings, decision: Plan | None) -> tuple[str, str]:
    """The step at which a node stands, and what it waits for there."""
    if node.deletion_timestamp is not None and names.FINALIZER not in node.finalizers:
        return "finalizer", f"others hold it: finalizer {', '.join(node.finalizers)}"
    if not settings.node_selector.matches(node.labels):
        return "", "nobody drains it"
    if is_maintenance_ending(node):
        return "uncordon", "what its cordon has put on it is taken off"
    if not is_disrupted(node):
        return "cordon", _failing(node) or "it is not cordoned yet"
    if decision is None:
        return "drain", ""
    if decision.left and not decision.overdue:
        return "drain", _failing(node) or summarize(decision)
    return _after_drain(node, decision)


def _failing(node: Node) -> str:
    """What the controller says of a step before the drain that keeps failing; empty if there is none."""
    drained = condition_of(node.conditions, names.DRAINED)
    return drained.message if drained is not None and drained.reason == names.STEP_FAILING else ""


def _after_drain(node: Node, decision: Plan) -> tuple[str, str]:
    drained = condition_of(node.conditions, names.DRAINED)
    detached = condition_of(node.conditions, names.VOLUMES_DETACHED)
    ended = condition_of(node.conditions, names.INSTANCE_TERMINATING)
    if decision.overdue:
        return "instance", "the deadline has passed" if ended is None else ended.message
    if drained is None or drained.status != names.TRUE:
        return "drain", "no pod is left; waiting for pods bound at the time of the cordon"
    if detached is not None and detached.status == names.FALSE:
        return "volumes", detached.message
    if node.deletion_timestamp is None:
        return ("kept", drained.message) if drained.reason == KEPT else ("drain", "no pod is left")
    return "instance", "" if ended is None else ended.message


def _obstacles(
    observed: ClusterCache, settings: TerminationSettings, node: Node, now: float, decision: Plan | None
) -> Iterator[PlanWarning]:
    has_drained = condition_of(node.conditions, names.DRAINED) is not None
    for caution in obstacles_of(observed, settings, node, keeps=is_maintenance_requested(node)):
        if caution.kind is WarningKind.NOT_MANAGED and (is_finalizing(node) or is_in_maintenance(node)):
            yield PlanWarning(WarningKind.NOT_MANAGED, unmanaged_report(node)[1])
        elif caution.kind is not WarningKind.FINALIZER_MISSING or not has_drained:
            # One that we have drained and let go is not one that nobody has ever held.
            yield caution
    asked = _asked_at(node, now)
    if is_draining(node, settings) and not is_disrupted(node) and now >= asked + ACTS_WITHIN_SECONDS:
        message = f"nobody has begun to drain this node: it is not cordoned{IS_IT_RUNNING}"
        yield PlanWarning(WarningKind.NO_CONTROLLER, message)
    left = () if decision is None else decision.left
    late = tuple("/".join(entry.pod.key) for entry in left if _is_late(entry, asked, now))
    if late:
        them = "it" if len(late) == 1 else "them"
        message = f"the deadline demands the end of {listed(late)}, and nobody has deleted {them}{IS_IT_RUNNING}"
        yield PlanWarning(WarningKind.NO_CONTROLLER, message, late)


def _is_late(entry: PodPlan, asked: float, now: float) -> bool:
    """It should have been told to leave a while ago."""
    if entry.pod.deletion_timestamp is not None or entry.delete_at is None:
        return False
    return now >= max(entry.delete_at, entry.pod.created, asked) + ACTS_WITHIN_SECONDS
