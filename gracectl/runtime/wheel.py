"""A timer wheel: ten thousands of instants, of which most are moved or cancelled before they come.

Why it exists: a drain arms, moves and cancels deadlines at every look at a node, for every pod. Here each of that costs
the same however many are armed, and nothing is left behind by a cancelled one.

The wheel counts ticks of one resolution. A timer is put into the first slot that is not before its instant. Slots near
the present are one tick wide, those further away 256 ticks, 256², and so on; when the present reaches a wide slot, its
timers are spread over narrower ones. A timer is thus touched once for each level between it and the present (three
times for one that is an hour ahead).

Invariants: no timer fires before its instant; each fires once, unless it is cancelled or armed anew before; timers of
different slots fire in the order of the slots, those of one slot in the order in which they came into it; an overdue
timer counts as one of the present slot. Where a timer lies follows from its tick and `_elapsed` alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from gracectl.runtime.clock import Clock
from gracectl.runtime.news import News

K = TypeVar("K", bound=Hashable)

_BITS = 8
_NARROW = (1 << _BITS) - 1
# Timers that are fired or spread before others get their turn on the event loop: well below a millisecond of work.
_CHUNK = 256


class WheelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `pending` timers are armed now; the other counts only grow: armed = pending + fired + cancelled +
    rearmed.

    `armed` counts every call of `arm`, `rearmed` those for a key that was armed already; `spread` counts moves from a
    wide slot into a narrower one, `turns` the pieces of work that `run` has done on the event loop. `lateness_*` are
    seconds from a timer's instant to its firing. `next_turn`: the monotonic instant at which `run` has something to do
    next (None: there is nothing); when that is long past, nobody runs it.
    """

    pending: int = 0
    armed: int = 0
    rearmed: int = 0
    cancelled: int = 0
    fired: int = 0
    spread: int = 0
    turns: int = 0
    lateness_total: float = 0.0
    lateness_maximum: float = 0.0
    next_turn: float | None = None


