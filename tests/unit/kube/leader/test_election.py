"""Who takes a Lease, and when: client-go's rules, to the instant."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from kubesim.faults import FreezeWatch, Refuse, Rule
from kubesim_support.caller import LEASES
from support.contenders import PATH, Hustings, settled
from support.virtual import ShiftedClock


def a_lease(holder: str = "", duration: int = 15, **spec: Any) -> dict[str, Any]:
    """A Lease of another process."""
    return {
        "metadata": {"name": "gracectl", "labels": {"team": "platform"}},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": duration, "acquireTime": "2020-01-01T00:00:00.000000Z",
            "renewTime": "2020-01-01T00:00:00.000000Z", "leaseTransitions": 7, **spec,
        },
    }  # fmt: skip


async def test_the_first_makes_the_lease_and_leads_at_once() -> None:
    place = Hustings()
    a = place.contender("a")
    async with place.running(a):
        assert await place.lease() == {
            "holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z", "leaseTransitions": 0,
        }  # fmt: skip
        assert a.terms == [[0.0]]
        assert a.fence.is_open()
        statistics = a.election.statistics()
        assert (statistics.is_leading, statistics.holder, statistics.renewals) == (True, "a", 1)


async def test_a_renewal_keeps_since_when_and_the_number_of_changes_and_needs_one_request() -> None:
    place = Hustings()
    a = place.contender("a")
    async with place.running(a):
        await place.until(4.5)
        lease = await place.lease()
        assert lease["renewTime"] == "2026-01-01T00:00:04.000000Z"
        assert (lease["acquireTime"], lease["leaseTransitions"]) == ("2026-01-01T00:00:00.000000Z", 0)
        assert [(each.instant, each.operation.verb) for each in a.wire.executed if each.operation.verb != "watch"] == [
            (0.0, "get"), (0.0, "list"), (0.0, "create"), (2.0, "update"), (4.0, "update"),
        ]  # fmt: skip


async def test_a_standby_reads_nothing_while_its_watch_shows_renewals() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(60)
        assert b.terms == []
        assert not b.fence.is_open()
        assert [each.instant for each in b.wire.of("get", "leases")] == [0.5]
        assert b.election.statistics().holder == "a"


async def test_a_standby_whose_watch_is_silent_looks_now_and_then() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(10)
        place.server.faults.add(Rule(fault=FreezeWatch(0.0)))
        await place.until(20)
        looks = [each.instant for each in b.wire.of("get", "leases")]
        assert looks[:5] == [0.5, 12.5, 14.5, 16.5, 18.5]
        assert b.terms == []


async def test_a_standby_names_another_leader_that_its_watch_shows() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(9)
        a.kill()
        await place.edit(holderIdentity="c", leaseDurationSeconds=15)
        await settled()
        assert b.election.statistics().holder == "c"
        await place.until(60)
        assert b.terms == [[24.0]]


async def test_the_pauses_of_a_standby_without_a_watch_are_left_to_chance() -> None:
    place = Hustings()
    place.rng = random.Random(1)
    a, b = place.contender("a"), place.contender("b")
    b.wire.before.add(Rule(fault=Refuse(500), path=r"leases$"))
    async with place.running(a, b):
        await place.until(300)
        looks = [each.instant for each in b.wire.of("get", "leases")]
    pauses = [after - before for before, after in pairwise(looks)]
    assert 2.0 <= min(pauses) < 2.3
    assert 4.1 < max(pauses) <= 2.0 * 2.2


@pytest.mark.parametrize("is_watching", [True, False])
async def test_after_sigterm_another_leads_at_once_or_without_a_watch_at_its_next_look(is_watching: bool) -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    if not is_watching:
        b.wire.before.add(Rule(fault=Refuse(500), path=r"leases$"))
    async with place.running(a, b):
        await place.until(21.5)
        a.stop()
        await settled()
        assert a.terms == [[0.0, 21.5]]
        assert a.ended == 21.5
        if not is_watching:
            assert await place.lease() == {
                "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": "2026-01-01T00:00:21.500000Z",
                "renewTime": "2026-01-01T00:00:21.500000Z", "leaseTransitions": 0,
            }  # fmt: skip
        await place.until(23)
        assert b.terms == [[21.5 if is_watching else 22.5]]
        assert (await place.lease())["leaseTransitions"] == 1


async def test_after_a_kill_another_leads_when_it_has_seen_no_change_for_the_duration() -> None:
    place = Hustings()
    a, b = place.contender("a"), place.contender("b")
    async with place.running(a, b):
        await place.until(21)
        a.kill()
        await place.until(60)
        assert b.terms == [[35.0]]  # the watch has shown the last renewal when it was made
        lease = await place.lease()
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("b", 1)
        assert lease["acquireTime"] == "2026-01-01T00:00:35.000000Z"


@pytest.mark.parametrize(("lease", "begins"), [
    pytest.param(a_lease(), 0.0, id="released"),
    pytest.param(a_lease("b"), 15.0, id="held long ago by its times, which are not trusted"),
    pytest.param(a_lease("b", 40), 40.0, id="held for longer, by its holder's own word"),
    pytest.param(a_lease("b", 1), 1.0, id="held for less"),
    pytest.param(a_lease("b", renewTime="2099-01-01T00:00:00.000000Z"), 15.0, id="a clock that is far ahead"),
    pytest.param(a_lease("b", renewTime=None, acquireTime=None), 15.0, id="without any times"),
    pytest.param({"metadata": {"name": "gracectl"}}, 0.0, id="empty"),
    pytest.param(a_lease("a"), 0.0, id="ours"),
])  # fmt: skip
async def test_a_lease_counts_from_when_it_was_seen(lease: dict[str, Any], begins: float) -> None:
    place = Hustings()
    await place.admin.create(LEASES, lease)
    a = place.contender("a")
    async with place.running(a):
        await place.until(100)
        assert a.terms == [[begins]]
        spec = lease.get("spec", {})
        is_ours = spec.get("holderIdentity") == "a"
        stored = await place.lease()
        assert stored["leaseTransitions"] == spec.get("leaseTransitions", 0) + (not is_ours)
        assert is_ours == (stored["acquireTime"] == "2020-01-01T00:00:00.000000Z")


async def test_what_others_have_written_into_the_lease_stays() -> None:
    place = Hustings()
    await place.admin.create(LEASES, a_lease(strategy="OldestEmulationVersion"))
    a = place.contender("a")
    async with place.running(a):
        await place.until(9)
        whole = await place.admin.get(PATH)
        assert whole["metadata"]["labels"] == {"team": "platform"}
        assert whole["spec"]["strategy"] == "OldestEmulationVersion"
        await place.admin.patch(PATH, {"metadata": {"labels": {"team": "storage"}}})
        await place.until(60)
        assert a.terms == [[0.0]]
        assert (await place.admin.get(PATH))["metadata"]["labels"] == {"team": "storage"}


async def test_a_change_of_anything_but_the_record_is_no_renewal() -> None:
    place = Hustings()
    await place.admin.create(LEASES, a_lease("b"))
    a = place.contender("a")
    async with place.running(a):
        await place.until(9)
        await place.admin.patch(PATH, {"metadata": {"labels": {"x": "y"}}})
        await place.until(20)
        assert a.terms == [[15.0]]


@pytest.mark.parametrize("duration", [601, 2**31 - 1])
async def test_a_record_counts_for_ten_minutes_at_most_whatever_it_says(duration: int) -> None:
    place = Hustings()
    far = "9999-12-31T23:59:59.000000Z"
    await place.admin.create(LEASES, a_lease("other", duration, renewTime=far, acquireTime=far))
    a = place.contender("a")
    async with place.running(a):
        await place.until(1000)
        assert a.terms == [[600.0]]
        assert a.election.led_until is not None
        assert a.election.led_until <= place.clock.now(), "no process has led in the future"


async def test_a_leader_with_clocks_in_dispute_leaves_the_lease_to_a_process_without() -> None:
    place = Hustings()
    doubtful = ShiftedClock(place.clock)
    a, b = place.contender("a", doubtful), place.contender("b")
    async with place.running(a, b):
        await place.until(20)
        doubtful.adjust(-3600.0, True)
        await place.until(300)
        (begun, ended), *more = a.terms
        assert (begun, more) == (0.0, [])
        assert ended == pytest.approx(30.0, abs=1.0)  # asked every 15 s
        assert [term[0] for term in b.terms] == [pytest.approx(ended, abs=1.0)]
        b.kill()
        await place.until(301)
        doubtful.adjust(0.0, False)
        await place.until(400)
        assert len(a.terms) == 2


async def test_a_process_with_clocks_in_dispute_leads_where_no_other_does_and_offers_the_lease_now_and_then() -> None:
    place = Hustings()
    doubtful = ShiftedClock(place.clock)
    doubtful.adjust(-3600.0, True)
    a, b = place.contender("a", doubtful), place.contender("b")
    async with place.running(a):
        await place.until(660)
        (begun, ended), (again,) = a.terms
        assert begun == 30.0  # two durations
        assert ended == pytest.approx(begun + 600.0, abs=16.0)
        assert again == pytest.approx(ended + 30.0, abs=4.0)
        async with place.running(b):
            await place.until(1400)
            assert a.terms[-1][1] == pytest.approx(again + 600.0, abs=16.0)
            assert [term[0] for term in b.terms] == [pytest.approx(a.terms[-1][1], abs=1.0)]


async def test_where_all_have_clocks_in_dispute_one_of_them_leads() -> None:
    place = Hustings()
    clocks = [ShiftedClock(place.clock) for _ in range(2)]
    for clock in clocks:
        clock.adjust(0.0, True)
    both = [place.contender(name, clock) for name, clock in zip("ab", clocks, strict=True)]
    async with place.running(*both):
        await place.until(300)
        assert sorted(len(each.terms) for each in both) == [0, 1]
