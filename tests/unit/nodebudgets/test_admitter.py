"""Who may end a node: one answer for all replicas, whatever comes between."""

from __future__ import annotations

import random
from collections import Counter
from itertools import cycle

import anyio
import msgspec
import pytest
from kubesim.faults import Refuse, Rule
from support.disruption import (
    NODE_BUDGETS,
    POOL,
    create_node_budget,
    figures,
    patch_node_budget,
    replicas,
    seen,
    status_of,
)
from support.stage import NOT_READY, SILENT, Stage, staged

from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import NEWS_SECONDS, Admitter, Refusal, UnknownNode
from gracectl.policy.budgets import Allowance
from gracectl.policy.nodebudgets import count_nodes

WRITES = ("patch", "nodedisruptionbudgets/status")
READS = ("get", "nodedisruptionbudgets")
LATER = "9" * 20
"""A version that a forged request claims."""


def pool(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


async def a_pool(stage: Stage, count: int, **options: object) -> list[str]:
    names = pool(count)
    await stage.add_nodes(*names, labels=POOL, **options)
    return names


async def test_a_node_that_no_budget_governs_ends_without_a_question() -> None:
    async with staged("alone") as stage, replicas(stage) as [gate]:
        await create_node_budget(stage, maxUnavailable=0)
        await stage.clock.sleep(1)
        asked = len(stage.transport.executed)
        assert await gate.admit(seen(stage, "alone")) is None
        assert len(stage.transport.executed) == asked


async def test_the_node_is_written_down_before_it_may_end_and_only_once() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 4)
        await create_node_budget(stage, maxUnavailable=2)
        await stage.clock.sleep(1)
        assert figures(stage) == (4, 4, 2, 2)
        before = len(stage.transport.of(*WRITES))
        assert await gate.admit(seen(stage, "n1")) is None
        assert list(status_of(stage)["disruptedNodes"]) == ["n1"]
        assert status_of(stage)["disruptionsAllowed"] == 1
        assert await gate.admit(seen(stage, "n1")) is None
        await stage.clock.sleep(1)
        assert await gate.admit(seen(stage, "n1")) is None
        # The entry says all that a count finds after it.
        assert len(stage.transport.of(*WRITES)) - before == 1
        assert figures(stage) == (4, 3, 2, 1)


async def test_a_refusal_names_the_budget_its_figures_and_what_would_help() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 10)
        await create_node_budget(stage, minAvailable="100%")
        await stage.clock.sleep(1)
        refusal = await gate.admit(seen(stage, "n1"))
        assert refusal == Refusal(
            "pool-a",
            Allowance.EXHAUSTED,
            "node disruption budget pool-a allows no termination now (10 of 10 available, 10 required by minAvailable "
            "100%)",
            "change or delete the budget, which never allows a termination",
        )
        assert status_of(stage).get("disruptedNodes", {}) == {}


async def test_a_dry_run_asks_and_writes_nothing() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 2)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.clock.sleep(1)
        before = len(stage.transport.of(*WRITES))
        assert await gate.admit(seen(stage, "n0"), dry_run=True) is None
        assert await gate.admit(seen(stage, "n1"), dry_run=True) is None
        assert len(stage.transport.of(*WRITES)) == before
        assert await gate.admit(seen(stage, "n0")) is None
        assert await gate.admit(seen(stage, "n1"), dry_run=True) is not None


async def test_nodes_that_are_unavailable_end_without_a_question() -> None:
    async with staged(kubelet=SILENT) as stage, replicas(stage) as [gate]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=0)
        await stage.clock.sleep(1)
        await stage.patch_node("n1", NOT_READY, "/status")
        await stage.clock.sleep(1)
        asked = len(stage.transport.executed)
        assert await gate.admit(seen(stage, "n1")) is None
        assert len(stage.transport.executed) == asked
        assert await gate.admit(seen(stage, "n0")) is not None


