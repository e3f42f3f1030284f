"""The work queue against a model of a dozen lines, through random operations on virtual time.

Every key that the model says is due is handed out, in the model's order, at the model's instant; none is handed out
that a worker still has; nothing else ever is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest import mock

import anyio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.virtual import VirtualLoop

from gracectl.runtime import queue as queue_module
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.queue import WorkQueue

KEYS = st.sampled_from("abcd")
QUARTERS = st.integers(0, 40).map(lambda quarters: quarters / 4)


class QueueAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        # So low that the few keys of this test make the queue drop its void wake-ups often.
        self.tolerance = mock.patch.object(queue_module, "_VOID_ENTRIES", 0)
        self.tolerance.start()
        self.queue: WorkQueue[str] = WorkQueue(LoopClock(), lambda: Backoff(0.5, 4.0, jitter=0.0))
        self.now = 0.0
        self.ready: list[str] = []
        self.processing: set[str] = set()
        self.again: set[str] = set()
        self.wake: dict[str, tuple[float, int]] = {}
        self.failures: dict[str, int] = {}
        self.serial = 0

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()
            self.tolerance.stop()

    # The model.

    def becomes_due(self, key: str) -> None:
        self.wake.pop(key, None)
        if key in self.processing:
            self.again.add(key)
        elif key not in self.ready:
            self.ready.append(key)

    def wakes_after(self, key: str, seconds: float) -> None:
        if seconds <= 0:
            self.becomes_due(key)
        elif key not in self.ready and key not in self.again:
            self.serial += 1
            self.wake[key] = min(self.wake.get(key, (float("inf"), 0)), (self.now + seconds, self.serial))

    def passes(self, until: float) -> None:
        while self.wake and min(self.wake.values())[0] <= until:
            self.becomes_due(min(self.wake, key=lambda key: self.wake[key]))
        self.now = until

    # The operations.

    def does(self, operation: Callable[[], None]) -> None:
        async def inside() -> None:
            operation()

        self.runner.run(inside())

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.does(lambda: self.queue.add(key))
        self.becomes_due(key)

    @rule(key=KEYS, seconds=QUARTERS)
    def add_after(self, key: str, seconds: float) -> None:
        self.does(lambda: self.queue.add_after(key, seconds))
        self.wakes_after(key, seconds)

    @rule(key=KEYS)
    def fail(self, key: str) -> None:
        self.does(lambda: self.queue.add_rate_limited(key))
        self.wakes_after(key, min(4.0, 0.5 * 2.0 ** self.failures.get(key, 0)))
        self.failures[key] = self.failures.get(key, 0) + 1

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.does(lambda: self.queue.forget(key))
        self.failures.pop(key, None)

    @precondition(lambda self: self.processing)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.processing)))
        self.does(lambda: self.queue.done(key))
        self.processing.remove(key)
        if key in self.again:
            self.again.remove(key)
            self.becomes_due(key)

    @rule(seconds=QUARTERS)
    def sleep(self, seconds: float) -> None:
        self.sleep_for(seconds)

    def sleep_for(self, seconds: float) -> None:
        async def inside() -> None:
            await anyio.sleep(seconds)

        self.runner.run(inside())
        self.passes(self.now + seconds)

    @rule(patience=QUARTERS)
    def get(self, patience: float) -> None:
        """Wait for a key, and give up (are cancelled) between two of the instants at which something can happen."""
        patience += 0.125

        async def inside() -> tuple[str | None, float]:
            with anyio.move_on_after(patience):
                return await self.queue.get(), anyio.current_time()
            return None, anyio.current_time()

        taken, instant = self.runner.run(inside())
        deadline = self.now + patience
        while not self.ready and self.wake and min(self.wake.values())[0] <= deadline:
            self.passes(min(self.wake.values())[0])
        if not self.ready:
            self.passes(deadline)
            expected = None
        else:
            expected = self.ready.pop(0)
            self.processing.add(expected)
        assert (taken, instant) == (expected, self.now)
        if expected is None:
            # Back to the quarters, at which everything happens: the next patience must again end between them.
            self.sleep_for(0.125)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "runner"):
            self.does(self.compare)

    def compare(self) -> None:
        statistics = self.queue.statistics()
        assert (statistics.ready, statistics.delayed) == (len(self.ready), len(self.wake))
        assert (statistics.processing, statistics.failing) == (len(self.processing), len(self.failures))


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
