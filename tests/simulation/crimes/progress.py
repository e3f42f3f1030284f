"""Too many requests, no progress, and what is left behind."""

from __future__ import annotations

import anyio
import msgspec
from support.disruption import TERMINABLE, create_node_budget
from support.inprocess import Arrived
from support.stage import NAMESPACE, a_budget_manifest, a_pod_manifest

from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.transport import Request
from gracectl.kube.transport.operation import operation_of
from gracectl.model import names
from gracectl.runtime.clock import LoopClock
from simulation.crimes.culprit import (
    CALM,
    CLAIM,
    LABELLED,
    LEASE,
    Culprit,
    World,
    noticed,
    says,
)
from simulation.deadlines import RETRIES

# -- traffic -----------------------------------------------------------------------------------------------------------


@says("writer: .* did patch nodes n1 while a held the Lease")
async def write_beside_the_leader(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, elects=True)
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15}
    leader = Culprit(world.stage)
    assert await leader.send("POST", LEASE, {"metadata": {"name": "gracectl"}, "spec": spec}) == 201
    assert await leader.patch("/api/v1/nodes/n1", LABELLED) == 200
    assert world.invariants.violations == []
    await world.culprit.patch("/api/v1/nodes/n1", LABELLED)


@says("writer: .* did patch nodes n1 while no process held the Lease")
async def write_without_a_lease(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, elects=True)
    await world.culprit.patch("/api/v1/nodes/n1", LABELLED)


@says(r"requests: \S+ create pods/eviction shop/shut more than 12 times, and 120 an hour")
async def ask_again_and_again(world: World) -> None:
    await world.stage.create(a_budget_manifest("shut", minAvailable=9), a_pod_manifest("shut", "n1"))
    await world.stage.delete_node("n1")
    for _ in range(40):
        assert await world.culprit.evict("shut") == 429
        await world.wait(5)


@says(r"requests: \S+ list nodeclaims /apis/\S+ more than 6 times, and 120 an hour")
async def list_again_and_again(world: World) -> None:
    for _ in range(20):
        await world.culprit.send("GET", CLAIM)
        await world.wait(5)


@says(r"requests: \S+ watch pods /api/v1/pods more than 6 times, and 24 an hour")
async def watch_again_and_again(world: World) -> None:
    for _ in range(10):
        request = Request(method="GET", path="/api/v1/pods", query=(("watch", "1"),))
        async with world.culprit.line.stream(request):
            await world.wait(5)


@says(r"requests: \S+ patch nodes/status /n1 more than 40 times, and 120 an hour")
async def write_again_and_again(world: World) -> None:
    for number in range(60):
        condition = {"type": "Drained", "status": "False", "message": str(number)}
        await world.culprit.patch("/api/v1/nodes/n1/status", {"status": {"conditions": [condition]}})
        await world.wait(5)


# -- progress ----------------------------------------------------------------------------------------------------------


@says("stall: pod web on node n1 may be evicted: nothing holds it")
async def leave_a_pod(world: World) -> None:
    await world.drain()
    await world.wait(120)


@says(r"not prompt: pod web may be evicted, and was not for 1\.5 s")
async def leave_a_pod_for_seconds(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, prompt_seconds=1.5)
    await world.drain()
    await world.wait(8)


@says("stall: pod web on node n1 may be evicted: nothing holds it")
async def leave_a_pod_beside_a_slow_one(world: World) -> None:
    """The server is at work on the eviction of the other pod: a webhook of its namespace is slow."""
    await world.stage.create(a_pod_manifest("web", "n1"), a_pod_manifest("slow", "n1"))
    await world.stage.delete_node("n1")
    request = Request(method="POST", path=f"/api/v1/namespaces/{NAMESPACE}/pods/slow/eviction")
    world.stage.transport.in_work["key"] = Arrived(0.0, operation_of(request), "slow")
    await world.wait(120)
    assert not any("slow" in each for each in world.invariants.violations if " stall" in each)


@says("stall: node n1 waits for its instance: nothing holds it")
async def leave_a_machine(world: World) -> None:
    await world.stage.delete_node("n1")
    await world.wait(120)


