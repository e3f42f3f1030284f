"""Notices that machines will go, from a source to the end of the node; to the second."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from support.disruption import POOL, TERMINABLE, create_node_budget, deletions, status_of
from support.interruptions import NoticeQueue, hearing, written_on
from support.stage import (
    Stage,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    reasons,
    staged,
    the_settings,
)

from gracectl.app.controller import Controller
from gracectl.controllers.interruption.recorder import Recorder
from gracectl.interruption.nodes import TaintSource
from gracectl.interruption.source import Notice, Outcome
from gracectl.model import names
from gracectl.policy.interruption import Kind

MINUTES = 60.0


def spot(stage: Stage, node: str, seconds: float = 120.0) -> Notice:
    return Notice(kind=Kind.SPOT, node=node, at=stage.clock.now() + seconds)


def gone_by_name(stage: Stage) -> dict[str, float]:
    """When the server has granted each pod its end: instant and grace of the accepted DELETEs."""
    return {each.operation.name: round(each.instant, 3) for each in stage.transport.of("delete", "pods")}


async def test_a_spot_notice_ends_the_node_with_its_deadline_and_every_pod_has_its_grace() -> None:
    queue = NoticeQueue()
    pods = [
        a_pod_manifest("quick", "n1", terminationGracePeriodSeconds=10),
        a_pod_manifest("slow", "n1", terminationGracePeriodSeconds=60, annotations={names.DO_NOT_DISRUPT: "true"}),
    ]
    async with staged("n1", "n2", objects=pods) as stage:
        with hearing(queue):
            async with stage.settled():
                await stage.clock.sleep(30 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                queue.send(spot(stage, "n1"))
                await stage.until_gone("n1")
                assert deletions(stage) == [(began, "n1")]
                assert [round(each.instant, 3) for each in stage.evictions] == [began]
                assert gone_by_name(stage)["slow"] == began + 60  # its whole grace before the end
                assert stage.clock.monotonic() <= began + 120
                assert queue.answers == [(began, "recorded")]
                [message] = [words for name, reason, words in await stage.events() if reason == "NodeInterrupted"]
                assert message.startswith("terminating: node n1: spot notice from queue: the machine goes at 20")


async def test_the_node_says_it_and_the_metrics_count_it() -> None:
    queue = NoticeQueue()
    protected = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})
    async with staged("n1", "n2", objects=[protected]) as stage:
        with hearing(queue):
            async with stage.settled() as controller:
                queue.send(spot(stage, "n1"), spot(stage, "n1"), spot(stage, "n9"))
                await stage.until(lambda: stage.condition("n1", names.INTERRUPTED) is not None)
                condition = stage.condition("n1", names.INTERRUPTED)
                assert condition is not None
                assert (condition["status"], condition["reason"]) == ("True", "Spot")
                assert condition["message"].startswith("spot notice from queue: the machine goes at ")
                await stage.until_gone("n1")
                await stage.clock.sleep(1)
                samples = {(each.metric.name, each.labels): each.value for each in controller.process.samples() if each}
                total = "gracectl_interruption_notices_total"
                assert samples[total, ("queue", "spot", "recorded")] == 1
                assert samples[total, ("queue", "spot", "repeated")] == 1
                assert samples[total, ("queue", "spot", "unknown")] == 1
                assert samples["gracectl_nodes_terminated_total", ("interruption", "deadline")] == 0
                assert samples["gracectl_nodes_terminated_total", ("interruption", "drained")] == 1
                assert samples["gracectl_interruption_source_up", ("queue",)] == 1


@pytest.mark.parametrize("at_first", [120.0, 60.0])
async def test_of_several_notices_the_earliest_end_counts_in_any_order(at_first: float) -> None:
    queue = NoticeQueue()
    slow = a_pod_manifest("slow", "n1", terminationGracePeriodSeconds=20, annotations={names.DO_NOT_DISRUPT: "true"})
    async with staged("n1", "n2", objects=[slow]) as stage:
        with hearing(queue):
            async with stage.settled():
                await stage.clock.sleep(30 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                queue.send(spot(stage, "n1", at_first))
                await stage.clock.sleep(1)
                queue.send(spot(stage, "n1", 180 - at_first - 1))
                await stage.until_gone("n1")
                assert gone_by_name(stage) == {"slow": began + 40}
                assert len(deletions(stage)) == 1


async def test_a_notice_for_a_node_that_is_being_deleted_moves_its_deadline() -> None:
    queue = NoticeQueue()
    job = a_pod_manifest("job", "n1", terminationGracePeriodSeconds=30, annotations={names.DO_NOT_DISRUPT: "true"})
    async with staged("n1", "n2", objects=[job]) as stage:
        with hearing(queue):
            async with stage.settled():
                await stage.delete_node("n1")
                await stage.clock.sleep(100 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                queue.send(spot(stage, "n1"))
                await stage.until_gone("n1")
                assert gone_by_name(stage) == {"job": began + 90}


async def test_pace_node_budgets_and_circuit_breaker_do_not_delay_a_machine_that_goes() -> None:
    queue = NoticeQueue()
    settings = the_settings(voluntary={"maximumAtOnce": 1}, health={"maximumUnhealthy": 0})
    nodes = [f"n{number}" for number in range(6)]
    async with staged(*nodes, settings=settings, labels=POOL) as stage:
        with hearing(queue):
            async with stage.settled():
                await create_node_budget(stage, maxUnavailable=1)
                await stage.cluster.until(lambda: status_of(stage).get("disruptionsAllowed") == 1)
                began = stage.clock.monotonic()
                queue.send(*(spot(stage, node) for node in nodes[:5]))
                await stage.until_gone(*nodes[:5])
                assert sorted(node for _, node in deletions(stage)) == nodes[:5]
                # The budget is written five times, and counted by its controller meanwhile.
                assert max(at for at, _ in deletions(stage)) <= began + 0.1


async def test_a_far_maintenance_waits_for_its_turn_and_is_urgent_before_its_end() -> None:
    queue = NoticeQueue()
    settings = the_settings(interruption={"leadTime": "10m"})
    job = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, terminationGracePeriodSeconds=30)
    async with staged("n1", "n2", settings=settings, objects=[job]) as stage:
        with hearing(queue):
            async with stage.settled():
                await stage.clock.sleep(30 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                queue.send(Notice(kind=Kind.MAINTENANCE, node="n1", at=stage.clock.now() + 3600))
                await stage.clock.sleep(60)
                pending = stage.condition("n1", names.TERMINATION_PENDING)
                assert pending is not None
                assert pending["reason"] == "Protected"
                assert (stage.node("n1") or {})["spec"]["unschedulable"] is True
                await stage.until_gone("n1")
                assert deletions(stage) == [(began + 3000, "n1")]
                assert gone_by_name(stage) == {"job": began + 3570}


async def test_a_rebalance_recommendation_is_an_ordinary_voluntary_termination() -> None:
    queue = NoticeQueue()
    settings = the_settings(voluntary={"maximumAtOnce": 1, "waitForReplacement": False})
    async with staged("n1", "n2", "n3", settings=settings) as stage:
        with hearing(queue):
            async with stage.settled():
                queue.send(*(Notice(kind=Kind.REBALANCE, node=node) for node in ("n1", "n2")))
                await stage.until_gone("n1", "n2")
                (first, _), (second, _) = deletions(stage)
                assert second > first
                assert stage.node("n3") is not None


async def test_the_label_and_a_notice_delete_a_node_once() -> None:
    queue = NoticeQueue()
    async with staged("n1", "n2") as stage:
        with hearing(queue):
            async with stage.settled():
                await stage.patch_node("n1", TERMINABLE)
                queue.send(spot(stage, "n1"))
                await stage.until_gone("n1")
                assert len(deletions(stage)) == 1


async def test_killed_between_receiving_and_acting_the_next_one_acts() -> None:
    queue = NoticeQueue()
    async with staged("n1", "n2") as stage:
        with hearing(queue):
            async with stage.settled(mortal=True):
                queue.send(spot(stage, "n1"))
                await anyio.lowlevel.checkpoint()
            assert [each.node for each in queue.notices] in (["n1"], [])
            assert stage.node("n1") is not None
            began = stage.clock.monotonic()
            async with stage.controller():
                await stage.until_gone("n1")
            assert deletions(stage) == [(began, "n1")]


async def test_killed_after_the_annotation_the_next_one_needs_no_message() -> None:
    async with staged("n1", "n2") as stage:
        await stage.patch_node("n1", {"metadata": {"annotations": {names.INTERRUPTION: "spot unknown agent"}}})
        async with stage.controller():
            await stage.until_gone("n1")


async def test_late_notices_about_an_earlier_machine_or_unmanaged_nodes_are_acknowledged() -> None:
    queue = NoticeQueue()
    settings = the_settings(nodeSelector={"matchLabels": POOL})
    async with staged("n1", settings=settings, labels=POOL) as stage:
        await stage.add_nodes("n2")
        with hearing(queue):
            async with stage.controller() as controller:
                await controller.wait_live()
                queue.send(
                    Notice(kind=Kind.SPOT, node="n1", at=stage.clock.now(), issued=stage.clock.now() - 600),
                    Notice(kind=Kind.SPOT, node="n2"),
                    Notice(kind=Kind.SPOT, provider_id="aws:///us-west-2a/i-00000000"),
                )
                await stage.clock.sleep(5)
                assert sorted(outcome for _, outcome in queue.answers) == ["gone", "unknown", "unmanaged"]
                assert written_on(stage, "n1") is None
                assert deletions(stage) == []


async def test_a_machine_is_found_by_its_provider_id_and_drained_is_said_once_it_is() -> None:
    queue = NoticeQueue()
    web = a_workload("Deployment", "web", 1, behaviour={"stop-seconds": 7})
    async with staged("n1", objects=[web]) as stage:
        await stage.add_nodes("n2")
        with hearing(queue):
            async with stage.settled():
                began = stage.clock.monotonic()
                provider_id = (stage.node("n1") or {})["spec"]["providerID"]
                queue.send(Notice(kind=Kind.SCALE_IN, provider_id=provider_id))
                await stage.until_gone("n1")
                [(drained, _)] = queue.drained
                assert began + 7 <= drained <= stage.clock.monotonic()


async def test_fifty_at_the_same_time_under_budgets_that_allow_one_each() -> None:
    """Every pod has its whole grace, or what is left; none is cut off without SIGTERM."""
    queue = NoticeQueue()
    nodes = [f"n{number:02}" for number in range(50)]
    names_ = ("a", "b", "c")
    budgets = [a_budget_manifest(name, maxUnavailable=1) for name in names_]
    async with staged(*nodes) as stage:
        pods = [
            a_pod_manifest(
                f"{name}-{number}",
                node,
                labels={"app": name},
                terminationGracePeriodSeconds=30 if name == "a" else 90 if name == "b" else 600,
            )
            for number, node in enumerate(nodes)
            for name in names_
        ]
        await stage.create(*budgets, *pods)
        with hearing(queue):
            async with stage.settled():
                await stage.clock.sleep(30 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                queue.send(*(spot(stage, node) for node in nodes))
                await stage.until_gone(*nodes)
                assert sorted(deletions(stage)) == [(began, node) for node in nodes]
                evicted = {each.operation.name for each in stage.evictions if each.status == 201}
                deleted: dict[str, float] = {}
                for each in stage.transport.of("delete", "pods"):
                    deleted.setdefault(each.operation.name, round(each.instant - began, 3))
                assert evicted | deleted.keys() == {f"{name}-{number}" for name in names_ for number in range(50)}
                for name, at in deleted.items():
                    latest = {"a": 90.0, "b": 30.0, "c": 0.0}[name[0]]
                    assert at == latest, name
                assert stage.clock.monotonic() - began <= 121


async def test_a_source_that_is_away_for_ten_minutes_says_it_late() -> None:
    queue = NoticeQueue()
    async with staged("n1", "n2") as stage:
        with hearing(queue):
            async with stage.settled():
                queue.is_away = True
                queue.send(spot(stage, "n1"))
                stage.cluster.kubelet.partition("n1")
                await stage.clock.sleep(10 * MINUTES)
                assert deletions(stage) == []
                queue.is_away = False
                back = stage.clock.monotonic()
                await stage.until_gone("n1")
                [(deleted, _)] = deletions(stage)
                assert back <= deleted <= back + 1
                assert "NodeInterrupted" in await reasons(stage, "n1")


async def test_a_standby_writes_what_it_hears_and_the_leader_acts() -> None:
    """As the webhook does, which any replica may serve: the notice is on the node, and the leader sees it there."""
    async with staged("n1", "n2") as stage, stage.settled() as controller:
        standby = Controller(stage.settings, stage.transport, stage.clock, stage.provider)
        recorder = Recorder(
            standby._client, controller._cluster, controller._dependencies.termination.managed, stage.clock, Counter()
        )
        began = stage.clock.monotonic()
        receipt = await recorder.handler("http").receive(spot(stage, "n1"))
        assert receipt.outcome is Outcome.RECORDED
        await stage.until_gone("n1")
        assert deletions(stage) == [(began, "n1")]


async def test_a_notice_names_the_instance_of_a_node_that_came_or_changed_after_an_earlier_notice() -> None:
    async with staged("n1") as stage, stage.settled() as controller:
        managed = controller._dependencies.termination.managed
        recorder = Recorder(controller._client, controller._cluster, managed, stage.clock, Counter())

        async def heard(instance: str) -> Outcome:
            receipt = await recorder.handler("http").receive(Notice(kind=Kind.REBALANCE, instance=instance))
            return receipt.outcome

        for name in ("n1", "n2"):
            if name == "n2":
                await stage.add_nodes(name)
                await stage.until(lambda: controller._cluster.node("n2") is not None)
            node = stage.node(name)
            assert node is not None
            assert await heard(node["spec"]["providerID"].rpartition("/")[2]) is Outcome.RECORDED
        assert await heard("i-of-none") is Outcome.UNKNOWN


async def test_a_dry_run_hears_only_nodes_and_writes_nothing() -> None:
    queue = NoticeQueue()
    async with staged("n1", "n2") as stage:
        stage.is_dry_run = True
        with hearing(queue, TaintSource(TaintSource.Options())):
            async with stage.controller() as controller:
                await controller.wait_live()
                queue.send(spot(stage, "n1"))
                await stage.clock.sleep(30)
                assert queue.answers == []
                assert written_on(stage, "n1") is None
                assert stage.transport.of("patch", "nodes") == []


async def test_invalid_annotations_end_nothing() -> None:
    async with staged("n1", "n2") as stage:
        await stage.patch_node("n1", {"metadata": {"annotations": {names.INTERRUPTION: "spot soon aws"}}})
        async with stage.settled():
            await stage.clock.sleep(60)
            assert deletions(stage) == []
