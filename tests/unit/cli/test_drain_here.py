"""A drain by the command itself, where no controller leads: on virtual time, with exact instants."""

from __future__ import annotations

import math

import anyio
import pytest
from support.clients import Laptop, a_client, mortal, named
from support.replacing import endpoints, is_released, pods_of, the_pod, web
from support.stage import (
    NAMESPACE,
    STOPS_AFTER_5,
    Stage,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    reasons,
    staged,
)
from support.stories import (
    START,
    a_daemon_set,
    asked,
    deletions,
    gracectl_keep,
    gracectl_uncordon,
    is_at_rest,
    names_on,
    seen,
    send,
    stamp,
    staying,
    until,
)

from gracectl.app.drainer import Manner
from gracectl.controllers.termination.maintenance import request_patch
from gracectl.controllers.termination.replacing import return_pods_of
from gracectl.inspect.status import NodePhase, node_statuses
from gracectl.inspect.watcher import snapshot
from gracectl.model import names

DONE = "n1: drained for maintenance; to undo: gracectl uncordon n1"
SLOW = {"behaviour": {"stop-seconds": 5, "ready-seconds": 7}}
NEVER_STOPS = {"ignores-sigterm": "true"}
CRITICAL = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}


async def a_web(stage: Stage, pods: int) -> None:
    """Pods on n1 under a budget that lets one go at a time, and n2 for their replacements."""
    await stage.create(a_budget_manifest("web", maxUnavailable=1), a_workload("Deployment", "web", pods, **SLOW))
    if stage.node("n2") is None:
        await stage.add_nodes("n2")


async def test_a_node_is_drained_and_an_uncordon_leaves_nothing() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5), a_pod_manifest("b", "n2"))
        laptop, start = Laptop(stage, "n1"), stage.clock.monotonic()
        await laptop.run()
        assert asked(stage, start) == [("a", 0.0)]
        assert (names_on(stage, "n1"), laptop.lines) == ([], [DONE])
        node = seen(stage, "n1")
        assert (node.unschedulable, node.annotations[names.CORDONED]) == (True, "unschedulable")
        assert names.EXCLUDE_FROM_LOAD_BALANCERS not in node.labels
        assert [each.type for each in node.conditions if each.type == names.DRAINED] == []
        assert stage.transport.of("patch", "nodes/status") == []
        assert await reasons(stage, "n1") == ["Cordoned", "Draining", "Drained"]
        cluster = await snapshot(a_client(stage), named("n1"))
        (status,) = node_statuses(cluster, stage.settings.termination, ["n1"], stage.clock.now())
        assert (status.state, status.step) == (NodePhase.MAINTENANCE, "drained")
        await gracectl_uncordon(stage, "n1")
        left = seen(stage, "n1")
        assert (left.unschedulable, [each for each in left.annotations if "gracectl" in each]) == (False, [])


async def a_crowd(stage: Stage) -> None:
    """Waves, a budget, protection until 40 s, a DaemonSet, pods that stop slowly."""
    protected = {names.DO_NOT_DISRUPT: "40s"}
    await stage.create(
        a_budget_manifest("web", maxUnavailable=1), a_workload("Deployment", "web", 3, **SLOW),
        a_pod_manifest("job", "n1", annotations=protected), a_pod_manifest("critical", "n1", **CRITICAL),
        a_daemon_set("agent"),
    )  # fmt: skip


async def evicted_by(local: bool) -> list[tuple[str, float]]:
    """The agreed evictions of the crowd, by the command itself or by a controller."""
    async with staged("n1") as stage:
        await a_crowd(stage)
        await stage.add_nodes("n2")
        if local:
            start = stage.clock.monotonic()
            await Laptop(stage, "n1").run()
        else:
            async with stage.controller() as controller:
                await stage.settle(controller)
                start = await gracectl_keep(stage, "n1")
                await stage.until(lambda: is_at_rest(stage, "n1"))
        agreed = [each for each in stage.evictions if each.status == 201]
        return [(each.operation.name, round(each.instant - start, 1)) for each in agreed]


