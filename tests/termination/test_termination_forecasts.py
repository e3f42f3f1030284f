"""What a plan foretells is what then happens: random worlds, told beforehand, then lived through.

GRACECTL_WORLDS=500 pytest tests/termination/test_termination_forecasts.py      more worlds than the suite has time for
GRACECTL_WORLDS=1 GRACECTL_FIRST_WORLD=217 pytest ...                           the one that failed
"""

from __future__ import annotations

import math
import os

import anyio
import msgspec
import pytest
from support.inprocess import Executed, uid_of
from support.stage import Stage, staged
from support.worlds import REPLACEMENT_SECONDS, World, a_world, create

from gracectl.app import Controller
from gracectl.policy.course import How
from gracectl.policy.forecast import Assumptions, NodeProspect
from gracectl.policy.prospects import Prospect
from gracectl.termination.outlook import Outlook, outlook

pytestmark = pytest.mark.anyio

FIRST = int(os.environ.get("GRACECTL_FIRST_WORLD", "0"))
COUNT = int(os.environ.get("GRACECTL_WORLDS", "20"))
HORIZON = 3 * 3600.0
"""Longer than any protection that ends, and any deadline, in these worlds."""

SLACK = 1.0
"""Seconds by which what is certain may be off, and what is not may lie outside of its span."""


class Happened(msgspec.Struct, frozen=True):
    """A pod was told to leave for the first time, so many seconds after the nodes were deleted."""

    at: float
    how: How
    grace: int | None


async def lived_through(stage: Stage, controller: Controller, world: World) -> Outlook:
    """Foretell in the instant of the deletion, delete, and let all happen."""
    await stage.settle(controller)
    # A whole second, as the server's timestamps are.
    await stage.clock.sleep(math.ceil(stage.clock.monotonic()) - stage.clock.monotonic())
    assumptions = Assumptions(replacement_seconds=REPLACEMENT_SECONDS)
    told = outlook(
        controller._observed,
        world.settings.termination,
        world.doomed,
        stage.clock.now(),
        assumptions,
    )
    for name in world.doomed:
        await stage.delete_node(name)
    with anyio.move_on_after(HORIZON):
        await stage.until_gone(*world.doomed)
    return told


def first_words(stage: Stage, begun: float) -> dict[str, Happened]:
    """By pod uid, how it was first told to leave. `begun`: when the nodes were deleted, by the server's clock."""
    start = begun - stage.clock.now() + stage.clock.monotonic()
    found: dict[str, Happened] = {}
    asked = [(How.EVICTED, each) for each in stage.evictions if each.status == 201]
    asked += [(How.DELETED, each) for each in stage.transport.of("delete", "pods") if each.status == 200]
    for how, each in sorted(asked, key=lambda pair: pair[1].instant):
        found.setdefault(uid_of(each.request), Happened(round(each.instant - start, 3), how, _grace(each)))
    return found


def _grace(executed: Executed) -> int | None:
    grace: int | None = msgspec.json.decode(executed.request.body or b"{}").get("gracePeriodSeconds")
    return grace


def differences(pod: Prospect, happened: Happened | None, now: float) -> list[str]:
    """What happened to a pod, held against what was foretold."""
    name, told = pod.entry.pod.name, pod.told
    if told is None:
        return [f"{name}: not foretold, but {happened}"] if happened else []
    earliest, latest = told.earliest - now, None if told.latest is None else told.latest - now
    if happened is None:
        return [f"{name}: {pod.ways} at {earliest} to {latest}, but nothing happened"] if latest is not None else []
    found = []
    if happened.how not in pod.ways:
        found.append(f"{name}: {pod.ways} foretold, {happened}")
    if not earliest - SLACK <= happened.at <= (float("inf") if latest is None else latest + SLACK):
        found.append(f"{name}: at {earliest} to {latest} foretold, {happened}")
    if pod.is_certain and happened.how is How.DELETED and pod.orders[0].grace != happened.grace:
        found.append(f"{name}: {pod.orders[0]} foretold, {happened}")
    return found


def disorder(pods: list[Prospect], happened: dict[str, Happened]) -> list[str]:
    """Pairs that were foretold in one order, and left in the other."""
    told = [pod for pod in pods if pod.told is not None and pod.entry.pod.uid in happened]
    return [
        f"{first.entry.pod.name} was to leave before {second.entry.pod.name}"
        for first in told
        for second in told
        if first.told
        and second.told
        and first.told.latest is not None
        and first.told.latest < second.told.earliest
        and happened[first.entry.pod.uid].at > happened[second.entry.pod.uid].at + 0.01
    ]


def ends(stage: Stage, node: NodeProspect, now: float) -> list[str]:
    """When the node's instance was asked to end, held against what was foretold of its drain."""
    instance = stage.instances[node.name]
    journal = [entry for entry in stage.cluster.cloud.journal if entry.id == instance and entry.what == "shutting-down"]
    at = journal[0].instant - now if journal else None
    if node.drained is None:
        return [f"{node.name}: never drained foretold, ended at {at}"] if at is not None else []
    earliest, latest = node.drained.earliest - now, node.drained.latest
    if at is None:
        return [] if latest is None else [f"{node.name}: drained by {latest - now} foretold, never ended"]
    if at < earliest - SLACK or (latest is not None and at > latest - now + SLACK):
        return [f"{node.name}: drained at {earliest} to {latest} foretold, ended at {at}"]
    return []


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
async def test_what_is_foretold_happens(seed: int) -> None:
    world = a_world(seed)
    async with staged(settings=world.settings, seed=seed) as stage:
        await create(stage, world)
        async with stage.controller() as controller:
            told = await lived_through(stage, controller, world)
        now = told.whole.at
        happened = first_words(stage, now)
        pods = [pod for node in told.nodes for pod in node.prospect.pods]
        found = [each for pod in pods for each in differences(pod, happened.get(pod.entry.pod.uid), now)]
        found += disorder(pods, happened)
        found += [each for node in told.nodes for each in ends(stage, node.prospect, now)]
        assert not found, "\n".join(found)
