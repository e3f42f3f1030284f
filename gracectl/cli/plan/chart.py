"""A forecast as a chart: a row for each pod, what becomes of it as stretches of time, one axis for all nodes.

The terminal, the picture and the page are drawn from the same chart, so that what a stretch means is said once.
Invariant: the rows are those of the telling, in its order; instants are seconds from the instant of the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from gracectl.cli.format import DAY, elapsed
from gracectl.cli.plan import messages as words
from gracectl.cli.plan.groups import Group, groups_of
from gracectl.cli.plan.messages import Ground, ground_of
from gracectl.cli.plan.text import wave_title
from gracectl.inspect.forecast import NodeOutlook, Outlook
from gracectl.policy.bounds import PodForecast
from gracectl.policy.plan import Outcome
from gracectl.policy.simulation import RemovalMethod


class Kind(StrEnum):
    """What a pod does in a stretch, as a legend says it."""

    WAITING = "waits for its wave"
    HELD = "held by a budget"
    PROTECTED = "protected"
    MAY_LEAVE = "may leave here"
    ENDING = "ending (its grace)"


class Stretch(msgspec.Struct, frozen=True):
    """From `start` to `end`; `end` None: without one. `why`: a sentence for whoever asks."""

    kind: Kind
    start: float
    end: float | None
    why: str


class Row(msgspec.Struct, frozen=True):
    """A pod, or several of whom the same is said. `deleted_at`: when the deadline demands it, if that may happen."""

    name: str
    when: str
    how: str
    stretches: tuple[Stretch, ...]
    deleted_at: float | None


class Block(msgspec.Struct, frozen=True):
    """Those who leave together."""

    title: str
    rows: tuple[Row, ...]


class Panel(msgspec.Struct, frozen=True):
    """One node."""

    name: str
    headline: str
    blocks: tuple[Block, ...]
    deadline: float | None

    @property
    def rows(self) -> tuple[Row, ...]:
        """Of all its blocks."""
        return tuple(row for block in self.blocks for row in block.rows)


class Chart(msgspec.Struct, frozen=True):
    """All nodes over one axis. `kinds`: those that occur."""

    panels: tuple[Panel, ...]
    axis: Axis
    kinds: tuple[Kind, ...]
    has_deadline: bool
    has_deletion: bool


def chart_of(outlook: Outlook, *, verbose: bool = False) -> Chart:
    """The chart of a forecast. `verbose`: a row for each pod."""
    ground = ground_of(outlook)
    panels = tuple(_panel(node, ground, verbose=verbose) for node in outlook.nodes)
    rows = [row for panel in panels for row in panel.rows]
    stretches = [stretch for row in rows for stretch in row.stretches]
    used = {stretch.kind for stretch in stretches}
    return Chart(
        panels=panels,
        axis=axis_of(_instants(panels), is_open=any(stretch.end is None for stretch in stretches)),
        kinds=tuple(kind for kind in Kind if kind in used),
        has_deadline=any(panel.deadline is not None for panel in panels),
        has_deletion=any(row.deleted_at is not None for row in rows),
    )


def _panel(node: NodeOutlook, ground: Ground, *, verbose: bool) -> Panel:
    by_wave: dict[int, list[PodForecast]] = {}
    for pod in node.prospect.pods:
        if pod.is_waited_for:
            by_wave.setdefault(pod.entry.wave, []).append(pod)
    return Panel(
        name=node.name,
        headline=words.drained(node, ground.at),
        blocks=tuple(
            Block(
                title=wave_title(node, wave, by_wave[wave], ground) if len(by_wave) > 1 else "",
                rows=tuple(_row(group, ground) for group in groups_of(by_wave[wave], ground, verbose=verbose)),
            )
            for wave in sorted(by_wave)
        ),
        deadline=None if node.deadline is None else node.deadline.at - ground.at,
    )


def _row(group: Group, ground: Ground) -> Row:
    deletions = [
        pod.entry.delete_at
        for pod in group.pods
        if RemovalMethod.DELETED in pod.methods and pod.entry.delete_at is not None
    ]
    return Row(
        name=group.name,
        when=group.when(ground.at),
        how=group.how(ground),
        stretches=tuple(_stretches(group, ground)),
        deleted_at=max(min(deletions) - ground.at, 0.0) if deletions else None,
    )


def _stretches(group: Group, ground: Ground) -> Iterator[Stretch]:
    """What is so before it may be told to leave, while it may, and from when it surely was until it is surely gone."""
    gone = None if group.gone is None or group.gone.latest is None else group.gone.latest - ground.at
    if group.told is None:
        if group.first.entry.pod.deletion_timestamp is not None:
            yield Stretch(Kind.ENDING, 0.0, gone, group.how(ground))
        else:
            yield from _before(group, None, ground)
        return
    first = group.told.earliest - ground.at
    last = None if group.told.latest is None else group.told.latest - ground.at
    yield from _before(group, first, ground)
    if last is None or not group.told.is_certain:
        yield Stretch(Kind.MAY_LEAVE, first, last, f"told to leave at {group.when(ground.at)}: {group.how(ground)}")
    if last is not None:
        until = "" if gone is None else f", gone by {elapsed(gone)}"
        yield Stretch(Kind.ENDING, last, gone, f"told to leave by {elapsed(last)}{until}")


HOLDS = {Outcome.BLOCKED: Kind.HELD, Outcome.PROTECTED: Kind.PROTECTED, Outcome.EVICT: Kind.HELD}
"""What keeps a pod that is not told at once; else it waits for its wave."""


def _before(group: Group, until: float | None, ground: Ground) -> Iterator[Stretch]:
    if until is not None and until <= 0:
        return
    entry, reason = group.first.entry, words.held(group.first.entry)
    kind = HOLDS.get(entry.outcome, Kind.WAITING)
    if kind is Kind.PROTECTED and entry.protection is not None and entry.protection.until is not None:
        over = entry.protection.until - ground.at
        if until is None or over < until:
            yield Stretch(kind, 0.0, over, reason)
            yield Stretch(Kind.HELD if entry.budgets else Kind.WAITING, over, until, group.how(ground))
            return
    yield Stretch(kind, 0.0, until, reason)


def _instants(panels: Iterable[Panel]) -> Iterator[float]:
    """All at which something happens."""
    for panel in panels:
        yield from (at for at in (panel.deadline,) if at is not None)
        for row in panel.rows:
            yield from (at for at in (row.deleted_at,) if at is not None)
            for stretch in row.stretches:
                yield stretch.start
                yield from (at for at in (stretch.end,) if at is not None)


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
