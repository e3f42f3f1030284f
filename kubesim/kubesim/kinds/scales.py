"""The subresource `scale` of workloads (autoscaling/v1 Scale).

A Scale is never stored: it is computed from the workload, and writes to it are ordinary writes of the workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.server import patches
from kubesim.server.api import Json, JsonObject
from kubesim.server.bodies import Bodies, content_type
from kubesim.server.calls import Call
from kubesim.server.options import is_dry_run
from kubesim.server.status import Kind, bad_request, invalid, invalid_value, not_found
from kubesim.server.store import Store
from kubesim.server.writes import Writer
from kubesim.types.transient import SCALE, transient

WORDS: Final = Kind("autoscaling", "scales", "Scale")
SHOWN: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
"""Metadata that a Scale takes from its workload."""


class Scales:
    """Answers GET, PUT and PATCH of a scale."""

    def __init__(self, store: Store, writer: Writer, bodies: Bodies) -> None:
        self._store = store
        self._writer = writer
        self._bodies = bodies

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """Return the scale, changed by a PUT or PATCH. Raises Refusal: 400, 404, 409, 422."""
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
        return 200, scale_of(found)

    async def _put(self, call: Call, body: Json) -> JsonObject:
        sent = transient(SCALE, body)
        if sent.get("kind", "Scale") != "Scale":
            raise bad_request("the object provided is no Scale")
        dry_run = is_dry_run(call.query, "UpdateOptions")
        return await self._writer.update(call, lambda old: scaled(old, sent), dry_run=dry_run)

    async def _patch(self, call: Call, patch: Json) -> JsonObject:
        change = patches.change(content_type(call.request), patch)

        def patched(old: JsonObject) -> JsonObject:
            return scaled(old, transient(SCALE, change(scale_of(old))))

        return await self._writer.update(call, patched, dry_run=is_dry_run(call.query, "PatchOptions"))


def scale_of(workload: JsonObject) -> JsonObject:
    """The Scale of a workload."""
    metadata, spec = workload["metadata"], workload.get("spec") or {}
    replicas = spec.get("replicas", 1)
    status = {
        "replicas": (workload.get("status") or {}).get("replicas", 0),
        "selector": selector_text(spec.get("selector") or {}),
    }
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in SHOWN if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def scaled(old: JsonObject, scale: JsonObject) -> JsonObject:
    """A workload with the replicas of a Scale. Raises Refusal: 400 for another name, 422 for negative replicas.

    The Scale's resourceVersion, if any, becomes the workload's, so that a stale Scale conflicts.
    """
    metadata, name = scale["metadata"], old["metadata"]["name"]
    if metadata.get("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    replicas = scale["spec"].get("replicas", 0)
    if replicas < 0:
        fault = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(WORDS, name, [fault])
    version = metadata.get("resourceVersion") or old["metadata"]["resourceVersion"]
    spec = {**(old.get("spec") or {}), "replicas": replicas}
    return {**old, "spec": spec, "metadata": {**old["metadata"], "resourceVersion": version}}


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
