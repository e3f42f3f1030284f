"""The deadline of a node, with the whole controller, to the instant: every rule of preemptive deletes."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.cloud import CloudSettings
from support.stage import NAMESPACE, a_budget_manifest, a_pod_manifest, a_workload, reasons, staged
from support.stories import (
    START,
    asked_to_end,
    delete_at_start,
    deletions,
    draining,
    evictions,
    names_of,
    stamp,
    told,
    until,
    with_grace_period,
    written_on,
)

from gracectl.model import names

QUARTER = with_grace_period("15m")
STAYS = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"ignores-sigterm": "true"}}
"""A pod that never leaves by itself, and uses every second of its grace."""


def staying(name: str, grace: int, **more: Any) -> dict[str, Any]:
    return a_pod_manifest(name, "n1", terminationGracePeriodSeconds=grace, **{**STAYS, **more})


async def test_the_scenario_of_the_specification_gives_every_pod_its_whole_grace() -> None:
    """Three replicas with 10 minutes each, one of which may be missing; 15 minutes; all three nodes at once."""
    pod = {"terminationGracePeriodSeconds": 600}
    async with staged("n1", "n2", "n3", settings=QUARTER) as stage:
        await stage.create(
            a_workload("Deployment", "web", 3, behaviour={"ignores-sigterm": "true"}, pod=pod),
            a_budget_manifest("web", maxUnavailable=1),
        )
        homes = [names_of(stage.pods_on(node)) for node in ("n1", "n2", "n3")]
        assert [len(home) for home in homes] == [1, 1, 1]
        async with draining(stage, "n1", "n2", "n3") as controller:
            assert await stage.until_gone("n1", "n2", "n3") == START + 900
            ((evicted, at),) = evictions(stage)  # any of them: their nodes have one deadline, and began in one instant
            assert at == 0.0
            b, c = sorted({name for home in homes for name in home} - {evicted})
            before_the_end = [each for each in deletions(stage) if each[1] < 900]
            assert sorted(before_the_end) == [(b, 300.0, 600), (c, 300.0, 600)]
            assert asked_to_end(stage) == [600.0, 900.0, 900.0]
            await stage.clock.sleep(1)
            (message,) = await told(stage, b, "DeletedForDeadline")
            assert "600 s" in message
            assert {round(p.finished - p.started, 3) for p in controller.finished() if p.finished} == {600.0, 900.0}


@pytest.mark.parametrize("grace", [1, 30, 450, 899])
async def test_a_pod_is_deleted_with_its_whole_grace_so_early_that_it_ends_at_the_deadline(grace: int) -> None:
    async with staged("n1", objects=[staying("a", grace)], settings=QUARTER) as stage, draining(stage, "n1"):
        assert await stage.until_gone("n1") == START + 900
        assert deletions(stage)[0] == ("a", 900.0 - grace, grace)
        assert evictions(stage) == []
        assert asked_to_end(stage) == [900.0]


async def test_what_stands_in_the_way_of_an_eviction_is_in_the_way_of_no_deletion() -> None:
    """A pod that holds the node, a later wave, a spent budget, two budgets: each goes at its own instant."""
    objects = [
        a_budget_manifest("spent", minAvailable=1),
        a_budget_manifest("two", maxUnavailable=1),
        {**a_budget_manifest("two", maxUnavailable=1), "metadata": {"name": "also", "namespace": NAMESPACE}},
        staying("holder", 100, annotations={names.DO_NOT_EVICT: "true"}),
        staying("spent", 200, annotations={}),
        staying("two", 300, annotations={}),
        staying("dns", 400, annotations={}, priorityClassName="system-cluster-critical", priority=2_000_000_000),
    ]
    async with staged("n1", objects=objects, settings=QUARTER) as stage, draining(stage, "n1"):
        assert await stage.until_gone("n1") == START + 900
        assert [each for each in deletions(stage) if each[1] < 900] == [
            ("dns", 500.0, 400),
            ("two", 600.0, 300),
            ("spent", 700.0, 200),
            ("holder", 800.0, 100),
        ]
        assert evictions(stage) == []


async def test_a_pod_that_comes_late_is_deleted_with_what_is_left() -> None:
    async with staged("n1", objects=[staying("a", 10)], settings=QUARTER) as stage, draining(stage, "n1"):
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        await until(stage, 500.0)
        await stage.call("POST", path, staying("early", 30))
        await until(stage, 880.5)
        await stage.call("POST", path, staying("late", 30))
        assert await stage.until_gone("n1") == START + 900
        assert [each for each in deletions(stage) if each[1] < 900] == [
            ("early", 870.0, 30),
            ("late", 880.5, 20),
            ("a", 890.0, 10),
        ]


async def test_a_pod_that_comes_when_the_deadline_has_passed_is_deleted_and_not_waited_for() -> None:
    async with staged("n1", "n2", settings=QUARTER, cloud=CloudSettings(terminate_delay=60.0)) as stage:
        await stage.create(staying("a", 10), a_pod_manifest("elsewhere", "n2"))
        async with draining(stage, "n1"):
            await until(stage, 910.0)
            await stage.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", staying("late", 30))
            await stage.until_gone("n1")
            assert deletions(stage)[-1] == ("late", 910.0, 1)
            assert asked_to_end(stage)[0] == 900.0


async def test_a_pod_that_terminates_beyond_the_deadline_is_told_once_to_end_by_it() -> None:
    objects = [a_pod_manifest("a", "n1", terminationGracePeriodSeconds=3600, **STAYS)]
    async with staged("n1", objects=objects, settings=QUARTER) as stage, stage.settled():
        await until(stage, -20.0)
        await stage.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/a")
        await delete_at_start(stage, "n1")
        await until(stage, 899.0)
        # 880 s after its first DELETE: the server says so, the kubelet counts from the second.
        (pod,) = stage.pods_on("n1")
        assert pod["metadata"]["deletionTimestamp"] == stamp(stage, 880.0)
        assert deletions(stage) == [("a", 0.0, 900)]
        assert await stage.until_gone("n1") == START + 900


async def test_a_pod_that_has_been_ending_for_long_has_until_the_deadline() -> None:
    """The server would turn the 900 s that are left into one: counted from the first DELETE they are over."""
    objects = [a_pod_manifest("a", "n1", terminationGracePeriodSeconds=7200, **STAYS)]
    async with staged("n1", objects=objects, settings=QUARTER) as stage, stage.settled():
        await stage.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/a")
        await stage.clock.sleep(1900.0)
        start = await stage.delete_node("n1")
        await stage.clock.sleep(899.0)
        assert len(stage.pods_on("n1")) == 1
        assert deletions(stage) == []
        assert await stage.until_gone("n1") == pytest.approx(start + 900, abs=1.0)


async def test_a_grace_period_of_nothing_is_everything_at_once_the_cordon_first() -> None:
    async with staged("n1", settings=with_grace_period("0s"), cloud=CloudSettings(terminate_delay=20.0)) as stage:
        await stage.create(staying("a", 600), staying("b", 30), a_pod_manifest("c", "n1"))
        async with draining(stage, "n1"):
            await stage.clock.sleep(0.1)
            assert sorted(deletions(stage)) == [("a", 0.0, 1), ("b", 0.0, 1), ("c", 0.0, 1)]
            assert asked_to_end(stage) == [0.0]
            assert evictions(stage) == []
            since = [each for each in stage.transport.executed if each.instant >= START]
            order = [f"{each.operation.verb} {each.operation.resource}" for each in since]
            assert order.index("delete pods") > [n for n, each in enumerate(order) if each == "patch nodes"][1]
            assert written_on(stage.node("n1")) == stamp(stage, 0.0)
            await stage.until_gone("n1")
            assert asked_to_end(stage) == [0.0]


async def test_volumes_are_waited_for_until_the_deadline() -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    templates = [{"metadata": {"name": "data"}, "spec": claim}]
    cloud = CloudSettings(terminate_delay=30.0)
    settings = with_grace_period("903s")  # which is no multiple of how often one looks at volumes
    async with staged("n1", settings=settings, detach_seconds=10_000.0, cloud=cloud) as stage:
        await stage.create(a_workload("StatefulSet", "db", 1, serviceName="db", volumeClaimTemplates=templates))
        await stage.add_nodes("n2")
        async with draining(stage, "n1"):
            await until(stage, 902.999)
            assert stage.provider.calls == []
            condition = stage.condition("n1", names.VOLUMES_DETACHED)
            assert condition is not None
            assert condition["reason"] == "StillAttached"
            await until(stage, 915.0)
            assert asked_to_end(stage) == [903.0]
            condition = stage.condition("n1", names.VOLUMES_DETACHED)
            assert condition is not None
            assert (condition["status"], condition["reason"]) == ("False", "DeadlinePassed")
            assert condition["message"].startswith("the deadline has passed; still attached: pvc-")
            drained = stage.condition("n1", names.DRAINED)
            assert drained is not None
            assert (drained["status"], drained["message"]) == ("True", "all pods are gone")
            await stage.until_gone("n1")


async def test_an_instance_that_is_ending_is_not_asked_again_at_the_deadline() -> None:
    """It was drained in time; whatever the deadline, only the provider can say that it is gone."""
    cloud = CloudSettings(terminate_delay=40.0)
    async with staged("n1", settings=with_grace_period("10s"), cloud=cloud) as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        async with draining(stage, "n1"):
            end = await stage.until_gone("n1")
            assert asked_to_end(stage) == [2.0]
            assert START + 42 <= end <= START + 52
            assert "TerminationGracePeriodExpired" not in await reasons(stage, "n1")
