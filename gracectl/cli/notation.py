"""Option -o/--output, the same in every command: a table for people, or one object for programs."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

import click

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
