"""Wake-up of tasks that wait for a change."""

from __future__ import annotations

import asyncio
import math

import anyio

SHORTEST = 1e-6
"""Seconds; a clock that is coarser (that of tests, say) would show the same instant after a shorter wait."""


class Notifier:
    """Wakes all tasks that wait at that moment; later ones wait for the next notification.

    Work queues call it for every key: without a waiter `notify` costs nothing, and a wait is a bare future of asyncio,
    without a scope or an event of anyio around it.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wake all waiters."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                _wake(waiter)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the next notification, at most for this many seconds."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        timer = None if seconds is None else loop.call_later(max(seconds, SHORTEST), _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


class Wakeup:
    """Wakes one task, also with a call that came while the task was not waiting."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the task, now or when it waits next."""
        self._event.set()

    async def wait(self, seconds: float = math.inf) -> None:
        """Wait for a call since the last wait, at most for this many seconds."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
