"""Deadlines are instants of the server's clock, of which ours is an estimate that may change at any moment."""

from __future__ import annotations

import math
import random

import anyio
import pytest
from support.eviction import deleting

from gracectl.kube.transport import Response
from gracectl.runtime.supervise import while_running


async def test_a_clock_that_turns_out_to_be_late_brings_the_deletions_forward() -> None:
    async with deleting() as stage:
        await stage.add(slow=60, web=30)
        stage.set_pods(100)
        await stage.until(10)
        stage.ours.offset = 20.0
        await stage.until(80)
        assert stage.asked[:2] == [(20, "slow", 60), (50, "web", 30)]
        assert [d.late for d in stage.ears.deletions[:2]] == [pytest.approx(0, abs=1e-6)] * 2


async def test_what_has_become_overdue_by_that_goes_at_once() -> None:
    async with deleting() as stage:
        await stage.add(slow=60, web=30)
        stage.set_pods(100)
        await stage.until(10.25)
        stage.ours.offset = 80.0
        await stage.until(11)
        assert stage.asked == [(10.25, "slow", 10), (10.25, "web", 10)]
        assert [d.late for d in stage.ears.deletions] == [0, 0]
        assert stage.deleter.statistics().wheel.fired == 0
        assert stage.deleter.statistics().armed == 2  # for the deadline itself


async def test_a_clock_that_turns_out_to_be_ahead_deletes_no_pod_early() -> None:
    async with deleting() as stage:
        stage.ours.offset = 20.0
        await stage.add(slow=60, web=30)
        stage.set_pods(100)
        await stage.until(10)
        stage.ours.offset = 0.0
        await stage.until(99)
        assert stage.asked == [(40, "slow", 60), (70, "web", 30)]


async def test_a_pod_in_the_queue_is_not_deleted_early_when_the_clock_goes_back() -> None:
    async with deleting(max_in_flight=1) as stage:
        stage.ours.offset = 20.0
        await stage.add(first=30, second=30, third=30)
        stage.wire.seconds = 0.9
        stage.set_pods(100)
        await stage.until(50.5)
        stage.ours.offset = 0.0
        stage.wire.seconds = 0.0
        await stage.until(99)
        assert stage.asked == [(50, "first", 30), (50, "second", 30), (70, "third", 30)]


async def test_a_jump_before_the_deleter_runs_is_not_overlooked() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        heir = stage.another()
        heir.set_pods("n1", [stage.deletion("web", 100)])
        stage.ours.offset = 50.0
        async with while_running(heir.run):
            await stage.until(30)
        assert stage.asked == [(20, "web", 30)]


async def test_clocks_that_disagree_by_odd_fractions_cost_no_pod_a_second_or_a_second_request() -> None:
    chance = random.Random(7)
    async with deleting() as stage:
        stage.wire.down = Response(status=200)
        for _ in range(200):
            stage.wire.asked.clear()
            await stage.add(next=30)
            await stage.until(stage.clock.monotonic() + chance.random())
            stage.ours.offset = chance.uniform(-1e6, 1e6)
            deadline = math.floor(stage.ours.now()) + 40 - stage.start
            stage.set_pods(deadline, "next")
            await anyio.sleep(11)
            [asked] = stage.asked
            assert asked.grace == 30
            assert -1e-5 < asked.at + stage.ours.offset - (deadline - 30) < 0.01
            stage.deleter.remove_node("n1")
            await stage.delete("next", 0)
            await stage.rest()


async def test_a_clock_that_is_a_hair_behind_at_the_instant_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.set_pods(100)
        right = stage.ours.now
        monkeypatch.setattr(stage.ours, "now", lambda: right() - 5e-7)
        await stage.until(101)
        assert stage.asked == [(70, "web", 30), (100, "web", 1)]
