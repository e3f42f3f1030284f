"""Status of nodes that are terminated, drained for maintenance or uncordoned, from the objects of the cluster alone.

It does not depend on a running controller: what may happen is planned here, what has happened is in
conditions, taints and finalizers. Changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.controllers.settings import TerminationSettings
from gracectl.controllers.termination.events import MISMATCH, unmanaged_node
from gracectl.inspect.draining import DrainingNodes, PodStatus, requested_at
from gracectl.inspect.forecast import LONGEST, deadline_if_requested, is_draining, node_warnings, origin_if_requested
from gracectl.inspect.owned import (
    began_at,
    deadline_of_claim,
    other_drain,
    owner_of_drain,
    step_of_other,
    warnings_of_other,
)
from gracectl.inspect.pending import DueNode, PendingStatus, pending_status
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of, natural_key
from gracectl.model.node import Node
from gracectl.policy.answers import Answer, Never, Unknown
from gracectl.policy.cordon import is_drain_begun
from gracectl.policy.deadlines import Deadline, DeadlineOrigin, deadline_of
from gracectl.policy.explain import listed, stuck_text, summarize
from gracectl.policy.finalizers import has_finalizer
from gracectl.policy.forecast import Forecast, NodeForecast
from gracectl.policy.maintenance import (
    is_begun_by_another,
    is_drained_by_command,
    is_in_maintenance,
    is_maintenance_ending,
    is_maintenance_requested,
)
from gracectl.policy.other_drains import autoscaler_drain
from gracectl.policy.owners import Ownership, other_owner_of_claim
from gracectl.policy.pending import is_pending
from gracectl.policy.plan import Plan, PodPlan
from gracectl.policy.remedies import attachment_remedy, remedy
from gracectl.policy.volumes import listed_attachments
from gracectl.policy.warnings import (
    PlanWarning,
    WarningKind,
    by_importance,
    shutdown_warnings,
    stuck_warning,
    warnings_of,
)
from gracectl.telemetry.spans import Trace

ACTS_WITHIN_SECONDS = 15.0
"""Time within which a running controller has done due work, however busy it is."""


IS_IT_RUNNING = "; is `gracectl controller` running?"
"""End of a message about an action that is overdue for an unknown reason."""


HOLDING = (WarningKind.NO_CONTROLLER, WarningKind.FINALIZER_MISSING)
"""Warnings that hold back a termination for health, label or age, if nothing else does."""


NO_FORECAST = Unknown(("a forecast: it is being computed, or there are too many pods",))


class NodePhase(StrEnum):
    """Phase of a node."""

    TERMINATING = "terminating"
    MAINTENANCE = "maintenance"
    UNCORDONING = "uncordoning"
    PENDING = "pending"
    """The node's termination for health, label or age is due, and waits."""
    IDLE = "idle"


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `since`: when (Unix seconds) this was requested; None if unknown.

    `step`: named as in logs and metrics; empty if idle or not managed. `waits_for`: one line. `pods`: those that block
    it, the most urgent first; None: not listed yet. `pending`: its termination for health, label or age is due.
    `forecast`: of its drain, perhaps some seconds old; None: none was
    made. `stuck`: that nothing is left on a node in maintenance but stuck pods, with their names; empty if not.
    `owner`: another controller that drains it; `is_assisted`: gracectl evicts its pods, too.
    """

    node: Node
    state: NodePhase
    since: float | None
    step: str = ""
    waits_for: str = ""
    pods: tuple[PodStatus, ...] | None = ()
    deadline: Deadline | None = None
    deadline_origin: DeadlineOrigin | None = None
    warnings: tuple[PlanWarning, ...] = ()
    pending: PendingStatus | None = None
    forecast: NodeForecast | None = None
    stuck: str = ""
    owner: Ownership | None = None
    is_assisted: bool = False

    @property
    def campaign(self) -> str:
        """Name of the NodeDrain that has begun with it; empty: none."""
        return harmless(self.node.annotations.get(names.NODE_DRAIN, "").partition("/")[0])

    @property
    def name(self) -> str:
        """The node's."""
        return self.node.name

    @property
    def uid(self) -> str:
        """The node's."""
        return self.node.uid

    @property
    def trace_id(self) -> str | None:
        """Id of the trace of its termination, as its annotation names it."""
        return trace_id_of(self.node)

    @property
    def is_done(self) -> bool:
        """Whether it is drained for maintenance."""
        return self.state is NodePhase.MAINTENANCE and self.step == "drained"

    @property
    def is_in_progress(self) -> bool:
        """Whether it is being terminated, or drained for maintenance."""
        return self.state in (NodePhase.TERMINATING, NodePhase.MAINTENANCE) and not self.is_done

    @property
    def drained(self) -> Answer | None:
        """When it is drained; None: no pod blocks it, or it is not being drained."""
        if not self.is_in_progress or self.pods == ():
            return None
        return NO_FORECAST if self.forecast is None or self.pods is None else self.forecast.drained

    @property
    def is_never_drained(self) -> bool:
        """Whether it drains only if something is changed, by its forecast."""
        return isinstance(self.drained, Never)


