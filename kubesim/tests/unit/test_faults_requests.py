"""What a rule does to a request and its answer, and which requests it matches."""

from __future__ import annotations

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.faults import (
    Expire,
    Latency,
    Partition,
    Refuse,
    RefuseEviction,
    Rule,
    SlowTail,
    SlowWebhook,
    StaleReads,
)
from kubesim_support.caller import LEASES, NODES, PODS, Caller, cause_of

pytestmark = pytest.mark.anyio
VICTIM = {"user-agent": "victim/1.0"}


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def caller(clock: LoopClock) -> Caller:
    return Caller(ApiServer(clock, seed=3))


async def test_most_of_a_slow_tail_is_fast_and_some_of_it_is_not(caller: Caller, clock: LoopClock) -> None:
    caller.server.faults.add(Rule(fault=SlowTail(median=0.01, p99=1.0)))
    waits = []
    for _ in range(2000):
        before = clock.monotonic()
        await caller.call("GET", f"{NODES}/n1")
        waits.append(clock.monotonic() - before)
    waits.sort()
    assert waits[1000] == pytest.approx(0.01, rel=0.2)
    assert waits[1980] == pytest.approx(1.0, rel=0.5)


async def test_an_eviction_may_be_refused_without_touching_a_budget(caller: Caller) -> None:
    await caller.pod("web-1")
    await caller.budget(allowed=1)
    rule = Rule(fault=RefuseEviction(), count=1)
    caller.server.faults.add(rule)
    assert (await caller.call("GET", f"{PODS}/web-1")).status == 200
    assert caller.server.faults.struck(rule) == 0
    refused = await caller.evict("web-1")
    assert (refused.status, cause_of(refused)["reason"]) == (429, "DisruptionBudget")
    assert "retry-after" not in refused.headers
    assert (await caller.evict("web-1")).status == 201


async def test_a_budget_still_being_counted_names_a_retry(caller: Caller) -> None:
    await caller.pod("web-1")
    caller.server.faults.add(Rule(fault=RefuseEviction(retry_after=10)))
    assert (await caller.evict("web-1")).headers["retry-after"] == "10"


async def test_a_partition_holds_requests_until_it_heals_and_then_lets_them_go_on(caller: Caller) -> None:
    rule = Rule(fault=Partition(), client="victim")
    caller.server.faults.add(rule)
    answers: list[tuple[float, int]] = []

    async def create() -> None:
        answer = await caller.call("POST", NODES, {"metadata": {"name": "n1"}}, headers=VICTIM)
        answers.append((anyio.current_time(), answer.status))

    async with anyio.create_task_group() as group:
        group.start_soon(create)
        await anyio.sleep(30)
        assert (await caller.call("GET", f"{NODES}/n1")).status == 404
        caller.server.faults.remove(rule)
    assert answers == [(30.0, 201)]


async def test_a_past_that_is_forgotten(caller: Caller) -> None:
    await caller.create(NODES, {"metadata": {"name": "n1"}})
    version = (await caller.get(NODES))["metadata"]["resourceVersion"]
    caller.server.faults.add(Rule(fault=Expire(), path="/nodes"))
    assert (await caller.call("GET", NODES)).status == 200
    assert (await caller.call("GET", NODES, resourceVersion="0")).status == 200
    expired = await caller.call("GET", NODES, resourceVersion=version)
    assert (expired.status, expired.body["reason"]) == (410, "Expired")
    stream = await caller.watch(NODES, resourceVersion=version)
    event = await stream.__anext__()
    assert (event.type, event.object["code"]) == ("ERROR", 410)
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()


async def test_reads_from_a_cache_that_lags_show_the_past(caller: Caller) -> None:
    await caller.create(LEASES, {"metadata": {"name": "one"}})
    caller.server.faults.add(Rule(fault=StaleReads(5.0)))
    await anyio.sleep(10)
    await caller.create(LEASES, {"metadata": {"name": "two"}})

    async def names(**query: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await caller.get(LEASES, **query))["items"]]

    await anyio.sleep(4.9)
    assert await names(resourceVersion="0") == ["one"]
    assert (await caller.call("GET", f"{LEASES}/two", resourceVersion="0")).status == 404
    assert await names() == ["one", "two"]
    assert (await caller.call("GET", f"{LEASES}/two")).status == 200
    await anyio.sleep(0.2)
    assert await names(resourceVersion="0") == ["one", "two"]
    assert (await caller.call("GET", f"{LEASES}/two", resourceVersion="0")).status == 200


async def test_even_the_newest_may_be_old_if_it_is_asked_for(caller: Caller) -> None:
    caller.server.faults.add(Rule(fault=StaleReads(5.0, consistent=True)))
    await caller.get(LEASES)
    await anyio.sleep(1)
    await caller.create(LEASES, {"metadata": {"name": "one"}})
    assert (await caller.get(LEASES))["items"] == []


async def test_several_rules_add_up(caller: Caller, clock: LoopClock) -> None:
    caller.server.faults.add(Rule(fault=Latency(2.0, 2.0)))
    caller.server.faults.add(Rule(fault=Refuse(500)))
    assert (await caller.call("GET", NODES)).status == 500
    assert clock.monotonic() == 2.0


async def test_a_slow_webhook_may_be_slow_once_only(caller: Caller, clock: LoopClock) -> None:
    caller.server.faults.add(Rule(fault=SlowWebhook(5), count=1))
    for _ in range(3):
        await caller.server.faults.before_webhook("a.b.example")
    assert clock.monotonic() == 5
