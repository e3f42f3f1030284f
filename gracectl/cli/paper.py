"""Where a command prints for people: a terminal as wide as it is, or a file, whose lines need not end anywhere.

Invariants: without a terminal there are no colours, no line is broken, and none ends with spaces; nothing is sent to a
terminal that it would obey, but for the colours that are ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper

import click
from rich.console import Console, RenderableType
from rich.segment import Segment

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
