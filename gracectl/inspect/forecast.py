"""What would happen if nodes were deleted now, or drained for maintenance, and what is about to happen to those that
end already.

Joins what the caches show with the forecast: the nodes that were asked about, as if somebody had asked for that in this
instant, together with all that are draining anyway, whether they end or stay, since pods of all of them wait under the
same budgets. Changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.controllers.cluster.tracked import H
from gracectl.controllers.settings import TerminationSettings
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.foreign import harmless
from gracectl.model.node import Node
from gracectl.policy.budgets import Allowance
from gracectl.policy.deadlines import Deadline, DeadlineOrigin, deadline_of, deadline_origin, invalid_deadline
from gracectl.policy.evictability import is_disrupted
from gracectl.policy.forecast import Assumptions, Forecast, NodeForecast, forecast
from gracectl.policy.maintenance import is_maintenance_requested, maintenance_since
from gracectl.policy.nodebudgets import disruption_verdict, remedy_of, selects_node
from gracectl.policy.plan import NodeView
from gracectl.policy.simulation import DrainingNode
from gracectl.policy.warnings import PlanWarning, WarningKind, by_importance, shutdown_warnings, warnings_of

LONGEST = 400
"""Characters of what is said of a budget for nodes, in which its author's words stand."""


class NodeOutlook(msgspec.Struct, frozen=True):
    """One node that was asked about. `origin`: where its deadline comes from. `is_ending`: somebody has deleted it
    already. `is_maintenance`: what is foretold is a drain after which it stays."""

    prospect: NodeForecast
    deadline: Deadline | None
    origin: DeadlineOrigin | None
    cautions: tuple[PlanWarning, ...]
    is_ending: bool
    is_maintenance: bool = False

    @property
    def name(self) -> str:
        """The node's."""
        return self.prospect.name

    @property
    def is_begun(self) -> bool:
        """Somebody has asked for it already."""
        return self.is_ending or (self.is_maintenance and is_maintenance_requested(self.prospect.draining.view.node))


class Outlook(msgspec.Struct, frozen=True):
    """`nodes` were asked about; `whole` has those as well that drain beside them."""

    nodes: tuple[NodeOutlook, ...]
    whole: Forecast


def outlook(
    observed: ClusterCache,
    settings: TerminationSettings,
    asked: Collection[str],
    now: float,
    assumptions: Assumptions,
    *,
    keeps: bool = False,
) -> Outlook:
    """Foretell what becomes of the nodes called `asked` (all of them are there) if they are deleted at `now`.

    `keeps`: if they are drained and kept so instead. One that is deleted already ends, whatever is asked.
    """
    nodes = sorted(observed.nodes.values(), key=lambda node: node.name)
    draining = [node for node in nodes if node.name in asked or is_draining(node, settings)]
    stays = {
        node.name
        for node in draining
        if (_can_stay(node, keeps) if node.name in asked else is_maintenance_requested(node))
    }
    going = ((_kept if node.name in stays else _ending)(observed, settings, node, now) for node in draining)
    told = forecast(going, now, assumptions)
    found = tuple(
        NodeOutlook(
            prospect=prospect,
            deadline=None if node.name in stays else deadline_if_deleted(observed, settings, node, now),
            origin=None if node.name in stays else origin_if_deleted(observed, settings, node, now),
            cautions=by_importance([*obstacles_of(observed, settings, node, keeps=keeps), *warnings_of(prospect)]),
            is_ending=is_ending(node, settings),
            is_maintenance=node.name in stays,
        )
        for node, prospect in zip(draining, told.nodes, strict=True)
        if node.name in asked
    )
    return Outlook(found, told)


def under_budgets(told: Outlook, budgets: Collection[NodeDisruptionBudget], now: float) -> Outlook:
    """The same, with a caution for each node whose deletion these would refuse; each is asked for by itself."""

    def cautioned(node: NodeOutlook) -> NodeOutlook:
        if node.is_maintenance:
            return node  # nobody deletes it
        found = _forbidden(node.prospect.draining.view.node, node.is_ending, budgets, now)
        return msgspec.structs.replace(node, cautions=by_importance([*node.cautions, *found]))

    return msgspec.structs.replace(told, nodes=tuple(map(cautioned, told.nodes)))


def _can_stay(node: Node, keeps: bool) -> bool:
    return keeps and node.deletion_timestamp is None


def is_draining(node: Node, settings: TerminationSettings) -> bool:
    """Whether pods leave this node at our word: because it ends, or because somebody has asked that it be empty."""
    return is_ending(node, settings) or (is_maintenance_requested(node) and settings.node_selector.matches(node.labels))


def is_ending(node: Node, settings: TerminationSettings) -> bool:
    """Whether this node is deleted, and ours to end."""
    return is_finalizing(node) and settings.node_selector.matches(node.labels)


