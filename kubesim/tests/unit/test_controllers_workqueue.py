"""The work queue: each key once, by one worker at a time, at the earliest instant asked for."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.controllers.workqueue import WorkQueue

pytestmark = pytest.mark.anyio

Reconcile = Callable[[str], Awaitable[None]]


def a_queue() -> WorkQueue[str]:
    return WorkQueue(LoopClock(), 1.0, 8.0, random.Random(0))


@asynccontextmanager
async def working(queue: WorkQueue[str], reconcile: Reconcile, workers: int = 2) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(queue.run, reconcile, workers, (LookupError,))
        yield
        group.cancel_scope.cancel()


async def test_the_earliest_wake_up_wins_and_an_add_cancels_it() -> None:
    queue, seen = a_queue(), list[tuple[str, float]]()

    async def reconcile(key: str) -> None:
        seen.append((key, anyio.current_time()))

    async with working(queue, reconcile):
        queue.add_after("a", 10)
        queue.add_after("a", 5)
        queue.add_after("a", 7)
        queue.add_after("b", 3)
        await anyio.sleep(1)
        queue.add("b")
        await anyio.sleep(20)
    assert seen == [("b", 1.0), ("a", 5.0)]


async def test_a_key_added_while_a_worker_has_it_is_handed_out_afterwards() -> None:
    queue, running, most, seen = a_queue(), 0, 0, list[float]()

    async def reconcile(key: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append(anyio.current_time())
        await anyio.sleep(2)
        running -= 1

    async with working(queue, reconcile):
        queue.add("a")
        await anyio.sleep(1)
        queue.add("a")
        queue.add("a")
        await anyio.sleep(10)
    assert (most, seen) == (1, [0.0, 2.0])


@pytest.mark.parametrize("failure", [LookupError("expected"), RuntimeError("unexpected")])
async def test_a_failure_is_tried_again_later_and_later(failure: Exception) -> None:
    queue, seen = a_queue(), list[float]()

    async def reconcile(key: str) -> None:
        seen.append(anyio.current_time())
        if len(seen) <= 6:
            raise failure

    async with working(queue, reconcile):
        queue.add("a")
        await anyio.sleep(100)
        assert len(seen) == 7
        waits = [after - before for before, after in pairwise(seen)]
        for wait, size in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
            assert size / 2 <= wait <= size
