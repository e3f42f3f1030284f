"""Crimes: what no controller may do, each with a pattern of what the invariants say to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from support.stage import NAMESPACE, Stage, a_pod_manifest, the_settings

from gracectl.kube.transport import Request
from gracectl.model import names
from gracectl.model.times import format_time
from simulation.invariants import Invariants
from simulation.terms import Terms

PERIOD = 100.0
SETTINGS = the_settings(
    nodeGroups=[{"selector": {"matchLabels": {"pool": "timed"}}, "terminationGracePeriod": f"{PERIOD:.0f}s"}],
    health={"enabled": True},
    voluntary={"maximumAtOnce": 1},
)
TIMED = {"pool": "timed"}
CALM = Terms(faults_end=0.0)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
MERGE = "application/merge-patch+json"


class Culprit:
    """Sends what a controller would send, on a line of its own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.line = stage.transport.line()

    async def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> int:
        """Send a request; returns the status."""
        data = None if body is None else msgspec.json.encode(body)
        answer = await self.line.send(Request(method=method, path=path, body=data, content_type=content_type))
        return answer.status

    async def patch(self, path: str, body: Any) -> int:
        """Send a merge patch."""
        return await self.send("PATCH", path, body, MERGE)

    async def evict(self, pod: str, **options: Any) -> int:
        """Evict a pod by uid."""
        path, uid = self._pod(pod)
        body = {"metadata": {"name": pod}, "deleteOptions": {"preconditions": {"uid": uid}, **options}}
        return await self.send("POST", f"{path}/eviction", body)

    async def delete(self, pod: str, grace: int, *, by_uid: bool = True) -> int:
        """Delete a pod."""
        path, uid = self._pod(pod)
        options = {"gracePeriodSeconds": grace, **({"preconditions": {"uid": uid}} if by_uid else {})}
        return await self.send("DELETE", path, options)

    async def terminate(self, node: str) -> None:
        """Terminate the instance of a node."""
        await self.stage.provider.terminate(f"sim:///zone-a/{self.stage.instances[node]}")

    def _pod(self, name: str) -> tuple[str, str]:
        pod = self.stage.server.store.table("pods").get(NAMESPACE, name)
        assert pod is not None, name
        return f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", pod["metadata"]["uid"]


class World(NamedTuple):
    """Stage of a crime."""

    stage: Stage
    culprit: Culprit
    invariants: Invariants

    async def drain(self, node: str = "n1", **pod: Any) -> None:
        """Delete a node with a pod `web`."""
        await self.stage.create(a_pod_manifest("web", node, **pod))
        await self.stage.delete_node(node)

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        await self.stage.clock.sleep(seconds)


Crime = Callable[[World], Awaitable[None]]
CRIMES: dict[Crime, str] = {}
"""What nothing may do, and a pattern of what the invariants say to it."""


def says(text: str) -> Callable[[Crime], Crime]:
    """Add a crime, with the pattern of what is said to it."""

    def added(crime: Crime) -> Crime:
        CRIMES[crime] = text
        return crime

    return added


CLAIM = "/apis/karpenter.sh/v1/nodeclaims"
DEAF = {"ignores-sigterm": "true"}
LABELLED = {"metadata": {"labels": {"a": "b"}}}


def noticed(world: World, kind: str, seconds: float) -> Any:
    """Patch of a node: a notice that its machine goes after some seconds."""
    notice = f"{kind} {format_time(world.stage.clock.now() + seconds)} agent"
    return {"metadata": {"annotations": {names.INTERRUPTION: notice}}}


async def attach(world: World, node: str) -> None:
    """Attach a volume to a node."""
    body = {
        "metadata": {"name": "disk"},
        "spec": {"attacher": "csi.example.com", "nodeName": node, "source": {"persistentVolumeName": "pv"}},
    }
    await world.stage.call("POST", "/apis/storage.k8s.io/v1/volumeattachments", body)