async def test_a_node_that_the_watch_calls_unavailable_is_entered_at_no_cost() -> None:
    """It may be Ready by now, and be shown so before its deletion is."""
    async with staged(kubelet=SILENT) as stage, replicas(stage) as [gate]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.clock.sleep(1)
        await stage.patch_node("n1", NOT_READY, "/status")
        await stage.clock.sleep(1)
        assert figures(stage) == (3, 2, 2, 0)
        assert await gate.admit(seen(stage, "n1"), is_watching=True) is None
        assert list(status_of(stage)["disruptedNodes"]) == ["n1"]
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await stage.patch_node("n1", ready, "/status")
        await stage.clock.sleep(1)
        assert figures(stage) == (3, 2, 2, 0)
        # Nor does a status that cannot be written block a dead node.
        stage.transport.before.add(Rule(fault=Refuse(500), method="PATCH", path="/nodedisruptionbudgets"))
        await stage.patch_node("n2", NOT_READY, "/status")
        await stage.clock.sleep(1)
        assert await gate.admit(seen(stage, "n2"), is_watching=True) is None


async def test_a_budget_that_is_not_counted_yet_asks_for_a_second_of_patience() -> None:
    async with staged() as stage, replicas(stage, counts=False) as [gate]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=3)
        await stage.clock.sleep(1)
        refusal = await gate.admit(seen(stage, "n0"))
        assert refusal is not None
        assert (refusal.allowance, refusal.retry_after) == (Allowance.NOT_OBSERVED, 1)


async def test_a_no_of_the_cache_is_asked_of_the_server_unless_the_caller_is_watching() -> None:
    async with staged() as stage, replicas(stage, 2) as [_, other]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.clock.sleep(1)
        # The watch of the other one does not show any more what happens.
        other.budgets.put = lambda new: None  # type: ignore[method-assign]
        await patch_node_budget(stage, "pool-a", {"maxUnavailable": 0})
        await stage.clock.sleep(1)
        assert (
            await other.admit(seen(stage, "n1"), is_watching=True) is not None
        )  # its write was refused, and it looked
        await patch_node_budget(stage, "pool-a", {"maxUnavailable": 2})
        await stage.clock.sleep(1)
        reads = len(stage.transport.of(*READS))
        assert await other.admit(seen(stage, "n1"), is_watching=True) is not None
        assert len(stage.transport.of(*READS)) == reads
        assert await other.admit(seen(stage, "n1")) is None
        assert len(stage.transport.of(*READS)) == reads + 1


async def test_of_a_question_only_which_node_it_is_about_is_believed() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 3)
        await stage.add_nodes("other")
        await stage.clock.sleep(1)
        truth = seen(stage, "other")
        reads = len(stage.transport.of("get", "nodes"))
        assert await gate.known(truth) == truth
        # A heartbeat changes no count, and older states than the cache's are no news.
        assert await gate.known(msgspec.structs.replace(truth, resource_version=LATER)) == truth
        assert await gate.known(msgspec.structs.replace(truth, labels=POOL, resource_version="1")) == truth
        assert await gate.known(msgspec.structs.replace(truth, uid="earlier", resource_version="1")) is None
        assert len(stage.transport.of("get", "nodes")) == reads
        # A newer state than the cache's: labels may be invented, or be news that the watch has yet to bring.
        assert await gate.known(msgspec.structs.replace(truth, labels=POOL, resource_version=LATER)) == truth
        assert len(stage.transport.of("get", "nodes")) == reads + 1
        for forged in (
            msgspec.structs.replace(truth, uid="another", resource_version=LATER),
            msgspec.structs.replace(truth, name="invented", labels=POOL),
        ):
            await stage.clock.sleep(1)
            assert await gate.known(forged) is None
        assert len(stage.transport.of("get", "nodes")) == reads + 3
        assert gate.statistics()["unknown"] == 3


