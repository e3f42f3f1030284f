"""What `status` reads from the cluster's objects is what the controller does: in random worlds, second by second."""

from __future__ import annotations

import pytest
from kubesim.controllers.cloud import CloudSettings
from support.clients import being_deleted, seeing
from support.forecasts import a_world, create
from support.stage import Stage, staged

from gracectl.app.controller import Controller
from gracectl.inspect.status import NodePhase, node_statuses
from gracectl.inspect.watcher import ClusterWatcher

LOOKS = 400
"""Seconds that are looked at; most worlds are at rest by then."""

MOMENT = 0.3
"""Seconds: what has changed within them may not have been seen by both. Many events fall on whole seconds."""

Sample = dict[str, tuple[str, int]]
"""By node, its step and the pods left."""


def shown(stage: Stage, sight: ClusterWatcher) -> Sample:
    nodes = {node.name for node in sight.cluster.nodes.values() if being_deleted(node)}
    statuses = node_statuses(
        sight.cluster, stage.settings.termination, nodes, stage.clock.now(), has_pods=sight.has_pods_of
    )
    assert all(each.state is NodePhase.TERMINATING for each in statuses)
    return {each.name: (each.step, len(each.pods or ())) for each in statuses}


def done(controller: Controller) -> Sample:
    return {each.name: (each.step, each.pods_left) for each in controller.under_way()}


@pytest.mark.seeds(3)
async def test_steps_and_pods_left_are_the_controllers(seed: int) -> None:
    world, compared, seen = a_world(seed), 0, set()
    slow = CloudSettings(terminate_delay=20.0)
    async with staged(settings=world.settings, seed=seed, cloud=slow) as stage:
        await create(stage, world)
        async with stage.controller() as controller, seeing(stage, being_deleted) as sight:
            await stage.settle(controller)
            for name in world.deleted:
                await stage.delete_node(name)
            for second in range(LOOKS):
                await stage.clock.sleep(1.0 - 2 * MOMENT)
                before = (shown(stage, sight), done(controller))
                await stage.clock.sleep(MOMENT)
                now = (shown(stage, sight), done(controller))
                if before == now:  # at peace for a moment
                    assert now[0] == now[1], f"after {second} s"
                    compared += 1
                    seen |= {step for step, _ in now[0].values()}
                await stage.clock.sleep(MOMENT)
    assert compared > LOOKS / 2
    assert "drain" in seen
    assert seen <= {"drain", "instance"}
    assert controller.finished() == () or "instance" in seen
