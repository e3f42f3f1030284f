"""Requests for the API server, built by pure functions; nothing here sends anything.

Bodies follow what recordings of a real server teach: options of a DELETE travel in its body only (with a
body, the query is not read), and a patch carries its preconditions in the patch itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from gracectl.kube.resources import PODS, Resource, T
from gracectl.kube.transport import Request
from gracectl.model.encoding import encode

Key = tuple[str, str]
Json = Mapping[str, Any]


class Preconditions(msgspec.Struct, frozen=True):
    """The object that is meant: its uid, its version, both, or (empty) whichever has the name."""

    uid: str = ""
    resource_version: str = ""

    def __bool__(self) -> bool:
        return bool(self.uid or self.resource_version)

    def metadata(self) -> dict[str, str]:
        """The set fields, as in an object's metadata or in `preconditions`."""
        fields = {"uid": self.uid, "resourceVersion": self.resource_version}
        return {name: value for name, value in fields.items() if value}


class MergePatch(msgspec.Struct, frozen=True):
    """RFC 7386: given fields replace the object's; null removes; lists are replaced whole."""

    body: Json

    content_type: ClassVar[str] = "application/merge-patch+json"


class StrategicPatch(msgspec.Struct, frozen=True):
    """Kubernetes' own merge, which knows list keys; custom resources do not have it (recording `custom-resources`)."""

    body: Json

    content_type: ClassVar[str] = "application/strategic-merge-patch+json"


class JsonPatch(msgspec.Struct, frozen=True):
    """RFC 6902: a list of operations."""

    operations: Sequence[Json]

    content_type: ClassVar[str] = "application/json-patch+json"


Patch = MergePatch | StrategicPatch | JsonPatch


class Selection(msgspec.Struct, frozen=True):
    """Selection of objects of a kind that match both selectors; an empty selector matches all.

    `labels` as kubectl's --selector, `fields` as its --field-selector, over the few fields that the kind offers
    (recording `list-selectors`; Invalid for others).
    """

    labels: str = ""
    fields: str = ""

    def query(self) -> tuple[tuple[str, str], ...]:
        """Query parameters of a list or watch, including empty ones."""
        return (("labelSelector", self.labels), ("fieldSelector", self.fields))

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.labels, self.fields)))


ALL = Selection()


def bound_to(node: str) -> Selection:
    """The pods bound to a node."""
    return Selection(fields=f"spec.nodeName={node}")


def named(name: str) -> Selection:
    """The objects of this name: one, or one in each namespace."""
    return Selection(fields=f"metadata.name={name}")


def get_request(resource: Resource[T], key: Key) -> Request:
    """GET of one object."""
    return Request(method="GET", path=resource.path(*key))


def list_request(
    resource: Resource[T],
    namespace: str = "",
    *,
    limit: int = 0,
    continue_token: str = "",
    selection: Selection = ALL,
    not_older: str = "",
) -> Request:
    """GET of one page of a list (the whole list when `limit` is 0). `not_older`: see KubeClient.list."""
    query = (
        ("limit", str(limit) if limit else ""),
        ("continue", continue_token),
        ("resourceVersion", not_older),
        ("resourceVersionMatch", "NotOlderThan" if not_older else ""),
    )
    return _get_all(resource, namespace, query, selection)


def watch_request(
    resource: Resource[T],
    resource_version: str,
    *,
    namespace: str = "",
    timeout_seconds: int,
    selection: Selection = ALL,
) -> Request:
    """GET of the changes after `resource_version`, with bookmarks; the server ends it after `timeout_seconds`."""
    query = (
        ("watch", "1"),
        ("allowWatchBookmarks", "true"),
        ("resourceVersion", resource_version),
        ("timeoutSeconds", str(timeout_seconds)),
    )
    return _get_all(resource, namespace, query, selection)


def _get_all(
    resource: Resource[T], namespace: str, query: tuple[tuple[str, str], ...], selection: Selection
) -> Request:
    given = tuple((name, value) for name, value in (*query, *selection.query()) if value)
    return Request(method="GET", path=resource.path(namespace), query=given)


def create_request(resource: Resource[T], namespace: str, body: Json, *, dry_run: bool = False) -> Request:
    """POST of a new object; apiVersion and kind are filled in (custom resources insist on them)."""
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    query = (("dryRun", "All"),) if dry_run else ()
    return Request(method="POST", path=resource.path(namespace), query=query, body=encode(whole))


def update_request(resource: Resource[T], key: Key, body: Json) -> Request:
    """PUT of a whole object, refused by the server unless it still has the version that the body carries."""
    return Request(method="PUT", path=resource.path(*key), body=encode(body))


def patch_request(
    resource: Resource[T], key: Key, patch: Patch, *, subresource: str = "", preconditions: Preconditions
) -> Request:
    """PATCH of one object or its subresource (`status`), refused by the server unless `preconditions` hold."""
    metadata = preconditions.metadata()
    body: Any
    if isinstance(patch, JsonPatch):
        # "add" and not "test": a stale version is then a conflict, where a failed test is an unexplained
        # "invalid" (recording `writes-patch`).
        guards = [{"op": "add", "path": f"/metadata/{name}", "value": value} for name, value in metadata.items()]
        body = [*guards, *patch.operations]
    elif metadata:
        body = {**patch.body, "metadata": {**patch.body.get("metadata", {}), **metadata}}
    else:
        body = patch.body
    path = resource.path(*key, subresource)
    return Request(method="PATCH", path=path, content_type=patch.content_type, body=encode(body))


def delete_request(
    resource: Resource[T], key: Key, preconditions: Preconditions, grace_seconds: int | None = None
) -> Request:
    """DELETE of one object; `grace_seconds` None leaves the grace to the object."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if preconditions:
        options["preconditions"] = preconditions.metadata()
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return Request(method="DELETE", path=resource.path(*key), body=encode(options))


def evict_request(key: Key, uid: str, grace_seconds: int | None = None) -> Request:
    """POST of an Eviction of the pod of that uid. `grace_seconds` None: the pod's own."""
    namespace, name = key
    grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}, **grace},
    }
    return Request(method="POST", path=PODS.path(namespace, name, "eviction"), body=encode(eviction))
