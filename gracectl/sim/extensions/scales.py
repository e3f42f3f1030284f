"""The subresource `scale` of custom resources: where the replicas stand, the definition says by path."""

from __future__ import annotations

from typing import Any

from gracectl.sim.extensions.customs import CustomStrategy
from gracectl.sim.extensions.fieldpaths import value_at, with_value_at
from gracectl.sim.server import patches
from gracectl.sim.server.api import JsonObject
from gracectl.sim.server.bodies import Bodies, content_type
from gracectl.sim.server.calls import Call
from gracectl.sim.server.options import is_dry_run
from gracectl.sim.server.status import Refusal, bad_request, not_found
from gracectl.sim.server.store import Store
from gracectl.sim.server.writes import Writer
from gracectl.sim.types.transient import SCALE, transient

SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


class CustomScales:
    """Answers GET, PUT and PATCH of a scale."""

    def __init__(self, store: Store, writer: Writer, bodies: Bodies) -> None:
        self._store = store
        self._writer = writer
        self._bodies = bodies

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """The scale, as it is or as it was changed. Raises Refusal: 400, 404, 409, 422, 500 (no replicas there)."""
        strategy, resource = call.route.resource.strategy, call.route.resource
        assert isinstance(strategy, CustomStrategy)
        scale = strategy.version.scale
        assert scale is not None
        match call.request.method:
            case "PUT":
                sent = transient(SCALE, self._bodies.object(call.request, "Scale"))
                dry_run = is_dry_run(call.query, "UpdateOptions")
                changed = await self._writer.update(call, lambda old: scaled(old, sent, scale), dry_run=dry_run)
            case "PATCH":
                change = patches.change(content_type(call.request), self._bodies.patch(call.request))
                dry_run = is_dry_run(call.query, "PatchOptions")
                changed = await self._writer.update(
                    call,
                    lambda old: scaled(old, transient(SCALE, change(scale_of(old, scale))), scale),
                    dry_run=dry_run,
                )
            case _:
                found = self._store.table(resource.table).get(*call.route.key)
                if found is None:
                    raise not_found(resource.words, call.route.name)
                changed = resource.shown(found)
        return 200, scale_of(changed, scale)


def scale_of(object_: JsonObject, scale: JsonObject) -> JsonObject:
    """The Scale of an object. Raises Refusal (500)."""
    metadata = object_["metadata"]
    replicas = number_at(object_, scale["specReplicasPath"])
    if replicas is None:
        why = f'the spec replicas field "{scale["specReplicasPath"]}" does not exist'
        message = f"Internal error occurred: {why}"
        raise Refusal(500, "InternalError", message, details={"causes": [{"message": why}]})
    status: JsonObject = {"replicas": number_at(object_, scale["statusReplicasPath"]) or 0}
    selector = scale.get("labelSelectorPath") and text_at(object_, scale["labelSelectorPath"])
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in SHOWN if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def scaled(old: JsonObject, sent: JsonObject, scale: JsonObject) -> JsonObject:
    """The object with the replicas of a Scale. Raises Refusal (400)."""
    metadata, replicas = sent["metadata"], sent["spec"].get("replicas", 0)
    name = old["metadata"]["name"]
    if metadata.get("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    version = metadata.get("resourceVersion") or old["metadata"]["resourceVersion"]
    new = {**old, "metadata": {**old["metadata"], "resourceVersion": version}}
    return with_value_at(new, scale["specReplicasPath"], replicas)


def number_at(object_: JsonObject, path: str) -> int | None:
    """The whole number at a path, or None."""
    found = _at(object_, path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def text_at(object_: JsonObject, path: str) -> str:
    """The text at a path, or ""."""
    found = _at(object_, path)
    return found if isinstance(found, str) else ""


def _at(object_: JsonObject, path: str) -> Any:
    try:
        return value_at(object_, path)
    except TypeError:
        return None