class NodeClaimStatus(msgspec.Struct, frozen=True):
    """A terminating NodeClaim without a node, or with one that is not deleted yet. Instants are Unix seconds."""

    name: str
    nodes: tuple[str, ...]
    since: float
    deadline: Deadline | None
    waits_for: str
    trace_id: str | None = None


def trace_id_of(thing: Node | NodeClaim) -> str | None:
    """Id of the trace that is written on a node or claim; None without a valid one."""
    trace = Trace.read(thing.annotations.get(names.TRACEPARENT, ""))
    return None if trace is None else trace.hex


def is_active(node: Node) -> bool:
    """Whether its termination, drain or uncordon is requested, or a controller has found its termination due."""
    is_requested = node.deletion_timestamp is not None or autoscaler_drain(node) is not None
    return is_requested or is_in_maintenance(node) or is_pending(node)


def node_statuses(
    cluster: ClusterCache,
    settings: TerminationSettings,
    chosen: Collection[str],
    now: float,
    *,
    has_pods: Callable[[str], bool] = lambda node: True,
) -> tuple[NodeStatus, ...]:
    """Status of the `chosen` nodes at `now`, by name; nodes that do not exist are left out.

    The pods of all draining nodes must be in the cache, since they wait in the same queues. `has_pods`: whether the
    pods of a node have been listed. Costs a plan per draining node.
    """
    return NodeStatuses(cluster, settings, has_pods).at(chosen, now)


class NodeStatuses:
    """Status of nodes over several reads: unchanged nodes are not planned again; `follows` as for DrainingNodes."""

    def __init__(
        self,
        cluster: ClusterCache,
        settings: TerminationSettings,
        has_pods: Callable[[str], bool] = lambda node: True,
        *,
        follows: bool = False,
    ) -> None:
        self.draining = DrainingNodes(cluster, settings, has_pods, follows=follows)
        self._cluster = cluster
        self._settings = settings
        self._kept: dict[str, _KeptStatus] = {}  # by name
        self._owns_claims = cluster.presence.owns_claims

    def configure(self, settings: TerminationSettings) -> None:
        """Use these settings from now on."""
        if settings != self._settings:
            self._settings = settings
            self._kept.clear()
            self.draining.configure(settings)

    def at(self, chosen: Collection[str], now: float) -> tuple[NodeStatus, ...]:
        """See `node_statuses`. The `pods` of a node are the same object as before if none of them has changed; the
        status of a node that gracectl drains, too."""
        self.draining.update(now)
        if self._owns_claims != self._cluster.presence.owns_claims:
            self._owns_claims = self._cluster.presence.owns_claims
            self._kept.clear()
        self._kept = {name: kept for name, kept in self._kept.items() if name in self.draining.plans}
        return tuple(
            self._status_of(node, now)
            for node in sorted(self._cluster.nodes.values(), key=lambda node: natural_key(node.name))
            if node.name in chosen
        )

    def _status_of(self, node: Node, now: float) -> NodeStatus:
        found = self.draining.plans.get(node.name)
        if found is None:
            status = _status(self._cluster, self._settings, node, now, None)
            is_unlisted = is_draining(node, self._settings, self._cluster)
            return msgspec.structs.replace(status, pods=None) if is_unlisted else status
        pods, kept = self.draining.pods_of(node.name), self._kept.get(node.name)
        # Any change of an object that its status depends on has made its plan anew.
        if kept is not None and kept.plan is found.plan and kept.status.pods is pods and now < kept.until:
            return kept.status
        status = _status(self._cluster, self._settings, node, now, found.plan)
        status = msgspec.structs.replace(status, pods=pods)
        if status.owner is None:
            self._kept[node.name] = _KeptStatus(found.plan, status, _changes_at(status, found.plan, now))
        return status


