"""Lets nodes end as far as their budgets allow, and writes it down before it says yes.

The webhook asks here for everybody, and the controller for itself. Invariants: of all replicas together no more ends
are admitted than a budget allows, as each of them is written into the budget's ledger under its version; a node is
counted once, however often it is asked for; nothing that was written is taken back by whoever wrote it (two who ask for
one node would take each other's away): what was not used, the ledger forgets by itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import anyio
import msgspec

from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Conflict, NotFound
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.model.nodebudget import NodeDisruptionBudget
from gracectl.model.times import format_time
from gracectl.nodebudgets.members import Members
from gracectl.nodebudgets.store import BudgetStore
from gracectl.policy.budgets import Allowance, EvictionVerdict
from gracectl.policy.nodebudgets import disruption_verdict, explain, is_admitted, is_available, remedy_of, selects_node
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

PATIENCE_SECONDS = 5.0
"""How long others may be quicker in writing to a budget before somebody is told to come again: half of the time that
an API server gives its webhooks."""

FIRST_RETRY, LAST_RETRY = 0.005, 0.2
"""Seconds before a budget that somebody else has written meanwhile is written again."""

COUNTED_SECONDS = 1
"""A budget that has just changed is counted within this time; whoever asks may do so again."""

LOOK_UPS: Final = 8
"""How many nodes are read from the server at once because a question named one that the cache does not have so."""

ANSWERS: Final = ("free", "admitted", "forced", "refused", "unknown")
"""What becomes of a question: no budget governs the node, or it is unavailable anyway; it was counted, or had been; it
was counted although nothing was left; a budget says no; or the cluster has no such node."""


class Refusal(msgspec.Struct, frozen=True):
    """Which budget says no and why, for people; what would help; and (seconds) when asking again is worth it."""

    budget: str
    leave: Allowance
    reason: str
    remedy: str
    retry_after: int | None = None

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class Admitter:
    """See the module. One for each process; what it answers is true for all of them."""

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
        self.ledger = BudgetStore(client, budgets)
        self.muster = Members(nodes, budgets)
        self._client = client
        self._clock = clock
        self._rng = rng
        self._answers = Counter(dict.fromkeys(ANSWERS, 0))
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()  # while something holds or awaits it
        self._look_ups = anyio.CapacityLimiter(LOOK_UPS)

    async def wait_live(self) -> None:
        """Return when nodes and budgets are known."""
        await self.nodes.wait_live()
        await self.budgets.wait_live()

    async def admit(
        self, node: Node, *, dry_run: bool = False, is_forced: bool = False, is_watching: bool = False
    ) -> Refusal | None:
        """Count the node in all budgets that govern it; None: it may end now, or changes no count anyway.

        `dry_run` counts nothing; `is_forced` counts without asking; who `is_watching` is told no by what the watch has
        shown, as he is woken by it, and the server is not asked. Raises ApiError if the server cannot be asked.
        """
        over = [] if node.deletion_timestamp is not None else self._over(node)
        if not over or not is_available(node):
            if is_watching:
                await self._enter_for_safety(over, node)
            self._answers["free"] += 1
            return None
        refusal = await self._answer(over, node, dry_run=dry_run, is_forced=is_forced, is_watching=is_watching)
        self._answers["refused" if refusal is not None else "forced" if is_forced else "admitted"] += 1
        return refusal

    def statistics(self) -> Mapping[str, int]:
        """How many questions were answered in each way of ANSWERS."""
        return dict(self._answers)

    async def known(self, node: Node) -> Node | None:
        """The node of this name and UID in the state that the cluster has; None: the cluster has none.

        Of a question that anything may have asked no more is believed than which node it is about. The server is read
        once where the cache has another state of it, or nothing. Raises ApiError.
        """
        seen = self.nodes.get("", node.name)
        if seen is not None and (seen.uid, seen.resource_version) == (node.uid, node.resource_version):
            return seen
        with suppress(NotFound):
            async with self._look_ups:
                found = await self._client.get(NODES, ("", node.name))
            if found.uid == node.uid:
                return found
        self._answers["unknown"] += 1
        return None

    async def _answer(
        self, over: list[NodeDisruptionBudget], node: Node, *, dry_run: bool, is_forced: bool, is_watching: bool
    ) -> Refusal | None:
        # All are asked before any is charged, and the one that has least first: what is charged in vain blocks others
        # until it is forgotten.
        over = sorted(over, key=lambda budget: (budget.disruptions_allowed, budget.name))
        if not is_forced:
            for budget in over:
                if (refusal := await self._asked(budget, node, is_watching=is_watching)) is not None:
                    return refusal
        if dry_run:
            return None
        for budget in over:
            refusal = await self._charged(budget.name, node, is_forced=is_forced, is_watching=is_watching)
            if refusal is not None:
                return refusal
        return None

    async def _enter_for_safety(self, over: list[NodeDisruptionBudget], node: Node) -> None:
        """What a watch calls unavailable may have become Ready, and be shown so before its deletion is: then it must
        not be counted. That it cannot be entered keeps it from nothing."""
        for budget in over:
            with suppress(ApiError):
                await self._charged(budget.name, node, is_forced=True, is_watching=True)

    async def _asked(self, budget: NodeDisruptionBudget, node: Node, *, is_watching: bool) -> Refusal | None:
        refusal = self._refused(budget, node)
        if refusal is None or is_watching:
            return refusal
        fresh = await self.ledger.look_up(budget.name)
        return None if fresh is None or not selects_node(fresh, node) else self._refused(fresh, node)

    async def _charged(self, name: str, node: Node, *, is_forced: bool, is_watching: bool) -> Refusal | None:
        """One at a time within this process, and against the others by the budget's version."""
        backoff = Backoff(FIRST_RETRY, LAST_RETRY, rng=self._rng)
        gives_up = self._clock.monotonic() + PATIENCE_SECONDS
        turn = self._turns.setdefault(name, anyio.Lock())
        async with turn:
            budget, is_fresh = self.ledger.budget(name), is_watching
            while budget is not None and selects_node(budget, node):
                if is_admitted(budget, node, self._clock.now()):
                    return None
                if not is_forced and (refusal := self._refused(budget, node)) is not None:
                    if is_fresh:
                        return refusal
                    budget, is_fresh = await self.ledger.look_up(name), True
                    continue
                try:
                    await self.ledger.write(budget, self._entry(budget, node))
                except NotFound:
                    return None
                except Conflict:
                    if self._clock.monotonic() >= gives_up:
                        return _contended(name)
                    await self._clock.sleep(backoff.next())
                    budget, is_fresh = await self.ledger.look_up(name), True
                    continue
                return None
        return None

    def _entry(self, budget: NodeDisruptionBudget, node: Node) -> dict[str, object]:
        entered: dict[str, object] = {"disruptedNodes": {node.name: format_time(self._clock.now())}}
        if not is_available(node):
            return entered
        # The figures, too, are as the next count will find them: who is refused before that is shown why.
        return entered | {
            "disruptionsAllowed": max(budget.disruptions_allowed - 1, 0),
            "currentAvailable": max(budget.current_available - 1, 0),
        }

    def _over(self, node: Node) -> list[NodeDisruptionBudget]:
        return [budget for budget in self.ledger.budgets() if selects_node(budget, node)]

    def _refused(self, budget: NodeDisruptionBudget, node: Node) -> Refusal | None:
        verdict = self._verdict(budget, node)
        return None if verdict.allowance in {Allowance.UNCHARGED, Allowance.ALLOWED} else _refusal(budget, verdict)

    def _verdict(self, budget: NodeDisruptionBudget, node: Node) -> EvictionVerdict:
        """What the ledger says, and what we see ourselves: while nobody leads, nobody counts the nodes that fail."""
        now = self._clock.now()
        verdict = disruption_verdict(budget, node, now)
        if verdict.allowance is Allowance.ALLOWED:
            seen = self.muster.count_nodes(budget, now)
            if not seen.allowed:
                as_seen = msgspec.structs.replace(
                    budget,
                    expected_nodes=seen.expected,
                    current_available=seen.available,
                    desired_available=seen.desired,
                )
                return EvictionVerdict(Allowance.EXHAUSTED, explain(as_seen))
        return verdict


def _refusal(budget: NodeDisruptionBudget, verdict: EvictionVerdict) -> Refusal:
    retry_after = COUNTED_SECONDS if verdict.allowance is Allowance.NOT_OBSERVED else None
    return Refusal(budget.name, verdict.allowance, verdict.reason, remedy_of(budget, verdict.allowance), retry_after)


def _contended(name: str) -> Refusal:
    reason = f"node disruption budget {name} is being written by too many at once"
    return Refusal(name, Allowance.NOT_OBSERVED, reason, "try again in a moment", COUNTED_SECONDS)
