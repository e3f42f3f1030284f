"""Workloads that ask for a replacement before an eviction, and what is seen of them at every moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kubesim.server.api import JsonObject

from gracectl.model import names
from gracectl.runtime.supervise import while_running
from support.stage import Stage, a_workload

MERGE = "application/merge-patch+json"
ASKS = {names.REPLACE_FIRST: "true"}
APPS = "/apis/apps/v1/namespaces/shop"


def web(replicas: int = 1, ready: float = 3.0, **more: Any) -> JsonObject:
    """A Deployment whose pods ask for a replacement, and are Ready after so many seconds."""
    pod = {"annotations": ASKS, "terminationGracePeriodSeconds": 5, **more.pop("pod", {})}
    behaviour = {"ready-seconds": ready, "stop-seconds": 1, **more.pop("behaviour", {})}
    return a_workload("Deployment", "web", replicas, behaviour=behaviour, pod=pod, **more)


def pods_of(stage: Stage, app: str = "web") -> list[JsonObject]:
    """Pods of the workload, by name."""
    pods = [each for each in stage.server.store.table("pods") if each["metadata"]["labels"].get("app") == app]
    return sorted(pods, key=lambda each: each["metadata"]["name"])


def is_serving(pod: JsonObject) -> bool:
    """Whether a Service sends requests to it."""
    conditions = pod.get("status", {}).get("conditions", [])
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def is_released(pod: JsonObject) -> bool:
    return names.RELEASED_FROM in pod["metadata"].get("annotations", {})


def owner_of(pod: JsonObject) -> str:
    """Name of the ReplicaSet that controls it; empty for a released pod."""
    owners: list[JsonObject] = pod["metadata"].get("ownerReferences", [])
    return str(owners[0]["name"]) if owners else ""


async def the_pod(stage: Stage) -> JsonObject:
    """The only pod of the workload."""
    (pod,) = pods_of(stage)
    return pod


class Endpoints:
    """How few pods have served at any moment."""

    def __init__(self) -> None:
        self.fewest = 1_000


@asynccontextmanager
async def endpoints(stage: Stage, every: float = 0.05) -> AsyncIterator[Endpoints]:
    """What is seen of the workload's serving pods while the block runs."""
    seen = Endpoints()

    async def look() -> None:
        while True:
            seen.fewest = min(seen.fewest, sum(map(is_serving, pods_of(stage))))
            await stage.clock.sleep(every)

    async with while_running(look):
        yield seen


async def edit_deployment(stage: Stage, spec: JsonObject) -> None:
    """A merge patch of another client."""
    await stage.call("PATCH", f"{APPS}/deployments/web", {"spec": spec}, MERGE)


async def annotate_pod(stage: Stage, pod: JsonObject, annotations: JsonObject) -> None:
    """A merge patch of another client."""
    path = f"/api/v1/namespaces/shop/pods/{pod['metadata']['name']}"
    await stage.call("PATCH", path, {"metadata": {"annotations": annotations}}, MERGE)


def generation(stage: Stage) -> int:
    """Generation of the Deployment: unchanged by all that gracectl does."""
    (deployment,) = stage.server.store.table("deployments.apps")
    return int(deployment["metadata"]["generation"])
