"""DaemonSet pods of a node that is drained: they come back in maintenance, and until their wave in a termination."""

from __future__ import annotations

from typing import Any

import pytest
from support.stage import Stage, a_pod_manifest, staged
from support.stories import (
    RECORD,
    RECORD_OF_EARLIER_RELEASES,
    Way,
    a_daemon_set,
    asked,
    each_way_back,
    gracectl_keep,
    is_at_rest,
    is_cordoned,
    is_tainted,
    keep,
    names_on,
    remains,
    seen,
    with_grace_period,
)

from gracectl.model import names
from gracectl.model.times import format_time

PROTECTED = {"annotations": {names.DO_NOT_DISRUPT: "true"}}
EVERYWHERE = [{"operator": "Exists"}]
TAINT = {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"}


async def delete_pod(stage: Stage, name: str) -> None:
    """As a rollout does it."""
    await stage.call("DELETE", f"/api/v1/namespaces/shop/pods/{name}")


def agents(stage: Stage, node: str) -> list[str]:
    return [name for name in names_on(stage, node) if name.startswith("agent")]


async def test_a_daemon_set_pod_that_is_deleted_in_maintenance_comes_back() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1"), a_daemon_set("agent")]) as stage, stage.settled():
        await gracectl_keep(stage, "n1")
        await stage.until(lambda: is_at_rest(stage, "n1"))
        (before,) = agents(stage, "n1")
        start = stage.clock.monotonic()
        await delete_pod(stage, before)
        await stage.until(lambda: agents(stage, "n1") not in ([], [before]))
        await stage.clock.sleep(100)
        assert len(agents(stage, "n1")) == 1
        assert asked(stage, start) == []
        assert (is_cordoned(stage, "n1"), is_tainted(stage, "n1")) == (True, False)


async def drained_by_an_earlier_release(stage: Stage, node: str) -> None:
    """What 0.2 had put on a node in maintenance."""
    annotations = {names.KEEP_DRAINED: format_time(stage.clock.now()), names.CORDONED: RECORD_OF_EARLIER_RELEASES}
    labels = {names.EXCLUDE_FROM_LOAD_BALANCERS: ""}
    body = {"metadata": {"annotations": annotations, "labels": labels}}
    await stage.patch_node(node, {**body, "spec": {"unschedulable": True, "taints": [TAINT]}})


async def test_the_taint_of_an_earlier_release_is_removed_in_one_write() -> None:
    async with staged("n1", "n2", objects=[a_daemon_set("agent")]) as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
        await drained_by_an_earlier_release(stage, "n1")
        (before,) = agents(stage, "n1")
        await delete_pod(stage, before)
        await stage.clock.sleep(10)
        assert agents(stage, "n1") == []
        writes = len(stage.transport.of("patch", "nodes"))
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(10)
            assert len(agents(stage, "n1")) == 1
            assert (is_cordoned(stage, "n1"), is_tainted(stage, "n1")) == (True, False)
            assert seen(stage, "n1").annotations[names.CORDONED] == RECORD
            await stage.clock.sleep(100)
            assert len(stage.transport.of("patch", "nodes")) == writes + 1


@each_way_back
async def test_a_node_drained_by_an_earlier_release_is_returned_whole(give_back: Way) -> None:
    """Whether or not this release has seen it before."""
    async with staged("n1", "n2") as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
        before = remains(stage, "n1")
        await drained_by_an_earlier_release(stage, "n1")
        await give_back(stage, "n1")
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(10)
            assert remains(stage, "n1") == before


async def test_until_their_wave_daemon_set_pods_come_back_to_a_deleted_node_and_then_no_more() -> None:
    objects = [
        a_pod_manifest("job", "n1", **PROTECTED),
        a_daemon_set("agent", behaviour={"stop-seconds": 3}),
    ]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled():
        await stage.delete_node("n1")
        await stage.clock.sleep(10)
        assert (is_cordoned(stage, "n1"), is_tainted(stage, "n1")) == (True, False)
        (before,) = agents(stage, "n1")
        await delete_pod(stage, before)
        await stage.until(lambda: agents(stage, "n1") not in ([], [before]))
        await stage.clock.sleep(10)
        (again,) = agents(stage, "n1")
        start = stage.clock.monotonic()
        await delete_pod(stage, "job")
        await stage.until(lambda: is_tainted(stage, "n1"))
        await stage.clock.sleep(1)
        assert asked(stage, start) == [(again, 0.0)]
        assert await stage.until_gone("n1") - start == pytest.approx(3.0, abs=0.01)
        assert asked(stage, start) == [(again, 0.0)]
    order = [(each.operation.verb, each.operation.resource) for each in stage.transport.executed]
    assert ("patch", "nodes") in order[: order.index(("create", "pods/eviction"))][-5:], "the taint comes first"


@pytest.mark.parametrize("tolerations", [None, EVERYWHERE])
async def test_a_cordon_is_one_write_if_no_daemon_set_pod_is_to_leave_later(tolerations: Any) -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("job", "n1", **PROTECTED)]) as stage:
        if tolerations is not None:
            await stage.create(a_daemon_set("agent", pod={"tolerations": tolerations}))
        async with stage.settled():
            writes = len(stage.transport.of("patch", "nodes"))
            await stage.delete_node("n1")
            await stage.clock.sleep(100)
            assert (is_cordoned(stage, "n1"), is_tainted(stage, "n1")) == (True, True)
            assert len(stage.transport.of("patch", "nodes")) == writes + 1


