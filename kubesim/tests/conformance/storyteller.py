"""The stage of the stories: a namespace, a node, a custom kind, and short words for what happens on it."""

from __future__ import annotations

from typing import Any

import orjson
from conformance.target import Target
from kubesim.server.api import Json, JsonObject, Request, Response

NAMESPACE = "/api/v1/namespaces/rec-stories"
NODE = "/api/v1/nodes/rec-stories"
PODS = f"{NAMESPACE}/pods"
BUDGETS = "/apis/policy/v1/namespaces/rec-stories/poddisruptionbudgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TALES = "/apis/stories.rec.example/v1/tales"
PATIENCE = 20.0


class Storyteller:
    """A client of a cluster."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def begin(self) -> Storyteller:
        """Make the namespace and the node."""
        await self.call("POST", "/api/v1/namespaces", {"metadata": {"name": "rec-stories"}})
        taint = {"key": "rec", "value": "true", "effect": "NoSchedule"}
        await self.call("POST", "/api/v1/nodes", {"metadata": {"name": "rec-stories"}, "spec": {"taints": [taint]}})
        return self

    async def call(
        self, method: str, path: str, body: Json = None, *, content_type: str = "application/json", **query: str
    ) -> Response:
        """Send one request, whatever comes of it."""
        response = await self._target.handle(
            Request(
                method=method,
                path=path,
                query=query,
                headers={"content-type": content_type, "accept": "application/json"},
                body=b"" if body is None else orjson.dumps(body),
            )
        )
        await self._target.pause()
        return response

    async def merge_patch(self, path: str, body: Json) -> Response:
        """PATCH with a JSON merge patch."""
        return await self.call("PATCH", path, body, content_type="application/merge-patch+json")

    async def json_patch(self, path: str, *operations: JsonObject) -> Response:
        """PATCH with a JSON patch."""
        return await self.call("PATCH", path, list(operations), content_type="application/json-patch+json")

    async def _until(self, path: str, **status: Json) -> JsonObject:
        clock = self._target.clock
        end = clock.monotonic() + PATIENCE
        while True:
            body = (await self.call("GET", path)).body
            pod_status: JsonObject = body.get("status") or {}
            is_observed = pod_status.get("observedGeneration") == body["metadata"].get("generation")
            if is_observed and all(pod_status.get(key) == value for key, value in status.items()):
                return pod_status
            if clock.monotonic() > end:
                raise TimeoutError(f"{path}: {pod_status}, not {status}")
            await clock.sleep(0.02)

    async def pods(self, *, ready: tuple[str, ...] = (), unready: tuple[str, ...] = ()) -> None:
        """Pods that run on the node, ready or not, all of app=web."""
        for name in (*ready, *unready):
            spec = {"nodeName": "rec-stories", "containers": [{"name": "c", "image": "pause"}]}
            made = await self.call("POST", PODS, {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec})
            assert made.status == 201, made.body
            await self._runs(name, ready=name in ready)

    async def becomes_ready(self, name: str) -> None:
        """Play the kubelet."""
        await self._runs(name, ready=True)

    async def _runs(self, name: str, *, ready: bool) -> None:
        conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}]
        status = {"phase": "Running", "conditions": conditions}
        await self.merge_patch(f"{PODS}/{name}/status", {"status": status})

    async def budget(self, **spec: Json) -> None:
        """The budget over app=web."""
        body = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}
        made = await self.call("POST", BUDGETS, body)
        assert made.status == 201, made.body

    async def counted(self, **status: Json) -> JsonObject:
        """Wait until the disruption controller has counted to this; the budget's status. TimeoutError."""
        return await self._until(f"{BUDGETS}/web", **status)

    async def budget_status(self) -> JsonObject:
        """The budget's status as it is."""
        status: JsonObject = (await self.call("GET", f"{BUDGETS}/web")).body["status"]
        return status

    async def evict(self, name: str, **query: str) -> int:
        """Evict a pod; the status code."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        return (await self.call("POST", f"{PODS}/{name}/eviction", body, **query)).status

    async def define(self, definition: JsonObject) -> None:
        """Create a CRD and wait until its kind is served. TimeoutError."""
        made = await self.call("POST", CRDS, definition)
        assert made.status == 201, made.body
        clock = self._target.clock
        end = clock.monotonic() + PATIENCE
        while (await self.call("GET", TALES)).status != 200:
            if clock.monotonic() > end:
                raise TimeoutError(f"{TALES} is never served")
            await clock.sleep(0.05)

    @staticmethod
    def tale(name: str, **spec: Json) -> JsonObject:
        """A Tale."""
        return {"apiVersion": "stories.rec.example/v1", "kind": "Tale", "metadata": {"name": name}, "spec": spec}


def a_definition() -> JsonObject:
    """The CRD of Tales: cluster-scoped, with a title that never changes (a CEL rule)."""
    fixed = [{"rule": "self == oldSelf", "message": "a title stays"}]
    properties: dict[str, Any] = {
        "title": {"type": "string", "x-kubernetes-validations": fixed},
        "pages": {"type": "integer", "minimum": 1},
    }
    spec = {"type": "object", "required": ["title"], "properties": properties}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "tales.stories.rec.example"},
        "spec": {
            "group": "stories.rec.example",
            "scope": "Cluster",
            "names": {"plural": "tales", "singular": "tale", "kind": "Tale", "listKind": "TaleList"},
            "versions": [version],
        },
    }
