"""Times that somebody gives on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

from gracectl.model.durations import parse_seconds

Callback = Callable[[click.Context, click.Parameter, str | None], float | None]


def duration(zero: str) -> Callback:
    """For an option that takes a Go duration, or a bare number of seconds; `zero`: what 0 does."""

    def parsed(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        try:
            found = float(text) if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text) else parse_seconds(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}; write it as 10m, 1h30m or 90s, or as a number of seconds.") from error
        if found < 0:
            raise click.BadParameter(f"{text} is negative; 0 {zero}.")
        return found

    return parsed