def deadline_if_deleted(
    observed: ClusterCache, settings: TerminationSettings, node: Node, now: float
) -> Deadline | None:
    """The deadline of a node that is deleted at `now`, or was before."""
    claim = observed.claim_ending_with(node)
    ended_claim = None if claim is None else _deleted(claim, now)
    return deadline_of(_deleted(node, now), ended_claim, settings.policy)


def origin_if_deleted(
    observed: ClusterCache, settings: TerminationSettings, node: Node, now: float
) -> DeadlineOrigin | None:
    """Where that deadline comes from; None if there is none."""
    deadline = deadline_if_deleted(observed, settings, node, now)
    if deadline is None:
        return None
    return deadline_origin(deadline, node, observed.claim_ending_with(node), settings.policy)


def _ending(observed: ClusterCache, settings: TerminationSettings, node: Node, now: float) -> DrainingNode:
    """One that is deleted, or as if it were."""
    ended = _deleted(node, now)
    assert ended.deletion_timestamp is not None
    view = observed.view_of(ended, settings.policy, deadline_if_deleted(observed, settings, node, now))
    return _cordoned(view, ended.deletion_timestamp, now)


def _kept(observed: ClusterCache, settings: TerminationSettings, node: Node, now: float) -> DrainingNode:
    """One that is drained and stays, or as if somebody had asked for that."""
    view = msgspec.structs.replace(observed.view_of(node, settings.policy), is_maintenance=True)
    return _cordoned(view, maintenance_since(node, now) if is_maintenance_requested(node) else now, now)


def _cordoned(view: NodeView, since: float, now: float) -> DrainingNode:
    return DrainingNode(msgspec.structs.replace(view, cordoned_at=since if is_disrupted(view.node) else now), since)


def _deleted(thing: H, now: float) -> H:
    """As the server shows it when it is deleted at `now`: in whole seconds."""
    if thing.deletion_timestamp is not None:
        return thing
    return msgspec.structs.replace(thing, deletion_timestamp=float(math.floor(now)))


def neglect(settings: TerminationSettings, node: Node, *, keeps: bool = False) -> PlanWarning | None:
    """Why nobody would drain a node that is deleted, or that is to be kept drained; None if somebody does."""
    if not settings.node_selector.matches(node.labels):
        message = "gracectl does not manage this node (nodeSelector does not match it): nobody drains it"
        return PlanWarning(WarningKind.NOT_MANAGED, message)
    if names.FINALIZER in node.finalizers:
        return None
    if node.deletion_timestamp is not None:
        message = (
            f"this node is being deleted without the finalizer {names.FINALIZER}: nobody drains it, and nobody can "
            "put the finalizer on it any more"
        )
    elif keeps:
        message = (
            f"the finalizer {names.FINALIZER} is not on this node, as it is on those that gracectl manages: nobody "
            "would drain it; is `gracectl controller` running, and does its nodeSelector match the node?"
        )
    else:
        message = (
            f"the finalizer {names.FINALIZER} is not on this node: deleted now, it would be gone at once, and "
            "nobody would drain it; is `gracectl controller` running, and does its nodeSelector match the node?"
        )
    return PlanWarning(WarningKind.FINALIZER_MISSING, message)


def _forbidden(
    node: Node, is_ending: bool, budgets: Collection[NodeDisruptionBudget], now: float
) -> Iterator[PlanWarning]:
    """Which budgets for nodes would not let it be deleted now. What is foretold of is deleted already."""
    alive = msgspec.structs.replace(node, deletion_timestamp=None)
    for budget in budgets:
        if selects_node(budget, node) and not is_ending:
            verdict = disruption_verdict(budget, alive, now)
            if verdict.allowance not in {Allowance.UNCHARGED, Allowance.ALLOWED}:
                message = f"its deletion would be refused: {verdict.reason}; {remedy_of(budget, verdict.allowance)}"
                yield PlanWarning(WarningKind.NODE_BUDGET_BLOCKS, harmless(message, LONGEST), (budget.name,))


def obstacles_of(
    observed: ClusterCache, settings: TerminationSettings, node: Node, *, keeps: bool = False
) -> Iterator[PlanWarning]:
    """What of the node itself keeps it from ending, or from being drained, as it should."""
    if caution := neglect(settings, node, keeps=keeps):
        yield caution
    yield from shutdown_warnings(node)
    if keeps and node.deletion_timestamp is None:
        return  # neither claim nor deadline is of any account
    claims = observed.claims_of(node)
    if len(claims) > 1:
        listed = ", ".join(sorted(claim.name for claim in claims))
        message = f"several node claims have this node ({listed}): none is used; delete all but one"
        yield PlanWarning(WarningKind.SEVERAL_CLAIMS, message)
    holders: list[Node | NodeClaim] = [node, *claims]
    for holder in holders:
        text = invalid_deadline(holder)
        if text is not None:
            message = (
                f'annotation {names.TERMINATION_TIMESTAMP} of {holder.name} is "{harmless(text)}", which is no instant '
                "such as 2026-01-01T00:00:00Z, and does not count"
            )
            yield PlanWarning(WarningKind.INVALID_DEADLINE, message)
