"""Workers: failures, retries, one at a time per key, and what a cancellation leaves behind."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import FenceClosed
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.supervise import while_running
from gracectl.runtime.workers import Requeue, run_workers


class Refused(Exception):
    """A failure that the reconcile is known for."""


class Shop:
    """A queue, its workers, and a log of what was reconciled when."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.queue: WorkQueue[str] = WorkQueue(self.clock, lambda: Backoff(1.0, 8.0, jitter=0.0))
        self.seen: list[tuple[str, float]] = []
        self.answers: dict[str, list[BaseException | Requeue | float]] = {}

    async def reconcile(self, key: str) -> Requeue | None:
        self.seen.append((key, self.clock.monotonic()))
        answers = self.answers.get(key)
        match answers.pop(0) if answers else None:
            case BaseException() as error:
                raise error
            case Requeue() as again:
                return again
            case float(seconds):
                await self.clock.sleep(seconds)
        return None

    async def work(self, seconds: float, workers: int = 2) -> None:
        with anyio.move_on_after(seconds):
            await run_workers(self.queue, self.reconcile, workers, expected=(Refused,))


async def test_a_cancellation_that_a_library_lets_out_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    shop.answers["bad"] = [asyncio.CancelledError(), asyncio.CancelledError()]
    shop.queue.add("bad")
    await shop.work(10.0)
    assert shop.seen == [("bad", 0.0), ("bad", 1.0), ("bad", 3.0)]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def test_a_failing_key_is_tried_again_with_backoff_and_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    shop.answers["bad"] = [Refused("no"), ValueError("poisoned"), Refused("no")]
    shop.queue.add("bad")
    shop.queue.add("good")
    await shop.work(100)
    assert shop.seen == [("bad", 0), ("good", 0), ("bad", 1), ("bad", 3), ("bad", 7)]
    assert [(r.levelno, vars(r)["key"], r.exc_info is not None) for r in caplog.records] == [
        (logging.WARNING, "bad", False), (logging.ERROR, "bad", True), (logging.WARNING, "bad", False),
    ]  # fmt: skip
    statistics = shop.queue.statistics()
    assert (statistics.retries, statistics.failing, statistics.processing) == (3, 0, 0)


async def test_a_reconcile_says_when_it_wants_to_look_again() -> None:
    shop = Shop()
    shop.answers["a"] = [Requeue(30), Requeue(0), Requeue(2.5)]
    shop.queue.add("a")
    await shop.work(100)
    assert [instant for _, instant in shop.seen] == [0, 30, 30, 32.5]


async def test_looking_again_at_once_goes_behind_those_that_wait() -> None:
    shop = Shop()
    shop.answers["a"] = [Requeue(0)]
    shop.queue.add("a")
    shop.queue.add("b")
    await shop.work(1, workers=1)
    assert [key for key, _ in shop.seen] == ["a", "b", "a"]


async def test_a_cancelled_reconcile_leaves_its_key_in_the_queue() -> None:
    shop = Shop()
    shop.answers["a"] = [50.0]
    shop.queue.add("a")
    await shop.work(10)
    await shop.work(10)
    assert shop.seen == [("a", 0), ("a", 10)]
    assert shop.queue.statistics().processing == 0


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_between_the_taking_of_a_key_and_the_work_loses_nothing(turns: int) -> None:
    shop = Shop()
    shop.answers["a"] = [5.0]
    async with while_running(partial(shop.work, 100.0)):
        await shop.clock.sleep(1)
        shop.queue.add("a")
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
    assert (shop.queue.statistics().ready, shop.queue.statistics().processing) == (1, 0)
    await shop.work(10)
    assert shop.queue.statistics().ready == 0


async def test_a_write_that_is_shielded_is_finished_and_its_key_is_done() -> None:
    clock = LoopClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    written: list[float] = []

    async def reconcile(key: str) -> None:
        with anyio.CancelScope(shield=True):
            await clock.sleep(5)
            written.append(clock.monotonic())

    queue.add("a")
    with anyio.move_on_after(2):
        await run_workers(queue, reconcile, 1)
    assert (written, queue.statistics().ready, queue.statistics().processing) == ([5], 0, 0)


async def test_never_two_workers_at_a_key_and_no_key_is_lost() -> None:
    rng = random.Random(1)
    clock = LoopClock()
    queue: WorkQueue[int] = WorkQueue(clock)
    at_work: Counter[int] = Counter()
    last_added: dict[int, float] = {}
    last_begun: dict[int, float] = {}

    async def reconcile(key: int) -> Requeue | None:
        at_work[key] += 1
        assert at_work[key] == 1
        last_begun[key] = clock.monotonic()
        await clock.sleep(rng.random())
        at_work[key] -= 1
        if rng.random() < 0.2:
            raise Refused
        return Requeue(rng.random() * 5) if rng.random() < 0.3 else None

    async def disturb() -> None:
        for _ in range(500):
            key = rng.randrange(20)
            queue.add(key)
            last_added[key] = clock.monotonic()
            await clock.sleep(rng.random() * 0.1)

    with anyio.move_on_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(disturb)
            group.start_soon(run_workers, queue, reconcile, 8, (Refused,))
    assert last_begun.keys() == last_added.keys()
    assert all(last_begun[key] >= last_added[key] for key in last_added)
    assert queue.statistics().ready == 0


@pytest.mark.parametrize("in_bursts", [False, True])
async def test_a_burst_begins_in_one_turn_of_the_event_loop_if_that_is_asked_for(in_bursts: bool) -> None:
    queue: WorkQueue[int] = WorkQueue(LoopClock())
    turns = 0
    begun: dict[int, int] = {}

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async def reconcile(key: int) -> None:
        begun[key] = turns
        await anyio.sleep(1)

    async with while_running(count_turns, partial(run_workers, queue, reconcile, 20, in_bursts=in_bursts)):
        await anyio.lowlevel.checkpoint()
        for key in range(30):
            queue.add(key)
        while len(begun) < 20:
            await anyio.lowlevel.checkpoint()
        assert max(begun.values()) - min(begun.values()) <= (2 if in_bursts else 100)
        assert in_bursts or max(begun.values()) - min(begun.values()) >= 19
        statistics = queue.statistics()
        assert (statistics.processing, statistics.ready) == (20, 10)
    assert queue.statistics().ready == 30  # nothing is lost


async def test_a_closed_fence_is_tried_again_and_hardly_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shop = Shop()
    shop.answers["a"] = [FenceClosed(), FenceClosed()]
    shop.queue.add("a")
    await shop.work(60)
    assert shop.seen == [("a", 0.0), ("a", 1.0), ("a", 3.0)]
    assert caplog.records == []


async def test_more_room_is_used_at_once_and_less_when_so_much_has_ended() -> None:
    shop = Shop()
    room: Shares[str] = Shares(shop.clock, 1, has_slow_slots=False)
    shop.answers = {key: [10.0] for key in "abcdefgh"}
    for key in "abcdefgh":
        shop.queue.add(key)
    async with while_running(partial(run_workers, shop.queue, shop.reconcile, room)):
        await shop.clock.sleep(3)
        room.resize(4)
        await shop.clock.sleep(3)
        room.resize(2)
        await shop.clock.sleep(100)
    # At 10 the first ends, and three are under way; at 13 all of them do.
    assert shop.seen == [("a", 0), *((key, 3) for key in "bcd"), ("e", 13), ("f", 13), ("g", 23), ("h", 23)]
