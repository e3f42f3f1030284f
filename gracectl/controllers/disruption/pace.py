"""Pace of voluntary terminations: the places that are taken, and the units that wait for one.

Which places are taken follows from the caches: nodes and claims that are being deleted and that our finalizer holds,
and the pods that they have displaced. Invariants: a place is reserved before the DELETE is sent, and until the watch
shows it; the first one of a tenure is given only after the server itself was asked what is being deleted, so a watch
that is late lets no more begin; who waits is woken by whatever frees a place, a change or an exact instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.disruption.candidate import CandidateKey
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.kube.errors import NotServed
from gracectl.kube.reading import read_all
from gracectl.kube.resources import NODES
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.pace import DisruptionRank, DisruptionSlot, controller_of, is_replaced, maximum_of, next_to_begin
from gracectl.policy.pending import PendingReason
from gracectl.policy.settings import VoluntarySettings

DOUBT_SECONDS: Final = 60.0
"""How long a DELETE without an answer may still be carried out: API servers end a request after that time."""

EARLIER_SECONDS: Final = 30.0
"""How long a new leader waits for pods that may replace those of nodes that were gone before it; most do not."""

STATES: Final = ("ending", "replacing")
"""Of a place that is taken: its node is there, or the replacements of its pods are not Ready."""


class PaceStatistics(msgspec.Struct, frozen=True):
    """How many wait, by what for, since when the one that waits longest (Unix seconds); and how many places are taken,
    by their state, of how many."""

    pending: Mapping[PendingReason, int] = {}
    pending_since: float | None = None
    places: Mapping[str, int] = {}
    maximum: int = 0


class Pace:
    """See the module; `wake` is called when a place may have become free for a unit that waits."""

    def __init__(self, context: StepContext, wake: Callable[[], None]) -> None:
        self._context = context
        self._cluster = context.cluster
        self._wake = wake
        self._selector = context.settings.node_selector
        self._managed: set[str] = set()  # names of nodes
        self._places: list[DisruptionSlot] = []
        self._by_uid: dict[str, DisruptionSlot] = {}  # by uid of a node or claim that is being deleted
        self._on_node: dict[str, DisruptionSlot] = {}
        self._waiting: dict[CandidateKey, DisruptionRank] = {}
        self._denied: set[CandidateKey] = set()
        self._granted: set[CandidateKey] = set()
        self._doubts: dict[CandidateKey, float] = {}
        self._earlier: DisruptionSlot | None = None  # of all that ended before this tenure
        self._is_confirmed = False
        self._cluster.nodes.subscribe(self._node_changed, replay=True)
        self._cluster.claims.subscribe(self._claim_changed, replay=True)
        self._cluster.pods.subscribe(self._pod_changed)

    # -- for the units -------------------------------------------------------------------------------------------------

    def has_place(self, key: CandidateKey, rank: DisruptionRank) -> bool:
        """Whether the unit may begin now; if not, it waits from now on, and is named by `grant` when it may.

        One whose DELETE is in doubt has kept its place, but not while others wait.
        """
        if not self._waiting and self._doubts.pop(key, 0.0) > self._context.clock.now():
            self._granted.add(key)
        if key in self._granted:
            return True
        self._waiting[key] = rank
        self._wake()
        return False

    def is_denied(self, key: CandidateKey) -> bool:
        """Whether the unit waits, and others have been given what was free."""
        return key in self._denied

    def leave(self, key: CandidateKey, *, in_doubt: bool = False) -> None:
        """The unit waits no longer and needs no place. `in_doubt`: its DELETE may still be carried out."""
        self._waiting.pop(key, None)
        self._denied.discard(key)
        if key in self._granted:
            self._granted.discard(key)
            if in_doubt:
                self._doubts[key] = self._context.clock.now() + DOUBT_SECONDS
            self._wake()

    def forget(self, key: CandidateKey) -> None:
        """The unit is gone, or the watch shows that it is being deleted, and the place that it takes."""
        self.leave(key)
        if self._doubts.pop(key, None) is not None:
            self._wake()

    async def grant(self) -> list[CandidateKey]:
        """Give the free places to those that wait; returns the units that are worth a look. Raises ApiError."""
        if not self._waiting:
            return []
        await self._confirm()
        chosen = next_to_begin(self._waiting, self.maximum - self._taken())
        for key in chosen:
            del self._waiting[key]
            self._denied.discard(key)
            self._granted.add(key)
        denied = [key for key in self._waiting if key not in self._denied]
        self._denied.update(denied)
        return [*chosen, *denied]

    def looks_at(self) -> float | None:
        """The next instant (Unix seconds) at which the clock alone may free a place for a unit that waits."""
        if not self._waiting:
            return None
        now = self._context.clock.now()
        places = self._places if self._earlier is None else [*self._places, self._earlier]
        instants = [at for place in places if (at := place.looks_at(now, self._settings)) is not None]
        return min([*instants, *self._doubts.values()], default=None)

    @property
    def maximum(self) -> int:
        """How many terminations may be under way before none begins by itself."""
        return maximum_of(self._settings, len(self._managed))

    def __str__(self) -> str:
        """`1 of 10 managed nodes at once (voluntary.maximumAtOnce: 10%)`: for people."""
        written = self._settings.maximum_at_once
        return f"{self.maximum} of {len(self._managed)} managed nodes at once (voluntary.maximumAtOnce: {written})"

    def statistics(self) -> Mapping[str, int]:
        """How many places are taken, by STATES."""
        self._taken()
        gone = sum(place.gone is not None for place in self._places)
        return {"ending": len(self._places) - gone + len(self._granted), "replacing": gone}

    # -- what is taken -------------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> VoluntarySettings:
        return self._context.settings.policy.voluntary

    def _taken(self) -> int:
        now = self._context.clock.now()
        self._doubts = {key: until for key, until in self._doubts.items() if until > now}
        self._places = [place for place in self._places if self._is_taken(place, now)]
        if self._earlier is not None and self._is_taken(self._earlier, now):
            return self.maximum  # how many of them there were is not known
        return len(self._places) + len(self._granted) + len(self._doubts)

    def _is_taken(self, place: DisruptionSlot, now: float) -> bool:
        starting = (pod for controller in place.controllers for pod in self._cluster.starting_of(controller))
        return place.is_taken(place.gone is None or is_replaced(starting, place.since), now, self._settings)

    async def _confirm(self) -> None:
        """Ask the server, once, what is being deleted: another process may have begun what the watch does not show yet.
        And the pods that are starting may be replacements of what has ended before."""
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
        starting = [pod for pod in self._cluster.starting_of("") if not is_replaced((pod,), since)]
        if starting:
            waited = max(patience - EARLIER_SECONDS, 0.0)
            self._earlier = DisruptionSlot(since, {controller_of(pod) for pod in starting}, gone=now - waited)
        self._is_confirmed = True

    # -- what the watch shows ------------------------------------------------------------------------------------------

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self._managed.discard(old.name)
            self._over(old)
            return
        is_managed = self._selector.matches(new.labels)
        if is_managed != (new.name in self._managed):
            (self._managed.add if is_managed else self._managed.discard)(new.name)
            self._wake()
        if is_finalizing(new):
            if is_managed and new.uid not in self._by_uid:
                place = self._begin(new, (claim.uid for claim in self._cluster.claims_of(new)))
                self._on_node[new.name] = place
                for pod in self._cluster.pods_on(new.name):
                    _note(place, pod)
        elif new.deletion_timestamp is not None:
            self._over(new)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        claim = new or old
        assert claim is not None
        if new is None or (new.deletion_timestamp is not None and not is_finalizing(new)):
            self._over(claim)
        elif is_finalizing(new) and new.uid not in self._by_uid and self._cluster.is_managed(new, self._selector):
            self._begin(new, (node.uid for node in self._cluster.nodes_of(new)))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if (place := self._on_node.get(pod.node_name)) is not None:
            _note(place, pod)
        if self._waiting and self._is_awaited(controller_of(pod)):
            self._wake()

    def _is_awaited(self, controller: str) -> bool:
        places = self._places if self._earlier is None else [*self._places, self._earlier]
        return any(place.gone is not None and controller in place.controllers for place in places)

    def _begin(self, thing: Node | NodeClaim, kin: Iterable[str]) -> DisruptionSlot:
        """A claim and its nodes take one place."""
        assert thing.deletion_timestamp is not None
        place = next((self._by_uid[uid] for uid in kin if uid in self._by_uid), None)
        if place is None:
            place = DisruptionSlot(min(thing.deletion_timestamp, self._context.clock.now()), set())
            self._places.append(place)
        self._by_uid[thing.uid] = place
        return place

    def _over(self, thing: Node | NodeClaim) -> None:
        place = self._by_uid.pop(thing.uid, None)
        if place is None:
            return
        if self._on_node.get(thing.name) is place and isinstance(thing, Node):
            del self._on_node[thing.name]
        if all(each is not place for each in self._by_uid.values()):
            place.gone = self._context.clock.now()
            self._wake()


def _note(place: DisruptionSlot, pod: Pod) -> None:
    if controller := controller_of(pod):
        place.controllers.add(controller)
