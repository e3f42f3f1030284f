"""Plain output of commands, and the name under which they were called.

gracectl runs on its own, or as the kubectl plugin `kubectl-grace`: commands that are printed start as the user's own.
Tables are printed by console.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from gracectl.model.foreign import visible_lines

NAME = "gracectl"
PLUGIN = "kubectl-grace"
"""kubectl runs the program of this name on PATH for `kubectl grace`."""


def echo(text: str, *, err: bool = False, nl: bool = True, file: IO[str] | None = None) -> None:
    """Print a text on stdout or stderr; control characters in it are escaped."""
    click.echo(visible_lines(text), err=err, nl=nl, file=file)


def program() -> str:
    """`gracectl`, or `kubectl grace`."""
    return "kubectl grace" if Path(sys.argv[0]).stem == PLUGIN else NAME


def command(*arguments: str) -> str:
    """Command line to type: `gracectl status -w worker-1`."""
    return " ".join((program(), *arguments))
