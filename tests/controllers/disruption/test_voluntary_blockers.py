"""Pods that block a voluntary termination, until the very instant at which they do not; unless it has a deadline."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.client import MERGE
from kubesim.controllers.nodeclaims import ClaimSpec
from support.disruption import TERMINABLE
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged

from gracectl.model import names
from gracectl.model.times import parse_time

FOR_EVER = {names.DO_NOT_DISRUPT: "true"}
BUDGET = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web"


def deleted(stage: Stage, resource: str = "nodes") -> list[tuple[float, str]]:
    """The DELETEs that we have sent: when, and of what."""
    return [(each.instant, each.operation.name) for each in stage.transport.of("delete", resource)]


async def told(stage: Stage, name: str) -> list[str]:
    return [words for object_, reason, words in await stage.events() if (object_, reason) == (name, "DisruptionHeld")]


async def test_the_node_is_deleted_in_the_very_second_in_which_the_last_protection_ends() -> None:
    async with staged("n1", "n2") as stage, stage.settled() as controller:
        for seconds in (300, 700, 500):
            await stage.create(
                a_pod_manifest(f"job-{seconds}", "n1", annotations={names.DO_NOT_DISRUPT: f"{seconds}s"})
            )
        await stage.patch_node("n1", TERMINABLE)
        [last] = [pod for pod in stage.pods_on("n1") if pod["metadata"]["name"] == "job-700"]
        ends = parse_time(last["metadata"]["creationTimestamp"]) + 700 - stage.clock.now() + stage.clock.monotonic()
        await stage.clock.sleep(10)
        before = controller.statistics().queues["voluntary"].handed_out
        await stage.clock.sleep(ends - 0.1 - stage.clock.monotonic())
        assert controller.statistics().queues["voluntary"].handed_out == before
        spec = (stage.node("n1") or {})["spec"]
        assert spec["unschedulable"]
        assert names.DISRUPTED_TAINT_KEY not in {taint["key"] for taint in spec.get("taints", [])}
        await stage.until_gone("n1")
        [(at, name)] = deleted(stage)
        assert name == "n1"
        assert at == pytest.approx(ends, abs=1e-5)
        [message] = await told(stage, "n1")
        assert message.startswith(
            "termination due (node n1 has the label karpenter.sh/lifecycle-phase=terminable) but blocked: "
            'pod shop/job-300 is protected by do-not-disrupt "300s" until '
        )
        assert "(and 2 more pods)" in message


@pytest.mark.parametrize("way", ["the pod goes", "the annotation goes"])
async def test_the_node_goes_when_its_blocker_goes(way: str) -> None:
    async with staged("n1") as stage, stage.settled():
        await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER, behaviour={"stop-seconds": 5}))
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(3010)  # not when the kubelet writes: what the DELETE names would be stale
        assert deleted(stage) == []
        job = "/api/v1/namespaces/shop/pods/job"
        if way == "the pod goes":
            await stage.call("DELETE", job)
        else:
            await stage.call("PATCH", job, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}}, MERGE)
        start = stage.clock.monotonic()
        await stage.until_gone("n1")
        assert deleted(stage) == [(start, "n1")]


async def test_a_node_whose_pods_budget_is_spent_waits_for_the_replica_that_is_missing() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        await stage.create(
            a_workload("Deployment", "web", 3, behaviour={"ready-seconds": 40}),
            a_budget_manifest("web", minAvailable=3),
        )
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(1000)
        assert deleted(stage) == []
        [message] = await told(stage, "n1")
        assert "cannot be evicted: budget shop/web allows no disruption now (3 of 3 healthy, 3 required)" in message
        path = "/apis/apps/v1/namespaces/shop/deployments/web"
        await stage.call("PATCH", path, {"spec": {"replicas": 4}}, MERGE)
        start = stage.clock.monotonic()
        await stage.until_gone("n1")
        [(at, _)] = deleted(stage)
        assert at - start == pytest.approx(40.0, abs=0.01)


async def test_a_budget_that_changes_and_still_blocks_wakes_no_candidate() -> None:
    async with staged("n1", "n2") as stage, stage.settled() as controller:
        await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER))
        await stage.create(a_workload("Deployment", "web", 2), a_budget_manifest("web", minAvailable=2))
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(10)
        before = controller.statistics().queues["voluntary"].handed_out
        for n in range(50):
            await stage.call("PATCH", BUDGET, {"metadata": {"labels": {"n": str(n)}}}, MERGE)
            await stage.clock.sleep(10)
        assert controller.statistics().queues["voluntary"].handed_out == before


async def test_a_pod_under_two_budgets_holds_its_node_until_one_of_them_is_gone() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        other = {**a_budget_manifest("web", maxUnavailable=1), "metadata": {"name": "also", "namespace": "shop"}}
        await stage.create(a_workload("Deployment", "web", 4), a_budget_manifest("web", maxUnavailable=1), other)
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(500)
        assert deleted(stage) == []
        [message] = await told(stage, "n1")
        assert "change the selector of one of them" in message
        await stage.call("DELETE", BUDGET)
        start = stage.clock.monotonic()
        await stage.until_gone("n1")
        assert deleted(stage) == [(start, "n1")]


async def test_with_a_grace_period_a_claim_expires_in_spite_of_the_pods_and_its_node_ends_by_the_deadline() -> None:
    async with staged("n1", claim=ClaimSpec(expire_after="10m", termination_grace_period="5m")) as stage:
        await stage.add_nodes("n2", claim=ClaimSpec(expire_after="10m"))
        for node in ("n1", "n2"):
            stubborn = {"ignores-sigterm": "true"}
            await stage.create(a_pod_manifest(f"on-{node}", node, annotations=FOR_EVER, behaviour=stubborn))
        async with stage.settled():
            end = await stage.until_gone("n1")
            [(at, name)] = deleted(stage, "nodeclaims")
            assert (at, name) == (600.0, "n1-claim")
            assert end == pytest.approx(900.0, abs=2.0)
            assert await told(stage, "n1") == []
            assert stage.node("n2") is not None
            assert len(await told(stage, "n2")) == len(await told(stage, "n2-claim")) == 1


async def test_all_nodes_of_a_claim_count() -> None:
    """Deleting the claim terminates all of them."""
    async with staged("n1", claim=ClaimSpec(expire_after="100s")) as stage:
        await stage.add_nodes("n2")
        claim = stage.claim("n1-claim")
        assert claim is not None
        # A second node of the same instance, as after a change of its name.
        provider_id = claim["status"]["providerID"]
        node: Any = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n3"},
            "spec": {"providerID": provider_id},
        }
        await stage.call("POST", "/api/v1/nodes", node)
        await stage.create(a_pod_manifest("job", "n3", annotations={names.DO_NOT_DISRUPT: "300s"}))
        async with stage.settled():
            await stage.clock.sleep(200)
            assert deleted(stage, "nodeclaims") == []
            await stage.until_gone("n1", "n3")
            assert [name for _, name in deleted(stage, "nodeclaims")] == ["n1-claim"]


async def test_a_node_that_waits_and_gets_a_claim_waits_as_that_alone() -> None:
    """What is known of it as a unit by itself would else stay for ever."""
    async with staged("n1") as stage, stage.settled() as controller:
        await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER))
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(1)
        await stage.create_claim("c1", {"nodeName": "n1"})
        await stage.clock.sleep(1)
        assert [key.kind for key in controller._manager._voluntary._statuses] == ["claim"]
        assert len(controller._manager._voluntary._waiting) == 1
        assert len(await told(stage, "c1")) == 1
