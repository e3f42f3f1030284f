"""Starts a termination that nobody has asked for: of a node that is unhealthy, labelled terminable, or whose claim has
expired (DESIGN 3.1 no 3 to 5).

It only sends the DELETE, as a person would; what follows is the business of the controllers of nodes and claims. A
key names what ends as one: a claim with its nodes, or a node without a claim. Invariants: a DELETE carries uid and
version of the object that was judged, so nothing is ended for what it is no longer; each is asked for once; none while
too many nodes are unhealthy, or while a pod or a budget for nodes keeps the node; whoever waits is woken by what it
waits for, a change or an exact instant, and by nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.disruption.candidate import BRAKE, PACE, CandidateKey, DisruptionCandidate
from gracectl.controllers.disruption.circuit_breaker import CircuitBreaker
from gracectl.controllers.disruption.deletion import (
    Standing,
    end,
    give_back,
    is_agreed,
    is_pulled,
    report_elapsed,
    tell,
)
from gracectl.controllers.disruption.pace import Pace, PaceStatistics
from gracectl.controllers.disruption.pending_nodes import PendingNodes
from gracectl.controllers.disruption.wait_index import WaitIndex
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.errors import ApiError, RequestTimeout, ServerError, Unreachable
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim, only_claim
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.nodebudget import NodeDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.budgets import allows_unready
from gracectl.policy.deadlines import grace_period_of
from gracectl.policy.nodebudgets import may_unblock
from gracectl.policy.pace import DisruptionRank, rank_of
from gracectl.policy.pending import PendingReason, PendingTermination, pending_since
from gracectl.policy.settings import PolicySettings
from gracectl.policy.voluntary import (
    Cause,
    Trigger,
    VoluntaryBlocker,
    elapses_at,
    expires_at,
    explain_blockers,
    triggers_of,
    voluntary_blockers,
)
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers

WORKERS = 10

GIVEN_BACK_SECONDS = 5.0
"""When a deadline was given back, the watch wakes us; if it does not, the unit is looked at again after this long."""

FIRST_RETRY, LAST_RETRY = 0.5, 60.0
"""Seconds before a unit is tried again whose deletion was refused or could not be asked for; doubled each time."""


class DisruptionController:
    """Reconciles units; owns what is remembered of each."""

    def __init__(self, context: StepContext, backoff: Callable[[float, float], Backoff], marks: PendingNodes) -> None:
        self._context = context
        self._cluster = context.cluster
        self._backoff = backoff
        self._queue: WorkQueue[CandidateKey] = WorkQueue(context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._brake = CircuitBreaker(context.settings.node_selector, self._policy.health)
        self._braked: set[CandidateKey] = set()
        self._waiting = WaitIndex()
        self._pace = Pace(context, lambda: self._queue.add(PACE))
        self._marks = marks
        self._pending: dict[CandidateKey, PendingTermination] = {}
        self._noted: set[CandidateKey] = set()  # whether it waits was said by the last decision, or is left as it was
        self._standings: dict[CandidateKey, Standing] = {}
        self._unreadable: dict[
            CandidateKey, tuple[str, str | None]
        ] = {}  # uid and expireAfter that people were told of
        self._cluster.nodes.subscribe(self._node_changed, replay=True)
        self._cluster.claims.subscribe(self._claim_changed, replay=True)
        self._cluster.pods.subscribe(self._pod_changed)
        self._cluster.budgets.subscribe(self._budget_changed)
        context.admitter.budgets.subscribe(self._node_budget_changed)
        context.clock.subscribe(self._clock_jumped)

    async def run(self) -> None:
        """Start terminations until cancelled. Nothing is decided before all caches are live."""
        await self._cluster.wait_live()
        await self._context.admitter.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    def held_by_node_budgets(self) -> int:
        """How many units wait until a budget for nodes allows their end."""
        return self._waiting.for_node_budgets()

    def statistics_of_pace(self) -> PaceStatistics:
        """Who waits, and how many places there are."""
        return PaceStatistics(
            pending=Counter(each.reason for each in self._pending.values()),
            pending_since=min((each.since for each in self._pending.values()), default=None),
            places=self._pace.statistics(),
            maximum=self._pace.maximum,
        )

    async def reconcile(self, key: CandidateKey) -> Requeue | None:
        """Find out whether the unit is to end, and if so, delete it; safe to repeat."""
        if key == BRAKE:
            return self._look_at_brake()
        if key == PACE:
            return await self._look_at_pace()
        self._waiting.drop(key)
        self._braked.discard(key)
        unit = self._unit(key)
        if unit is None:
            self._standings.pop(key, None)
            self._unreadable.pop(key, None)
            self._pace.forget(key)
            self._noted.discard(key)
            self._note_pending(key, self._nodes_of(key))
            return None
        again = await self._decide(unit)
        if key not in self._noted:
            self._note_pending(key, self._managed(unit))
        return again

    async def _decide(self, unit: DisruptionCandidate) -> Requeue | None:
        key = unit.key
        self._noted.discard(key)
        self._tell_of_expiry(unit)
        now = self._context.clock.now()
        triggers = triggers_of(self._managed(unit), unit.claim, self._policy)
        later = min((trigger.at for trigger in triggers if trigger.at > now), default=None)
        standing = self._standing(unit)
        due = self._braked_by_health(unit, standing, [trigger for trigger in triggers if trigger.at <= now], now)
        is_forced = self._policy.health.force and any(trigger.cause is Cause.UNHEALTHY for trigger in due)
        if not due or (is_pulled(unit.tracked.latest) and not is_forced):
            self._pace.leave(key)
        if is_pulled(unit.tracked.latest) and not is_forced:
            await give_back(self._context, unit.tracked)
            return Requeue(GIVEN_BACK_SECONDS)
        if not due:
            if key not in self._braked:
                del self._standings[key]
            return self._at(later)
        holds = () if is_forced else await self._holds(unit, now)
        report_elapsed(self._context, unit, standing, due, holds)
        if holds or unit.is_contested:
            self._pace.leave(key)
            self._wait(unit, standing, due, holds)
            return self._at(later, elapses_at(holds))
        if is_agreed(unit, standing):
            return None
        pause = standing.next_try - self._context.clock.monotonic()
        # Without our finalizer it would be gone at once, its pods with it; the keeper's write wakes us.
        if pause > 0 or names.FINALIZER not in unit.tracked.latest.finalizers:
            self._pace.leave(key)
            return Requeue(pause) if pause > 0 else None
        if not self._pace.has_place(key, self._rank(unit, standing, due)):
            self._noted.add(key)
            if self._pace.is_denied(key):
                self._wait_for_place(unit, standing, due)
            return self._at(later)
        return await self._end(unit, standing, due, is_forced=is_forced) or self._at(later)

    async def _end(
        self, unit: DisruptionCandidate, standing: Standing, due: list[Trigger], *, is_forced: bool
    ) -> Requeue | None:
        """With a place; it is kept until the watch shows what was begun."""
        try:
            answer = await end(self._context, unit, standing, due, is_forced=is_forced)
        except ApiError as error:
            standing.has_failed = True
            self._pace.leave(unit.key, in_doubt=isinstance(error, ServerError | RequestTimeout | Unreachable))
            raise
        if isinstance(answer, Requeue | Refusal):
            self._pace.leave(unit.key)
        if isinstance(answer, Refusal):
            self._wait_for_budget(unit, standing, due, answer)
        return answer if isinstance(answer, Requeue) else None

    @property
    def _policy(self) -> PolicySettings:
        return self._context.settings.policy

    # -- what the caches say -------------------------------------------------------------------------------------------

    def _unit(self, key: CandidateKey) -> DisruptionCandidate | None:
        """None when nothing here could be ended: gone, not ours, ending already, or the business of another key."""
        if key.kind == "node":
            node = self._cluster.node(key.name)
            if node is None or node.deletion_timestamp is not None or not self._is_managed(node):
                return None
            if self._cluster.claim_ending_with(node) is not None:
                return None
            return DisruptionCandidate(key, (node,), None, TrackedObject(NODES, node))
        claim = self._cluster.claim(key.name)
        if claim is None or claim.deletion_timestamp is not None:
            return None
        if not self._cluster.is_managed(claim, self._context.settings.node_selector):
            return None
        nodes = self._cluster.nodes_of(claim)
        if any(node.deletion_timestamp is not None and not self._cluster.is_left_over(node) for node in nodes):
            return None  # whose end takes the claim along
        nodes = tuple(node for node in nodes if node.deletion_timestamp is None)
        is_contested = any(only_claim(self._cluster.claims_of(node)) is None for node in nodes)
        return DisruptionCandidate(
            key, nodes, claim, TrackedObject(self._context.claim_resource(), claim), is_contested
        )

    def _nodes_of(self, key: CandidateKey) -> tuple[Node, ...]:
        """The managed nodes that this key decides about, though nothing of it could be ended."""
        if key.kind == "node":
            node = self._cluster.node(key.name)
            found: tuple[Node, ...] = (
                () if node is None or only_claim(self._cluster.claims_of(node)) is not None else (node,)
            )
        else:
            claim = self._cluster.claim(key.name)
            found = () if claim is None else self._cluster.nodes_of(claim)
        return tuple(node for node in found if node is not None and self._is_managed(node))

    def _is_managed(self, node: Node) -> bool:
        return self._context.settings.node_selector.matches(node.labels)

    def _managed(self, unit: DisruptionCandidate) -> tuple[Node, ...]:
        """The nodes that can be a reason to end it; of a contested claim none can, as its own are unknown, nor can one
        that is left over: it is a unit by itself."""
        if unit.is_contested:
            return ()
        found = (node for node in unit.nodes if self._is_managed(node))
        return tuple(node for node in found if unit.claim is None or not self._cluster.is_left_over(node))

    async def _holds(self, unit: DisruptionCandidate, now: float) -> tuple[VoluntaryBlocker, ...]:
        waited_for = [node for node in unit.nodes if grace_period_of(node, unit.claim, self._policy) is None]
        pods = {node.name: self._cluster.pods_on(node.name) for node in waited_for}
        those = tuple(chain.from_iterable(pods.values()))
        # Whatever changes during a long search is news that wakes it.
        self._waiting.put(unit.key, pods, {pod.namespace for pod in those})
        budgets = await self._cluster.slices.run(self._cluster.matcher.by_pod(those))
        self._waiting.drop(unit.key)
        found = (voluntary_blockers(pods[node.name], budgets, now, self._policy) for node in waited_for)
        return tuple(chain.from_iterable(found))

    def _braked_by_health(
        self, unit: DisruptionCandidate, standing: Standing, due: list[Trigger], now: float
    ) -> list[Trigger]:
        """What is due, without that which the brake keeps; who is kept by it is woken when it is loosened."""
        sick = [trigger for trigger in due if trigger.cause is Cause.UNHEALTHY]
        tally = self._brake.tally(now) if sick else None
        if tally is None or not tally.excess:
            standing.told.pop(EventReason.UNHEALTHY_NODES_HELD, None)
            return due
        self._braked.add(unit.key)
        self._queue.add(BRAKE)
        left = [trigger for trigger in due if trigger not in sick]
        if not left:
            message = (
                f"not ended for its health: {tally} (health.maximumUnhealthy), and what strikes so many at once is "
                f"seldom their own fault; {sick[0].words}; it ends when fewer are, or when somebody deletes it"
            )
            tell(self._context, unit, standing, EventReason.UNHEALTHY_NODES_HELD, message)
        return left

    def _wait(
        self, unit: DisruptionCandidate, standing: Standing, due: list[Trigger], holds: tuple[VoluntaryBlocker, ...]
    ) -> None:
        if unit.is_contested:
            message = (
                f"is not ended although {due[0].words}: several node claims stand for its node; delete all but one"
            )
            tell(self._context, unit, standing, EventReason.SEVERAL_CLAIMS, message)
            return
        self._waiting.put(unit.key, (node.name for node in unit.nodes), {hold.pod.namespace for hold in holds})
        message = f"is to end ({due[0].words}), but {explain_blockers(holds)}"
        gist = f"{holds[0].pod.uid} {holds[0].remedy}"
        tell(self._context, unit, standing, EventReason.DISRUPTION_HELD, message, gist)
        is_protected = any(hold.protection is not None for hold in holds)
        self._mark(unit, standing, PendingReason.PROTECTION if is_protected else PendingReason.BUDGET, message)

    def _wait_for_budget(
        self, unit: DisruptionCandidate, standing: Standing, due: list[Trigger], refusal: Refusal
    ) -> None:
        self._waiting.put(unit.key, node_budgets=(refusal.budget,))
        message = f"is to end ({due[0].words}), but {refusal}"
        gist = f"{refusal.budget} {refusal.leave}"
        tell(self._context, unit, standing, EventReason.DISRUPTION_HELD, message, gist)
        self._mark(unit, standing, PendingReason.NODE_BUDGET, message)

    def _wait_for_place(self, unit: DisruptionCandidate, standing: Standing, due: list[Trigger]) -> None:
        """The words stay the same as long as it waits."""
        waits = f"waits for its turn: {self._pace}"
        if self._policy.voluntary.wait_for_replacement:
            waits += ", and the pods of each are Ready elsewhere before the next one"
        message = f"is to end ({due[0].words}), but {waits}; to let it end now, delete it"
        tell(self._context, unit, standing, EventReason.DISRUPTION_HELD, message, "pace")
        self._mark(unit, standing, PendingReason.PACE, message)

    def _mark(self, unit: DisruptionCandidate, standing: Standing, reason: PendingReason, message: str) -> None:
        """The unit waits: on its nodes, and in the metrics."""
        if standing.pending_since is None:
            standing.pending_since = pending_since(unit.nodes, self._context.clock.now())
        self._note_pending(unit.key, self._managed(unit), PendingTermination(reason, message, standing.pending_since))

    def _note_pending(
        self, key: CandidateKey, nodes: Iterable[Node], pending: PendingTermination | None = None
    ) -> None:
        if pending is not None:
            self._pending[key] = pending
            self._noted.add(key)
        else:
            self._pending.pop(key, None)
            if (standing := self._standings.get(key)) is not None:
                standing.pending_since = None
        self._marks.decided(nodes, pending)

    def _rank(self, unit: DisruptionCandidate, standing: Standing, due: list[Trigger]) -> DisruptionRank:
        created = min([unit.tracked.latest.created, *(node.created for node in unit.nodes)])
        return rank_of(due, created, unit.key.name, has_failed=standing.has_failed)

    async def _look_at_pace(self) -> Requeue | None:
        for key in await self._pace.grant():
            self._queue.add(key)
        return self._at(self._pace.looks_at())

    def _look_at_brake(self) -> Requeue | None:
        now = self._context.clock.now()
        if self._brake.tally(now).excess:
            return self._at(self._brake.loosens_at(now)) if self._braked else None
        for key in self._braked:
            self._queue.add(key)
        self._braked.clear()
        return None

    # -- what is remembered and told -----------------------------------------------------------------------------------

    def _standing(self, unit: DisruptionCandidate) -> Standing:
        standing = self._standings.get(unit.key)
        if standing is None or standing.uid != unit.tracked.uid:
            standing = self._standings[unit.key] = Standing(unit.tracked.uid, self._backoff(FIRST_RETRY, LAST_RETRY))
        return standing

    def _tell_of_expiry(self, unit: DisruptionCandidate) -> None:
        """An expireAfter that cannot be read: once."""
        if unit.claim is None:
            return
        try:
            expires_at(unit.claim)
        except ValueError as error:
            is_told = self._unreadable.get(unit.key) == (unit.claim.uid, unit.claim.expire_after)
            self._unreadable[unit.key] = (unit.claim.uid, unit.claim.expire_after)
            if not is_told:
                message = f"never expires, as its expireAfter cannot be read: {error}"
                emit_event(self._context, (unit.tracked,), EventReason.INVALID_EXPIRE_AFTER, message, "Warning")

    def _at(self, *instants: float | None) -> Requeue | None:
        known = [instant for instant in instants if instant is not None]
        return Requeue(max(min(known) - self._context.clock.now(), 0.0)) if known else None

    # -- what makes a unit worth another look --------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _state(old) == _state(new):
            return
        self._brake.note(old, new)
        for node in (old, new):
            if node is not None:
                self._look_at_node(node)
        if self._braked:
            self._queue.add(BRAKE)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        for claim in (old, new):
            if claim is not None:
                self._queue.add(CandidateKey("claim", claim.name))
                for node in self._cluster.nodes_of(claim):
                    self._look_at_node(node)

    def _clock_jumped(self) -> None:
        """Every instant that somebody waits for is nearer or farther than it was."""
        self._look_at_all()

    def configured(self) -> None:
        """To be told that the settings have changed: the nodes are counted, and every unit is looked at, anew."""
        self._brake = CircuitBreaker(self._context.settings.node_selector, self._policy.health)
        for node in self._cluster.nodes.values():
            self._brake.note(None, node)
        self._look_at_all()

    def _look_at_all(self) -> None:
        for node in self._cluster.nodes.values():
            self._look_at_node(node)
        for claim in self._cluster.claims.values():
            self._queue.add(CandidateKey("claim", claim.name))
        self._queue.add(BRAKE)
        self._queue.add(PACE)

    def _look_at_node(self, node: Node) -> None:
        """At its own unit, at those of its claims, and of other nodes of those: which one is left over may change."""
        claims = self._cluster.claims_of(node)
        for claim in claims:
            self._queue.add(CandidateKey("claim", claim.name))
            for other in self._cluster.nodes_of(claim):
                if other.name != node.name:
                    self._queue.add(CandidateKey("node", other.name))
        key = CandidateKey("node", node.name)
        # One that was a unit by itself until its claim came has something to forget.
        if len(claims) != 1 or key in self._standings or self._cluster.is_left_over(node):
            self._queue.add(key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None:
                for key in self._waiting.on_node(pod.node_name):
                    self._queue.add(key)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        budget = new or old
        if budget is None or (old is not None and new is not None and _gist(old) == _gist(new)):
            return
        for key in self._waiting.in_namespace(budget.namespace):
            self._queue.add(key)

    def _node_budget_changed(self, old: NodeDisruptionBudget | None, new: NodeDisruptionBudget | None) -> None:
        budget = new or old
        if budget is not None and may_unblock(old, new):
            for key in self._waiting.for_node_budget(budget.name):
                self._queue.add(key)


def _state(node: Node) -> tuple[Any, ...]:
    """What of a node can be a reason to end it, or not to; the heartbeats of thousands change nothing of it."""
    place = (node.labels, node.finalizers, node.provider_id, node.deletion_timestamp, node.annotations)
    return (*place, node.conditions)


def _gist(budget: PodDisruptionBudget) -> tuple[Any, ...]:
    """What of a budget decides whether each pod for itself may leave; its figures change with every eviction."""
    is_counted = budget.observed_generation >= budget.generation
    return (budget.generation, is_counted, budget.disruptions_allowed > 0, allows_unready(budget))
