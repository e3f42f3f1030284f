"""`gracectl config`: the effective settings, and their schema."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import click
import msgspec
from click.core import ParameterSource

from gracectl.app.apprise_sender import AppriseSender
from gracectl.app.notifications import Send
from gracectl.cli.failures import print_error, reporting_errors
from gracectl.cli.output import Choice, echo
from gracectl.cloud.provider import Provider, UnknownProvider, check_options, load_provider
from gracectl.config import ConfigError, Settings, read_settings
from gracectl.config.fields import schema
from gracectl.config.output import as_builtins, as_yaml
from gracectl.interruption.source import Source, check_source, load_source
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
        for unchecked in check_plugins(reading.settings):
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
    with _explained("provider", "provider", settings.provider.name):
        return load_provider(settings.provider)


def sources_of(settings: Settings) -> tuple[Source, ...]:
    """Build the sources of interruptions, without any connection. Raises ConfigError."""
    found = []
    for number, each in enumerate(settings.interruption.sources):
        with _explained(f"interruption.sources[{number}]", "source", each.name):
            found.append(load_source(each))
    return tuple(found)


def notifications_of(settings: Settings) -> Send | None:
    """How notifications are sent; None: none are sent. Raises ConfigError."""
    if not settings.notifications.url_file:
        return None
    sender = AppriseSender(settings.notifications.url_file)
    try:
        sender.check()
    except ValueError as error:
        raise ConfigError(f"notifications.{error}") from error
    return sender.send


def check_plugins(settings: Settings) -> Iterator[str]:
    """Raise ConfigError for invalid options of the provider and of sources. Yields a message for each plugin that
    cannot be checked: it may be installed only where the controller runs."""
    sources = settings.interruption.sources
    checks = [("provider", "provider", settings.provider.name, partial(check_options, settings.provider))]
    checks += [
        (f"interruption.sources[{number}]", "source", each.name, partial(check_source, each))
        for number, each in enumerate(sources)
    ]
    for field, noun, name, check in checks:
        try:
            with _explained(field, noun, name):
                check()
        except ConfigError as error:
            if not isinstance(error.__cause__, UnknownProvider):
                raise
            yield f"{error}; its options are not checked"


@contextmanager
def _explained(field: str, noun: str, name: str) -> Iterator[None]:
    try:
        yield
    except UnknownProvider as error:
        raise ConfigError(f"{field}.name: {error}") from error
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        remedy = "; put it in quotes" if _TEXT_WITHOUT_QUOTES.fullmatch(reason) else ""
        raise ConfigError(f"{field}.options{place.rstrip('`')}: {reason}{remedy} ({noun} {name})") from error
    except ValueError as error:
        raise ConfigError(f"{field}.options.{error} ({noun} {name})") from error
