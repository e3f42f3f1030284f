"""Starts a termination that nobody has asked for: of a node that is unhealthy, labelled terminable, or whose claim has
expired (DESIGN 3.1 no 3 to 5).

It only sends the DELETE, as a person would; what follows is the business of the controllers of nodes and claims. A
key names what ends as one: a claim with its nodes, or a node without a claim. Invariants: a DELETE carries uid and
version of the object that was judged, so nothing is ended for what it is no longer; each is asked for once; none while
too many nodes are unhealthy, or while a pod keeps the node; whoever waits is woken by what it waits for, a change or an
exact instant, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gracectl.kube.errors import ApiError, Conflict, Denied, Forbidden, Invalid, NotFound
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.deadlines import grace_period_of, written
from gracectl.policy.ownership import only_claim
from gracectl.policy.voluntary import (
    Cause,
    Hold,
    Trigger,
    expires_at,
    explain_holds,
    frees_at,
    holds_of,
    triggers_of,
)
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.termination.announce import announce
from gracectl.termination.brake import Brake
from gracectl.termination.held import AnyHeld, Held
from gracectl.termination.steps import Tools
from gracectl.termination.waiting import UnitKey, Waiting
from gracectl.termination.writes import amend

WORKERS = 10

FIRST_RETRY, LAST_RETRY = 0.5, 60.0
"""Seconds before a unit is tried again whose deletion was refused or could not be asked for; doubled each time."""

REASONS = {
    Cause.UNHEALTHY: EventReason.NODE_UNHEALTHY,
    Cause.TERMINABLE: EventReason.NODE_TERMINABLE,
    Cause.EXPIRED: EventReason.CLAIM_EXPIRED,
}


class Unit(msgspec.Struct, frozen=True):
    """What ends as one, as the caches show it: a claim with its nodes, or a node that has no claim (or several, of
    which none counts)."""

    key: UnitKey
    nodes: tuple[Node, ...]
    claim: NodeClaim | None
    held: AnyHeld
    """What the DELETE is for."""
    is_contested: bool = False
    """Other claims stand for a node of this one, too."""


class Standing(msgspec.Struct):
    """What is remembered of a unit that has a reason to end, of which nothing must survive."""

    uid: str
    retry: Backoff
    next_try: float = 0.0
    """Monotonic: the server has refused, and is not asked again before."""
    agreed_at: str = ""
    """The version of which the server has agreed to delete; the watch has not shown it yet."""
    told: dict[EventReason, str] = msgspec.field(default_factory=dict)
    pulled: tuple[str, str | None] | None = None
    """The deadline that we have written, and what stood there before (None: nothing)."""


class VoluntaryTermination:
    """Reconciles units; owns what is remembered of each."""

    def __init__(self, tools: Tools, backoff: Callable[[float, float], Backoff]) -> None:
        self._tools = tools
        self._observed = tools.observed
        self._policy = tools.settings.policy
        self._backoff = backoff
        self._queue: WorkQueue[UnitKey] = WorkQueue(tools.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._brake = Brake(tools.settings.node_selector, self._policy.health)
        self._braked: set[UnitKey] = set()
        self._waiting = Waiting()
        self._standings: dict[UnitKey, Standing] = {}
        self._observed.nodes.subscribe(self._node_changed)
        self._observed.claims.subscribe(self._claim_changed)
        self._observed.pods.subscribe(self._pod_changed)
        self._observed.budgets.subscribe(self._budget_changed)

    async def run(self) -> None:
        """Start terminations until cancelled. Nothing is decided before all caches are live."""
        await self._observed.wait_live()
        await run_workers(self._queue, self.reconcile, WORKERS, expected=(ApiError,))

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    async def reconcile(self, key: UnitKey) -> Requeue | None:
        """Find out whether the unit is to end, and if so, delete it; safe to repeat."""
        self._waiting.drop(key)
        self._braked.discard(key)
        unit = self._unit(key)
        if unit is None:
            self._standings.pop(key, None)
            return None
        standing = self._standing(unit)
        self._tell_of_expiry(unit, standing)
        now = self._tools.clock.now()
        triggers = triggers_of(self._managed(unit), unit.claim, self._policy)
        later = min((trigger.at for trigger in triggers if trigger.at > now), default=None)
        due = self._braked_by_health(unit, standing, [trigger for trigger in triggers if trigger.at <= now])
        is_forced = self._policy.health.force and any(trigger.cause is Cause.UNHEALTHY for trigger in due)
        if standing.pulled and not is_forced:
            await self._give_back(unit, standing)
            return Requeue(0)
        if not due:
            standing.next_try = 0.0
            standing.retry.reset()
            standing.told.pop(EventReason.DISRUPTION_REFUSED, None)
            standing.told.pop(EventReason.DISRUPTION_HELD, None)
            return self._at(later)
        holds = () if is_forced else self._holds(unit, now)
        if holds or unit.is_contested:
            self._wait(unit, standing, due, holds)
            return self._at(later, frees_at(holds))
        return await self._end(unit, standing, due, is_forced=is_forced)

    # -- what the caches say -------------------------------------------------------------------------------------------

    def _unit(self, key: UnitKey) -> Unit | None:
        """None when nothing here could be ended: gone, not ours, ending already, or the business of another key."""
        if key.kind == "node":
            node = self._observed.node(key.name)
            if node is None or node.deletion_timestamp is not None or not self._is_managed(node):
                return None
            if only_claim(self._observed.claims_of(node)) is not None:
                return None
            return Unit(key, (node,), None, Held(NODES, node))
        claim = self._observed.claim(key.name)
        if claim is None or claim.deletion_timestamp is not None:
            return None
        if not self._observed.is_managed(claim, self._tools.settings.node_selector):
            return None
        nodes = self._observed.nodes_of(claim)
        if any(node.deletion_timestamp is not None for node in nodes):
            return None  # whose end takes the claim along
        is_contested = any(only_claim(self._observed.claims_of(node)) is None for node in nodes)
        return Unit(key, nodes, claim, Held(self._tools.claim_resource(), claim), is_contested)

    def _is_managed(self, node: Node) -> bool:
        return self._tools.settings.node_selector.matches(node.labels)

    def _managed(self, unit: Unit) -> tuple[Node, ...]:
        """The nodes that can be a reason to end it; of a contested claim none can, as nobody knows whose they are."""
        return () if unit.is_contested else tuple(node for node in unit.nodes if self._is_managed(node))

    def _holds(self, unit: Unit, now: float) -> tuple[Hold, ...]:
        found: list[Hold] = []
        for node in unit.nodes:
            if grace_period_of(node, unit.claim, self._policy) is None:
                pods = self._observed.pods_on(node.name)
                found.extend(holds_of(pods, self._observed.budgets_by_pod(pods), now, self._policy))
        return tuple(found)

    def _braked_by_health(self, unit: Unit, standing: Standing, due: list[Trigger]) -> list[Trigger]:
        """What is due, without that which the brake keeps; who is kept by it is woken when it is loosened."""
        sick = [trigger for trigger in due if trigger.cause is Cause.UNHEALTHY]
        tally = self._brake.tally
        if not sick or not tally.is_too_many:
            standing.told.pop(EventReason.UNHEALTHY_NODES_HELD, None)
            return due
        self._braked.add(unit.key)
        left = [trigger for trigger in due if trigger not in sick]
        if not left:
            message = (
                f"not ended for its health: {tally} (health.maximumUnhealthy), as a failure of so many is none of "
                f"theirs; {sick[0].words}; it ends when fewer are, or when somebody deletes it"
            )
            self._tell(unit, standing, EventReason.UNHEALTHY_NODES_HELD, message, "held", is_warning=True)
        return left

    # -- what is done about it -----------------------------------------------------------------------------------------

    async def _end(self, unit: Unit, standing: Standing, due: list[Trigger], *, is_forced: bool) -> Requeue | None:
        held = unit.held
        wait = standing.next_try - self._tools.clock.monotonic()
        if wait > 0:
            return Requeue(wait)
        if standing.agreed_at == held.state.resource_version:
            return None
        if names.FINALIZER not in held.state.finalizers:
            return None  # it would be gone at once, its pods with it; the keeper is on its way, and its write wakes us
        if is_forced and not self._is_overdue(held):
            await self._pull_deadline(held, standing)
            return None  # our write wakes us, and all of this is looked at again
        try:
            version = held.state.resource_version
            await self._tools.client.delete(held.resource, held.state.key, uid=held.uid, resource_version=version)
        except NotFound:
            return None
        except Conflict:
            return Requeue(standing.retry.next())  # the watch will have shown by then what it has become
        except (Denied, Forbidden, Invalid) as refusal:
            return await self._refused(unit, standing, refusal)
        standing.agreed_at = version
        message = "is ended: " + "; ".join(trigger.words for trigger in due)
        if is_forced:
            message += "; at once, with everything on it (health.force)"
        is_warning = due[0].cause is Cause.UNHEALTHY
        self._tell(unit, standing, REASONS[due[0].cause], message, message, is_warning=is_warning)
        return None

    async def _refused(self, unit: Unit, standing: Standing, refusal: ApiError) -> Requeue:
        """Somebody else may forbid it (a node disruption budget): that is his right, and people are told once."""
        asked_for = refusal.retry_after if isinstance(refusal, Denied) else None
        seconds = max(standing.retry.next(), asked_for or 0.0)
        standing.next_try = self._tools.clock.monotonic() + seconds
        message = f"is to end, but its deletion is refused, and tried again: {refusal}"
        self._tell(unit, standing, EventReason.DISRUPTION_REFUSED, message, "refused", is_warning=True)
        if standing.pulled:
            await self._give_back(unit, standing)
        return Requeue(seconds)

    def _wait(self, unit: Unit, standing: Standing, due: list[Trigger], holds: tuple[Hold, ...]) -> None:
        if unit.is_contested:
            message = (
                f"is not ended although {due[0].words}: several node claims stand for its node; delete all but one"
            )
            self._tell(unit, standing, EventReason.SEVERAL_CLAIMS, message, "contested", is_warning=True)
            return
        self._waiting.put(unit.key, (node.name for node in unit.nodes), {hold.pod.namespace for hold in holds})
        message = f"is to end ({due[0].words}), but {explain_holds(holds)}"
        gist = f"{holds[0].pod.uid} {holds[0].remedy}"
        self._tell(unit, standing, EventReason.DISRUPTION_HELD, message, gist)

    def _is_overdue(self, held: AnyHeld) -> bool:
        deadline = written(held.state)
        return deadline is not None and deadline <= self._tools.clock.now()

    async def _pull_deadline(self, held: AnyHeld, standing: Standing) -> None:
        """Write that everything must be over now, so that the termination, once begun, waits for nobody."""
        text = format_time(self._tools.clock.now())
        standing.pulled = (text, held.state.annotations.get(names.TERMINATION_TIMESTAMP))

        def pulled(thing: Node | NodeClaim) -> MergePatch | None:
            return None if thing.deletion_timestamp is not None else _annotation(text)

        await amend(self._tools.client, held.resource, held.state, pulled)

    async def _give_back(self, unit: Unit, standing: Standing) -> None:
        """The end does not come now: a deadline that we have left on it would make a later one merciless."""
        assert standing.pulled is not None
        ours, before = standing.pulled

        def given_back(thing: Node | NodeClaim) -> MergePatch | None:
            is_ours = thing.annotations.get(names.TERMINATION_TIMESTAMP) == ours and thing.deletion_timestamp is None
            return _annotation(before) if is_ours else None

        await amend(self._tools.client, unit.held.resource, unit.held.state, given_back)
        standing.pulled = None

    # -- what is remembered and told -----------------------------------------------------------------------------------

    def _standing(self, unit: Unit) -> Standing:
        standing = self._standings.get(unit.key)
        if standing is None or standing.uid != unit.held.uid:
            standing = self._standings[unit.key] = Standing(unit.held.uid, self._backoff(FIRST_RETRY, LAST_RETRY))
        return standing

    def _tell_of_expiry(self, unit: Unit, standing: Standing) -> None:
        if unit.claim is None:
            return
        try:
            expires_at(unit.claim)
        except ValueError as error:
            message = f"never expires, as its expireAfter cannot be read: {error}"
            gist = str(unit.claim.expire_after)
            self._tell(unit, standing, EventReason.INVALID_EXPIRE_AFTER, message, gist, is_warning=True)

    def _tell(
        self, unit: Unit, standing: Standing, reason: EventReason, message: str, gist: str, *, is_warning: bool = False
    ) -> None:
        """Once, until the gist of it changes."""
        if standing.told.get(reason) == gist:
            return
        standing.told[reason] = gist
        holders: list[AnyHeld] = [Held(NODES, node) for node in unit.nodes]
        if unit.claim is not None:
            holders.append(unit.held)
        announce(self._tools, holders, reason, message, "Warning" if is_warning else "Normal")

    def _at(self, *instants: float | None) -> Requeue | None:
        known = [instant for instant in instants if instant is not None]
        return Requeue(max(min(known) - self._tools.clock.now(), 0.0)) if known else None

    # -- what makes a unit worth another look --------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _state(old) == _state(new):
            return
        self._brake.note(old, new)
        for node in (old, new):
            if node is not None:
                self._look_at_node(node)
        if self._braked and not self._brake.tally.is_too_many:
            for key in self._braked:
                self._queue.add(key)
            self._braked.clear()

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        for claim in (old, new):
            if claim is not None:
                self._queue.add(UnitKey("claim", claim.name))
                for node in self._observed.nodes_of(claim):
                    self._look_at_node(node)

    def _look_at_node(self, node: Node) -> None:
        """At its own unit, and at those of its claims."""
        claims = self._observed.claims_of(node)
        for claim in claims:
            self._queue.add(UnitKey("claim", claim.name))
        if len(claims) != 1:
            self._queue.add(UnitKey("node", node.name))

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


def _annotation(text: str | None) -> MergePatch:
    return MergePatch({"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: text}}})


def _state(node: Node) -> tuple[Any, ...]:
    """What of a node can be a reason to end it, or not to; the heartbeats of thousands change nothing of it."""
    deadline = node.annotations.get(names.TERMINATION_TIMESTAMP)
    place = (node.labels, node.finalizers, node.provider_id, node.deletion_timestamp, deadline)
    return (*place, node.conditions)


def _gist(budget: PodDisruptionBudget) -> tuple[Any, ...]:
    """What of a budget decides whether each pod for itself may leave; its figures change with every eviction."""
    lets_unready_go = 0 < budget.desired_healthy <= budget.current_healthy
    is_counted = budget.observed_generation >= budget.generation
    return (budget.generation, is_counted, budget.disruptions_allowed > 0, lets_unready_go)
