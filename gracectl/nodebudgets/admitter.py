"""Admitter: admits terminations of nodes under their budgets, and records them first.

The webhook calls it for all clients, the controller for itself. Invariants: all replicas together admit no more
terminations than a budget allows, since each is written to the budget's status under its version; a node counts once,
even if it is requested repeatedly; entries are not withdrawn (two requests for one node would undo each other), and
expire if unused; reads are limited, since any client that reaches the webhook may send requests.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import anyio
import msgspec

from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Conflict, NotFound
from gracectl.kube.resources import NODES
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.nodebudgets.members import BudgetStore, Members, state_of
from gracectl.policy import nodebudgets
from gracectl.policy.budgets import Allowance, EvictionVerdict
from gracectl.runtime.backoff import Backoff, retried
from gracectl.runtime.clock import Clock
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.telemetry.metrics import NODE_ADMISSIONS, NODE_BUDGETS, Sample

CONTENTION_SECONDS = 5.0
"""How long others may be quicker in writing to a budget before the request is refused: half of the time that an
API server gives its webhooks.
"""

FIRST_RETRY, LAST_RETRY = 0.005, 0.2
"""Seconds before a budget that was changed meanwhile is written again."""

RETRY_AFTER_SECONDS = 1
"""A budget that has just changed is counted within this time."""

READS_PER_SECOND: Final = 1.0
"""Reads of nodes and budgets because a request contradicts the cache, over all requests of this process."""

NEWS_SECONDS: Final = 2.0
"""How long a request waits for the watch if the server was read for another request."""

DECISIONS: Final = ("free", "admitted", "forced", "refused", "unknown")
"""Decisions about requests: no budget selects the node, or it is unavailable anyway; it was counted, now or
before; it was counted although nothing was left; a budget refused; or the cluster has no such node.
"""


class UnknownNode(Exception):
    """The cache does not show this state of the node, and the server was read for another request."""


class Refusal(msgspec.Struct, frozen=True):
    """Refusal of a budget: its reason, what would help, and the seconds after which a retry is worth it."""

    budget: str
    allowance: Allowance
    reason: str
    remedy: str
    retry_after: int | None = None

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class Admitter:
    """Admission of node terminations; one for each process."""

    def __init__(
        self,
        client: KubeClient,
        nodes: Cache[Node],
        budgets: Cache[NodeDisruptionBudget],
        clock: Clock,
        *,
        rng: random.Random,
    ) -> None:
        self.nodes, self.budgets = nodes, budgets
        self.store = BudgetStore(client, budgets)
        self.members = Members(nodes, budgets)
        self._client = client
        self._clock = clock
        self._rng = rng
        self._decisions = Counter(dict.fromkeys(DECISIONS, 0))
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()  # while held or awaited
        self._reads = TokenBucket(clock, READS_PER_SECOND, 1)
        self._news: WeakValueDictionary[str, anyio.Event] = WeakValueDictionary()  # by node, while awaited
        nodes.subscribe(self._node_changed)

    async def wait_live(self) -> None:
        """Return when nodes and budgets are known."""
        await self.nodes.wait_live()
        await self.budgets.wait_live()

    async def admit(
        self, node: Node, *, dry_run: bool = False, is_forced: bool = False, is_watching: bool = False
    ) -> Refusal | None:
        """Count the node in all budgets that select it; None: it may be terminated, or changes no count anyway.

        `dry_run` counts nothing; `is_forced` counts without a check; with `is_watching` the state of the watch is
        enough for a refusal, since a change wakes the caller. Otherwise the server is read before a refusal, at most
        READS_PER_SECOND times. Raises ApiError if the read fails.
        """
        over = [] if node.deletion_timestamp is not None else self._over(node)
        if not over or not nodebudgets.is_available(node):
            if is_watching:
                await self._enter_unavailable(over, node)
            self._decisions["free"] += 1
            return None
        refusal = await self._decide(over, node, dry_run=dry_run, is_forced=is_forced, is_watching=is_watching)
        self._decisions["refused" if refusal is not None else "forced" if is_forced else "admitted"] += 1
        return refusal

    def statistics(self) -> Mapping[str, int]:
        """Number of requests by decision."""
        return dict(self._decisions)

    async def known(self, node: Node) -> Node | None:
        """The node of this name and UID in its current state; None: the cluster has none.

        A request may come from any client, so only the identity of the node is trusted. If the node seems newer than
        the cache, and would count differently, the server is read, or the watch shows it within NEWS_SECONDS. Raises
        ApiError; UnknownNode if neither shows the node.
        """
        found = self.nodes.get("", node.name)
        if not _is_covered(node, found):
            if self._reads.take():
                found = await self._read(node.name)
            else:
                found = await self._shown(node)
        if found is not None and found.uid == node.uid:
            return found
        self._decisions["unknown"] += 1
        return None

    async def _read(self, name: str) -> Node | None:
        with suppress(NotFound):
            return await self._client.get(NODES, ("", name))
        return None

    async def _shown(self, node: Node) -> Node | None:
        """State of the node in the watch, once that is as new as the request. Raises UnknownNode."""
        with anyio.move_on_after(NEWS_SECONDS):
            while True:
                news = self._news.setdefault(node.name, anyio.Event())
                await news.wait()
                seen = self.nodes.get("", node.name)
                if _is_covered(node, seen):
                    return seen
        raise UnknownNode

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None and (news := self._news.pop(node.name, None)) is not None:
            news.set()

    async def _decide(
        self, over: list[NodeDisruptionBudget], node: Node, *, dry_run: bool, is_forced: bool, is_watching: bool
    ) -> Refusal | None:
        # All are checked before any is charged, and the one with least left first: a charge in vain blocks others until
        # it expires.
        over = sorted(over, key=lambda budget: (budget.disruptions_allowed, budget.name))
        if not is_forced:
            for budget in over:
                if (refusal := await self._checked(budget, node, is_watching=is_watching)) is not None:
                    return refusal
        if dry_run:
            return None
        for budget in over:
            refusal = await self._charge(budget.name, node, is_forced=is_forced, is_watching=is_watching)
            if refusal is not None:
                return refusal
        return None

    async def _enter_unavailable(self, over: list[NodeDisruptionBudget], node: Node) -> None:
        """Enter a node that the watch shows as unavailable: it may become Ready, and be shown so before its
        deletion is, and must not be counted as available then. An error does not block its termination.
        """
        for budget in over:
            with suppress(ApiError):
                await self._charge(budget.name, node, is_forced=True, is_watching=True)

    async def _checked(self, budget: NodeDisruptionBudget, node: Node, *, is_watching: bool) -> Refusal | None:
        refusal = self._refused(budget, node)
        if refusal is None or is_watching or not self._reads.take():
            return refusal
        fresh = await self.store.look_up(budget.name)
        return None if fresh is None or not nodebudgets.selects_node(fresh, node) else self._refused(fresh, node)

    async def _charge(self, name: str, node: Node, *, is_forced: bool, is_watching: bool) -> Refusal | None:
        """Enter the node into the status of the budget. Within this process one at a time, against others by version.

        ::

            newest known state ─▶ does not select the node, or has counted it: admitted
                       ▲       ─▶ refuses: final if read from the server, watching, or ─┐
                       │          read for another request less than a second ago       │
                       │       ─▶ allows: write ─▶ done: admitted                       │
                       │                        └▶ Conflict: back off ──────────────────┤
                       └───────────────── read from the server ◀────────────────────────┘
        """
        gives_up = self._clock.monotonic() + CONTENTION_SECONDS
        budget: NodeDisruptionBudget | None = None
        is_fresh = is_watching

        async def read() -> None:
            nonlocal budget, is_fresh
            budget, is_fresh = await self.store.look_up(name), True

        async def enter() -> Refusal | None:
            while budget is not None and nodebudgets.selects_node(budget, node) and not self._is_counted(budget, node):
                refusal = None if is_forced else self._refused(budget, node)
                if refusal is None:
                    with suppress(NotFound):
                        await self.store.write(budget, self._entry(budget, node))
                    return None
                if is_fresh or not self._reads.take():
                    return refusal
                await read()
            return None

        async def back_off(seconds: float) -> None:
            await self._clock.sleep(seconds)
            await read()

        async with self._locks.setdefault(name, anyio.Lock()):
            budget = self.store.budget(name)
            try:
                return await retried(
                    enter,
                    may_repeat=lambda error: isinstance(error, Conflict),
                    wait=lambda: Backoff(FIRST_RETRY, LAST_RETRY, rng=self._rng),
                    sleep=back_off,
                    stop=lambda _: self._clock.monotonic() >= gives_up,
                )
            except Conflict:
                return _contended(name)

    def _is_counted(self, budget: NodeDisruptionBudget, node: Node) -> bool:
        return nodebudgets.is_admitted(budget, node, self._clock.now())

    def _entry(self, budget: NodeDisruptionBudget, node: Node) -> dict[str, object]:
        entered: dict[str, object] = {"disruptedNodes": {node.name: format_time(self._clock.now())}}
        if not nodebudgets.is_available(node):
            return entered
        # The figures, too, are as the next count will find them: refusals before that show them.
        return entered | {
            "disruptionsAllowed": max(budget.disruptions_allowed - 1, 0),
            "currentAvailable": max(budget.current_available - 1, 0),
        }

    def _over(self, node: Node) -> list[NodeDisruptionBudget]:
        return [budget for budget in self.store.budgets() if nodebudgets.selects_node(budget, node)]

    def _refused(self, budget: NodeDisruptionBudget, node: Node) -> Refusal | None:
        verdict = self._verdict(budget, node)
        return None if verdict.allowance in {Allowance.UNCHARGED, Allowance.ALLOWED} else _refusal(budget, verdict)

    def _verdict(self, budget: NodeDisruptionBudget, node: Node) -> EvictionVerdict:
        """Verdict of the budget's status and of the caches: without a leader the status does not count failing
        nodes.
        """
        now = self._clock.now()
        verdict = nodebudgets.disruption_verdict(budget, node, now)
        if verdict.allowance is Allowance.ALLOWED:
            seen = self.members.count_nodes(budget, now)
            if not seen.allowed:
                as_seen = msgspec.structs.replace(
                    budget,
                    expected_nodes=seen.expected,
                    current_available=seen.available,
                    desired_available=seen.desired,
                )
                return EvictionVerdict(Allowance.EXHAUSTED, nodebudgets.explain(as_seen))
        return verdict


def _is_covered(node: Node, seen: Node | None) -> bool:
    """Whether the cache decides about the node of a request: it is as new, or the request changes no count."""
    if seen is None:
        return False
    if seen.uid == node.uid and state_of(seen) == state_of(node):
        return True
    return _version(seen) >= _version(node)


def _version(node: Node) -> tuple[int, str]:
    """Order of versions: numbers, but a request may claim anything."""
    return (len(node.resource_version), node.resource_version)


def _refusal(budget: NodeDisruptionBudget, verdict: EvictionVerdict) -> Refusal:
    retry_after = RETRY_AFTER_SECONDS if verdict.allowance is Allowance.NOT_OBSERVED else None
    return Refusal(
        budget.name, verdict.allowance, verdict.reason, nodebudgets.remedy_of(budget, verdict.allowance), retry_after
    )


def _contended(name: str) -> Refusal:
    reason = f"node disruption budget {name} is being written by too many clients"
    return Refusal(name, Allowance.NOT_OBSERVED, reason, "try again in a moment", RETRY_AFTER_SECONDS)


STATES = {
    Allowance.ALLOWED: "allowing",
    Allowance.EXHAUSTED: "spent",
    Allowance.NOT_COUNTABLE: "uncounted",
    Allowance.NOT_OBSERVED: "unobserved",
}
"""Label of a verdict in metrics and in `gracectl budgets`."""


def node_budget_samples(admitter: Admitter) -> Iterator[Sample]:
    """Metrics of node budgets, for every value of every label."""
    node_statuses = Counter(nodebudgets.allowance_of(budget) for budget in admitter.budgets.values())
    for allowance, state in STATES.items():
        yield Sample(NODE_BUDGETS, (state,), node_statuses[allowance])
    decisions = admitter.statistics()
    for decision in DECISIONS:
        yield Sample(NODE_ADMISSIONS, (decision,), decisions[decision])
