"""Talks to an embedded API server in-process, as briefly as tests like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubesim.apiserver import ApiServer
from kubesim.server.api import EventStream, Json, Request, Response

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


class Caller:
    """A client of one server."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    async def call(
        self, method: str, path: str, body: Json = None, *, headers: Mapping[str, str] | None = None, **query: str
    ) -> Response:
        """Send one request, whatever comes of it."""
        return await self.server.handle(
            Request(method=method, path=path, query=query, headers=headers or {}, body=body)
        )

    async def ok(self, method: str, path: str, body: Json = None, **query: str) -> Any:
        """Send one request that must succeed; returns the body."""
        response = await self.call(method, path, body, headers={}, **query)
        assert response.status < 300, response.body
        return response.body

    async def get(self, path: str, **query: str) -> Any:
        """The body of a successful GET."""
        return await self.ok("GET", path, **query)

    async def create(self, path: str, body: Json) -> Any:
        """Create an object; returns it."""
        return await self.ok("POST", path, body)

    async def patch(self, path: str, body: Json, content_type: str = MERGE) -> Any:
        """Patch an object; returns it."""
        response = await self.call("PATCH", path, body, headers={"content-type": content_type})
        assert response.status == 200, response.body
        return response.body

    async def watch(self, path: str, **query: str) -> EventStream:
        """Open a watch."""
        response = await self.call("GET", path, headers={}, watch="1", **query)
        assert response.stream is not None, response.body
        return response.stream

    async def pod(self, name: str, *, phase: str = "Running", ready: bool = True, **spec: Json) -> Any:
        """Create a pod of app=web on node n1 and let it run; returns it."""
        await self.create(
            PODS,
            {
                "metadata": {"name": name, "labels": {"app": "web"}},
                "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "pause"}], **spec},
            },
        )
        conditions = [{"type": "Ready", "status": str(ready)}]
        return await self.patch(f"{PODS}/{name}/status", {"status": {"phase": phase, "conditions": conditions}})

    async def budget(self, *, allowed: int, healthy: int = 3, desired: int = 2, **spec: Json) -> Any:
        """Create the budget `web` over app=web and count it as its controller would."""
        budget = await self.create(
            BUDGETS,
            {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}},
        )
        status = {
            "observedGeneration": budget["metadata"]["generation"],
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": healthy,
        }
        return await self.patch(f"{BUDGETS}/web/status", {"status": status})

    async def evict(self, name: str, options: Json = None, **query: str) -> Response:
        """Evict a pod, whatever comes of it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        if options:
            body["deleteOptions"] = options
        return await self.call("POST", f"{PODS}/{name}/eviction", body, headers={}, **query)


def cause_of(response: Response) -> Any:
    """The first cause of a refusal."""
    return response.body["details"]["causes"][0]


async def next_events(stream: EventStream, count: int) -> list[tuple[str, str]]:
    """The next events as (type, name)."""
    events = [await stream.__anext__() for _ in range(count)]
    return [(event.type, event.object["metadata"]["name"]) for event in events]
