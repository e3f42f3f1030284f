"""Injected faults, and who is let in."""

from __future__ import annotations

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.faults import DropWatch, FreezeWatch, Latency, Refuse, Reset, Rule
from kubesim.server.api import ConnectionLost
from kubesim_support.caller import LEASES, NODES, Caller, next_events

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def caller(clock: LoopClock) -> Caller:
    return Caller(ApiServer(clock, seed=3))


async def test_a_busy_server_answers_429_without_a_cause(caller: Caller) -> None:
    rule = Rule(fault=Refuse(429, retry_after=2), path="/nodes", count=2)
    caller.server.faults.add(rule)
    answers = [await caller.call("GET", NODES) for _ in range(3)]
    assert [answer.status for answer in answers] == [429, 429, 200]
    assert answers[0].headers["retry-after"] == "2"
    assert isinstance(answers[0].body, str)
    assert caller.server.faults.struck(rule) == 2


async def test_a_refusal_can_have_words_of_its_own(caller: Caller) -> None:
    status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": 'namespaces "x" not found'}
    caller.server.faults.add(Rule(fault=Refuse(404, body=status), count=1))
    first = await caller.call("GET", NODES)
    caller.server.faults.add(Rule(fault=Refuse(404, body="404 page not found\n"), count=1))
    second = await caller.call("GET", NODES)
    assert (first.status, first.body, first.headers["content-type"]) == (404, status, "application/json")
    assert (second.status, second.body) == (404, "404 page not found\n")
    assert second.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failing_server_answers_with_a_status_and_does_nothing(caller: Caller, status: int) -> None:
    caller.server.faults.add(Rule(fault=Refuse(status), method="POST", count=1))
    refused = await caller.call("POST", NODES, {"metadata": {"name": "n1"}})
    assert (refused.status, refused.body["code"]) == (status, status)
    assert (await caller.call("GET", f"{NODES}/n1")).status == 404


async def test_latency_delays_what_it_is_for(caller: Caller, clock: LoopClock) -> None:
    caller.server.faults.add(Rule(fault=Latency(2.0, 2.0), method="GET"))
    await caller.call("POST", NODES, {"metadata": {"name": "n1"}})
    assert clock.monotonic() == 0.0
    await caller.get(NODES)
    assert clock.monotonic() == 2.0


@pytest.mark.parametrize(("carried_out", "status"), [(False, 404), (True, 200)])
async def test_a_reset_hides_whether_the_request_took_effect(caller: Caller, carried_out: bool, status: int) -> None:
    caller.server.faults.add(Rule(fault=Reset(carried_out), method="POST"))
    with pytest.raises(ConnectionLost):
        await caller.call("POST", NODES, {"metadata": {"name": "n1"}})
    assert (await caller.call("GET", f"{NODES}/n1")).status == status


async def test_a_watch_drops(caller: Caller, clock: LoopClock) -> None:
    caller.server.faults.add(Rule(fault=DropWatch(after=4.0), path="/leases"))
    await caller.create(LEASES, {"metadata": {"name": "one"}})
    stream = await caller.watch(LEASES)
    assert await next_events(stream, 1) == [("ADDED", "one")]
    with pytest.raises(ConnectionLost):
        await stream.__anext__()
    assert clock.monotonic() == 4.0


async def test_a_frozen_watch_stays_open_and_silent(caller: Caller) -> None:
    caller.server.faults.add(Rule(fault=FreezeWatch(after=4.0), path="/leases"))
    stream = await caller.watch(LEASES, timeoutSeconds="10")
    await anyio.sleep(5)
    await caller.create(LEASES, {"metadata": {"name": "one"}})
    with anyio.move_on_after(1000) as scope:
        await stream.__anext__()
    assert scope.cancelled_caught


async def test_the_same_seed_strikes_the_same_requests() -> None:
    async def struck() -> list[int]:
        caller = Caller(ApiServer(LoopClock(), seed=11))
        caller.server.faults.add(Rule(fault=Refuse(500), probability=0.5))
        return [(await caller.call("GET", NODES)).status for _ in range(20)]

    first = await struck()
    assert set(first) == {200, 500}
    assert await struck() == first
