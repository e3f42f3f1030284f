"""Webhook configurations: created, repaired and given the CA bundle, by the leader.

They are read every few seconds, and manual changes are reverted. With `register: false` they belong to the chart, and
only the bundle is written, into gracectl's webhooks; where cert-manager injects that too, they are not even read.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator
from typing import Any, Final

from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import OUR_NAMES, WEBHOOKS, Kind, manifest
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import JsonPatch
from gracectl.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource
from gracectl.model import names
from gracectl.runtime.certificates import authorities_in
from gracectl.runtime.clock import Clock

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
