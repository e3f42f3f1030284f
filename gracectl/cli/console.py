"""Where a command prints for people: a terminal as wide as it is, or a file, whose lines need not end anywhere.

Invariants: without a terminal there are no colours, no line is broken, and none ends with spaces; nothing is sent to a
terminal that it would obey, but for the colours that are ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from gracectl.model.foreign import visible_lines

ENDLESS = 10_000
"""Columns where there is no terminal, unless $COLUMNS says how many."""


def paper(endless: int = ENDLESS) -> Console:
    """Stdout. `endless`: its columns where there is no terminal."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that knows no "…" gets a "?" instead of a traceback.
        sys.stdout.reconfigure(errors="replace")
    is_terminal = sys.stdout.isatty()
    is_limited = is_terminal or "COLUMNS" in os.environ
    return VisibleConsole(force_terminal=is_terminal, width=None if is_limited else endless)


class VisibleConsole(Console):
    """A console on which foreign text does nothing: its escapes are our own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        # The text of a segment comes from anywhere; colours are its style, and moves of the cursor control segments.
        return super()._render_buffer(
            each if each.control else Segment(visible_lines(each.text), each.style) for each in buffer
        )


def put(console: Console, what: RenderableType) -> None:
    """Print it."""
    click.echo(text_of(console, what))


def text_of(console: Console, what: RenderableType) -> str:
    """What would be printed, without the spaces with which tables fill their columns."""
    with console.capture() as captured:
        console.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


LEAST_HEIGHT = 2


class Screen:
    """As large as the terminal: of what does not fit the lines are counted, with `hint` at how to see them."""

    def __init__(self, console: Console, hint: str) -> None:
        self._console = console
        self._hint = hint
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """A line that stays, above the picture."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The picture is on inside."""
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as self._live:
            yield

    def show(self, picture: RenderableType, *, leaves_nothing: bool = False) -> None:
        """In the place of the one before. `leaves_nothing`: if it is the last one, it is taken away in the end."""
        if self._live is not None:
            self._live.transient = leaves_nothing
            self._live.update(self.fitted(picture), refresh=True)

    def fitted(self, picture: RenderableType) -> RenderableType:
        """Lines without spaces behind them, and an empty one for the cursor: the `^C` that a terminal shows where
        somebody presses it must not break a line, or the picture would be one line lower than it is thought to be."""
        drawn = self._console.render_lines(picture, pad=False)
        lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in drawn]
        height = max(self._console.height - 2, LEAST_HEIGHT)
        if len(lines) > height:
            more = f"… and {len(lines) - height + 1} more lines: {self._hint}"
            lines = [*lines[: height - 1], Text(more, "dim", no_wrap=True, overflow="ellipsis")]
        for line in lines:
            line.rstrip()
        return Group(*lines, Text())
