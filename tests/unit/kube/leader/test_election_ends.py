"""Giving the Lease up, machines that sleep, and clocks of which none is right: never two that may write."""

from __future__ import annotations

import random

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubesim.faults import Latency, Partition, Refuse, Reset, Rule
from support.contenders import Contender, Hustings

from gracectl.runtime.clock import LoopClock


async def test_an_abandoned_write_may_be_on_its_way_for_a_while_and_no_other_leads_before() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")

    async def work() -> None:
        await anyio.sleep(6)
        with anyio.CancelScope() as scope, a.fence.passage(scope):
            await anyio.sleep_forever()

    a.work = work
    async with place.running(a, b):
        await place.until(7)
        a.stop()
        await place.until(20)
        assert a.terms == [[0.0, 7.75]]  # there was time for an answer
        assert a.ended == 10.25
        assert b.terms == [[10.25]]


async def test_what_is_answered_soon_after_sigterm_delays_nothing() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    begun: list[float] = []

    async def work() -> None:
        while a.fence.is_open():
            with anyio.CancelScope() as scope, a.fence.passage(scope):
                begun.append(anyio.current_time())
                await anyio.sleep(0.3)
        await anyio.sleep_forever()

    a.work = work
    async with place.running(a, b):
        await place.until(7)
        a.stop()
        await place.until(8)
        assert b.terms == [[pytest.approx(7.2)]]
        assert begun[-1] == pytest.approx(6.9)


async def test_a_server_that_does_not_answer_keeps_no_process_from_ending() -> None:
    place = Hustings()
    a = place.contender("a")
    async with place.running(a):
        await place.until(6.5)
        a.wire.before.add(Rule(fault=Partition()))
        await place.until(7.5)  # a renewal has been sent
        a.stop()
        await place.until(20)
        assert a.terms == [[0.0, 7.5]]
        assert a.ended == 9.5


async def test_a_renewal_that_was_not_waited_for_does_not_prevent_the_release() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(7)
        a.wire.behind.add(Rule(fault=Latency(3.0, 3.0), method="PUT", count=1))
        await place.until(9)  # it was carried out in second 8
        a.stop()
        await place.until(10)
        assert a.ended == 9.0
        assert b.terms == [[9.0]]


async def test_a_candidate_stopped_while_it_takes_the_lease_releases_it() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    a.wire.behind.add(Rule(fault=Latency(3.0, 3.0), method="POST", count=1))
    async with place.running(a, b):
        await place.until(1)
        assert (await place.lease())["holderIdentity"] == "a"
        a.stop()
        await place.until(2)
        assert (a.terms, a.ended) == ([], 1.0)
        assert b.terms == [[1.0]]


async def test_what_leads_fails_and_another_leads_at_once() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")

    async def work() -> None:
        await anyio.sleep(5)
        raise ValueError("broken")

    a.work = work
    async with place.running(b):
        await place.until(2)
        b.stop()
        await place.until(3)
    b = place.contender("b")
    async with place.running(b):
        pass
    with pytest.raises(ExceptionGroup) as caught:
        await a.election.run(a._lead)
    assert caught.group_contains(ValueError, match="broken")
    assert (await place.lease())["holderIdentity"] == ""
    assert not a.fence.is_open()


async def test_what_leads_ends_and_so_does_the_election() -> None:
    place = Hustings()
    a = place.contender("a")

    async def work() -> None:
        await anyio.sleep(5)

    a.work = work
    await a.run()
    assert (a.terms, a.ended) == ([[0.0, 5.0]], 5.0)
    assert (await place.lease())["holderIdentity"] == ""


async def test_a_failure_is_told_once_and_again_when_it_is_another(caplog: pytest.LogCaptureFixture) -> None:
    place = Hustings()
    a = place.contender("a")
    a.wire.before.add(Rule(fault=Refuse(500), path="gracectl", count=20))
    async with place.running(a):
        await place.until(90)
        assert a.terms == [[40.0]]
    messages = [each.message for each in caplog.records if each.message.startswith("lease: ")]
    assert len(messages) == 1
    assert "get leases.coordination.k8s.io default/gracectl: the server failed" in messages[0]


class UnevenClock(LoopClock):
    """One that goes faster or slower than the others."""

    def __init__(self, pace: float, offset: float) -> None:
        super().__init__()
        self._pace = pace
        self._ahead = offset

    def now(self) -> float:
        return super().now() * self._pace + self._ahead

    def monotonic(self) -> float:
        return super().monotonic() * self._pace

    def elapsed(self) -> float:
        return self.monotonic()


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 4))
async def test_no_two_fences_are_open_and_one_candidate_leads_in_the_end(seed: int, count: int) -> None:
    chance = random.Random(seed)
    place = Hustings()
    place.rng = random.Random(seed + 1)
    living: list[Contender] = []
    ended: list[Contender] = []

    def born() -> Contender:
        clock = UnevenClock(chance.uniform(0.95, 1.05), chance.uniform(-1e6, 1e6))
        contender = place.contender(f"c{len(place.contenders)}", clock)
        for rule in (
            Rule(fault=Latency(0.0, chance.choice([0.1, 1.5])), probability=0.5),
            Rule(fault=Refuse(500), probability=chance.choice([0.0, 0.2])),
            Rule(fault=Reset(), probability=chance.choice([0.0, 0.2])),
        ):
            contender.wire.before.add(rule)
        contender.wire.behind.add(Rule(fault=Reset(carried_out=True), probability=chance.choice([0.0, 0.2])))
        contender.wire.behind.add(Rule(fault=Latency(0.0, 1.0), probability=0.5))
        living.append(contender)
        return contender

    def check() -> None:
        assert [each.name for each in place.contenders.values() if each.fence.is_open()][1:] == []

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(born().run)
        for _ in range(20):
            for _ in range(chance.randint(1, 20)):
                await anyio.sleep(chance.choice([0.01, 0.3, 1.0]))
                check()
            one = chance.choice(living)
            match chance.choice(["stop", "kill", "cut off", "cut off", "forget"]):
                case "stop" | "kill" as end:
                    one.kill() if end == "kill" else one.stop()
                    living.remove(one)
                    ended.append(one)
                    group.start_soon(born().run)
                case "cut off":
                    silence = Rule(fault=Partition())
                    one.wire.before.add(silence)
                    for _ in range(chance.randint(1, 60)):
                        await anyio.sleep(0.5)
                        check()
                    one.wire.before.remove(silence)
                case _:
                    table = place.server.store.table("leases.coordination.k8s.io")
                    table.forget(place.server.store.revision)
        for each in living:
            each.wire.before.clear()
            each.wire.behind.clear()
        await anyio.sleep(45)
        check()
        assert [each.fence.is_open() for each in living].count(True) == 1
        for each in living:
            each.kill()
        group.cancel_scope.cancel()
