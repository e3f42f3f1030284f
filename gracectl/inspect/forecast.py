"""Forecast of drains: what would happen if nodes were deleted or drained now, and what will
happen to nodes that are draining already.

All draining nodes are simulated together, since their pods wait for the same budgets. Changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.controllers.cluster.tracked import H
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.owned import (
    began_at,
    deadline_of_other,
    is_begun,
    is_drained_by_other,
    other_drain,
    owner_of_drain,
    warnings_of_other,
)
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.foreign import harmless
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.policy.answers import Answer, Sightings, Total, total_of
from gracectl.policy.budgets import Allowance
from gracectl.policy.confirmation import confirmed, is_unconfirmed
from gracectl.policy.cordon import is_drain_begun
from gracectl.policy.deadlines import (
    Deadline,
    DeadlineOrigin,
    deadline_of,
    deadline_origin,
    invalid_deadline,
    missing_deadline,
)
from gracectl.policy.finalizers import has_finalizer
from gracectl.policy.forecast import Assumptions, Forecast, NodeForecast
from gracectl.policy.maintenance import (
    drain_deadline,
    is_maintenance_requested,
    is_uncordoned,
    maintenance_request,
    maintenance_since,
)
from gracectl.policy.nodebudgets import disruption_verdict, remedy_of, selects_node
from gracectl.policy.other_drains import OtherDrain, autoscaler_drain
from gracectl.policy.owners import Ownership, other_owner
from gracectl.policy.paces import forecast_all
from gracectl.policy.plan import NodeView
from gracectl.policy.remedies import OTHER_OWNER, remedy
from gracectl.policy.returning import cordon_known_at
from gracectl.policy.scenario import DrainingNode
from gracectl.policy.surroundings import Surroundings, surrounding_warnings
from gracectl.policy.warnings import (
    PlanWarning,
    WarningKind,
    by_importance,
    machine_warnings,
    shutdown_warnings,
    warnings_of,
)

LONGEST = 400
"""Characters of a message that quotes foreign text."""


class NodeDrainForecast(msgspec.Struct, frozen=True):
    """Forecast of a node. `is_terminating`: already deleted. `is_maintenance`: drained, but not deleted.

    `is_requested`: its drain is requested already. `owner`: another controller that drains it.
    """

    forecast: NodeForecast
    deadline: Deadline | None
    deadline_origin: DeadlineOrigin | None
    warnings: tuple[PlanWarning, ...]
    is_terminating: bool
    is_maintenance: bool = False
    is_requested: bool = False
    owner: Ownership | None = None

    @property
    def is_assisted(self) -> bool:
        """Whether gracectl evicts pods that another owner drains."""
        other = self.forecast.draining.view.other
        return other is not None and other.is_assisted

    @property
    def name(self) -> str:
        """The node's."""
        return self.forecast.name


class DrainForecast(msgspec.Struct, frozen=True):
    """Forecast of `nodes`. `whole`: also the other draining nodes. `seen`: the structural causes, for the next
    reading.
    """

    nodes: tuple[NodeDrainForecast, ...]
    whole: Forecast
    seen: Sightings = {}

    @property
    def total(self) -> Total:
        """When the last of the nodes is drained."""
        return total_of((node.name, node.forecast.drained) for node in self.nodes)

    @property
    def is_unconfirmed(self) -> bool:
        """Whether a second reading, AGREE_SECONDS later, may say never where this one says unknown."""
        return is_unconfirmed(self.whole, self.seen)


def forecast_drains(
    cluster: ClusterCache,
    settings: TerminationSettings,
    chosen: Collection[str],
    now: float,
    assumptions: Assumptions,
    *,
    for_maintenance: bool = False,
) -> DrainForecast:
    """Forecast the drain of the `chosen` nodes (which exist) if they are deleted at `now`.

    `for_maintenance`: they are drained, but not deleted; a node that is already deleted is terminated.
    """
    nodes = sorted(cluster.nodes.values(), key=lambda node: natural_key(node.name))
    draining = [node for node in nodes if node.name in chosen or is_draining(node, settings, cluster)]
    stays = {
        node.name
        for node in draining
        if (_can_stay(node, for_maintenance) if node.name in chosen else is_maintenance_requested(node))
    }
    requested = {
        node.name: _requested(
            node, now, assumptions.deadline_seconds if node.name in chosen else None, stays=node.name in stays
        )
        for node in draining
    }
    drains = (_draining(cluster, settings, each, now) for each in requested.values())
    whole, seen = confirmed(forecast_all(_with_due(cluster, drains, now), now, assumptions), assumptions.seen)
    found = tuple(
        NodeDrainForecast(
            forecast=node_forecast,
            deadline=deadline_if_requested(cluster, settings, requested[node.name], now),
            deadline_origin=origin_if_requested(cluster, settings, requested[node.name], now),
            warnings=by_importance(
                [
                    *node_warnings(cluster, settings, node, now, for_maintenance=for_maintenance),
                    *warnings_of(node_forecast),
                ]
            ),
            is_terminating=is_terminating(node, settings, cluster),
            is_maintenance=node.name in stays,
            is_requested=is_maintenance_requested(node)
            if node.name in stays
            else is_terminating(node, settings, cluster),
            owner=_owner_of(cluster, node_forecast),
        )
        for node, node_forecast in zip(draining, whole.nodes, strict=True)
        if node.name in chosen
    )
    return DrainForecast(found, whole, seen)


