"""Many claims at once, killed controllers, failing servers: nothing is lost, and no two writers fight."""

from __future__ import annotations

from collections import Counter

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Rule
from kubesim.server.api import JsonObject
from support.inprocess import Stutter
from support.stage import Stage, a_pod_manifest, staged

QUARTER = ClaimSpec(termination_grace_period="15m")
WRITES = 9
"""To a claim: its DELETE, the deadline, six words in conditions (the last one twice, if the watch is late), the
finalizer."""


def writes_per_claim(stage: Stage) -> dict[str, Counter[str]]:
    """By claim, how the server has answered our writes to it."""
    found: dict[str, Counter[str]] = {}
    for each in stage.transport.executed:
        if each.operation.plural == "nodeclaims" and each.operation.verb in ("patch", "delete"):
            answers = found.setdefault(each.operation.name, Counter())
            answers["done" if each.status == 200 else "refused"] += 1
    return found


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


async def delete(stage: Stage, node: str, *, is_node: bool = False, is_claim: bool = False) -> None:
    """Unless it is gone, or going already."""
    if is_node and is_there(stage.node(node)):
        await stage.delete_node(node)
    if is_claim and is_there(stage.claim(f"{node}-claim")):
        await stage.delete_claim(f"{node}-claim")


def is_there(thing: JsonObject | None) -> bool:
    return thing is not None and "deletionTimestamp" not in thing["metadata"]
