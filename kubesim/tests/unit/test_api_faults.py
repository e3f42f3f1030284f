"""Injected faults, and who is let in."""

from __future__ import annotations

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.faults import FreezeWatch, Refuse, Reset, Rule
from kubesim.server.api import ConnectionLost
from kubesim_support.caller import LEASES, NODES, Caller

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def caller(clock: LoopClock) -> Caller:
    return Caller(ApiServer(clock, seed=3))


async def test_a_refusal_can_have_words_of_its_own(caller: Caller) -> None:
    status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": 'namespaces "x" not found'}
    caller.server.faults.add(Rule(fault=Refuse(404, body=status), count=1))
    first = await caller.call("GET", NODES)
    caller.server.faults.add(Rule(fault=Refuse(404, body="404 page not found\n"), count=1))
    second = await caller.call("GET", NODES)
    assert (first.status, first.body, first.headers["content-type"]) == (404, status, "application/json")
    assert (second.status, second.body) == (404, "404 page not found\n")
    assert second.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(("carried_out", "status"), [(False, 404), (True, 200)])
async def test_a_reset_hides_whether_the_request_took_effect(caller: Caller, carried_out: bool, status: int) -> None:
    caller.server.faults.add(Rule(fault=Reset(carried_out), method="POST"))
    with pytest.raises(ConnectionLost):
        await caller.call("POST", NODES, {"metadata": {"name": "n1"}})
    assert (await caller.call("GET", f"{NODES}/n1")).status == status


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
