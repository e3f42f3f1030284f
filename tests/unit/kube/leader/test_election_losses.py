"""A leader that cannot renew its Lease, or whose Lease is written by another process: to the instant."""

from __future__ import annotations

import logging

import anyio
import pytest
from kubesim.faults import Latency, Partition, Refuse, Reset, Rule
from support.contenders import PATH, Contender, Hustings, settled

WRITES = "PUT|POST"


async def shielded(a: Contender) -> list[float]:
    """Work that begins a write every half second, each of which is never answered; the instants of their ends."""
    ends: list[float] = []

    async def write() -> None:
        with anyio.move_on_after(30, shield=True) as scope, a.fence.passage(scope):
            await anyio.sleep_forever()
        ends.append(anyio.current_time())

    async def work() -> None:
        async with anyio.create_task_group() as group:
            while True:
                if a.fence.is_open():
                    group.start_soon(write)
                await anyio.sleep(0.5)

    a.work = work
    return ends


async def test_a_leader_that_cannot_renew_begins_nothing_then_is_cut_and_only_then_may_another_lead() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    ends = await shielded(a)
    async with place.running(a, b):
        await place.until(20.25)
        a.wire.before.add(Rule(fault=Partition()))
        await place.until(29.9)
        assert a.fence.is_open()
        await place.until(30.0)
        assert not a.fence.is_open()  # ten seconds after the last renewal that succeeded was sent
        await place.until(60)
        # What was begun in its first half minute ends by itself; the others in the middle between losing and taking.
        assert (a.terms, b.terms) == ([[0.0, 32.5]], [[35.0]])
        assert set(ends[:4]) == {30.0, 30.5, 31.0, 31.5}
        assert set(ends[6:]) == {32.5}


async def test_a_slow_renewal_counts_from_when_it_was_sent() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    a.wire.behind.add(Rule(fault=Latency(4.0, 4.0), method=WRITES))
    async with place.running(a, b):
        await place.until(3)
        assert a.terms == []
        assert not a.fence.is_open()
        await place.until(4.0)
        assert a.terms == [[4.0]]
        a.wire.before.add(Rule(fault=Partition(), method=WRITES))
        await place.until(9.9)
        assert a.fence.is_open()
        await place.until(10.0)
        assert not a.fence.is_open()
        assert a.terms == [[4.0, 10.0]]


async def test_one_renewal_without_an_answer_is_not_the_end() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(9)
        a.wire.before.add(Rule(fault=Partition(), method="PUT", count=1))  # second 10, given up in second 15
        await place.until(300)
        assert (a.terms, b.terms) == ([[0.0]], [])
        assert a.election.statistics().failures == 1


@pytest.mark.parametrize("fault", [
    pytest.param(Rule(fault=Refuse(500), method=WRITES, count=3), id="500"),
    pytest.param(Rule(fault=Refuse(429, retry_after=2), count=2), id="busy"),
    pytest.param(Rule(fault=Refuse(429, retry_after=31_536_000), count=2), id="busy for a year"),
    pytest.param(Rule(fault=Refuse(409), method="PUT", count=2), id="conflict"),
    pytest.param(Rule(fault=Reset(), count=3), id="reset"),
    pytest.param(Rule(fault=Latency(3.0, 3.0)), id="slow"),
])  # fmt: skip
async def test_passing_faults_are_survived(fault: Rule) -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(9)
        a.wire.before.add(fault)
        await place.until(100)
        assert (a.terms, b.terms) == ([[0.0]], [])
        assert (await place.lease())["leaseTransitions"] == 0


async def test_renewals_whose_answers_are_lost_keep_the_lead() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    a.wire.behind.add(Rule(fault=Reset(carried_out=True), method="PUT", probability=0.2))
    async with place.running(a, b):
        await place.until(300)
        assert (a.terms, b.terms) == ([[0.0]], [])
        assert a.election.statistics().failures > 20


async def test_the_lost_leader_stands_by_and_leads_again() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(1)
        silence = Rule(fault=Partition())
        a.wire.before.add(silence)
        await place.until(40)
        assert (a.terms, b.terms) == ([[0.0, 10.0]], [[15.5]])
        a.wire.before.remove(silence)
        await place.until(50)
        b.stop()
        await place.until(51)
        assert (a.terms, b.terms) == ([[0.0, 10.0], [50.0]], [[15.5, 50.0]])
        assert a.election.statistics().terms == 2


@pytest.mark.parametrize("holder", ["another", ""])
async def test_a_lease_taken_by_another_client_ends_the_term(holder: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place = Hustings()
    a = place.contender("a")
    async with place.running(a):
        await place.until(4.5)
        await place.edit(holderIdentity=holder)
        await settled()
        assert a.terms[0] == [0.0, 4.5]
        await place.until(60)
        assert a.terms[1:] == [[19.5 if holder else 4.5]]
    assert f"lost leadership: {holder or 'no process'} has the lease" in caplog.text


async def test_a_lease_that_is_deleted_is_made_again_and_is_no_invitation() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(4.25)
        await place.admin.ok("DELETE", PATH)
        await place.until(60)
        assert (a.terms, b.terms) == ([[0.0]], [])
        a.kill()
        await place.admin.ok("DELETE", PATH)
        await place.until(120)
        assert b.terms == [[73.25]]  # the renewal that was seen in second 58.25 would have counted for so long
