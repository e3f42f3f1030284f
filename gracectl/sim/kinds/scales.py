"""The subresource `scale`: how many replicas a workload wants and has, whatever its kind (autoscaling/v1 Scale).

A Scale is never stored: it is read from the workload, and what is written to it is written to `spec.replicas` there, by
the same path that every write takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gracectl.sim.server import patches
from gracectl.sim.server.api import Json, JsonObject
from gracectl.sim.server.bodies import Bodies, content_type
from gracectl.sim.server.calls import Call
from gracectl.sim.server.options import is_dry_run
from gracectl.sim.server.status import Kind, bad_request, invalid, invalid_value, not_found
from gracectl.sim.server.store import Store
from gracectl.sim.server.writes import Writer
from gracectl.sim.types.transient import SCALE, transient

SCALABLE: Final = ("deployments.apps", "replicasets.apps", "statefulsets.apps", "replicationcontrollers")
"""The tables of the kinds that have a scale."""

WORDS: Final = Kind("autoscaling", "scales", "Scale")


class Scales:
    """Answers GET, PUT and PATCH of a scale."""

    def __init__(self, store: Store, writer: Writer, bodies: Bodies) -> None:
        self._store = store
        self._writer = writer
        self._bodies = bodies

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """The scale, as it is or as it was changed. Raises Refusal: 400, 404, 409, 422."""
        match call.request.method:
            case "PUT":
                body = self._bodies.object(call.request, "Scale")
                return 200, await self._put(call, body)
            case "PATCH":
                patch = self._bodies.patch(call.request)
                return 200, await self._patch(call, patch)
        workload = self._store.table(call.route.resource.table).get(*call.route.key)
        if workload is None:
            raise not_found(call.route.resource.words, call.route.name)
        return 200, scale_of(workload)

    async def _put(self, call: Call, body: Json) -> JsonObject:
        sent = transient(SCALE, body)
        if sent.get("kind", "Scale") != "Scale":
            raise bad_request("the object provided is no Scale")

        def replace(old: JsonObject) -> JsonObject:
            return _scaled(old, sent)

        dry_run = is_dry_run(call.query, "UpdateOptions")
        return scale_of(await self._writer.update(call, replace, dry_run=dry_run))

    async def _patch(self, call: Call, patch: Json) -> JsonObject:
        change = patches.change(content_type(call.request), patch)

        def patched(old: JsonObject) -> JsonObject:
            return _scaled(old, transient(SCALE, change(scale_of(old))))

        dry_run = is_dry_run(call.query, "PatchOptions")
        return scale_of(await self._writer.update(call, patched, dry_run=dry_run))


def scale_of(workload: JsonObject) -> JsonObject:
    """The Scale that a workload shows."""
    metadata, spec, status = workload["metadata"], workload.get("spec") or {}, workload.get("status") or {}
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    replicas = spec.get("replicas", 1)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": status.get("replicas", 0), "selector": selector_text(spec.get("selector") or {})},
    }


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


def _scaled(old: JsonObject, scale: JsonObject) -> JsonObject:
    """The workload with the replicas of a scale; the scale's version, if it brings one, is the one it must have."""
    metadata, replicas = scale["metadata"], scale["spec"].get("replicas", 0)
    name = old["metadata"]["name"]
    if metadata.get("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    if replicas < 0:
        raise invalid(WORDS, name, [invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")])
    version = metadata.get("resourceVersion") or old["metadata"]["resourceVersion"]
    return {
        **old,
        "metadata": {**old["metadata"], "resourceVersion": version},
        "spec": {**(old.get("spec") or {}), "replicas": replicas},
    }
