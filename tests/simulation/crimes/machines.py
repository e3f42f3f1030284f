"""Crimes against machines, nodes and claims."""

from __future__ import annotations

import msgspec
from support.disruption import TERMINABLE, create_node_budget

from simulation.crimes.culprit import (
    CALM,
    CLAIM,
    World,
    attach,
    noticed,
    says,
)

# -- machines ----------------------------------------------------------------------------------------------------------


@says("finalizer: node n1 was released while its instance is running")
async def release_a_running_node(world: World) -> None:
    await world.stage.delete_node("n1")
    await world.culprit.patch("/api/v1/nodes/n1", {"metadata": {"finalizers": None}})


@says("finalizer: claim claimed-claim was released while its instance is running")
async def release_a_running_claim(world: World) -> None:
    await world.stage.delete_claim("claimed-claim")
    await world.stage.patch_node("claimed", {"metadata": {"finalizers": None}})
    await world.stage.delete_node("claimed")
    await world.culprit.patch(f"{CLAIM}/claimed-claim", {"metadata": {"finalizers": None}})


@says("finalizer: claim claimed-claim was released before its node claimed")
async def release_a_claim_before_its_node(world: World) -> None:
    await world.stage.delete_claim("claimed-claim")
    await world.wait(2)
    await world.culprit.patch(f"{CLAIM}/claimed-claim", {"metadata": {"finalizers": None}})


@says("finalizer: node n1: the finalizer was removed, and it is not being deleted")
async def release_a_living_node(world: World) -> None:
    await world.culprit.patch("/api/v1/nodes/n1", {"metadata": {"finalizers": None}})


@says("finalizer: node n1 was released with volume pv attached")
async def release_with_a_volume(world: World) -> None:
    await world.culprit.terminate("n1")
    await world.wait(1)
    await attach(world, "n1")
    await world.stage.delete_node("n1")
    await world.culprit.patch("/api/v1/nodes/n1", {"metadata": {"finalizers": None}})


@says("machine: the machine of node n2, which is not being deleted, was terminated")
async def terminate_a_living_machine(world: World) -> None:
    await world.wait(2)
    await world.culprit.terminate("n2")


@says("machine: the machine i-strange was terminated, and nothing that is deleted has it")
async def terminate_a_strange_machine(world: World) -> None:
    world.stage.cluster.cloud.create("i-strange", "elsewhere")
    world.stage.instances["elsewhere"] = "i-strange"
    await world.culprit.terminate("elsewhere")


@says("machine: the machine of n1 was terminated before its deadline, with pod web")
async def terminate_with_a_pod(world: World) -> None:
    await world.drain()
    await world.wait(5)
    await world.culprit.terminate("n1")


@says("machine: the machine of n1 was terminated with volume pv attached")
async def terminate_with_a_volume(world: World) -> None:
    await attach(world, "n1")
    await world.stage.delete_node("n1")
    await world.wait(5)
    await world.culprit.terminate("n1")


@says("unasked: node n2 was deleted, and nothing asks for that")
async def delete_an_unasked_node(world: World) -> None:
    await world.culprit.send("DELETE", "/api/v1/nodes/n2")


@says("unasked: claim claimed-claim was deleted, and nothing asks for that")
async def delete_an_unasked_claim(world: World) -> None:
    await world.culprit.send("DELETE", f"{CLAIM}/claimed-claim")


@says("unasked: node n2 or its machine has ended, and nothing has asked for that")
async def lose_a_node(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, asked=frozenset({"n1"}))
    await world.stage.delete_node("n2")


# -- voluntary ---------------------------------------------------------------------------------------------------------


@says("pace: n2 was deleted voluntarily beside n1: 1 at once")
async def rotate_too_many(world: World) -> None:
    for node in ("n1", "n2"):
        await world.stage.patch_node(node, TERMINABLE)
        await world.wait(2)
        await world.culprit.send("DELETE", f"/api/v1/nodes/{node}")


@says("pace: n2 was deleted voluntarily beside n1: 1 at once")
async def rotate_too_many_that_go_some_day(world: World) -> None:
    for node in ("n1", "n2"):
        await world.stage.patch_node(node, noticed(world, "maintenance", 5000))
        await world.wait(2)
        await world.culprit.send("DELETE", f"/api/v1/nodes/{node}")


@says("pace: n1 was deleted for its health while 3 are unhealthy: 1 may")
async def end_too_many_for_their_health(world: World) -> None:
    for node in ("n1", "n2", "timed"):
        sick = {"type": "Ready", "status": "False", "lastTransitionTime": "2000-01-01T00:00:00Z", "reason": "Sick"}
        await world.stage.patch_node(node, {"status": {"conditions": [sick]}}, "/status")
    await world.wait(5)
    await world.culprit.send("DELETE", "/api/v1/nodes/n1")


@says("node budget: node n1 was deleted: pool-a keeps 1, 0 are left")
async def break_a_node_budget(world: World) -> None:
    await create_node_budget(world.stage, minAvailable="100%")
    await world.stage.patch_node("n1", TERMINABLE)
    await world.wait(2)
    await world.culprit.send("DELETE", "/api/v1/nodes/n1")


@says("node budget: node n1 was admitted by pool-a, which allows none")
async def admit_by_a_spent_node_budget(world: World) -> None:
    await create_node_budget(world.stage, minAvailable="100%")
    await world.wait(2)
    entry = {"status": {"disruptionsAllowed": 0, "disruptedNodes": {"n1": "2026-01-01T00:00:00Z"}}}
    budget = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets/pool-a"
    assert await world.culprit.patch(f"{budget}/status", entry) == 200
