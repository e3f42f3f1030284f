"""Collections read once and whole, for commands: no watch, no retries beyond the client's.

A kind that a cluster serves in one of several versions, or not at all, is read as a reflector follows it: the first
version that is served, nothing where none is; a missing permission is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing

from gracectl.kube.cache import T as C
from gracectl.kube.cache import Writable
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden, Gone, NotServed
from gracectl.kube.requests import ALL, Selection
from gracectl.kube.resources import Resource, T
from gracectl.model.envelope import UndecodableObject

logger = logging.getLogger(__name__)


Found = tuple[list[T], list[UndecodableObject]]
"""Objects (with stand-ins), and the undecodable ones."""


async def fill(
    cache: Writable[C],
    client: KubeClient,
    resource: Resource[C],
    selection: Selection = ALL,
    *,
    namespace: str = "",
    keep: Callable[[C], bool] = lambda _: True,
) -> None:
    """Make a cache, or a part of one, hold what `read_all` reads, and what cannot be decoded. Raises ApiError."""
    cache.replace(*await _read(client, resource, selection, namespace, keep))


async def fill_served(cache: Writable[C], client: KubeClient, versions: tuple[Resource[C], ...]) -> None:
    """Objects and undecodable ones of `read_served`."""
    found = await _read_first_served(client, versions)
    cache.replace(*(((), ()) if found is None else found[1]))


async def read_all(
    client: KubeClient,
    resource: Resource[T],
    selection: Selection = ALL,
    *,
    namespace: str = "",
    keep: Callable[[T], bool] = lambda _: True,
) -> list[T]:
    """All objects of one consistent version, of each page only those to keep; over all namespaces unless one is named.
    Raises ApiError. Undecodable objects are logged.

    A server may forget the version of a list before its last page (Gone): then it is begun again, once.
    """
    return _objects_of(resource, await _read(client, resource, selection, namespace, keep))


async def read_served(client: KubeClient, versions: tuple[Resource[T], ...]) -> list[T]:
    """All objects in the first version that the server serves; none where it serves no version. Raises ApiError."""
    found = await read_first_served(client, versions)
    return [] if found is None else found[1]


async def read_first_served(
    client: KubeClient, versions: tuple[Resource[T], ...]
) -> tuple[Resource[T], list[T]] | None:
    """The first version that the server serves, and all objects in it; None where it serves none. Raises ApiError."""
    found = await _read_first_served(client, versions)
    return None if found is None else (found[0], _objects_of(*found))


async def is_absent(client: KubeClient, versions: tuple[Resource[T], ...], refusal: ApiError) -> bool:
    """Whether a server that would not list one of these versions serves none of them.

    Without permission the response is a refusal in any case: then the server's discovery is read. Where that fails, the
    refusal stands.
    """
    if not isinstance(refusal, Forbidden):
        return isinstance(refusal, NotServed)
    try:
        return not await is_served(client, versions)
    except ApiError:
        return False


async def is_served(client: KubeClient, versions: tuple[Resource[T], ...]) -> bool:
    """Whether the server serves any of these versions. Raises ApiError."""
    for version in versions:
        if await client.serves(version):
            return True
    return False


async def _read_first_served(
    client: KubeClient, versions: tuple[Resource[T], ...]
) -> tuple[Resource[T], Found[T]] | None:
    for version in versions:
        try:
            return version, await _read(client, version, ALL, "", lambda _: True)
        except NotServed:
            continue
        except Forbidden as refusal:
            if await is_absent(client, versions, refusal):
                return None
            raise
    return None


async def _read(
    client: KubeClient, resource: Resource[T], selection: Selection, namespace: str, keep: Callable[[T], bool]
) -> Found[T]:
    try:
        return await _listed(client, resource, namespace, selection, keep)
    except Gone:
        return await _listed(client, resource, namespace, selection, keep)


async def _listed(
    client: KubeClient, resource: Resource[T], namespace: str, selection: Selection, keep: Callable[[T], bool]
) -> Found[T]:
    objects: list[T] = []
    undecodable: list[UndecodableObject] = []
    make = resource.stand_in
    async with aclosing(client.list(resource, namespace=namespace, selection=selection)) as pages:
        async for page in pages:
            objects += filter(keep, page.items)
            undecodable += [found for found in page.undecodable if make is None or keep(make(found))]
    return objects, undecodable


def _objects_of(resource: Resource[T], found: Found[T]) -> list[T]:
    objects, undecodable = found
    for each in undecodable:
        logger.warning("%s %s: cannot be decoded: %s", resource.kind, "/".join(filter(None, each.key)), each.error)
    return objects
