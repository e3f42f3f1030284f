"""Pace of voluntary terminations: slots that are taken, and the candidates that wait for one.

Which slots are taken follows from the caches: nodes and claims that are being deleted and have our finalizer, and the
pods that they have displaced. Invariants: a slot is reserved before the DELETE is sent, until the watch shows it; the
first one of a leader is granted only after it has read from the server what is being deleted, so that a late watch
permits no excess; a candidate that waits is woken by whatever frees a slot, a change or a known instant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.controllers.disruption.candidate import CandidateKey
from gracectl.controllers.disruption.managed import ManagedNames
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.deadline import cached_deadline
from gracectl.kube.cache.reading import read_all
from gracectl.kube.errors import NotServed
from gracectl.kube.resources import NODES
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.disruption import HoldReason
from gracectl.policy.health import UnhealthyNodes, unhealthy_until
from gracectl.policy.owners import ManagedNodes
from gracectl.policy.pace import (
    DisruptionRank,
    DisruptionSlot,
    explain_maximum,
    is_blocked,
    is_replaced,
    maximum_of,
    next_with_blocked,
)
from gracectl.policy.planner import plan
from gracectl.policy.returning import recreating_controller
from gracectl.policy.settings import HealthSettings, VoluntarySettings
from gracectl.policy.voluntary import Cause

UNKNOWN_OUTCOME_SECONDS: Final = 60.0
"""How long a DELETE without a response may still be carried out: API servers end a request after that time."""

TAKEOVER_SECONDS: Final = 30.0
"""How long a new leader waits for replacements of pods on nodes that were terminated before it led."""

RECHECK_SECONDS: Final = 60.0
"""How often to look again whether a drain without progress is blocked, while a node that is not Ready waits."""

FEW_SLOTS: Final = 100
"""With fewer slots none is looked for that is free: of many, whenever their number has doubled."""

STATES: Final = ("ending", "replacing")
"""States of a slot that is taken: its node exists, or the replacements of its pods are not Ready."""


class DisruptionStatistics(msgspec.Struct, frozen=True):
    """Pending terminations by cause and hold, since when the oldest that does not wait for a window or the end of a
    freeze (Unix seconds); unhealthy nodes; slots taken by state, and their maximum.
    """

    pending: Mapping[tuple[Cause, HoldReason], int] = {}
    pending_since: float | None = None
    unhealthy: UnhealthyNodes = UnhealthyNodes(unhealthy=0, managed=0, maximum=0)
    slots: Mapping[str, int] = {}
    maximum: int = 0


class Pace:
    """Slots of voluntary terminations; `wake` is called when a waiting candidate may get one."""

    def __init__(self, context: StepContext, managed: ManagedNames, wake: Callable[[], None]) -> None:
        self._context = context
        self._cluster = context.cluster
        self._wake = wake
        self._nodes = context.settings.managed
        self._managed = managed
        self._number_of_managed = len(managed)
        self._slots: list[DisruptionSlot] = []
        self._most_slots = FEW_SLOTS
        self._by_uid: dict[str, DisruptionSlot] = {}  # by uid of a node or claim that is being deleted
        self._on_node: dict[str, DisruptionSlot] = {}
        self._waiting: dict[CandidateKey, DisruptionRank] = {}
        self._denied: set[CandidateKey] = set()
        self._granted: set[CandidateKey] = set()
        self._unknown_outcomes: dict[CandidateKey, float] = {}
        self._before_takeover: DisruptionSlot | None = None  # of all nodes that went before this process led
        self._is_confirmed = False
        self._cluster.nodes.subscribe(self._node_changed, replay=True)
        self._cluster.claims.subscribe(self._claim_changed, replay=True)
        self._cluster.pods.subscribe(self._pod_changed)

    # -- for the candidates --------------------------------------------------------------------------------------------

    def has_slot(self, key: CandidateKey, rank: DisruptionRank) -> bool:
        """Whether the candidate has a slot; if not, it waits from now on, and `grant` returns it when it gets one.

        After a DELETE of unknown outcome it has kept its slot, but not while others wait.
        """
        if not self._waiting and self._unknown_outcomes.pop(key, 0.0) > self._context.clock.now():
            self._granted.add(key)
        if key in self._granted:
            return True
        self._waiting[key] = rank
        self._wake()
        return False

    def hold(self, key: CandidateKey) -> None:
        """Take a slot for a campaign that has begun with this node before."""
        self._granted.add(key)

    def is_denied(self, key: CandidateKey) -> bool:
        """Whether the candidate waits, and the free slots went to others."""
        return key in self._denied

    def release(self, key: CandidateKey, *, is_outcome_unknown: bool = False) -> None:
        """The candidate needs no slot, and waits for none. `is_outcome_unknown`: its DELETE may be carried out."""
        self._waiting.pop(key, None)
        self._denied.discard(key)
        if key in self._granted:
            self._granted.discard(key)
            if is_outcome_unknown:
                self._unknown_outcomes[key] = self._context.clock.now() + UNKNOWN_OUTCOME_SECONDS
            self._wake()

    def forget(self, key: CandidateKey) -> None:
        """The candidate is gone, or the watch shows its deletion, and with it the slot that it takes."""
        self.release(key)
        if self._unknown_outcomes.pop(key, None) is not None:
            self._wake()

    async def grant(self) -> list[CandidateKey]:
        """Grant the free slots; returns the candidates that are worth a look. Raises ApiError."""
        if not self._waiting:
            return []
        await self._confirm()
        blocked = await self._count_blocked()
        waiting = {key: rank for key, rank in self._waiting.items() if not self._is_ending(key)}
        chosen = next_with_blocked(waiting, self._waiting_lost(), self.maximum - self._taken(), blocked)
        for key in chosen:
            del self._waiting[key]
            self._denied.discard(key)
            self._granted.add(key)
        denied = [key for key in waiting if key in self._waiting and key not in self._denied]
        self._denied.update(denied)
        return [*chosen, *denied]

    def _is_ending(self, key: CandidateKey) -> bool:
        """Whether the candidate is being deleted, as the server has said and the watch will: it waits for nothing."""
        thing = self._cluster.claim(key.name) if key.kind == "claim" else self._cluster.node(key.name)
        return thing is not None and thing.uid in self._by_uid

    def _waiting_lost(self) -> list[CandidateKey]:
        """The candidates that wait and of which no node is Ready."""
        return [key for key in self._waiting if self._is_lost(key)]

    def _is_lost(self, key: CandidateKey) -> bool:
        if key.kind != "claim":
            node = self._cluster.node(key.name)
            return node is not None and not node.ready
        claim = self._cluster.claim(key.name)
        nodes = () if claim is None else self._cluster.nodes_of(claim)
        return bool(nodes) and not any(node.ready for node in nodes)

    async def _count_blocked(self) -> int:
        """Number of slots that do not count for nodes that are not Ready; 0 if none of those waits."""
        if not self._waiting_lost():
            return 0
        blocked = 0
        for slot in tuple(self._slots):
            if slot.released_at is None and slot.blocked_from(self._settings) <= self._context.clock.now():
                names = [name for name, other in self._on_node.items() if other is slot]
                blocked += any([await self._is_blocked(name) for name in names])
        return blocked

    async def _is_blocked(self, name: str) -> bool:
        node, policy = self._cluster.node(name), self._context.settings.policy
        if node is None:
            return False
        deadline = cached_deadline(self._context, node)
        view = await self._cluster.view_in_slices(node, policy, deadline, lambda: None)
        return is_blocked(plan(view, self._context.clock.now()))

    def next_change(self) -> float | None:
        """The next instant (Unix seconds) at which the clock alone may free a slot for a waiting candidate."""
        if not self._waiting:
            return None
        now = self._context.clock.now()
        slots = self._slots if self._before_takeover is None else [*self._slots, self._before_takeover]
        instants = [at for slot in slots if (at := slot.next_change(now, self._settings)) is not None]
        if self._waiting_lost():
            due = (slot.blocked_from(self._settings) for slot in self._slots if slot.released_at is None)
            instants += [at if at > now else now + RECHECK_SECONDS for at in due]
        return min([*instants, *self._unknown_outcomes.values()], default=None)

    @property
    def maximum(self) -> int:
        """How many terminations may be in progress before a voluntary one has to wait."""
        return maximum_of(self._settings, len(self._managed))

    def __str__(self) -> str:
        return explain_maximum(self._settings, len(self._managed))

    def statistics(self) -> Mapping[str, int]:
        """Slots that are taken, by STATES."""
        self._taken()
        gone = sum(slot.released_at is not None for slot in self._slots)
        return {"ending": len(self._slots) - gone + len(self._granted), "replacing": gone}

    # -- slots taken ---------------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> VoluntarySettings:
        return self._context.settings.policy.voluntary

    def _taken(self) -> int:
        now = self._context.clock.now()
        self._unknown_outcomes = {key: until for key, until in self._unknown_outcomes.items() if until > now}
        self._slots = [slot for slot in self._slots if self._is_taken(slot, now)]
        if self._before_takeover is not None and self._is_taken(self._before_takeover, now):
            return self.maximum  # their number is not known
        return len(self._slots) + len(self._granted) + len(self._unknown_outcomes)

    def _is_taken(self, slot: DisruptionSlot, now: float) -> bool:
        starting = (pod for controller in slot.controllers for pod in self._cluster.starting_of(controller))
        return slot.is_taken(slot.released_at is None or is_replaced(starting, slot.since), now, self._settings)

    async def _confirm(self) -> None:
        """Read once from the server what is being deleted: another process may have begun deletions that the watch does
        not show yet, and pods that are starting may replace pods of nodes that are already gone."""
        if self._is_confirmed:
            return
        nodes = await read_all(self._context.client, NODES, keep=is_finalizing)
        claims: list[NodeClaim] = []
        if len(self._cluster.claims):
            try:
                claims = await read_all(self._context.client, self._context.claim_resource(), keep=is_finalizing)
            except NotServed:
                claims = []
        for node in nodes:
            if (seen := self._cluster.node(node.name)) is not None and seen.uid == node.uid:
                self._node_changed(seen, node)
        for claim in claims:
            if (known := self._cluster.claim(claim.name)) is not None and known.uid == claim.uid:
                self._claim_changed(known, claim)
        now, patience = self._context.clock.now(), self._settings.patience_seconds
        since = now - patience
        starting = [pod for pod in self._cluster.starting() if not is_replaced((pod,), since)]
        if starting:
            waited = max(patience - TAKEOVER_SECONDS, 0.0)
            controllers = {owner.uid for pod in starting if (owner := recreating_controller(pod))}
            self._before_takeover = DisruptionSlot(since, controllers, released_at=now - waited)
        self._is_confirmed = True

    # -- what the watch shows ------------------------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self._ended(old)
        elif is_finalizing(new):
            if new.uid not in self._by_uid and self._cluster.manages(self._nodes, new):
                slot = self._begin(new, (claim.uid for claim in self._cluster.claims_of(new)))
                self._on_node[new.name] = slot
                for pod in self._cluster.pods_on(new.name):
                    _note(slot, pod)
        elif new.deletion_timestamp is not None:
            self._ended(new)
        if len(self._managed) != self._number_of_managed:
            self._number_of_managed = len(self._managed)
            self._wake()

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        claim = new or old
        assert claim is not None
        if new is None or (new.deletion_timestamp is not None and not is_finalizing(new)):
            self._ended(claim)
        elif is_finalizing(new) and new.uid not in self._by_uid and self._cluster.manages_claim(self._nodes, new):
            self._begin(new, (node.uid for node in self._cluster.nodes_of(new)))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        # Owners are shared values: equal ones are the same object.
        if (slot := self._on_node.get(pod.node_name)) is not None:
            if old is None or old.owners is not pod.owners:
                _note(slot, pod)
            # A pod that came later is no progress of the drain.
            if pod.created <= slot.since and _has_moved(old, new):
                slot.moved_at = self._context.clock.now()
        if self._waiting and (owner := recreating_controller(pod)) and self._is_awaited(owner.uid):
            self._wake()

    def _is_awaited(self, controller: str) -> bool:
        slots = self._slots if self._before_takeover is None else [*self._slots, self._before_takeover]
        return any(slot.released_at is not None and controller in slot.controllers for slot in slots)

    def _begin(self, thing: Node | NodeClaim, related: Iterable[str]) -> DisruptionSlot:
        """A claim and its nodes take one slot."""
        assert thing.deletion_timestamp is not None
        slot = next((self._by_uid[uid] for uid in related if uid in self._by_uid), None)
        if slot is None:
            slot = DisruptionSlot(min(thing.deletion_timestamp, self._context.clock.now()), set())
            self._forget_free_slots()
            self._slots.append(slot)
        self._by_uid[thing.uid] = slot
        return slot

    def _forget_free_slots(self) -> None:
        """Drop the slots that no replacement can keep: where nothing waits and nothing reads metrics, nothing else
        does."""
        if len(self._slots) >= self._most_slots:
            now = self._context.clock.now()
            self._slots = [slot for slot in self._slots if slot.is_taken(False, now, self._settings)]
            self._most_slots = max(FEW_SLOTS, 2 * len(self._slots))

    def _ended(self, thing: Node | NodeClaim) -> None:
        slot = self._by_uid.pop(thing.uid, None)
        if slot is None:
            return
        if self._on_node.get(thing.name) is slot and isinstance(thing, Node):
            del self._on_node[thing.name]
        if all(each is not slot for each in self._by_uid.values()):
            slot.released_at = self._context.clock.now()
            self._wake()


def _has_moved(old: Pod | None, new: Pod | None) -> bool:
    """Whether a pod has left its node, or begun to stop."""
    return new is None or (new.deletion_timestamp is not None and old is not None and old.deletion_timestamp is None)


def _note(slot: DisruptionSlot, pod: Pod) -> None:
    if owner := recreating_controller(pod):
        slot.controllers.add(owner.uid)


def terminations_in_progress(cluster: ClusterCache, managed: ManagedNodes) -> int:
    """Slots of terminations whose nodes exist, as `Pace` counts them; a claim and its nodes take one."""
    nodes = (node for node in cluster.nodes.values() if is_finalizing(node) and cluster.manages(managed, node))
    ending = (claim for claim in cluster.claims.values() if is_finalizing(claim))
    claims = (claim for claim in ending if cluster.manages_claim(managed, claim))
    found = [(node.uid, {claim.uid for claim in cluster.claims_of(node)}) for node in nodes]
    found += [(claim.uid, {node.uid for node in cluster.nodes_of(claim)}) for claim in claims]
    counted: set[str] = set()
    number = 0
    for uid, related in found:
        number += counted.isdisjoint(related)
        counted.add(uid)
    return number


class CircuitBreaker:
    """Circuit breaker of health terminations: open while more managed nodes are unhealthy than health.maximumUnhealthy.

    `note` must be called with every change of a node. Invariant: the counts match the cache; the cost of a node change
    does not depend on the number of nodes. Instants are Unix seconds.
    """

    def __init__(self, manages: Callable[[Node], bool], settings: HealthSettings) -> None:
        self._manages = manages
        self._settings = settings
        self._managed: set[str] = set()
        self._unhealthy: set[str] = set()
        self._recovering: dict[str, float] = {}  # until when each counts; those that are over go with the next look

    def note(self, old: Node | None, new: Node | None) -> None:
        """Count a node that has changed, come (no `old`) or gone (no `new`)."""
        node = new or old
        if node is None:
            return
        self._managed.discard(node.name)
        self._unhealthy.discard(node.name)
        self._recovering.pop(node.name, None)
        if new is None or not self._manages(new):
            return
        self._managed.add(new.name)
        until = unhealthy_until(new, self._settings)
        if until == math.inf:
            self._unhealthy.add(new.name)
        elif until > -math.inf:
            self._recovering[new.name] = until

    def counts(self, now: float) -> UnhealthyNodes:
        """The counts at `now`."""
        self._recovering = {name: until for name, until in self._recovering.items() if until > now}
        return UnhealthyNodes(
            unhealthy=len(self._unhealthy),
            recovering=len(self._recovering),
            managed=len(self._managed),
            maximum=self._settings.maximum_unhealthy,
        )

    def closes_at(self, now: float) -> float | None:
        """When it closes by the clock alone; None if it is closed, or only an event can close it."""
        excess = self.counts(now).excess
        ends = sorted(self._recovering.values())
        return ends[excess - 1] if 0 < excess <= len(ends) else None
