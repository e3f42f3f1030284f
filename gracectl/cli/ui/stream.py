"""Changes of the board for its clients: encoded once, kept in a ring of bounded size, read by each at its own pace.

Invariant: a client has no queue. It has a place in the ring, and one whose place is overwritten, or whose connection
takes nothing for WRITE_SECONDS, is dropped: it comes back and gets a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

HEARTBEAT_SECONDS: Final = 15.0
"""Between two signs of life on a quiet stream."""
WRITE_SECONDS: Final = 10.0
"""A client takes a part of a message within this time."""
PART: Final = 64 * 1024
"""Bytes of a message that are written at a time."""
RING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the changes that are kept for clients that reconnect."""
MOST_CLIENTS: Final = 100

HEARTBEAT: Final = b": alive\n\n"


class ChangeRing:
    """The last changes, by number: each follows the one before it by one."""

    def __init__(self, most_bytes: int = RING_BYTES) -> None:
        self.latest = 0
        self._most_bytes = most_bytes
        self._bytes = 0
        self._changes: deque[bytes] = deque()
        self._appended = anyio.Event()

    @property
    def held_bytes(self) -> int:
        """Bytes of all changes that are kept."""
        return self._bytes

    def append(self, change: bytes) -> None:
        """Add the next change; the oldest ones make room for it. It is kept itself, whatever its size."""
        self.latest += 1
        self._changes.append(change)
        self._bytes += len(change)
        while self._bytes > self._most_bytes and len(self._changes) > 1:
            self._bytes -= len(self._changes.popleft())
        self._appended.set()
        self._appended = anyio.Event()

    def after(self, number: int) -> list[bytes] | None:
        """The changes after this one; None: one of them is no longer kept, or there was no such change."""
        missing = self.latest - number
        if not 0 <= missing <= len(self._changes):
            return None
        return [self._changes[place] for place in range(len(self._changes) - missing, len(self._changes))]

    async def wait_beyond(self, number: int, seconds: float) -> None:
        """Return when there is a later change, or after so many seconds."""
        with anyio.move_on_after(seconds):
            while self.latest <= number:
                await self._appended.wait()


class SlowClient(Exception):
    """A client that does not take what it is sent in time."""


async def send(message: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Send a message part by part, so that no more than a part of it is in memory. Raises SlowClient."""
    for start in range(0, len(message), PART):
        with anyio.move_on_after(WRITE_SECONDS) as patience:
            await write(message[start : start + PART])
        if patience.cancelled_caught:
            raise SlowClient


def message(event: str, id_: str, data: bytes) -> bytes:
    """A server-sent event. `data` is on one line."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id_.encode(), event.encode(), data)