@says("stall: node n1 waits for its finalizer: nothing holds it")
async def leave_a_finalizer(world: World) -> None:
    await world.stage.delete_node("n1")
    await world.culprit.terminate("n1")
    await world.wait(120)


@says("stall: node n1 waits for its finalizer: nothing holds it")
async def leave_a_finalizer_after_a_failure(world: World) -> None:
    """The provider has failed, and has not said since that the machine has ended: it is asked again after a pause."""
    await world.stage.delete_node("n1")
    await world.culprit.terminate("n1")
    provider_id = f"sim:///zone-a/{world.stage.instances['n1']}"
    world.stage.provider.failures[provider_id] = world.stage.clock.monotonic()
    await world.wait(RETRIES)
    assert not any(" stall" in each for each in world.invariants.violations)
    await world.wait(120)


@says("stall: claim lone waits for its instance or its finalizer: nothing holds it")
async def leave_a_claim(world: World) -> None:
    await world.stage.create_claim("lone", {"providerID": "sim:///zone-a/i-none"})
    await world.stage.patch_claim("lone", {"metadata": {"finalizers": [names.FINALIZER]}})
    await world.stage.delete_claim("lone")
    await world.wait(120)


@says(r"unheard: node n1 is interrupted, and was not deleted for 9\d s")
async def leave_an_interrupted_node(world: World) -> None:
    """A budget for nodes is no excuse."""
    await create_node_budget(world.stage, minAvailable="100%")
    await world.stage.patch_node("n1", noticed(world, "spot", 120))
    await world.wait(100)


@says(r"not shown: n1 waits for pods \(shut\) for 9\d s, and nothing says so")
async def hide_what_blocks(world: World) -> None:
    await world.stage.create(a_budget_manifest("shut", minAvailable=9), a_pod_manifest("shut", "n1"))
    await world.stage.delete_node("n1")
    await world.wait(120)


@says("not shown: n1 is pending for 9. s, and nothing says so")
async def hide_a_pending_node(world: World) -> None:
    await world.stage.patch_node("n1", TERMINABLE)
    await world.wait(120)


@says(r"not shown: claimed-claim waits for the deletion of its nodes \(claimed\) for 9\d s, and nothing says so")
async def hide_a_node_that_a_deleted_claim_waits_for(world: World) -> None:
    """That its node was pending before, and for how long, is another wait."""
    await world.stage.patch_node("claimed", TERMINABLE)
    await world.wait(60)
    await world.stage.delete_claim("claimed-claim")
    await world.wait(60)
    assert world.invariants.violations == []
    await world.wait(60)


# -- baseline ----------------------------------------------------------------------------------------------------------


@says("baseline: a controller still has 1 objects EvictionCandidate")
async def keep_an_object(world: World) -> None:
    async with world.stage.controller() as controller:
        await world.wait(5)
        candidate = EvictionCandidate("shop", "web", "u", "n1", (), 0.0)
        controller.leak = [candidate]  # type: ignore[attr-defined]  # what a leak looks like
        world.invariants.check_end(calm=True)


@says(r"baseline: \d+ tasks of a controller, \d+ before the first termination")
async def keep_a_task(world: World) -> None:
    """Of a process that has started when the baseline was known."""
    async with world.stage.controller():
        await world.wait(20)
    await world.stage.delete_node("n1")
    async with world.stage.controller(), anyio.create_task_group() as group:
        await world.stage.until_gone("n1")
        await world.wait(40)
        world.invariants.check_end(calm=True)
        assert world.invariants.violations == []
        for _ in range(5):
            group.start_soon(LoopClock().sleep, 1e6)
        await world.stage.delete_node("n2")
        await world.stage.until_gone("n2")
        await world.wait(40)
        world.invariants.check_end(calm=True)
        group.cancel_scope.cancel()


@says("baseline: requests in flight: patch nodes n1")
async def keep_a_request(world: World) -> None:
    arrived = Arrived(0.0, operation_of(Request(method="PATCH", path="/api/v1/nodes/n1")), "line")
    world.stage.transport.in_work["key"] = arrived