class _KeptStatus(msgspec.Struct, frozen=True):
    """Status of a node by its plan. `until`: when the clock alone changes it (Unix seconds)."""

    plan: Plan
    status: NodeStatus
    until: float


def with_pending(
    cluster: ClusterCache,
    settings: TerminationSettings,
    statuses: Iterable[NodeStatus],
    due: Mapping[str, DueNode],
    now: float,
) -> tuple[NodeStatus, ...]:
    """Add to each status what its voluntary termination waits for; `due`: the due nodes, by name."""

    def with_due(status: NodeStatus) -> NodeStatus:
        if status.name not in due or status.state is NodePhase.TERMINATING:
            return status
        pending = pending_status(status.node, due[status.name], now)
        if status.state in (NodePhase.IDLE, NodePhase.PENDING):
            return held_by_warning(_waiting_status(cluster, settings, status.node, now, pending))
        return msgspec.structs.replace(status, pending=pending)

    return tuple(map(with_due, statuses))


def held_by_warning(status: NodeStatus) -> NodeStatus:
    """Status of a pending node that only a warning blocks: no finalizer, or no controller."""
    pending = status.pending
    found = next((each for each in status.warnings if each.kind in HOLDING), None)
    if pending is None or pending.hold or found is None:
        return status
    text = harmless(f"{', '.join(pending.causes)}; {found.kind.value}: {found.message}", LONGEST)
    pending = msgspec.structs.replace(pending, hold=found.kind.value, waits_for=text)
    return msgspec.structs.replace(status, pending=pending, waits_for=text)


def with_forecasts(statuses: Iterable[NodeStatus], forecast: Forecast | None) -> tuple[NodeStatus, ...]:
    """Add the forecast to each status: by when the node is drained, or why it never is."""
    forecasts = {each.draining.view.node.uid: each for each in (forecast.nodes if forecast else ())}
    return tuple(with_forecast(status, forecasts.get(status.uid)) for status in statuses)


def with_forecast(status: NodeStatus, forecast: NodeForecast | None) -> NodeStatus:
    """Add the forecast of its node."""
    if status.forecast is forecast:
        return status
    status = msgspec.structs.replace(status, forecast=forecast)
    if forecast is None or not status.is_never_drained:
        return status
    never = (each for each in warnings_of(forecast) if each.kind is WarningKind.NEVER_DRAINS)
    return msgspec.structs.replace(status, warnings=by_importance([*status.warnings, *never]))


def claims_without_node_status(
    cluster: ClusterCache, settings: TerminationSettings, now: float
) -> tuple[NodeClaimStatus, ...]:
    """Terminating NodeClaims that no node shows."""
    found = []
    for claim in sorted(cluster.claims.values(), key=lambda claim: natural_key(claim.name)):
        nodes = cluster.nodes_of(claim)
        is_shown = any(node.deletion_timestamp is not None for node in nodes)
        owner = None if cluster.manages_claim(settings.managed, claim) else other_owner_of_claim(claim)
        is_drained = owner is not None or cluster.manages_claim(settings.managed, claim)
        if not is_finalizing(claim) or is_shown or not is_drained:
            continue
        conditions = (condition_of(claim.conditions, type_) for type_ in (names.INSTANCE_TERMINATING, names.DRAINED))
        waits_for = next((each.message for each in conditions if each is not None and each.message), "")
        assert claim.deletion_timestamp is not None
        deadline = deadline_of(nodes[0] if nodes else None, claim, settings.policy)
        if owner is not None:
            deadline, waits_for = (
                deadline_of_claim(claim, now),
                f"{owner.owner}: {waits_for or 'the end of its instance'}",
            )
        undeleted = tuple(sorted((node.name for node in nodes), key=natural_key))
        since = min(claim.deletion_timestamp, now)
        found.append(NodeClaimStatus(claim.name, undeleted, since, deadline, waits_for, trace_id_of(claim)))
    return tuple(found)


