"""What we may do on a server, asked before we begin: a missing right is told at the start, not in the middle of a
drain.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import msgspec

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound, NotServed
from gracectl.kube.resources import Resource
from gracectl.model.untrusted import Decoder
from gracectl.runtime.supervise import ungrouped


class Permission(msgspec.Struct, frozen=True):
    """A verb on a resource, over all namespaces unless one is named, and on all objects unless one is, as an RBAC rule
    grants it."""

    verb: str
    plural: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.plural}/{self.subresource}" if self.subresource else self.plural
        group = f" in API group {self.group}" if self.group else ""
        named = f" {self.name}" if self.name else ""
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{named}{group}{place}"


async def missing_permissions(client: KubeClient, wanted: Iterable[Permission]) -> tuple[Permission, ...]:
    """Those of `wanted` that the server would refuse us, in the order given; none on a server that cannot be asked.

    Raises ApiError: the first failure.
    """
    rights = tuple(wanted)
    refused: set[Permission] = set()

    async def ask(right: Permission) -> None:
        if not await _is_granted(client, right):
            refused.add(right)

    with ungrouped():
        async with anyio.create_task_group() as group:
            for right in rights:
                group.start_soon(ask, right)
    return tuple(right for right in rights if right in refused)


async def _is_granted(client: KubeClient, right: Permission) -> bool:
    attributes = {
        "namespace": right.namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": right.plural,
        "subresource": right.subresource,
        "name": right.name,
    }
    review = {"spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}}}
    try:
        return (await client.ask(_REVIEWS, review)).status.allowed
    except (NotFound, NotServed):
        return True


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus = msgspec.field(default_factory=_ReviewStatus)


_REVIEWS: Resource[_Review] = Resource(
    group="authorization.k8s.io",
    version="v1",
    plural="selfsubjectaccessreviews",
    kind="SelfSubjectAccessReview",
    namespaced=False,
    decode=Decoder(_Review).decode,
    cancellable=True,
)
