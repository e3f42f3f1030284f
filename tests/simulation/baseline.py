"""Rule about the processes themselves: when nothing terminates any more, they hold what they held before.

The one rule that looks into a controller: its statistics, its tasks, and the objects that it keeps.
"""

from __future__ import annotations

import asyncio
import functools
import gc
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any, Final

from gracectl.app.controller import Controller
from simulation.contract import NEVER
from simulation.observer import SETTLING, Observer, Rule

TRANSIENT: Final = (
    "NodeState",
    "NodeClaimState",
    "MaintenanceState",
    "EvictionCandidate",
    "ScheduledDeletion",
    "PdbQueue",
)
"""Classes of which a controller keeps objects for each termination, pod or budget, and none afterwards."""

CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, Counter)


class Baseline(Rule):
    """Tasks, requests in flight and memory return to what they were before the first termination."""

    name = "baseline"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._before: list[int] = []
        self._after: list[int] = []
        self._began = False
        self._processes = 0
        self._over_since = NEVER

    def tick(self) -> None:
        going = [*self.seen.nodes.values(), *self.seen.claims.values()]
        is_going = any(each.deleted < each.gone == NEVER for each in going)
        self._began |= any(each.deleted < NEVER for each in going) or any(map(self.seen.is_kept, going))
        if is_going:
            self._over_since, self._after = NEVER, []
            return
        self._over_since = min(self._over_since, self.seen.now)
        if not self._began:
            self._before.append(tasks())
            self._processes = len(self.seen.lists)
        elif len(self.seen.lists) > self._processes:
            return  # another process has started since, with tasks of its own
        elif self.seen.now - max(self._over_since, self.seen.calm_since) > SETTLING:
            self._after.append(tasks())

    def end(self, calm: bool) -> None:
        kept = [each for each in self.seen.living_nodes() if self.seen.is_kept(each)]
        is_going = any(
            each.deleted < each.gone == NEVER for each in (*self.seen.nodes.values(), *self.seen.claims.values())
        )
        if not calm or is_going or kept:
            return
        if self._before and self._after and min(self._after) > max(self._before):
            self.violated(f"{min(self._after)} tasks of controllers, {max(self._before)} before the first termination")
        if left := [str(each.operation) for each in self.seen.stage.transport.in_work.values()]:
            self.violated(f"requests in flight: {', '.join(left)}")
        for controller in self.seen.stage.living:
            self._look_into(controller)

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


def tasks() -> int:
    """How many tasks of controllers there are on this event loop."""
    return sum(task.get_name().startswith("gracectl.") for task in asyncio.all_tasks())


def kept_by(controller: Controller, classes: Collection[str] = TRANSIENT) -> Counter[str]:
    """Objects of these classes of gracectl that a controller holds, by class."""
    found: Counter[str] = Counter()
    known: set[int] = set()
    queue: deque[Any] = deque([controller])
    while queue:
        thing = queue.popleft()
        if id(thing) in known:
            continue
        known.add(id(thing))
        if type(thing).__module__.startswith("gracectl.") and type(thing).__name__ in classes:
            found[type(thing).__name__] += 1
        queue.extend(_held_by(thing))
    return found


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
