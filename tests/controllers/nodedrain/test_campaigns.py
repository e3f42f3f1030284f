"""Campaigns: nodes are drained or terminated a few at a time, and the record says what happened."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.campaigns import (
    NODE_DRAINS,
    a_campaign,
    campaign,
    cancel,
    condition,
    counts,
    create_campaign,
    patch_campaign,
    states,
    status,
    until_campaign,
    until_complete,
)
from support.disruption import deletions
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings
from support.thorough import thorough

from gracectl.model import names
from gracectl.model.times import format_time

OLD: Any = {"labels": {"pool": "old"}}
POOL: Any = {"nodeSelector": {"matchLabels": {"pool": "old"}}}
FAST = the_settings(voluntary={"maximumAtOnce": "100%"})
FOUR = tuple(f"n{number}" for number in range(4))


def away(stage: Stage) -> int:
    """Nodes that take no pods, or are being deleted."""
    nodes = stage.nodes()
    return sum(bool(node["spec"].get("unschedulable")) or "deletionTimestamp" in node["metadata"] for node in nodes)


def drained(stage: Stage) -> set[str]:
    """Nodes with the request of a campaign."""
    return {node["metadata"]["name"] for node in stage.nodes() if names.NODE_DRAIN in annotations_of(node)}


def annotations_of(node: Any) -> dict[str, str]:
    found: dict[str, str] = node["metadata"].get("annotations", {})
    return found


@pytest.mark.parametrize("number", [40, *thorough(200)])
async def test_nodes_are_rotated_by_ten_percent_and_never_more_are_away(number: int) -> None:
    nodes, spares = [f"n{index}" for index in range(number)], [f"s{index}" for index in range(number // 5)]
    most: list[int] = []
    async with staged(*nodes, settings=FAST, **OLD) as stage:
        await stage.add_nodes(*spares)
        await stage.create(a_workload("Deployment", "web", number))
        async with stage.settled():
            await create_campaign(stage, maxConcurrent="10%", **POOL)
            while condition(stage, names.COMPLETE)[0] != "True":
                await stage.clock.sleep(0.5)
                most.append(away(stage))
        assert max(most) == number // 10
        assert counts(stage) == {"total": number, "done": number, "terminated": number}
        assert {node["metadata"]["name"] for node in stage.nodes()} == set(spares)


def begins(stage: Stage, name: str = "c") -> dict[str, float]:
    """By node, when the campaign has begun it first."""
    writes = [each for each in stage.transport.of("patch", "nodes") if each.status == 200]
    ours = [each for each in writes if f'"{names.NODE_DRAIN}":"{name}/'.encode() in (each.request.body or b"")]
    return {each.operation.name: each.instant for each in reversed(ours)}


async def test_the_next_node_begins_when_the_pods_of_the_last_are_ready_elsewhere() -> None:
    """They are Ready 40 s after their creation."""
    slow = a_workload("Deployment", "web", 8, behaviour={"start-seconds": 40})
    async with staged(*FOUR[:3], settings=FAST, **OLD) as stage:
        await stage.add_nodes("spare")
        await stage.create(slow)
        async with stage.settled():
            at = await create_campaign(stage, **POOL)
            await until_complete(stage)
        assert [begins(stage)[name] - at for name in FOUR[:3]] == pytest.approx([0, 40, 80])


async def test_without_waiting_for_replacements_the_next_begins_when_the_last_is_gone() -> None:
    slow = a_workload("Deployment", "web", 8, behaviour={"start-seconds": 40})
    async with staged(
        *FOUR[:3], settings=the_settings(voluntary={"maximumAtOnce": 3, "waitForReplacement": False}), **OLD
    ) as stage:
        await stage.add_nodes("spare")
        await stage.create(slow)
        async with stage.settled():
            at = await create_campaign(stage, waitForReplacement=False, **POOL)
            await until_complete(stage)
        assert [begins(stage)[name] - at for name in FOUR[:3]] == pytest.approx([0, 4, 8])


async def test_leaders_killed_three_times_in_the_middle_lose_nothing() -> None:
    nodes = [f"n{number}" for number in range(12)]
    async with staged(*nodes, settings=FAST, **OLD) as stage:
        await stage.add_nodes("s1", "s2", "s3")
        await stage.create(a_workload("Deployment", "web", 30))
        most: list[int] = []

        async def until_done(number: int) -> None:
            while counts(stage).get("done", 0) < number:
                await stage.clock.sleep(0.25)
                most.append(away(stage))

        async with stage.settled(mortal=True):
            await create_campaign(stage, maxConcurrent=3, **POOL)
            await until_campaign(stage, lambda: counts(stage).get("inProgress", 0) > 0)
        for done in (3, 6):
            await stage.clock.sleep(10)
            async with stage.mortal():
                await until_done(done)
        async with stage.controller():
            await until_done(12)
            await until_complete(stage)
        assert max(most) == 3
        assert counts(stage) == {"total": 12, "done": 12, "terminated": 12}
        assert len(deletions(stage)) == 12


async def test_paused_nothing_begins_and_what_runs_goes_on() -> None:
    async with (
        staged(*FOUR, settings=FAST, objects=[a_workload("Deployment", "web", 4)], **OLD) as stage,
        stage.settled(),
    ):
        await create_campaign(stage, action="Drain", **POOL)
        await until_campaign(stage, lambda: "Draining" in states(stage).values())
        await patch_campaign(stage, {"spec": {"paused": True}})
        await until_campaign(stage, lambda: counts(stage).get("drained", 0) == 1)
        await stage.clock.sleep(600)
        assert len(drained(stage)) == 1
        status_, reason, message = condition(stage, names.PROGRESSING)
        assert (status_, reason) == ("False", "Paused")
        assert 'kubectl patch nodedrain c --type merge -p \'{"spec":{"paused":false}}\'' in message
        await patch_campaign(stage, {"spec": {"paused": None}})
        await until_campaign(stage, lambda: counts(stage).get("drained", 0) >= 2)


async def test_canceled_drained_nodes_take_pods_again_and_the_object_goes() -> None:
    async with (
        staged(*FOUR, settings=FAST, objects=[a_workload("Deployment", "web", 4)], **OLD) as stage,
        stage.settled(),
    ):
        await create_campaign(stage, action="Drain", **POOL)
        await until_campaign(stage, lambda: counts(stage).get("drained", 0) == 1 and len(drained(stage)) == 2)
        await cancel(stage)
        canceled_at = stage.clock.monotonic()
        gone_at = await until_campaign(stage, lambda: campaign(stage) is None)
        assert gone_at - canceled_at < 3
        await stage.until(lambda: away(stage) == 0)
        assert drained(stage) == set()
        assert all(names.CORDONED not in annotations_of(node) for node in stage.nodes())
        assert [words for name, reason, words in await stage.events() if reason == "NodeDrainCanceled"] == [
            "canceled: 0 of 4 nodes done, 4 left or returned"
        ]


async def test_canceled_a_node_that_is_being_terminated_goes_on() -> None:
    stuck = a_pod_manifest("stuck", "n0", behaviour={"stop-seconds": 5})
    async with staged(*FOUR, settings=FAST, objects=[stuck], **OLD) as stage, stage.settled():
        stage.provider.seconds = 30.0
        await create_campaign(stage, order="ByName", **POOL)
        await until_campaign(stage, lambda: states(stage).get("n0") == "Terminating")
        await cancel(stage)
        await until_campaign(stage, lambda: campaign(stage) is None)
        assert [words for name, reason, words in await stage.events() if reason == "NodeDrainCanceled"] == [
            "canceled: 1 of 4 nodes done, 3 left or returned; still being terminated: n0"
        ]
        await stage.until_gone("n0")
        assert len(stage.nodes()) == 3


async def test_deleting_a_finished_campaign_returns_nothing() -> None:
    async with staged(*FOUR[:2], settings=FAST, **OLD) as stage, stage.settled():
        await create_campaign(stage, action="Drain", ttlSecondsAfterFinished=60, **POOL)
        completed = await until_complete(stage)
        gone = await until_campaign(stage, lambda: campaign(stage) is None)
        assert gone - completed == pytest.approx(60, abs=1)
        await stage.clock.sleep(60)
        assert away(stage) == 2
        assert drained(stage) == {"n0", "n1"}


NEVER = (a_pod_manifest("fixed", "n1"), a_budget_manifest("fixed", maxUnavailable=0))


async def test_a_budget_that_never_allows_is_named() -> None:
    async with staged(*FOUR, settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        await create_campaign(stage, maxConcurrent=2, **POOL)
        await until_campaign(stage, lambda: counts(stage).get("done", 0) == 3)
        await until_campaign(stage, lambda: condition(stage, names.BLOCKED)[0] == "True")
        _, reason, message = condition(stage, names.BLOCKED)
        assert reason == "Undrainable"
        assert message.startswith("node n1: never drained: pod shop/fixed: ")
        assert "fixed" in message
        (entry,) = (each for each in status(stage)["nodes"] if each["name"] == "n1")
        assert entry["state"] == "Draining"
        assert entry["podsLeft"] == 1
        (blocker,) = entry["blockedBy"]
        assert (blocker["kind"], blocker["namespace"], blocker["name"]) == ("PodDisruptionBudget", "shop", "fixed")
        await stage.call("DELETE", "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/fixed")
        await until_complete(stage)
        assert condition(stage, names.BLOCKED)[0] == "False"


@pytest.mark.parametrize("order", ["ByForecast", "ByName"])
async def test_skip_sets_an_undrainable_node_aside_and_the_campaign_completes(order: str) -> None:
    nodes = [f"n{number}" for number in range(10)]
    async with staged(*nodes, settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        await create_campaign(stage, maxConcurrent=3, onUndrainable="Skip", order=order, **POOL)
        await until_complete(stage)
        assert counts(stage) == {"total": 10, "done": 9, "terminated": 9, "skipped": 1}
        assert status(stage)["scope"]["retried"] == status(stage)["scope"]["skipped"]
        assert away(stage) == 0
        assert [node["metadata"]["name"] for node in stage.nodes()] == ["n1"]
        (entry,) = (each for each in status(stage)["nodes"] if each["name"] == "n1")
        assert entry["state"] == "Skipped"
        assert entry["message"].startswith("never drained: pod shop/fixed: ")


def is_begun(stage: Stage, name: str) -> bool:
    node = stage.node(name) or {}
    return names.NODE_DRAIN in node["metadata"].get("annotations", {}) or "unschedulable" in node["spec"]


async def test_a_node_that_is_begun_after_the_end_is_returned() -> None:
    """By a process that had an older state of the campaign."""
    async with staged(*FOUR, settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        await create_campaign(stage, onUndrainable="Skip", **POOL)
        await until_complete(stage)
        found = campaign(stage)
        assert found is not None
        begun = {names.NODE_DRAIN: f"c/{found['metadata']['uid']}", names.KEEP_DRAINED: format_time(stage.clock.now())}
        await stage.patch_node("n1", {"metadata": {"annotations": begun}, "spec": {"unschedulable": True}})
        await until_campaign(stage, lambda: not is_begun(stage, "n1"), 10)
        assert counts(stage) == {"total": 4, "done": 3, "terminated": 3, "skipped": 1}


async def test_a_skipped_node_is_tried_again_at_the_end() -> None:
    async with staged(*FOUR, settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        await create_campaign(stage, onUndrainable="Skip", order="ByName", **POOL)
        await until_campaign(stage, lambda: counts(stage).get("skipped", 0) == 1)
        await stage.call("DELETE", "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/fixed")
        await until_complete(stage)
        assert counts(stage) == {"total": 4, "done": 4, "terminated": 4}
        assert [name for _, name in deletions(stage)] == ["n0", "n2", "n3", "n1"]


async def test_fail_begins_nothing_more_once_a_node_cannot_be_drained() -> None:
    async with staged(*FOUR, settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        await create_campaign(stage, onUndrainable="Fail", order="ByName", **POOL)
        await until_campaign(stage, lambda: condition(stage, names.FAILED)[0] == "True")
        await until_campaign(stage, lambda: status(stage).get("completionTime") is not None)
        assert counts(stage) == {"total": 4, "done": 1, "terminated": 1, "failed": 1, "canceled": 2}
        assert condition(stage, names.COMPLETE)[0] == "False"
        assert condition(stage, names.FAILED)[2].startswith("node n1: never drained: pod shop/fixed: ")


async def test_a_node_that_joins_in_the_middle_is_not_touched() -> None:
    async with staged(*FOUR, settings=FAST, **OLD) as stage, stage.settled():
        await create_campaign(stage, **POOL)
        await until_campaign(stage, lambda: counts(stage).get("done", 0) == 1)
        await stage.add_nodes("late", **OLD)
        # And one with the name of a node that is gone.
        await stage.add_nodes("n0", **OLD)
        await until_complete(stage)
        assert counts(stage) == {"total": 4, "done": 4, "terminated": 4}
        assert {node["metadata"]["name"] for node in stage.nodes()} == {"late", "n0"}
        assert away(stage) == 0


async def test_of_two_over_one_node_the_stronger_action_wins_and_both_report_it() -> None:
    async with staged(*FOUR, settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        await create_campaign(stage, "maintenance", action="Drain", maxConcurrent=4, **POOL)
        await until_campaign(stage, lambda: counts(stage, "maintenance").get("drained", 0) == 3)
        await create_campaign(stage, "replacement", nodeName="n1")
        await until_campaign(stage, lambda: states(stage, "replacement").get("n1") == "Draining")
        await until_campaign(stage, lambda: counts(stage, "maintenance").get("pending", 0) == 1)
        await stage.clock.sleep(2)
        (entry,) = (each for each in status(stage, "maintenance")["nodes"] if each["name"] == "n1")
        assert (entry["state"], entry["message"]) == ("Draining", "driven by NodeDrain replacement")
        await stage.call("DELETE", "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/fixed")
        await until_complete(stage, "replacement")
        await until_complete(stage, "maintenance")
        assert counts(stage, "maintenance") == {"total": 4, "done": 4, "drained": 3, "terminated": 1}


async def test_of_two_drains_the_older_one_drives() -> None:
    async with staged(*FOUR[:2], settings=FAST, **OLD) as stage, stage.settled():
        await create_campaign(stage, "first", action="Drain", **POOL)
        await stage.clock.sleep(1)
        await create_campaign(stage, "second", action="Drain", **POOL)
        await until_complete(stage, "first")
        await until_complete(stage, "second")
        first, second = begins(stage, "first"), begins(stage, "second")
        assert all(first[name] < second[name] for name in ("n0", "n1"))
        assert counts(stage, "second") == {"total": 2, "done": 2, "drained": 2}


async def test_a_gate_holds_a_node_until_its_owner_removes_it() -> None:
    gate = f"{names.GATE}backup"
    async with staged(*FOUR[:3], settings=FAST, **OLD) as stage, stage.settled():
        await stage.patch_node("n0", {"metadata": {"annotations": {gate: ""}}})
        await create_campaign(stage, order="ByName", **POOL)
        await until_campaign(stage, lambda: counts(stage).get("done", 0) == 2)
        await stage.clock.sleep(60)
        assert states(stage)["n0"] == "Gated"
        assert condition(stage, names.BLOCKED)[:2] == ("True", "Gated")
        assert gate in condition(stage, names.BLOCKED)[2]
        assert drained(stage) == set()
        await stage.patch_node("n0", {"metadata": {"annotations": {gate: None}}})
        await until_complete(stage)


async def test_a_gate_of_the_campaign_holds_all_until_the_timeout() -> None:
    async with staged(*FOUR[:2], settings=FAST, **OLD) as stage, stage.settled():
        manifest = a_campaign(timeout="10m", **POOL)
        manifest["metadata"]["annotations"] = {f"{names.GATE}approval": ""}
        await stage.call("POST", NODE_DRAINS, manifest)
        at = stage.clock.monotonic()
        await until_complete(stage)
        assert begins(stage)["n0"] - at == pytest.approx(600)


@pytest.mark.parametrize(("on_timeout", "is_cordoned"), [("KeepCordoned", True), ("Uncordon", False)])
async def test_a_drain_that_takes_too_long_fails(on_timeout: str, is_cordoned: bool) -> None:
    async with staged(*FOUR[:2], settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        at = await create_campaign(stage, action="Drain", timeout="5m", onTimeout=on_timeout, order="ByName", **POOL)
        failed = await until_campaign(stage, lambda: condition(stage, names.FAILED)[0] == "True")
        assert failed - at < 320
        assert counts(stage) == {"total": 2, "done": 1, "drained": 1, "failed": 1}
        await stage.clock.sleep(60)
        node = stage.node("n1")
        assert node is not None
        assert bool(node["spec"].get("unschedulable")) is is_cordoned
        assert {names.NODE_DRAIN, names.KEEP_DRAINED, names.CORDONED}.isdisjoint(annotations_of(node))
        assert stage.pods_on("n1")


async def test_with_terminate_the_timeout_is_a_deadline() -> None:
    async with staged(*FOUR[:2], settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        at = await create_campaign(stage, timeout="5m", nodeName="n1")
        await until_complete(stage)
        ((deleted, _),) = deletions(stage)
        assert 270 <= deleted - at <= 301


async def test_node_disruption_budgets_hold() -> None:
    async with staged(*FOUR, settings=FAST, **OLD) as stage, stage.settled():
        from support.disruption import create_node_budget

        await create_node_budget(stage, selector={"matchLabels": {"pool": "old"}}, maxUnavailable=1)
        await stage.clock.sleep(2)
        await create_campaign(stage, maxConcurrent=4, **POOL)
        most = 0
        while counts(stage).get("done", 0) < 4:
            await stage.clock.sleep(0.25)
            most = max(most, away(stage))
        assert most == 1


async def test_the_pace_holds() -> None:
    nodes = [f"n{number}" for number in range(10)]
    async with staged(*nodes, settings=the_settings(voluntary={"maximumAtOnce": 2}), **OLD) as stage, stage.settled():
        await create_campaign(stage, maxConcurrent=10, **POOL)
        most, reasons = 0, set()
        while counts(stage).get("done", 0) < 10:
            await stage.clock.sleep(0.25)
            most = max(most, away(stage))
            reasons.add(condition(stage, names.PROGRESSING)[1])
        assert most == 2
        assert "Pace" in reasons


async def test_a_freeze_holds_and_what_has_begun_goes_on() -> None:
    async with staged(*FOUR, settings=FAST, **OLD) as stage, stage.settled():
        until = format_time(stage.clock.now() + 300)
        freeze = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.FREEZE}, "data": {"until": until}}
        await stage.call("POST", "/api/v1/namespaces/kube-system/configmaps", freeze)
        at = await create_campaign(stage, **POOL)
        await stage.clock.sleep(60)
        assert condition(stage, names.PROGRESSING)[:2] == ("False", "Frozen")
        await until_complete(stage)
        assert begins(stage)["n0"] - at == pytest.approx(300)


async def test_a_window_that_closes_and_opens_again() -> None:
    """Opens at each full hour for ten minutes; each node takes four minutes."""
    slow = [
        a_pod_manifest(f"p{number}", f"n{number}", behaviour={"stop-seconds": 240}, terminationGracePeriodSeconds=600)
        for number in range(4)
    ]
    async with staged(*FOUR, settings=FAST, objects=slow, **OLD) as stage, stage.settled():
        windows = [{"schedule": "0 * * * *", "duration": "10m", "timeZone": "UTC"}]
        await create_campaign(stage, windows=windows, order="ByName", **POOL)
        found: dict[str, float] = {}
        while len(found) < 4:
            for name in drained(stage) - found.keys():
                found[name] = stage.clock.now()
            await stage.clock.sleep(1)
        minutes = [int(found[name] % 3600 // 60) for name in FOUR]
        assert all(minute < 10 for minute in minutes), minutes
        hours = [int(found[name] // 3600) for name in FOUR]
        assert hours[0] == hours[1] == hours[2] == hours[3] - 1
        await until_complete(stage)


async def test_nodes_that_do_not_exist_fail_the_campaign() -> None:
    async with staged(*FOUR[:1], settings=FAST, **OLD) as stage, stage.settled():
        await create_campaign(stage, action="Drain", nodeNames=["n0", "gone"])
        await until_campaign(stage, lambda: condition(stage, names.FAILED)[0] == "True")
        assert counts(stage) == {"total": 2, "done": 1, "drained": 1, "failed": 1}
        assert condition(stage, names.FAILED)[2] == "node gone: does not exist"


async def test_a_node_that_a_person_uncordons_has_failed() -> None:
    async with staged(*FOUR[:2], settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        await create_campaign(stage, action="Drain", nodeName="n1")
        await until_campaign(stage, lambda: states(stage).get("n1") == "Draining")
        await stage.patch_node("n1", {"spec": {"unschedulable": None}})
        await until_campaign(stage, lambda: condition(stage, names.FAILED)[0] == "True")
        assert condition(stage, names.FAILED)[2] == "node n1: uncordoned before it was drained"


async def test_a_node_that_was_drained_by_hand_stays_so_when_the_campaign_is_canceled() -> None:
    async with staged(*FOUR[:2], settings=FAST, objects=NEVER, **OLD) as stage, stage.settled():
        request = {"metadata": {"annotations": {names.KEEP_DRAINED: format_time(stage.clock.now())}}}
        await stage.patch_node("n0", request)
        await stage.clock.sleep(10)
        await create_campaign(stage, action="Drain", maxConcurrent=2, **POOL)
        await until_campaign(stage, lambda: counts(stage).get("drained", 0) == 1 and "n1" in drained(stage))
        await cancel(stage)
        await until_campaign(stage, lambda: campaign(stage) is None)
        await stage.clock.sleep(10)
        assert away(stage) == 1
        node = stage.node("n0")
        assert node is not None
        assert names.NODE_DRAIN not in annotations_of(node)
        assert names.KEEP_DRAINED in annotations_of(node)


async def test_the_status_is_written_at_most_once_a_second() -> None:
    nodes = [f"n{number}" for number in range(10)]
    workload = a_workload("Deployment", "web", 40)
    async with staged(*nodes, settings=FAST, objects=[workload], **OLD) as stage, stage.settled():
        await create_campaign(stage, maxConcurrent=2, action="Drain", **POOL)
        await until_campaign(stage, lambda: counts(stage).get("done", 0) >= 5)
        writes = [each.instant for each in stage.transport.of("patch", "nodedrains/status") if each.status == 200]
        assert len(writes) > 5
        assert all(later - earlier > 0.99 for earlier, later in pairwise(writes[1:]))
