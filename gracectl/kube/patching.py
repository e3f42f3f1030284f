"""Optimistic writes: computed from the known state, refused by the server if that is stale, computed again.

Lists such as taints, finalizers and conditions are replaced whole by merge patches, so nothing is written without the
version it was read at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gracectl.kube.cache import T
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Conflict, Invalid, NotFound, NotLeading
from gracectl.kube.requests import Patch, StrategicPatch
from gracectl.kube.resources import NODES, Resource, untyped
from gracectl.model.foreign import harmless
from gracectl.model.times import LATEST, format_time, parse_time

logger = logging.getLogger(__name__)

ATTEMPTS = 5
"""Maximum attempts: others (the kubelet, a cloud controller) may write between our read and our write."""

_INSTANTS: Final = ("lastTransitionTime", "lastHeartbeatTime", "timeAdded")
_LATEST: Final = format_time(LATEST)
_SHOWN, _LONGEST = 5, 200


async def patch_with_retry(
    client: KubeClient, resource: Resource[T], thing: T, needed: Callable[[T], Patch | None], *, subresource: str = ""
) -> T | None:
    """Apply the patch that `needed` computes; None means that nothing is missing.

    Returns the object as it is now, or None when it is gone or another one has its name. Raises Conflict when another
    write was first every time; other errors of the client.
    """
    for attempt in range(ATTEMPTS):
        patch = needed(thing)
        if patch is None:
            return thing
        version = thing.resource_version
        try:
            return await client.patch(resource, thing.key, patch, subresource=subresource, resource_version=version)
        except NotFound:
            return None
        except (Conflict, Invalid) as refusal:
            if attempt == ATTEMPTS - 1:
                raise
            failure = refusal
        try:
            current = await client.get(resource, thing.key)
        except NotFound:
            return None
        if current.uid != thing.uid:
            return None
        # An element to remove may be missing in a newer state: a server then calls the patch invalid,
        # before it looks at the version (recording `writes-patch`).
        if isinstance(failure, Invalid) and current.resource_version == version:
            repaired = await repair_instants(client, resource, current)
            if repaired is None:
                raise failure
            current = repaired
        thing = current
    raise AssertionError("the last attempt returns or raises")


async def repair_instants(client: KubeClient, resource: Resource[T], thing: T) -> T | None:
    """Rewrite the instants of a node that the server has stored and cannot read; returns the node as it is then.

    A kubelet may write `9999-12-31T23:59:59-23:59`, which Go stores as an instant of the year 10000. It then refuses
    each patch that leaves this instant in place (seen on Kubernetes 1.37), also one that removes a finalizer. None: the
    object has no such instant, or it cannot be rewritten.
    """
    if resource.kind != NODES.kind or resource.group:
        return None
    raw: Resource[dict[str, Any]] = msgspec.structs.replace(NODES, decode=untyped)  # type: ignore[arg-type]
    try:
        whole = await client.get(raw, thing.key)
        conditions = rewritten(_part(whole, "status").get("conditions"), "type")
        taints = rewritten(_part(whole, "spec").get("taints"), "key")
        if not conditions and not taints:
            return None
        names = ", ".join(each.get("type") or each.get("key", "") for each in (*conditions, *taints)[:_SHOWN])
        logger.warning(
            "node %s: instants out of range: the server refuses patches until they are rewritten; rewriting them (%s)",
            thing.key[1],
            harmless(names, _LONGEST),
            extra={"node": thing.key[1]},
        )
        status: dict[str, Any] = {"status": {"conditions": conditions}} if conditions else {}
        after: T = thing
        if taints:
            # A write of the spec leaves the status as it was, but its patch must not show what cannot be read.
            patch = StrategicPatch({"spec": {"taints": taints}, **status})
            after = await client.patch(resource, thing.key, patch, uid=thing.uid)
        if conditions:
            after = await client.patch(resource, thing.key, StrategicPatch(status), subresource="status", uid=thing.uid)
    except NotLeading:
        raise
    except ApiError as error:
        logger.warning("node %s: instants cannot be rewritten: %s", thing.key[1], error, extra={"node": thing.key[1]})
        return None
    return after


def rewritten(entries: Any, key: str) -> list[dict[str, str]]:
    """Entries of a strategic merge patch, by their merge key, with the instants that are out of range."""
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        bad = {field: _LATEST for field in _INSTANTS if _is_out_of_range(entry.get(field))}
        if bad:
            found.append({key: str(entry.get(key, "")), **bad})
    return found


def _part(whole: dict[str, Any], name: str) -> dict[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, dict) else {}


def _is_out_of_range(text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        parse_time(text)
    except ValueError:
        return True
    return False


async def delete(client: KubeClient, resource: Resource[T], thing: T) -> None:
    """Delete the object of this UID; nothing is done when it is gone, or its name belongs to another one. Raises
    ApiError.
    """
    try:
        await client.delete(resource, thing.key, uid=thing.uid)
    except NotFound:
        return
    except Conflict as conflict:
        if not conflict.uid_mismatch:
            raise
