"""A watch that faults can strike at any moment, also while its reader waits.

Invariant: events keep their order, and none is lost but by a break of the stream.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import anyio

from kubesim.clock import Clock
from kubesim.faults.rules import DropWatch, Fault, FreezeWatch, LateWatch, Partition
from kubesim.server.api import ConnectionLost, EventStream, Interrupted, Request, StreamEvent


class StruckStream:
    """The events of a watch, as far as the faults let them through."""

    def __init__(
        self,
        stream: EventStream,
        request: Request,
        clock: Clock,
        rng: random.Random,
        closed: Callable[[StruckStream], None],
    ) -> None:
        """`closed` is called when the stream can no longer be read: it was closed, or has ended, or broken."""
        self.request = request
        self._stream = stream
        self._clock = clock
        self._rng = rng
        self._closed = closed
        self._breaks = self._freezes = math.inf
        self._late: LateWatch | None = None
        self._cut_off: list[anyio.Event] = []
        self._last: StreamEvent | None = None
        self._ended = False
        self._held: deque[tuple[float, StreamEvent]] = deque()
        """Events that were read and not shown yet, and from when on each may be: a reader that stopped waiting for one
        gets it with its next read."""

    def strike(self, fault: Fault, lifted: anyio.Event) -> None:
        """Let a fault act from now on; `lifted` is set when its rule is taken out of force."""
        now = self._clock.monotonic()
        match fault:
            case DropWatch(after=after):
                self._breaks = min(self._breaks, now + after)
            case FreezeWatch(after=after):
                self._freezes = min(self._freezes, now + after)
            case LateWatch():
                self._late = fault
            case Partition():
                self._cut_off.append(lifted)
        self._stream.interrupt()

    def end_with(self, event: StreamEvent) -> None:
        """Show one last event, and end."""
        self._last = event

    def interrupt(self) -> None:
        """See EventStream."""
        self._stream.interrupt()

    def __aiter__(self) -> StruckStream:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._last is not None or self._ended:
            return self._final()
        while not self._held:
            try:
                await self._read()
            except ConnectionLost:
                self._closed(self)
                raise
            except StopAsyncIteration:
                await self._reconnected()
                self._closed(self)
                raise
        due, event = self._held[0]
        if due > self._clock.monotonic():
            await self._read_until(due)
        await self._reconnected()
        self._held.popleft()
        return event

    async def _read(self) -> None:
        """Hold the next event, as late as it is to be shown: late since it came, not since the one before was shown."""
        try:
            event = await self._next()
        except Interrupted:
            return
        due = self._clock.monotonic()
        if self._late is not None:
            due += self._rng.uniform(self._late.least, self._late.most)
        if self._held:
            due = max(due, self._held[-1][0])
        self._held.append((due, event))

    async def _read_until(self, due: float) -> None:
        """Wait until then; the events that come meanwhile are late from when they come."""
        with anyio.move_on_after(due - self._clock.monotonic()):
            with suppress(ConnectionLost, StopAsyncIteration):  # met again by the next read, behind what is held
                while True:
                    await self._read()
            await anyio.sleep_forever()

    async def _next(self) -> StreamEvent:
        until = min(self._breaks, self._freezes)
        if until == math.inf:
            return await self._stream.__anext__()
        left = until - self._clock.monotonic()
        if left > 0:
            with anyio.move_on_after(left):
                return await self._stream.__anext__()
        if self._freezes < self._breaks:
            await anyio.sleep_forever()
        raise ConnectionLost

    async def _reconnected(self) -> None:
        while self._cut_off:
            # Others may come while this one lasts; they count from the end.
            await self._cut_off[0].wait()
            self._cut_off.pop(0)

    def _final(self) -> StreamEvent:
        event, self._last, self._ended = self._last, None, True
        self._closed(self)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Stop reading."""
        self._held.clear()
        self._closed(self)
        await self._stream.aclose()