async def test_before_a_daemon_set_pod_is_deleted_for_the_deadline_no_new_one_may_come() -> None:
    """Five seconds before."""
    objects = [
        a_pod_manifest("job", "n1", terminationGracePeriodSeconds=10, **PROTECTED),
        a_daemon_set("agent", pod={"terminationGracePeriodSeconds": 30}),
    ]
    async with staged("n1", objects=objects, settings=with_grace_period("100s")) as stage, stage.settled():
        start = await stage.delete_node("n1")
        await stage.clock.sleep(64.5)
        assert not is_tainted(stage, "n1")
        await stage.until(lambda: is_tainted(stage, "n1"))
        assert stage.clock.monotonic() - start == pytest.approx(65.0, abs=0.01)
        await stage.clock.sleep(8)
        assert [each.operation.name[:5] for each in stage.transport.of("delete", "pods")] == ["agent"]
        await stage.clock.sleep(15)
        assert agents(stage, "n1") == []


async def test_a_new_leader_continues_with_the_cordon_that_it_finds() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("job", "n1", **PROTECTED), a_daemon_set("agent")]) as stage:
        async with stage.settled(mortal=True) as controller:
            await stage.delete_node("n1")
            await stage.clock.sleep(10)
        writes = len(stage.transport.of("patch", "nodes"))
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(100)
            assert not is_tainted(stage, "n1")
            assert len(stage.transport.of("patch", "nodes")) == writes
            await delete_pod(stage, "job")
            await stage.until_gone("n1")


async def test_a_taint_that_another_client_removes_after_the_wave_is_restored() -> None:
    objects = [
        a_daemon_set("agent"),
        a_pod_manifest("dns", "n1", priorityClassName="system-cluster-critical", **PROTECTED),
    ]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled():
        await stage.delete_node("n1")
        await stage.clock.sleep(10)
        assert (is_tainted(stage, "n1"), agents(stage, "n1")) == (True, [])
        await stage.patch_node("n1", {"spec": {"taints": None}})
        await stage.clock.sleep(1)
        assert (is_tainted(stage, "n1"), agents(stage, "n1")) == (True, [])
        reasons = [reason for name, reason, _ in await stage.events() if name == "n1"]
        assert reasons.count("CordonUndone") == 1


async def test_maintenance_leaves_the_taint_of_another_client() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        await stage.patch_node("n1", {"spec": {"taints": [TAINT]}})
        await keep(stage, "n1")
        await stage.until(lambda: is_at_rest(stage, "n1"))
        assert is_tainted(stage, "n1")
        assert seen(stage, "n1").annotations[names.CORDONED] == RECORD
