"""`gracectl`: the commands and what they share."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from gracectl import __version__
from gracectl.cli.commands import COMMANDS, GROUPS, examples_of
from gracectl.cli.output import command, echo
from gracectl.telemetry import logs

EPILOG = (
    "Exit codes: 0 done; 1 gracectl failed; 2 bad usage or configuration; 3 the cluster refused or failed; 4 the time "
    "limit of --timeout has passed; the work continues."
)


class Extra(NamedTuple):
    """Extra of the distribution: the package that it installs, the module to import, and the command that installs it.

    The command runs in a checkout. Nothing is published, and `pip install gracectl[demo]` would take unclaimed names
    from the index.
    """

    name: str
    package: str
    module: str
    command: str


_DEMO: Final = Extra("demo", "kubesim", "kubesim", "pip install ./kubesim .")
EXTRAS: Final[Mapping[str, Extra]] = {
    "agent": Extra("agent", "dbus-fast", "dbus_fast", "pip install '.[agent]'"),
    "demo": _DEMO,
    "simulate": _DEMO,
}
"""Commands that need an extra. The code that reads settings names extras for settings (provider `aws`)."""


class Commands(click.Group):
    """Group that imports a command when it is used: the controller does not load the embedded cluster."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        if cmd_name == help_command.name:
            return help_command
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if (extra := EXTRAS.get(cmd_name)) is not None and find_spec(extra.module) is None:
            return _without(extra, cmd_name)
        found: click.Command = getattr(import_module(f"gracectl.cli.{entry.module}"), cmd_name)
        examples = (f"  # {why}\n  {command(line)}" for line, why in examples_of(cmd_name))
        found.epilog = "\b\nExamples:\n" + "\n".join(examples)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Override click: for an unknown command, suggest a similar one."""
        wanted = args[0]
        if (
            wanted not in COMMANDS
            and not wanted.startswith("-")
            and (similar := get_close_matches(wanted, COMMANDS, n=1))
        ):
            ctx.fail(f"No such command {wanted!r}; did you mean {similar[0]}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """See click; imports no command."""
        found = (name for name in COMMANDS if name.startswith(incomplete))
        items = [CompletionItem(name, help=COMMANDS[name].summary) for name in found]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click; prints groups, and imports no command."""
        width = max(map(len, COMMANDS))
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])


@click.command("help")
@click.argument("name", required=False, metavar="[COMMAND]")
@click.pass_context
def help_command(context: click.Context, name: str | None) -> None:
    """Print the help of gracectl, or of a command."""
    group = context.find_root()
    if name is None:
        echo(group.get_help())
        return
    assert isinstance(group.command, Commands)
    name, found, _ = group.command.resolve_command(group, [name])
    assert found is not None
    with click.Context(found, parent=group, info_name=name) as nested:
        echo(found.get_help(nested))


def _without(extra: Extra, name: str) -> click.Command:
    """Placeholder of a command that says what to install."""

    from gracectl.cli.failures import MISUSED, fail  # imports the client

    def refuse(arguments: tuple[str, ...]) -> None:
        fail(f"{name}: {extra.package} is not installed; run in a checkout of gracectl: {extra.command}", MISUSED)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        help=f"{COMMANDS[name].summary}\n\nNeeds {extra.package}. Run in a checkout of gracectl: {extra.command}",
        context_settings={"ignore_unknown_options": True},
    )


@click.group(
    cls=Commands,
    name="gracectl",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="gracectl", message="%(prog)s %(version)s")
def root() -> None:
    """Terminates Kubernetes nodes gracefully: cordons and drains them without breaking a PodDisruptionBudget."""
    if not gc.isenabled():
        # Modules stay loaded: collecting them, above all at exit, takes a quarter of a short command's time.
        gc.freeze()
        gc.enable()
    logs.silence()  # commands print their own messages
