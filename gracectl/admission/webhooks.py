"""The webhooks: rule, path and failure policy of each; their configurations, maintained by the leader; their removal.

Without a running gracectl nodes can join, and claims and budgets can be written. Ready nodes cannot be deleted, as
their budgets would not be evaluated, unless the settings accept that risk. Nodes that are not Ready, or being deleted,
are exempt: a match condition keeps API servers from calling.

A manifest has every field, defaults too, so it can be compared verbatim with the server's. Configurations are read
every few seconds, and manual changes are reverted. With `register: false` they belong to the chart, and only the bundle
is written, into gracectl's webhooks; where cert-manager injects that too, they are not even read.

Invariant of the removal: only objects that are provably gracectl's are deleted: by their label, or, for a configuration
that a chart has created, by the names of all its webhooks.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from gracectl.admission.settings import AdmissionSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.rbac import Permission
from gracectl.kube.requests import JsonPatch, Key
from gracectl.kube.resources import (
    MUTATING_WEBHOOKS,
    NODE_BUDGETS,
    NODE_CLAIM_VERSIONS,
    NODES,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from gracectl.model import names
from gracectl.runtime.certificates import authorities_in
from gracectl.runtime.clock import Clock

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


logger = logging.getLogger(__name__)

CONFIGURATIONS: Final[dict[Kind, Resource[dict[str, Any]]]] = {
    "mutating": MUTATING_WEBHOOKS,
    "validating": VALIDATING_WEBHOOKS,
}


class WebhookRegistration:
    """Webhook configurations. One owner calls `ensure` periodically."""

    def __init__(self, client: KubeClient, settings: AdmissionSettings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._wrote: dict[Kind, tuple[str, bytes]] = {}
        self._since: dict[bytes, float] = {}

    async def ensure(self, bundle: bytes) -> None:
        """Bring the configurations up to date, with these authorities (PEM; empty: the bundle is maintained by others).
        Raises ApiError: Conflict after a concurrent write."""
        for kind, resource in CONFIGURATIONS.items() if self._settings.writes_configurations else ():
            body = await self._read(resource)
            if body is not None:
                self._retain(_trusted(body))
            if self._settings.register:
                await self._ensure_configuration(kind, body, b64encode(bundle))
            elif body is not None and bundle:
                await self._patch_bundles(resource, body, b64encode(bundle).decode())
        now = self._clock.monotonic()
        for authority in authorities_in(bundle):
            self._since.setdefault(authority, now)

    def trusted_for(self, bundle: bytes) -> float:
        """Seconds for which all configurations have had all of these authorities, as far as seen; 0 for an invalid
        bundle."""
        now = self._clock.monotonic()
        try:
            authorities = authorities_in(bundle)
        except ValueError:
            return 0.0
        return min((now - self._since.get(each, now) for each in authorities), default=0.0)

    async def _read(self, resource: Resource[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return await self._client.get(resource, ("", self._settings.name))
        except NotFound:
            return None

    async def _ensure_configuration(self, kind: Kind, body: dict[str, Any] | None, bundle: bytes) -> None:
        """Create the configuration, or restore it."""
        resource = CONFIGURATIONS[kind]
        wanted = [manifest(each, self._settings, bundle) for each in WEBHOOKS if each.kind == kind]
        labels = {names.MANAGED_BY: names.EVENT_COMPONENT}
        if body is None:
            metadata: dict[str, Any] = {"name": self._settings.name, "labels": labels}
            result = await self._client.create(resource, "", {"metadata": metadata, "webhooks": wanted})
            logger.info("%s %s: created", resource.kind, self._settings.name)
        else:
            if not bundle:
                _keep_bundles(wanted, body)
            metadata = body["metadata"]
            has_label = (metadata.get("labels") or {}).items() >= labels.items()
            # An older server drops fields that it does not know: its form of our own write is not written again.
            is_our_write = (metadata["resourceVersion"], bundle) == self._wrote.get(kind)
            if is_our_write or (has_label and body.get("webhooks") == wanted):
                return
            metadata = {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}
            whole = {**body, "metadata": metadata, "webhooks": wanted}
            result = await self._client.update(resource, ("", self._settings.name), whole)
            logger.info("%s %s: restored", resource.kind, self._settings.name)
        self._wrote[kind] = (result["metadata"]["resourceVersion"], bundle)

    async def _patch_bundles(self, resource: Resource[dict[str, Any]], body: dict[str, Any], bundle: str) -> None:
        """Write the authorities, and nothing else, into gracectl's webhooks."""
        operations = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
            for number, webhook in enumerate(body.get("webhooks") or ())
            if webhook["name"] in OUR_NAMES and webhook["clientConfig"].get("caBundle") != bundle
        ]
        if operations:
            version = body["metadata"]["resourceVersion"]
            key = ("", self._settings.name)
            await self._client.patch(resource, key, JsonPatch(operations), resource_version=version)
            logger.info("%s %s: CA bundle updated", resource.kind, self._settings.name)

    def _retain(self, trusted: set[bytes]) -> None:
        self._since = {each: since for each, since in self._since.items() if each in trusted}


def _ours(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (each for each in body.get("webhooks") or () if each["name"] in OUR_NAMES)


def _trusted(body: dict[str, Any]) -> set[bytes]:
    """Authorities that all of gracectl's webhooks in a configuration trust."""
    found = [_bundle(each["clientConfig"].get("caBundle") or "") for each in _ours(body)]
    return set.intersection(*found) if found else set()


def _bundle(text: str) -> set[bytes]:
    try:
        return set(authorities_in(b64decode(text)))
    except (NotBase64, ValueError):
        return set()


def _keep_bundles(wanted: list[dict[str, Any]], body: dict[str, Any]) -> None:
    """Keep the bundles of gracectl's webhooks, which others maintain."""
    bundles = {each["name"]: each["clientConfig"].get("caBundle") for each in _ours(body)}
    for webhook in wanted:
        if bundle := bundles.get(webhook["name"]):
            webhook["clientConfig"]["caBundle"] = bundle


def admission_permissions(settings: AdmissionSettings) -> tuple[Permission, ...]:
    """Permissions for these settings; none without admission. One Secret, and the two configurations by name, if they
    are written at all; only create cannot be limited by name."""
    if not settings.is_wanted:
        return ()
    wanted: list[Permission] = []
    if not settings.certificates.are_given:
        wanted += [_on(SECRETS, verb, settings.secret, settings.namespace) for verb in ("get", "update")]
        wanted.append(_on(SECRETS, "create", "", settings.namespace))
    for resource in CONFIGURATIONS.values() if settings.writes_configurations else ():
        verbs = ("get", "update") if settings.register else ("get", "patch")
        wanted += [_on(resource, verb, settings.name) for verb in verbs]
        if settings.register:
            wanted.append(_on(resource, "create"))
    return tuple(wanted)


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
