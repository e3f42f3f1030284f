"""Many claims at once, killed controllers, failing servers: nothing is lost, and no two writers fight."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Rule
from kubesim.server.api import JsonObject
from support.inprocess import Stutter
from support.stage import STOPS_AFTER_5, Stage, a_pod_manifest, staged

QUARTER = ClaimSpec(termination_grace_period="15m")
WRITES = 9
"""To a claim: its DELETE, the deadline, six words in conditions (the last one twice, if the watch is late), the
finalizer."""


def writes_per_claim(stage: Stage) -> dict[str, Counter[str]]:
    """By claim, how the server has answered our writes to it."""
    writes: dict[str, Counter[str]] = {}
    for each in stage.transport.executed:
        if each.operation.plural == "nodeclaims" and each.operation.verb in ("patch", "delete"):
            answers = writes.setdefault(each.operation.name, Counter())
            answers["done" if each.status == 200 else "refused"] += 1
    return writes


@pytest.mark.parametrize("deleted", ["claims", "nodes", "both"])
async def test_many_at_once_do_not_wait_for_each_other_and_do_not_fight(deleted: str) -> None:
    nodes = [f"n{number:02}" for number in range(20)]
    claims = [f"{node}-claim" for node in nodes]
    async with staged() as stage:
        for number, node in enumerate(nodes):
            await stage.add_nodes(node, claim=QUARTER)
            await stage.cluster.create(a_pod_manifest(f"p{number}", node, behaviour={"stop-seconds": 5 + number % 3}))
        await stage.cluster.until_ready()
        # Answers take their time, and the watches are out of step with them and with each other.
        stage.transport.behind.add(Rule(fault=Latency(0.0, 0.05)))
        stage.transport.stutter = Stutter(0.2, 0.1)
        async with stage.settled() as controller:
            stage.transport.executed.clear()
            start = stage.clock.monotonic()
            for node, claim in zip(nodes, claims, strict=True):
                if deleted != "nodes":
                    await stage.delete_claim(claim)
                if deleted != "claims":
                    await stage.delete_node(node)
            end = await stage.until_claims_gone(*claims)
            assert end - start < 7.0 + 5.0
            await stage.clock.sleep(3)
            assert controller.claims_under_way() == ()
        answers = writes_per_claim(stage)
        assert answers.keys() == set(claims)
        assert max(each["done"] for each in answers.values()) <= WRITES
        # The watch is behind: another client has written, or it is gone already.
        assert max(each["refused"] for each in answers.values()) <= 3
        deletions = Counter(each.operation.name for each in stage.transport.of("delete", "nodes"))
        assert max(deletions.values(), default=0) <= 1
        terminated = Counter(each.id for each in stage.cluster.cloud.journal if each.what == "shutting-down")
        assert set(terminated.values()) == {1}
        assert len(terminated) == len(nodes)


@pytest.mark.parametrize(
    ("after", "deleted"),
    list(
        zip(
            [0.0, 0.005, 0.015, 0.1, 2.5, 5.0, 5.015, 5.03, 5.06, 5.5, 6.1, 6.2], cycle(["claim", "node"]), strict=False
        )
    ),
)
async def test_a_kill_at_any_point_is_survived(after: float, deleted: str) -> None:
    async with staged("n1", claim=QUARTER, cloud=CloudSettings(terminate_delay=1.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        # Answers take 10 ms, so that a kill finds requests that were carried out and never answered.
        stage.transport.behind.add(Rule(fault=Latency(0.01, 0.01)))
        async with stage.settled(mortal=True) as controller:
            await (stage.delete_claim("n1-claim") if deleted == "claim" else stage.delete_node("n1"))
            await stage.clock.sleep(after)
        await stage.clock.sleep(0.2)
        async with stage.controller() as controller:
            await stage.until_claims_gone("n1-claim")
            await stage.until_gone("n1")
            await stage.clock.sleep(1)
            assert (controller.under_way(), controller.claims_under_way()) == ((), ())
        assert set(stage.agreed().values()) == {1}
        assert stage.instance_state("n1") == "terminated"
        assert the_end_was_in_order(stage)


async def test_two_controllers_by_mistake_break_nothing() -> None:
    async with staged(cloud=CloudSettings(terminate_delay=1.0)) as stage:
        for name in ("n1", "n2", "n3"):
            await stage.add_nodes(name, claim=QUARTER)
            await stage.cluster.create(a_pod_manifest(f"on-{name}", name, **STOPS_AFTER_5))
        await stage.cluster.until_ready()
        stage.transport.behind.add(Rule(fault=Latency(0.01, 0.05)))
        async with stage.controller() as one, stage.controller() as other:
            await stage.settle(one)
            await stage.settle(other)
            await stage.delete_claim("n1-claim")
            await stage.delete_node("n2")
            await stage.until_claims_gone("n1-claim", "n2-claim")
            await stage.until_gone("n1", "n2")
            await stage.clock.sleep(1)
            assert one.claims_under_way() == other.claims_under_way() == ()
        assert [stage.instance_state(name) for name in ("n1", "n2", "n3")] == ["terminated", "terminated", "running"]
        assert all(each["refused"] <= 10 for each in writes_per_claim(stage).values())
        assert the_end_was_in_order(stage)


async def delete(stage: Stage, node: str, *, is_node: bool = False, is_claim: bool = False) -> None:
    """Unless it is gone, or going already."""
    if is_node and is_there(stage.node(node)):
        await stage.delete_node(node)
    if is_claim and is_there(stage.claim(f"{node}-claim")):
        await stage.delete_claim(f"{node}-claim")


def is_there(thing: JsonObject | None) -> bool:
    return thing is not None and "deletionTimestamp" not in thing["metadata"]


def the_end_was_in_order(stage: Stage) -> bool:
    """From the server's own history: no claim went before a node that had registered for it, or before its instance."""
    gone_nodes = {
        change.object["spec"]["providerID"]: change.revision
        for change in stage.server.store.table("nodes").changes(0)
        if change.type == "DELETED"
    }
    for change in stage.server.store.table("nodeclaims.karpenter.sh").changes(0):
        if change.type != "DELETED":
            continue
        status = change.object["status"]
        registered = next(each["status"] for each in status["conditions"] if each["type"] == "Registered")
        if registered == "True" and gone_nodes.get(status["providerID"], change.revision) >= change.revision:
            return False
        id_ = status["providerID"].rsplit("/", 1)[-1]
        if next(each.state for each in stage.cluster.cloud.instances if each.id == id_) != "terminated":
            return False
    return True