async def test_forged_requests_cost_one_read_a_second() -> None:
    """Of nodes that do not exist, of a node in another state, and against a budget that is spent: together."""
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 1)
        await create_node_budget(stage, maxUnavailable=0)
        await stage.clock.sleep(2)
        node, start = seen(stage, "n0"), stage.clock.monotonic()
        before = len(stage.transport.executed)
        outcomes: Counter[str] = Counter()

        async def ask(forged: Node) -> None:
            try:
                await gate.known(forged)
                outcomes["read"] += 1
            except UnknownNode:
                outcomes["not read"] += 1

        async with anyio.create_task_group() as group:
            for number in range(300):
                group.start_soon(ask, msgspec.structs.replace(node, name=f"invented-{number}"))
                labels = {"invented": str(number)}
                group.start_soon(ask, msgspec.structs.replace(node, labels=labels, resource_version=LATER))
                assert await gate.known(node) == node  # what is known needs no read
                assert await gate.admit(node) is not None
                await stage.clock.sleep(0.01)
        assert stage.clock.monotonic() - start == pytest.approx(3.0 - 0.01 + NEWS_SECONDS, abs=0.011)
        reads = [each for each in stage.transport.executed[before:] if each.operation.verb == "get"]
        assert [each.instant - start for each in reads] == pytest.approx([0.0, 1.0, 2.0], abs=0.021)
        assert sum(outcomes.values()) == 600
        assert outcomes["read"] <= 3
        assert dict(gate._news) == {}


async def test_of_many_new_nodes_one_is_read_and_the_watch_shows_the_others() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await stage.clock.sleep(1)
        reads = len(stage.transport.of("get", "nodes"))
        answers: list[Node | None] = []

        async def ask(node: Node) -> None:
            answers.append(await gate.known(node))

        late: list[tuple[Node | None]] = []
        put = gate.nodes.put
        gate.nodes.put = lambda new: late.append((new,))  # type: ignore[method-assign]  # the watch is late
        names = await a_pool(stage, 20)
        await stage.clock.sleep(0.1)
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(ask, seen(stage, name))
            await stage.clock.sleep(0.5)
            assert len(answers) == 1
            for (node,) in late:
                assert node is not None
                put(node)
        assert answers == [seen(stage, name) for name in names]
        assert len(stage.transport.of("get", "nodes")) == reads + 1


async def test_a_node_that_flaps_costs_each_budget_a_write_a_second() -> None:
    async with staged(kubelet=SILENT) as stage, replicas(stage):
        await a_pool(stage, 3)
        for number in range(10):
            await create_node_budget(stage, f"pool-{number}", maxUnavailable=2)
        await stage.clock.sleep(10)
        start, before = stage.clock.monotonic(), len(stage.transport.of(*WRITES))
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        for _ in range(100):
            await stage.patch_node("n1", NOT_READY, "/status")
            await stage.clock.sleep(0.05)
            await stage.patch_node("n1", ready, "/status")
            await stage.clock.sleep(0.05)
        await stage.patch_node("n1", NOT_READY, "/status")
        await stage.clock.sleep(0)
        last = stage.clock.monotonic()
        await stage.clock.sleep(5)
        assert [figures(stage, f"pool-{number}") for number in range(10)] == [(3, 2, 1, 1)] * 10
        writes = [each.instant for each in stage.transport.of(*WRITES)[before:]]
        # The burst first, then one a second, and the last change within a second.
        assert len(writes) <= 10 * (5 + 11)
        assert sum(instant - start < 0.5 for instant in writes) == 10 * 5
        assert max(writes) - last <= 1.0
        # A change that comes alone is written immediately.
        await stage.patch_node("n1", ready, "/status")
        await stage.clock.sleep(0.1)
        assert [figures(stage, f"pool-{number}") for number in range(10)] == [(3, 3, 1, 2)] * 10


async def test_no_lock_outlives_the_questions_that_wait_for_it() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 2)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.clock.sleep(1)
        assert await gate.admit(seen(stage, "n0")) is None
        assert dict(gate._locks) == {}


async def test_questions_at_the_same_time_are_written_one_after_the_other_without_a_conflict() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        names = await a_pool(stage, 5)
        await create_node_budget(stage, maxUnavailable=4)
        await stage.clock.sleep(1)
        before = len(stage.transport.of(*WRITES))
        async with anyio.create_task_group() as group:
            for name in names[:4]:
                group.start_soon(gate.admit, seen(stage, name))
        assert {each.status for each in stage.transport.of(*WRITES)[before:]} == {200}
        assert sorted(status_of(stage)["disruptedNodes"]) == names[:4]


