"""The provider that the settings name, and how people are told that it cannot be had."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from gracectl.cloud.provider import Provider
from gracectl.cloud.registry import ProviderSettings, UnknownProvider, check_options, load_provider
from gracectl.config import ConfigError, Settings

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
