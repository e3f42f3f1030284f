"""Crimes against pods, and against deadlines."""

from __future__ import annotations

import msgspec
from support.stage import NAMESPACE, a_pod_manifest, a_workload, the_settings

from gracectl.model import names
from simulation.crimes.culprit import (
    CALM,
    DEAF,
    MERGE,
    PERIOD,
    SETTINGS,
    Culprit,
    World,
    attach,
    noticed,
    says,
)

# -- pods --------------------------------------------------------------------------------------------------------------


@says("early deletion: pod web was deleted, and nothing says that node 'n1' has a deadline")
async def delete_without_deadline(world: World) -> None:
    await world.drain()
    await world.culprit.delete("web", 30)


@says("early deletion: pod web was deleted, and nothing says that node 'timed' has")
async def delete_for_a_node_that_has_gone(world: World) -> None:
    await world.drain("timed")
    await world.wait(PERIOD)
    await world.culprit.terminate("timed")
    await world.stage.patch_node("timed", {"metadata": {"finalizers": None}})
    await world.wait(2)
    assert await world.culprit.delete("web", 1) == 200


@says(r"early deletion: pod web was deleted 10\.0* s before its time")
async def delete_before_its_time(world: World) -> None:
    await world.drain("timed", terminationGracePeriodSeconds=10)
    await world.wait(PERIOD - 20)
    await world.culprit.delete("web", 10)


@says(r"early deletion: pod web was deleted 10\.0* s before its time")
async def delete_by_a_clock_that_is_further_ahead_than_any(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, clock_error=9.0)
    await delete_before_its_time(world)


@says(r"early deletion: pod web was deleted 20\.0* s before its time")
async def delete_before_the_time_of_its_wave(world: World) -> None:
    """Without it that would be in time: other settings have ranges by priority."""
    ranges = [{"priority": 0, "shutdownGracePeriodSeconds": 10}, {"priority": 1000, "shutdownGracePeriodSeconds": 30}]
    changed = the_settings(shutdownGracePeriodByPodPriority=ranges)
    world.stage.settings = msgspec.structs.replace(changed, node_groups=SETTINGS.node_groups)
    await world.drain("timed", terminationGracePeriodSeconds=10)
    await world.wait(PERIOD - 60)
    await world.culprit.delete("web", 10)


@says(r"early deletion: pod web \(own grace 10\) was granted 1 s when 8\.0* s were left")
async def delete_with_too_little_grace(world: World) -> None:
    await world.drain("timed", terminationGracePeriodSeconds=10)
    await world.wait(PERIOD - 8)
    await world.culprit.delete("web", 1)


@says("early deletion: pod web: its grace was cut though it ended")
async def cut_a_grace_that_ends_in_time(world: World) -> None:
    await world.drain("timed", terminationGracePeriodSeconds=30, behaviour=DEAF)
    await world.culprit.evict("web")
    await world.wait(5)
    await world.culprit.delete("web", 2)


@says("early deletion: pod web: DELETE with grace 1 and uid ''")
async def delete_by_name(world: World) -> None:
    await world.drain("timed")
    await world.wait(PERIOD)
    await world.culprit.delete("web", 1, by_uid=False)


@says("early deletion: pod web: DELETE with grace 0 and uid")
async def delete_at_once(world: World) -> None:
    await world.drain("timed")
    await world.wait(PERIOD)
    await world.culprit.delete("web", 0)


