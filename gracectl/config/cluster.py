"""Settings of the controller in the cluster: the ConfigMap of the chart, found by its labels.

Every tenant can label a ConfigMap, and the role `edit` writes Leases, too. So ConfigMaps in the namespace of a usual
installation come first; elsewhere only one next to a Lease of the controller counts. Invariant: none is guessed. Of
several the caller has to name one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gracectl.config.errors import ConfigError
from gracectl.config.loading import LoadedSettings, read_config_map
from gracectl.inspect.leadership import read_leases
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden, NotFound
from gracectl.kube.leader.settings import LeaderElectionSettings
from gracectl.kube.requests import Key, Selection
from gracectl.kube.resources import CONFIG_MAPS
from gracectl.model import names
from gracectl.model.meta import ConfigMap, natural_key
from gracectl.policy.explain import listed

USUAL_KEY: Final[Key] = ("gracectl", "gracectl")
"""Namespace and name in an installation as documented, for those who may not list ConfigMaps."""


async def read_cluster_settings(
    client: KubeClient, environ: Mapping[str, str], key: Key | None = None
) -> LoadedSettings | None:
    """The settings in the ConfigMap `key`, or in the only one that `find_config_maps` finds; None: there is none.

    Variables of the environment override them. Raises ConfigError: invalid, or several; Forbidden: it may not be
    looked for; ApiError.
    """
    found = await find_config_maps(client) if key is None else [await client.get(CONFIG_MAPS, key)]
    if len(found) > 1:
        raise ConfigError(several(found))
    if not found:
        return None
    try:
        return read_config_map(found[0], environ)
    except ConfigError as error:
        raise ConfigError(f"{error}; correct it, or give other settings with --config FILE") from error


async def find_config_maps(client: KubeClient) -> Sequence[ConfigMap]:
    """ConfigMaps with settings, in namespaces of a controller. Raises Forbidden, ApiError."""
    try:
        labeled = await read_all(client, CONFIG_MAPS, Selection(labels=names.SETTINGS_SELECTOR))
    except Forbidden as refusal:
        try:
            return [await client.get(CONFIG_MAPS, USUAL_KEY)]
        except (Forbidden, NotFound):
            raise refusal from None
    usual = [each for each in labeled if each.namespace == USUAL_KEY[0]]
    if usual or not labeled:
        return usual
    try:
        leases = await read_leases(client, LeaderElectionSettings())
    except ApiError:
        return labeled
    namespaces = {lease.namespace for lease in leases}
    return [each for each in labeled if each.namespace in namespaces]


def several(found: Sequence[ConfigMap]) -> str:
    """Why none of these is taken."""
    known = sorted((each.full_name for each in found), key=natural_key)
    return (
        f"settings: {len(known)} ConfigMaps have the labels of the chart: {listed(known)}; "
        "choose one with --config-map NAMESPACE/NAME, or give --config FILE"
    )