async def test_the_figures_are_written_although_what_is_allowed_stays_the_same() -> None:
    async with staged() as stage, replicas(stage):
        await a_pool(stage, 3)
        await stage.add_nodes("other")
        await create_node_budget(stage, maxUnavailable=1)
        await stage.clock.sleep(1)
        assert figures(stage) == (3, 3, 2, 1)
        await stage.patch_node("other", {"metadata": {"labels": POOL}})
        await stage.clock.sleep(1)
        assert figures(stage) == (4, 4, 3, 1)


async def test_without_a_counting_leader_failing_nodes_are_seen_all_the_same() -> None:
    async with staged(kubelet=SILENT) as stage, replicas(stage, counts=False) as [gate]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=1)
        path = f"{NODE_BUDGETS}/pool-a/status"
        status = {"observedGeneration": 1, "expectedNodes": 3, "currentAvailable": 3, "desiredAvailable": 2}
        body = {"status": {**status, "disruptionsAllowed": 1}}
        await stage.call("PATCH", path, body, "application/merge-patch+json")
        await stage.clock.sleep(1)
        await stage.patch_node("n1", NOT_READY, "/status")
        await stage.clock.sleep(1)
        refusal = await gate.admit(seen(stage, "n0"))
        assert refusal is not None
        assert "(2 of 3 available, 2 required by maxUnavailable 1)" in refusal.reason


async def test_all_budgets_over_a_node_have_to_allow_its_end() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 4)
        await create_node_budget(stage, "wide", maxUnavailable=3)
        await create_node_budget(stage, "none", maxUnavailable=0)
        await stage.clock.sleep(1)
        refusal = await gate.admit(seen(stage, "n0"))
        assert refusal is not None
        assert refusal.budget == "none"
        assert status_of(stage, "wide").get("disruptedNodes", {}) == {}  # nothing is charged in vain
        await patch_node_budget(stage, "none", {"maxUnavailable": 1})
        await stage.clock.sleep(1)
        assert await gate.admit(seen(stage, "n0")) is None
        assert list(status_of(stage, "wide")["disruptedNodes"]) == ["n0"]
        assert list(status_of(stage, "none")["disruptedNodes"]) == ["n0"]


async def test_an_end_that_is_forced_is_counted_although_nothing_is_left() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=0)
        await stage.clock.sleep(1)
        assert await gate.admit(seen(stage, "n0"), is_forced=True) is None
        assert list(status_of(stage)["disruptedNodes"]) == ["n0"]
        assert status_of(stage)["disruptionsAllowed"] == 0
        assert await gate.admit(seen(stage, "n0")) is None


async def admitted_and_deleted(stage: Stage, gate: Admitter, name: str, rng: random.Random) -> bool:
    """What an API server does: ask, perhaps twice, then delete."""
    node = seen(stage, name)
    for _ in range(rng.choice((1, 1, 2))):
        if await gate.admit(node) is not None:
            return False
        await stage.clock.sleep(rng.random() * 0.01)
    await stage.call("DELETE", f"/api/v1/nodes/{name}")
    return True


@pytest.mark.seeds(4)
async def test_fifty_at_once_through_three_replicas_never_exceed_a_budget(seed: int) -> None:
    """And none is refused in the end that could have been allowed."""
    rng = random.Random(seed)
    async with staged(seed=seed) as stage:
        names = await a_pool(stage, 50)
        most = rng.randint(1, 20)
        await create_node_budget(stage, maxUnavailable=most)
        # Over some of them, so that some are charged to two.
        few = names[: rng.randint(3, 30)]
        for name in few:
            await stage.patch_node(name, {"metadata": {"labels": {"few": "yes"}}})
        await create_node_budget(stage, "few", labels={"few": "yes"}, minAvailable=len(few) - rng.randint(1, 3))
        for name in names:
            await stage.patch_node(name, {"metadata": {"finalizers": ["example.com/held"]}})
        stage.transport.stutter = stage.transport.stutter._replace(probability=0.5, most=rng.choice((0.01, 0.3)))
        async with replicas(stage, 3) as gates:
            await stage.clock.sleep(5)
            answers: Counter[bool] = Counter()

            async def ask(name: str, gate: Admitter) -> None:
                await stage.clock.sleep(rng.random() * 0.05)
                answers[await admitted_and_deleted(stage, gate, name, rng)] += 1

            async with anyio.create_task_group() as group:
                for name, gate in zip(rng.sample(names, 50), cycle(gates), strict=False):
                    group.start_soon(ask, name, gate)
            gone = {node["metadata"]["name"] for node in stage.nodes() if "deletionTimestamp" in node["metadata"]}
            allowed = len(few) - int(stage_bound(stage, "few"))
            assert len(gone) == answers[True] <= most
            assert len(gone & set(few)) <= allowed
            # The storm is over: what is left is allowed to the last one, once what was charged in vain is forgotten.
            await stage.clock.sleep(130)
            for name in sorted(set(names) - gone):
                if await gates[1].admit(seen(stage, name)) is None:
                    await stage.call("DELETE", f"/api/v1/nodes/{name}")
                    gone.add(name)
                    await stage.clock.sleep(2)
            # Nodes outside the few are free for all that the few leave.
            assert len(gone) == most or len(gone & set(few)) == allowed
            assert len(gone) == min(most, allowed + 50 - len(few))