@says("replacement: pod web was changed by PATCH")
async def change_a_pod(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.culprit.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/web", {"metadata": {"labels": {"a": "b"}}})


async def mark(world: World, message: str = "") -> None:
    entry = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByGracectl", "message": message}
    conditions = world.stage.pods_on("timed")[0]["status"]["conditions"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/web/status"
    await world.culprit.patch(path, {"status": {"conditions": [*conditions, entry]}})


@says(r"early deletion: pod web was marked 12\.0* s before its deletion is due")
async def mark_before_its_time(world: World) -> None:
    await world.drain("timed", terminationGracePeriodSeconds=10)
    await world.wait(PERIOD - 22)
    await mark(world)


@says("early deletion: pod web: its status was changed beyond DisruptionTarget")
async def mark_more_than_the_condition(world: World) -> None:
    await world.drain("timed", terminationGracePeriodSeconds=10)
    await world.wait(PERIOD - 11)
    await mark(world)
    assert world.invariants.violations == []
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/web/status"
    await world.culprit.patch(path, {"status": {"message": "no condition"}})


@says("eviction: pod web was evicted, and it is protected until")
async def evict_protected(world: World) -> None:
    await world.drain(annotations={names.DO_NOT_DISRUPT: "1h"})
    await world.wait(2)
    await world.culprit.evict("web")


@says("eviction: pod web was evicted, and it is protected until")
async def evict_what_no_clock_lets_go(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, clock_error=3500.0)
    await evict_protected(world)


@says("eviction: pod web was evicted, and it is protected until inf")
async def evict_with_invalid_protection(world: World) -> None:
    await world.drain(annotations={names.DO_NOT_DISRUPT: "an hour"})
    await world.wait(2)
    await world.culprit.evict("web")


@says("eviction: pod web was evicted, and db on its node is protected until inf")
async def evict_beside_do_not_evict(world: World) -> None:
    await world.stage.create(
        a_pod_manifest("web", "n1"), a_pod_manifest("db", "n1", labels={names.DO_NOT_EVICT: "true"})
    )
    await world.stage.delete_node("n1")
    await world.wait(2)
    await world.culprit.evict("web")


@says("eviction: pod dns was evicted before web, which is of an earlier wave")
async def evict_before_its_wave(world: World) -> None:
    critical = a_pod_manifest("dns", "n1", priorityClassName="system-node-critical")
    await world.stage.create(a_pod_manifest("web", "n1"), critical)
    await world.stage.delete_node("n1")
    await world.wait(2)
    await world.culprit.evict("dns")


@says("eviction: pod plugin-.* of a DaemonSet was evicted with volume pv attached")
async def evict_a_plugin_before_its_volumes(world: World) -> None:
    plugin = a_workload("DaemonSet", "plugin", 0)
    del plugin["spec"]["replicas"]
    await world.stage.create(plugin)
    await attach(world, "n1")
    await world.stage.delete_node("n1")
    await world.wait(5)
    [pod] = world.stage.pods_on("n1")
    await world.culprit.evict(pod["metadata"]["name"])


@says("eviction: pod web was evicted from 'n1', which is not to be drained")
async def evict_for_nothing(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.culprit.evict("web")


@says(r"eviction: pod web \(own grace 30\) was evicted with a grace of 1 s")
async def evict_with_little_grace(world: World) -> None:
    await world.drain(behaviour=DEAF)
    await world.culprit.evict("web", gracePeriodSeconds=1)


@says("eviction: pod web was evicted 2 times")
async def evict_twice(world: World) -> None:
    await world.drain(behaviour=DEAF)
    assert await world.culprit.evict("web") == 201
    await world.wait(1)
    assert await world.culprit.evict("web") == 201


@says("eviction: pod web was evicted 2 times")
async def evict_what_another_has_evicted(world: World) -> None:
    await world.drain(behaviour=DEAF)
    assert await Culprit(world.stage).evict("web") == 201
    await world.wait(2)
    assert await world.culprit.evict("web") == 201


@says("budget: the eviction of shop/web-.* left shop/web with 1 healthy pods, 2 are needed")
async def evict_against_a_budget(world: World) -> None:
    """The disruption controller would count at once: its answer is forged."""
    stage = world.stage
    await world.wait(1)
    await stage.delete_node("n1")
    pods = sorted(pod["metadata"]["name"] for pod in stage.pods_on("n1"))
    for pod in pods:
        budget = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/web"
        await stage.call(
            "PATCH", f"{budget}/status", {"status": {"disruptionsAllowed": 1, "disruptedPods": None}}, MERGE
        )
        assert await world.culprit.evict(pod) == 201
        await world.wait(0.6)


# -- deadlines ---------------------------------------------------------------------------------------------------------


@says("deadline moved: Node n1: the deadline was moved")
async def move_a_deadline(world: World) -> None:
    stamp = {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "2000-01-01T00:00:00Z"}}}
    await world.stage.patch_node("n1", stamp)
    await world.stage.delete_node("n1")
    stamp["metadata"]["annotations"][names.TERMINATION_TIMESTAMP] = "2000-01-02T00:00:00Z"
    await world.culprit.patch("/api/v1/nodes/n1", stamp)


@says(r"late: node timed: its instance was asked to terminate 10\.0* s after its deadline")
async def miss_a_deadline(world: World) -> None:
    await world.drain("timed", terminationGracePeriodSeconds=10)
    await world.wait(PERIOD + 10)


@says(r"late: node n1: its instance was asked to terminate (9|10)\.\d+ s after its deadline")
async def miss_the_end_of_a_machine(world: World) -> None:
    await world.stage.patch_node("n1", noticed(world, "spot", 60))
    await world.stage.delete_node("n1")
    await world.wait(70)


@says(r"late: pod web was still granted more than a second 10\.0* s after the deadline")
async def let_a_grace_outlast_the_deadline(world: World) -> None:
    """Beside one that its kubelet has not ended, though its grace was over in time: nothing can be done about that."""
    for name, seconds in (("web", 60), ("past", 5)):
        await world.stage.create(
            a_pod_manifest(name, "timed", terminationGracePeriodSeconds=seconds, behaviour={"stop-seconds": 120})
        )
    await world.stage.delete_node("timed")
    await world.wait(PERIOD - 20)
    for name in ("web", "past"):
        assert await world.culprit.evict(name) == 201
    await world.wait(30)
    assert not any("past" in each for each in world.invariants.check_end(calm=True))
