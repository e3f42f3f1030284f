"""Takes admission off a cluster: the webhook configurations of our name, and the Secret with the certificate.

Invariant: nothing is deleted that does not show that it is ours: by its label, or, of a configuration that a chart has
made, by the names of all its webhooks.
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
    f"it has not the label {names.MANAGED_BY}={names.EVENT_COMPONENT}, so it is left as somebody else's; delete it by "
    "hand if it is gracectl's"
)


class Leftover(msgspec.Struct, frozen=True):
    """An object of the name that ours have. `why`: what keeps us from deleting it, or even from reading it."""

    resource: Resource[dict[str, Any]]
    key: Key
    uid: str = ""
    why: str = ""
    is_ours: bool = False

    @property
    def name(self) -> str:
        """As kubectl shows it, with its namespace."""
        return "/".join(part for part in self.key if part)


async def leftovers(client: KubeClient, settings: AdmissionSettings, namespace: str) -> list[Leftover]:
    """What is there; `namespace`: that of the Secret."""
    places: list[tuple[Resource[dict[str, Any]], Key]] = [
        (resource, ("", settings.name)) for resource in CONFIGURATIONS.values()
    ]
    places.append((SECRETS, (namespace, settings.secret)))
    found = [await _leftover(client, resource, key) for resource, key in places]
    return [each for each in found if each is not None]


async def take_away(client: KubeClient, leftover: Leftover) -> None:
    """Delete this very object; one that is gone is gone. Raises ApiError."""
    resource = msgspec.structs.replace(leftover.resource, abandonable=True)
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
        return Leftover(resource, key, why=str(error), is_ours=True)
    uid = str(body["metadata"].get("uid", ""))
    is_ours = _is_labelled(body) or _has_only_our_webhooks(body)
    return Leftover(resource, key, uid, "" if is_ours else NOT_OURS, is_ours)


def _is_labelled(body: dict[str, Any]) -> bool:
    return (body["metadata"].get("labels") or {}).get(names.MANAGED_BY) == names.EVENT_COMPONENT


def _has_only_our_webhooks(body: dict[str, Any]) -> bool:
    webhooks = body.get("webhooks") or []
    return bool(webhooks) and all(str(each.get("name", "")).endswith(names.WEBHOOK_DOMAIN) for each in webhooks)
