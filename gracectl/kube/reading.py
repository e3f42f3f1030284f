"""Collections read once and whole, for whoever looks and goes: no watch, no patience beyond the client's.

A kind that a cluster serves in one of several versions, or not at all, is read here as a reflector follows it: the
first version that is served, nothing where none is, and a missing right is told.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden, Gone, NotServed
from gracectl.kube.requests import ALL, Selection
from gracectl.kube.resources import Resource, T


async def read_all(
    client: KubeClient,
    resource: Resource[T],
    selection: Selection = ALL,
    *,
    namespace: str = "",
    keep: Callable[[T], bool] = lambda _: True,
) -> list[T]:
    """All objects of one consistent version, of each page only those to keep; over all namespaces unless one is named.
    Raises ApiError.

    A server may forget the version of a list before its last page (Gone): then it is begun again, once.
    """
    try:
        return await _listed(client, resource, namespace, selection, keep)
    except Gone:
        return await _listed(client, resource, namespace, selection, keep)


async def read_served(client: KubeClient, versions: tuple[Resource[T], ...]) -> list[T]:
    """All objects in the first version that the server serves; none where it serves no version. Raises ApiError."""
    found = await read_first_served(client, versions)
    return [] if found is None else found[1]


async def read_first_served(
    client: KubeClient, versions: tuple[Resource[T], ...]
) -> tuple[Resource[T], list[T]] | None:
    """The first version that the server serves, and all objects in it; None where it serves none. Raises ApiError."""
    for version in versions:
        try:
            return version, await read_all(client, version)
        except NotServed:
            continue
        except Forbidden as refusal:
            if await is_absent(client, versions, refusal):
                return None
            raise
    return None


async def is_absent(client: KubeClient, versions: tuple[Resource[T], ...], refusal: ApiError) -> bool:
    """Whether a server that would not list one of these versions serves none of them.

    Who lacks the right is not told so, but refused: then the server's discovery is asked. Where that does not answer,
    the refusal stands.
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


async def _listed(
    client: KubeClient, resource: Resource[T], namespace: str, selection: Selection, keep: Callable[[T], bool]
) -> list[T]:
    found: list[T] = []
    async with aclosing(client.list(resource, namespace=namespace, selection=selection)) as pages:
        async for page in pages:
            found += filter(keep, page.items)
    return found
