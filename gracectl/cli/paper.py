"""Where a command prints for people: a terminal as wide as it is, or a file, whose lines need not end anywhere.

Invariant: without a terminal there are no colours, no line is broken, and none ends with spaces.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import click
from rich.console import Console, RenderableType

ENDLESS = 10_000
"""Columns where there is no terminal, unless $COLUMNS says how many."""


def paper(endless: int = ENDLESS) -> Console:
    """Stdout. `endless`: its columns where there is no terminal."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that knows no "…" gets a "?" instead of a traceback.
        sys.stdout.reconfigure(errors="replace")
    is_terminal = sys.stdout.isatty()
    is_limited = is_terminal or "COLUMNS" in os.environ
    return Console(force_terminal=is_terminal, width=None if is_limited else endless)


def put(console: Console, what: RenderableType) -> None:
    """Print it."""
    click.echo(text_of(console, what))


def text_of(console: Console, what: RenderableType) -> str:
    """What would be printed, without the spaces with which tables fill their columns."""
    with console.capture() as captured:
        console.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
