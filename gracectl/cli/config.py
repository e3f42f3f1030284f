"""`gracectl config`: the settings that count, and what they may be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import click
import msgspec
from click.core import ParameterSource

from gracectl.cli.failures import complain, told_to_people
from gracectl.cli.output import say
from gracectl.cli.providers import check_provider
from gracectl.config import read_settings
from gracectl.config.schema import schema
from gracectl.config.writing import as_builtins, as_yaml
from gracectl.model.foreign import visible_json


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings (YAML); default: all defaults."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    help="yaml: a settings file, with comments that say where its values are from; json: without them.",
)
@click.option("--schema", "wants_schema", is_flag=True, help="The JSON schema of the settings file instead.")
@click.pass_context
def config(context: click.Context, config: Path | None, output: Literal["yaml", "json"], wants_schema: bool) -> None:
    """Print the settings that count: those of the file, the defaults for what it leaves out, and the environment.

    A variable beats the file: GRACECTL__EVICTION__MAX_IN_FLIGHT=20 is eviction.maxInFlight. What is printed is itself a
    settings file, whole and checked; exit code 2 says that the file, or a variable, cannot be used. No cluster is
    asked. The page docs/settings.md explains every field.

    \b
      gracectl config --config settings.yaml          # what would count, and where from
      gracectl config --schema > settings.schema.json # for editors and checks
    """
    if wants_schema:
        for name in ("config", "output"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError("--schema is the same for all files, and JSON: give it alone")
        say(_json(schema()))
        return
    with told_to_people():
        reading = read_settings(config, os.environ)
        if unchecked := check_provider(reading.settings):
            complain(unchecked)
        if output == "json":
            say(_json(as_builtins(reading)))
        else:
            say(as_yaml(reading), nl=False)


def _json(what: object) -> str:
    return visible_json(msgspec.json.format(msgspec.json.encode(what), indent=2).decode())
