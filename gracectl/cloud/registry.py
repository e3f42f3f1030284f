"""Finds a provider by its name among the installed ones (entry-point group `gracectl.providers`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import msgspec

from gracectl.cloud.provider import Provider

GROUP = "gracectl.providers"


class ProviderSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which provider ends instances, and its own options (each provider documents and checks them)."""

    name: str = "none"
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class UnknownProvider(LookupError):
    """No installed provider has that name; the message lists those there are."""


def load_provider(settings: ProviderSettings) -> Provider:
    """Build the provider that `settings` names.

    Raises UnknownProvider, msgspec.ValidationError whose message holds the path of the option that does not fit, or
    ValueError whose message begins with the option that the provider cannot use (a file that is not there).
    """
    made_by = _provider_class(settings)
    provider: Provider = made_by(_options(made_by, settings))
    return provider


def check_options(settings: ProviderSettings) -> None:
    """Raises what `load_provider` does, but for what can only be seen where the provider is to run: its files."""
    _options(_provider_class(settings), settings)


def _provider_class(settings: ProviderSettings) -> Any:
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    entry = installed.get(settings.name)
    if entry is None:
        known = ", ".join(sorted(installed)) or "none is installed"
        raise UnknownProvider(f'there is no provider "{settings.name}"; installed: {known}')
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise UnknownProvider(f'provider "{settings.name}" cannot be loaded from {entry.value}: {error}') from error


def _options(made_by: Any, settings: ProviderSettings) -> Any:
    return msgspec.convert(dict(settings.options), made_by.Options)
