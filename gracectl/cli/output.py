"""Plain output of commands, and the name under which they were called.

gracectl runs on its own, or as the kubectl plugin `kubectl-grace`: commands that are printed start as the user's own.
Tables are printed by console. The option -o is the same in every command: a table, or one object for programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

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


Command = TypeVar("Command", bound=Callable[..., Any])
Output = Literal["table", "wide", "json", "yaml"]
"""wide: a table with all columns, as long as its lines may be."""


class Choice(click.Choice[str]):
    """A choice that names the one that is meant, if a word is like it."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """See click."""
        similar = get_close_matches(str(value), self.choices, n=1)
        meant = f" Did you mean {similar[0]!r}?" if similar else ""
        return super().get_invalid_choice_message(value, ctx) + meant


def output_option(*tables: str, help: str = "json, yaml: one object.") -> Callable[[Command], Command]:
    """The option; `tables`: its values for people, of which the first is the default."""
    values = (*tables, "json", "yaml")
    return click.option("-o", "--output", type=Choice(values), default=tables[0], help=help)


WIDE = "wide: all columns, regardless of the terminal's width; json, yaml: one object."


def is_structured(output: str) -> bool:
    """Whether a program reads it."""
    return output in ("json", "yaml")
