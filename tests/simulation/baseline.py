"""Rule about the processes themselves: when nothing terminates any more, they hold what they held before.

The one rule that looks into a controller: its statistics, its tasks, and the objects that it keeps.
"""

from __future__ import annotations

import asyncio
import functools
import gc
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from enum import Enum
from itertools import zip_longest
from types import CellType, FunctionType, MethodType
from typing import Any, Final

from support.virtual import PROCESSES

from gracectl.app.controller import Controller
from simulation.contract import NEVER, has_finalizer
from simulation.observer import Observer, Rule

TRANSIENT: Final = (
    "NodeState",
    "NodeClaimState",
    "MaintenanceState",
    "EvictionCandidate",
    "ScheduledDeletion",
    "PdbQueue",
)
"""Classes of which a controller keeps objects for each termination, pod or budget, and none afterwards."""

QUIET: Final = 10.0
"""So many seconds after the last termination at the latest, tasks that were begun for it have ended."""

CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, Counter)


class Baseline(Rule):
    """Tasks, requests in flight and memory return to what they were before the first termination."""

    name = "baseline"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._before: dict[bool, list[list[int]]] = {True: [], False: []}
        self._after: list[list[int]] = []
        self._began = False
        self._over = -NEVER  # when the last termination was over

    def tick(self) -> None:
        things = [*self.seen.nodes.values(), *self.seen.claims.values()]
        is_going = any(each.deleted < each.gone == NEVER for each in things)
        self._began |= any(each.deleted < NEVER for each in things) or any(map(self.seen.is_kept, things))
        over = max((each.gone for each in things if each.gone < NEVER), default=-NEVER)
        if is_going or over > self._over:
            self._over, self._after = over, []
        if not self._began:
            is_settled = all(has_finalizer(each.object) for each in things if each.gone == NEVER)
            if is_settled and not self.seen.stage.transport.in_work:
                self._before[self._knows_claims()].append(tasks())
        elif not is_going and self.seen.now >= max(over + QUIET, self.seen.calm_since):
            self._after.append(tasks())

    def _knows_claims(self) -> bool:
        """Whether there are node claims, whose definitions may come during a run: more is watched then."""
        return any(self.seen.stage.server.store.table("customresourcedefinitions.apiextensions.k8s.io"))

    def end(self, calm: bool) -> None:
        kept = [each for each in self.seen.living_nodes() if self.seen.is_kept(each)]
        is_going = any(
            each.deleted < each.gone == NEVER for each in (*self.seen.nodes.values(), *self.seen.claims.values())
        )
        if not calm or is_going or kept:
            return
        self._compare_tasks()
        if left := [str(each.operation) for each in self.seen.stage.transport.in_work.values()]:
            self.violated(f"requests in flight: {', '.join(left)}")
        for controller in self.seen.stage.living:
            self._look_into(controller)

    def _compare_tasks(self) -> None:
        """Each process has as many tasks as one had before, one that has started since as well. One of them leads, and
        has the most; the second stands for all others."""
        known = self._before[self._knows_claims()]
        if not known or not self._after:
            return
        before = [max(counts) for counts in zip_longest(*known, fillvalue=0)]
        after = [min(counts) for counts in zip_longest(*self._after, fillvalue=0)]
        for place, count in enumerate(after):
            if count > (bound := before[min(place, len(before) - 1)]):
                self.violated(f"{count} tasks of a controller, {bound} before the first termination")

    def _look_into(self, controller: Controller) -> None:
        statistics = controller.statistics()
        figures = {
            "terminations": len(controller.under_way()) + len(controller.claims_under_way()),
            "pods that wait for their eviction": statistics.evictor.waiting,
            "scheduled deletions": statistics.deleter.scheduled,
            **{f"objects {name}": count for name, count in kept_by(controller).items()},
        }
        for what, count in figures.items():
            if count:
                self.violated(f"a controller still has {count} {what}, and nothing terminates")


def tasks() -> list[int]:
    """How many tasks of gracectl's each process on this event loop has, most first."""
    owners = (PROCESSES.get(task) for task in asyncio.all_tasks() if task.get_name().startswith("gracectl."))
    return sorted(Counter(owners).values(), reverse=True)


def kept_by(controller: Controller, classes: Collection[str] = TRANSIENT) -> Counter[str]:
    """Objects of these classes of gracectl that a controller holds, by class."""
    counts: Counter[str] = Counter()
    known: set[int] = set()
    queue: deque[Any] = deque([controller])
    while queue:
        thing = queue.popleft()
        if id(thing) in known:
            continue
        known.add(id(thing))
        is_ours = type(thing).__module__.startswith("gracectl.") and not isinstance(thing, Enum)
        if is_ours and type(thing).__name__ in classes:
            counts[type(thing).__name__] += 1
        queue.extend(_held_by(thing))
    return counts


def _held_by(thing: Any) -> Iterator[Any]:
    """What an object holds, as far as it is a controller's own."""
    if isinstance(thing, MethodType):
        yield thing.__self__
    elif isinstance(thing, FunctionType):
        yield from thing.__closure__ or ()
    elif isinstance(thing, CellType):
        try:
            yield thing.cell_contents
        except ValueError:
            return
    elif isinstance(thing, (functools.partial, *CONTAINERS)) or type(thing).__module__.startswith("gracectl."):
        for each in gc.get_referents(thing):
            if not isinstance(each, type):
                yield each
