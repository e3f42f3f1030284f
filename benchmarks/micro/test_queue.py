"""The work queue: keys that are added, handed out and done."""

from __future__ import annotations

import asyncio

from benchmarks.micro.conftest import Measure
from benchmarks.micro.pods import uid_of
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.queue import WorkQueue

KEYS = 10_000


def test_queue(measure: Measure) -> None:
    keys = [uid_of(number) for number in range(KEYS)]

    async def through(queue: WorkQueue[str]) -> None:
        for key in keys:
            queue.add(key)
        for _ in keys:
            queue.done(await queue.get())

    with asyncio.Runner() as runner:

        def work() -> None:
            queue: WorkQueue[str] = WorkQueue(SystemClock())
            runner.run(through(queue))

        measure("work queue: a key added, got and done", KEYS, work)


def test_queue_of_added_twice(measure: Measure) -> None:
    queue: WorkQueue[str] = WorkQueue(SystemClock())
    keys = [uid_of(number) for number in range(KEYS)]
    for key in keys:
        queue.add(key)

    def work() -> None:
        for key in keys:
            queue.add(key)

    measure("work queue: a key that waits added again", KEYS, work)
