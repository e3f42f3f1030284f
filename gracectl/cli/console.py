"""Terminal output of commands: one table, one live view, on rich.

Invariants: without a terminal there are no colours, no line is broken, and none ends with spaces; foreign text cannot
control a terminal. Tables are kubectl's: upper-case headers, object names in one piece.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from gracectl.model.foreign import visible_lines

UNLIMITED = 10_000
"""Columns where there is no terminal, unless $COLUMNS says how many."""

INDENT = 2
GAP = 2

LEAST_MESSAGE = 30
"""Columns: a narrower last column goes onto lines of its own below its row."""

LEAST_HEIGHT = 2

LEAST_TABLE = 3
"""Lines of a table that is cut: its header, a row, and how many more there are."""


class VisibleConsole(Console):
    """A console that escapes foreign control characters; colours and cursor movements are its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        # The text of a segment comes from anywhere; colours are its style, and moves of the cursor control segments.
        return super()._render_buffer(
            each if each.control else Segment(visible_lines(each.text), each.style) for each in buffer
        )


def stdout_console(*, is_wide: bool = False) -> Console:
    """Console on stdout. `is_wide`: no limit on the width of lines."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that knows no "…" gets a "?" instead of a traceback.
        sys.stdout.reconfigure(errors="replace")
    is_terminal = sys.stdout.isatty()
    is_limited = (is_terminal or "COLUMNS" in os.environ) and not is_wide
    return VisibleConsole(force_terminal=is_terminal, width=None if is_limited else UNLIMITED)


def print_on(console: Console, what: RenderableType, *, err: bool = False) -> None:
    """Print it; `err`: on stderr, as wide as stdout."""
    click.echo(text_of(console, what), err=err)


def text_of(console: Console, what: RenderableType) -> str:
    """Text that would be printed, without trailing spaces."""
    with console.capture() as captured:
        console.print(what, crop=False, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


# -- tables ------------------------------------------------------------------------------------------------------------


class Row(msgspec.Struct, frozen=True):
    """Cells of one row, and lines below it over all columns. Without cells: lines only, such as a subtitle."""

    cells: Sequence[str | Text] = ()
    notes: Sequence[RenderableType] = ()


class Table(msgspec.Struct, frozen=True):
    """Columns as wide as their cells. `right`: headers of columns that are aligned to the right.

    `has_message`: the last column is a message, which is folded into the width that is left; where that is too little,
    it stands below its row. `droppable`: headers of columns that are left out instead, the first one first.
    """

    headers: Sequence[str]
    rows: Sequence[Row]
    right: frozenset[str] = frozenset()
    has_message: bool = False
    indent: int = 0
    droppable: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [Row([Text(header.upper(), "bold") for header in self.headers]), *self.rows]
        cells = [[_as_text(cell) for cell in row.cells] for row in lines]
        columns = zip(*(row for row in cells if row), strict=True)
        widths = [max(cell_len(cell.plain) for cell in column) for column in columns]
        if dropped := self._dropped(widths, options.max_width):
            kept = [number for number, header in enumerate(self.headers) if header not in dropped]
            rows = [Row([row.cells[number] for number in kept] if row.cells else (), row.notes) for row in self.rows]
            has_message = self.has_message and self.headers[-1] not in dropped
            headers = [self.headers[number] for number in kept]
            yield Table(headers, rows, self.right, has_message, self.indent)
            return
        fixed = self.indent + sum(widths[:-1]) + GAP * len(widths[:-1])
        left = options.max_width - fixed
        is_below = self.has_message and left < max(min(LEAST_MESSAGE, widths[-1]), _longest_word(cells))
        if self.has_message:
            widths[-1] = max(options.max_width - 2 * INDENT - self.indent if is_below else left, 1)
        for number, (row, texts) in enumerate(zip(lines, cells, strict=True)):
            if texts:
                yield from self._lines(console, texts, widths, is_below=is_below and number > 0)
            for note in row.notes:
                yield Padding(note, (0, 0, 0, self.indent + (INDENT if texts else 0)))

    def _dropped(self, widths: Sequence[int], most: int) -> frozenset[str]:
        """Headers of columns that have to be left out, so that the others fit."""
        found = dict(zip(self.headers, widths, strict=True))
        if self.has_message:
            found[self.headers[-1]] = min(LEAST_MESSAGE, widths[-1])
        droppable = list(self.droppable)
        while droppable and self.indent + sum(found.values()) + GAP * (len(found) - 1) > most:
            del found[droppable.pop(0)]
        return frozenset(self.headers) - frozenset(found)

    def _lines(self, console: Console, texts: list[Text], widths: list[int], *, is_below: bool) -> Iterator[Text]:
        message = list(texts[-1].wrap(console, widths[-1])) if self.has_message else [texts[-1]]
        line = Text(" " * self.indent, no_wrap=True, overflow="ignore")
        for header, text, width in zip(self.headers, texts[:-1], widths[:-1], strict=False):
            filler = " " * (width - cell_len(text.plain))
            line.append_text(Text.assemble(filler, text) if header in self.right else Text.assemble(text, filler))
            line.append(" " * GAP)
        if is_below:
            yield line
            below = self.indent + 2 * INDENT
        else:
            below = cell_len(line.plain)
            first = message[0] if message else Text()
            if self.headers[-1] in self.right:
                line.append(" " * (widths[-1] - cell_len(first.plain)))
            yield line.append_text(first)
            message = message[1:]
        for rest in message:
            yield Text(" " * below, no_wrap=True, overflow="ignore").append_text(rest)


def _longest_word(rows: Iterable[Sequence[Text]]) -> int:
    """Columns of the longest word in the messages: it may be the name of an object, and is not broken."""
    messages = (row[-1].plain for row in rows if row and not row[-1].no_wrap)
    return max((cell_len(word) for message in messages for word in message.split()), default=0)


class Cut(msgspec.Struct, frozen=True):
    """A table between `head` and `foot`, with as many of its rows as the terminal has lines for.

    The others are counted; `hint` is the command that shows them.
    """

    head: RenderableType
    table: Table
    foot: RenderableType
    hint: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head, table, foot = (
            console.render_lines(part, options, pad=False) for part in (self.head, self.table, self.foot)
        )
        room = max(options.max_height - len(head) - len(foot), LEAST_TABLE)
        yield self.head
        if len(table) <= room:
            yield self.table
        else:
            rows = self.table.rows[: room - 2]
            yield msgspec.structs.replace(self.table, rows=rows)
            yield Text(f"… and {len(self.table.rows) - len(rows)} more: {self.hint}", "dim")
        yield self.foot


def _as_text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def marked(message: str, remedy: str = "", *, is_blocking: bool) -> RenderableType:
    """A warning: a mark, and the message with a hanging indent; below it what helps."""
    style = "red" if is_blocking else "yellow"
    warning = _Marked(Text(message, style), "! ", f"bold {style}")
    return Group(warning, helpful(remedy)) if remedy else warning


def helpful(remedy: str) -> RenderableType:
    """Remedy: a command, or the owner to contact."""
    return _Marked(Text(remedy), "-> ", "dim", 2 * INDENT)


class _Marked(msgspec.Struct, frozen=True):
    message: Text
    mark: str
    style: str
    indent: int = INDENT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mark = Text.assemble(" " * self.indent, (self.mark, self.style))
        indent = len(mark)
        for line in self.message.wrap(console, max(options.max_width - indent, 1)):
            yield mark.append_text(line)
            mark = Text(" " * indent)


def indented(text: Text) -> RenderableType:
    """A line, or several, behind an indent."""
    return Padding(text, (0, 0, 0, INDENT))


# -- live --------------------------------------------------------------------------------------------------------------


class Screen:
    """A picture that is redrawn in place on a terminal; without one, only the lines of `echo` are printed.

    It is as large as the terminal: lines that do not fit are counted, with `hint` at how to see them. `is_live`:
    whether there is a terminal to draw on, and it is to be used.
    """

    def __init__(self, console: Console, hint: str, *, is_live: bool = True) -> None:
        self.console = console
        self.is_live = is_live and console.is_terminal and not console.is_dumb_terminal
        self._hint = hint
        self._live: Live | None = None

    def echo(self, text: str) -> None:
        """A line that stays, above the picture."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The picture is on inside."""
        if not self.is_live:
            yield
            return
        with Live(console=self.console, auto_refresh=False, vertical_overflow="crop") as self._live:
            yield

    def show(self, picture: RenderableType, *, leaves_nothing: bool = False) -> None:
        """Replace the picture. `leaves_nothing`: if it is the last one, it is removed in the end."""
        if self._live is not None:
            self._live.transient = leaves_nothing
            self._live.update(self.fitted(picture), refresh=True)

    def fitted(self, picture: RenderableType) -> RenderableType:
        """Lines without trailing spaces, and an empty one for the cursor.

        The `^C` that a terminal echoes must not break a line, or the picture would be one line lower than assumed.
        """
        height = max(self.console.height - 2, LEAST_HEIGHT)
        options = self.console.options.copy()
        options.max_height = height
        drawn = self.console.render_lines(picture, options, pad=False)
        lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in drawn]
        if len(lines) > height:
            more = f"… and {len(lines) - height + 1} more lines: {self._hint}"
            lines = [*lines[: height - 1], Text(more, "dim", no_wrap=True, overflow="ellipsis")]
        for line in lines:
            line.rstrip()
        return Group(*lines, Text())