def _changes_at(status: NodeStatus, decision: Plan, now: float) -> float:
    """The next instant (Unix seconds) at which the clock alone changes this status, with the same plan."""
    if status.since is None or status.since >= now:
        return now  # of a request in the future it is now
    late = (_late_at(entry, status.since) for entry in decision.left)
    instants = (status.since + ACTS_WITHIN_SECONDS, *(at for at in late if at is not None))
    return min((at for at in instants if at > now), default=math.inf)


# -- one node ----------------------------------------------------------------------------------------------------------


def _status(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float, decision: Plan | None
) -> NodeStatus:
    state = _state(node)
    if (owner := owner_of_drain(cluster, node)) is not None and not settings.managed.of_any_owner:
        return _status_of_other(cluster, settings, node, now, decision, owner)
    if state is NodePhase.IDLE:
        of_owner = warnings_of_other(cluster, node, now) if cluster.owner_of(node) is not None else ()
        return NodeStatus(node=node, state=state, since=None, warnings=(*shutdown_warnings(node), *of_owner))
    if state is NodePhase.PENDING:
        return _waiting_status(cluster, settings, node, now, pending_status(node, None, now))
    is_requested = state is not NodePhase.UNCORDONING
    step, waits_for = _step(cluster, settings, node, decision)
    return NodeStatus(
        node=node,
        state=state,
        since=requested_at(node, now) if is_requested else None,
        step=step,
        waits_for=waits_for,
        stuck=stuck_text(decision) if step == "drain" and decision is not None and decision.is_stuck else "",
        deadline=deadline_if_requested(cluster, settings, node, now) if is_requested else None,
        deadline_origin=origin_if_requested(cluster, settings, node, now) if is_requested else None,
        warnings=by_importance(_warnings(cluster, settings, node, now, decision)),
    )


def _status_of_other(
    cluster: ClusterCache,
    settings: TerminationSettings,
    node: Node,
    now: float,
    decision: Plan | None,
    owner: Ownership,
) -> NodeStatus:
    """Status of a node that another owner drains."""
    step, waits_for = step_of_other(cluster, node, decision)
    other = other_drain(cluster, settings, node, now)
    return NodeStatus(
        node=node,
        state=NodePhase.TERMINATING,
        since=began_at(cluster, node, now),
        step=step,
        waits_for=waits_for,
        deadline=deadline_if_requested(cluster, settings, node, now),
        deadline_origin=origin_if_requested(cluster, settings, node, now),
        warnings=by_importance([*shutdown_warnings(node), *warnings_of_other(cluster, node, now, decision)]),
        owner=owner,
        is_assisted=other is not None and other.is_assisted,
    )


def _state(node: Node) -> NodePhase:
    if node.deletion_timestamp is not None:
        return NodePhase.TERMINATING
    if is_maintenance_requested(node):
        return NodePhase.MAINTENANCE
    if is_maintenance_ending(node):
        return NodePhase.UNCORDONING
    return NodePhase.PENDING if is_pending(node) else NodePhase.IDLE


def _waiting_status(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float, pending: PendingStatus
) -> NodeStatus:
    return NodeStatus(
        node=node,
        state=NodePhase.PENDING,
        since=pending.since,
        step="pending",
        waits_for=pending.waits_for,
        pending=pending,
        warnings=by_importance(_warnings(cluster, settings, node, now, None)),
    )


def _step(cluster: ClusterCache, settings: TerminationSettings, node: Node, decision: Plan | None) -> tuple[str, str]:
    """Current step of a node, and what it waits for."""
    if node.deletion_timestamp is not None and not has_finalizer(node):
        return "finalizer", f"other finalizers: {', '.join(node.finalizers)}"
    if not cluster.manages(settings.managed, node):
        owner = cluster.owner_of(node)
        return "", "not managed" if owner is None else str(owner)
    if is_maintenance_ending(node):
        return "uncordon", "removal of the marks of its cordon"
    if not is_drain_begun(node):
        return "cordon", _failing(node) or "not cordoned yet"
    if decision is None:
        return "drain", ""
    if decision.left and not decision.overdue:
        return "drain", _failing(node) or summarize(decision)
    return _after_drain(node, decision)


def _failing(node: Node) -> str:
    """The message of a step before the drain that keeps failing; empty if there is none."""
    drained = condition_of(node.conditions, names.DRAINED)
    return drained.message if drained is not None and drained.reason == names.STEP_FAILING else ""


