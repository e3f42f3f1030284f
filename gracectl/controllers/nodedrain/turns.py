"""Who may begin: what holds a campaign or a node, the forecasts that order nodes, and the slots of the pace.

Invariants: a node that begins to be terminated has a slot of the pace, until its deletion is shown; a node that is set
aside as undrainable was forecast in its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import anyio.lowlevel

from gracectl.controllers.disruption.candidate import CandidateKey
from gracectl.controllers.disruption.pace import Pace
from gracectl.controllers.drains import ForecastNode
from gracectl.controllers.nodedrain.actions import hold_of_node_budgets
from gracectl.controllers.nodedrain.campaign import Campaign, Views
from gracectl.controllers.termination.context import StepContext
from gracectl.model.node import Node
from gracectl.model.nodedrain import Action, NodeDrain, NodeState, OnUndrainable, Order
from gracectl.policy.answers import Never
from gracectl.policy.confirmation import AGREE_SECONDS
from gracectl.policy.disruption import Hold, HoldReason, hold_of_pace
from gracectl.policy.freeze import hold_to_begin
from gracectl.policy.nodedrain import UNFINISHED, CampaignDecision, Forecasted
from gracectl.policy.pace import DisruptionRank
from gracectl.policy.pace import is_blocked as is_drain_blocked
from gracectl.policy.voluntary import Cause

REFRESH_SECONDS: Final = 1.0
"""Minimum time between two forecasts of a node, and between two counts of its pods."""


def slot_of(name: str) -> CandidateKey:
    """Key in the pace of a node that a campaign terminates."""
    return CandidateKey("campaign", name)


class Turns:
    """Chooses the nodes that begin, and keeps their slots."""

    def __init__(
        self, context: StepContext, pace: Pace, views: Views, campaigns: Mapping[str, Campaign], forecast: ForecastNode
    ) -> None:
        self._context = context
        self._cluster = context.cluster
        self._pace = pace
        self._views = views
        self._campaigns = campaigns
        self._forecast = forecast
        self.holds: dict[str, Hold] = {}
        """By UID of a campaign, what has kept a node from beginning in its last look."""

    def hold(self, drain: NodeDrain, now: float) -> Hold | None:
        """What keeps every node from beginning."""
        if drain.deletion_timestamp is not None:
            return None
        if drain.paused:
            patch = '{"spec":{"paused":false}}'
            text = f"paused; to resume it: kubectl patch nodedrain {drain.name} --type merge -p '{patch}'"
            return Hold(HoldReason.PAUSED, text)
        return hold_to_begin(self._cluster.freeze(now), drain.windows, "spec.windows", now)

    async def choose(self, campaign: Campaign, decision: CampaignDecision) -> tuple[list[str], bool]:
        """The candidates that begin now; and whether to decide again first, as one has turned out undrainable."""
        self.holds.pop(campaign.uid, None)
        chosen: list[str] = []
        asked = looked_at = 0
        for place, reference in enumerate(decision.candidates):
            if asked >= decision.free:
                break
            looked_at += 1
            node = self._views.node(campaign, reference)
            if node is None:
                return [], True
            if campaign.drain.on_undrainable is not OnUndrainable.WAIT and not self._is_fresh(campaign, reference):
                found = await self._forecast_node(campaign, reference)
                if found is not None and isinstance(found.answer, Never):
                    return [], True
            is_terminate = campaign.drain.action is Action.TERMINATE
            if is_terminate and (hold := self._hold_of_node(campaign, node, place, chosen)):
                if hold.reason is not HoldReason.PACE or self._pace.is_denied(slot_of(node.name)):
                    self.holds[campaign.uid] = self.holds.get(campaign.uid, hold).or_earlier(hold)
                asked += hold.reason is HoldReason.PACE
                continue
            self._views.begin_handover(campaign, reference, node)
            chosen.append(reference)
            asked += 1
        # Others precede the rest by now: a slot that the rest gets would stay unused.
        self.keep_slots(campaign, decision.candidates[:looked_at])
        return chosen, False

    def _is_fresh(self, campaign: Campaign, reference: str) -> bool:
        known = campaign.forecasts.get(reference)
        return known is not None and self._context.clock.now() - known.at < REFRESH_SECONDS

    def _hold_of_node(self, campaign: Campaign, node: Node, place: int, chosen: Iterable[str]) -> Hold | None:
        """What keeps this node from beginning to be terminated: its node disruption budgets, or the pace. `chosen`:
        nodes that begin now."""
        now, key = self._context.clock.now(), slot_of(node.name)
        draining = [*self._begun_nodes(), *(self._views.node(campaign, each) for each in chosen)]
        begun = [each for each in draining if each is not None]
        if (hold := hold_of_node_budgets(self._context.admitter, node, begun, now)) is not None:
            self._give_up(campaign, key)
            return hold
        campaign.asked.add(key)
        started = campaign.drain.start_time or now
        rank = DisruptionRank(False, len(Cause), started, float(place), node.name)
        if self._pace.has_slot(key, rank):
            return None
        return hold_of_pace(str(self._pace), self._context.settings.policy)

    def _begun_nodes(self) -> list[Node]:
        """Nodes that campaigns drain in order to delete them."""
        campaigns = [each for each in self._campaigns.values() if each.drain.action is Action.TERMINATE]
        return [node for each in campaigns for name in each.active if (node := self._cluster.node(name)) is not None]

    # -- slots of the pace ---------------------------------------------------------------------------------------------

    def take_slots(self, campaign: Campaign) -> None:
        """Take the slots of nodes that a process before has begun to terminate."""
        is_terminate = campaign.is_active and campaign.drain.action is Action.TERMINATE
        for reference in campaign.records if is_terminate else ():
            node = self._views.node(campaign, reference)
            if node is not None and campaign.drives(node) and node.deletion_timestamp is None:
                self._pace.hold(key := slot_of(node.name))
                campaign.asked.add(key)

    def keep_slots(self, campaign: Campaign, candidates: Iterable[str]) -> None:
        """Release the slots of nodes that neither are in progress, nor wait; `candidates`: by reference."""
        going = {name for name in campaign.active if not self._is_shown_ending(name)}
        names = going | {each.partition("/")[0] for each in candidates}
        self.release(campaign, map(slot_of, names))

    def _is_shown_ending(self, name: str) -> bool:
        node = self._cluster.node(name)
        return node is None or (node.deletion_timestamp is not None and self._context.manages(node))

    def release(self, campaign: Campaign, wanted: Iterable[CandidateKey] = ()) -> None:
        """Release all slots except these."""
        for key in campaign.asked - {*wanted}:
            self._give_up(campaign, key)

    def _give_up(self, campaign: Campaign, key: CandidateKey) -> None:
        self._pace.forget(key)
        campaign.asked.discard(key)

    # -- forecasts -----------------------------------------------------------------------------------------------------

    async def refresh_forecasts(self, campaign: Campaign) -> None:
        """Forecast pending nodes once, for their order, and again in their turn; blocked ones while they are."""
        drain = campaign.drain
        is_ordered = drain.order is Order.BY_FORECAST or drain.on_undrainable is not OnUndrainable.WAIT
        for reference, record in campaign.records.items():
            if record not in UNFINISHED or (node := self._views.node(campaign, reference)) is None:
                continue
            known, is_ours = campaign.forecasts.get(reference), campaign.drives(node)
            is_stale = not self._is_fresh(campaign, reference)
            if is_ours and is_stale and self._views.is_blocked(node):
                await self._forecast_node(campaign, reference)
            elif not is_ours and is_ordered and is_stale and (known is None or isinstance(known.answer, Never)):
                await self._forecast_node(campaign, reference)
                await anyio.lowlevel.checkpoint()

    async def _forecast_node(self, campaign: Campaign, reference: str) -> Forecasted | None:
        seconds = campaign.drain.timeout if campaign.drain.action is Action.TERMINATE else None
        found = await self._forecast(reference.partition("/")[0], seconds)
        if found is not None:
            campaign.forecasts[reference] = found
        return found

    def confirmations(self, campaign: Campaign, decision: CampaignDecision) -> list[float]:
        """Seconds until a second forecast of a blocked node may confirm that it never ends."""
        now = self._context.clock.now()
        found: list[float] = []
        for each in decision.nodes:
            forecast = each.node.forecast
            if each.state is not NodeState.DRAINING or forecast is None or each.node.is_undrainable:
                continue
            if each.node.plan is not None and is_drain_blocked(each.node.plan):
                instants = (forecast.at + REFRESH_SECONDS, forecast.at + AGREE_SECONDS)
                found += [at - now for at in instants if at > now]
        return found
