"""The webhooks that we serve, once: what each is asked about, where, and what becomes of a write if nobody answers.

A gracectl that is not there keeps no node from joining, and nobody from writing claims and budgets. It does keep Ready
nodes from being deleted, as nobody could count them, unless the administrator prefers the other risk. Nodes that are
not Ready, or going already, can go without us: the API server itself sees to that, by a condition.

A manifest says everything, defaults too: so it can be held against what a server has, word for word.
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
"""What policy.nodebudgets.is_available says, in CEL."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `short`: as metrics and logs name it; `is_needed`: without an answer the write fails, if the
    settings say so."""

    name: str
    short: str
    path: str
    kind: Kind
    operations: tuple[str, ...]
    group: str
    versions: tuple[str, ...]
    resource: str
    condition: tuple[str, str] | None = None
    """Name and CEL expression of what must hold for us to be asked."""
    is_needed: bool = False
    is_counting: bool = False
    """Asking it changes something, except in a dry run."""


def _of(resource: Resource[Any], *versions: str) -> Mapping[str, Any]:
    return {"group": resource.group, "versions": versions or (resource.version,), "resource": resource.plural}


NODE_CREATION: Final = Webhook(
    name=names.NODE_CREATION_WEBHOOK,
    short="node-create",
    path="/mutate/nodes",
    kind="mutating",
    operations=("CREATE",),
    **_of(NODES),
)
NODE_DELETION: Final = Webhook(
    name=names.NODE_DELETION_WEBHOOK,
    short="node-delete",
    path="/validate/nodes",
    kind="validating",
    operations=("DELETE",),
    condition=("available", IS_AVAILABLE),
    is_needed=True,
    is_counting=True,
    **_of(NODES),
)
NODE_BUDGET_WRITING: Final = Webhook(
    name=names.NODE_BUDGET_WEBHOOK,
    short="nodedisruptionbudget",
    path="/validate/nodedisruptionbudgets",
    kind="validating",
    operations=("CREATE", "UPDATE"),
    **_of(NODE_BUDGETS),
)
NODE_CLAIM_WRITING: Final = Webhook(
    name=names.NODE_CLAIM_WEBHOOK,
    short="nodeclaim",
    path="/validate/nodeclaims",
    kind="validating",
    operations=("CREATE", "UPDATE"),
    **_of(NODE_CLAIM_VERSIONS[0], *(each.version for each in NODE_CLAIM_VERSIONS)),
)
WEBHOOKS: Final = (NODE_CREATION, NODE_DELETION, NODE_BUDGET_WRITING, NODE_CLAIM_WRITING)
OUR_NAMES: Final = frozenset(each.name for each in WEBHOOKS)


def manifest(webhook: Webhook, settings: AdmissionSettings, bundle: bytes) -> dict[str, Any]:
    """A webhook as a configuration has it; `bundle`: base64 of the authorities to trust, empty: those of the system."""
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
    made = {
        "name": webhook.name,
        "clientConfig": client,
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": settings.failure_policy if webhook.is_needed else "Ignore",
        "matchPolicy": "Equivalent",
        "sideEffects": "NoneOnDryRun" if webhook.is_counting else "None",
        "timeoutSeconds": settings.timeout_seconds,
        "namespaceSelector": {},
        "objectSelector": {},
    }
    if webhook.kind == "mutating":
        made["reinvocationPolicy"] = "Never"
    if webhook.condition is not None:
        name, expression = webhook.condition
        made["matchConditions"] = [{"name": name, "expression": expression}]
    return made
