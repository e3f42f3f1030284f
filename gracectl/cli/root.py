"""`gracectl`: the commands and what they share."""

from __future__ import annotations

import click

from gracectl import __version__
from gracectl.cli.controller import controller
from gracectl.cli.demo import demo
from gracectl.cli.simulate import simulate

EPILOG = "Exit codes: 0 done; 1 gracectl failed; 2 bad usage or configuration; 3 the cluster refused or failed."


@click.group(
    name="gracectl", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="gracectl", message="%(prog)s %(version)s")
def root() -> None:
    """Ends Kubernetes nodes gracefully: cordons, drains and terminates them without breaking a PodDisruptionBudget."""


@root.command()
def version() -> None:
    """Print the version."""
    click.echo(f"gracectl {__version__}")


root.add_command(controller)
root.add_command(simulate)
root.add_command(demo)