def stage_bound(stage: Stage, name: str) -> int:
    table = stage.server.store.table("nodedisruptionbudgets.termination.karpenter.sh")
    budget = table.get("", name)
    assert budget is not None
    return int(budget["spec"]["minAvailable"])


async def test_an_admission_that_no_deletion_follows_is_forgotten() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=1)
        await stage.clock.sleep(1)
        assert await gate.admit(seen(stage, "n0")) is None
        assert await gate.admit(seen(stage, "n1")) is not None
        await stage.clock.sleep(58)
        assert await gate.admit(seen(stage, "n1")) is not None
        await stage.clock.sleep(3)
        assert await gate.admit(seen(stage, "n1")) is None
        assert list(status_of(stage)["disruptedNodes"]) == ["n1"]


async def test_a_request_too_slow_for_the_others_is_told_to_retry() -> None:
    async with staged() as stage, replicas(stage) as [gate]:
        await a_pool(stage, 3)
        await create_node_budget(stage, maxUnavailable=2)
        await stage.clock.sleep(1)
        look_up = gate.store.look_up

        async def news() -> None:
            body = {"metadata": {"annotations": {"now": str(random.random())}}}
            await stage.call("PATCH", f"{NODE_BUDGETS}/pool-a", body, "application/merge-patch+json")

        async def look_up_too_late(name: str) -> NodeDisruptionBudget | None:
            answer = await look_up(name)
            await news()
            return answer

        gate.store.look_up = look_up_too_late  # type: ignore[method-assign]
        gate.budgets.put = lambda new: None  # type: ignore[method-assign]  # the watch is late
        await news()
        start = stage.clock.monotonic()
        refusal = await gate.admit(seen(stage, "n0"))
        assert refusal is not None
        assert "being written by too many clients" in refusal.reason
        assert refusal.retry_after == 1
        assert 5 <= stage.clock.monotonic() - start <= 6


async def test_the_members_are_what_a_count_over_all_nodes_would_find() -> None:
    rng = random.Random(7)
    async with staged(kubelet=SILENT) as stage, replicas(stage) as [gate]:
        await a_pool(stage, 8)
        await create_node_budget(stage, minAvailable="50%")
        for _ in range(60):
            name = rng.choice(pool(8))
            match rng.randrange(5):
                case 0:
                    await stage.patch_node(name, NOT_READY, "/status")
                case 1:
                    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
                    await stage.patch_node(name, ready, "/status")
                case 2:
                    await stage.patch_node(name, {"metadata": {"labels": {"pool": rng.choice(["a", "b"])}}})
                case 3:
                    label = rng.choice(["a", "b"])
                    await patch_node_budget(stage, "pool-a", {"selector": {"matchLabels": {"pool": label}}})
                case _:
                    await gate.admit(seen(stage, name))
            await stage.clock.sleep(rng.random())
            budget = gate.store.budget("pool-a")
            assert budget is not None
            now = stage.clock.now()
            assert gate.members.count_nodes(budget, now) == count_nodes(budget, gate.nodes.values(), now)
