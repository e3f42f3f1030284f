"""The webhooks: rule, path and failure policy of each.

Without a running gracectl nodes can join, and claims and budgets can be written. Ready nodes cannot be deleted, as
their budgets would not be evaluated, unless the settings accept that risk. Nodes that are not Ready, or being deleted,
are exempt: a match condition keeps API servers from calling.

A manifest has every field, defaults too, so it can be compared verbatim with the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from gracectl.admission.settings import AdmissionSettings
from gracectl.kube.resources import NODE_BUDGETS, NODE_CLAIM_VERSIONS, NODES, Resource
from gracectl.model import names

Kind = Literal["mutating", "validating"]

IS_AVAILABLE: Final = (
    "!has(oldObject.metadata.deletionTimestamp) && has(oldObject.status) && has(oldObject.status.conditions) && "
    f"oldObject.status.conditions.exists(c, c.type == '{names.READY}' && c.status == '{names.TRUE}')"
)
"""policy.nodebudgets.is_available, in CEL."""


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
    **_of(NODE_CLAIM_VERSIONS[0], *(each.version for each in NODE_CLAIM_VERSIONS)),
)
WEBHOOKS: Final = (NODE_CREATE_WEBHOOK, NODE_DELETE_WEBHOOK, NODE_BUDGET_WEBHOOK, NODE_CLAIM_WEBHOOK)
OUR_NAMES: Final = frozenset(each.name for each in WEBHOOKS)


def manifest(webhook: Webhook, settings: AdmissionSettings, bundle: bytes) -> dict[str, Any]:
    """Webhook of a configuration; `bundle`: base64 of the authorities to trust, empty: those of the system."""
    client: dict[str, Any] = {"caBundle": bundle.decode()} if bundle else {}
    if settings.service is not None:
        service = settings.service
        client["service"] = {
            "name": service.name,
            "namespace": settings.namespace,
            "port": service.port,
            "path": webhook.path,
        }
    else:
        client["url"] = settings.url.rstrip("/") + webhook.path
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
