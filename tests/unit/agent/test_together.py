"""A shutdown of the machine and a termination by the controller, of the same node at the same time."""

from __future__ import annotations

from collections import Counter

from support.shutdowns import STUBBORN, a_pod_of, an_agent, deletions
from support.stage import staged, the_settings

from gracectl.model import names
from gracectl.model.times import format_time


async def test_a_shutdown_of_a_node_that_is_being_drained_deletes_no_pod_twice() -> None:
    async with staged("n1") as stage, stage.controller() as controller, an_agent(stage) as played:
        await stage.settle(controller)
        for name in ("a", "b"):
            await a_pod_of(stage, name, 0, grace=40, **STUBBORN)
        await a_pod_of(stage, "late", 1_000, grace=40)
        await played.live()
        start = await stage.delete_node("n1")
        await stage.clock.sleep(10)
        assert stage.agreed().total() >= 2  # evicted by the controller, with 40 s of grace each
        begin = played.logind.shut_down()
        await stage.clock.sleep(200)
        deleted = Counter(name for name, *_ in deletions(stage, start))
        assert deleted["a"] == deleted["b"] == 0  # their grace ends before their range does
        assert deleted["late"] + sum(each.operation.name == "late" for each in stage.evictions) == 1
        assert played.logind.released_at is not None
        assert played.logind.released_at - begin < 60


async def test_a_termination_of_a_node_that_shuts_down_evicts_no_pod_twice() -> None:
    async with staged("n1") as stage, stage.controller() as controller, an_agent(stage) as played:
        await stage.settle(controller)
        await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
        await a_pod_of(stage, "b", 10_000, grace=50, **STUBBORN)
        await played.live()
        start = played.logind.shut_down()
        await stage.clock.sleep(5)
        await stage.delete_node("n1")
        await stage.clock.sleep(400)
        asked = Counter(name for name, *_ in deletions(stage, start))
        asked.update(each.operation.name for each in stage.evictions if each.status == 201)
        assert asked == {"a": 1, "b": 1}
        assert played.logind.released_at is not None


async def test_the_earlier_deadline_wins_that_of_the_node() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=60, **STUBBORN)
        await played.live()
        # The node is deleted, and no controller is there to delete the pod for the deadline.
        written = format_time(stage.clock.now() + 40)
        annotations = {names.TERMINATION_TIMESTAMP: written}
        await stage.patch_node("n1", {"metadata": {"finalizers": [names.FINALIZER], "annotations": annotations}})
        await stage.delete_node("n1")
        await stage.clock.sleep(1)
        start = played.logind.shut_down()
        await stage.clock.sleep(100)
        assert deletions(stage, start) == [("a", 0.0, 39)]


async def test_the_earlier_deadline_wins_that_of_the_range() -> None:
    async with staged("n1") as stage, stage.controller() as controller, an_agent(stage) as played:
        await stage.settle(controller)
        await a_pod_of(stage, "a", 0, grace=500, **STUBBORN)
        await played.live()
        await stage.delete_node("n1")
        await stage.clock.sleep(20)
        assert stage.agreed().total() == 1  # evicted, with 500 s of grace
        start = played.logind.shut_down()
        await stage.clock.sleep(100)
        assert [name for name, *_ in deletions(stage, start)] == ["a"]
        assert not stage.pods_on("n1")
        assert played.logind.released_at is not None
        assert played.logind.released_at - start < 62


async def test_a_node_that_is_being_terminated_keeps_its_cordon_when_the_machine_is_back() -> None:
    settings = the_settings(drain={"minimumSeconds": 600})
    async with staged("n1", settings=settings) as stage, stage.controller() as controller, an_agent(stage) as played:
        await stage.settle(controller)
        await played.live()
        played.logind.shut_down()
        await stage.clock.sleep(5)
        await stage.delete_node("n1")
        await stage.clock.sleep(5)
        played.logind.call_off()
        await stage.clock.sleep(30)
        node = stage.node("n1")
        assert node is not None
        assert node["spec"]["unschedulable"]
        assert names.DISRUPTED_TAINT_KEY in {taint["key"] for taint in node["spec"]["taints"]}


async def test_a_node_that_is_drained_for_maintenance_stays_so_through_a_reboot() -> None:
    async with staged("n1") as stage, stage.controller() as controller, an_agent(stage) as played:
        await stage.settle(controller)
        await played.live()
        played.logind.shut_down()
        await stage.clock.sleep(5)
        await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}})
        await stage.clock.sleep(5)
        played.logind.call_off()
        await stage.clock.sleep(30)
        node = stage.node("n1")
        assert node is not None
        assert node["spec"]["unschedulable"]
        # The shutdown's taint goes: it would keep off DaemonSet pods.
        assert node["metadata"]["annotations"][names.CORDONED] == "label,unschedulable"
        assert names.DISRUPTED_TAINT_KEY not in {taint["key"] for taint in node["spec"].get("taints", ())}
        assert names.SHUTDOWN_CORDONED not in node["metadata"]["annotations"]
        # And `uncordon` restores it completely.
        await stage.patch_node(
            "n1", {"metadata": {"annotations": {names.KEEP_DRAINED: None}}, "spec": {"unschedulable": None}}
        )
        await stage.clock.sleep(30)
        node = stage.node("n1")
        assert node is not None
        assert not node["spec"].get("taints")
        assert names.EXCLUDE_FROM_LOAD_BALANCERS not in node["metadata"].get("labels", {})
