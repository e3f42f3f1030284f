"""A watch that faults can strike at any moment, also while its reader waits.

Invariant: events keep their order, and none is lost but by a break of the stream.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

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
        self._held: StreamEvent | None = None
        """Read, and not yet shown: a reader that stopped waiting for it gets it with its next read."""

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
        while self._held is None:
            try:
                event = await self._next()
            except Interrupted:
                continue
            except ConnectionLost:
                self._closed(self)
                raise
            except StopAsyncIteration:
                await self._reconnected()
                self._closed(self)
                raise
            self._held = event
            if self._late is not None:
                await self._clock.sleep(self._rng.uniform(self._late.least, self._late.most))
        await self._reconnected()
        event, self._held = self._held, None
        return event

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
        self._held = None
        self._closed(self)
        await self._stream.aclose()
