"""Whether something may be begun now, and by when what has begun must have ended.

Invariants: permission is a matter of time alone, so it runs out by itself, whatever has become of those who should have
renewed it (an event loop that hangs, a task that waits for ever); what is under way is cut at its end, and lives longer
when that is moved back in time; who has been told to end soon never gets more time than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import msgspec

from gracectl.runtime.clock import Clock


class FenceClosed(Exception):
    """What was to be begun was not begun: it may not be begun now."""

    def __str__(self) -> str:
        return "not begun: nothing may be written now"


class Mark(msgspec.Struct, frozen=True):
    """An instant, in both of the clock's ways of counting."""

    monotonic: float
    elapsed: float


class FenceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """`refused` could not begin, `cut` were ended by the fence; `under_way` now."""

    is_open: bool
    refused: int
    cut: int
    under_way: int


class Passage:
    """Something under way. Its scope ends when its own time is up or the fence's, whichever comes first."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._own = scope.deadline
        self.is_cut = False
        """Whether it is the fence that ends it."""

    def end_at(self, instant: float) -> None:
        """The fence's end, in the event loop's time."""
        deadline = min(self._own, instant)
        if deadline != self._scope.deadline:  # which moves a timer
            self._scope.deadline = deadline
        self.is_cut = instant < self._own


class Fence:
    """Closed when it is made. Instants are monotonic."""

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
        """Whether something may begin now."""
        now = self._clock.monotonic()
        # Time that `monotonic` has missed since counts as well: what it takes for one second may have been an hour.
        missed = max(self._clock.elapsed() - now - self._missed, 0.0)
        return now + missed < self._begin_until and now < self._limit

    @property
    def unanswered(self) -> float:
        """The last instant at which something was given up that had begun: it may still take effect a little later.
        -inf: never."""
        return self._unanswered

    def mark(self) -> Mark:
        """This instant, to be given to `extend` later."""
        return Mark(self._clock.monotonic(), self._clock.elapsed())

    def extend(self, mark: Mark, begin: float, end: float) -> None:
        """From now on things may begin until `begin` seconds after `mark`, and go on until `end` seconds after it."""
        self._begin_until = mark.monotonic + begin
        self._end_by = mark.monotonic + end
        self._missed = mark.elapsed - mark.monotonic
        self._move()

    def open(self) -> None:
        """From now on things may begin and go on for ever, until something else is said."""
        self.extend(self.mark(), math.inf, math.inf)

    def shut(self) -> None:
        """Nothing more may begin; what is under way may go on until its time is up."""
        self._begin_until = -math.inf

    def close(self) -> None:
        """Nothing more may begin, and what is under way ends now."""
        self.shut()
        self._end_by = min(self._end_by, self._clock.monotonic())
        self._move()

    def limit(self, seconds: float) -> None:
        """Nothing begins and nothing goes on in more than so many seconds, whatever is said later. Only tightens."""
        self._limit = min(self._limit, self._clock.monotonic() + seconds)
        self._move()

    @contextmanager
    def passage(self, scope: anyio.CancelScope) -> Iterator[Passage]:
        """Around something that begins now. `scope`, which is around it, ends it when it must have ended.

        Raises FenceClosed. What leaves by an exception counts as given up (see `unanswered`).
        """
        if not self.is_open():
            self._refused += 1
            raise FenceClosed
        passage = Passage(scope)
        self._passages[passage] = None
        passage.end_at(self._end())
        try:
            yield passage
        except BaseException:
            self._unanswered = self._clock.monotonic()
            self._cut += passage.is_cut and scope.cancel_called
            raise
        finally:
            del self._passages[passage]
            if not self._passages:
                self._emptied.set()

    async def empty(self) -> None:
        """Return when nothing is under way."""
        while self._passages:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def statistics(self) -> FenceStatistics:
        """What it has let pass, and what not."""
        return FenceStatistics(
            is_open=self.is_open(), refused=self._refused, cut=self._cut, under_way=len(self._passages)
        )

    def _end(self) -> float:
        """When what is under way must have ended, in the event loop's time."""
        return anyio.current_time() + min(self._end_by, self._limit) - self._clock.monotonic()

    def _move(self) -> None:
        if self._passages:
            end = self._end()
            for passage in self._passages:
                passage.end_at(end)
