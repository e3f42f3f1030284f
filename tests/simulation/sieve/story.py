"""A story of the catalogue, and one run of it: undisturbed, or disturbed at one point."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import anyio
import msgspec
from kubesim.cluster import PARTS
from kubesim.faults import Rule, StaleReads
from simulation.invariants import Invariants
from simulation.sieve.ending import Ending, Names, ending_of
from simulation.sieve.patterns import OLDER, Point, SieveTransport
from simulation.terms import Terms
from support.stage import SILENT, Stage, finalizers_of, staged, the_settings

from gracectl.config import Settings
from gracectl.model.names import FINALIZER

REST: Final = 20.0
"""Seconds for which a controller goes on when a story is over: until the last condition and Event are written."""
DOWN: Final = 0.5
"""Seconds from a kill to the start of the next controller."""
PATIENCE: Final = 600.0
"""Seconds in which a story must be over."""
LAG: Final = 10.0
"""By so many seconds an API server's cache lags behind, for lists that may be old."""

UNUSED: Final = {
    "replicationcontrollers",
    "jobs",
    "garbage-collector",
    "serviceaccounts",
    "namespaces",
    "node-lifecycle",
    "taint-eviction",
    "ephemeral-claims",
}

Play = Callable[[Stage], AsyncGenerator[None, None]]
"""Builds the world, and yields: then the first controller starts. When that has put its finalizer on all nodes and
claims, it goes on with what people do until it is over."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """`options`: of the cluster. `of_chance`: reasons of Events that depend on when something was seen."""

    name: str
    play: Play
    settings: Settings
    options: Mapping[str, Any]
    of_chance: frozenset[str] = frozenset()


class Run(msgspec.Struct, frozen=True):
    """One run: how it ended, and the writes and events at which it could be disturbed, in words."""

    ending: Ending
    writes: list[str]
    events: list[str]


CATALOGUE: Final[dict[str, Story]] = {}
"""All stories by name."""


def story(
    *,
    settings: Settings | None = None,
    of_chance: frozenset[str] = frozenset(),
    **options: Any,
) -> Callable[[Play], Play]:
    """Put a story into the catalogue, under the name of its function. See Story."""

    def put(play: Play) -> Play:
        name = play.__name__.replace("_", " ")
        whole = {"kubelet": SILENT, "parts": PARTS - UNUSED, "events": False, "quarantine_seconds": 5.0, **options}
        CATALOGUE[name] = Story(
            name=name,
            play=play,
            settings=settings or the_settings(),
            options=whole,
            of_chance=of_chance,
        )
        return play

    return put


async def run(told: Story, reaches: Callable[[Point], bool]) -> Run:
    """Run a story, disturbed at the first point for which `reaches` is true. Raises TimeoutError if it is not over in
    time."""
    async with staged(settings=told.settings, **told.options) as stage:
        sieve = stage.transport = SieveTransport(stage, reaches)
        # Remembers what the server had; it matches no request.
        stage.server.faults.add(Rule(fault=StaleReads(LAG), path="^$"))
        names = Names(stage)
        over = anyio.Event()
        async with aclosing(told.play(stage)) as play:
            await anext(play)
            names.follow_events()
            invariants = Invariants(stage, Terms())
            async with invariants.watching(), anyio.create_task_group() as group:

                async def people() -> None:
                    with anyio.fail_after(PATIENCE):
                        await settled(stage)
                        await anext(play, None)
                        await stage.until(lambda: not _orphans(stage))
                    await stage.clock.sleep(REST)
                    sieve.is_over = True
                    over.set()

                group.start_soon(people)
                await _control(stage, sieve, over)
        overtaken = invariants.seen.pods.get(sieve.overtaken)
        allowed = f"pod {overtaken.name} was evicted 2 times" if overtaken else "nothing"
        broken = [each for each in invariants.check_end(calm=False) if not each.endswith(allowed)]
        ending = ending_of(stage, names, broken, sieve.killed_at)
        events = {key: at for key, at in ending.events.items() if key[1] not in told.of_chance}
        return Run(msgspec.structs.replace(ending, events=events), sieve.writes, sieve.events)


async def _control(stage: Stage, sieve: SieveTransport, over: anyio.Event) -> None:
    """Let a controller live until the story is over; if it is killed before, another one after it."""
    stage.provider_of_controllers = sieve.provider(stage.provider)
    async with stage.mortal():
        await _first_of(sieve.killed, over)
    if not sieve.killed.is_set():
        return
    await stage.clock.sleep(DOWN)
    if sieve.point is not None and sieve.point.kind in OLDER:
        # The world's own parts name themselves; a list without a version is answered from the newest state.
        stage.server.faults.add(Rule(fault=StaleReads(LAG), client="^$"))
    stage.provider_of_controllers = sieve.provider(stage.provider)
    async with stage.controller() as controller:
        await controller.wait_live()
        await sieve.land()
        await over.wait()
        await stage.clock.sleep(REST)


async def settled(stage: Stage) -> None:
    """Wait until the controller has put its finalizer on every node and claim."""
    await stage.until(lambda: all(FINALIZER in finalizers_of(node) for node in stage.nodes()))
    await stage.until_claims(lambda: all(FINALIZER in finalizers_of(claim) for claim in stage.claims()))


def _orphans(stage: Stage) -> bool:
    """Whether there are pods of nodes that are gone: the garbage collector looks for them now and then."""
    nodes = {node["metadata"]["name"] for node in stage.nodes()}
    return any(pod["spec"].get("nodeName", "") not in {"", *nodes} for pod in stage.server.store.table("pods"))


async def _first_of(*events: anyio.Event) -> None:
    async with anyio.create_task_group() as group:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        for event in events:
            group.start_soon(wait, event)
