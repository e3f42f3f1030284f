"""The axis of time under a forecast: from seconds to months, on any width.

A protection of a day beside pods that stop in seconds leaves nothing of the seconds on an even scale. So where much of
what happens would not be seen on one, the scale is logarithmic, and whoever draws says so.
Invariant: places grow with time, 0 at the beginning, 1 at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from gracectl.cli.elapsed import DAY, elapsed

SEEN = 1 / 40
"""A part of the width that still can be seen."""

MUCH = 1 / 4
"""If this part of all instants could not be seen, the scale is logarithmic."""

AFTER = 1.06
"""The axis goes on for a little after the last thing that happens."""

MINUTE, HOUR = 60, 3600
STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(minutes * MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * DAY for days in (1, 2, 5, 10, 30, 90, 365, 1000, 10_000)),
)
"""Between two ticks of an even scale, in seconds; and the ticks of a logarithmic one."""


class Tick(msgspec.Struct, frozen=True):
    """An instant that is written under the axis; `at` in seconds from its beginning."""

    at: float
    label: str


class Axis(msgspec.Struct, frozen=True):
    """From 0 to `end` seconds. `unit`: below so many seconds a logarithmic scale is nearly even; None: it is even."""

    end: float
    unit: float | None = None

    def place(self, at: float) -> float:
        """Where an instant lies, between 0 and 1; what is beyond an end lies at that end."""
        at = min(max(at, 0.0), self.end)
        if self.unit is None:
            return at / self.end
        return math.log1p(at / self.unit) / math.log1p(self.end / self.unit)

    def ticks(self, most: int) -> tuple[Tick, ...]:
        """Round instants, so many at most, none too near to another."""
        instants = self._even(most) if self.unit is None else self._uneven(most)
        return tuple(Tick(at, tick_label(at)) for at in instants)

    def _even(self, most: int) -> Iterator[float]:
        step = next((step for step in STEPS if self.end / step < most), STEPS[-1])
        step *= max(1, math.ceil(self.end / step / most))
        return (float(at) for at in range(0, math.floor(self.end) + 1, step))

    def _uneven(self, most: int) -> Iterator[float]:
        """From the last one back to the beginning, which has its tick in any case."""
        found, place = [0.0], 1.0 + 1 / most
        for at in reversed(STEPS):
            if at <= self.end and place - self.place(at) >= 1 / most and self.place(at) >= 1 / most:
                place = self.place(at)
                found.insert(1, float(at))
        return iter(found)


def axis_of(instants: Iterable[float], *, is_open: bool) -> Axis:
    """An axis for these instants (seconds from its beginning). `is_open`: something goes on beyond the last one."""
    later = sorted(at for at in instants if at >= 1)
    if not later:
        return Axis(float(MINUTE))
    last = later[-1]
    unseen = [at for at in later if at < last * SEEN]
    if len(unseen) < len(later) * MUCH:
        return Axis(last * (AFTER + 0.06 * is_open))
    return Axis(last * AFTER ** (2 + 4 * is_open), unseen[len(unseen) // 4])


def tick_label(at: float) -> str:
    """`0:30`, `15:00`, `1:00:00`, `2d`."""
    days, rest = divmod(round(at), DAY)
    if not days:
        return elapsed(at)
    return f"{days}d" if not rest else f"{days}d {rest // HOUR}h"
