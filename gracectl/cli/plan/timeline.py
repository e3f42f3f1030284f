"""A forecast as bars in a terminal: each kind of segment has its own character, so the bars need no color."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gracectl.cli.console import GAP, INDENT, indented
from gracectl.cli.plan.chart import BarKind, axis_of
from gracectl.cli.plan.table import foot, head, node_head
from gracectl.cli.plan.text import NodeText, PlanText, PodLine

WIDEST = 160
"""Maximum columns; wider bars show no more."""

NAMES = 0.45
"""Maximum share of the width for names; longer names are folded."""

TICK_WIDTH = 8
"""Columns for a tick with its label."""

LEAST_BAR = 30
"""Minimum columns of a bar; if there are fewer, the times in figures are left out."""


class Signs(msgspec.Struct, frozen=True):
    """The characters of a drawing."""

    kinds: Mapping[BarKind, str]
    deadline: str
    deletion: str
    tick: str
    onwards: str


UNICODE = Signs(
    {BarKind.WAITING: "·", BarKind.BLOCKED: "─", BarKind.PROTECTED: "═", BarKind.REMOVABLE: "░", BarKind.GRACE: "█"},
    "│",
    "╳",
    "╵",
    "→",
)
ASCII = Signs(
    {BarKind.WAITING: ".", BarKind.BLOCKED: "-", BarKind.PROTECTED: "=", BarKind.REMOVABLE: "?", BarKind.GRACE: "#"},
    "|",
    "x",
    "'",
    ">",
)


def signs_for(console: Console) -> Signs:
    """Signs that this terminal or file can show."""
    return UNICODE if console.encoding.lower().startswith("utf") else ASCII


STYLES = {
    BarKind.WAITING: "bright_black",
    BarKind.BLOCKED: "magenta",
    BarKind.PROTECTED: "blue",
    BarKind.REMOVABLE: "yellow",
    BarKind.GRACE: "yellow",
}
ALARM = "bold red"


def timeline(text: PlanText, width: int, signs: Signs = UNICODE) -> RenderableType:
    """The table with bars instead of reasons, for `width` columns."""
    return Group(*_parts(text, _Sheet(text, min(width, WIDEST), signs)))


def _parts(text: PlanText, sheet: _Sheet) -> Iterator[RenderableType]:
    yield from head(text)
    for node in text.nodes:
        yield Text()
        yield from node_head(node)
        if any(_drawn_lines(node)):
            yield Text()
            yield from sheet.node(node)
        if node.ignored:
            yield indented(Text(node.ignored, "dim"))
    if sheet.kinds:
        yield Text()
        yield sheet.legend()
    yield from foot(text)


def _drawn_lines(node: NodeText) -> Iterator[PodLine]:
    return (line for wave in node.waves for line in wave.lines if line.bars)


class _Sheet:
    """The columns and the axis that all nodes share."""

    def __init__(self, text: PlanText, width: int, signs: Signs) -> None:
        lines = [line for node in text.nodes for line in _drawn_lines(node)]
        bars = [bar for line in lines for bar in line.bars]
        deletions = [line.deleted_at for line in lines if line.deleted_at is not None]
        deadlines = [node.deadline for node in text.nodes if node.deadline is not None]
        ends = [bar.end for bar in bars if bar.end is not None]
        self.kinds = [kind for kind in BarKind if any(bar.kind is kind for bar in bars)]
        self._has_deletion, self._has_deadline = bool(deletions), bool(deadlines)
        is_open = any(bar.end is None for bar in bars)
        self._axis = axis_of([*deadlines, *deletions, *ends, *(bar.start for bar in bars)], is_open=is_open)
        self._signs = signs
        self._name = min(max([cell_len(line.name) for line in lines], default=0), int(width * NAMES))
        self._when = max([len(line.when) for line in lines], default=0)
        left = width - INDENT - self._name - GAP
        self._has_times = left - self._when - GAP >= LEAST_BAR
        self._bar = max(left - (self._when + GAP if self._has_times else 0), TICK_WIDTH)

    def node(self, node: NodeText) -> Iterator[RenderableType]:
        """The lines of a node, with the axis below."""
        waves = [(wave.title, [line for line in wave.lines if line.bars]) for wave in node.waves]
        waves = [(title, lines) for title, lines in waves if lines]
        for title, lines in waves:
            if title and len(waves) > 1:
                yield indented(Text(title, "bold cyan"))
            yield self._grid((line.when, line.name, self._drawn(line, node.deadline)) for line in lines)
        yield self._grid(("", "", line) for line in self._axis_lines())

    def _grid(self, lines: Iterable[tuple[str, str, Text]]) -> RenderableType:
        grid = Table.grid(padding=(0, GAP, 0, 0))
        if self._has_times:
            grid.add_column(width=self._when, no_wrap=True)
        grid.add_column(width=self._name, overflow="fold")
        grid.add_column(width=self._bar, no_wrap=True)
        for when, name, bar in lines:
            grid.add_row(*([Text(when)] if self._has_times else []), Text(name), bar)
        return Padding(grid, (0, 0, 0, INDENT))

    def _column(self, at: float) -> int:
        return min(int(self._axis.place(at) * self._bar), self._bar - 1)

    def _drawn(self, line: PodLine, deadline: float | None) -> Text:
        signs = self._signs
        cells: list[tuple[str, str]] = [(" ", "")] * self._bar
        if deadline is not None:
            cells[self._column(deadline)] = (signs.deadline, ALARM)
        for bar in line.bars:
            first = self._column(bar.start)
            last = self._bar if bar.end is None else max(self._column(bar.end), first + 1)
            for column in range(first, min(last, self._bar)):
                cells[column] = (signs.kinds[bar.kind], STYLES[bar.kind])
            if bar.end is None:
                cells[-1] = (signs.onwards, STYLES[bar.kind])
        if line.deleted_at is not None:
            cells[self._column(line.deleted_at)] = (signs.deletion, ALARM)
        return Text.assemble(*cells)

    def _axis_lines(self) -> Iterator[Text]:
        marks, labels = [" "] * self._bar, [" "] * (self._bar + TICK_WIDTH)
        free = 0
        for tick in self._axis.ticks(max(self._bar // TICK_WIDTH, 1)):
            column = self._column(tick.at)
            start = min(max(column - len(tick.label) // 2, 0), self._bar - len(tick.label))
            if start >= free:
                marks[column] = self._signs.tick
                labels[start : start + len(tick.label)] = tick.label
                free = start + len(tick.label) + 1
        yield Text("".join(marks), "dim")
        yield Text("".join(labels[: self._bar]), "dim")

    def legend(self) -> RenderableType:
        """Legend of the characters."""
        signs = self._signs
        entries = [Text.assemble((signs.kinds[kind] * 3, STYLES[kind]), f" {kind}") for kind in self.kinds]
        if self._has_deletion:
            entries.append(Text.assemble((signs.deletion, ALARM), " deleted for the deadline"))
        if self._has_deadline:
            entries.append(Text.assemble((signs.deadline, ALARM), " deadline"))
        if self._axis.unit is not None:
            entries.append(Text("(logarithmic axis)"))
        return Padding(Columns(entries, padding=(0, 3)), (0, 0, 0, INDENT))
