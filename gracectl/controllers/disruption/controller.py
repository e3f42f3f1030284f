"""Disruption controller: terminations of nodes that are interrupted, unhealthy, labeled terminable, or expired.

It only sends the DELETE, as an operator would; the controllers of nodes and claims do the rest. A key is a candidate: a
claim with its nodes, or a node without a claim. Invariants: a DELETE carries UID and version of the object that was
judged, and is sent once; none is sent while too many nodes are unhealthy, or while a pod or a node disruption budget
blocks, except that of a node whose machine goes anyway; a candidate that waits is woken by what it waits for, a change
or a known instant, and by nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Protocol

import msgspec

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.controllers.disruption.candidate import (
    CIRCUIT_BREAKER,
    PACE,
    CandidateKey,
    CandidateStatus,
    DisruptionCandidate,
    WaitIndex,
    find_candidate,
    nodes_of_key,
    pods_that_may_block,
)
from gracectl.controllers.disruption.deletion import (
    RefusedDeletion,
    delete_candidate,
    has_forced_deadline,
    is_accepted,
    restore_deadline,
)
from gracectl.controllers.disruption.events import DisruptionEvents
from gracectl.controllers.disruption.managed import ManagedNames
from gracectl.controllers.disruption.pace import CircuitBreaker, DisruptionStatistics, Pace
from gracectl.controllers.disruption.pending_nodes import PendingNodes
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.state import LASTING_SECONDS
from gracectl.kube.errors import ApiError, NotLeading, RequestTimeout, ServerError, Unreachable
from gracectl.kube.resources import NODES
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import ConfigMap
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.budgets import allows_unready, failure_of
from gracectl.policy.disruption import (
    DueTermination,
    Hold,
    HoldReason,
    PendingTermination,
    due_at,
    hold_of_claims,
    hold_of_node_budget,
    hold_of_pace,
    hold_of_pods,
    hold_of_refusal,
)
from gracectl.policy.finalizers import has_finalizer
from gracectl.policy.freeze import hold_of_budget_windows, hold_to_begin
from gracectl.policy.interruption import is_urgent
from gracectl.policy.nodebudgets import may_unblock
from gracectl.policy.pace import rank_of
from gracectl.policy.pending import pending_since
from gracectl.policy.settings import PolicySettings
from gracectl.policy.voluntary import (
    Trigger,
    VoluntaryBlocker,
    elapses_at,
    expires_at,
    is_idle,
    triggers_of,
    voluntary_blockers,
)
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers

WORKERS = 10
"""Concurrent looks at candidates; urgent ones have slots of their own."""

RESTORED_SECONDS = 5.0
"""The watch shows a deadline that was restored; if it does not, the candidate is looked at again after this time."""

FIRST_RETRY, LAST_RETRY = 0.5, 60.0
"""Seconds before a DELETE that was refused or failed is sent again; doubled each time."""


class Disruption(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and its due triggers at this look."""

    candidate: DisruptionCandidate
    status: CandidateStatus
    found: DueTermination

    @property
    def key(self) -> CandidateKey:
        """Key of the candidate."""
        return self.candidate.key

    @property
    def due(self) -> tuple[Trigger, ...]:
        """Due triggers, without suspended ones."""
        return self.found.due


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """End of a look. `pending`: what the termination waits for, as its nodes show it."""

    requeue: Requeue | None = None
    pending: PendingTermination | None = None
    keeps_pending: bool = False
    """The nodes keep their conditions."""


class Campaigns(Protocol):
    """Campaigns that share the pace."""

    async def take_slots(self) -> None:
        """Take the slots of nodes that a process before has begun to terminate."""

    def granted(self, key: CandidateKey) -> None:
        """Its key has got a slot, or was denied one."""