def _after_drain(node: Node, decision: Plan) -> tuple[str, str]:
    drained = condition_of(node.conditions, names.DRAINED)
    detached = condition_of(node.conditions, names.VOLUMES_DETACHED)
    ended = condition_of(node.conditions, names.INSTANCE_TERMINATING)
    if decision.overdue:
        return "instance", "deadline passed" if ended is None else ended.message
    if decision.is_stuck:
        return "drain", f"not drained: {stuck_text(decision)}"
    if decision.drained and is_drained_by_command(node) and names.DRAIN_DEADLINE not in node.annotations:
        return "drained", "no pod is left but pods that stay with the node"
    if drained is None or drained.status != names.TRUE:
        return "drain", "no pod is left; waiting for pods bound at the time of the cordon"
    if detached is not None and detached.status == names.FALSE:
        return "volumes", detached.message
    if node.deletion_timestamp is None:
        return ("drained", drained.message) if drained.reason == names.MAINTENANCE else ("drain", "no pod left")
    return "instance", "" if ended is None else ended.message


def _warnings(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float, decision: Plan | None
) -> Iterator[PlanWarning]:
    has_drained = condition_of(node.conditions, names.DRAINED) is not None
    for warning in node_warnings(cluster, settings, node, now, for_maintenance=is_maintenance_requested(node)):
        if warning.kind is WarningKind.NOT_MANAGED and (is_finalizing(node) or is_in_maintenance(node)):
            if (owner := cluster.owner_of(node)) is not None and node.deletion_timestamp is not None:
                continue  # its owner drains it
            message = f"not managed: {MISMATCH}; another controller has begun with it"
            message = message if is_begun_by_another(node) else unmanaged_node(node, owner).message
            yield msgspec.structs.replace(warning, message=message)
        elif warning.kind is not WarningKind.FINALIZER_MISSING or not has_drained:
            # A node that was drained has had the finalizer.
            yield warning
    requested = requested_at(node, now)
    if is_draining(node, settings, cluster) and not is_drain_begun(node) and now >= requested + ACTS_WITHIN_SECONDS:
        message = f"drain not started: not cordoned{IS_IT_RUNNING}"
        yield PlanWarning(WarningKind.NO_CONTROLLER, message, remedy=remedy(WarningKind.NO_CONTROLLER))
    yield from _reported(node)
    detached = condition_of(node.conditions, names.VOLUMES_DETACHED)
    if decision is not None and decision.attached and detached is not None and detached.reason == names.STILL_ATTACHED:
        message = f"attached for more than a minute after their pods: {listed_attachments(decision.attached)}"
        attachments = tuple(each.name for each in decision.attached)
        helps = attachment_remedy(decision.attached, node)
        yield PlanWarning(WarningKind.VOLUMES_STILL_ATTACHED, message, attachments, helps)
    if decision is not None and (stuck := stuck_warning(decision)):
        yield stuck
    left = () if decision is None else decision.left
    late_at = ((entry, _late_at(entry, requested)) for entry in left)
    late = tuple("/".join(entry.pod.key) for entry, at in late_at if at is not None and now >= at)
    if late:
        message = f"not deleted in time for the deadline: {listed(late)}{IS_IT_RUNNING}"
        yield PlanWarning(WarningKind.NO_CONTROLLER, message, late, remedy(WarningKind.NO_CONTROLLER))


REPORTED: Final = {
    names.EVICTION_REFUSED: WarningKind.EVICTION_REFUSED,
    names.REPLACING: WarningKind.REPLACING,
    names.BUDGET_SETTLING: WarningKind.BUDGET_SETTLING,
}
"""State that only the draining controller has seen, by the reason of the condition Drained."""


def _reported(node: Node) -> Iterator[PlanWarning]:
    drained = condition_of(node.conditions, names.DRAINED)
    if drained is not None and drained.status == names.FALSE and (kind := REPORTED.get(drained.reason)):
        yield PlanWarning(kind, harmless(drained.message, LONGEST))


def _late_at(entry: PodPlan, requested: float) -> float | None:
    """When its deletion is overdue; None: it has been deleted, or will not be."""
    if entry.pod.deletion_timestamp is not None or entry.delete_at is None:
        return None
    return max(entry.delete_at, entry.pod.created, requested) + ACTS_WITHIN_SECONDS
