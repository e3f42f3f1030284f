"""`gracectl config`: the effective settings, and their schema."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click
import msgspec
from click.core import ParameterSource

from gracectl.cli.failures import print_error, reporting_errors
from gracectl.cli.output import Choice, echo
from gracectl.cloud.provider import Provider, ProviderSettings, UnknownProvider, check_options, load_provider
from gracectl.config import ConfigError, Settings, read_settings
from gracectl.config.fields import schema
from gracectl.config.output import as_builtins, as_yaml
from gracectl.model.encoding import INDENTED, encode
from gracectl.model.foreign import visible_json


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings (YAML); default: all defaults."
)
@click.option(
    "-o",
    "--output",
    type=Choice(["yaml", "json"]),
    default="yaml",
    help="yaml: a settings file with comments that name the source of each value; json: without comments.",
)
@click.option("--schema", "wants_schema", is_flag=True, help="The JSON schema of the settings file instead.")
@click.pass_context
def config(context: click.Context, config: Path | None, output: Literal["yaml", "json"], wants_schema: bool) -> None:
    """Print the effective settings, and where each is from.

    They come from the file, the environment and the defaults. A variable overrides the file:
    GRACECTL__EVICTION__MAX_IN_FLIGHT=20 sets eviction.maxInFlight. The output is itself a valid settings file. Exit
    code 2: the file or a variable is invalid. No cluster is contacted. docs/settings.md explains every field.
    """
    if wants_schema:
        for name in ("config", "output"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError("--schema does not depend on a file or format: give it alone")
        echo(_json(schema()))
        return
    with reporting_errors():
        reading = read_settings(config, os.environ)
        if unchecked := check_provider(reading.settings):
            print_error(unchecked)
        if output == "json":
            echo(_json(as_builtins(reading)))
        else:
            echo(as_yaml(reading), nl=False)


def _json(what: object) -> str:
    return visible_json(encode(what, INDENTED).decode())


_TEXT_WITHOUT_QUOTES = re.compile(r"Expected `str.*`, got `(bool|int|float)`")
"""Such as an account number: YAML reads it as a number, without leading zeros."""


def provider_of(settings: Settings) -> Provider:
    """Build the provider, without any connection. Raises ConfigError."""
    with _explained(settings.provider):
        return load_provider(settings.provider)


def check_provider(settings: Settings) -> str:
    """Raise ConfigError for invalid options of the provider. Returns a message if they cannot be checked: a
    provider may be installed only where the controller runs."""
    try:
        with _explained(settings.provider):
            check_options(settings.provider)
    except ConfigError as error:
        if not isinstance(error.__cause__, UnknownProvider):
            raise
        return f"{error}; its options are not checked"
    return ""


@contextmanager
def _explained(settings: ProviderSettings) -> Iterator[None]:
    try:
        yield
    except UnknownProvider as error:
        raise ConfigError(f"provider.name: {error}") from error
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        field = f"provider.options{place.rstrip('`')}"
        remedy = "; put it in quotes" if _TEXT_WITHOUT_QUOTES.fullmatch(reason) else ""
        raise ConfigError(f"{field}: {reason}{remedy} (provider {settings.name})") from error
    except ValueError as error:
        raise ConfigError(f"provider.options.{error} (provider {settings.name})") from error