class DisruptionController:
    """Reconciles candidates; owns their state."""

    def __init__(
        self,
        context: StepContext,
        backoff: Callable[[float, float], Backoff],
        managed: ManagedNames,
        pending_nodes: PendingNodes,
    ) -> None:
        self._context = context
        self._cluster = context.cluster
        self._backoff = backoff
        self._queue: WorkQueue[CandidateKey] = WorkQueue(
            context.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY), self._is_urgent
        )
        self._events = DisruptionEvents(context)
        self._managed = managed
        self._breaker = self._new_breaker()
        self._held_by_breaker: set[CandidateKey] = set()
        self._waiting = WaitIndex()
        self._pace = self.pace = Pace(context, managed, lambda: self._queue.add(PACE))
        self.campaigns: Campaigns | None = None
        self._pending_nodes = pending_nodes
        self._pending: dict[CandidateKey, PendingTermination] = {}
        self._statuses: dict[CandidateKey, CandidateStatus] = {}
        self._invalid_expiries: dict[CandidateKey, tuple[str, str | None]] = {}  # reported: claim's UID and value
        self._cluster.nodes.subscribe(self._node_changed, replay=True)
        self._cluster.claims.subscribe(self._claim_changed, replay=True)
        self._cluster.pods.subscribe(self._pod_changed)
        self._cluster.budgets.subscribe(self._budget_changed)
        context.admitter.budgets.subscribe(self._node_budget_changed)
        self._cluster.freezes.subscribe(self._freeze_changed)
        context.clock.subscribe(self._requeue_all)

    async def run(self) -> None:
        """Start terminations until cancelled. Nothing is decided before all caches are live."""
        await self._cluster.wait_live()
        await self._context.admitter.wait_live()
        await self._cluster.freezes.wait_live()
        if self.campaigns is not None:
            await self.campaigns.take_slots()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of the work queue, by name."""
        return {"voluntary": self._queue.statistics()}

    def blocked_by_node_budgets(self) -> int:
        """Number of candidates that a node disruption budget blocks."""
        return self._waiting.for_node_budgets()

    def disruption_statistics(self) -> DisruptionStatistics:
        """Pending terminations, and slots."""
        return DisruptionStatistics(
            pending=Counter((each.cause, each.reason) for each in self._pending.values()),
            pending_since=min((each.since for each in self._pending.values() if not each.is_scheduled), default=None),
            unhealthy=self._breaker.counts(self._context.clock.now()),
            slots=self._pace.statistics(),
            maximum=self._pace.maximum,
        )

    async def reconcile(self, key: CandidateKey) -> Requeue | None:
        """Delete the candidate if its termination is due and nothing blocks it; safe to repeat."""
        if key == CIRCUIT_BREAKER:
            return self._recheck_circuit_breaker()
        if key == PACE:
            return await self._grant_slots()
        self._waiting.drop(key)
        self._held_by_breaker.discard(key)
        managed, claims = self._context.settings.managed, self._context.claim_resource()
        candidate = find_candidate(self._cluster, managed, claims, key)
        if candidate is None:
            self._forget(key)
            return None
        disruption = self._disruption_of(candidate)
        for check in (
            self._check_forced_deadline,
            self._check_triggers,
            self._check_windows,
            self._check_pods,
            self._check_request,
            self._check_finalizer_and_retry,
            self._check_slot,
        ):
            if (stop := await check(disruption)) is not None:
                break
        else:
            stop = await self._delete(disruption)
        if not stop.keeps_pending:
            self._show_pending(key, candidate.managed, stop.pending)
        return stop.requeue

    def _disruption_of(self, candidate: DisruptionCandidate) -> Disruption:
        self._report_invalid_expiry(candidate)
        status, now = self._status_of(candidate), self._context.clock.now()
        triggers = triggers_of(candidate.managed, candidate.claim, self._policy)
        found = due_at(now, triggers, self._breaker.counts, self._policy)
        if found.is_urgent:
            # The node, not its claim: the deletion of a claim waits for node disruption budgets.
            node = next(each for each in candidate.managed if is_urgent(each, now, self._policy.lead_seconds))
            candidate = msgspec.structs.replace(candidate, tracked=TrackedObject(NODES, node))
        if found.hold is not None and found.hold.reason is HoldReason.CIRCUIT_BREAKER:
            self._held_by_breaker.add(candidate.key)
            self._queue.add(CIRCUIT_BREAKER)
        else:
            status.reported.pop(EventReason.UNHEALTHY_NODES_HELD, None)
        return Disruption(candidate=candidate, status=status, found=found)

    # -- the checks, in their order ------------------------------------------------------------------------------------

    async def _check_forced_deadline(self, disruption: Disruption) -> Stop | None:
        """Stop and restore the deadline if it was forced, and force no longer applies."""
        tracked = disruption.candidate.tracked
        if disruption.found.is_forced or not has_forced_deadline(tracked.latest):
            return None
        self._pace.release(disruption.key)
        await restore_deadline(self._context, tracked)
        return Stop(requeue=Requeue(RESTORED_SECONDS))

    async def _check_triggers(self, disruption: Disruption) -> Stop | None:
        """Stop if nothing is due."""
        if disruption.due:
            return None
        self._pace.release(disruption.key)
        found, requeue = disruption.found, self._at(disruption.found.next_trigger)
        if found.hold is None:
            del self._statuses[disruption.key]
            return Stop(requeue=requeue)
        return self._hold(disruption, found.hold, requeue, found.hold.reason)

    async def _check_windows(self, disruption: Disruption) -> Stop | None:
        """Stop in a freeze, and outside of windows: of the settings, or of a node disruption budget."""
        candidate = disruption.candidate
        if disruption.found.is_urgent:
            return None
        now, windows = self._context.clock.now(), self._policy.voluntary.windows
        hold = hold_to_begin(self._cluster.freeze(now), windows, "voluntary.windows", now)
        if hold is None:
            found = hold_of_budget_windows(self._context.admitter.budgets.values(), candidate.nodes, now)
            if found is None:
                return None
            budget, hold = found
            self._waiting.put(candidate.key, node_budgets=(budget,))
        self._pace.release(candidate.key)
        await restore_deadline(self._context, candidate.tracked)
        return self._hold(disruption, hold, self._at(disruption.found.next_trigger, hold.until), hold.reason)

    async def _check_pods(self, disruption: Disruption) -> Stop | None:
        """Stop if pods are protected or their budgets block, or if several claims contest the node."""
        candidate, status, due = disruption.candidate, disruption.status, disruption.due
        if disruption.found.is_urgent:
            return None
        blockers = () if disruption.found.is_forced else await self._blockers_of(candidate)
        self._events.protections_elapsed(candidate, status, due, blockers)
        if not blockers and not candidate.is_contested:
            return None
        self._pace.release(candidate.key)
        requeue = self._at(disruption.found.next_trigger, elapses_at(blockers))
        if candidate.is_contested:
            return self._hold(disruption, hold_of_claims(), requeue)
        self._waiting.put(
            candidate.key, (node.name for node in candidate.nodes), {blocker.pod.namespace for blocker in blockers}
        )
        gist = f"{blockers[0].pod.uid} {blockers[0].remedy}"
        return self._hold(disruption, hold_of_pods(blockers), requeue, gist)

    async def _blockers_of(self, candidate: DisruptionCandidate) -> tuple[VoluntaryBlocker, ...]:
        """The pods that block, of nodes without a termination grace period."""
        now = self._context.clock.now()
        pods = pods_that_may_block(self._cluster, candidate, self._policy)
        all_pods = tuple(chain.from_iterable(pods.values()))
        # Changes during a long search wake the candidate.
        self._waiting.put(candidate.key, pods, {pod.namespace for pod in all_pods})
        budgets = await self._cluster.slices.run(self._cluster.matcher.by_pod(all_pods))
        self._waiting.drop(candidate.key)
        found = (voluntary_blockers(those, budgets, now, self._policy) for those in pods.values())
        return tuple(chain.from_iterable(found))

    async def _check_request(self, disruption: Disruption) -> Stop | None:
        """Stop if the server has accepted the DELETE of this version already."""
        return Stop() if is_accepted(disruption.candidate, disruption.status) else None

    async def _check_finalizer_and_retry(self, disruption: Disruption) -> Stop | None:
        """Stop if a DELETE was refused a short while ago, or our finalizer is missing.

        Without the finalizer the node and its pods would disappear immediately. The finalizer controller adds it, which
        wakes the key.
        """
        # Rounded: a remainder of floating-point arithmetic is not time to wait.
        pause = round(disruption.status.next_try - self._context.clock.monotonic(), 6)
        if pause <= 0 and has_finalizer(disruption.candidate.tracked.latest):
            return None
        self._pace.release(disruption.key)
        return Stop(requeue=Requeue(pause), keeps_pending=True) if pause > 0 else Stop()

    async def _check_slot(self, disruption: Disruption) -> Stop | None:
        """Stop if as many terminations are in progress as the pace permits."""
        candidate, status = disruption.candidate, disruption.status
        if disruption.found.is_urgent:
            self._pace.release(candidate.key)
            return None
        rank = rank_of(disruption.due, candidate.created, candidate.key.name, has_failed=status.has_failed)
        if self._pace.has_slot(candidate.key, rank):
            return None
        requeue = self._at(disruption.found.next_trigger)
        if not self._pace.is_denied(candidate.key):
            return Stop(requeue=requeue, keeps_pending=True)
        return self._hold(disruption, hold_of_pace(str(self._pace), self._policy), requeue, "pace")

    async def _delete(self, disruption: Disruption) -> Stop:
        """Send the DELETE; the slot is kept until the watch shows it."""
        candidate, status, found = disruption.candidate, disruption.status, disruption.found
        requeue = self._at(found.next_trigger)
        try:
            outcome = await delete_candidate(self._context, candidate, status, found)
        except ApiError as error:
            status.has_failed = True
            # Of its own: the queue's backoff starts over when the candidate has waited for its slot meanwhile.
            status.next_try = self._context.clock.monotonic() + status.retry.next()
            is_unknown = isinstance(error, ServerError | RequestTimeout | Unreachable)
            self._pace.release(candidate.key, is_outcome_unknown=is_unknown)
            self._note_failure(disruption, error)
            raise
        status.failing_since = None
        if isinstance(outcome, Refusal):
            self._pace.release(candidate.key)
            self._waiting.put(candidate.key, node_budgets=(outcome.budget,))
            gist = f"{outcome.budget} {outcome.allowance}"
            return self._hold(disruption, hold_of_node_budget(str(outcome)), requeue, gist)
        if isinstance(outcome, RefusedDeletion):
            self._pace.release(candidate.key)
            return self._hold(disruption, outcome.hold, Requeue(outcome.seconds))
        if isinstance(outcome, Requeue):
            self._pace.release(candidate.key)
            return Stop(requeue=outcome)
        return Stop(requeue=requeue)

    def _note_failure(self, disruption: Disruption, error: ApiError) -> None:
        """Show a failure that has lasted: the worker repeats it, and only the log has it."""
        status, now = disruption.status, self._context.clock.monotonic()
        if isinstance(error, NotLeading):
            return
        if status.failing_since is None:
            status.failing_since = now
        if now - status.failing_since >= LASTING_SECONDS:
            hold = hold_of_refusal(str(error))
            stop = self._hold(disruption, hold, None, type(error).__name__)
            self._show_pending(disruption.key, disruption.candidate.managed, stop.pending)

    def _hold(self, disruption: Disruption, hold: Hold, requeue: Requeue | None, gist: str = "") -> Stop:
        """Stop, and report the blocker of the termination; again when `gist` changes."""
        due = disruption.due or disruption.found.suspended
        self._events.held(disruption.candidate, disruption.status, due, hold, gist)
        status = disruption.status
        if status.pending_since is None:
            status.pending_since = pending_since(disruption.candidate.nodes, self._context.clock.now())
        return Stop(requeue=requeue, pending=PendingTermination(due, hold, status.pending_since))

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def _policy(self) -> PolicySettings:
        return self._context.settings.policy

    def _is_urgent(self, key: CandidateKey) -> bool:
        nodes = nodes_of_key(self._cluster, self._context.settings.managed, key)
        now, lead = self._context.clock.now(), self._policy.lead_seconds
        return any(is_urgent(node, now, lead) for node in nodes)

    def _status_of(self, candidate: DisruptionCandidate) -> CandidateStatus:
        status, uid = self._statuses.get(candidate.key), candidate.tracked.uid
        if status is None or status.uid != uid:
            status = self._statuses[candidate.key] = CandidateStatus(uid, self._backoff(FIRST_RETRY, LAST_RETRY))
        return status

    def _forget(self, key: CandidateKey) -> None:
        self._statuses.pop(key, None)
        self._invalid_expiries.pop(key, None)
        self._pace.forget(key)
        self._show_pending(key, nodes_of_key(self._cluster, self._context.settings.managed, key), None)

    def _report_invalid_expiry(self, candidate: DisruptionCandidate) -> None:
        """Report an expireAfter that cannot be read, once."""
        if candidate.claim is None:
            return
        try:
            expires_at(candidate.claim)
        except ValueError as error:
            value = (candidate.claim.uid, candidate.claim.expire_after)
            if self._invalid_expiries.get(candidate.key) != value:
                self._invalid_expiries[candidate.key] = value
                self._events.invalid_expiry(candidate, error)

    def _show_pending(self, key: CandidateKey, nodes: Iterable[Node], pending: PendingTermination | None) -> None:
        """Show on the nodes and in the metrics what the termination waits for, or that it does not."""
        if pending is not None:
            self._pending[key] = pending
        else:
            self._pending.pop(key, None)
            if (status := self._statuses.get(key)) is not None:
                status.pending_since = None
        self._pending_nodes.show(nodes, pending)

    def _at(self, *instants: float | None) -> Requeue | None:
        known = [instant for instant in instants if instant is not None]
        return Requeue(max(min(known) - self._context.clock.now(), 0.0)) if known else None

    # -- what wakes candidates -----------------------------------------------------------------------------------------

    async def _grant_slots(self) -> Requeue | None:
        for key in await self._pace.grant():
            if key.kind != "campaign":
                self._queue.add(key)
            elif self.campaigns is not None:
                self.campaigns.granted(key)
        return self._at(self._pace.next_change())

    def _recheck_circuit_breaker(self) -> Requeue | None:
        now = self._context.clock.now()
        if self._breaker.counts(now).excess:
            return self._at(self._breaker.closes_at(now)) if self._held_by_breaker else None
        for key in self._held_by_breaker:
            self._queue.add(key)
        self._held_by_breaker.clear()
        return None

    def configured(self) -> None:
        """Apply changed settings: recount the nodes, and look at every candidate."""
        self._breaker = self._new_breaker()
        for node in self._cluster.nodes.values():
            self._breaker.note(None, node)
        self._requeue_all()

    def _new_breaker(self) -> CircuitBreaker:
        return CircuitBreaker(lambda node: node.name in self._managed, self._policy.health)

    def _requeue_all(self) -> None:
        for node in self._cluster.nodes.values():
            self._requeue_node(node)
        for claim in self._cluster.claims.values():
            self._queue.add(CandidateKey("claim", claim.name))
        self._queue.add(CIRCUIT_BREAKER)
        self._queue.add(PACE)

    def _freeze_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if old is None or new is None or old.data != new.data:
            self._requeue_all()

    def _requeue_node(self, node: Node) -> None:
        """Requeue its candidate, and the candidates of its claims and their other nodes: the leftover node may
        change. A node to which nothing can happen is no candidate: there are 100,000."""
        claims = self._cluster.claims_of(node)
        for claim in claims:
            self._queue.add(CandidateKey("claim", claim.name))
            for other in self._cluster.nodes_of(claim):
                if other.name != node.name:
                    self._queue.add(CandidateKey("node", other.name))
        key = CandidateKey("node", node.name)
        # Drop the status of a node that was a candidate alone until its claim appeared.
        if key in self._statuses or (
            not self._is_idle(node.name) and (len(claims) != 1 or self._cluster.is_left_over(node))
        ):
            self._queue.add(key)

    def _is_idle(self, name: str) -> bool:
        node = self._cluster.node(name)
        return node is not None and node.deletion_timestamp is None and is_idle(node, self._policy)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _relevant(old) == _relevant(new):
            return
        self._breaker.note(old, new)
        for node in (old, new):
            if node is not None:
                self._requeue_node(node)
        if self._held_by_breaker:
            self._queue.add(CIRCUIT_BREAKER)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        for claim in (old, new):
            if claim is not None:
                self._queue.add(CandidateKey("claim", claim.name))
                for node in self._cluster.nodes_of(claim):
                    self._requeue_node(node)

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


def _relevant(node: Node) -> tuple[Any, ...]:
    """Fields of a node that decide about its termination; heartbeats are not among them."""
    identity = (node.labels, node.finalizers, node.provider_id, node.deletion_timestamp, node.annotations)
    return (*identity, node.conditions)


def _gist(budget: PodDisruptionBudget) -> tuple[Any, ...]:
    """Fields of a budget that decide about each pod alone; its figures change with every eviction."""
    is_counted = budget.observed_generation >= budget.generation
    failure = failure_of(budget)
    return (budget.generation, is_counted, failure, budget.disruptions_allowed > 0, allows_unready(budget))
