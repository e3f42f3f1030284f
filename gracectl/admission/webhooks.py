"""The webhooks: rule, path and failure policy of each; the permissions that serving them needs; their removal.

Without a running gracectl nodes can join, and claims and budgets can be written. Ready nodes cannot be deleted, as
their budgets would not be evaluated, unless the settings accept that risk; so are claims with a node, as another owner
deletes the claim first. Nodes that are not Ready, claims without a node, and what is being deleted are exempt: a match
condition keeps API servers from calling.

Who can write a webhook configuration is cluster-admin in effect. So the controller only reads them;
`registration.py` writes them, for `gracectl webhooks`.

Invariant of the removal: only objects that are provably gracectl's are deleted: by their label, or, for a configuration
that a chart has created, by the names of all its webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from gracectl.admission.settings import AdmissionSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.rbac import Permission
from gracectl.kube.requests import Key
from gracectl.kube.resources import (
    MUTATING_WEBHOOKS,
    NODE_BUDGETS,
    NODE_CLAIM_VERSIONS,
    NODE_DRAINS,
    NODES,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from gracectl.model import names

Kind = Literal["mutating", "validating"]

IS_AVAILABLE: Final = (
    "!has(oldObject.metadata.deletionTimestamp) && has(oldObject.status) && has(oldObject.status.conditions) && "
    f"oldObject.status.conditions.exists(c, c.type == '{names.READY}' && c.status == '{names.TRUE}')"
)
"""policy.nodebudgets.is_available, in CEL."""

HAS_NODE: Final = (
    "!has(oldObject.metadata.deletionTimestamp) && has(oldObject.status) && "
    "(has(oldObject.status.nodeName) || has(oldObject.status.providerID))"
)
"""Whether a claim that is not being deleted may have a node, in CEL."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook. `short`: name in metrics and logs; `is_needed`: without a response the write fails, if the settings
    say so."""

    name: str
    short: str
    path: str
    kind: Kind
    operations: tuple[str, ...]
    group: str
    versions: tuple[str, ...]
    resource: str
    condition: tuple[str, str] | None = None
    """Name and CEL expression of the match condition."""
    is_needed: bool = False
    has_side_effects: bool = False
    """A request changes something, except in a dry run."""


def _of(resource: Resource[Any], *versions: str) -> Mapping[str, Any]:
    return {"group": resource.group, "versions": versions or (resource.version,), "resource": resource.plural}


_OF_CLAIMS: Final = _of(NODE_CLAIM_VERSIONS[0], *(each.version for each in NODE_CLAIM_VERSIONS))

NODE_CREATE_WEBHOOK: Final = Webhook(
    name=names.NODE_CREATION_WEBHOOK,
    short="node-create",
    path="/mutate/nodes",
    kind="mutating",
    operations=("CREATE",),
    **_of(NODES),
)
NODE_DELETE_WEBHOOK: Final = Webhook(
    name=names.NODE_DELETION_WEBHOOK,
    short="node-delete",
    path="/validate/nodes",
    kind="validating",
    operations=("DELETE",),
    condition=("available", IS_AVAILABLE),
    is_needed=True,
    has_side_effects=True,
    **_of(NODES),
)
NODE_BUDGET_WEBHOOK: Final = Webhook(
    name=names.NODE_BUDGET_WEBHOOK,
    short="nodedisruptionbudget",
    path="/validate/nodedisruptionbudgets",
    kind="validating",
    operations=("CREATE", "UPDATE"),
    **_of(NODE_BUDGETS),
)
NODE_CLAIM_WEBHOOK: Final = Webhook(
    name=names.NODE_CLAIM_WEBHOOK,
    short="nodeclaim",
    path="/validate/nodeclaims",
    kind="validating",
    operations=("CREATE", "UPDATE"),
    **_OF_CLAIMS,
)
NODE_CLAIM_DELETE_WEBHOOK: Final = Webhook(
    name=names.NODE_CLAIM_DELETION_WEBHOOK,
    short="nodeclaim-delete",
    path="/validate/nodeclaims/deletion",
    kind="validating",
    operations=("DELETE",),
    condition=("has-node", HAS_NODE),
    is_needed=True,
    has_side_effects=True,
    **_OF_CLAIMS,
)
NODE_DRAIN_REQUESTER_WEBHOOK: Final = Webhook(
    name=names.NODE_DRAIN_REQUESTER_WEBHOOK,
    short="nodedrain-requester",
    path="/mutate/nodedrains",
    kind="mutating",
    operations=("CREATE", "UPDATE"),
    **_of(NODE_DRAINS),
)
NODE_DRAIN_WEBHOOK: Final = Webhook(
    name=names.NODE_DRAIN_WEBHOOK,
    short="nodedrain",
    path="/validate/nodedrains",
    kind="validating",
    operations=("CREATE", "UPDATE"),
    **_of(NODE_DRAINS),
)
WEBHOOKS: Final = (
    NODE_CREATE_WEBHOOK,
    NODE_DELETE_WEBHOOK,
    NODE_BUDGET_WEBHOOK,
    NODE_CLAIM_WEBHOOK,
    NODE_CLAIM_DELETE_WEBHOOK,
    NODE_DRAIN_REQUESTER_WEBHOOK,
    NODE_DRAIN_WEBHOOK,
)
OUR_NAMES: Final = frozenset(each.name for each in WEBHOOKS)


def secret_path(webhook: Webhook, segment: str) -> str:
    """Path of a webhook below a secret segment; "": the plain path."""
    return f"/{segment}{webhook.path}" if segment else webhook.path


def manifest(webhook: Webhook, settings: AdmissionSettings, bundle: bytes, segment: str) -> dict[str, Any]:
    """Webhook of a configuration; `bundle`: base64 of the authorities to trust, empty: those of the system; `segment`:
    see secret_path."""
    path = secret_path(webhook, segment)
    client: dict[str, Any] = {"caBundle": bundle.decode()} if bundle else {}
    if settings.service is not None:
        service = settings.service
        client["service"] = {
            "name": service.name,
            "namespace": settings.namespace,
            "port": service.port,
            "path": path,
        }
    else:
        client["url"] = settings.url.rstrip("/") + path
    rule = {
        "apiGroups": [webhook.group],
        "apiVersions": list(webhook.versions),
        "operations": list(webhook.operations),
        "resources": [webhook.resource],
        "scope": "Cluster",
    }
    webhook_body = {
        "name": webhook.name,
        "clientConfig": client,
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": settings.failure_policy if webhook.is_needed else "Ignore",
        "matchPolicy": "Equivalent",
        "sideEffects": "NoneOnDryRun" if webhook.has_side_effects else "None",
        "timeoutSeconds": settings.timeout_seconds,
        "namespaceSelector": {},
        "objectSelector": {},
    }
    if webhook.kind == "mutating":
        webhook_body["reinvocationPolicy"] = "Never"
    if webhook.condition is not None:
        name, expression = webhook.condition
        webhook_body["matchConditions"] = [{"name": name, "expression": expression}]
    return webhook_body


CONFIGURATIONS: Final[dict[Kind, Resource[dict[str, Any]]]] = {
    "mutating": MUTATING_WEBHOOKS,
    "validating": VALIDATING_WEBHOOKS,
}
LABELS: Final = {names.MANAGED_BY: names.EVENT_COMPONENT}


def admission_permissions(settings: AdmissionSettings) -> tuple[Permission, ...]:
    """Permissions for these settings; none without admission. One Secret and the two configurations, by name; only
    create cannot be limited by name. The configurations are only read."""
    if not settings.is_wanted:
        return ()
    return (
        *(_on(SECRETS, verb, settings.secret, settings.namespace) for verb in ("get", "update")),
        _on(SECRETS, "create", "", settings.namespace),
        *(_on(resource, "get", settings.name) for resource in CONFIGURATIONS.values()),
    )


def _on(resource: Resource[Any], verb: str, name: str = "", namespace: str = "") -> Permission:
    return Permission(verb, resource.plural, resource.group, namespace=namespace, name=name)


NOT_OURS: Final = (
    f"kept: no label {names.MANAGED_BY}={names.EVENT_COMPONENT}; delete it manually if it belongs to gracectl"
)


class Leftover(msgspec.Struct, frozen=True):
    """Object with a name of gracectl's. `reason`: why it is not deleted, or could not be read."""

    resource: Resource[dict[str, Any]]
    key: Key
    uid: str = ""
    reason: str = ""
    is_ours: bool = False

    @property
    def name(self) -> str:
        """Name as kubectl shows it, with its namespace."""
        return "/".join(part for part in self.key if part)