async def test_budgets_waves_and_protection_are_those_of_the_controller() -> None:
    here, there = await evicted_by(True), await evicted_by(False)
    assert [name for name, _ in here] == [name for name, _ in there]
    assert [at for _, at in here] == pytest.approx([at for _, at in there], abs=2.0)
    assert here[-1][0] == "critical"


async def test_only_pods_of_its_node_and_budgets_of_their_namespaces_are_read() -> None:
    async with staged("n1", "n2", "n3") as stage:
        await stage.create(a_pod_manifest("a", "n1"), a_pod_manifest("b", "n2"), a_budget_manifest("a", minAvailable=0))
        await Laptop(stage, "n1").run()
        reads = {
            (each.operation.verb, each.request.path, dict(each.request.query).get("fieldSelector", ""))
            for each in stage.transport.executed
            if each.operation.verb in ("get", "list", "watch") and each.operation.plural != "leases"
        }
        budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
        assert reads - {("get", "/api/v1/namespaces/kube-system", "")} == {
            ("get", "/api/v1/nodes/n1", ""), ("watch", "/api/v1/nodes", "metadata.name=n1"),
            ("list", "/api/v1/pods", "spec.nodeName=n1"), ("watch", "/api/v1/pods", "spec.nodeName=n1"),
            ("list", budgets, ""), ("watch", budgets, ""),
        }  # fmt: skip


async def test_a_run_that_is_killed_is_resumed_by_the_next() -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_budget_manifest("web", minAvailable=1), a_pod_manifest("web", "n1"), a_pod_manifest("a", "n1")
        )
        async with mortal(Laptop(stage, "n1")):
            await stage.clock.sleep(10)
        assert names_on(stage, "n1") == ["web"]
        requested = seen(stage, "n1").annotations[names.KEEP_DRAINED]
        before = len(stage.evictions)
        await stage.clock.sleep(100)
        assert len(stage.evictions) == before
        await stage.call(
            "PATCH", f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/web",
            {"spec": {"minAvailable": 0}}, "application/merge-patch+json",
        )  # fmt: skip
        laptop = Laptop(stage, "n1")
        await laptop.run()
        assert (names_on(stage, "n1"), laptop.lines) == ([], [DONE])
        assert seen(stage, "n1").annotations[names.KEEP_DRAINED] == requested


async def deleted_by(deadline: float, local: bool) -> list[tuple[str, float, int]]:
    """The deletions of blocked pods with graces of their own, by the command itself or by a controller."""
    async with staged("n1") as stage:
        spent = a_pod_manifest("spent", "n1", terminationGracePeriodSeconds=200)
        await stage.create(a_budget_manifest("spent", minAvailable=1), spent, staying("protected", 100))
        if local:
            start = await whole_second(stage)
            await Laptop(stage, "n1", deadline=deadline).run()
        else:
            async with stage.settled():
                start = await whole_second(stage)
                await send(stage, "n1", request_patch(seen(stage, "n1"), stage.clock.now(), deadline))
                await stage.until(lambda: is_at_rest(stage, "n1"))
        assert (names_on(stage, "n1"), asked(stage, 0.0)) == ([], [])
        return [(name, at + START - start, grace) for name, at, grace in deletions(stage)]


async def whole_second(stage: Stage) -> float:
    """Wait for one of the server's clock, as deadlines are cut to those; returns the instant."""
    await stage.clock.sleep(math.ceil(stage.clock.now()) - stage.clock.now())
    return stage.clock.monotonic()


@pytest.mark.parametrize(("deadline", "expected"), [
    pytest.param(600.0, [("spent", 400.0, 200), ("protected", 500.0, 100)], id="in ten minutes"),
    pytest.param(150.0, [("spent", 0.0, 150), ("protected", 50.0, 100)], id="before a grace ends"),
])  # fmt: skip
async def test_the_deadline_is_that_of_the_controller(deadline: float, expected: list[tuple[str, float, int]]) -> None:
    assert await deleted_by(deadline, True) == await deleted_by(deadline, False) == expected


