"""One contender empties the nodes of one site: what it took, and what became of the pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from statistics import quantiles

import anyio
import msgspec

from benchmarks.contenders.contender import Contender, Entry, Usage
from benchmarks.ground.ground import Ground, Pace, opened
from benchmarks.ground.nodes import PATIENCE
from benchmarks.ground.passage import Passage
from benchmarks.ground.site import NEW, OLD, App, site

ROUNDS, PUBLISHED_ROUNDS = 3, 7
"""Rounds of a scenario, so that all scenarios take ten minutes; and of what is published."""

SPREAD_ROUNDS = 3
"""With fewer rounds there is no spread to show."""

LAST_NEWS = 5.0
"""Seconds within which a watch tells of everything that has happened."""


class Load(msgspec.Struct, frozen=True):
    """What stands there: `nodes` old ones, from which the pods of all apps are to leave, and as many new ones.
    `deadline`: so many seconds after an old node is asked to end nothing may keep it; None: no such instant."""

    nodes: int
    apps: tuple[App, ...]
    pace: Pace = Pace()
    deadline: float | None = None

    @property
    def pods(self) -> int:
        """Of all apps."""
        return sum(app.replicas for app in self.apps)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What one contender has reached. `seconds` until all pods were gone, replaced, and counted by their budgets;
    `evicted` until the last one was told to leave. `left`: pods that were given up. `broken`: apps of which more were
    missing than their budget allows. `promises_broken`: pods that had to leave in spite of what was promised to them;
    `after_promises`: seconds from the end of each promise until its pod was told to leave. `rounds`: `seconds` of
    every round, of which this one is the median.
    """

    contender: str
    pods: int
    nodes: int
    seconds: float
    evicted: float
    usage: Usage
    most_missing: Mapping[str, int]
    broken: tuple[str, ...]
    left: int = 0
    promises_broken: int = 0
    after_promises: tuple[float, ...] = ()
    rounds: tuple[float, ...] = ()

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile of `rounds`: half of all rounds lie between them."""
        if len(self.rounds) < SPREAD_ROUNDS:
            return self.seconds, self.seconds
        lower, _, upper = quantiles(self.rounds, n=4, method="inclusive")
        return lower, upper

    @property
    def rate(self) -> float:
        """Evictions a second."""
        return (self.pods - self.left) / self.evicted

    @property
    def failings(self) -> str:
        """What has not been done as it should have, to be put behind its name; "" if nothing."""
        found = [f"gives {self.left} pods up"] if self.left else []
        found += [f"breaks {self.promises_broken} promises"] if self.promises_broken else []
        found += [f"breaks {len(self.broken)} budgets"] if self.broken else []
        return "".join(f"; {each}" for each in found)


async def trial(ground: Ground, load: Load, contender: Contender, name: str, way: Ground | None = None) -> Trial:
    """A fresh site, called after `name`, emptied once; over `way`, if one is given, as only the contender goes it."""
    async with site(ground, name, way) as one:
        room = max(1, -(-load.pods // load.nodes))
        old = await one.add_nodes(OLD, load.nodes, pods=room + 2)
        await one.deploy(*load.apps, pace=load.pace)
        await one.add_nodes(NEW, load.nodes, pods=2 * room + 2)
        async with contender.entered(one, old) as entry:
            passage = Passage(one, load.apps, old, load.deadline)
            passage.begin()
            seconds = await _emptied(entry, passage)
            if entry.goes_on:
                await passage.promises_kept()
            usage = await entry.usage()
            passage.end()
    return Trial(
        contender=contender.name,
        pods=passage.pods,
        nodes=load.nodes,
        seconds=seconds,
        evicted=passage.evicted or seconds,
        usage=usage,
        left=passage.untold,
        promises_broken=passage.promises_broken,
        after_promises=tuple(sorted(passage.after_promises)),
        most_missing=passage.most_missing,
        broken=tuple(app.name for app in load.apps if passage.most_missing[app.name] > _allowed(app)),
    )


async def _emptied(entry: Entry, passage: Passage) -> float:
    """Let a contender do its work. Returns the seconds until it was over, or until it gave the rest up."""
    has_ended = anyio.Event()

    async def go() -> None:
        await entry.go()
        has_ended.set()
        if not entry.goes_on:
            # What it has done last is seen a moment later.
            with anyio.move_on_after(LAST_NEWS):
                await passage.told()
            if passage.untold:
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(go)
        seconds = await passage.over()
        # It may look once more before it is content; what it takes for that counts as well.
        with anyio.move_on_after(PATIENCE):
            await has_ended.wait()
        group.cancel_scope.cancel()
        return seconds
    return passage.seconds


def _allowed(app: App) -> float:
    """How many of its pods may be missing at once."""
    bound = (app.bound or {}).get("maxUnavailable", app.replicas)
    # Kubernetes rounds shares of a maximum up.
    return -(-app.replicas * int(bound[:-1]) // 100) if isinstance(bound, str) else bound


async def in_parallel(
    ground: Ground, load: Load, contenders: Sequence[Contender], name: str, way: Ground | None = None, rounds: int = 1
) -> list[Trial]:
    """The median round of each contender. Contenders run at the same time on sites of their own, as they mostly wait;
    the rounds of a contender follow one another.
    """
    found: dict[str, Trial] = {}

    async def one(number: int, contender: Contender) -> None:
        trials = [await trial(ground, load, contender, f"{name}-{number}-{each}", way) for each in range(rounds)]
        found[contender.name] = middle(trials)

    async with anyio.create_task_group() as group:
        for number, contender in enumerate(contenders):
            group.start_soon(one, number, contender)
    return [found[contender.name] for contender in contenders]


@asynccontextmanager
async def beside(
    ground: Ground, load: Load, contenders: Sequence[Contender], name: str, way: Ground | None = None, rounds: int = 1
) -> AsyncIterator[list[Trial]]:
    """The same, while other things are measured: for those that sleep nearly all of their time. The list is complete
    when the context ends."""
    found: list[Trial] = []

    async def run(there: Ground) -> None:
        found.extend(await in_parallel(there, load, contenders, name, way, rounds))

    # An embedded cluster is one process, which would keep what is measured waiting.
    one = opened(None) if ground.is_embedded and way is None else nullcontext(ground)
    async with one as there, anyio.create_task_group() as group:
        group.start_soon(run, there)
        yield found


def middle(trials: Sequence[Trial]) -> Trial:
    """The trial that took neither longest nor shortest, with the seconds of all."""
    median = sorted(trials, key=lambda one: one.seconds)[len(trials) // 2]
    return msgspec.structs.replace(median, rounds=tuple(one.seconds for one in trials))


def vs_ideal(trials: Sequence[Trial], ideals: Sequence[Trial]) -> list[float]:
    """How many times as long each took as the ideal that ran beside it."""
    return [one.seconds / ideal.seconds for one, ideal in zip(trials, ideals, strict=True)]
