"""`gracectl version`."""

from __future__ import annotations

import platform
from typing import Literal

import click

from gracectl import __version__
from gracectl.cli.output import echo, output_option


@click.command()
@output_option("text")
def version(output: Literal["text", "json", "yaml"]) -> None:
    """Print the version.

    -o json prints one object: version, python
    """
    if output == "text":
        echo(f"gracectl {__version__}")
    else:
        from gracectl.cli.report import structured  # which brings the client along

        echo(structured({"version": __version__, "python": platform.python_version()}, output))
