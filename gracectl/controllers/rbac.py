"""Permissions of the controller, checked before it starts; missing ones are reported together."""

from __future__ import annotations

from gracectl.kube.cache.reading import is_served
from gracectl.kube.client import KubeClient
from gracectl.kube.rbac import Permission
from gracectl.kube.requests import Key
from gracectl.kube.resources import (
    CONFIG_MAPS,
    DRAIN_RULES,
    LEASES,
    MACHINES,
    NODE_BUDGETS,
    NODE_CLAIM_VERSIONS,
    NODE_DRAINS,
    ROLLOUTS,
)
from gracectl.model import names
from gracectl.model.names import KARPENTER_GROUP

RIGHTS = (
    *(Permission(verb, "nodes") for verb in ("get", "list", "watch", "patch", "delete")),
    Permission("patch", "nodes", subresource="status"),
    *(Permission(verb, "pods") for verb in ("get", "list", "watch", "delete")),
    Permission("patch", "pods", subresource="status"),
    Permission("create", "pods", subresource="eviction"),
    *(Permission(verb, "poddisruptionbudgets", "policy") for verb in ("list", "watch")),
    *(Permission(verb, "volumeattachments", "storage.k8s.io") for verb in ("list", "watch")),
    Permission("get", "persistentvolumeclaims"),
    *(Permission(verb, "events") for verb in ("create", "patch")),
)
"""Permissions on a cluster without node claims."""

CLAIM_RIGHTS = (
    *(Permission(verb, "nodeclaims", KARPENTER_GROUP) for verb in ("get", "list", "watch", "patch", "delete")),
    Permission("patch", "nodeclaims", KARPENTER_GROUP, "status"),
)
"""Also where the cluster has node claims."""

NODE_BUDGET_RIGHTS = (
    *(Permission(verb, NODE_BUDGETS.plural, NODE_BUDGETS.group) for verb in ("get", "list", "watch")),
    Permission("patch", NODE_BUDGETS.plural, NODE_BUDGETS.group, "status"),
)
"""Also where the cluster has node disruption budgets."""

NODE_DRAIN_RIGHTS = (
    *(Permission(verb, NODE_DRAINS.plural, NODE_DRAINS.group) for verb in ("list", "watch", "patch", "delete")),
    Permission("patch", NODE_DRAINS.plural, NODE_DRAINS.group, "status"),
)
"""Also where the cluster has NodeDrains; `delete`: when their time to live has passed."""

REPLACE_FIRST_RIGHTS = (
    Permission("patch", "pods"),
    *(Permission("get", plural, "apps") for plural in ("replicasets", "deployments")),
    *(Permission("get", plural) for plural in ("namespaces", "persistentvolumes")),
    *(Permission("list", plural) for plural in ("services", "resourcequotas")),
    Permission("list", "networkpolicies", "networking.k8s.io"),
)
"""Also to replace pods before their eviction (docs/replace-first.md)."""

ROLLOUT_RIGHTS = (Permission("get", ROLLOUTS.plural, ROLLOUTS.group),)
"""Also to do that where the cluster has Rollouts of Argo."""

CLUSTER_API_RIGHTS = (
    *(Permission(verb, MACHINES.plural, MACHINES.group) for verb in ("list", "watch")),
    Permission("list", DRAIN_RULES.plural, DRAIN_RULES.group),
)
"""Also to assist drains of Cluster API."""


def lease_rights(lease: Key) -> tuple[Permission, ...]:
    """Also for leader election by that Lease; `create` cannot be granted by name."""
    namespace, name = lease
    verbs = ("get", "list", "watch", "update")
    of_name = tuple(Permission(verb, "leases", LEASES.group, namespace=namespace, name=name) for verb in verbs)
    return (*of_name, Permission("create", "leases", LEASES.group, namespace=namespace))


def freeze_rights(namespace: str) -> tuple[Permission, ...]:
    """Also to watch the ConfigMap of a freeze."""
    verbs = ("list", "watch")
    return tuple(Permission(verb, CONFIG_MAPS.plural, namespace=namespace, name=names.FREEZE) for verb in verbs)


class MissingPermissions(Exception):
    """Permissions of the controller are missing; `rights` lists them."""

    def __init__(self, rights: tuple[Permission, ...]) -> None:
        super().__init__("the credentials do not allow to " + "; ".join(str(right) for right in rights))
        self.rights = rights


async def rights_for(client: KubeClient, lease: Key | None = None, *, replaces: bool = False) -> tuple[Permission, ...]:
    """Permissions that the controller needs on this cluster; `lease` None: without leader election. `replaces`: pods
    are replaced before their eviction. Raises ApiError."""
    claims = CLAIM_RIGHTS if await is_served(client, NODE_CLAIM_VERSIONS) else ()
    budgets = NODE_BUDGET_RIGHTS if await is_served(client, (NODE_BUDGETS,)) else ()
    drains = NODE_DRAIN_RIGHTS if await is_served(client, (NODE_DRAINS,)) else ()
    replacing = await replace_first_rights(client) if replaces else ()
    return RIGHTS + claims + budgets + drains + replacing + (() if lease is None else lease_rights(lease))


async def replace_first_rights(client: KubeClient) -> tuple[Permission, ...]:
    """Permissions to replace pods before their eviction on this cluster. Raises ApiError."""
    return REPLACE_FIRST_RIGHTS + (ROLLOUT_RIGHTS if await is_served(client, (ROLLOUTS,)) else ())
