"""Permissions on a server, of this process or of a service account, checked before they are needed: a missing one is
reported then, not in the middle of a drain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio
import msgspec

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound, NotServed
from gracectl.kube.resources import Resource
from gracectl.model.untrusted import Decoder
from gracectl.runtime.supervise import ungrouped

READS: Final = ("get", "list", "watch")


class Permission(msgspec.Struct, frozen=True):
    """Verb on a resource, over all namespaces and objects unless one is named, as an RBAC rule grants it."""

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


async def missing_permissions(
    client: KubeClient, needed: Iterable[Permission], account: tuple[str, str] | None = None
) -> tuple[Permission, ...]:
    """The permissions that the server would refuse, in the order given; none on a server without access reviews.

    `account`: namespace and name of a service account; None: the credentials of the client. Raises ApiError: the first
    failure.
    """
    permissions = tuple(needed)
    refused: set[Permission] = set()

    async def check(permission: Permission) -> None:
        if not await _is_granted(client, permission, account):
            refused.add(permission)

    with ungrouped():
        async with anyio.create_task_group() as group:
            for permission in permissions:
                group.start_soon(check, permission)
    return tuple(each for each in permissions if each in refused)


async def own_username(client: KubeClient) -> str:
    """Name by which the server knows the credentials of the client; "" on a server without SelfSubjectReviews (before
    Kubernetes 1.28). Raises ApiError."""
    try:
        return (await client.ask(_OWN_IDENTITY, {})).status.user_info.username
    except (NotFound, NotServed):
        return ""


async def _is_granted(client: KubeClient, permission: Permission, account: tuple[str, str] | None) -> bool:
    attributes = {
        "namespace": permission.namespace,
        "verb": permission.verb,
        "group": permission.group,
        "resource": permission.plural,
        "subresource": permission.subresource,
        "name": permission.name,
    }
    spec: dict[str, object] = {"resourceAttributes": {name: value for name, value in attributes.items() if value}}
    if account is not None:
        namespace, name = account
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        spec |= {"user": f"system:serviceaccount:{namespace}:{name}", "groups": list(groups)}
    try:
        resource = _OWN_REVIEWS if account is None else _REVIEWS
        return (await client.ask(resource, {"spec": spec})).status.allowed
    except (NotFound, NotServed):
        return True


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus = msgspec.field(default_factory=_ReviewStatus)


_OWN_REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    Decoder(_Review).decode,
    namespaced=False,
    cancellable=True,
)
_REVIEWS: Resource[_Review] = msgspec.structs.replace(
    _OWN_REVIEWS, plural="subjectaccessreviews", kind="SubjectAccessReview"
)


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _IdentityStatus(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _User = _User()


class _Identity(msgspec.Struct, frozen=True):
    status: _IdentityStatus = _IdentityStatus()


_OWN_IDENTITY = Resource(
    "authentication.k8s.io",
    "v1",
    "selfsubjectreviews",
    "SelfSubjectReview",
    Decoder(_Identity).decode,
    namespaced=False,
    cancellable=True,
)
