"""State of a campaign in memory, and the view of its nodes that decisions take.

Invariants: nothing here must survive a restart, as the record (`status.scope`) and the annotations of nodes have what
matters; our own writes count until the watch has caught up with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.disruption.candidate import CandidateKey
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.maintenance import MaintenanceState
from gracectl.controllers.termination.registry import Registry
from gracectl.controllers.termination.state import NodeState as TerminationState
from gracectl.kube.cache import version_of
from gracectl.model import names
from gracectl.model.claim import only_claim
from gracectl.model.node import Node
from gracectl.model.nodedrain import Action, NodeDrain, NodeState
from gracectl.policy.budgets import BudgetKey
from gracectl.policy.finalizers import has_finalizer
from gracectl.policy.maintenance import is_maintenance_requested, maintenance_since
from gracectl.policy.nodedrain import (
    PATIENCE_SECONDS,
    UNFINISHED,
    CampaignNode,
    Forecasted,
    Record,
    beats,
    is_whole,
    records_of,
)
from gracectl.policy.pace import DisruptionSlot, is_blocked, is_replaced
from gracectl.policy.remedies import remedy
from gracectl.policy.returning import recreating_controller
from gracectl.policy.settings import VoluntarySettings
from gracectl.policy.warnings import WarningKind
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.ratelimit import TokenBucket

KEPT: Final = "/kept"
"""Suffix of the annotation of a node that was drained by hand before: it is not returned."""

TAKEOVER_SECONDS: Final = 30.0
"""How long a new leader waits for replacements of pods of nodes that were gone before it led."""

_UNREPLACED: Final = VoluntarySettings(wait_for_replacement=False)
_REPLACED: Final = VoluntarySettings(pending_patience=f"{PATIENCE_SECONDS:.0f}s")


class Handover(msgspec.Struct):
    """What is awaited of a node after its drain: replacements of its pods, and their budgets.

    `budgets`: disruptions that each allowed before; None: unknown, after a restart. `has_settled`: it stays settled
    while the drain of the next node disturbs the same pods and budgets.
    """

    slot: DisruptionSlot
    budgets: dict[BudgetKey, int | None]
    has_settled: bool = False

    def awaited(self, cluster: ClusterCache, now: float, settings: VoluntarySettings) -> tuple[str, ...]:
        """What the next node waits for, in words; empty: it may begin."""
        found = () if self.has_settled else tuple(self._awaited(cluster, now, settings))
        self.has_settled = not found
        return found

    def _awaited(self, cluster: ClusterCache, now: float, settings: VoluntarySettings) -> Iterator[str]:
        slot = self.slot
        if slot.released_at is None:
            yield "its drain"
            return
        if not settings.wait_for_replacement or now >= slot.released_at + settings.patience_seconds:
            return
        starting = [pod for controller in slot.controllers for pod in cluster.starting_of(controller)]
        if slot.is_taken(is_replaced(starting, slot.since), now, settings):
            late = sorted(pod.full_name for pod in starting if not is_replaced((pod,), slot.since))
            yield from [f"{name} to become Ready" for name in late] or ["replacements of its pods"]
        for key, allowed in self.budgets.items():
            budget = cluster.budgets.get(*key)
            if budget is not None and not is_whole(budget, allowed):
                yield f"budget {budget.full_name} ({budget.current_healthy} of {budget.expected_pods} healthy)"


class Failure(msgspec.Struct):
    """Writes that fail: why, and when (monotonic) the next one is tried."""

    backoff: Backoff
    text: str = ""
    next_try: float = 0.0


class Campaign:
    """State of one campaign, identified by its UID."""

    def __init__(self, drain: NodeDrain, clock: Clock) -> None:
        self.uid = drain.uid
        self.drain = drain
        self.records: dict[str, Record] = {}
        self.retried: frozenset[str] = frozenset()
        self.names: frozenset[str] = frozenset()
        """Names of all nodes in scope."""
        self.active: frozenset[str] = frozenset()
        """Names of nodes in progress."""
        self.awaited: frozenset[str] = frozenset()
        """UIDs of controllers with pods that are awaited elsewhere."""
        self.budgets: frozenset[BudgetKey] = frozenset()
        """Budgets that must be whole again."""
        self.forecasts: dict[str, Forecasted] = {}
        self.handovers: dict[str, Handover] = {}
        self.written_nodes: dict[str, Node] = {}
        """Responses to our writes that the watch does not show yet, by name."""
        self.gated: dict[str, float] = {}
        """Since when gates hold a node (Unix seconds)."""
        self.sent: set[str] = set()
        """Nodes of which the server has accepted the DELETE, or that of their claim."""
        self.failures: dict[str, Failure] = {}
        self.refusals: dict[str, str] = {}
        """Why the deletion of a drained node is refused by a node disruption budget."""
        self.asked: set[CandidateKey] = set()
        """Keys that have a slot of the pace, or wait for one."""
        self.shown = {f"{each.name}/{each.uid}": (each.state, each.since or 0.0, each.message) for each in drain.nodes}
        """State, since when, and message of each node."""
        self.durations: list[float] = []
        """Seconds from the begin to the end of each node that this process has seen finish."""
        self.writes = TokenBucket(clock, 1.0, 1)
        self.take(drain)

    def take(self, drain: NodeDrain) -> None:
        """Take over a state of the object unless it is older than the known one."""
        if version_of(drain) < version_of(self.drain):
            return
        if drain.scope is not self.drain.scope or not self.records:
            self.records = records_of(drain.scope)
            self.retried = frozenset(drain.scope.retried)
            self.names = frozenset(ref.partition("/")[0] for ref in self.records)
        self.drain = drain

    @property
    def is_active(self) -> bool:
        """Whether any node is not finished."""
        return self.drain.start_time is not None and self.drain.completion_time is None

    @property
    def settings(self) -> VoluntarySettings:
        """How a hand-over settles."""
        return _REPLACED if self.drain.wait_for_replacement else _UNREPLACED

    def drives(self, node: Node) -> bool:
        """Whether the node has the annotation of this campaign."""
        return node.annotations.get(names.NODE_DRAIN, "").removesuffix(KEPT) == self.drain.reference

    def state_of(self, reference: str) -> NodeState:
        """Where a node is, as its status shows it."""
        return self.shown[reference][0] if reference in self.shown else NodeState.PENDING

    def has_unfinished(self, reference: str) -> bool:
        """Whether this node is in scope, and not finished."""
        return self.is_active and self.records.get(reference) in UNFINISHED


class Views:
    """Views of the nodes of campaigns."""

    def __init__(
        self,
        context: StepContext,
        registry: Registry[TerminationState],
        campaigns: Mapping[str, Campaign],
    ) -> None:
        self._context = context
        self._cluster = context.cluster
        self._registry = registry
        self._campaigns = campaigns

    def node(self, campaign: Campaign, reference: str) -> Node | None:
        """The node with this name and UID; our own writes count."""
        name, _, uid = reference.partition("/")
        node, written = self._cluster.node(name), campaign.written_nodes.get(name)
        if node is None or node.uid != uid:
            campaign.written_nodes.pop(name, None)
            return None
        if written is not None and written.uid == uid and version_of(written) > version_of(node):
            return written
        campaign.written_nodes.pop(name, None)
        return node

    def of(self, campaign: Campaign) -> list[CampaignNode]:
        """All nodes in scope."""
        return [self._view(campaign, reference, record) for reference, record in campaign.records.items()]

    def _view(self, campaign: Campaign, reference: str, record: Record) -> CampaignNode:
        drain, node = campaign.drain, self.node(campaign, reference)
        is_ours = node is not None and campaign.drives(node)
        message = campaign.shown[reference][2] if reference in campaign.shown else ""
        awaited: tuple[str, ...] = ()
        if node is None:
            campaign.sent.discard(reference)
            if record is Record.IN_PROGRESS:
                awaited = self._awaited(campaign, reference, None)
            since = self._began(campaign, reference)
            return CampaignNode(reference, record, awaited=awaited, since=since, message=message)
        is_ending = node.deletion_timestamp is not None or reference in campaign.sent or self._has_ending_claim(node)
        if record not in UNFINISHED:
            return CampaignNode(
                reference,
                record,
                node,
                is_ours,
                is_ending,
                since=self._began(campaign, reference),
                was_retried=reference in campaign.retried,
                message=message,
            )
        state = self._registry.get(node.name)
        state = state if state is not None and state.uid == node.uid else None
        since = maintenance_since(node, self._context.clock.now()) if is_ours else 0.0
        is_drained = is_ours and self._is_drained(drain, node, state, since)
        if is_ours or is_ending:
            self._handover(campaign, reference, node).slot.controllers |= self._controllers(node)
            awaited = self._awaited(campaign, reference, node, is_drained=is_drained or is_ending)
        rival = self._rival(campaign, reference, node)
        obstacle, wait = ("", "") if is_ours or is_ending else self._obstacle(drain, node)
        failure, gates = campaign.failures.get(reference), self._gates(campaign, reference, node)
        if failure is not None and failure.next_try > self._context.clock.monotonic():
            wait = failure.text
        return CampaignNode(
            reference=reference,
            record=record,
            node=node,
            is_ours=is_ours,
            is_ending=is_ending,
            is_drained=is_drained,
            awaited=awaited,
            since=since or self._began(campaign, reference),
            forecast=campaign.forecasts.get(reference),
            plan=None if state is None else state.drain.plan,
            obstacle=obstacle,
            wait=wait or campaign.refusals.get(reference, ""),
            rival="" if rival is None else rival.drain.name,
            rival_state=NodeState.PENDING if rival is None else rival.state_of(reference),
            gates=gates,
            gated_since=campaign.gated.get(reference),
            was_retried=reference in campaign.retried,
        )

    def is_blocked(self, node: Node) -> bool:
        """Whether a pod of the node in progress is blocked for as long as its owner likes."""
        state = self._registry.get(node.name)
        plan = None if state is None else state.drain.plan
        return plan is not None and is_blocked(plan)

    # -- how far a node is ---------------------------------------------------------------------------------------------

    def _is_drained(self, drain: NodeDrain, node: Node, state: TerminationState | None, since: float) -> bool:
        """Whether no pod must leave any longer. A node that is deleted next need not wait for stuck pods, nor beyond
        its deadline."""
        is_terminate = drain.action is Action.TERMINATE
        if is_terminate and drain.timeout is not None and self._context.clock.now() >= since + drain.timeout:
            return True
        if not isinstance(state, MaintenanceState) or not is_maintenance_requested(node):
            return False
        plan = state.drain.plan
        return state.is_resting or (is_terminate and plan is not None and plan.is_stuck)

    def _has_ending_claim(self, node: Node) -> bool:
        return any(claim.deletion_timestamp is not None for claim in self._cluster.claims_of(node))

    def _began(self, campaign: Campaign, reference: str) -> float:
        handover = campaign.handovers.get(reference)
        return 0.0 if handover is None else handover.slot.since

    def _controllers(self, node: Node) -> set[str]:
        owners = (recreating_controller(pod) for pod in self._cluster.pods_on(node.name))
        return {owner.uid for owner in owners if owner is not None}

    def _handover(self, campaign: Campaign, reference: str, node: Node | None) -> Handover:
        """The hand-over of a node in progress; found out after a restart from what is starting since it began."""
        if (known := campaign.handovers.get(reference)) is not None:
            return known
        now = self._context.clock.now()
        since, released = now - PATIENCE_SECONDS, None if node else now - PATIENCE_SECONDS + TAKEOVER_SECONDS
        if node is not None:
            since = maintenance_since(node, now) if campaign.drives(node) else node.deletion_timestamp or now
        starting = (pod for pod in self._cluster.starting() if not is_replaced((pod,), since))
        controllers = {owner.uid for pod in starting if (owner := recreating_controller(pod))}
        budgets: dict[BudgetKey, int | None] = dict.fromkeys(self._budgets_on(node)) if node else {}
        found = campaign.handovers[reference] = Handover(DisruptionSlot(since, controllers, released), budgets)
        return found

    def begin_handover(self, campaign: Campaign, reference: str, node: Node) -> None:
        """Remember what is on a node that begins now."""
        budgets: dict[BudgetKey, int | None] = dict(self._budgets_on(node))
        slot = DisruptionSlot(self._context.clock.now(), self._controllers(node))
        campaign.handovers[reference] = Handover(slot, budgets)

    def _budgets_on(self, node: Node) -> dict[BudgetKey, int]:
        found = self._cluster.budgets_by_pod(self._cluster.pods_on(node.name))
        return {budget.key: budget.disruptions_allowed for budgets in found.values() for budget in budgets}

    def _awaited(
        self, campaign: Campaign, reference: str, node: Node | None, *, is_drained: bool = True
    ) -> tuple[str, ...]:
        handover, now = self._handover(campaign, reference, node), self._context.clock.now()
        if is_drained and handover.slot.released_at is None:
            handover.slot.released_at = now
        return handover.awaited(self._cluster, now, campaign.settings) if is_drained else ("its drain",)

    def settles_at(self, campaign: Campaign) -> Iterator[float]:
        """Instants at which the clock alone may settle a hand-over."""
        now = self._context.clock.now()
        for handover in campaign.handovers.values():
            if (at := handover.slot.next_change(now, campaign.settings)) is not None:
                yield at

    # -- what keeps it from beginning ----------------------------------------------------------------------------------

    def _obstacle(self, drain: NodeDrain, node: Node) -> tuple[str, str]:
        """Why it can never begin, and why not yet."""
        owner = self._cluster.owner_of(node)
        if owner is not None:
            if drain.action is Action.DRAIN:
                return f"{owner}, so gracectl does not; use the action Terminate, or kubectl drain", ""
            if only_claim(self._cluster.claims_of(node)) is None:
                return f"{owner}, and it has no NodeClaim that could be deleted, or several", ""
            return "", ""
        if not self._context.manages(node):
            helps = remedy(WarningKind.NOT_MANAGED, node=node.name)
            return f"not managed: no nodeSelector match; {helps}", ""
        if drain.action is Action.TERMINATE and not has_finalizer(node):
            return "", "waits for the finalizer of gracectl, which the controller adds"
        return "", ""

    def _gates(self, campaign: Campaign, reference: str, node: Node) -> tuple[str, ...]:
        gates = tuple(sorted({*campaign.drain.gates, *node.gates}))
        if not gates:
            campaign.gated.pop(reference, None)
        elif reference not in campaign.gated:
            state, since, _ = campaign.shown.get(reference, (None, 0.0, ""))
            campaign.gated[reference] = since if state is NodeState.GATED else self._context.clock.now()
        return gates

    def _rival(self, campaign: Campaign, reference: str, node: Node) -> Campaign | None:
        """The campaign that drives the node instead of this one."""
        others = [each for each in self._campaigns.values() if each is not campaign and each.has_unfinished(reference)]
        driver = next((each for each in others if each.drives(node)), None)
        if driver is not None:
            takes_over = (campaign.drain.action, driver.drain.action) == (Action.TERMINATE, Action.DRAIN)
            return None if takes_over else driver
        if campaign.drives(node):
            return None
        return next((each for each in others if beats(each.drain, campaign.drain)), None)


def note_awaited(campaign: Campaign, in_progress: Iterable[str]) -> None:
    """Note what may change the campaign: its nodes in progress, the controllers and the budgets of their pods."""
    campaign.active = frozenset(ref.partition("/")[0] for ref in in_progress)
    handovers = [campaign.handovers[ref] for ref in in_progress if ref in campaign.handovers]
    campaign.awaited = frozenset(uid for each in handovers for uid in each.slot.controllers)
    campaign.budgets = frozenset(key for each in handovers for key in each.budgets)
