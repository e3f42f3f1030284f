"""Campaign controller: drains or terminates the nodes of a NodeDrain, a few at a time, and keeps its record.

It only requests; the node controller drains. A key is the name of a NodeDrain. Invariants: the nodes are fixed and
recorded before the first one begins; a node that begins to be terminated holds a slot of the pace until its deletion is
shown; at most one write of a status a second; a crash between any two writes loses nothing but a message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec

from gracectl.controllers.disruption.candidate import CandidateKey
from gracectl.controllers.disruption.pace import Pace
from gracectl.controllers.drains import ForecastNode
from gracectl.controllers.nodedrain.actions import NodeActions
from gracectl.controllers.nodedrain.campaign import Campaign, Failure, Views, note_awaited
from gracectl.controllers.nodedrain.status import conditions_of, is_change, refused_status, scope_of, status_of
from gracectl.controllers.nodedrain.turns import REFRESH_SECONDS, Turns
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.finalizer import added_finalizer_patch, finalizer_removal_patch
from gracectl.controllers.termination.registry import Registry
from gracectl.controllers.termination.state import NodeState as TerminationState
from gracectl.kube.cache import Cache
from gracectl.kube.errors import ApiError, NotFound, NotLeading
from gracectl.kube.events import EventType, Subject
from gracectl.kube.patching import delete
from gracectl.kube.requests import MergePatch, Patch
from gracectl.kube.resources import NODE_DRAINS
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import ConfigMap, natural_key
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.nodedrain import MOST_NODES, Action, NodeDrain, NodeState
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.disruption import Hold
from gracectl.policy.explain import listed
from gracectl.policy.nodedrain import (
    LONGEST_CANCEL_SECONDS,
    SET_ASIDE,
    UNFINISHED,
    CampaignDecision,
    NodeDecision,
    Record,
    decide,
)
from gracectl.policy.returning import recreating_controller
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.telemetry.spans import Trace

logger = logging.getLogger(__name__)

WORKERS: Final = 4

WRITES: Final = 10
"""Concurrent writes to nodes of one campaign."""

ROUNDS: Final = 4
"""Decisions in one look, each after the writes of the one before."""

LARGE: Final = 500
"""Nodes of a campaign up to which each event is looked at immediately."""

LOOKED_AT_PER_SECOND: Final = 2_500
"""Nodes of a larger campaign that are looked at in a second: a look takes about 50 µs of CPU for each."""

FIRST_RETRY, LAST_RETRY = 0.5, 60.0
"""Seconds before a failed write is tried again; doubled each time."""


class NodeDrainController:
    """Reconciles NodeDrains."""

    def __init__(
        self,
        context: StepContext,
        drains: Cache[NodeDrain],
        registry: Registry[TerminationState],
        pace: Pace,
        forecast: ForecastNode,
        backoff: Callable[[float, float], Backoff],
    ) -> None:
        self._context, self._cluster = context, context.cluster
        self._drains, self._registry, self._backoff = drains, registry, backoff
        self._campaigns: dict[str, Campaign] = {}
        self._views = Views(context, registry, self._campaigns)
        self._actions = NodeActions(context)
        self._decisions: dict[str, CampaignDecision] = {}
        self._written: dict[str, dict[str, Any]] = {}  # by UID: the last status
        self._turns = Turns(context, pace, self._views, self._campaigns, forecast)
        self._queue: WorkQueue[str] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        drains.subscribe(self._drain_changed, replay=True)
        self._cluster.nodes.subscribe(self._node_changed)
        self._cluster.pods.subscribe(self._pod_changed)
        self._cluster.claims.subscribe(self._claim_changed)
        self._cluster.budgets.subscribe(self._budget_changed)
        self._cluster.freezes.subscribe(self._freeze_changed)
        context.admitter.budgets.subscribe(self._node_budget_changed)
        context.clock.subscribe(self.look_at_all)

    async def run(self) -> None:
        """Run campaigns until cancelled."""
        await self._wait_live()
        await self._cluster.freezes.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    async def take_slots(self) -> None:
        """Take the slots of nodes that a process before has begun to terminate. To be called before others are
        granted."""
        await self._wait_live()
        for drain in self._drains.values():
            self._turns.take_slots(self._campaign(drain))

    async def _wait_live(self) -> None:
        await self._cluster.wait_live()
        await self._context.admitter.wait_live()
        await self._drains.wait_live()

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"nodedrains": self._queue.statistics()}

    def counts(self) -> dict[str, int]:
        """Nodes of unfinished campaigns, by their state."""
        found = dict.fromkeys((state.value for state in NodeState), 0)
        for decision in self._decisions.values():
            for each in decision.nodes:
                found[each.state.value] += 1
        return found

    # -- one look ------------------------------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> Requeue | None:
        """Bring the campaign as far as possible; safe to repeat. Raises ApiError."""
        drain = self._drains.get("", name)
        if drain is None:
            self._forget(name)
            return None
        campaign = self._campaign(drain)
        drain = campaign.drain
        if drain.deletion_timestamp is None and names.NODE_DRAIN not in drain.finalizers:
            await self._patch(campaign, added_finalizer_patch(drain, names.NODE_DRAIN))
        if drain.start_time is None and drain.deletion_timestamp is None:
            await self._fix_scope(campaign)
        if campaign.is_active:
            requeue = await self._advance(campaign)
        else:
            self._decisions.pop(name, None)
            self._turns.release(campaign)
            requeue = await self._return_late(campaign)
        drain = campaign.drain
        if drain.deletion_timestamp is not None:
            return await self._let_go(campaign) or requeue
        if drain.completion_time is not None and drain.ttl is not None:
            left = drain.completion_time + drain.ttl - self._context.clock.now()
            if left > 0:
                return Requeue(left)
            await delete(self._context.client, NODE_DRAINS, drain)
        return requeue

    async def _return_late(self, campaign: Campaign) -> Requeue | None:
        """Return nodes that a process with an older state of a finished campaign has begun."""
        if campaign.drain.completion_time is None:
            return None
        decision = decide(campaign.drain, self._views.of(campaign), None, self._context.clock.now())
        await self._act(campaign, decision)
        tries = [each.next_try - self._context.clock.monotonic() for each in campaign.failures.values()]
        return Requeue(max(min(tries), 0.001)) if tries else None

    async def _fix_scope(self, campaign: Campaign) -> None:
        """Fix the nodes, and record them, before any of them begins."""
        drain, now = campaign.drain, self._context.clock.now()
        records, refusal = self._scope(drain)
        if refusal:
            await self._patch(campaign, MergePatch({"status": refused_status(drain, refusal, now)}), "status")
            self._emit(drain, EventReason.NODE_DRAIN_FAILED, f"cannot begin: {refusal}", "Warning")
            return
        status = {"observedGeneration": drain.generation, "startTime": format_time(now), "scope": scope_of(records)}
        await self._patch(campaign, MergePatch({"status": status}), "status")
        missing = [reference for reference, record in records if record is Record.FAILED]
        campaign.shown |= dict.fromkeys(missing, (NodeState.FAILED, now, "does not exist"))
        by = f" for {drain.requested_by}" if drain.requested_by else ""
        why = f": {drain.reason}" if drain.reason else ""
        self._emit(drain, EventReason.NODE_DRAIN_STARTED, f"{drain.action}s {len(records)} nodes{by}{why}")

    def _scope(self, drain: NodeDrain) -> tuple[list[tuple[str, Record]], str]:
        """The nodes with their records; or why there are none."""
        if drain.node_names:
            found = [(name, self._cluster.node(name)) for name in dict.fromkeys(drain.node_names)]
            return [
                (f"{name}/{node.uid if node else ''}", Record.PENDING if node else Record.FAILED)
                for name, node in found
            ], ""
        if drain.selector_error or drain.selector is None:
            problem = drain.selector_error or "is missing"
            return [], f"spec.nodeSelector: {problem}; create a NodeDrain with another selector"
        nodes = [node for node in self._cluster.nodes.values() if drain.selector.matches(node.labels)]
        if len(nodes) > MOST_NODES:
            return [], f"selects {len(nodes):,} nodes, more than {MOST_NODES:,}; use several NodeDrains"
        nodes.sort(key=lambda node: natural_key(node.name))
        return [(f"{node.name}/{node.uid}", Record.PENDING) for node in nodes], ""

    async def _advance(self, campaign: Campaign) -> Requeue | None:
        """Decide, act, and write the status; returns when to look again."""
        for _ in range(ROUNDS):
            now = self._context.clock.now()
            hold = self._turns.hold(campaign.drain, now)
            await self._turns.refresh_forecasts(campaign)
            decision = decide(campaign.drain, self._views.of(campaign), hold, now)
            self._decisions[campaign.drain.name] = decision
            self._note(campaign, decision)
            if not await self._act(campaign, decision):
                break
        hold = hold or self._turns.holds.get(campaign.uid)
        wait = await self._write_status(campaign, decision, hold)
        instants = [decision.next_change, None if hold is None else hold.until, *self._views.settles_at(campaign)]
        seconds = [at - now for at in instants if at is not None and at > now]
        seconds += [each.next_try - self._context.clock.monotonic() for each in campaign.failures.values()]
        seconds += [] if wait is None else [wait]
        seconds += self._turns.confirmations(campaign, decision)
        return Requeue(max(min(seconds), 0.001)) if seconds else None

    def _note(self, campaign: Campaign, decision: CampaignDecision) -> None:
        """Note since when each node is in its state, and what the campaign waits for."""
        now = self._context.clock.now()
        for each in decision.nodes:
            reference = each.node.reference
            before = campaign.shown.get(reference)
            message = each.message or (
                before[2] if before and before[0] is each.state and each.record not in UNFINISHED else ""
            )
            if before is None or before[0] is not each.state:
                campaign.shown[reference] = (each.state, now, message)
                self._report_node(campaign, each, before is not None)
            elif before[2] != message:
                campaign.shown[reference] = (each.state, before[1], message)
            # Before its end is recorded, the node is in progress by the record, and still needs its hand-over.
            if each.node.record not in UNFINISHED and (handover := campaign.handovers.pop(reference, None)):
                campaign.durations.append(now - handover.slot.since)
        note_awaited(campaign, [each.node.reference for each in decision.nodes if each.record is Record.IN_PROGRESS])
        self._turns.keep_slots(campaign, decision.candidates)

    # -- acts ----------------------------------------------------------------------------------------------------------

    async def _act(self, campaign: Campaign, decision: CampaignDecision) -> bool:
        """Carry out a decision; returns whether to decide again."""
        begins, is_news = await self._turns.choose(campaign, decision)
        acts = [
            *((reference, self._actions.give_back) for reference in decision.returns),
            *((reference, self._actions.stop) for reference in decision.stops),
            *((reference, self._actions.delete) for reference in decision.deletions),
            *((reference, self._actions.begin) for reference in begins),
        ]
        done: list[bool] = []
        limiter = anyio.CapacityLimiter(WRITES)

        async def run(reference: str, act: Callable[[Campaign, str, Node], Awaitable[None]]) -> None:
            async with limiter:
                done.append(await self._attempt(campaign, reference, act))

        async with anyio.create_task_group() as group:
            for reference, act in acts:
                group.start_soon(run, reference, act)
        return is_news or any(done)

    async def _attempt(
        self, campaign: Campaign, reference: str, act: Callable[[Campaign, str, Node], Awaitable[None]]
    ) -> bool:
        """Whether the write was made. A failure is shown, and tried again."""
        node, clock = self._views.node(campaign, reference), self._context.clock
        failure = campaign.failures.get(reference)
        if node is None or (failure is not None and failure.next_try > clock.monotonic()):
            return False
        before = (node.resource_version, reference in campaign.sent)
        try:
            await act(campaign, reference, node)
        except NotLeading:
            raise
        except ApiError as error:
            logger.warning("node %s: %s; retrying with backoff", node.name, error, extra={"node": node.name})
            failure = campaign.failures.setdefault(reference, Failure(self._backoff(FIRST_RETRY, LAST_RETRY)))
            failure.text, failure.next_try = f"{error}; retrying", clock.monotonic() + failure.backoff.next()
            return False
        campaign.failures.pop(reference, None)
        after = self._views.node(campaign, reference)
        return after is None or before != (after.resource_version, reference in campaign.sent)

    # -- the object ----------------------------------------------------------------------------------------------------

    async def _write_status(self, campaign: Campaign, decision: CampaignDecision, hold: Hold | None) -> float | None:
        """Write the status if it has changed; returns the seconds after which it may be written."""
        now = self._context.clock.now()
        status = status_of(campaign, decision, hold, now, self._traces(decision))
        if not is_change(self._written.get(campaign.uid), status):
            return None
        if not campaign.writes.take():
            return campaign.writes.statistics().next_in
        await self._patch(campaign, MergePatch({"status": status}), "status")
        before = self._written.get(campaign.uid)
        self._written[campaign.uid] = {key: value for key, value in status.items() if key != "scope"}
        self._report(campaign, status, before)
        return 0.0 if self._needs_another_look(campaign, decision) else None

    def _needs_another_look(self, campaign: Campaign, decision: CampaignDecision) -> bool:
        """Whether the record that was just written permits something: a return, or a second try."""
        written = [each for each in decision.nodes if each.record is not each.node.record]
        return any(each.record not in UNFINISHED or each.node.reference in decision.retried for each in written)

    def _traces(self, decision: CampaignDecision) -> dict[str, str]:
        found = {}
        for each in decision.nodes:
            state = self._registry.get(each.node.name) if each.record is Record.IN_PROGRESS else None
            trace = None if state is None else Trace.read(state.observer.traceparent or "")
            if trace is not None:
                found[each.node.reference] = trace.hex
        return found

    async def _let_go(self, campaign: Campaign) -> Requeue | None:
        """Remove the finalizer of a deleted campaign when its nodes are returned, at most after a minute."""
        drain = campaign.drain
        assert drain.deletion_timestamp is not None
        if names.NODE_DRAIN not in drain.finalizers:
            return None
        decision = self._decisions.get(drain.name)
        left = drain.deletion_timestamp + LONGEST_CANCEL_SECONDS - self._context.clock.now()
        is_shown = (
            decision is None
            or not campaign.is_active
            or conditions_of(drain, decision, None)[0].is_shown_by(drain.conditions)
        )
        if campaign.is_active and left > 0 and not (decision and decision.is_finished and is_shown):
            return Requeue(min(left, 1.0))
        if decision is not None and campaign.is_active:
            going = [each.node.name for each in decision.nodes if each.state is NodeState.TERMINATING]
            held = [each.node.name for each in decision.nodes if each.node.reference in decision.returns]
            also = f"; still being terminated: {listed(going)}" if going else ""
            also += f"; not returned: {listed(held)}; run gracectl uncordon {' '.join(held)}" if held else ""
            counts = decision.counts()
            message = f"canceled: {counts.done} of {counts.total} nodes done, {counts.canceled} left or returned{also}"
            self._emit(drain, EventReason.NODE_DRAIN_CANCELED, message, "Warning" if held else "Normal")
        if (patch := finalizer_removal_patch(drain, (names.NODE_DRAIN,))) is not None:
            await self._patch(campaign, patch)
        self._decisions.pop(drain.name, None)
        return None

    async def _patch(self, campaign: Campaign, patch: Patch, subresource: str = "") -> None:
        drain = campaign.drain
        try:
            after = await self._context.client.patch(
                NODE_DRAINS,
                drain.key,
                patch,
                subresource=subresource,
                uid=drain.uid,
                resource_version=drain.resource_version,
            )
        except NotFound:
            return
        campaign.take(after)

    def _campaign(self, drain: NodeDrain) -> Campaign:
        campaign = self._campaigns.get(drain.name)
        if campaign is None or campaign.uid != drain.uid:
            self._forget(drain.name)
            campaign = self._campaigns[drain.name] = Campaign(drain, self._context.clock)
        campaign.take(drain)
        return campaign

    def _forget(self, name: str) -> None:
        self._decisions.pop(name, None)
        if (campaign := self._campaigns.pop(name, None)) is not None:
            self._turns.release(campaign)
            self._written.pop(campaign.uid, None)
            self._turns.holds.pop(campaign.uid, None)

    # -- Events --------------------------------------------------------------------------------------------------------

    def _emit(self, drain: NodeDrain, reason: EventReason, message: str, kind: EventType = "Normal") -> None:
        logger.info("NodeDrain %s: %s", drain.name, message, extra={"nodedrain": drain.name})
        self._context.recorder.record(Subject.of(NODE_DRAINS, drain), reason, message, kind, dedup_key=message)

    def _report_node(self, campaign: Campaign, each: NodeDecision, is_news: bool) -> None:
        reasons = {NodeState.SKIPPED: EventReason.NODE_SKIPPED, NodeState.FAILED: EventReason.NODE_FAILED}
        if (is_news or each.record is not each.node.record) and (reason := reasons.get(each.state)) is not None:
            self._emit(campaign.drain, reason, f"node {each.node.name}: {each.message}", "Warning")

    def _report(self, campaign: Campaign, status: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Emit an Event when the campaign is blocked, or finished, by the status that was written."""
        drain, shown, known = campaign.drain, _by_type(status), _by_type(before or {})
        blocked, failed = shown[names.BLOCKED], shown[names.FAILED]
        was_blocked = names.BLOCKED in known and known[names.BLOCKED]["status"] == names.TRUE
        if blocked["status"] == names.TRUE and not was_blocked:
            self._emit(drain, EventReason.NODE_DRAIN_BLOCKED, f"blocked: {blocked['message']}", "Warning")
        if drain.completion_time is not None:
            if failed["status"] == names.TRUE:
                self._emit(drain, EventReason.NODE_DRAIN_FAILED, f"failed: {failed['message']}", "Warning")
            else:
                self._emit(drain, EventReason.NODE_DRAIN_COMPLETED, shown[names.COMPLETE]["message"])

    # -- what wakes campaigns ------------------------------------------------------------------------------------------

    def look_at_all(self) -> None:
        """Look at every campaign again."""
        for drain in self._drains.values():
            campaign = self._campaigns.get(drain.name)
            if campaign is not None and campaign.is_active:
                self._wake(campaign)
            else:
                self._queue.add(drain.name)

    def granted(self, key: CandidateKey) -> None:
        """A node that waited has got a slot of the pace, or was denied one."""
        self.node_reconciled(key.name)

    def node_reconciled(self, name: str) -> None:
        """The node controller has reconciled this node."""
        for campaign in self._campaigns.values():
            if name in campaign.names and (campaign.is_active or self._has_late(campaign, name)):
                self._wake(campaign)

    def _has_late(self, campaign: Campaign, name: str) -> bool:
        """Whether a node that was set aside is begun."""
        node = self._cluster.node(name)
        if node is None or not campaign.drives(node):
            return False
        return campaign.records.get(f"{name}/{node.uid}") in SET_ASIDE

    def _wake(self, campaign: Campaign) -> None:
        """Look at a campaign now, or at a large one a little later: a look takes time for each of its nodes."""
        size = len(campaign.records)
        self._queue.add_after(campaign.drain.name, 0.0 if size <= LARGE else size / LOOKED_AT_PER_SECOND)

    def _drain_changed(self, old: NodeDrain | None, new: NodeDrain | None) -> None:
        self.look_at_all()
        if new is None and old is not None:
            self._queue.add(old.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None and (old is None or new is None or _relevant(old) != _relevant(new)):
            self.node_reconciled(node.name)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        for claim in filter(None, (old, new)):
            for node in self._cluster.nodes_of(claim):
                self.node_reconciled(node.name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        owner = recreating_controller(pod)
        for campaign in self._campaigns.values():
            if owner is not None and owner.uid in campaign.awaited:
                self._wake(campaign)
            elif pod.node_name in campaign.active:
                self._queue.add_after(campaign.drain.name, REFRESH_SECONDS)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        budget = new or old
        assert budget is not None
        for campaign in self._campaigns.values():
            if budget.key in campaign.budgets:
                self._wake(campaign)

    def _node_budget_changed(self, old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> None:
        for campaign in self._campaigns.values():
            if campaign.is_active and campaign.drain.action is Action.TERMINATE:
                self._wake(campaign)

    def _freeze_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        self.look_at_all()


def _by_type(status: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {each["type"]: each for each in status.get("conditions", ())}


def _relevant(node: Node) -> Node:
    return msgspec.structs.replace(node, resource_version="", conditions=())
