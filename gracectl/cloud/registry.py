"""Registry of installed providers (entry-point group `gracectl.providers`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import msgspec

from gracectl.cloud.provider import Provider

GROUP = "gracectl.providers"


class ProviderSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Name of the provider, and its own options (each provider documents and checks them)."""

    name: str = "none"
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class UnknownProvider(LookupError):
    """No installed provider has that name; the message lists the installed ones."""


def load_provider(settings: ProviderSettings) -> Provider:
    """Create the configured provider.

    Raises UnknownProvider, msgspec.ValidationError with the path of the invalid option, or ValueError with the option
    that the provider cannot use (a missing file) in front.
    """
    provider_class = _provider_class(settings)
    provider: Provider = provider_class(_options(provider_class, settings))
    return provider


def check_options(settings: ProviderSettings) -> None:
    """Raise what `load_provider` does, except for errors visible only where the provider runs: its files."""
    _options(_provider_class(settings), settings)


def _provider_class(settings: ProviderSettings) -> Any:
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    entry = installed.get(settings.name)
    if entry is None:
        known = ", ".join(sorted(installed)) or "none"
        raise UnknownProvider(f'unknown provider "{settings.name}"; installed: {known}')
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise UnknownProvider(f'provider "{settings.name}" cannot be loaded from {entry.value}: {error}') from error


def _options(provider_class: Any, settings: ProviderSettings) -> Any:
    return msgspec.convert(dict(settings.options), provider_class.Options)