async def test_a_deadline_stays_where_it_was_when_a_run_is_killed_and_resumed() -> None:
    async with staged("n1", objects=[staying("a")]) as stage:
        await until(stage, 0.0)
        async with mortal(Laptop(stage, "n1", deadline=600.0)):
            await until(stage, 100.0)
        assert seen(stage, "n1").annotations[names.DRAIN_DEADLINE] == stamp(stage, 600.0)
        await until(stage, 200.0)
        laptop = Laptop(stage, "n1", deadline=600.0)
        await laptop.run()
        assert (laptop.lines, deletions(stage)) == ([DONE], [("a", 570.0, 30)])
        assert names.DRAIN_DEADLINE not in seen(stage, "n1").annotations


async def test_a_deadline_that_passes_between_two_runs_counts_when_the_next_begins() -> None:
    async with staged("n1", objects=[staying("a")]) as stage:
        await until(stage, 0.0)
        async with mortal(Laptop(stage, "n1", deadline=60.0)):
            await until(stage, 10.0)
        await until(stage, 100.0)
        await Laptop(stage, "n1").run()
        assert deletions(stage) == [("a", 100.0, 1)]


async def test_two_laptops_drain_the_same_node() -> None:
    async with staged("n1") as stage:
        await a_web(stage, 3)
        one, other = Laptop(stage, "n1"), Laptop(stage, "n1")
        async with anyio.create_task_group() as group:
            group.start_soon(one.run)
            await stage.clock.sleep(1)
            group.start_soon(other.run)
        assert (one.lines, other.lines, names_on(stage, "n1")) == ([DONE], [DONE], [])
        assert len(stage.agreed()) == 3


async def test_a_controller_that_begins_meanwhile_takes_over() -> None:
    async with staged("n1") as stage:
        await a_web(stage, 6)
        laptop = Laptop(stage, "n1")
        async with anyio.create_task_group() as group:
            group.start_soon(laptop.run)
            await stage.clock.sleep(7)
            async with stage.controller() as controller:
                await stage.settle(controller)
                begun = stage.clock.monotonic()
                await stage.until(lambda: is_at_rest(stage, "n1"))
                await stage.clock.sleep(5)
        assert laptop.lines == ["n1: a controller has begun with it: the controller continues; watching", DONE]
        by_laptop = [each for each in stage.evictions if each.sender == laptop.line.name]
        assert [each for each in by_laptop if each.instant > begun + 2.0] == []
        assert max(stage.agreed().values()) == 1
        assert seen(stage, "n1").labels[names.EXCLUDE_FROM_LOAD_BALANCERS] == ""


async def test_a_lost_connection_is_waited_out() -> None:
    async with staged("n1") as stage:
        await a_web(stage, 3)
        laptop = Laptop(stage, "n1")
        async with anyio.create_task_group() as group:
            group.start_soon(laptop.run)
            await stage.clock.sleep(3)
            stage.transport.is_listening = False
            await stage.clock.sleep(60)
            stage.transport.is_listening = True
        assert (laptop.lines, names_on(stage, "n1")) == ([DONE], [])
        assert max(stage.agreed().values()) == 1


async def test_a_node_that_is_uncordoned_is_left_alone() -> None:
    async with staged("n1") as stage:
        await stage.create(a_budget_manifest("web", minAvailable=1), a_pod_manifest("web", "n1"))
        laptop = Laptop(stage, "n1")
        async with anyio.create_task_group() as group:
            group.start_soon(laptop.run)
            await stage.clock.sleep(3)
            await stage.patch_node("n1", {"spec": {"unschedulable": None}})
            uncordoned = stage.clock.monotonic()
        assert laptop.lines == ["n1: uncordoned meanwhile, before it was drained"]
        assert [each for each in stage.evictions if each.instant > uncordoned + 0.1] == []


