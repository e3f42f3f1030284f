"""Connections are opened before many deletions are due at once: as many as these need, at which instants."""

from __future__ import annotations

from collections import Counter

from support.eviction import deleting

from gracectl.eviction.connections import MOST


async def test_as_many_are_opened_as_pods_are_due_in_the_same_seconds() -> None:
    async with deleting() as stage:
        await stage.add(**{f"web-{number}": 30 for number in range(12)}, slow=47)
        stage.set_pods(100)
        await stage.until(69.9)
        assert Counter(stage.wire.opened) == {66.0: 12}
        assert [asked.name for asked in stage.asked] == ["slow"]
        await stage.until(71)
        assert {asked.at for asked in stage.asked[1:]} == {70.0}


async def test_what_is_open_is_not_opened_again_but_after_a_pause_or_for_more() -> None:
    async with deleting() as stage:
        for grace, pods in ((90, 9), (84, 9), (78, 11), (30, 9)):
            await stage.add(**{f"pod-{grace}-{number}": grace for number in range(pods)})
        stage.set_pods(100)
        await stage.until(72)
        assert Counter(stage.wire.opened) == {6.0: 9, 18.0: 11, 66.0: 9}


async def test_for_few_nothing_is_opened() -> None:
    async with deleting() as stage:
        await stage.add(**{f"web-{number}": 30 for number in range(7)})
        stage.set_pods(100)
        await stage.until(75)
        assert len(stage.asked) == 7
        assert not stage.wire.opened


async def test_a_server_that_does_not_answer_delays_no_deletion() -> None:
    async with deleting(max_in_flight=100) as stage:
        await stage.add(**{f"web-{number}": 30 for number in range(MOST + 20)})
        stage.set_pods(100)
        stage.wire.seconds = 30.0
        await stage.until(69)
        stage.wire.seconds = 0.0
        await stage.until(71)
        assert Counter(stage.wire.opened) == {66.0: MOST}
        assert {asked.at for asked in stage.asked} == {70.0}
