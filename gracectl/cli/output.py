"""What commands print that is no picture or table: see paper for those."""

from __future__ import annotations

from typing import IO

import click

from gracectl.model.foreign import visible_lines


def say(text: str, *, err: bool = False, nl: bool = True, file: IO[str] | None = None) -> None:
    """Print a text, on stderr or stdout; nothing in it is obeyed by a terminal."""
    click.echo(visible_lines(text), err=err, nl=nl, file=file)
