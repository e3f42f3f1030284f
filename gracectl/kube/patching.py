"""Optimistic writes: computed from the known state, refused by the server if that is stale, computed again.

Lists such as taints, finalizers and conditions are replaced whole by merge patches, so nothing is written without the
version it was read at.
"""

from __future__ import annotations

from collections.abc import Callable

from gracectl.kube.cache import T
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Conflict, Invalid, NotFound
from gracectl.kube.requests import Patch
from gracectl.kube.resources import Resource

ATTEMPTS = 5
"""Others (the kubelet, a cloud controller) may write between our read and our write, but not for ever."""


async def patch_with_retry(
    client: KubeClient, resource: Resource[T], thing: T, needed: Callable[[T], Patch | None], *, subresource: str = ""
) -> T | None:
    """Apply the patch that `needed` computes; None means that nothing is missing.

    Returns the object as it is now, or None when it is gone or another one has its name. Raises Conflict when another
    write was first every time, and whatever else the client raises.
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
        # What is to be removed by its place may not be there in a newer state: a server calls the patch invalid then,
        # before it looks at the version (recording `writes-patch`).
        if isinstance(failure, Invalid) and current.resource_version == version:
            raise failure
        thing = current
    raise AssertionError("the last attempt returns or raises")


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
