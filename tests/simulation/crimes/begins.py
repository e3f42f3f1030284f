"""Crimes of beginning: in a freeze, outside of a window, or with too many nodes; and what a campaign leaves behind."""

from __future__ import annotations

from typing import Any

from support.disruption import TERMINABLE
from support.stage import the_settings

from gracectl.model import names
from simulation.campaigns import FREEZES, NODE_DRAINS
from simulation.crimes.culprit import World, says

NODE = "/api/v1/nodes"


async def _campaign(world: World, **spec: Any) -> str:
    """Create a campaign; returns its mark."""
    whole = {"action": "Drain", "nodeNames": ["n1", "n2"], "maxConcurrent": 1, **spec}
    drain = {"apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain", "metadata": {"name": "c"}, "spec": whole}
    made = await world.stage.call("POST", NODE_DRAINS, drain)
    return f"c/{made['metadata']['uid']}"


async def _begin(world: World, node: str, mark: str) -> None:
    annotations = {names.NODE_DRAIN: mark, names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}
    assert await world.culprit.patch(f"{NODE}/{node}", {"metadata": {"annotations": annotations}}) == 200


async def _freeze(world: World) -> None:
    await world.stage.call("POST", FREEZES, {"metadata": {"name": names.FREEZE}, "data": {}})
    await world.wait(2)


@says("begin: n1 began in a freeze")
async def begin_in_a_freeze(world: World) -> None:
    mark = await _campaign(world)
    await _freeze(world)
    await _begin(world, "n1", mark)


@says("begin: n1 began in a freeze")
async def delete_in_a_freeze(world: World) -> None:
    await world.stage.patch_node("n1", TERMINABLE)
    await _freeze(world)
    await world.culprit.send("DELETE", f"{NODE}/n1")


@says("begin: n1 was deleted voluntarily outside of its windows")
async def delete_outside_of_a_window(world: World) -> None:
    world.stage.settings = the_settings(voluntary={"windows": [{"schedule": "*/2 * * * *", "duration": "1m"}]})
    world.invariants.seen.settings[:] = [world.stage.settings]
    await world.stage.patch_node("n1", TERMINABLE)
    await world.wait(90 - world.stage.clock.now() % 120)
    await world.culprit.send("DELETE", f"{NODE}/n1")


@says("begin: n1 began for c outside of its windows")
async def begin_outside_of_a_window(world: World) -> None:
    mark = await _campaign(world, windows=[{"schedule": "*/2 * * * *", "duration": "1m"}])
    await world.wait(90 - world.stage.clock.now() % 120)
    await _begin(world, "n1", mark)


@says("begin: n2 began for c beside n1: 1 may at once")
async def begin_too_many(world: World) -> None:
    mark = await _campaign(world)
    for node in ("n1", "n2"):
        await _begin(world, node, mark)


@says("begin: n2 began for a campaign beside n1: 1 at once")
async def begin_above_the_pace(world: World) -> None:
    mark = await _campaign(world, action="Terminate", maxConcurrent=2)
    await _begin(world, "n1", mark)
    await world.wait(2)
    await _begin(world, "n2", mark)


@says("begin: n1 began for a, which has never been")
async def begin_for_no_campaign(world: World) -> None:
    await _begin(world, "n1", "a/b")


@says("begin: n1 still has the mark of c/.*, which was canceled")
async def forget_the_mark(world: World) -> None:
    await _begin(world, "n1", await _campaign(world))
    await world.stage.call("DELETE", f"{NODE_DRAINS}/c")
