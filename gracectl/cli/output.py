"""What commands print that is no picture or table: see paper for those."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from gracectl.model.foreign import visible_lines


def say(text: str, *, err: bool = False, nl: bool = True, file: IO[str] | None = None) -> None:
    """Print a text, on stderr or stdout; nothing in it is obeyed by a terminal."""
    click.echo(visible_lines(text), err=err, nl=nl, file=file)


NAME = "gracectl"
PLUGIN = "kubectl-grace"
"""kubectl runs the program of this name on PATH for `kubectl grace`."""


def program() -> str:
    """`gracectl`, or `kubectl grace`."""
    return "kubectl grace" if Path(sys.argv[0]).stem == PLUGIN else NAME


def command(*arguments: str) -> str:
    """What to type: `gracectl status -w worker-1`."""
    return " ".join((program(), *arguments))
