"""Cluster API beside an embedded cluster: the definition of Machines, cut down, and a stand-in for its controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from kubesim.server import api
from kubesim.server.api import JsonObject

from gracectl.model import names
from support.stage import Stage

PLACE = "fleet"
MACHINES = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{PLACE}/machines"
HELD_BY = "machine.cluster.x-k8s.io"
_LOOSE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["clusterName"],
            "properties": {"clusterName": {"type": "string"}, "providerID": {"type": "string"}},
        },
        "status": _LOOSE,
    },
}


def machine_definition(*served: str) -> JsonObject:
    """The definition of Machines; these versions of it are served, v1beta2 is stored."""
    versions: list[JsonObject] = [
        {
            "name": name,
            "served": name in served,
            "storage": name == "v1beta2",
            "schema": {"openAPIV3Schema": _SCHEMA},
            "subresources": {"status": {}},
        }
        for name in ("v1beta1", "v1beta2")
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.cluster.x-k8s.io"},
        "spec": {
            "group": "cluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "machines", "singular": "machine", "kind": "Machine", "listKind": "MachineList"},
            "versions": versions,
        },
    }


DEFINITION = machine_definition("v1beta1", "v1beta2")


def marks(machine: str, *, cluster: str = "c1", namespace: str = PLACE, owner_kind: str = "MachineSet") -> JsonObject:
    """The annotations that Cluster API puts on a node."""
    return {
        names.CLUSTER_API_MACHINE: machine,
        names.CLUSTER_API_CLUSTER: cluster,
        names.CLUSTER_API_NAMESPACE: namespace,
        names.CLUSTER_API_OWNER_KIND: owner_kind,
    }


class ClusterApi:
    """Machines of a stage, and what Cluster API does with them: it terminates the instance of one that is deleted, then
    deletes its node, then lets the Machine go. `drained` are the Machines whose nodes it would have drained itself."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.is_working = True
        self.drained: list[str] = []
        self.deleted_nodes: list[str] = []

    async def add(self, node: str, name: str = "", **spec: Any) -> JsonObject:
        """A Machine behind this node (`m-<node>`), which is marked as its."""
        name = name or f"m-{node}"
        found = self.stage.node(node)
        assert found is not None
        await self.stage.patch_node(node, {"metadata": {"annotations": marks(name)}})
        return await self.add_alone(name, providerID=found["spec"]["providerID"], **spec)

    async def add_alone(self, name: str, **spec: Any) -> JsonObject:
        """A Machine; `place` is its namespace, the rest its spec."""
        place = spec.pop("place", PLACE)
        whole: JsonObject = {"clusterName": "c1", **spec}
        await self.stage.cluster.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": place}})
        body = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "finalizers": [HELD_BY],
                "labels": {names.CLUSTER_API_CLUSTER: whole["clusterName"]},
            },
            "spec": whole,
        }
        made: JsonObject = await self.stage.call("POST", MACHINES.replace(PLACE, place), body)
        return made

    def machine(self, name: str) -> JsonObject | None:
        """As the server has it."""
        return self.stage.server.store.table("machines.cluster.x-k8s.io").get(PLACE, name)

    async def patch(self, name: str, patch: JsonObject, subresource: str = "") -> None:
        """A merge patch of a Machine by another client."""
        await self.stage.call("PATCH", f"{MACHINES}/{name}{subresource}", patch, "application/merge-patch+json")

    async def drop(self, name: str) -> None:
        """The Machine is gone at once, as if it had moved away or had been terminated quickly."""
        await self.stage.call("DELETE", f"{MACHINES}/{name}")
        if self.machine(name) is not None:
            await self.patch(name, {"metadata": {"finalizers": None}})

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Its controller works while the block lasts."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._work)
            yield
            group.cancel_scope.cancel()

    async def _work(self) -> None:
        while True:
            for machine in list(self.stage.server.store.table("machines.cluster.x-k8s.io")):
                meta = machine["metadata"]
                is_paused = names.CLUSTER_API_PAUSED in meta.get("annotations", {})
                if self.is_working and "deletionTimestamp" in meta and not is_paused:
                    await self._end(meta["name"], machine["spec"]["providerID"], meta.get("annotations", {}))
            await self.stage.clock.sleep(0.25)

    async def _end(self, name: str, provider_id: str, annotations: JsonObject) -> None:
        if names.EXCLUDE_NODE_DRAINING not in annotations and name not in self.drained:
            self.drained.append(name)
        path = f"/cloud/v1/instances/{provider_id.rsplit('/', 1)[-1]}"
        answer = await self.stage.cluster.cloud(api.Request(method="GET", path=path))
        if answer.status == 200 and answer.body["state"] != "terminated":
            await self.stage.cluster.cloud(api.Request(method="DELETE", path=path))
            return
        for node in self.stage.nodes():
            if node["spec"].get("providerID") == provider_id:
                await self.stage.call("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")
                self.deleted_nodes.append(node["metadata"]["name"])
        await self.patch(name, {"metadata": {"finalizers": None}})
