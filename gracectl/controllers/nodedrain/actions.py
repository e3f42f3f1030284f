"""Writes of a campaign to its nodes: begin, delete, return, or stop the drain. Each is safe to repeat.

Invariants: a node is begun, returned and stopped in one write, computed from the state that it changes; a DELETE
carries the UID.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gracectl.controllers.nodedrain.campaign import KEPT, Campaign
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.maintenance import REQUEST, request_patch, withdrawal_patch
from gracectl.kube.patching import delete, patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.claim import only_claim
from gracectl.model.node import Node
from gracectl.model.nodedrain import Action
from gracectl.nodebudgets.admitter import Admitter
from gracectl.policy.cordon import Mark, recorded
from gracectl.policy.disruption import Hold, hold_of_node_budget
from gracectl.policy.freeze import hold_of_budget_windows
from gracectl.policy.maintenance import is_maintenance_requested, recorded_marks
from gracectl.policy.nodebudgets import explain, is_admitted, is_available, selects_node


class NodeActions:
    """Writer of the nodes of campaigns. Methods raise ApiError."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    async def begin(self, campaign: Campaign, reference: str, node: Node) -> None:
        """Request the drain of the node, or delete the claim of another owner, who drains it."""
        if self._context.cluster.owner_of(node) is not None:
            claim = only_claim(self._context.cluster.claims_of(node))
            assert claim is not None
            await delete(self._context.client, self._context.claim_resource(), claim)
            campaign.sent.add(reference)
            return
        await self._write(campaign, node, lambda each: begin_patch(campaign, each, self._context.clock.now()))

    async def delete(self, campaign: Campaign, reference: str, node: Node) -> None:
        """Delete the drained node, unless a node disruption budget refuses that."""
        refusal = await self._context.admitter.admit(node, is_watching=True)
        campaign.refusals.pop(reference, None)
        if refusal is not None:
            campaign.refusals[reference] = f"drained, and waits to be deleted: {refusal}"
            return
        await delete(self._context.client, NODES, node)
        campaign.sent.add(reference)

    async def give_back(self, campaign: Campaign, reference: str, node: Node) -> None:
        """Withdraw the request, so that the node takes pods again."""
        await self._write(campaign, node, lambda each: return_patch(campaign, each))

    async def stop(self, campaign: Campaign, reference: str, node: Node) -> None:
        """Withdraw the request, and leave the node unschedulable."""
        await self._write(campaign, node, lambda each: stop_patch(campaign, each))

    async def _write(self, campaign: Campaign, node: Node, needed: Callable[[Node], MergePatch | None]) -> None:
        after = await patch_with_retry(self._context.client, NODES, node, needed)
        if after is not None:
            campaign.written_nodes[after.name] = after


def begin_patch(campaign: Campaign, node: Node, now: float) -> MergePatch | None:
    """Patch that requests the drain in the name of this campaign; None if the node is being deleted. A node of which
    the drain was requested by another is marked, so that it is not returned."""
    drain = campaign.drain
    if node.deletion_timestamp is not None:
        return None
    was_kept = is_maintenance_requested(node) and not campaign.drives(node)
    patch = request_patch(node, now, drain.timeout if drain.action is Action.TERMINATE else None)
    body: dict[str, Any] = {} if patch is None else dict(patch.body)
    annotations = body.get("metadata", {}).get("annotations", {})
    mark = drain.reference + (KEPT if was_kept else "")
    return MergePatch({**body, "metadata": {"annotations": {**annotations, names.NODE_DRAIN: mark}}})


def return_patch(campaign: Campaign, node: Node) -> MergePatch | None:
    """Patch that returns the node to where it was; None if another campaign drives it, or it is being deleted."""
    if not campaign.drives(node) or node.deletion_timestamp is not None:
        return None
    if node.annotations[names.NODE_DRAIN].endswith(KEPT):
        return MergePatch({"metadata": {"annotations": {names.NODE_DRAIN: None}}})
    return withdrawal_patch(node)


def stop_patch(campaign: Campaign, node: Node) -> MergePatch | None:
    """Patch that ends the drain of the node, and leaves it unschedulable."""
    if not campaign.drives(node) or node.annotations[names.NODE_DRAIN].endswith(KEPT):
        return return_patch(campaign, node)
    annotations: dict[str, str | None] = {each: None for each in REQUEST if each in node.annotations}
    if names.CORDONED in node.annotations:
        annotations[names.CORDONED] = recorded(recorded_marks(node) - {Mark.UNSCHEDULABLE})
    return MergePatch({"metadata": {"annotations": annotations}})


def hold_of_node_budgets(admitter: Admitter, node: Node, draining: list[Node], now: float) -> Hold | None:
    """Hold by a budget that would not let the node be deleted now, or is outside of its windows. `draining`: nodes that
    campaigns drain in order to delete them, and that the budgets do not count yet."""
    if (closed := hold_of_budget_windows(admitter.store.budgets(), (node,), now)) is not None:
        return closed[1]
    if not is_available(node):
        return None
    for budget in sorted(admitter.store.budgets(), key=lambda each: each.name):
        if not selects_node(budget, node) or is_admitted(budget, node, now):
            continue
        drained = [each for each in draining if selects_node(budget, each) and is_available(each)]
        uncounted = sum(not is_admitted(budget, each, now) for each in drained)
        if admitter.members.count_nodes(budget, now).allowed - uncounted <= 0:
            also = f", and campaigns drain {uncounted} of its nodes" if uncounted else ""
            return hold_of_node_budget(f"{explain(budget)}{also}")
    return None
