"""`gracectl config`: the settings that count, and what they may be."""

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
from gracectl.cli.notation import Choice
from gracectl.cli.output import echo
from gracectl.cloud.provider import Provider, ProviderSettings, UnknownProvider, check_options, load_provider
from gracectl.config import ConfigError, Settings, read_settings
from gracectl.config.fields import schema
from gracectl.config.output import as_builtins, as_yaml
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
    help="yaml: a settings file, with comments that say where its values are from; json: without them.",
)
@click.option("--schema", "wants_schema", is_flag=True, help="The JSON schema of the settings file instead.")
@click.pass_context
def config(context: click.Context, config: Path | None, output: Literal["yaml", "json"], wants_schema: bool) -> None:
    """Print the effective settings, and where each is from.

    Those of the file, the defaults for what it leaves out, and the environment. A variable beats the file:
    GRACECTL__EVICTION__MAX_IN_FLIGHT=20 is eviction.maxInFlight. What is printed is itself a settings file, whole and
    checked; exit code 2 says that the file, or a variable, cannot be used. No cluster is asked. The page
    docs/settings.md explains every field.
    """
    if wants_schema:
        for name in ("config", "output"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError("--schema is the same for all files, and JSON: give it alone")
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
    return visible_json(msgspec.json.format(msgspec.json.encode(what), indent=2).decode())


_TEXT_WITHOUT_QUOTES = re.compile(r"Expected `str.*`, got `(bool|int|float)`")
"""Such as the number of an account: YAML takes it for something else, and may have lost its leading zeros."""


def provider_of(settings: Settings) -> Provider:
    """Built, as far as that takes no connection. Raises ConfigError."""
    with _told(settings.provider):
        return load_provider(settings.provider)


def check_provider(settings: Settings) -> str:
    """Raises ConfigError for options that it does not take. Returns what could not be checked: a provider may be
    installed only where it is to run."""
    try:
        with _told(settings.provider):
            check_options(settings.provider)
    except ConfigError as error:
        if not isinstance(error.__cause__, UnknownProvider):
            raise
        return f"{error}; here its options are not checked"
    return ""


@contextmanager
def _told(settings: ProviderSettings) -> Iterator[None]:
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
