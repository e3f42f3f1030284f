"""Hierarchical timer wheel, for tens of thousands of timers of which most are moved or cancelled before they fire.

A drain arms, moves and cancels deadlines of every pod whenever a node is reconciled. Each operation has a constant
cost, and a cancelled timer leaves nothing behind.

The wheel counts ticks of one resolution. A timer goes into the first slot that is not before its instant. Slots near
the present are one tick wide, those further away 256 ticks, 256², and so on; when the present reaches a wide slot, its
timers are spread over narrower ones. A timer is touched once for each level between it and the present (three
times for one that is an hour ahead).

Invariants: no timer fires before its instant; each fires once, unless it is cancelled or armed again before; timers of
different slots fire in the order of the slots, those of one slot in the order in which they came into it; an overdue
timer counts as one of the present slot. The slot of a timer follows from its tick and `_elapsed` alone.
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
from gracectl.runtime.notifier import Notifier

K = TypeVar("K", bound=Hashable)

_BITS = 8
_NARROW = (1 << _BITS) - 1
# Timers that are fired or spread before other tasks get their turn: well below a millisecond of work.
_CHUNK = 256


class TimerWheelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot. `pending` timers are armed now; the other counts only grow: armed = pending + fired + cancelled +
    rearmed.

    `armed` counts every call of `arm`, `rearmed` those for a key that was armed already; `spread` counts moves from a
    wide slot into a narrower one, `turns` the chunks of work that `run` has done. `lateness_*` are seconds from a
    timer's instant to its firing. `next_turn`: the monotonic instant at which `run` has something to do next (None:
    nothing); when that is long past, `run` is not running.
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
    """Timer wheel that calls `fired` with each due key; `fired` must be quick, and may arm and cancel timers.

    `resolution` is the width of the narrowest slot in seconds: how late a timer fires at most.
    """

    def __init__(self, clock: Clock, fired: Callable[[K], None], *, resolution: float = 0.01) -> None:
        self._clock = clock
        self._fire = fired
        self._rate = 1 / resolution
        self._at: dict[K, float] = {}
        # For each level its occupied slots, by the leading digits (base 256) of their ticks; a slot is an ordered set.
        self._levels: list[dict[int, dict[K, None]]] = []
        self._elapsed = 0  # every slot before this tick is empty
        self._open: deque[K] = deque()  # slot that is being emptied; may hold cancelled keys
        self._next: int | None = None  # first tick with something to do; None: none
        self._notifier = Notifier()
        self._armed = self._rearmed = self._cancelled = self._fired = self._spread = self._turns = 0
        self._lateness_total = self._lateness_maximum = 0.0

    def __len__(self) -> int:
        """Number of armed timers."""
        return len(self._at)

    def __contains__(self, key: object) -> bool:
        """Whether this key is armed."""
        return key in self._at

    def due_at(self, key: K) -> float | None:
        """Monotonic instant for which this key is armed; None if it is not."""
        return self._at.get(key)

    def due_by(self, instant: float) -> int:
        """Number of timers armed for this monotonic instant or before; costs what they and the slots up to it are."""
        last = max(self._tick(instant), self._elapsed)  # overdue timers go into the present slot
        near = set(self._open)
        for level, slots in enumerate(self._levels):
            for digits, slot in slots.items():
                if digits << level * _BITS <= last:
                    near.update(slot)
        return sum(self._at.get(key, math.inf) <= instant for key in near)

    def arm(self, key: K, at: float) -> None:
        """Fire this key at `at`, a monotonic instant of the clock, instead of the instant it was armed for before.

        An instant that has passed fires in the next turn of `run`, never in here. An instant computed from Unix seconds
        carries their rounding, a quarter of a microsecond: round it to six digits, or it falls into the next slot.
        Raises ValueError if it is not finite.
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
            self._remove(key, tick_before)
        start = self._insert(key, tick)
        if self._next is None or start < self._next:
            self._next = start
            self._notifier.notify()

    def cancel(self, key: K) -> bool:
        """Disarm this key; returns whether it was armed."""
        at = self._at.pop(key, None)
        if at is None:
            return False
        self._cancelled += 1
        self._remove(key, self._tick(at))
        return True

    async def run(self) -> None:
        """Fire due keys until cancelled. May run again later, but not twice at the same time."""
        while True:
            await anyio.lowlevel.checkpoint()
            if self._work():
                continue
            timeout = None if self._next is None else self._next / self._rate - self._clock.monotonic()
            await self._notifier.wait(timeout)

    def statistics(self) -> TimerWheelStatistics:
        """Timers armed now, and counts so far."""
        return TimerWheelStatistics(
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
        """Handle one chunk of due timers; returns whether there are more."""
        self._turns += 1
        now = self._clock.monotonic()
        for _ in range(_CHUNK):
            if self._open:
                self._settle(self._open.popleft(), now)
            elif not self._open_next(now):
                return False
        return True

    def _open_next(self, now: float) -> bool:
        """Move to the earliest occupied slot if it is due, else to the present; returns whether there was one."""
        present = self._tick(now)
        if present / self._rate > now:
            present -= 1
        # A tick that differs from the present only in later digits is nearer: the lowest level has the earliest slot.
        level = next((level for level, slots in enumerate(self._levels) if slots), None)
        if level is None:
            self._next, self._elapsed = None, present
            return False
        digits = min(self._levels[level])
        self._next = digits << level * _BITS
        if self._next > present:
            # There is no timer in between, so no level changes, and timers that are armed next get a nearer slot.
            self._elapsed = present
            return False
        self._elapsed = self._next
        self._open.extend(self._levels[level].pop(digits))
        return True

    def _settle(self, key: K, now: float) -> None:
        """Handle a key of the open slot: fire it, move it to a narrower slot, or drop it if it is no longer armed.

        A key that was armed again since the slot was opened is met twice, which does no harm.
        """
        at = self._at.get(key)
        if at is None:
            return
        tick = self._tick(at)
        if tick > self._elapsed:
            self._spread += 1
            self._insert(key, tick)
            return
        del self._at[key]
        self._fired += 1
        self._lateness_total += now - at
        self._lateness_maximum = max(self._lateness_maximum, now - at)
        self._fire(key)

    def _tick(self, instant: float) -> int:
        """First tick that is not before the instant."""
        ticks = instant * self._rate
        if not math.isfinite(ticks):
            raise ValueError(f"no instant: {instant}")
        tick = math.ceil(ticks)
        # The product is rounded (0.07 * 100 is above 7): a slot too late is measurable, a slot too early is wrong.
        if (tick - 1) / self._rate >= instant:
            return tick - 1
        return tick if tick / self._rate >= instant else tick + 1

    def _insert(self, key: K, tick: int) -> int:
        """Put the key into its slot, and return the slot's first tick."""
        level, digits = self._slot(tick)
        while level >= len(self._levels):
            self._levels.append({})
        self._levels[level].setdefault(digits, {})[key] = None
        return digits << level * _BITS

    def _remove(self, key: K, tick: int) -> None:
        """Remove the key from its slot, if it is not in the open one."""
        level, digits = self._slot(tick)
        slot = self._levels[level].get(digits)
        if slot is not None and key in slot:
            del slot[key]
            if not slot:
                del self._levels[level][digits]

    def _slot(self, tick: int) -> tuple[int, int]:
        """Slot of a tick: its level is the first digit in which it differs from the present."""
        tick = max(tick, self._elapsed)
        level = ((tick ^ self._elapsed | _NARROW).bit_length() - 1) // _BITS
        return level, tick >> level * _BITS
