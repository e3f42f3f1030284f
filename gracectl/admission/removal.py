"""Removal of admission from a cluster: webhook configurations, and the Secret with the certificate.

Invariant: only objects that are provably gracectl's are deleted: by their label, or, for a configuration that a chart
has created, by the names of all its webhooks.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gracectl.admission.registration import CONFIGURATIONS
from gracectl.admission.settings import AdmissionSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.requests import Key
from gracectl.kube.resources import SECRETS, Resource
from gracectl.model import names

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
