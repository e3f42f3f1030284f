"""Running clusters on virtual time for tests of the controllers, small objects, and a timeline of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio.lowlevel
from kubesim.clock import LoopClock
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.client import MERGE
from kubesim.controllers.paths import BUDGETS, PODS, path_of
from kubesim.server.api import Json, JsonObject

NAMESPACE = "test"


@asynccontextmanager
async def running(*nodes: str, **options: Any) -> AsyncIterator[EmbeddedCluster]:
    """A cluster on the loop's (virtual) time, with these nodes, quiet."""
    cluster = EmbeddedCluster(LoopClock(), ClusterOptions(**options))
    async with anyio.create_task_group() as group:
        await group.start(cluster.run)
        for name in nodes:
            await cluster.add_node(NodeSpec(name=name))
        await quiet()
        yield cluster
        group.cancel_scope.cancel()


async def quiet() -> None:
    """Until everything that happens at this instant has happened.

    anyio's wait_all_tasks_blocked looks every 0.1 s, and on virtual time that would move the clock.
    """
    calm = 0
    while calm < 10:
        await anyio.lowlevel.checkpoint()
        is_busy = any(_is_runnable(task) for task in asyncio.all_tasks() if task is not asyncio.current_task())
        calm = 0 if is_busy else calm + 1


def _is_runnable(task: asyncio.Task[Any]) -> bool:
    waiter = getattr(task, "_fut_waiter", None)
    return waiter is None or waiter.done()


def pod(name: str, node: str = "", labels: dict[str, str] | None = None, **more: Any) -> JsonObject:
    """A pod, bound if `node` is given; `annotations` in `more` go to the metadata, the rest to the spec."""
    annotations = more.pop("annotations", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels or {"app": name},
            "annotations": annotations,
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": "c", "image": "pause"}],
            **more,
        },
    }


def workload(kind: str, name: str, replicas: int | None = None, **more: Any) -> JsonObject:
    """A Deployment, StatefulSet or DaemonSet; `annotations` go to the template, `spec` to the pods, the rest to its
    own spec.
    """
    metadata = {"labels": {"app": name}, "annotations": more.pop("annotations", {})}
    pod_spec = {"containers": [{"name": "c", "image": "pause"}], **more.pop("spec", {})}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": metadata, "spec": pod_spec},
            **more,
        },
    }


def budget(name: str, **bound: Any) -> JsonObject:
    """A budget over the pods of the app of its name."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": {"app": name}}, **bound},
    }


def sim(**values: Json) -> dict[str, str]:
    """Behaviour annotations: `stop_seconds=4` is `kubesim/stop-seconds: "4"`."""
    return {f"kubesim/{key.replace('_', '-')}": str(value).lower() for key, value in values.items()}


async def delete_pod(cluster: EmbeddedCluster, name: str, **options: Any) -> JsonObject:
    """DELETE a pod with these options; returns the answer."""
    status, answer = await cluster.api.call("DELETE", path_of(PODS, NAMESPACE, name), options or None)
    assert status == 200, answer
    deleted: JsonObject = answer
    return deleted


async def evict(cluster: EmbeddedCluster, name: str) -> int:
    """Evict a pod; returns the HTTP status."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    status, _ = await cluster.api.call("POST", path_of(PODS, NAMESPACE, name, "eviction"), body)
    return status


async def patch(cluster: EmbeddedCluster, path: str, body: JsonObject) -> JsonObject:
    """Merge patch; returns the object."""
    status, answer = await cluster.api.call("PATCH", path, body, content_type=MERGE)
    assert status == 200, answer
    patched: JsonObject = answer
    return patched


async def get(cluster: EmbeddedCluster, path: str) -> JsonObject | None:
    """The object, None if there is none."""
    status, answer = await cluster.api.call("GET", path)
    return answer if status == 200 else None


async def names(cluster: EmbeddedCluster, path: str) -> list[str]:
    """The names in a collection."""
    _, answer = await cluster.api.call("GET", path)
    return [item["metadata"]["name"] for item in answer["items"]]


Read = Callable[[str, JsonObject], str]


class Timeline:
    """What happens in a collection, and when: rows of (seconds since `running` began to look, name, what)."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.rows: list[tuple[float, str, str]] = []
        self._cluster = cluster
        self._start = cluster.pace.clock.monotonic()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Timeline]:
        """Look at pods and budgets while the block runs."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow, PODS, describe_pod)
            group.start_soon(self._follow, BUDGETS, describe_budget)
            await quiet()
            self.restart()
            yield self
            group.cancel_scope.cancel()

    def restart(self) -> None:
        """Forget the rows, and count from now."""
        self.rows.clear()
        self._start = self._cluster.pace.clock.monotonic()

    def of(self, name: str) -> list[tuple[float, str]]:
        """What happened to one object."""
        return [(at, what) for at, who, what in self.rows if who == name]

    def lives(self) -> list[list[str]]:
        """What each pod went through, in order."""
        seen: dict[str, list[str]] = {}
        for _, name, what in self.rows:
            if name != "budget":
                seen.setdefault(name, []).append(what)
        return sorted(seen.values())

    async def _follow(self, path: str, read: Read) -> None:
        async with aclosing(self._cluster.api.watch(path, {})) as events:
            async for event in events:
                is_pod = event.object["kind"] == "Pod"
                name = event.object["metadata"]["name"] if is_pod else "budget"
                what = read(event.type, event.object)
                if what != next((last for _, who, last in reversed(self.rows) if who == name), None):
                    at = self._cluster.pace.clock.monotonic() - self._start
                    self.rows.append((round(at, 4), name, what))


def describe_pod(kind: str, object_: JsonObject) -> str:
    """As the recording node-drain-end-to-end says it."""
    metadata, status = object_["metadata"], object_.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    if kind == "DELETED":
        return "DELETED"
    if "deletionTimestamp" in metadata:
        return f"{kind} terminating, grace {metadata['deletionGracePeriodSeconds']}"
    return f"{kind} {'ready' if ready else 'bound' if object_['spec'].get('nodeName') else 'unbound'}"


def describe_budget(kind: str, object_: JsonObject) -> str:
    """As the recording node-drain-end-to-end says it."""
    status = object_["status"]
    disrupted = len(status.get("disruptedPods", {}))
    return (
        f"{kind} allowed {status['disruptionsAllowed']}, healthy {status['currentHealthy']} of {status['expectedPods']}"
        f", {disrupted} disrupted"
    )
