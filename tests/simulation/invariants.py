"""Invariants: every rule of the contract, judged by an observer that sees the server's history only.

    invariants = Invariants(stage, terms)
    async with invariants.watching():
        ...                                  # the run
    violations = invariants.check_end(calm=True)

Each violation is a line: the instant (monotonic seconds), the rule, what was done or not done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

import anyio
import msgspec
from support.stage import Stage

from simulation.baseline import Baseline
from simulation.begins import Begins
from simulation.deadlines import Deadlines, Due, Lateness
from simulation.forecasts import Forecasts
from simulation.machines import Finalizers, Instances, Unasked
from simulation.observer import Observer
from simulation.pods import Budgets, Deletions, Evictions
from simulation.progress import TICK, Interruptions, Progress, Promptness, Visibility
from simulation.replacements import Replacements
from simulation.terms import Terms
from simulation.traffic import Requests, Writers
from simulation.voluntary import NodeBudgets, Pace


class Invariants:
    """See the module. Make it before the first controller starts, when the cluster is as it is to be."""

    def __init__(self, stage: Stage, terms: Terms) -> None:
        self.seen = seen = Observer(stage, terms)
        self.deadlines = Deadlines(seen)
        self.writers = Writers(seen)
        self._deletions = Deletions(seen, self.deadlines)
        self._lateness = Lateness(seen, self.deadlines)
        self._budgets = Budgets(seen)
        self._promptness = Promptness(seen)
        self.forecasts = Forecasts(seen)
        seen.add(
            self.deadlines,
            self._lateness,
            self._deletions,
            Evictions(seen, self.deadlines),
            Replacements(seen),
            self._budgets,
            Finalizers(seen, self.deadlines),
            Instances(seen, self.deadlines),
            Unasked(seen),
            pace := Pace(seen),
            Begins(seen, pace),
            NodeBudgets(seen, self.deadlines),
            self.writers,
            Requests(seen),
            Progress(seen),
            Interruptions(seen),
            self._promptness,
            Visibility(seen),
            Baseline(seen),
            self.forecasts,
        )
        seen.replay()

    @property
    def terms(self) -> Terms:
        """The terms of the run, which may be replaced as long as nothing is judged by them."""
        return self.seen.terms

    @terms.setter
    def terms(self, terms: Terms) -> None:
        self.seen.terms = terms

    @property
    def violations(self) -> list[str]:
        """What was found so far."""
        return self.seen.violations

    @property
    def deletions(self) -> int:
        """How many pods controllers have deleted, repeats counted."""
        return self._deletions.count

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Judge while the block lasts."""
        async with anyio.create_task_group() as group:
            await group.start(self._budgets.run)
            group.start_soon(self._tick)
            group.start_soon(self._promptness.run)
            group.start_soon(self.forecasts.run)
            yield
            group.cancel_scope.cancel()

    def begin(self) -> None:
        """Controllers have taken charge, and nothing has happened yet: what they hold is the baseline."""
        self.seen.tick()

    def faults_end(self) -> None:
        """From now on nothing disturbs the controllers."""
        self.terms = msgspec.structs.replace(self.terms, faults_end=self.seen.now)

    def life(self) -> AbstractContextManager[None]:
        """A controller lives while the block lasts: it answers for what is not done. Without any, controllers answer
        for all that is not done while nothing disturbs them."""
        return self._lateness.life()

    def due(self, node: str) -> Due | None:
        """The deadline of a node, in monotonic seconds; None: it has none (yet)."""
        return self.deadlines.of(node)

    def check_end(self, calm: bool) -> list[str]:
        """Every violation, those about things that were not done too. `calm`: the run had its time after the faults."""
        self.seen.end(calm)
        return self.violations

    async def _tick(self) -> None:
        while True:
            await self.seen.stage.clock.sleep(TICK)
            self.seen.tick()
