"""Changes of the board for its clients: encoded once, kept in a ring of bounded size, read by each at its own pace.

Invariant: a client has no queue. It has a place in the ring, and a client is dropped when its place is overwritten or
its connection takes nothing for WRITE_SECONDS: it comes back and gets a snapshot. No client takes the stream of a peer
that has fewer.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

import anyio

from gracectl.model.encoding import encode
from gracectl.model.foreign import visible_values

HEARTBEAT_SECONDS: Final = 15.0
"""Between two signs of life on a quiet stream."""
WRITE_SECONDS: Final = 10.0
"""A client takes a part of a message within this time."""
PART: Final = 64 * 1024
"""Bytes of a message that are written at a time."""
RING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the changes that are kept for clients that reconnect."""
LARGEST_MESSAGE: Final = 32 * 1024 * 1024
"""Bytes of a snapshot or a change; a larger one is not sent."""
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

    def append(self, change: bytes) -> None:
        """Add the next change; the oldest changes make room for it.

        A change larger than LARGEST_MESSAGE is not kept: then every client needs a snapshot.
        """
        self.latest += 1
        self._changes.append(change)
        self._bytes += len(change)
        kept = 0 if len(change) > LARGEST_MESSAGE else 1
        while self._bytes > self._most_bytes and len(self._changes) > kept:
            self._bytes -= len(self._changes.popleft())
        self._appended.set()
        self._appended = anyio.Event()

    def has(self, number: int) -> bool:
        """Whether all changes after this one are kept."""
        return 0 <= self.latest - number <= len(self._changes)

    def after(self, number: int, most_bytes: float = math.inf) -> list[bytes] | None:
        """Next changes after this one: as many as fit, at least one; None if one of them is no longer kept, or if the
        number is unknown."""
        if not self.has(number):
            return None
        found: list[bytes] = []
        size = 0
        for change in islice(self._changes, len(self._changes) - (self.latest - number), None):
            size += len(change)
            if found and size > most_bytes:
                break
            found.append(change)
        return found

    async def wait_beyond(self, number: int, seconds: float) -> None:
        """Wait for a later change, at most for this number of seconds."""
        with anyio.move_on_after(seconds):
            while self.latest <= number:
                await self._appended.wait()


class Streams:
    """Open streams of all peers. When there are too many, the peer with the most loses its oldest to one with fewer."""

    def __init__(self, most: int = MOST_CLIENTS) -> None:
        self._most = most
        self._peers: dict[anyio.CancelScope, str] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, peer: str) -> anyio.CancelScope | None:
        """The scope of a new stream, canceled when it must make room; None: this peer has its share already.

        Behind a proxy all readers may have one address: they share what other addresses leave, and no reader takes
        the stream of another.
        """
        if len(self._peers) >= self._most:
            streams = Counter(self._peers.values())
            oldest = max(self._peers, key=lambda scope: streams[self._peers[scope]])
            if streams[self._peers[oldest]] <= streams[peer] + 1:
                return None
            self.remove(oldest)
            oldest.cancel()
        scope = anyio.CancelScope()
        self._peers[scope] = peer
        return scope

    def remove(self, scope: anyio.CancelScope) -> None:
        """This stream has ended; it may have been removed before."""
        self._peers.pop(scope, None)


class SlowClient(Exception):
    """A client that does not take what it is sent in time."""


async def send(
    message: bytes, write: Callable[[bytes], Awaitable[None]], is_needed: Callable[[], bool] = lambda: True
) -> None:
    """Send a message in parts, so each client keeps at most one part in memory. Raises SlowClient,
    also when the message is no longer needed."""
    for start in range(0, len(message), PART):
        if not is_needed():
            raise SlowClient
        with anyio.move_on_after(WRITE_SECONDS) as patience:
            await write(message[start : start + PART])
        if patience.cancelled_caught:
            raise SlowClient


def encoded(value: object) -> bytes:
    """JSON on one line, with visible values: the only way in which the board leaves the process."""
    return visible_values(encode(value).decode()).encode()


def head(event: str, id_: str) -> bytes:
    """Beginning of a server-sent event: its data, on one line, and TAIL follow."""
    return b"id: %s\nevent: %s\ndata: " % (id_.encode(), event.encode())


TAIL: Final = b"\n\n"


def message(event: str, id_: str, data: bytes) -> bytes:
    """A server-sent event. `data` is on one line."""
    return head(event, id_) + data + TAIL
