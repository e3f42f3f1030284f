"""`gracectl`: the commands and what they share."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

from gracectl import __version__
from gracectl.cli.output import echo
from gracectl.telemetry import logs

EPILOG = (
    "Exit codes: 0 done; 1 gracectl failed; 2 bad usage or configuration; 3 the cluster refused or failed; 4 the time "
    "given with --timeout is over, and the work goes on."
)

COMMANDS = {
    "agent": "agent.command",
    "budgets": "budgets.command",
    "config": "config",
    "controller": "controller",
    "crds": "crds",
    "demo": "demo",
    "drain": "drain.command",
    "plan": "plan.command",
    "simulate": "simulate",
    "status": "status.command",
    "terminate": "drain.command",
    "uncordon": "uncordon",
    "uninstall": "uninstall.command",
}
"""The module of each command, which is an attribute of its own name there."""
SIMULATED = {
    "demo": "Drain nodes of a simulated cluster, and watch.",
    "simulate": "Run a simulated cluster, for kubectl and for controllers.",
}
"""Commands that need kubesim, with their help where it is not installed."""


class Commands(click.Group):
    """Commands that are imported when they are used: the controller carries no embedded cluster about with it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        if cmd_name in SIMULATED and find_spec("kubesim") is None:
            return _without_kubesim(cmd_name)
        command: click.Command = getattr(import_module(f"gracectl.cli.{COMMANDS[cmd_name]}"), cmd_name)
        return command


def _without_kubesim(name: str) -> click.Command:
    """The command of that name, which says what to install."""

    from gracectl.cli.failures import MISUSED, fail  # which brings the client along

    def refuse(arguments: tuple[str, ...]) -> None:
        fail(f"{name}: kubesim is not installed; pip install 'gracectl[demo]'", MISUSED)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        help=f"{SIMULATED[name]} Needs: pip install 'gracectl[demo]'",
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
    """Ends Kubernetes nodes gracefully: cordons, drains and terminates them without breaking a PodDisruptionBudget."""
    logs.silence()  # a command itself says what people are to know


@root.command()
def version() -> None:
    """Print the version."""
    echo(f"gracectl {__version__}")
