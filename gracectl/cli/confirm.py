"""Confirmation of commands that cannot be undone: a question on a terminal, `--yes` elsewhere."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import click

from gracectl.cli.failures import fail
from gracectl.cli.output import echo

Command = TypeVar("Command", bound=Callable[..., None])

CANCELLED = 128 + signal.SIGINT
"""Exit code of a command that was not confirmed, the same as after an interruption."""


def yes_option(command: Command) -> Command:
    """`--yes`; the command gets it as its argument `yes`."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal.")(
        command
    )


def require_confirmation(*, yes: bool) -> None:
    """Raise UsageError if the command cannot ask for confirmation later."""
    if not yes and not _can_ask():
        raise click.UsageError("nothing was changed: no terminal to ask for confirmation; give --yes")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on stderr; the command ends here unless the answer is yes."""
    if yes:
        return
    _forget_input()
    answer = ""
    try:
        echo(f"{question} [y/N] ", err=True, nl=False)
        answer = sys.stdin.readline()
    finally:
        if not answer.endswith("\n"):  # Ctrl-C or Ctrl-D: the next message starts a line
            echo("", err=True)
    if answer.strip().lower() not in {"y", "yes"}:
        fail("cancelled; nothing was changed", CANCELLED)


def _forget_input() -> None:
    """Discard what was typed before the question."""
    try:
        from termios import TCIFLUSH, error, tcflush  # not on every platform
    except ImportError:
        return
    with suppress(OSError, ValueError, error):
        tcflush(sys.stdin, TCIFLUSH)


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
