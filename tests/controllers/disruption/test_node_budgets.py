"""The controller's own deletions pass the gate: what a budget for nodes refuses waits, wakes when it frees, and asks
for nothing meanwhile; a deadline stands above it."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.collector import figures as figures_of
from support.disruption import (
    POOL,
    TERMINABLE,
    create_node_budget,
    deletions,
    patch_node_budget,
)
from support.stage import (
    Stage,
    a_pod_manifest,
    staged,
)

from gracectl.model import names

CLAIMED = ClaimSpec(labels=POOL)
WITH_DEADLINE = ClaimSpec(labels=POOL, termination_grace_period="15m")


def pool(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


async def held(stage: Stage, name: str) -> list[str]:
    return [words for object_, reason, words in await stage.events() if (object_, reason) == (name, "DisruptionHeld")]


def unavailable(stage: Stage) -> int:
    """Of the nodes that the server has, those that are being deleted."""
    return sum("deletionTimestamp" in node["metadata"] for node in stage.nodes())


async def test_a_waiting_node_sends_no_request_and_is_woken_in_the_instant_in_which_the_budget_frees() -> None:
    async with staged() as stage, stage.controller() as controller:
        await stage.add_nodes("n0", "n1", labels=POOL)
        await create_node_budget(stage, maxUnavailable=0)
        await stage.settle(controller)
        await stage.patch_node("n0", TERMINABLE)
        await stage.clock.sleep(10)
        before = {each: counted(stage, *each) for each in ASKED}
        handed_out = controller.statistics().queues["voluntary"].handed_out
        await stage.clock.sleep(1000)
        assert {each: counted(stage, *each) for each in ASKED} == before
        assert controller.statistics().queues["voluntary"].handed_out == handed_out
        await patch_node_budget(stage, "pool-a", {"maxUnavailable": 1})
        freed = stage.clock.monotonic()
        await stage.until_gone("n0")
        assert deletions(stage) == [(round(freed, 3), "n0")]
        assert await held(stage, "n0") == [
            "termination due (node n0 has the label karpenter.sh/lifecycle-phase=terminable) but blocked: node "
            "disruption budget pool-a allows no termination now (2 of 2 available, 2 required by maxUnavailable 0); "
            "change or delete the budget, which never allows a termination"
        ]


ASKED = (
    ("delete", "nodes"),
    ("get", "nodedisruptionbudgets"),
    ("patch", "nodedisruptionbudgets/status"),
    ("patch", "nodes"),
    ("create", "events"),
)


def counted(stage: Stage, verb: str, resource: str) -> int:
    return len(stage.transport.of(verb, resource))


@pytest.mark.parametrize("way", ["the budget is deleted", "its selector changes", "the node is no longer selected"])
async def test_whatever_takes_the_budget_off_a_node_lets_it_end(way: str) -> None:
    async with staged() as stage, stage.controller() as controller:
        await stage.add_nodes("n0", "n1", labels=POOL)
        await create_node_budget(stage, minAvailable="100%")
        await stage.settle(controller)
        await stage.patch_node("n0", TERMINABLE)
        await stage.clock.sleep(100)
        assert deletions(stage) == []
        match way:
            case "the budget is deleted":
                path = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets/pool-a"
                await stage.call("DELETE", path)
            case "its selector changes":
                await patch_node_budget(stage, "pool-a", {"selector": {"matchLabels": {"pool": "b"}}})
            case _:
                await stage.patch_node("n0", {"metadata": {"labels": {"pool": None}}})
        freed = stage.clock.monotonic()
        await stage.until_gone("n0")
        assert deletions(stage)[0] == (round(freed, 3), "n0")


async def test_claims_that_expire_in_the_same_second_are_deleted_as_their_budget_allows() -> None:
    """Not the claims first and the nodes one after the other: the clock of a claim runs from its deletion."""
    async with staged() as stage, stage.controller() as controller:
        for name in pool(6):
            spec = ClaimSpec(labels=POOL, expire_after="600s", termination_grace_period="15m")
            await stage.add_nodes(name, claim=spec)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.settle(controller)
        most = 0
        while stage.claims():
            await stage.clock.sleep(0.5)
            deleted = sum("deletionTimestamp" in claim["metadata"] for claim in stage.claims())
            most = max(most, deleted)
        assert most == 1
        assert len(deletions(stage, "nodeclaims")) == 6


async def test_a_deleted_claim_keeps_its_node_until_the_budget_allows_its_end() -> None:
    async with staged() as stage, stage.controller() as controller:
        for name in pool(3):
            await stage.add_nodes(name, claim=CLAIMED)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.settle(controller)
        await stage.create(a_pod_manifest("slow", "n0", behaviour={"stop-seconds": 20}))
        for name in pool(3):
            await stage.delete_claim(f"{name}-claim")
            await stage.clock.sleep(0.5)
        assert unavailable(stage) == 1
        condition = stage.claim_condition("n1-claim", names.DRAINED)
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "NodeDisruptionBudget")
        assert condition["message"].startswith(
            "deletion of node n1 blocked: node disruption budget pool-a allows no termination now"
        )
        assert controller.claims_under_way()[1].waits_for == condition["message"]
        assert figures_of(controller, "node_budgets", "nodes_blocked_by_budget") == {
            ("node_budgets", "spent"): 1,
            ("nodes_blocked_by_budget", "nodeclaim"): 2,
        }
        answers = figures_of(controller, "node_admissions_total")
        assert answers["node_admissions_total", "admitted"] == 1
        assert answers["node_admissions_total", "refused"] >= 2
        most = 0
        while stage.claims():
            await stage.clock.sleep(0.25)
            most = max(most, unavailable(stage))
        assert most == 1
        # In the order in which they were asked for.
        assert [name for _, name in deletions(stage)] == pool(3)


async def test_the_deadline_of_a_claim_stands_above_the_budget_and_its_pods_have_their_time() -> None:
    async with staged() as stage, stage.controller() as controller:
        await stage.add_nodes("n0", claim=WITH_DEADLINE)
        await stage.add_nodes("n1", claim=CLAIMED)
        await create_node_budget(stage, minAvailable="100%")
        await stage.create(a_pod_manifest("a", "n0", terminationGracePeriodSeconds=60, behaviour={"stop-seconds": 60}))
        await stage.settle(controller)
        start = await stage.delete_claim("n0-claim")
        await stage.delete_claim("n1-claim")
        await stage.clock.sleep(830)
        assert deletions(stage) == []
        gone = await stage.until_gone("n0")
        [(at, name)] = deletions(stage)
        assert name == "n0"
        assert at - start == pytest.approx(840, abs=1.0)  # a minute before its quarter of an hour is over
        assert gone - start <= 901.0
        await stage.clock.sleep(10_000)
        assert stage.node("n1") is not None  # without a deadline it waits


async def test_a_record_that_cannot_be_written_lets_no_node_terminate() -> None:
    async with staged() as stage, stage.controller() as controller:
        await stage.add_nodes("n0", "n1", labels=POOL)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.settle(controller)
        await stage.clock.sleep(1)
        rule = Rule(fault=Refuse(500), method="PATCH", path="/nodedisruptionbudgets")
        stage.transport.before.add(rule)
        await stage.patch_node("n0", TERMINABLE)
        await stage.clock.sleep(300)
        assert deletions(stage) == []
        shown = stage.condition("n0", names.TERMINATION_PENDING)
        assert shown is not None
        assert (shown["status"], shown["reason"]) == ("True", "DeletionRefused")
        assert "the server failed" in shown["message"]
        stage.transport.before.remove(rule)
        assert await stage.until_gone("n0")
