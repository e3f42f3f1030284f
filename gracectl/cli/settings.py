"""Settings of commands that evaluate nodes as the controller does: the file of --config, else the controller's settings
in the ConfigMap of the chart.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import click
import msgspec

from gracectl.cli.failures import print_error
from gracectl.cli.options import ClusterTarget, target_options
from gracectl.config import Settings, read_settings
from gracectl.config.cluster import read_cluster_settings
from gracectl.inspect.leadership import Leadership, LeaderState
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.requests import Key

REFUSED: Final = (
    "settings: defaults are assumed: may not list ConfigMaps; give --config FILE, or grant it (docs/permissions.md)"
)


class EffectiveSettings(msgspec.Struct, frozen=True):
    """Settings that count for a command. `source`: `file PATH`, `configmap NAMESPACE/NAME` or `defaults`.

    `is_refused`: the ConfigMap of the controller may not be read.
    """

    settings: Settings
    source: str
    is_refused: bool = False

    @property
    def namespace(self) -> str:
        """Namespace of the ConfigMap; "" if the settings are from elsewhere."""
        prefix = "configmap "
        return self.source.removeprefix(prefix).partition("/")[0] if self.source.startswith(prefix) else ""

    @property
    def is_default(self) -> bool:
        """Whether no settings were found."""
        return self.source == "defaults"


class SettingsSource:
    """Where a command gets its settings from. A file is read immediately, before any cluster is contacted."""

    def __init__(self, target: ClusterTarget) -> None:
        """Raises ConfigError."""
        self._key = target.config_map
        self._given = read_settings(target.config, os.environ)

    async def read(self, client: KubeClient, *, is_silent: bool = False) -> EffectiveSettings:
        """The settings that count. Raises ConfigError, ApiError. A refusal leaves the defaults, and is printed unless
        `is_silent`."""
        given = EffectiveSettings(self._given.settings, self._given.source)
        if not given.is_default:
            return given
        try:
            found = await read_cluster_settings(client, os.environ, self._key)
        except Forbidden:
            if self._key is not None:
                raise
            if not is_silent:
                print_error(REFUSED)
            return msgspec.structs.replace(given, is_refused=True)
        return given if found is None else EffectiveSettings(found.settings, found.source)


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `cluster_options`, and which ConfigMap has the settings."""

    @target_options("Settings (YAML); default: the controller's own, from its ConfigMap.")
    @click.option(
        "--config-map",
        metavar="NAMESPACE/NAME",
        callback=_key,
        help="ConfigMap with the settings; default: the only one with the labels of the chart.",
    )
    @wraps(command)
    def with_options(*arguments: Any, target: ClusterTarget, config_map: Key | None, **others: Any) -> None:
        if config_map and target.config is not None:
            raise click.UsageError("give --config or --config-map, not both")
        command(*arguments, target=msgspec.structs.replace(target, config_map=config_map), **others)

    return with_options


def _key(context: click.Context, parameter: click.Parameter, text: str | None) -> Key | None:
    if text is None:
        return None
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise click.BadParameter(f"{text!r} is not NAMESPACE/NAME, such as gracectl/gracectl.")
    return namespace, name


def installation_note(effective: EffectiveSettings, leadership: Leadership) -> str:
    """First line of a forecast: its assumption about the controller; "" if one leads, or if that is unknown."""
    if leadership.state is LeaderState.NONE:
        return f"no controller leads: {leadership.reason}; the forecast assumes one"
    if leadership.is_absent and effective.source.startswith("configmap "):
        lease = effective.settings.leader_election.name
        return f"no controller leads: there is no Lease {lease}; the forecast assumes one"
    if leadership.is_absent and not effective.is_refused:
        has = "default settings" if effective.is_default else f"the settings of {effective.source}"
        return f"gracectl is not installed on this cluster; the forecast assumes it, with {has} (docs/install.md)"
    return ""