class TimerWheel(Generic[K]):
    """See the module. `fired` is told each key whose time has come; it must be quick, and may arm and cancel.

    `resolution` is the width of the narrowest slot in seconds: how late a timer fires at most.
    """

    def __init__(self, clock: Clock, fired: Callable[[K], None], *, resolution: float = 0.01) -> None:
        self._clock = clock
        self._tell = fired
        self._rate = 1 / resolution
        self._at: dict[K, float] = {}
        # For each level its occupied slots, by the leading digits (base 256) of their ticks; a slot is an ordered set.
        self._levels: list[dict[int, dict[K, None]]] = []
        self._elapsed = 0  # every slot before this tick is empty
        self._open: deque[K] = deque()  # the slot that is being emptied; what was cancelled since is still in it
        self._next: int | None = None  # nothing is to be done before this tick; None: ever
        self._news = News()
        self._armed = self._rearmed = self._cancelled = self._fired = self._spread = self._turns = 0
        self._lateness_total = self._lateness_maximum = 0.0

    def __len__(self) -> int:
        """How many timers are armed."""
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        """Whether this key is armed."""
        return key in self._at

    def due_at(self, key: K) -> float | None:
        """The monotonic instant for which this key is armed; None if it is not."""
        return self._at.get(key)

    def arm(self, key: K, at: float) -> None:
        """Tell this key at `at`, a monotonic instant of the clock, and not when it was armed for before.

        An instant that has passed fires at the next turn of `run`, never in here. One that was computed from Unix
        seconds carries their rounding, a quarter of a microsecond: round it to six digits lest it fall into the next
        slot. Raises ValueError if it is no finite number.
        """
        tick = self._tick(at)
        before = self._at.get(key)
        self._armed += 1
        self._at[key] = at
        if before is not None:
            self._rearmed += 1
            tick_before = self._tick(before)
            if tick_before == tick:
                return
            self._take_out(key, tick_before)
        start = self._put_in(key, tick)
        if self._next is None or start < self._next:
            self._next = start
            self._news.tell()

    def cancel(self, key: K) -> bool:
        """Forget this key; whether it was armed."""
        at = self._at.pop(key, None)
        if at is None:
            return False
        self._cancelled += 1
        self._take_out(key, self._tick(at))
        return True

    async def run(self) -> None:
        """Tell the keys when their time has come, until cancelled. May be run again, but not twice at once."""
        while True:
            await anyio.lowlevel.checkpoint()
            if self._work():
                continue
            patience = None if self._next is None else self._next / self._rate - self._clock.monotonic()
            with anyio.move_on_after(patience):
                await self._news.wait()

    def statistics(self) -> WheelStatistics:
        """What is armed, and what has been."""
        return WheelStatistics(
            pending=len(self._at),
            armed=self._armed,
            rearmed=self._rearmed,
            cancelled=self._cancelled,
            fired=self._fired,
            spread=self._spread,
            turns=self._turns,
            lateness_total=self._lateness_total,
            lateness_maximum=self._lateness_maximum,
            next_turn=None if self._next is None else self._next / self._rate,
        )

    def _work(self) -> bool:
        """Do one chunk of what is due; whether there is more."""
        self._turns += 1
        now = self._clock.monotonic()
        for _ in range(_CHUNK):
            if self._open:
                self._settle(self._open.popleft(), now)
            elif not self._open_next(now):
                return False
        return True

    def _open_next(self, now: float) -> bool:
        """Move to the earliest occupied slot if its time has come, else to the present; whether there was one."""
        present = self._tick(now)
        if present / self._rate > now:
            present -= 1
        # What differs from the present in a later digit only is nearer: the lowest level has the earliest slot.
        level = next((level for level, slots in enumerate(self._levels) if slots), None)
        if level is None:
            self._next, self._elapsed = None, present
            return False
        digits = min(self._levels[level])
        self._next = digits << level * _BITS
        if self._next > present:
            # Nothing lies between, so no timer's level changes by it, and those armed next are seen from nearby.
            self._elapsed = present
            return False
        self._elapsed = self._next
        self._open.extend(self._levels[level].pop(digits))
        return True

    def _settle(self, key: K, now: float) -> None:
        """A key of the open slot: its time has come, or it belongs into a narrower slot, or it is armed no longer.

        Since the slot was opened it may have been armed anew: then it is found once more, which does no harm.
        """
        at = self._at.get(key)
        if at is None:
            return
        tick = self._tick(at)
        if tick > self._elapsed:
            self._spread += 1
            self._put_in(key, tick)
            return
        del self._at[key]
        self._fired += 1
        self._lateness_total += now - at
        self._lateness_maximum = max(self._lateness_maximum, now - at)
        self._tell(key)

    def _tick(self, instant: float) -> int:
        """The first tick that is not before the instant."""
        ticks = instant * self._rate
        if not math.isfinite(ticks):
            raise ValueError(f"no instant: {instant}")
        tick = math.ceil(ticks)
        # The product is rounded (0.07 * 100 is above 7), and a slot too late would be seen, a slot too early be wrong.
        if (tick - 1) / self._rate >= instant:
            return tick - 1
        return tick if tick / self._rate >= instant else tick + 1

    def _put_in(self, key: K, tick: int) -> int:
        """Put the key into its slot, and return the slot's first tick."""
        level, digits = self._slot(tick)
        while level >= len(self._levels):
            self._levels.append({})
        self._levels[level].setdefault(digits, {})[key] = None
        return digits << level * _BITS

    def _take_out(self, key: K, tick: int) -> None:
        """Remove the key from its slot, if it is not in the open one."""
        level, digits = self._slot(tick)
        slot = self._levels[level].get(digits)
        if slot is not None and key in slot:
            del slot[key]
            if not slot:
                del self._levels[level][digits]

    def _slot(self, tick: int) -> tuple[int, int]:
        """Where a timer of this tick lies: its level is the first digit in which it differs from the present."""
        tick = max(tick, self._elapsed)
        level = ((tick ^ self._elapsed | _NARROW).bit_length() - 1) // _BITS
        return level, tick >> level * _BITS
