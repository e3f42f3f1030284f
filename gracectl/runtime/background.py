"""Calls that outlive a cancelled caller or its timeout; at most one per key at a time.

A write may take as long as its webhooks, and would never succeed if it were cancelled, while the steps of a node must
continue. Invariants: a call in progress is joined, not repeated; it ends on its own, or with `run`. With
BoundedBackground, calls that hang leave slots for others (runtime.shares).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from gracectl.runtime.clock import Clock
from gracectl.runtime.fence import FenceClosed
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import run_workers

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Call:
    def __init__(self, function: Callable[[], Awaitable[object]]) -> None:
        self.function = function
        self.over = anyio.Event()
        self.waiters = 0
        self.value: Any = None
        self.error: Exception = FenceClosed()  # what waiters get when `run` is cancelled
        self.has_failed = True


class Background:
    """Runner of background calls. Calls run only while `run` does."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Call] = {}
        self._group: TaskGroup | None = None
        self._begun = anyio.Event()
        self._is_running = False

    async def run(self) -> None:
        """Run calls until cancelled, which cancels them."""
        try:
            async with anyio.create_task_group() as self._group:
                self._is_running = True
                self._begun.set()
                await anyio.sleep_forever()
        finally:
            self._is_running = False
            self._group = None

    def is_under_way(self, key: Hashable) -> bool:
        """Whether a call with this key has begun and not ended."""
        return key in self._calls

    async def join(self, key: Hashable, call: Callable[[], Awaitable[T]], seconds: float = float("inf")) -> T:
        """Result of `call`, or of the call in progress for this key.

        Raises TimeoutError after `seconds`; then, or when the caller is cancelled, the call continues, and its failure
        is logged.
        """
        await self._begun.wait()  # a turn of the loop: only after it is it known whether another caller was first
        under_way = self._calls.get(key)
        if under_way is None:
            if not self._is_running:
                raise FenceClosed
            under_way = self._calls[key] = _Call(call)
            self._start(key)
        under_way.waiters += 1
        try:
            with anyio.fail_after(seconds):
                await under_way.over.wait()
        finally:
            under_way.waiters -= 1
        if under_way.has_failed:
            raise under_way.error
        value: T = under_way.value
        return value

    def _start(self, key: Hashable) -> None:
        assert self._group is not None
        self._group.start_soon(self._run_call, key)

    async def _run_call(self, key: Hashable) -> None:
        under_way = self._calls.get(key)
        if under_way is None:
            return
        try:
            under_way.value = await under_way.function()
            under_way.has_failed = False
        except Exception as error:  # raised to the caller by `join`
            under_way.error = error
            if not under_way.waiters:
                logger.warning("%s", error)
        finally:
            del self._calls[key]
            under_way.over.set()


class BoundedBackground(Background):
    """Runner of background calls, `slots` at a time and as many again of slow ones; the others wait for a slot.

    `group_of`: group of a key, whose calls tend to hang together; None: each key is its own group.
    """

    def __init__(self, clock: Clock, slots: int, group_of: Callable[[Hashable], Hashable] | None = None) -> None:
        super().__init__()
        self._queue: WorkQueue[Hashable] = WorkQueue(clock)
        self._shares = Shares(clock, slots, group_of)

    async def run(self) -> None:
        """Run calls until cancelled, which cancels them."""
        try:
            self._is_running = True
            self._begun.set()
            await run_workers(self._queue, self._run_call, self._shares, in_bursts=True)
        finally:
            self._is_running = False
            for call in self._calls.values():  # those without a slot
                call.over.set()
            self._calls.clear()

    def _start(self, key: Hashable) -> None:
        self._queue.add(key)