async def leftovers(client: KubeClient, settings: AdmissionSettings, namespace: str) -> list[Leftover]:
    """Objects that exist; `namespace`: of the Secret."""
    places: list[tuple[Resource[dict[str, Any]], Key]] = [
        (resource, ("", settings.name)) for resource in CONFIGURATIONS.values()
    ]
    places.append((SECRETS, (namespace, settings.secret)))
    found = [await _leftover(client, resource, key) for resource, key in places]
    return [each for each in found if each is not None]


async def delete_leftover(client: KubeClient, leftover: Leftover) -> None:
    """Delete the object of this UID, if it still exists. Raises ApiError."""
    resource = msgspec.structs.replace(leftover.resource, cancellable=True)
    try:
        await client.delete(resource, leftover.key, uid=leftover.uid)
    except NotFound:
        return


async def _leftover(client: KubeClient, resource: Resource[dict[str, Any]], key: Key) -> Leftover | None:
    try:
        body = await client.get(resource, key)
    except NotFound:
        return None
    except ApiError as error:
        return Leftover(resource, key, reason=str(error), is_ours=True)
    uid = str(body["metadata"].get("uid", ""))
    is_ours = _is_labelled(body) or _has_only_our_webhooks(body)
    return Leftover(resource, key, uid, "" if is_ours else NOT_OURS, is_ours)


def _is_labelled(body: dict[str, Any]) -> bool:
    return (body["metadata"].get("labels") or {}).get(names.MANAGED_BY) == names.EVENT_COMPONENT


def _has_only_our_webhooks(body: dict[str, Any]) -> bool:
    webhooks = body.get("webhooks") or []
    return bool(webhooks) and all(str(each.get("name", "")).endswith(names.WEBHOOK_DOMAIN) for each in webhooks)