def forecast_alone(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float, assumptions: Assumptions
) -> tuple[Answer, Sightings]:
    """When the drain of this node ends if it begins at `now`, or has begun, as if no other node were drained; and the
    sightings for the next forecast of it."""
    seconds = None if is_maintenance_requested(node) else assumptions.deadline_seconds
    requested = _requested(node, now, seconds, stays=node.deletion_timestamp is None)
    draining = _with_due(cluster, [_draining(cluster, settings, requested, now)], now)
    whole, seen = confirmed(forecast_all(draining, now, assumptions), assumptions.seen)
    return whole.nodes[0].drained, seen


def _owner_of(cluster: ClusterCache, forecast: NodeForecast) -> Ownership | None:
    node = forecast.draining.view.node
    return None if forecast.draining.view.other is None else owner_of_drain(cluster, node) or cluster.owner_of(node)


def with_surroundings(forecast: DrainForecast, around: Surroundings) -> DrainForecast:
    """Add warnings about the objects around the pods."""

    def with_warnings(node: NodeDrainForecast) -> NodeDrainForecast:
        found = surrounding_warnings(node.forecast, around)
        return msgspec.structs.replace(node, warnings=by_importance([*node.warnings, *found]))

    return msgspec.structs.replace(forecast, nodes=tuple(map(with_warnings, forecast.nodes)))


def with_warnings(forecast: DrainForecast, found: Mapping[str, tuple[PlanWarning, ...]]) -> DrainForecast:
    """Add these warnings, by the name of the node."""

    def add(node: NodeDrainForecast) -> NodeDrainForecast:
        if node.name not in found:
            return node
        return msgspec.structs.replace(node, warnings=by_importance([*node.warnings, *found[node.name]]))

    return msgspec.structs.replace(forecast, nodes=tuple(map(add, forecast.nodes)))


def with_node_budgets(forecast: DrainForecast, budgets: Collection[NodeDisruptionBudget], now: float) -> DrainForecast:
    """Add a warning for each node whose deletion these budgets would refuse; each node counts alone.

    A drain for maintenance is never refused, but the budget counts a node that is rebooted.
    """

    def with_warnings(node: NodeDrainForecast) -> NodeDrainForecast:
        found = _budget_warnings(node.forecast.draining.view.node, node, budgets, now)
        return msgspec.structs.replace(node, warnings=by_importance([*node.warnings, *found]))

    return msgspec.structs.replace(forecast, nodes=tuple(map(with_warnings, forecast.nodes)))


def _can_stay(node: Node, for_maintenance: bool) -> bool:
    return for_maintenance and node.deletion_timestamp is None


def draining_nodes(
    cluster: ClusterCache,
    settings: TerminationSettings,
    now: float,
    has_pods: Callable[[str], bool] = lambda node: True,
) -> tuple[DrainingNode, ...]:
    """Draining nodes as input of a forecast; immutable.

    `has_pods`: whether the pods of a node are in the cache; a node without them is left out.
    """
    nodes = sorted(cluster.nodes.values(), key=lambda node: natural_key(node.name))
    draining = (node for node in nodes if is_draining(node, settings, cluster) and has_pods(node.name))
    return _with_due(cluster, (_draining(cluster, settings, node, now) for node in draining), now)


def _with_due(cluster: ClusterCache, draining: Iterable[DrainingNode], now: float) -> tuple[DrainingNode, ...]:
    """Add the pods that should have become Ready under the budgets of each node."""
    nodes = tuple(draining)
    keys = [{budget.key for found in each.view.budgets.values() for budget in found} for each in nodes]
    starting = cluster.due_under(frozenset().union(*keys), now)
    if not starting:
        return nodes
    return tuple(
        msgspec.structs.replace(each, starting={key: starting[key] for key in sorted(own & starting.keys())})
        for each, own in zip(nodes, keys, strict=True)
    )


