"""`gracectl version`."""

from __future__ import annotations

import platform
from typing import Literal

import click
import msgspec

from gracectl import __version__
from gracectl.cli.output import echo, output_option


class VersionReport(msgspec.Struct, frozen=True):
    """Version of the program, and of the Python that runs it."""

    version: str
    python: str


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

        echo(structured(VersionReport(__version__, platform.python_version()), output))
