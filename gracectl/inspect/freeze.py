"""The freeze of a cluster, read once by a command."""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.inspect.leadership import Leadership
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE, LeaderElectionSettings
from gracectl.kube.resources import CONFIG_MAPS
from gracectl.model import names
from gracectl.model.meta import ConfigMap


def freeze_namespace(settings: LeaderElectionSettings, leadership: Leadership, others: Iterable[str] = ()) -> str:
    """Namespace of the controller, and so of its freeze: of the settings, else of its Lease, else the first of `others`
    that is known, else the usual one."""
    found = (settings.namespace, leadership.lease.partition("/")[0], *others, DEFAULT_NAMESPACE)
    return next(filter(None, found))


async def freeze_object(client: KubeClient, namespace: str) -> ConfigMap | None:
    """The ConfigMap of the freeze; None if there is none. Raises ApiError."""
    try:
        return await client.get(CONFIG_MAPS, (namespace, names.FREEZE))
    except NotFound:
        return None


async def fill_freeze(client: KubeClient, cluster: ClusterCache, namespace: str) -> None:
    """Read the freeze into the cache. Where it may not be read, the cache keeps what it has."""
    try:
        found = await freeze_object(client, namespace)
    except ApiError:
        return
    cluster.freezes.replace(() if found is None else (found,))