def is_draining(node: Node, settings: TerminationSettings, cluster: ClusterCache | None = None) -> bool:
    """Whether gracectl or another owner drains this node, or has to. `cluster`: with its claims; before they are known,
    nodes without a drain may be included.
    """
    if (is_finalizing(node) or is_maintenance_requested(node)) and _manages(node, settings, cluster):
        return True
    if cluster is None:
        return is_finalizing(node) or autoscaler_drain(node) is not None
    return is_drained_by_other(cluster, node)


def is_terminating(node: Node, settings: TerminationSettings, cluster: ClusterCache) -> bool:
    """Whether this node is deleted, and gracectl or another owner drains it."""
    return (is_finalizing(node) and _manages(node, settings, cluster)) or is_drained_by_other(cluster, node)


def _manages(node: Node, settings: TerminationSettings, cluster: ClusterCache | None) -> bool:
    return settings.managed.includes(node, () if cluster is None else cluster.owning_claims_of(node))


def deadline_if_requested(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float
) -> Deadline | None:
    """The deadline of a node in maintenance, or that is deleted at `now`, or was before."""
    if is_maintenance_requested(node):
        return drain_deadline(node)
    if (other := other_drain_of(cluster, settings, node, now)) is not None:
        return deadline_of_other(cluster, node, other, now)
    claim = cluster.claim_ending_with(node)
    deleted_claim = None if claim is None else _deleted(claim, now)
    return deadline_of(_deleted(node, now), deleted_claim, settings.policy)


def origin_if_requested(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float
) -> DeadlineOrigin | None:
    """The origin of that deadline; None if there is none."""
    deadline = deadline_if_requested(cluster, settings, node, now)
    if deadline is None:
        return None
    return deadline_origin(deadline, node, cluster.claim_ending_with(node), settings.policy)


def _requested(node: Node, now: float, seconds: float | None, *, stays: bool) -> Node:
    """The node as if it were drained for maintenance, or deleted, at `now`, with a deadline after `seconds`."""
    wanted: dict[str, str | None]
    if stays:
        wanted = {**node.annotations, **maintenance_request(node, now, seconds)}
        node = msgspec.structs.replace(node, unschedulable=node.unschedulable or is_uncordoned(node))
    else:
        node = _deleted(node, now)
        wanted = {**node.annotations, **missing_deadline(node, None if seconds is None else now + seconds)}
    return msgspec.structs.replace(node, annotations={key: text for key, text in wanted.items() if text is not None})


def other_drain_of(cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float) -> OtherDrain | None:
    """See `other_drain`; None also if gracectl drains this node regardless of its owner."""
    if settings.managed.of_any_owner or is_maintenance_requested(node):
        return None
    return other_drain(cluster, settings, node, now)


def view_for_other(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, other: OtherDrain, now: float
) -> NodeView:
    """View of a node that another owner drains, or would drain if the node were deleted at `now`."""
    view = cluster.view_of(node, settings.policy, deadline_of_other(cluster, node, other, now))
    cordoned_at = began_at(cluster, node, now) if is_begun(node) else now
    return msgspec.structs.replace(view, other=other, cordoned_at=cordoned_at)


def _draining(cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float) -> DrainingNode:
    """A node that is drained for maintenance, or deleted."""
    if (other := other_drain_of(cluster, settings, node, now)) is not None:
        return DrainingNode(view_for_other(cluster, settings, node, other, now), began_at(cluster, node, now))
    view = cluster.view_of(node, settings.policy, deadline_if_requested(cluster, settings, node, now))
    since = maintenance_since(node, now) if node.deletion_timestamp is None else node.deletion_timestamp
    cordoned_at = since if is_drain_begun(view.node) else now
    known = cordon_known_at(view.node, since)
    return DrainingNode(msgspec.structs.replace(view, cordoned_at=cordoned_at, known_cordoned_at=known), since)


def _deleted(thing: H, now: float) -> H:
    """Object as the server would show it after a deletion at `now`: in whole seconds."""
    if thing.deletion_timestamp is not None:
        return thing
    return msgspec.structs.replace(thing, deletion_timestamp=float(math.floor(now)))


