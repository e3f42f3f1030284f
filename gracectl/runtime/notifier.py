"""Wake-up of tasks that wait for a change."""

from __future__ import annotations

import anyio


class Notifier:
    """Wakes all tasks that wait at that moment; later ones wait for the next notification.

    Without a waiter `notify` costs nothing: work queues call it for every key.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wake all waiters."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next notification."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
