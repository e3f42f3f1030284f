"""The subresource `scale`: how many replicas an object wants and has, whatever its kind (autoscaling/v1 Scale).

A Scale is never stored: it is read from the object, and what is written to it is written to the object, by the same
path that every write takes. Where the object keeps its replicas, its resource knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.server import patches
from kubesim.server.api import Json, JsonObject
from kubesim.server.bodies import Bodies, content_type
from kubesim.server.calls import Call
from kubesim.server.options import is_dry_run
from kubesim.server.resource import Resource
from kubesim.server.status import Kind, bad_request, invalid, invalid_value, not_found
from kubesim.server.store import Store
from kubesim.server.writes import Writer
from kubesim.types.transient import SCALE, transient

WORDS: Final = Kind("autoscaling", "scales", "Scale")
SHOWN: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
"""Of an object's metadata its Scale has these."""


class Scales:
    """Answers GET, PUT and PATCH of a scale."""

    def __init__(self, store: Store, writer: Writer, bodies: Bodies) -> None:
        self._store = store
        self._writer = writer
        self._bodies = bodies

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """The scale, as it is or as it was changed. Raises Refusal: 400, 404, 409, 422, 500 (no replicas there)."""
        resource = call.route.resource
        match call.request.method:
            case "PUT":
                found = await self._put(call, self._bodies.object(call.request, "Scale"))
            case "PATCH":
                found = await self._patch(call, self._bodies.patch(call.request))
            case _:
                stored = self._store.table(resource.table).get(*call.route.key)
                if stored is None:
                    raise not_found(resource.words, call.route.name)
                found = resource.shown(stored)
        return 200, scale_of(resource, found)

    async def _put(self, call: Call, body: Json) -> JsonObject:
        sent = transient(SCALE, body)
        if sent.get("kind", "Scale") != "Scale":
            raise bad_request("the object provided is no Scale")
        resource, dry_run = call.route.resource, is_dry_run(call.query, "UpdateOptions")
        return await self._writer.update(call, lambda old: scaled(resource, old, sent), dry_run=dry_run)

    async def _patch(self, call: Call, patch: Json) -> JsonObject:
        resource, change = call.route.resource, patches.change(content_type(call.request), patch)

        def patched(old: JsonObject) -> JsonObject:
            return scaled(resource, old, transient(SCALE, change(scale_of(resource, old))))

        return await self._writer.update(call, patched, dry_run=is_dry_run(call.query, "PatchOptions"))


def scale_of(resource: Resource, object_: JsonObject) -> JsonObject:
    """The Scale that an object of a resource with replicas shows. Raises Refusal (500)."""
    assert resource.replicas is not None
    metadata, replicas = object_["metadata"], resource.replicas.wanted(object_)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in SHOWN if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": resource.replicas.status(object_),
    }


def scaled(resource: Resource, old: JsonObject, scale: JsonObject) -> JsonObject:
    """The object with the replicas of a Scale; the scale's version, if it brings one, is the one it must have. Raises
    Refusal (400, 422)."""
    assert resource.replicas is not None
    metadata, name = scale["metadata"], old["metadata"]["name"]
    if metadata.get("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    new = resource.replicas.with_wanted(old, scale["spec"].get("replicas", 0))
    version = metadata.get("resourceVersion") or old["metadata"]["resourceVersion"]
    return {**new, "metadata": {**old["metadata"], "resourceVersion": version}}


class SpecReplicas:
    """Replicas of workloads: `spec.replicas` and `status.replicas`."""

    def wanted(self, object_: JsonObject) -> int:
        """See Replicas."""
        replicas: int = (object_.get("spec") or {}).get("replicas", 1)
        return replicas

    def status(self, object_: JsonObject) -> JsonObject:
        """See Replicas."""
        selector = (object_.get("spec") or {}).get("selector") or {}
        return {"replicas": (object_.get("status") or {}).get("replicas", 0), "selector": selector_text(selector)}

    def with_wanted(self, object_: JsonObject, replicas: int) -> JsonObject:
        """See Replicas."""
        if replicas < 0:
            fault = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
            raise invalid(WORDS, object_["metadata"]["name"], [fault])
        return {**object_, "spec": {**(object_.get("spec") or {}), "replicas": replicas}}


def selector_text(selector: Mapping[str, Json]) -> str:
    """A selector (of labels, or the plain map of a ReplicationController) in the grammar of queries."""
    if not {"matchLabels", "matchExpressions"} & selector.keys():
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        key, values = each["key"], ",".join(sorted(each.get("values") or ()))
        match each["operator"]:
            case "Exists":
                terms.append((key, key))
            case "DoesNotExist":
                terms.append((key, f"!{key}"))
            case operator:
                terms.append((key, f"{key} {operator.lower()} ({values})"))
    return ",".join(text for _, text in sorted(terms))