def unmanaged_warning(
    settings: TerminationSettings, node: Node, claims: Collection[NodeClaim] = (), *, for_maintenance: bool = False
) -> PlanWarning | None:
    """Why no controller would drain a node that is deleted, or drained for maintenance; None if one does. `claims`: of
    the node, as far as they are known."""
    if not settings.managed.includes(node, claims):
        if not for_maintenance and other_owner(node, claims) is not None:
            return _unfinalized(node)
        if (owner := other_owner(node, claims)) is not None:
            helps = remedy(OTHER_OWNER, node=node.name)
            return PlanWarning(WarningKind.NOT_MANAGED, f"not managed: {owner}", remedy=helps)
        message = "not managed: no nodeSelector match; gracectl does not drain it"
        return PlanWarning(WarningKind.NOT_MANAGED, message, remedy=remedy(WarningKind.NOT_MANAGED, node=node.name))
    if has_finalizer(node):
        return None
    if node.deletion_timestamp is not None:
        message = "being deleted without the finalizer of gracectl, which can no longer be added: not drained"
    elif for_maintenance:
        message = (
            "finalizer of gracectl missing: it would not be drained; is `gracectl controller` running, and does "
            "its nodeSelector match the node?"
        )
    else:
        message = (
            "finalizer of gracectl missing: deleted now, it would disappear without a drain; is `gracectl "
            "controller` running, and does its nodeSelector match the node?"
        )
    return PlanWarning(WarningKind.FINALIZER_MISSING, message, remedy=remedy(WarningKind.FINALIZER_MISSING))


def _unfinalized(node: Node) -> PlanWarning | None:
    """Why its owner would not drain this node."""
    if names.FINALIZER in node.finalizers or node.deletion_timestamp is not None:
        return None
    message = f"finalizer {names.FINALIZER} missing: deleted now, it would disappear without a drain by Karpenter"
    return PlanWarning(WarningKind.FINALIZER_MISSING, message, remedy=remedy(WarningKind.OWNER_WAITS))


def _budget_warnings(
    node: Node, drain: NodeDrainForecast, budgets: Collection[NodeDisruptionBudget], now: float
) -> Iterator[PlanWarning]:
    """Which NodeDisruptionBudgets would refuse its deletion now. In a forecast it is deleted already."""
    alive = msgspec.structs.replace(node, deletion_timestamp=None)
    kind, what = WarningKind.NODE_BUDGET_BLOCKS, "deletion would be refused"
    if drain.is_maintenance:
        kind, what = WarningKind.NODE_BUDGET_SPENT, "still drained, but do not stop its machine now"
    for budget in budgets:
        if selects_node(budget, node) and not drain.is_terminating:
            verdict = disruption_verdict(budget, alive, now)
            if verdict.allowance not in {Allowance.UNCHARGED, Allowance.ALLOWED}:
                message = harmless(f"{what}: {verdict.reason}", LONGEST)
                helps = f"{remedy_of(budget, verdict.allowance)}; {remedy(WarningKind.NODE_BUDGET_BLOCKS)}"
                yield PlanWarning(kind, message, (budget.name,), helps)


def node_warnings(
    cluster: ClusterCache, settings: TerminationSettings, node: Node, now: float, *, for_maintenance: bool = False
) -> Iterator[PlanWarning]:
    """Warnings about the node itself that prevent its termination or drain."""
    if warning := unmanaged_warning(settings, node, cluster.owning_claims_of(node), for_maintenance=for_maintenance):
        yield warning
    yield from shutdown_warnings(node)
    if for_maintenance and node.deletion_timestamp is None:
        yield from _invalid_deadlines((node,), names.DRAIN_DEADLINE)
        return  # machine and claim do not matter
    if cluster.owner_of(node) is not None and not settings.managed.of_any_owner:
        yield from warnings_of_other(cluster, node, now)
        return
    yield from machine_warnings(node, settings.policy)
    claims = cluster.claims_of(node)
    if len(claims) > 1:
        found = sorted((claim.name for claim in claims), key=natural_key)
        message = f"several node claims have this node ({', '.join(found)}): none is used"
        kind = WarningKind.SEVERAL_CLAIMS
        yield PlanWarning(kind, message, remedy=remedy(kind, claims=" ".join(found)))
    yield from _invalid_deadlines((node, *claims), names.TERMINATION_TIMESTAMP)


def _invalid_deadlines(holders: Iterable[Node | NodeClaim], annotation: str) -> Iterator[PlanWarning]:
    for holder in holders:
        text = invalid_deadline(holder, annotation)
        if text is not None:
            message = f'annotation {annotation} of {holder.name} ignored: "{harmless(text)}" is no instant'
            kind, holder_kind = WarningKind.INVALID_DEADLINE, "node" if isinstance(holder, Node) else "nodeclaim"
            helps = remedy(kind, kind=holder_kind, name=holder.name, annotation=annotation)
            yield PlanWarning(kind, message, remedy=helps)