async def test_a_deleted_node_is_not_terminated_from_here() -> None:
    async with staged("n1") as stage:
        await stage.patch_node("n1", {"metadata": {"finalizers": [names.FINALIZER]}})
        await stage.create(a_budget_manifest("web", minAvailable=1), a_pod_manifest("web", "n1"))
        laptop = Laptop(stage, "n1")
        async with mortal(laptop):
            await stage.clock.sleep(3)
            await stage.delete_node("n1")
            await stage.call("DELETE", f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/web")
            await stage.clock.sleep(60)
            assert stage.node("n1") is not None
            assert names_on(stage, "n1") == ["web"]
        assert laptop.lines == ["n1: deleted meanwhile; waiting for its termination"]
        assert stage.provider.calls == []


async def test_a_grace_period_is_that_of_every_eviction() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1", terminationGracePeriodSeconds=300, behaviour=NEVER_STOPS))
        start = stage.clock.monotonic()
        await Laptop(stage, "n1", manner=Manner(grace_period=20)).run()
        assert [each.operation.name for each in stage.evictions] == ["a"]
        assert stage.clock.monotonic() - start == pytest.approx(20.0, abs=2.0)


async def test_pods_of_other_labels_stay() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1"), a_pod_manifest("b", "n1"))
        await Laptop(stage, "n1", manner=Manner(pod_selector="app=a")).run()
        assert names_on(stage, "n1") == ["b"]


async def test_with_deletions_no_budget_is_read_and_none_waited_for() -> None:
    async with staged("n1") as stage:
        await stage.create(a_budget_manifest("web", minAvailable=1), a_pod_manifest("web", "n1", **STOPS_AFTER_5))
        start = stage.clock.monotonic()
        await Laptop(stage, "n1", manner=Manner(disable_eviction=True)).run()
        assert stage.evictions == []
        assert [round(each.instant - start, 3) for each in stage.transport.of("delete", "pods")] == [0.0]
        assert stage.transport.of("list", "poddisruptionbudgets") == []


# -- pods that are replaced first --------------------------------------------------------------------------------------


async def a_single(stage: Stage, ready: float = 3.0) -> str:
    """A pod on n1 that its budget blocks and that asks for a replacement, and n2; returns its name."""
    await stage.create(web(ready=ready), a_budget_manifest("web", minAvailable=1))
    await stage.add_nodes("n2")
    return str((await the_pod(stage))["metadata"]["name"])


async def test_a_single_replica_is_replaced_first_without_a_controller() -> None:
    async with staged("n1") as stage:
        name = await a_single(stage)
        laptop, start = Laptop(stage, "n1"), stage.clock.monotonic()
        async with endpoints(stage) as counted:
            await laptop.run()
        ((who, at),) = asked(stage, start)
        assert who == name
        assert at == pytest.approx(4.0, abs=2.0)
        assert (counted.fewest, laptop.lines[-1]) == (1, DONE)
        assert [is_released(each) for each in pods_of(stage)] == [False]


async def test_a_laptop_that_is_closed_meanwhile_is_continued_by_another() -> None:
    async with staged("n1") as stage:
        name = await a_single(stage, ready=20.0)
        async with endpoints(stage) as counted:
            async with mortal(Laptop(stage, "n1")):
                await stage.until(lambda: any(map(is_released, pods_of(stage))))
                await stage.clock.sleep(2)
            assert [each["metadata"]["name"] for each in pods_of(stage) if is_released(each)] == [name]
            await Laptop(stage, "n1").run()
        assert (counted.fewest, [is_released(each) for each in pods_of(stage)]) == (1, [False])


async def test_an_uncordon_after_that_returns_its_pod() -> None:
    async with staged("n1") as stage:
        name = await a_single(stage, ready=20.0)
        async with mortal(Laptop(stage, "n1")):
            await stage.until(lambda: any(map(is_released, pods_of(stage))))
            await stage.clock.sleep(2)
        await gracectl_uncordon(stage, "n1")
        assert await return_pods_of(a_client(stage), "n1") == 1
        await stage.clock.sleep(2)
        assert [(each["metadata"]["name"], is_released(each)) for each in pods_of(stage)] == [(name, False)]
        assert await return_pods_of(a_client(stage), "n1") == 0
