"""One contender empties the nodes of one site: what it took, and what became of the pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import msgspec

from benchmarks.contenders.contender import Contender, Usage
from benchmarks.ground.ground import Ground, Pace
from benchmarks.ground.passage import Passage
from benchmarks.ground.site import NEW, OLD, App, site


class Load(msgspec.Struct, frozen=True):
    """What stands there: `nodes` old ones, from which the pods of all apps are to leave, and as many new ones.
    `annotations` are of the old nodes."""

    nodes: int
    apps: tuple[App, ...]
    pace: Pace = Pace()
    annotations: Mapping[str, str] = {}

    @property
    def pods(self) -> int:
        """Of all apps."""
        return sum(app.replicas for app in self.apps)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What one contender has reached. `seconds` until all pods were gone, replaced, and counted by their budgets;
    `evicted` until the last one was told to leave. `broken`: apps of which more were missing than their budget allows.
    """

    contender: str
    pods: int
    nodes: int
    seconds: float
    evicted: float
    usage: Usage
    most_missing: Mapping[str, int]
    broken: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Evictions a second."""
        return self.pods / self.evicted


async def trial(ground: Ground, load: Load, contender: Contender, name: str) -> Trial:
    """A fresh site, called after `name`, emptied once."""
    async with site(ground, name) as one:
        room = max(1, -(-load.pods // load.nodes))
        old = await one.add_nodes(OLD, load.nodes, pods=room + 2, annotations=load.annotations)
        await one.deploy(*load.apps, pace=load.pace)
        await one.add_nodes(NEW, load.nodes, pods=2 * room + 2)
        async with contender.entered(one, old) as entry:
            passage = Passage(one, load.apps, old)
            passage.begin()
            async with anyio.create_task_group() as group:
                group.start_soon(entry.go)
                seconds = await passage.over()
            usage = await entry.usage()
    assert passage.evicted is not None
    return Trial(
        contender=contender.name,
        pods=passage.pods,
        nodes=load.nodes,
        seconds=seconds,
        evicted=passage.evicted,
        usage=usage,
        most_missing=passage.most_missing,
        broken=tuple(app.name for app in load.apps if passage.most_missing[app.name] > _allowed(app)),
    )


def _allowed(app: App) -> float:
    """How many of its pods may be missing at once."""
    bound = (app.bound or {}).get("maxUnavailable", app.replicas)
    # Kubernetes rounds shares of a maximum up.
    return -(-app.replicas * int(bound[:-1]) // 100) if isinstance(bound, str) else bound


async def in_parallel(ground: Ground, load: Load, contenders: Sequence[Contender], name: str) -> list[Trial]:
    """Each on a site of its own, all at once: for those that mostly wait."""
    found: dict[str, Trial] = {}

    async def one(number: int, contender: Contender) -> None:
        found[contender.name] = await trial(ground, load, contender, f"{name}-{number}")

    async with anyio.create_task_group() as group:
        for number, contender in enumerate(contenders):
            group.start_soon(one, number, contender)
    return [found[contender.name] for contender in contenders]


def middle(trials: Sequence[Trial]) -> Trial:
    """The one that took neither longest nor shortest."""
    return sorted(trials, key=lambda one: one.seconds)[len(trials) // 2]


def vs_ideal(trials: Sequence[Trial], ideals: Sequence[Trial]) -> list[float]:
    """How many times as long each took as the ideal that ran beside it."""
    return [one.seconds / ideal.seconds for one, ideal in zip(trials, ideals, strict=True)]
