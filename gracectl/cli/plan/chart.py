"""Chart of a forecast: a row for each pod, with a bar for each of its states, over one axis of time.

Invariants: the rows are the same as in the text, in the same order; instants are seconds since the forecast. The axis
is logarithmic if most instants would coincide on a linear one (a protection of a day, and pods that terminate in
seconds); positions grow with time, from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from gracectl.cli.format import DAY, blocked_by, elapsed
from gracectl.cli.plan.groups import PodGroup, groups_of
from gracectl.cli.plan.messages import TimeOrigin, drained_text, time_origin_of
from gracectl.cli.plan.text import wave_title
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast
from gracectl.policy.forecast import PodForecast
from gracectl.policy.plan import Outcome
from gracectl.policy.scenario import RemovalMethod


class BarKind(StrEnum):
    """State of a pod, as the legend names it."""

    WAITING = "waits for its wave"
    BLOCKED = "blocked by a budget"
    PROTECTED = "protected"
    REMOVABLE = "may be removed"
    GRACE = "terminating"


class Bar(msgspec.Struct, frozen=True):
    """A state from `start` to `end`; None: without end. `reason`: its tooltip."""

    kind: BarKind
    start: float
    end: float | None
    reason: str


class PodRow(msgspec.Struct, frozen=True):
    """A pod, or several with similar forecasts. `deleted_at`: when it may be deleted for the deadline."""

    name: str
    when: str
    text: str
    bars: tuple[Bar, ...]
    deleted_at: float | None


class Block(msgspec.Struct, frozen=True):
    """Pods of one wave."""

    title: str
    rows: tuple[PodRow, ...]


class Panel(msgspec.Struct, frozen=True):
    """A node."""

    name: str
    headline: str
    blocks: tuple[Block, ...]
    deadline: float | None

    @property
    def rows(self) -> tuple[PodRow, ...]:
        """Rows of all blocks."""
        return tuple(row for block in self.blocks for row in block.rows)


class Chart(msgspec.Struct, frozen=True):
    """All nodes over one axis. `kinds`: the states that occur."""

    panels: tuple[Panel, ...]
    axis: Axis
    kinds: tuple[BarKind, ...]
    has_deadline: bool
    has_deletion: bool


def chart_of(forecast: DrainForecast, *, verbose: bool = False) -> Chart:
    """The chart of a forecast. `verbose`: a row for each pod."""
    origin = time_origin_of(forecast)
    panels = tuple(_panel(node, origin, verbose=verbose) for node in forecast.nodes)
    rows = [row for panel in panels for row in panel.rows]
    bars = [bar for row in rows for bar in row.bars]
    used = {bar.kind for bar in bars}
    return Chart(
        panels=panels,
        axis=axis_of(_instants(panels), is_open=any(bar.end is None for bar in bars)),
        kinds=tuple(kind for kind in BarKind if kind in used),
        has_deadline=any(panel.deadline is not None for panel in panels),
        has_deletion=any(row.deleted_at is not None for row in rows),
    )


def _panel(node: NodeDrainForecast, origin: TimeOrigin, *, verbose: bool) -> Panel:
    by_wave: dict[int, list[PodForecast]] = {}
    for pod in node.forecast.pods:
        if pod.is_waited_for:
            by_wave.setdefault(pod.entry.wave, []).append(pod)
    return Panel(
        name=node.name,
        headline=drained_text(node, origin.at),
        blocks=tuple(
            Block(
                title=wave_title(node, wave, by_wave[wave], origin) if len(by_wave) > 1 else "",
                rows=tuple(_row(group, origin) for group in groups_of(by_wave[wave], origin, verbose=verbose)),
            )
            for wave in sorted(by_wave)
        ),
        deadline=None if node.deadline is None else node.deadline.at - origin.at,
    )


def _row(group: PodGroup, origin: TimeOrigin) -> PodRow:
    deletions = [
        pod.entry.delete_at
        for pod in group.pods
        if RemovalMethod.DELETED in pod.methods and pod.entry.delete_at is not None
    ]
    return PodRow(
        name=group.name,
        when=group.when(origin.at),
        text=group.text(origin),
        bars=tuple(_bars(group, origin)),
        deleted_at=max(min(deletions) - origin.at, 0.0) if deletions else None,
    )


def _bars(group: PodGroup, origin: TimeOrigin) -> Iterator[Bar]:
    """The states before the removal window, in it, and from its end until the pod has surely terminated."""
    terminated = None if group.terminated_window is None else group.terminated_window.latest
    gone = None if terminated is None else terminated - origin.at
    if group.removal_window is None:
        if group.first.entry.pod.deletion_timestamp is not None:
            yield Bar(BarKind.GRACE, 0.0, gone, group.text(origin))
        else:
            yield from _before(group, None, origin)
        return
    first = group.removal_window.earliest - origin.at
    last = None if group.removal_window.latest is None else group.removal_window.latest - origin.at
    yield from _before(group, first, origin)
    if last is None or not group.removal_window.is_certain:
        yield Bar(BarKind.REMOVABLE, first, last, f"removed at {group.when(origin.at)}: {group.text(origin)}")
    if last is not None:
        until = "" if gone is None else f", terminated by {elapsed(gone)}"
        yield Bar(BarKind.GRACE, last, gone, f"removed by {elapsed(last)}{until}")


HOLDS = {
    Outcome.BLOCKED: BarKind.BLOCKED,
    Outcome.PROTECTED: BarKind.PROTECTED,
    Outcome.EVICT: BarKind.BLOCKED,
    Outcome.REPLACE: BarKind.BLOCKED,
    Outcome.REPLACING: BarKind.BLOCKED,
}
"""State of a pod that cannot be removed immediately; all other pods wait for their wave."""


def _before(group: PodGroup, until: float | None, origin: TimeOrigin) -> Iterator[Bar]:
    if until is not None and until <= 0:
        return
    entry, reason = group.first.entry, blocked_by(group.first.entry)
    kind = HOLDS.get(entry.outcome, BarKind.WAITING)
    if kind is BarKind.PROTECTED and entry.protection is not None and entry.protection.until is not None:
        over = entry.protection.until - origin.at
        if until is None or over < until:
            yield Bar(kind, 0.0, over, reason)
            yield Bar(BarKind.BLOCKED if entry.budgets else BarKind.WAITING, over, until, group.text(origin))
            return
    yield Bar(kind, 0.0, until, reason)


def _instants(panels: Iterable[Panel]) -> Iterator[float]:
    """All instants of the chart."""
    for panel in panels:
        yield from (at for at in (panel.deadline,) if at is not None)
        for row in panel.rows:
            yield from (at for at in (row.deleted_at,) if at is not None)
            for bar in row.bars:
                yield bar.start
                yield from (at for at in (bar.end,) if at is not None)


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
