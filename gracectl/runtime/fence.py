"""Fence: permission to start writes, and the end of writes in progress.

Invariants: the permission expires by time alone, even if its renewal hangs; a write in progress is cancelled at the end
of the permission, and a renewal extends it; `limit` only tightens.
"""

from __future__ import annotations

import math

import anyio
import msgspec

from gracectl.runtime.clock import Clock


class FenceClosed(Exception):
    """The operation was not started: the fence is closed."""

    def __str__(self) -> str:
        return "not sent: no permission to write (leadership lost)"


class Moment(msgspec.Struct, frozen=True):
    """Instant, by both of the clock's monotonic counts."""

    monotonic: float
    elapsed: float


class FenceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot: operations `refused` at a closed fence, `cut` by its end, and `under_way` now."""

    is_open: bool
    refused: int
    cut: int
    under_way: int


class Passage:
    """Operation in progress while its block runs. Its scope ends at its own deadline or the fence's, whichever is
    earlier."""

    # A class, as a generator for each request takes three times as long.
    def __init__(self, fence: Fence, scope: anyio.CancelScope) -> None:
        self._fence = fence
        self._scope = scope
        self._own = scope.deadline
        self.is_cut = False
        """Whether it is the fence that ends it."""

    def __enter__(self) -> None:
        self._fence._enter(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        is_given_up = error is not None or self._scope.cancelled_caught
        self._fence._leave(self, is_given_up, self.is_cut and self._scope.cancel_called)

    def end_at(self, instant: float) -> None:
        """Set the fence's end, in the event loop's time."""
        deadline = min(self._own, instant)
        if deadline != self._scope.deadline:  # setting it moves a timer
            self._scope.deadline = deadline
        self.is_cut = instant < self._own


class Fence:
    """Permission to write, closed at first. Instants are monotonic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_until = -math.inf
        self._end_by = -math.inf
        self._missed = 0.0
        self._limit = math.inf
        self._passages: dict[Passage, None] = {}
        self._refused = self._cut = 0
        self._unanswered = -math.inf
        self._emptied = anyio.Event()

    def is_open(self) -> bool:
        """Whether an operation may start now."""
        now = self._clock.monotonic()
        # Count the time that `monotonic` has missed (suspension) as well: a second for it may have been an hour.
        missed = max(self._clock.elapsed() - now - self._missed, 0.0)
        return now + missed < self._begin_until and now < self._limit

    @property
    def unanswered(self) -> float:
        """Last instant at which an operation was given up after its start: it may still take effect a little later.
        -inf: never."""
        return self._unanswered

    def mark(self) -> Moment:
        """The present, as argument of a later `extend`."""
        return Moment(self._clock.monotonic(), self._clock.elapsed())

    def extend(self, mark: Moment, begin: float, end: float) -> None:
        """Permit operations to start until `begin` seconds after `mark`, and to run until `end` seconds after it."""
        self._begin_until = mark.monotonic + begin
        self._end_by = mark.monotonic + end
        self._missed = mark.elapsed - mark.monotonic
        self._move()

    def open(self) -> None:
        """Permit operations without a time limit, until the next call."""
        self.extend(self.mark(), math.inf, math.inf)

    def shut(self) -> None:
        """Permit no new operation; operations in progress may finish."""
        self._begin_until = -math.inf

    def close(self) -> None:
        """Permit no new operation, and cancel operations in progress."""
        self.shut()
        self._end_by = min(self._end_by, self._clock.monotonic())
        self._move()

    def limit(self, seconds: float) -> None:
        """Permit nothing beyond this many seconds from now, regardless of later calls. Only tightens."""
        self._limit = min(self._limit, self._clock.monotonic() + seconds)
        self._move()

    def passage(self, scope: anyio.CancelScope) -> Passage:
        """Guard an operation that starts with the block. `scope`, which surrounds it, is cancelled when it must have
        ended.

        The block raises FenceClosed at its beginning. An operation that leaves by an exception, or is cancelled, counts
        as given up (see `unanswered`).
        """
        return Passage(self, scope)

    async def empty(self) -> None:
        """Wait until no operation is in progress."""
        while self._passages:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def statistics(self) -> FenceStatistics:
        """Counts so far."""
        return FenceStatistics(
            is_open=self.is_open(), refused=self._refused, cut=self._cut, under_way=len(self._passages)
        )

    def _enter(self, passage: Passage) -> None:
        if not self.is_open():
            self._refused += 1
            raise FenceClosed
        self._passages[passage] = None
        passage.end_at(self._end())

    def _leave(self, passage: Passage, is_given_up: bool, is_cut: bool) -> None:
        del self._passages[passage]
        if is_given_up:
            self._unanswered = self._clock.monotonic()
            self._cut += is_cut
        if not self._passages:
            self._emptied.set()

    def _end(self) -> float:
        """End of operations in progress, in the event loop's time."""
        return anyio.current_time() + min(self._end_by, self._limit) - self._clock.monotonic()

    def _move(self) -> None:
        if self._passages:
            end = self._end()
            for passage in self._passages:
                passage.end_at(end)
