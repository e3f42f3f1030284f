"""Bars of a forecast, one for each state of a pod, and the axis of time that all of them share.

Invariants: instants are seconds since the forecast; positions on the axis grow with time, from 0 to 1. The axis is
logarithmic if most instants would coincide on a linear one (a protection of a day, and pods that terminate in seconds).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from gracectl.cli.format import DAY, elapsed
from gracectl.cli.plan.groups import PodGroup
from gracectl.policy.plan import Outcome, PodPlan
from gracectl.policy.scenario import RemovalMethod


class BarKind(StrEnum):
    """State of a pod, as the legend names it."""

    WAITING = "waits for its wave"
    BLOCKED = "blocked by a budget"
    PROTECTED = "protected"
    REMOVABLE = "may be removed"
    GRACE = "terminating"


class Bar(msgspec.Struct, frozen=True):
    """A state from `start` to `end`; None: without end."""

    kind: BarKind
    start: float
    end: float | None


def deletion_of(group: PodGroup, at: float) -> float | None:
    """When the first pod may be deleted for the deadline, in seconds since `at`; None: never."""
    instants = [
        pod.entry.delete_at
        for pod in group.pods
        if RemovalMethod.DELETED in pod.methods and pod.entry.delete_at is not None
    ]
    return max(min(instants) - at, 0.0) if instants else None


def bars_of(group: PodGroup, at: float) -> Iterator[Bar]:
    """The states before the removal window, in it, and from its end until the pod has surely terminated.

    Seconds count from `at`.
    """
    terminated = None if group.terminated_window is None else group.terminated_window.latest
    gone = None if terminated is None else terminated - at
    if group.removal_window is None:
        if group.first.entry.pod.deletion_timestamp is not None:
            yield Bar(BarKind.GRACE, 0.0, gone)
        else:
            yield from _before(group.first.entry, None, at)
        return
    first = group.removal_window.earliest - at
    last = None if group.removal_window.latest is None else group.removal_window.latest - at
    yield from _before(group.first.entry, first, at)
    if last is None or not group.removal_window.is_certain:
        yield Bar(BarKind.REMOVABLE, first, last)
    if last is not None:
        yield Bar(BarKind.GRACE, last, gone)


HOLDS = {
    Outcome.BLOCKED: BarKind.BLOCKED,
    Outcome.PROTECTED: BarKind.PROTECTED,
    Outcome.EVICT: BarKind.BLOCKED,
    Outcome.REPLACE: BarKind.BLOCKED,
    Outcome.REPLACING: BarKind.BLOCKED,
}
"""State of a pod that cannot be removed immediately; all other pods wait for their wave."""


def _before(entry: PodPlan, until: float | None, at: float) -> Iterator[Bar]:
    if until is not None and until <= 0:
        return
    kind = HOLDS.get(entry.outcome, BarKind.WAITING)
    if kind is BarKind.PROTECTED and entry.protection is not None and entry.protection.until is not None:
        over = entry.protection.until - at
        if until is None or over < until:
            yield Bar(kind, 0.0, over)
            yield Bar(BarKind.BLOCKED if entry.budgets else BarKind.WAITING, over, until)
            return
    yield Bar(kind, 0.0, until)


SEEN = 1 / 40
"""Smallest visible part of the width."""

MUCH = 1 / 4
"""Share of invisible instants above which the scale is logarithmic."""

AFTER = 1.06
"""Length of the axis relative to the last instant."""

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
    """Axis from 0 to `end` seconds. `unit`: seconds below which the logarithmic scale is nearly linear; None:
    linear."""

    end: float
    unit: float | None = None

    def place(self, at: float) -> float:
        """Position of an instant from 0 to 1, clamped."""
        at = min(max(at, 0.0), self.end)
        if self.unit is None:
            return at / self.end
        return math.log1p(at / self.unit) / math.log1p(self.end / self.unit)

    def ticks(self, most: int) -> tuple[Tick, ...]:
        """Round instants, at most `most`, none too close to another."""
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
    """Axis for these instants (seconds). `is_open`: a state lasts beyond the last one."""
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
